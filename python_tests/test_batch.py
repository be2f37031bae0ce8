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
