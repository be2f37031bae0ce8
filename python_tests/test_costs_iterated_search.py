"""Iterated search on tours: the optimum by brute force, rules kept, different tours, repeatable, stopped in time."""

import subprocess
import sys
import time
from itertools import permutations

import pytest
import torch
from test_costs_local_search import RULES, instances, keeps

from softrank_ext._libraries import uses_reference
from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.costs import MatrixTourLength, TourLength, iterated_local_search, local_search
from softrank_ext.ops import Choices, decode_scores

N = 7
ENDS = {
    "start": Constraints(pins={3: 0}),
    "start and end": Constraints(pins={3: 0, 5: -1}),
    "pairs and ends": Constraints(before=[(0, 1), (2, 4), (6, 1)], pins={3: 0, 5: -1}),
    "pairs and a start": Constraints(before=[(0, 1), (2, 4), (1, 4)], pins={3: 0}),
    "pairs and an end": Constraints(before=[(4, 0), (5, 2)], pins={6: -1}),
}
ALL_RULES = {**RULES, **ENDS}


def feasible(rules, B, N, seed=0):
    """Random orders that keep the rules."""
    uniform = torch.rand(B, N, generator=torch.Generator().manual_seed(seed))
    own = rules_of(rules, B, N)
    before, allowed, group = (None, None, None) if own is None else own
    choices = Choices(uniform=uniform, before=before, allowed=allowed, group=group)
    return decode_scores(torch.zeros(B, N, N), torch.ones(B, N, dtype=torch.bool), choices)[0]


@pytest.mark.parametrize("closed", (True, False))
@pytest.mark.parametrize("kind", ("points", "table", "one way"))
@pytest.mark.parametrize("rules", ALL_RULES)
def test_small_tours_are_the_shortest(kind, closed, rules):
    """Against all orders that keep the rules."""
    items, cost = instances(kind, closed, 2, N)
    rules = ALL_RULES[rules]
    found = iterated_local_search(items, feasible(rules, 2, N), cost, constraints=rules, rounds=1500, seed=3)
    possible = torch.tensor(list(permutations(range(N))))
    if rules is not None:
        possible = possible[rules_of(rules, len(possible), N).kept_by(possible)]
    for row in range(2):
        lengths = cost(items[row : row + 1].expand(len(possible), *items.shape[1:]), possible)
        own = found.order[row, 0]
        assert keeps(with_places(rules), own.tolist())
        assert float(cost(items[row : row + 1], own[None])) == pytest.approx(float(lengths.min()), abs=1e-9)


def with_places(rules):
    """The same with places counted from 0."""
    if rules is None:
        return None
    pins = {item: place % N for item, place in rules.pins.items()}
    return Constraints(rules.before, pins, rules.forbidden, rules.together)


@pytest.mark.skipif(uses_reference(), reason="the plain search keeps one tour")
@pytest.mark.parametrize("rules", (None, Constraints(before=[(1, 2), (3, 4)], pins={0: 0})))
def test_kept_tours_differ_and_ascend(rules):
    items, cost = instances("points", True, 1, 40)
    start = feasible(rules, 1, 40)
    found = iterated_local_search(items, start, cost, constraints=rules, rounds=3000, kept=3)
    assert found.count.tolist() == [3]
    tours = found.order[0].tolist()
    lengths = cost(items.expand(3, 40, 2), found.order[0])
    assert bool((lengths.diff() >= -1e-12).all())
    legs = [{frozenset((tour[i], tour[i - 1])) for i in range(40)} for tour in tours]
    assert min(len(legs[i] - legs[j]) for i in range(3) for j in range(i)) >= 4
    assert all(keeps(rules, tour) for tour in tours)


@pytest.mark.skipif(uses_reference(), reason="about the compiled search")
def test_rounds_pay_at_200_points():
    """A descent ends some 5 % above the shortest tour."""
    points = torch.rand(2, 200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = torch.arange(200).expand(2, 200)
    short = iterated_local_search(points, start, TourLength(), rounds=1)
    long = iterated_local_search(points, start, TourLength(), rounds=3000)
    ratio = TourLength()(points, long.order[:, 0]) / TourLength()(points, short.order[:, 0])
    assert float(ratio.max()) < 0.97
    assert long.rounds.tolist() == [3000, 3000]


def test_the_same_seed_and_rounds_give_the_same_tours():
    items, cost = instances("one way", False, 3, 12)
    start = feasible(None, 3, 12)
    first, again, other = (iterated_local_search(items, start, cost, rounds=20, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.order, again.order)
    assert bool((cost(items, first.order[:, 0]) <= cost(items, start)).all())
    assert other.order.shape == first.order.shape
    drawn = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))
    by_generator, by_number, without = (
        iterated_local_search(items, start, cost, rounds=1, seed=seed)
        for seed in (torch.Generator().manual_seed(4), drawn, 0)
    )
    assert torch.equal(by_generator.order, by_number.order) and not torch.equal(by_generator.order, without.order)


@pytest.mark.parametrize("size", (0, 1, 2, 3, 4))
@pytest.mark.parametrize("closed", (True, False))
def test_few_items(size, closed):
    points = torch.rand(2, size, 2)
    start = torch.arange(size).expand(2, size)
    found = iterated_local_search(points, start, TourLength(closed), rounds=5, kept=2)
    assert found.order.shape == (2, 2, size)
    assert torch.equal(found.order.sort(2).values, start[:, None].expand(2, 2, size))
    if size >= 2:
        rules = Constraints(before=[(0, 1)])
        kept = iterated_local_search(points, start, TourLength(closed), constraints=rules, rounds=5)
        assert bool(rules_of(rules, 2, size).kept_by(kept.order[:, 0]).all())


@pytest.mark.skipif(uses_reference(), reason="the plain search counts rounds")
def test_seconds_end_it():
    items, cost = instances("points", True, 2, 30)
    began = time.monotonic()
    found = iterated_local_search(items, feasible(None, 2, 30), cost, seconds=0.2)
    assert 0.15 < time.monotonic() - began < 5
    assert bool((found.rounds > 0).all())


@pytest.mark.skipif(uses_reference(), reason="about the compiled search")
def test_an_interrupt_returns_the_best_so_far():
    code = """
import signal, threading, os, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
from softrank_ext.constraints import Constraints
from softrank_ext.costs import TourLength, iterated_local_search
points = torch.rand(1, 60, 2)
start = torch.arange(60)[None]
for rules in (None, Constraints(before=[(1, 2)])):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    found = iterated_local_search(points, start, TourLength(), constraints=rules, seconds=100)
    assert found.is_interrupted
    assert float(TourLength()(points, found.order[:, 0])) < 0.5 * float(TourLength()(points, start))
print("done")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/")
    assert run.stdout == "done\n", run.stderr


def test_errors():
    points, start = torch.rand(1, 4, 2), torch.tensor([[1, 2, 0, 3]])
    with pytest.raises(TypeError, match="cost must be TourLength or MatrixTourLength, got function"):
        iterated_local_search(points, start, lambda items, order: 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order must keep the constraints to begin with, row 0 does not"):
        iterated_local_search(points, start, TourLength(), constraints=Constraints(before=[(0, 1)]))
    with pytest.raises(ValueError, match="kept must be an integer from 1 to 1000, got 0"):
        iterated_local_search(points, start, TourLength(), kept=0)
    with pytest.raises(ValueError, match="difference must be from 0 to 1, got 2"):
        iterated_local_search(points, start, TourLength(), difference=2)
    with pytest.raises(ValueError, match="rounds must be an integer of at least 0, got -1"):
        iterated_local_search(points, start, TourLength(), rounds=-1)
    with pytest.raises(ValueError, match="seconds must be positive and finite, got 0"):
        iterated_local_search(points, start, TourLength(), seconds=0)
    with pytest.raises(ValueError, match="items must be finite"):
        iterated_local_search(torch.full((1, 4, 2), torch.nan), start, TourLength())
    with pytest.raises(ValueError, match=r"items must be a \(1, 4, 4\) tensor"):
        iterated_local_search(points, start, MatrixTourLength())


@pytest.mark.skipif(uses_reference(), reason="the plain search is slow")
def test_search_under_pairs_is_not_behind_local_search_from_many_starts():
    size, start = 50, torch.arange(50)[None]
    rules = Constraints(before=[(i, i + 1) for i in range(1, size - 1, 2)], pins={0: 0})
    is_delivery = torch.tensor([i > 0 and i % 2 == 0 for i in range(size)])
    behind = []
    for number in (5, 6):  # where a cooler start was caught in tours 1.6 and 0.9 % longer
        generator = torch.Generator().manual_seed(number)
        points, cost = torch.rand(1, size, 2, generator=generator, dtype=torch.float64), TourLength()
        keys = torch.rand(500, size, generator=generator) + is_delivery  # all pickups first
        keys[:, 0] = -1
        many = local_search(points.expand(500, size, 2), keys.argsort(1), cost, constraints=rules)
        found = iterated_local_search(points, start, cost, constraints=rules, rounds=100_000)
        best = float(cost(points.expand(500, size, 2), many).min())
        behind.append(float(cost(points, found.order[:, 0])) / best - 1)
    assert max(behind) < 0.002
