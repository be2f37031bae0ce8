"""Answers from samples against all orders of a law, and their errors against repeated sampling."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from softrank_ext import Samples, answers, sample
from softrank_ext.answers import calibration, consensus, pairwise, rank_interval, top_k
from softrank_ext.laws import Mallows, PlackettLuce

# How often each of these orders was drawn: ten samples of four items.
TABLE = torch.tensor([[1, 3, 2, 0]] * 5 + [[1, 2, 3, 0]] * 3 + [[0, 1, 3, 2]] * 2)
SCORES = torch.tensor([0.3, 1.1, -0.4, 0.6], dtype=torch.float64)


def exact_law(scores: Tensor) -> tuple[list[tuple[int, ...]], list[float]]:
    """All orders of a Plackett-Luce law and their probabilities, by its definition."""
    weights = scores.exp().tolist()
    orders = list(permutations(range(len(weights))))
    chances = []
    for order in orders:
        left, chance = sum(weights), 1.0
        for item in order:
            chance *= weights[item] / left
            left -= weights[item]
        chances.append(chance)
    return orders, chances


def kendall_distance(a: list[int], b: list[int]) -> int:
    return sum((a.index(i) < a.index(j)) != (b.index(i) < b.index(j)) for i in range(len(a)) for j in range(i))


def repeated(statistic, exact: Tensor, size: int = 200, times: int = 300) -> None:
    """Answers of many independent sample sets scatter around the exact value, as wide as their errors say."""
    torch.manual_seed(6)
    drawn = PlackettLuce(SCORES).sample((times, size))
    value, error = statistic(drawn)
    assert ((value.mean(0) - exact).abs() < 4 * error.mean(0) / math.sqrt(times) + 1e-12).all()
    spread = value.std(0)
    assert (spread < 1.25 * error.mean(0) + 1e-12).all() and (spread > 0.8 * error.mean(0) - 1e-12).all()


def test_pairwise_against_a_table():
    value, error = pairwise(TABLE)
    assert value.tolist() == [[0, 0.2, 0.2, 0.2], [0.8, 0, 1, 1], [0.8, 0, 0, 0.3], [0.8, 0, 0.7, 0]]
    assert error[2, 3].item() == pytest.approx(math.sqrt(4 / 12 * 8 / 12 / 10))
    assert error[1, 2] > 0, "ten of ten is not certain"


def test_pairwise_against_enumeration():
    orders, chances = exact_law(SCORES)
    exact = torch.zeros(4, 4, dtype=torch.float64)
    for order, chance in zip(orders, chances, strict=True):
        for i in range(4):
            for j in range(4):
                exact[i, j] += chance * (order.index(i) < order.index(j))
    off_diagonal = ~torch.eye(4, dtype=torch.bool)
    repeated(lambda drawn: tuple(part[:, off_diagonal] for part in pairwise(drawn)), exact[off_diagonal])


def test_top_k_against_a_table_and_enumeration():
    assert top_k(TABLE, 1).value.tolist() == [0.2, 0.8, 0, 0]
    assert top_k(TABLE, 3).value.tolist() == [0.2, 1, 0.8, 1]
    orders, chances = exact_law(SCORES)
    for k in (1, 2):
        exact = [sum(c for o, c in zip(orders, chances, strict=True) if item in o[:k]) for item in range(4)]
        repeated(lambda drawn, k=k: top_k(drawn, k), torch.tensor(exact, dtype=torch.float64))


def test_rank_interval_against_a_table():
    low, high, low_error, high_error = rank_interval(TABLE, 0.6)  # two of ten are cut off each side
    assert low.tolist() == [3, 0, 1, 1]
    assert high.tolist() == [3, 0, 2, 2]
    # One error is sqrt(0.2 * 0.8 / 10) = 0.126: cuts of none and of three. Item 0 has places 0 0 3 3 3 ..., item 2 has
    # 1 1 1 2 2 2 2 2 3 3.
    assert low_error.tolist() == [1.5, 0, 0.5, 0]
    assert high_error[1] == 0.5


def test_rank_interval_against_enumeration():
    orders, chances = exact_law(SCORES)
    torch.manual_seed(2)
    interval = rank_interval(PlackettLuce(SCORES).sample((20_000,)), 0.7)
    for item in range(4):
        mass = [sum(c for o, c in zip(orders, chances, strict=True) if o[place] == item) for place in range(4)]
        low = next(place for place in range(4) if sum(mass[: place + 1]) > 0.15)
        high = next(place for place in range(4) if sum(mass[: place + 1]) >= 0.85)
        assert (int(interval.low[item]), int(interval.high[item])) == (low, high)
        assert sum(mass[low : high + 1]) >= 0.7


def test_errors_of_a_rank_interval_are_its_spread():
    torch.manual_seed(9)
    drawn = PlackettLuce(torch.linspace(0, 3, 40, dtype=torch.float64)).sample((200, 100))
    interval = rank_interval(drawn, 0.8)
    for end, error in ((interval.low, interval.low_error), (interval.high, interval.high_error)):
        ratio = end.double().std(0).mean() / error.mean()
        assert 0.75 < ratio < 1.35


@pytest.mark.parametrize("N", [1, 2, 4, 6])
def test_kemeny_is_the_best_of_all_orders(N):
    torch.manual_seed(N)
    drawn = torch.stack([torch.randperm(N) for _ in range(3 * 7)]).reshape(3, 7, N)
    found = consensus(drawn)
    assert found.is_exact and found.order.shape == (3, N)
    for row in range(3):
        costs = {
            order: sum(kendall_distance(list(order), other) for other in drawn[row].tolist()) / 7
            for order in permutations(range(N))
        }
        assert costs[tuple(found.order[row].tolist())] == pytest.approx(min(costs.values()))
        assert found.distance[row].item() == pytest.approx(min(costs.values()))


def test_local_search_against_the_exact_order(monkeypatch):
    torch.manual_seed(3)
    # Few samples of nearly uniform laws: many near-ties, where Borda is often not the best.
    drawn = Mallows(torch.tensor([5, 2, 7, 0, 4, 1, 6, 3]), 0.9).sample((60, 5))
    exact = consensus(drawn)
    borda = consensus(drawn, "borda")
    monkeypatch.setattr(answers, "MAX_EXACT", 0)
    near = consensus(drawn)
    assert exact.is_exact and not near.is_exact and not borda.is_exact
    assert (near.distance >= exact.distance - 1e-9).all()
    assert (near.distance <= borda.distance + 1e-9).all()
    assert (near.distance - exact.distance).mean() < 0.2 * (borda.distance - exact.distance).mean()
    assert (borda.distance > exact.distance + 1e-9).float().mean() > 0.3, "too easy to tell the searches apart"


def test_consensus_of_many_items_comes_back_to_the_center():
    torch.manual_seed(1)
    center = torch.randperm(40)
    drawn = Mallows(center, 0.6).sample((400,))
    found = consensus(drawn)
    assert not found.is_exact
    assert torch.equal(found.order, center)
    assert torch.equal(consensus(drawn, "borda").order, center)


def test_borda_goes_by_mean_place():
    # Mean places: item 0 2.4, item 1 0.2, item 2 1.9, item 3 1.5.
    assert consensus(TABLE, "borda").order.tolist() == [1, 3, 2, 0]
    # Where they differ: Kemeny goes by majorities, Borda by how far.
    drawn = torch.tensor([[0, 1, 2, 3]] * 3 + [[1, 2, 3, 0]] * 2)
    assert consensus(drawn).order.tolist() == [0, 1, 2, 3]
    assert consensus(drawn, "borda").order.tolist() == [1, 0, 2, 3]


def test_distance_and_its_error():
    found = consensus(TABLE)
    distances = [kendall_distance(found.order.tolist(), order) for order in TABLE.tolist()]
    assert found.distance.item() == pytest.approx(np.mean(distances))
    assert found.standard_error.item() == pytest.approx(np.std(distances, ddof=1) / math.sqrt(10))


def test_calibration_against_a_table():
    # Two instances. P(0 before 1) is 0.2, P(0 before 2) 0.2, P(1 before 2) 1 in the first; 0.75, 1, 1 in the second.
    one = torch.tensor([[1, 2, 0]] * 4 + [[0, 1, 2]])
    two = torch.tensor([[0, 1, 2]] * 3 + [[1, 0, 2]])
    drawn = torch.stack((one, torch.cat((two, two[:1]))))  # P(0 before 1) is 0.8 in the second
    truth = torch.tensor([[1, 0, 2], [0, 1, 2]])
    found = calibration(drawn, truth, bins=2)
    assert found.pairs.tolist() == [2, 4]
    assert found.predicted.tolist() == pytest.approx([0.2, (1 + 0.8 + 1 + 1) / 4])
    assert found.observed.tolist() == [0.5, 1.0]
    assert found.expected_error == pytest.approx((abs(0.4 - 1) + abs(3.8 - 4)) / 6)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    padded = drawn.clone()
    padded[0] = torch.tensor([[1, 0, 2]] * 4 + [[0, 1, 2]])
    only = calibration(padded, truth, bins=2, mask=mask)
    assert only.pairs.tolist() == [1, 3]
    assert only.predicted.tolist() == pytest.approx([0.2, (0.8 + 1 + 1) / 3])
    assert calibration(drawn, truth, bins=10).pairs.sum() == 6
    assert calibration(drawn, truth, bins=10).observed.isnan().sum() == 7


def test_calibration_of_right_and_wrong_probabilities():
    torch.manual_seed(4)
    scores = 1.5 * torch.randn(400, 5, dtype=torch.float64)
    truth = PlackettLuce(scores).sample()
    right = calibration(PlackettLuce(scores).sample((500,)).transpose(0, 1), truth, bins=5)
    off = (right.observed - right.predicted) / right.standard_error
    assert off.abs().max() < 3.5
    assert right.expected_error < 0.02
    sure = calibration(PlackettLuce(3 * scores).sample((500,)).transpose(0, 1), truth, bins=5)
    assert ((sure.observed - sure.predicted) / sure.standard_error).abs().max() > 6
    assert sure.expected_error - right.expected_error > 5 * sure.expected_error_error


def test_errors_of_a_calibration_are_its_spread():
    torch.manual_seed(5)
    scores = torch.randn(60, 50, 4, dtype=torch.float64)  # 60 studies of 50 instances
    truth = PlackettLuce(scores).sample()
    drawn = PlackettLuce(2 * scores).sample((100,)).permute(1, 2, 0, 3)
    found = [calibration(drawn[i], truth[i], bins=4) for i in range(60)]
    spread = torch.stack([(one.observed - one.predicted) for one in found]).std(0)
    errors = torch.stack([one.standard_error for one in found]).mean(0)
    assert ((spread / errors > 0.7) & (spread / errors < 1.3)).all()
    spread = np.std([one.expected_error for one in found], ddof=1)
    assert 0.7 < spread / np.mean([one.expected_error_error for one in found]) < 1.3


def test_pairs_of_one_instance_do_not_count_as_many():
    torch.manual_seed(7)
    drawn = torch.rand(50, 20, 6).argsort(-1)
    ends = torch.stack((torch.arange(6), torch.arange(6).flip(0)))  # the fifteen pairs all agree, or none does
    found = [calibration(drawn, ends[torch.randint(2, (50,))], bins=1) for _ in range(60)]
    spread = torch.cat([one.observed for one in found]).std()
    assert 0.7 < spread / torch.cat([one.standard_error for one in found]).mean() < 1.3


MASK = torch.tensor([[True] * 6, [True, False, True, True, True, False], [False, False, True, False, True, True],
                     [False, False, False, True, False, False], [False] * 6])  # fmt: skip


def padded_orders(S: int = 9) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Orders (5, S, 6) of MASK's rows; and per row its real items, and the same orders without padding."""
    generator = torch.Generator().manual_seed(12)
    order, items, whole = torch.empty(len(MASK), S, 6, dtype=torch.int64), [], []
    for row, mask in enumerate(MASK):
        items.append(mask.nonzero()[:, 0])
        n = len(items[-1])
        law = torch.tensor([1.0, 0.0, 1.4, 0.3, 1.8, 0.6])[:n] + 1.5 * torch.rand(S, n, generator=generator)
        whole.append(law.argsort(-1))
        for draw in range(S):
            padding = (~mask).nonzero()[:, 0]
            padding = padding[torch.rand(len(padding), generator=generator).argsort()]
            order[row, draw] = torch.cat((items[-1][whole[-1][draw]], padding))
    return order, items, whole


def as_samples(order: Tensor, mask: Tensor | None) -> Samples:
    """Samples of these orders; the mask (B, N) as `sample` keeps it, (B, num_samples, N)."""
    zeros = torch.zeros(order.shape[:-1])
    mask = None if mask is None else mask[:, None].expand_as(order)
    return Samples(order, order.argsort(-1), order.argsort(-1) / 5, zeros, zeros, zeros.long(), zeros, mask=mask)


def same(found: Tensor, wanted: Tensor) -> bool:
    return torch.equal(found.nan_to_num(-7.0), wanted.nan_to_num(-7.0))


def test_padding_against_the_unpadded_rows():
    order, items, whole = padded_orders()
    samples = as_samples(order, MASK)
    found = (
        pairwise(samples),
        top_k(samples, 2),
        rank_interval(samples, 0.5),
        consensus(samples),
        consensus(samples, "borda"),
    )
    assert found[3].is_exact
    for row, (real, short) in enumerate(zip(items, whole, strict=True)):
        n = len(real)
        padding = (~MASK[row]).nonzero()[:, 0]
        before, top, interval, kemeny, borda = (
            [part[row] for part in answer if isinstance(part, Tensor)] for answer in found
        )
        assert all(part[padding].isnan().all() and part[:, padding].isnan().all() for part in before)
        assert all(part[padding].isnan().all() for part in (*top, *interval[2:]))
        assert all((part[padding] == -1).all() for part in interval[:2])
        for method, (best, distance, error) in (("kemeny", kemeny), ("borda", borda)):
            assert best[n:].tolist() == padding.tolist()
            if n == 0:
                assert distance == error == 0
                continue
            alone = consensus(short, method)
            assert torch.equal(best[:n], real[alone.order])
            assert torch.equal(distance, alone.distance) and torch.equal(error, alone.standard_error)
        if n == 0:
            continue
        for part, alone in zip(before, pairwise(short), strict=True):
            assert torch.equal(part[real][:, real], alone)
        for part, alone in zip(top, top_k(short, min(2, n)), strict=True):
            assert torch.equal(part[real], alone)
        for part, alone in zip(interval, rank_interval(short, 0.5), strict=True):
            assert torch.equal(part[real], alone)


def test_padding_does_not_make_a_consensus_inexact():
    order, _, whole = padded_orders()
    wide = torch.cat((order, torch.arange(6, 14).expand(5, 9, 8)), -1)  # 14 items, of which at most 6 are real
    mask = torch.cat((MASK, torch.zeros(5, 8, dtype=torch.bool)), -1)
    found = consensus(wide, mask=mask)
    assert found.is_exact
    assert torch.equal(found.distance[0], consensus(whole[0]).distance)
    mask[0], wide[0] = True, torch.rand(9, 14, generator=torch.Generator().manual_seed(0)).argsort(-1)
    mixed = consensus(wide, mask=mask)
    assert not mixed.is_exact
    assert torch.equal(mixed.order[1:], found.order[1:]) and torch.equal(mixed.distance[1:], found.distance[1:])


def test_calibration_against_the_unpadded_pairs():
    order, _, whole = padded_orders(40)
    truth, _, true_whole = padded_orders(1)
    found = calibration(as_samples(order, MASK), truth[:, 0], bins=3)
    predicted, happened = [[], [], []], [[], [], []]
    for short, true_short in zip(whole, true_whole, strict=True):
        n = short.shape[-1]
        for i in range(n):
            for j in range(i + 1, n):
                share = sum(one.index(i) < one.index(j) for one in short.tolist()) / 40
                right = true_short[0].tolist()
                predicted[min(int(share * 3), 2)].append(share)
                happened[min(int(share * 3), 2)].append(right.index(i) < right.index(j))
    assert found.pairs.tolist() == [len(shares) for shares in predicted] and found.pairs.sum() == 15 + 6 + 3
    assert found.predicted.tolist() == pytest.approx([np.mean(shares) for shares in predicted])
    assert found.observed.tolist() == pytest.approx([np.mean(hits) for hits in happened])
    wanted = sum(abs(sum(p) - sum(h)) for p, h in zip(predicted, happened, strict=True)) / 24
    assert found.expected_error == pytest.approx(wanted)
    unmasked = calibration(order, truth[:, 0], bins=3)
    assert unmasked.pairs.sum() == 75 and unmasked.expected_error != pytest.approx(wanted)


def test_the_mask_of_samples_and_the_mask_argument():
    order, _, _ = padded_orders()
    samples = as_samples(order, MASK)
    wanted = pairwise(samples).value
    for mask in (MASK, MASK[:, None].expand_as(order), MASK.numpy()):
        assert same(pairwise(order, mask=mask).value, wanted)
        assert same(pairwise(samples, mask=mask).value, wanted)
        assert same(pairwise(order.numpy(), mask=mask).value, wanted)
    assert same(pairwise(samples.numpy()).value, wanted)
    assert same(pairwise(samples[1:3]).value, wanted[1:3])
    assert same(pairwise(samples[1]).value, wanted[1])
    assert same(pairwise(order[1], mask=MASK[1]).value, wanted[1])
    for call in (pairwise, lambda *a, **k: top_k(*a, 2, **k), rank_interval, consensus):
        for other in (MASK.flip(0), torch.ones_like(MASK)):
            with pytest.raises(ValueError, match="mask must be that of samples, or None"):
                call(samples, mask=other)
        whole = as_samples(order, None)
        call(whole, mask=torch.ones_like(MASK))
        with pytest.raises(ValueError, match="mask must be that of samples, or None"):
            call(whole, mask=MASK)
    with pytest.raises(ValueError, match="mask must be that of samples, or None"):
        calibration(samples, order[:, 0], mask=MASK.flip(0))
    uneven = MASK[:, None].repeat(1, 9, 1)
    uneven[1, 3] = True
    with pytest.raises(ValueError, match="mask must be the same for all samples of an instance"):
        pairwise(order, mask=uneven)
    with pytest.raises(ValueError, match="samples must list real slots before padded ones, row 9 is"):
        pairwise(order.flip(-1), mask=MASK)
    with pytest.raises(ValueError, match="true_order must list real slots before padded ones, row 1 is"):
        calibration(samples, order[:, 0].flip(-1))


def test_samples_numpy_and_padding(make_model):
    model = make_model("pointer")
    items, mask = torch.rand(2, 5, 2), torch.tensor([[True] * 5, [True, False, True, True, False]])
    samples = sample(model, items, mask=mask, num_samples=20, seed=0)
    assert isinstance(samples, Samples)
    by_tensor, by_samples, by_numpy = pairwise(samples.order, mask=mask), pairwise(samples), pairwise(samples.numpy())
    assert same(by_tensor.value, by_samples.value) and same(by_tensor.value, by_numpy.value)
    assert by_tensor.value.shape == (2, 5, 5)
    assert top_k(samples, 3).value[1, mask[1]].tolist() == [1, 1, 1]
    assert top_k(samples, 3).value[1, ~mask[1]].isnan().all()
    assert consensus(samples).order[1, 3:].tolist() == [1, 4]
    assert rank_interval(samples).low[1, [1, 4]].tolist() == [-1, -1]
    assert rank_interval(samples).high[1].max() == 2
    # One instance: no leading dimension.
    one = sample(model, items[1], mask=mask[1], num_samples=20, first_sample=20, seed=0)
    assert same(pairwise(one).value, by_samples.value[1])


def test_errors_say_what_is_wanted():
    truth = TABLE[:2]
    for call, match in (
        (lambda: pairwise(TABLE[0]), r"samples must be a \(\.\.\., num_samples, N\) tensor of int64, got \(4,\)"),
        (lambda: pairwise(TABLE[:0]), r"samples must hold at least one order of at least one item, got \(0, 4\)"),
        (lambda: pairwise(TABLE.double()), "tensor of int64, got"),
        (lambda: pairwise(TABLE * 0), "samples must hold each of 0 to 3 once"),
        (lambda: top_k(TABLE, 5), "k must be an integer from 1 to 4, got 5"),
        (lambda: rank_interval(TABLE, 1.0), "level must be above 0 and below 1, got 1.0"),
        (lambda: consensus(TABLE, "copeland"), "method must be one of 'kemeny', 'borda', got 'copeland'"),
        (lambda: calibration(TABLE, TABLE[0]), r"samples must be \(B, num_samples, N\)"),
        (lambda: calibration(TABLE.expand(2, 10, 4), truth, bins=0), "bins must be an integer of at least 1"),
        (lambda: calibration(TABLE.expand(2, 10, 4), truth * 0), "true_order must hold each of 0 to 3 once"),
        (
            lambda: calibration(TABLE.expand(2, 10, 4), truth, mask=truth),
            r"mask must be a \(2, 4\) or \(2, 10, 4\) tensor of bool",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            call()
