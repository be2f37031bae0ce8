"""Samples: the best of them, single ones, numpy, their repr, mask and seed."""

import numpy as np
import pytest
import torch

from softrank_ext import Samples, sample
from softrank_ext.sampling.samples import map_fields

pytestmark = pytest.mark.usefixtures("one_thread")
MASK = torch.tensor([[True, True, True, True, True], [False, True, True, False, True], [True, True, False, True, True]])


@pytest.fixture
def samples(make_model) -> Samples:
    """Three padded instances of five items, eight draws of each, recorded."""
    torch.manual_seed(1)
    return sample(make_model("pointer"), torch.randn(3, 5, 2), mask=MASK, num_samples=8, record=True, seed=21)


def by_hand(log_prob: list[list[float]], order: list[list[list[int]]]) -> Samples:
    """Samples of given orders (B, num_samples, N), the other fields made up."""
    orders = torch.tensor(order)
    numbers = torch.tensor(log_prob)
    whole = torch.ones_like(numbers, dtype=torch.int64)
    return Samples(orders, orders.argsort(-1), orders / 1.0, numbers, numbers, whole, numbers)


def test_best(samples):
    best = samples.best(lambda order: (order[..., 0] - 2).abs().float())
    assert best.order.shape == (3, 5) and best.log_prob.shape == (3,) and best.trajectory[0].order.shape == (3, 5)
    for row in range(3):
        costs = [abs(int(order[0]) - 2) for order in samples.order[row]]
        assert torch.equal(best.order[row], samples.order[row, costs.index(min(costs))])
        assert torch.equal(best.mask[row], MASK[row])
        assert torch.equal(best[row].order, samples[row].best(lambda order: (order[..., 0] - 2).abs()).order)
    with pytest.raises(ValueError, match=r"cost must return \(3, 8\) numbers, got \(3,\)"):
        samples.best(lambda order: order[:, 0, 0])


def test_best_by_log_prob(make_model):
    torch.manual_seed(14)
    model, items = make_model("pointer"), torch.randn(3, 5, 2)
    samples = sample(model, items, num_samples=6, seed=0)
    best = samples.best()
    for row in range(3):
        number = samples.log_prob[row].tolist().index(max(samples.log_prob[row].tolist()))
        assert torch.equal(best.order[row], samples.order[row, number])
        assert best.log_prob[row] == samples.log_prob[row, number]
    one = sample(model, items[0].numpy(), num_samples=6, seed=0).best()
    assert one.order.tolist() == best.order[0].tolist()


def test_best_of_made_up_samples():
    samples = by_hand([[-2.0, -1.0], [-0.5, -3.0]], [[[0, 1, 2], [2, 0, 1]], [[1, 2, 0], [0, 2, 1]]])
    assert samples.best().order.tolist() == [[2, 0, 1], [1, 2, 0]]
    assert samples.best(lambda order: order[..., 2]).order.tolist() == [[2, 0, 1], [1, 2, 0]]
    assert samples.best(lambda order: order[..., 0]).order.tolist() == [[0, 1, 2], [0, 2, 1]]


def test_best_by_a_cost_of_items(samples):
    """The cost sees each order with its own items, without padding; one instance and numpy too."""
    items = torch.rand(3, 5, 2)

    def cost(items, order):
        assert order.max() < items.shape[1]
        return items[..., 0].gather(1, order[:, :1])[:, 0]

    best = samples.best(cost, items)
    for row in range(3):
        values = items[row, samples.order[row, :, 0], 0]
        assert torch.equal(best.order[row], samples.order[row, int(values.argmin())])
        assert torch.equal(samples[row].best(cost, items[row]).order, best.order[row])
    assert samples.numpy().best(cost, items.numpy()).order.tolist() == best.order.tolist()
    with pytest.raises(ValueError, match=r"items must begin with \(3, 5\), as the samples do, got \(2, 5, 2\)"):
        samples.best(cost, items[:2])


def test_one_instance_has_all_fields_of_its_own(samples):
    assert len(samples) == 3
    one = samples[1]
    for name in ("order", "ranks", "soft_ranks", "log_prob", "margin", "passes", "accepted", "mask"):
        assert torch.equal(getattr(one, name), getattr(samples, name)[1]), name
    assert one.seed == 21 and one.effective_size is None
    assert one.trajectory[2].t == samples.trajectory[2].t
    assert torch.equal(one.trajectory[2].soft_ranks, samples.trajectory[2].soft_ranks[1])
    draw = one[3]
    assert draw.order.shape == (5,) and torch.equal(draw.order, samples.order[1, 3])
    assert torch.equal(samples[1:].order, samples.order[1:])
    assert torch.equal(samples[torch.tensor([2, 0])].order, samples.order[[2, 0]])


def test_mask_has_the_leading_dimensions_of_order(samples):
    assert samples.mask.shape == samples.order.shape and samples.mask.dtype == torch.bool
    assert torch.equal(samples.mask, MASK[:, None].expand(3, 8, 5))
    is_real = samples.mask.gather(-1, samples.order)  # by place: real items first
    assert torch.equal(is_real, torch.arange(5) < MASK.sum(1)[:, None, None].expand(3, 8, 1))


def test_no_mask_no_field(make_model):
    drawn = sample(make_model("pointer"), torch.randn(2, 4, 2))
    assert drawn.mask is None and drawn[0].mask is None and drawn.numpy().mask is None


def test_numpy(samples):
    arrays = samples.numpy()
    for name in ("order", "ranks", "soft_ranks", "log_prob", "margin", "passes", "accepted", "mask"):
        value = getattr(arrays, name)
        assert isinstance(value, np.ndarray) and np.array_equal(value, getattr(samples, name).numpy()), name
    assert isinstance(arrays.trajectory[0].order, np.ndarray)
    assert arrays.seed == 21 and arrays.log_prob_allowed is None
    best = arrays.best()
    assert isinstance(best.order, np.ndarray) and np.array_equal(best.order, samples.best().order.numpy())


def test_repr(samples):
    best = f"{float(samples.log_prob.max()):.4g}"
    wanted = f"Samples(3 x 8 orders of 5 items, padded, best log_prob {best}, seed 21, 5 times recorded)"
    assert repr(samples) == wanted == repr(samples.numpy())
    assert repr(by_hand([[-2.0, -1.25]], [[[0, 1, 2], [2, 0, 1]]])) == (
        "Samples(1 x 2 orders of 3 items, best log_prob -1.25, seed 0)"
    )
    assert repr(by_hand([[-2.0, -1.25]], [[[0, 1, 2], [2, 0, 1]]])[0]).startswith("Samples(2 orders of 3 items, best")
    assert repr(by_hand([[-2.0]], [[[0, 1]]])[0][0]).startswith("Samples(one order of 2 items, best")
    assert repr(samples[:0]).startswith("Samples(0 x 8 orders of 5 items, padded, best log_prob none")


def test_map_fields_joins_parts(samples):
    again = map_fields(lambda *tensors: torch.cat(tensors), samples[:1], samples[1:])
    assert torch.equal(again.order, samples.order) and torch.equal(again.mask, samples.mask)
    assert torch.equal(again.trajectory[4].predicted_order, samples.trajectory[4].predicted_order)
    assert again.seed == 21 and again.effective_size is None
