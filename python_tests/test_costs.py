"""The form of a cost function: what is called, what is refused."""

import numpy as np
import pytest
import torch

from softrank_ext.costs import costs_of

ITEMS = torch.tensor([[[1.0], [2.0], [4.0]], [[8.0], [16.0], [32.0]]])
ORDER = torch.tensor([[1, 2, 0], [2, 0, 1]])


def weighted(items, order):
    """First item once, second twice, ..."""
    places = torch.arange(1, order.shape[1] + 1, dtype=items.dtype)
    return (items[..., 0].gather(1, order) * places).sum(1)


def test_costs_by_hand():
    costs = costs_of(weighted, ITEMS, ORDER)
    assert costs.dtype == torch.float64
    assert costs.tolist() == [2 + 8 + 3, 32 + 16 + 48]
    assert costs_of(weighted, ITEMS[:0], ORDER[:0]).shape == (0,)


def test_a_cost_never_sees_padding():
    mask = torch.tensor([[True, False, True], [True, True, True]])
    order = torch.tensor([[2, 0, 1], [2, 0, 1]])
    seen = []

    def cost(items, order):
        seen.append((items.shape, order.tolist()))
        return weighted(items, order)

    assert costs_of(cost, ITEMS, order, mask).tolist() == [4 + 2, 32 + 16 + 48]
    assert seen == [((1, 2, 1), [[1, 0]]), ((1, 3, 1), [[2, 0, 1]])]


def test_numpy_and_infinity_are_taken():
    assert costs_of(lambda items, order: np.array([1, np.inf]), ITEMS, ORDER).tolist() == [1, np.inf]


@pytest.mark.parametrize(
    ("cost", "kind", "message"),
    [
        (3, TypeError, "cost must be a function"),
        (lambda items, order: 1.0, TypeError, r"one number per row, \(2,\), got float"),
        (lambda items, order: torch.tensor(1.0), ValueError, r"one number per row, \(2,\), got \(\)"),
        (lambda items, order: torch.zeros(2, 1), ValueError, r"one number per row, \(2,\), got \(2, 1\)"),
        (lambda items, order: torch.tensor([0.0, torch.nan]), ValueError, "NaN in row 1"),
        (lambda items, order: torch.tensor([0.0, -torch.inf]), ValueError, "-infinity in row 1"),
        (lambda items, order: items.mul_(1)[:, 0, 0], ValueError, "must not change its inputs"),
    ],
)
def test_what_is_refused(cost, kind, message):
    with pytest.raises(kind, match=message):
        costs_of(cost, ITEMS.clone(), ORDER)


def in_numpy(items, order):
    """Changes its input behind torch's back."""
    numbers = items.numpy()
    numbers[1, 0, 0] = 5
    return numbers[:, 0, 0].copy()


def test_a_change_in_numpy_is_noticed():
    with pytest.raises(ValueError, match="must not change its inputs"):
        costs_of(in_numpy, ITEMS.clone(), ORDER)
    with pytest.raises(ValueError, match="must not change its inputs"):
        costs_of(lambda items, order: order.numpy().sort() or items[:, 0, 0], ITEMS, ORDER.clone())
    unknown = torch.full((2, 3, 1), torch.nan)
    assert costs_of(lambda items, order: torch.zeros(2), unknown, ORDER).tolist() == [0, 0]


def test_an_error_of_the_cost_is_its_own():
    def broken(items, order):
        raise KeyError("price")

    with pytest.raises(KeyError, match="price") as caught:
        costs_of(broken, ITEMS, ORDER)
    assert "broken" in [entry.name for entry in caught.traceback]
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == [
            "raised by the cost, called with items (2, 3, 1) float32 and order (2, 3) int64"
        ]


def test_ctrl_c_inside_a_cost():
    def slow(items, order):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        costs_of(slow, ITEMS, ORDER)
