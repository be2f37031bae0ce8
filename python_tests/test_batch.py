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
