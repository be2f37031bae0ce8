"""A batch knows whether its orders are whole."""

import torch

from softrank_ext.batch import Batch

ORDER = torch.tensor([[1, 3, 2, 0], [2, 0, 1, 3]])
MASK = torch.tensor([[True, True, True, True], [True, True, True, False]])


def test_orders_are_whole_unless_leading_places_alone_are_known():
    assert Batch(ORDER, ORDER).is_whole()
    assert Batch(ORDER, ORDER, known=torch.tensor([4, 4])).is_whole()
    assert not Batch(ORDER, ORDER, known=torch.tensor([4, 3])).is_whole()
    assert Batch(ORDER, ORDER, MASK, known=torch.tensor([4, 3])).is_whole()  # padding need not be known
    assert not Batch(ORDER, ORDER, MASK, known=torch.tensor([4, 2])).is_whole()


def test_batches_without_labels():
    items = torch.rand(2, 4, 3)
    mask = torch.tensor([[True, False, True, True], [True, True, True, True]])
    batch = Batch.without_labels(items, mask, first=torch.tensor([3, 1]), extras={"row": torch.tensor([7, 8])})
    assert batch.order.tolist() == [[3, 0, 2, 1], [1, 0, 2, 3]]
    assert batch.known.tolist() == [0, 0] and not batch.has_labels() and not batch.is_whole()
    assert batch.extras["row"].tolist() == [7, 8]
    assert Batch(items, batch.order).has_labels()
    assert Batch(items, batch.order, known=torch.tensor([0, 1])).has_labels()


def test_rows_of_a_batch_keep_all_that_belongs_to_them():
    first, known, extras = torch.tensor([1, 2]), torch.tensor([4, 3]), {"row": torch.tensor([7, 8])}
    last = Batch(ORDER + 10, ORDER, MASK, first, known, extras).of_rows(slice(1, None))
    assert last.items.tolist() == [[12, 10, 11, 13]] and last.order.tolist() == [[2, 0, 1, 3]]
    assert last.mask.tolist() == [[True, True, True, False]]
    assert (last.first.tolist(), last.known.tolist(), last.extras["row"].tolist()) == ([2], [3], [8])
    assert Batch(ORDER, ORDER).of_rows(slice(0, 1)).mask is None
