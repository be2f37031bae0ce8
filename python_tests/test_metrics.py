"""Metrics: by hand, against SciPy, against brute force over pairs and against a loop over leading dimensions."""

import itertools
import math
import os
import sys
from pathlib import Path

import pytest
import scipy
import torch
from scipy.stats import kendalltau

from softrank_ext import metrics
from softrank_ext.permutations import ranks_of

BENCH = Path(__file__).parents[1] / "bench"


def random_orders(rows, items, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, items, generator=generator).argsort(1)


ORDER = torch.tensor([[1, 3, 2, 0]])
TRUE_ORDER = torch.tensor([[1, 2, 3, 0]])


@pytest.mark.parametrize("reference", ["", "1"])
@pytest.mark.parametrize("items", [2, 3, 8, 200])
def test_kendall_tau_equals_scipy(monkeypatch, items, reference):
    monkeypatch.setenv("SOFTRANK_EXT_REFERENCE", reference)
    order, true_order = random_orders(20, items), random_orders(20, items, seed=1)
    of_orders = [kendalltau(a, b).statistic for a, b in zip(order, true_order, strict=True)]
    ranks, true_ranks = ranks_of(order), ranks_of(true_order)
    of_ranks = [kendalltau(a, b).statistic for a, b in zip(ranks, true_ranks, strict=True)]
    torch.testing.assert_close(
        metrics.kendall_tau(order, true_order), torch.tensor(of_orders).double(), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(
        metrics.kendall_tau_of_ranks(order, true_order), torch.tensor(of_ranks).double(), atol=1e-12, rtol=0
    )
    if items > 3:
        assert not torch.allclose(
            metrics.kendall_tau(order, true_order), metrics.kendall_tau_of_ranks(order, true_order)
        )


def test_kendall_tau_by_hand():
    order, true_order = torch.tensor([[1, 3, 2, 0]]), torch.tensor([[0, 1, 2, 3]])
    assert metrics.kendall_tau(order, true_order).tolist() == [pytest.approx(1 - 4 * 4 / 12)]
    # Moving one item from the front to the back of four: lists [0,1,2,3] and [1,2,3,0] differ in three pairs.
    assert metrics.kendall_tau(torch.tensor([[1, 2, 3, 0]]), true_order).tolist() == [0.0]
    # The ends of the right order exchanged. By lists, only places 0 and 3 disagree. By ranks, item 1 has gone behind
    # the three others and item 0 before two more.
    exchanged = torch.tensor([[0, 2, 3, 1]])
    assert metrics.kendall_tau(exchanged, TRUE_ORDER).tolist() == [pytest.approx(1 - 2 / 6)]
    assert metrics.kendall_tau_of_ranks(exchanged, TRUE_ORDER).tolist() == [pytest.approx(1 - 2 * 5 / 6)]


@pytest.mark.parametrize("reference", ["", "1"])
def test_kendall_tau_of_one_and_of_no_item(monkeypatch, reference):
    monkeypatch.setenv("SOFTRANK_EXT_REFERENCE", reference)
    one, nothing, no_rows = torch.zeros(2, 1).long(), torch.zeros(2, 0).long(), torch.zeros(0, 3).long()
    for tau in (metrics.kendall_tau, metrics.kendall_tau_of_ranks):
        assert tau(one, one).tolist() == [1.0, 1.0]
        assert tau(nothing, nothing).tolist() == [1.0, 1.0]
        assert tau(no_rows, no_rows).tolist() == []


def test_padding_is_left_out():
    # Real items 1, 3, 4 of five; without padding they are items 0, 1, 2 of three.
    mask = torch.tensor([[False, True, False, True, True]])
    order, true_order = torch.tensor([[3, 4, 1, 0, 2]]), torch.tensor([[1, 4, 3, 2, 0]])
    short, true_short = torch.tensor([[1, 2, 0]]), torch.tensor([[0, 2, 1]])
    for metric in (metrics.kendall_tau, metrics.kendall_tau_of_ranks, metrics.accuracy, metrics.correctness):
        assert metric(order, true_order, mask).tolist() == metric(short, true_short).tolist(), metric.__name__
        assert metric(order, torch.tensor([[3, 4, 1, 2, 0]]), mask).tolist() == [1.0]
    labels = torch.tensor([[9, 5, 9, 5, 6]])
    assert metrics.tie_aware_accuracy(order, torch.tensor([[1, 4, 3, 2, 0]]), labels, mask).tolist() == [1.0]
    assert metrics.tie_aware_correctness(order, torch.tensor([[1, 3, 4, 2, 0]]), labels, mask).tolist() == [
        pytest.approx(1 / 3)
    ]


def test_known_places_alone_are_scored():
    order, true_order = torch.tensor([[1, 3, 0, 2, 4]] * 3), torch.tensor([[1, 0, 3, 4, 2]] * 3)
    known = torch.tensor([0, 1, 2])
    assert metrics.accuracy(order, true_order, known=known).tolist() == [1.0, 1.0, 0.0]
    assert metrics.correctness(order, true_order, known=known).tolist() == [1.0, 1.0, 0.5]

    def tau_by_pairs(count):
        ranks, true_ranks = ranks_of(order[0]).tolist(), ranks_of(true_order[0]).tolist()
        decided = [
            (a, b) for a, b in itertools.combinations(range(5), 2) if true_ranks[a] < count or true_ranks[b] < count
        ]
        wrong = sum((ranks[a] < ranks[b]) != (true_ranks[a] < true_ranks[b]) for a, b in decided)
        return 1 - 2 * wrong / len(decided) if decided else 1.0

    tau = metrics.kendall_tau_of_ranks(order, true_order, known=known).tolist()
    assert tau == [pytest.approx(tau_by_pairs(count)) for count in (0, 1, 2)]
    whole = metrics.kendall_tau_of_ranks(order, true_order, known=torch.full((3,), 5))
    torch.testing.assert_close(whole, metrics.kendall_tau_of_ranks(order, true_order))


def test_accuracy_and_correctness_by_hand():
    order, true_order = torch.tensor([[1, 3, 2, 0], [1, 2, 3, 0]]), TRUE_ORDER.expand(2, 4)
    assert metrics.accuracy(order, true_order).tolist() == [0.0, 1.0]
    assert metrics.correctness(order, true_order).tolist() == [0.5, 1.0]


def test_equal_labels_are_interchangeable():
    labels = torch.tensor([[7, 1, 4, 4]])
    assert metrics.tie_aware_accuracy(ORDER, TRUE_ORDER, labels).tolist() == [1.0]
    assert metrics.tie_aware_correctness(ORDER, TRUE_ORDER, labels).tolist() == [1.0]
    other = torch.tensor([[7, 4, 4, 1]])
    assert metrics.tie_aware_accuracy(ORDER, TRUE_ORDER, other).tolist() == [0.0]
    assert metrics.tie_aware_correctness(ORDER, TRUE_ORDER, other).tolist() == [0.5]


def test_tour_length_and_gap_by_hand():
    points = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]])
    order = torch.tensor([[1, 2, 0]])
    assert metrics.tour_length(points, order).tolist() == [12.0]
    square = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
    assert metrics.tour_length(square, torch.tensor([[0, 2, 1, 3]])).tolist() == [4.0]
    assert metrics.tour_length(square, torch.tensor([[3, 1, 0, 2]])).tolist() == [pytest.approx(2 + 2 * 2**0.5)]
    distances = torch.tensor([[[0, 5, 9], [1, 0, 7], [2, 3, 0]]])  # not symmetric: the direction counts
    assert metrics.matrix_tour_length(distances, order).tolist() == [7 + 2 + 5]
    assert metrics.gap(torch.tensor([12.0, 3.0]), torch.tensor([10.0, 2.0])).tolist() == [pytest.approx(0.2), 0.5]


def test_tour_validity():
    order = torch.tensor([[1, 2, 0], [1, 1, 0], [1, 2, 3], [2, 0, 1]])
    assert metrics.tour_validity(order).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert metrics.tour_validity(order, torch.tensor([1, 1, 1, 1])).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_grid_pictures_by_hand():
    # 2 x 3 cells; the right order puts item k at place k.
    true_order = torch.arange(6).expand(2, 6)
    order = torch.tensor([[1, 2, 0, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
    assert metrics.place_accuracy(order, true_order, 2, 3).tolist() == [[0.5, 0.5, 0.5], [1.0, 1.0, 1.0]]
    assert metrics.manhattan_displacement(order, true_order, 2, 3).tolist() == [[2, 1, 1, 0, 0, 0], [0] * 6]
    assert metrics.displacement_histogram(order, true_order, 2, 3).tolist() == [9, 2, 1, 0]
    far = torch.tensor([[5, 0, 1, 2, 3, 4]])
    assert metrics.manhattan_displacement(far, true_order[:1], 2, 3).tolist() == [[1, 1, 3, 1, 1, 3]]


def test_mean_displacement_of_random_arrangements():
    order, true_order = random_orders(4000, 64), random_orders(4000, 64, seed=1)
    mean = metrics.manhattan_displacement(order, true_order, 8, 8).double().mean()
    assert mean == pytest.approx(5.25, abs=0.02)  # 2 (8^2 - 1) / (3 * 8)


def test_ndcg_by_hand():
    relevance = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    assert metrics.ndcg(torch.tensor([[1, 2, 3, 0]]), relevance, 4).tolist() == [pytest.approx(1.0)]
    log3 = torch.tensor(3.0).double().log2().item()
    wanted = (1 + 3 / log3) / (3 + 2 / log3)
    assert metrics.ndcg(torch.tensor([[3, 1, 2, 0]]), relevance, 2).tolist() == [pytest.approx(wanted)]
    assert metrics.ndcg(ORDER, torch.zeros(1, 4), 3).tolist() == [0.0]


def each(metric, order, *instance, **options):
    """A metric of orders (B, S, N), one order at a time with its own instance: (B, S, ...)."""
    rows = []
    for b in range(order.shape[0]):
        own = [part[b : b + 1] for part in instance]
        keywords = {
            name: value[b : b + 1] if isinstance(value, torch.Tensor) else value for name, value in options.items()
        }
        rows.append(torch.cat([metric(order[b, s : s + 1], *own, **keywords) for s in range(order.shape[1])]))
    return torch.stack(rows)


B, S, N = 3, 4, 6
MASK = torch.tensor([[True] * 6, [True, False, True, True, True, False], [False, False, True, False, True, True]])


def sampled_orders(mask=None):
    """Orders (B, S, N) and right orders (B, N), real items first."""
    generator = torch.Generator().manual_seed(5)
    order = torch.rand(B, S, N, generator=generator).argsort(-1)
    true_order = torch.rand(B, N, generator=generator).argsort(-1)
    if mask is not None:
        is_padding = (~mask)[:, None].expand(B, S, N).gather(-1, order).int()
        order = order.gather(-1, is_padding.argsort(dim=-1, stable=True))
        is_padding = (~mask).gather(-1, true_order).int()
        true_order = true_order.gather(-1, is_padding.argsort(dim=-1, stable=True))
    return order, true_order


@pytest.mark.parametrize("reference", ["", "1"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["kendall_tau", "kendall_tau_of_ranks", "accuracy", "correctness"])
def test_leading_dimensions_of_orders_and_right_orders(monkeypatch, name, mask, reference):
    monkeypatch.setenv("SOFTRANK_EXT_REFERENCE", reference)
    metric = getattr(metrics, name)
    order, true_order = sampled_orders(mask)
    order[1, 2] = true_order[1]
    options = {} if mask is None else {"mask": mask}
    wanted = each(metric, order, true_order, **options)
    assert wanted.unique().numel() > 1
    found = metric(order, true_order, **options)
    assert found.shape == (B, S) and torch.equal(found, wanted)
    everything = {name: value[:, None].expand(B, S, N) for name, value in options.items()}
    assert torch.equal(metric(order, true_order[:, None].expand(B, S, N), **everything), wanted)
    one = {name: value[1] for name, value in options.items()}
    assert torch.equal(metric(order[1], true_order[1], **one), wanted[1])
    assert torch.equal(metric(order[1, 3], true_order[1], **one), wanted[1, 3])
    assert metric(order[:, :0], true_order, **options).shape == (B, 0)
    if name != "kendall_tau":
        known = torch.tensor([3, 2, 1])
        wanted = each(metric, order, true_order, known=known, **options)
        assert torch.equal(metric(order, true_order, known=known, **options), wanted)
        assert torch.equal(metric(order[1, 3], true_order[1], known=known[1], **one), wanted[1, 3])


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("name", ["tie_aware_accuracy", "tie_aware_correctness"])
def test_leading_dimensions_of_labels(name, mask):
    metric = getattr(metrics, name)
    order, true_order = sampled_orders(mask)
    labels = torch.tensor([[1, 1, 1, 1, 1, 1], [3, 8, 3, 5, 5, 9], [0, 1, 2, 3, 4, 2]])
    options = {} if mask is None else {"mask": mask}
    wanted = each(metric, order, true_order, labels, **options)
    assert wanted.unique().numel() > 1
    assert torch.equal(metric(order, true_order, labels, **options), wanted)
    one = {name: value[1] for name, value in options.items()}
    assert torch.equal(metric(order[1], true_order[1], labels[1], **one), wanted[1])


def test_leading_dimensions_of_tours():
    order, _ = sampled_orders()
    generator = torch.Generator().manual_seed(2)
    points, distances = torch.rand(B, N, 2, generator=generator), torch.rand(B, N, N, generator=generator)
    for metric, instance in ((metrics.tour_length, points), (metrics.matrix_tour_length, distances)):
        wanted = each(lambda order, instance, metric=metric: metric(instance, order), order, instance)
        assert torch.equal(metric(instance, order), wanted)
        assert torch.equal(metric(instance[2], order[2]), wanted[2])
        assert torch.equal(metric(instance[2], order[2, 1]), wanted[2, 1])
        torch.testing.assert_close(metric(instance[:, None].expand(B, S, *instance.shape[1:]), order), wanted)
    length = metrics.tour_length(points, order)
    best = length.amin(1)
    assert torch.equal(metrics.gap(length, best), torch.stack([metrics.gap(length[:, s], best) for s in range(S)], 1))
    assert metrics.gap(length[0, 0], best[0]).shape == ()
    order[1, 2, 0] = order[1, 2, 1]
    wanted = torch.ones(B, S, dtype=torch.float64)
    wanted[1, 2] = 0
    assert torch.equal(metrics.tour_validity(order), wanted)
    first = order[:, 0, 0]
    assert torch.equal(metrics.tour_validity(order, first), each(metrics.tour_validity, order, first))
    assert metrics.tour_validity(order, first)[:, 0].tolist() == [1, 1, 1]


def test_leading_dimensions_of_grids_and_relevance():
    order, true_order = sampled_orders()
    shift = metrics.manhattan_displacement(order, true_order, 2, 3)
    assert torch.equal(shift, each(metrics.manhattan_displacement, order, true_order, rows=2, columns=3))
    histograms = each(lambda a, b: metrics.displacement_histogram(a, b, 2, 3)[None], order, true_order)
    assert torch.equal(metrics.displacement_histogram(order, true_order, 2, 3), histograms.sum((0, 1)))
    accuracy = metrics.place_accuracy(order, true_order, 2, 3)
    flat = metrics.place_accuracy(order.reshape(-1, N), true_order.repeat_interleave(S, 0), 2, 3)
    assert torch.equal(accuracy, flat)
    relevance = torch.rand(B, N, generator=torch.Generator().manual_seed(4))
    assert torch.equal(metrics.ndcg(order, relevance, 3), each(metrics.ndcg, order, relevance, k=3))
    assert torch.equal(metrics.ndcg(order[0], relevance[0], 3), metrics.ndcg(order, relevance, 3)[0])


def test_errors_of_leading_dimensions():
    order, true_order = sampled_orders()
    with pytest.raises(
        ValueError,
        match=r"^true_order must be a \(3, 4, 6\) tensor of int64 "
        r"\(of the first 2 dimensions, the last may be missing\), got \(4, 6\) int64$",
    ):
        metrics.accuracy(order, order[0])
    with pytest.raises(ValueError, match=r"true_order must be a \(3, 6\) tensor of int64, got \(3, 4, 6\) int64"):
        metrics.accuracy(true_order, order)
    with pytest.raises(ValueError, match=r"points must be a \(3, 4, 6, D\) tensor of .*, got \(4, 6, 2\) float32"):
        metrics.tour_length(torch.rand(4, 6, 2), order)
    with pytest.raises(ValueError, match=r"best_length must be a \(3, 4\) tensor .*, got \(4,\) float32"):
        metrics.gap(torch.ones(3, 4), torch.ones(4))
    with pytest.raises(ValueError, match=r"order must hold each of 0 to 5 once per row, row 6 is"):
        order[1, 2, 0] = order[1, 2, 1]
        metrics.kendall_tau(order, true_order)


def test_errors():
    order, soft_ranks = torch.tensor([[1, 2, 0]]), torch.rand(1, 3)
    for metric in (metrics.kendall_tau, metrics.kendall_tau_of_ranks, metrics.accuracy, metrics.correctness):
        with pytest.raises(
            ValueError,
            match=r"order must be a \(\.\.\., N\) tensor of int64, got \(1, 3\) float32; did you pass soft_ranks\?",
        ):
            metric(soft_ranks, order)
        with pytest.raises(ValueError, match=r"true_order must be a \(3,\) tensor of int64, got \(1, 3\) int64"):
            metric(order[0], order)
        with pytest.raises(ValueError, match=r"true_order must be a \(1, 3\) tensor of int64, got \(2, 3\) int64"):
            metric(order, order.expand(2, 3))
        with pytest.raises(ValueError, match=r"mask must be a \(1, 3\) tensor of bool, got \(1, 3\) int64"):
            metric(order, order, order)
    with pytest.raises(TypeError, match=r"order must be .* got list"):
        metrics.accuracy([[0, 1]], order)
    with pytest.raises(TypeError, match=r"true_order must be .* got list"):
        metrics.accuracy(order, [[0, 1, 2]])
    with pytest.raises(ValueError, match=r"known must be a \(1,\) tensor of int64, got \(3,\) int64"):
        metrics.correctness(order, order, known=order[0])
    with pytest.raises(ValueError, match="order must hold each of 0 to 2 once per row, row 0 is"):
        metrics.kendall_tau(torch.tensor([[1, 1, 0]]), order)
    with pytest.raises(ValueError, match="true_order must list real slots before padded ones"):
        metrics.kendall_tau(order, torch.tensor([[0, 1, 2]]), torch.tensor([[False, True, True]]))
    with pytest.raises(ValueError, match=r"labels must be a \(1, 3\) tensor, got \(2, 3\) int64"):
        metrics.tie_aware_accuracy(order, order, order.expand(2, 3))
    with pytest.raises(ValueError, match=r"points must be a \(1, 3, D\) tensor of float16 or .*, got \(1, 3\)"):
        metrics.tour_length(soft_ranks, order)
    with pytest.raises(ValueError, match=r"points must be a \(1, 3, D\) tensor of .* float64, got \(1, 3, 2\) int64"):
        metrics.tour_length(torch.zeros(1, 3, 2).long(), order)
    with pytest.raises(ValueError, match=r"distances must be a \(1, 3, 3\) tensor, got \(1, 3, 2\)"):
        metrics.matrix_tour_length(torch.zeros(1, 3, 2), order)
    with pytest.raises(ValueError, match=r"best_length must be a \(1,\) tensor, got \(2,\) float32"):
        metrics.gap(torch.ones(1), torch.ones(2))
    with pytest.raises(ValueError, match=r"best_length must be positive, got 0.0"):
        metrics.gap(torch.ones(1), torch.zeros(1))
    with pytest.raises(ValueError, match=r"first must be a \(1,\) tensor of int64, got \(3,\) int64"):
        metrics.tour_validity(order, order[0])
    with pytest.raises(ValueError, match="rows times columns must be N = 3, got 2 and 2"):
        metrics.place_accuracy(order, order, 2, 2)
    with pytest.raises(ValueError, match=r"at least one order, got \(0, 3\) int64"):
        metrics.place_accuracy(order[:0], order[:0], 1, 3)
    with pytest.raises(ValueError, match="rows times columns"):
        metrics.displacement_histogram(order, order, 3, 3)
    with pytest.raises(ValueError, match=r"relevance must be a \(1, 3\) tensor, got \(1, 2\)"):
        metrics.ndcg(order, torch.ones(1, 2), 1)
    with pytest.raises(ValueError, match="k must be an integer from 1 to 3, got 4"):
        metrics.ndcg(order, soft_ranks, 4)
    with pytest.raises(ValueError, match="relevance must not be negative, NaN or infinite, got -1"):
        metrics.ndcg(order, -torch.ones(1, 3), 1)


@pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder")
@pytest.mark.skipif(os.environ.get("SOFTRANK_EXT_REFERENCE") == "1", reason="the reference is not meant to be fast")
@pytest.mark.skipif(
    tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 17),
    reason="compared with SciPy 1.17, whose loop takes twice the time of 1.15's, the last for Python 3.10",
)
def test_kendall_tau_is_ten_times_faster_than_a_scipy_loop(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCH))
    from timing import timed_once

    order, true_order = random_orders(1000, 200), random_orders(1000, 200, seed=1)
    metrics.kendall_tau(order[:2], true_order[:2])
    ours = min(timed_once(lambda: metrics.kendall_tau(order, true_order)) for _ in range(3))
    rows = list(zip(order[:100].numpy(), true_order[:100].numpy(), strict=True))
    scipy_loop = 10 * timed_once(lambda: [kendalltau(a, b).statistic for a, b in rows])
    with capsys.disabled():
        print(f"kendall_tau 1000 x 200: {ours * 1e3:.1f} ms, SciPy loop {scipy_loop / ours:.0f} times that")
    assert scipy_loop > 10 * ours
    sys.modules.pop("timing", None)


def test_ndcg_of_what_is_no_order_or_no_relevance_is_told():
    with pytest.raises(ValueError, match="order must hold each of 0 to 2 once per row"):
        metrics.ndcg(torch.tensor([[0, 0, 2]]), torch.rand(1, 3), 2)
    for number in (math.nan, math.inf, -1.0):
        with pytest.raises(ValueError, match="relevance must not be negative, NaN or infinite, got"):
            metrics.ndcg(torch.tensor([[0, 1, 2]]), torch.tensor([[0.5, number, 1.0]]), 2)
