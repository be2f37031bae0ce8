"""Known methods: NEH of Taillard's instances, ATC and nearest neighbour by hand, iterated greedy by brute force."""

import csv
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from test_costs_problems import COSTS, instances, orders

from softrank_ext._libraries import uses_reference
from softrank_ext.constraints import Constraints
from softrank_ext.costs import (
    LinearOrdering,
    Makespan,
    MatrixTourLength,
    TourLength,
    WeightedTardiness,
    atc,
    insert_in_turn,
    iterated_greedy,
    local_search,
    nearest_neighbour,
    neh,
)

DATA = os.environ.get("SOFTRANK_DATA")


def plain_insertion(cost, items, sequence):
    """Item by item where it is cheapest, by trying all places with the whole cost."""
    built: list[int] = []
    for item in sequence:
        tries = [[*built[:at], item, *built[at:]] for at in range(len(built) + 1)]
        costs = []
        for new in tries:
            part = items[0, new]
            part = part[:, new] if isinstance(cost, LinearOrdering) else part
            costs.append(float(cost(part[None], torch.arange(len(new))[None])))
        built = tries[costs.index(min(costs))]
    return built


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_insertion_in_turn(cost):
    items, order = (100 * instances(cost, 5, 9)).round(), orders(5, 9)  # whole numbers: ties are ties
    built = insert_in_turn(items, order, cost)
    for row in range(5):
        assert built[row].tolist() == plain_insertion(cost, items[row : row + 1], order[row].tolist())


def test_insertion_in_turn_with_any_cost():
    items, order = torch.rand(3, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), orders(3, 6)
    built = insert_in_turn(items, order, TourLength(closed=False))
    for row in range(3):
        assert built[row].tolist() == plain_insertion(
            TourLength(closed=False), items[row : row + 1], order[row].tolist()
        )


def test_neh_takes_the_longest_jobs_first():
    times = torch.tensor([[[1, 2], [5, 1], [2, 4], [3, 3]]])  # 3, 6, 6, 6: of equal ones the first
    assert neh(times).tolist() == [plain_insertion(Makespan(), times, [1, 2, 3, 0])]
    assert neh(torch.zeros(0, 4, 2)).shape == (0, 4)


@pytest.mark.skipif(not DATA or not Path(DATA, "flowshop").exists(), reason="needs Taillard's instances")
@pytest.mark.parametrize("name", ("tai20_5", "tai20_10", "tai20_20", "tai50_5", "tai50_10", "tai100_5"))
def test_neh_of_taillard_s_instances(name):
    from softrank_ext.tasks.flowshop import read_taillard

    folder = Path(DATA or "", "flowshop")
    times = read_taillard(folder / f"{name}.txt")
    with (folder / "best.csv").open() as file:
        wanted = [int(row["neh"]) for row in csv.DictReader(file) if row["instance"].startswith(f"{name}_")]
    assert len(wanted) == 10
    assert Makespan()(times, neh(times)).tolist() == wanted


def test_atc_by_hand():
    jobs = torch.tensor([[[2.0, 1.0, 100.0], [4.0, 3.0, 0.0], [1.0, 5.0, 0.0], [2.0, 9.0, 100.0]]])
    # At 0 the late ones: 5 / 1 before 3 / 4 before the far due dates, where 9 / 2 comes before 1 / 2.
    assert atc(jobs).tolist() == [[2, 1, 3, 0]]
    # With a long look ahead due dates do not matter: weight over time, 5, 4.5, 0.75, 0.5.
    assert atc(jobs, lookahead=1e6).tolist() == [[2, 3, 1, 0]]
    nothing = torch.tensor([[[0.0, 0.0, 0.0]] * 3])
    assert atc(nothing).sort(1).values.tolist() == [[0, 1, 2]]


def test_atc_is_better_than_chance():
    jobs = instances(WeightedTardiness(), 50, 20)
    cost = WeightedTardiness()
    assert cost(jobs, atc(jobs)).mean() < 0.5 * cost(jobs, orders(50, 20)).mean()


def test_nearest_neighbour_by_hand():
    points = torch.tensor([[[0.0], [1.0], [3.0], [-1.5], [9.0]]])
    assert nearest_neighbour(points).tolist() == [[0, 1, 2, 3, 4]]
    assert nearest_neighbour(points, torch.tensor([3])).tolist() == [[3, 0, 1, 2, 4]]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_iterated_greedy_finds_the_best_of_all_orders(cost):
    items, start = instances(cost, 4, 6), orders(4, 6)
    found = cost(items, iterated_greedy(items, start, cost, rounds=60))
    every = torch.tensor(list(itertools.permutations(range(6))))
    for row in range(4):
        best = cost(items[row].expand(len(every), *items.shape[1:]), every).min()
        assert float(found[row]) == pytest.approx(float(best), abs=1e-12)


RULES = Constraints(before=[(0, 3), (3, 1), (1, 4), (2, 5)])  # 0 before 4 follows


def kept(order):
    place = order.argsort(1)
    return all(bool((place[:, a] < place[:, b]).all()) for a, b in RULES.before)


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_iterated_greedy_keeps_pairs_and_finds_the_best_of_all_orders_that_do(cost):
    items = instances(cost, 4, 6)
    start = torch.tensor([[0, 3, 1, 4, 2, 5]] * 4)
    order = iterated_greedy(items, start, cost, rounds=100, constraints=RULES)
    assert kept(order)
    every = torch.tensor([order for order in itertools.permutations(range(6)) if kept(torch.tensor([order]))])
    assert len(every) < 720
    for row in range(4):
        best = cost(items[row].expand(len(every), *items.shape[1:]), every).min()
        assert float(cost(items[row : row + 1], order[row : row + 1])) == pytest.approx(float(best), abs=1e-12)


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
def test_pairs_compiled_and_plain(cost):
    """Building has no random numbers: both ways put every item at the same place."""
    items, turn = instances(cost, 5, 8), orders(5, 8)
    built = insert_in_turn(items, turn, cost, constraints=RULES)
    assert kept(built) and not kept(insert_in_turn(items, turn, cost))
    if isinstance(cost, LinearOrdering):  # a function of one's own would have to cut items in both directions
        return
    plain = insert_in_turn(items, turn, lambda part, order: cost(part, order), constraints=RULES)
    assert torch.equal(built, plain)
    start = torch.tensor([[0, 3, 1, 4, 2, 5]] * 5)
    searched = iterated_greedy(items[:, :6], start, lambda part, order: cost(part, order), rounds=3, constraints=RULES)
    assert kept(searched) and (cost(items[:, :6], searched) <= cost(items[:, :6], start)).all()


def test_rules_of_searches():
    jobs = instances(WeightedTardiness(), 3, 6)
    assert kept(atc(jobs, constraints=RULES)) and not kept(atc(jobs))
    assert kept(neh(jobs, constraints=RULES)) and not kept(neh(jobs))
    start = torch.arange(6).expand(3, 6)
    with pytest.raises(ValueError, match="order must keep the constraints to begin with"):
        iterated_greedy(jobs, start, Makespan(), rounds=1, constraints=RULES)
    with pytest.raises(ValueError, match=r"constraints must be pairs alone here, Constraints\(before=\.\.\.\)"):
        neh(jobs, constraints=Constraints(pins={0: 0}))
    with pytest.raises(ValueError, match="constraints contradict each other: 0 before 1 before 0"):
        atc(jobs, constraints=Constraints(before=[(0, 1), (1, 0)]))


@pytest.mark.skipif(uses_reference(), reason="of the compiled search")
def test_seconds_end_a_long_round():
    """One pass over thousands of jobs takes far longer than asked."""
    times = torch.randint(1, 100, (1, 4000, 20), generator=torch.Generator().manual_seed(0))
    began = time.monotonic()
    found = iterated_greedy(times, torch.arange(4000)[None], Makespan(), seconds=0.2)
    assert time.monotonic() - began < 5
    assert Makespan()(times, found) < Makespan()(times, torch.arange(4000)[None])


@pytest.mark.parametrize("cost", (TourLength(), MatrixTourLength()))
def test_iterated_greedy_of_any_cost(cost):
    points = torch.rand(2, 7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    items = points if isinstance(cost, TourLength) else torch.cdist(points, points)
    start = orders(2, 7)
    found = iterated_greedy(items, start, cost, rounds=10)
    assert (cost(items, found) <= cost(items, local_search(items, start, cost, ("insert",))) + 1e-9).all()
    assert torch.equal(found, iterated_greedy(items, start, cost, rounds=10))


def test_iterated_greedy_goes_on_from_local_search():
    items, start = instances(Makespan(), 10, 20, M=10), orders(10, 20)
    few, many = (Makespan()(items, iterated_greedy(items, start, Makespan(), rounds=rounds)) for rounds in (0, 30))
    assert (many <= few + 1e-12).all() and many.mean() < 0.98 * few.mean()


@pytest.mark.skipif(uses_reference(), reason="of the compiled search")
def test_rows_and_seeds():
    items, start = instances(Makespan(), 6, 20), orders(6, 20)
    found = iterated_greedy(items, start, Makespan(), rounds=5, seed=3)
    alone = [iterated_greedy(items[r : r + 1], start[r : r + 1], Makespan(), rounds=5, seed=3 + r) for r in range(6)]
    assert torch.equal(found, torch.cat(alone))
    assert not torch.equal(found, iterated_greedy(items, start, Makespan(), rounds=5, seed=4))
    drawn = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))
    by_generator, by_number = (
        iterated_greedy(items, start, Makespan(), rounds=5, seed=seed)
        for seed in (torch.Generator().manual_seed(4), drawn)
    )
    assert torch.equal(by_generator, by_number) and not torch.equal(found, by_generator)


@pytest.mark.skipif(uses_reference(), reason="of the compiled search")
def test_seconds_and_ctrl_c():
    items, start = instances(Makespan(), 1, 30), orders(1, 30)
    assert iterated_greedy(items, start, Makespan(), seconds=0.05).shape == (1, 30)
    threading.Timer(0.5, lambda: signal.raise_signal(signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        iterated_greedy(items, start, Makespan(), seconds=120)


def test_errors():
    items, order = torch.rand(2, 4, 3), orders(2, 4)
    with pytest.raises(ValueError, match="rounds or seconds must be given, got neither"):
        iterated_greedy(items, order, Makespan())
    with pytest.raises(ValueError, match="rounds must be an integer of at least 0, got -1"):
        iterated_greedy(items, order, Makespan(), rounds=-1)
    with pytest.raises(ValueError, match="seconds must be at least 0 and finite, got -1"):
        iterated_greedy(items, order, Makespan(), seconds=-1)
    with pytest.raises(ValueError, match="removed must be an integer of at least 1, got 0"):
        iterated_greedy(items, order, Makespan(), rounds=1, removed=0)
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        iterated_greedy(items, order, Makespan(), rounds=1, temperature=0)
    with pytest.raises(ValueError, match=r"times must be a \(B, N, M\) tensor of .*, got \(2, 4\) float32"):
        neh(items[..., 0])
    with pytest.raises(ValueError, match=r"jobs must be a \(B, N, 3\) tensor of .*, got \(2, 4, 2\) float32"):
        atc(items[..., :2])
    with pytest.raises(ValueError, match="lookahead must be positive and finite, got 0"):
        atc(items, 0)
    with pytest.raises(ValueError, match=r"first must be a \(2,\) tensor of int64, got \(1,\) int64"):
        nearest_neighbour(items, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"items must be finite and below 1e\+100 in size"):
        neh(items.masked_fill(items > 0.9, torch.nan).fill_(torch.nan))
    with pytest.raises(ValueError, match="cost must be one of parts of an instance, got a table of distances"):
        insert_in_turn(items, order, MatrixTourLength(distances=torch.zeros(4, 4)))
