"""Local search: no move helps any more (by brute force), rules kept, threads change nothing, and its errors."""

import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from test_costs_problems import COSTS
from test_costs_problems import instances as problem_items
from test_costs_problems import orders as problem_orders

from softrank_ext._libraries import uses_reference
from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.costs import (
    Cost,
    Makespan,
    MatrixTourLength,
    TourLength,
    WeightedTardiness,
    local_search,
    nearest_neighbour,
)
from softrank_ext.costs.moves import all_moves, search_in_batches, sources_of
from softrank_ext.tasks.two_opt import two_opt

KINDS = ("insert", "swap", "reverse")
RULES = {
    "none": None,
    "pairs": Constraints(before=[(0, 1), (2, 3), (1, 4)]),
    "places": Constraints(pins={2: 2}, forbidden=[(3, 4), (1, 5), (5, 6)]),
    "groups": Constraints(together=[(1, 2, 3), (4, 5)]),
    "all": Constraints(before=[(0, 6)], together=[(1, 2, 3)], forbidden=[(4, 0), (0, 4)]),
}


def plain_moves(order: list[int], kind: str, first_place: int) -> Iterator[list[int]]:
    """All orders one move away, made with lists."""
    for i in range(first_place, len(order)):
        for j in range(first_place, len(order)):
            new = list(order)
            if kind == "insert":
                new.insert(j, new.pop(i))
            elif kind == "swap":
                new[i], new[j] = new[j], new[i]
            else:
                new[i : j + 1] = new[i : j + 1][::-1]
            if new != order:
                yield new


def keeps(rules: Constraints | None, order: list[int]) -> bool:
    """Whether an order keeps constraints, by their words."""
    if rules is None:
        return True
    place = {item: number for number, item in enumerate(order)}
    return (
        all(place[a] < place[b] for a, b in rules.before)
        and all(place[item] == at for item, at in rules.pins.items())
        and all(place[item] != at for item, at in rules.forbidden)
        and all(max(place[i] for i in g) - min(place[i] for i in g) == len(g) - 1 for g in rules.together)
    )


def instances(kind: str, closed: bool, B: int, N: int) -> tuple[torch.Tensor, Cost]:
    generator = torch.Generator().manual_seed(N)
    points = torch.rand(B, N, 2, generator=generator, dtype=torch.float64)
    if kind == "points":
        return points, TourLength(closed)
    distances = torch.cdist(points, points)
    if kind == "one way":
        distances += 0.4 * torch.rand(B, N, N, generator=generator, dtype=torch.float64)
    else:
        distances = distances + distances.transpose(1, 2)
    return distances, MatrixTourLength(closed)


def check_no_move_helps(items, order, cost, kinds, rules=None, first_place=0):
    for row in range(len(order)):
        own = float(cost(items[row : row + 1], order[row : row + 1]))
        for kind in kinds:
            tries = [new for new in plain_moves(order[row].tolist(), kind, first_place) if keeps(rules, new)]
            if tries:
                costs = cost(items[row : row + 1].expand(len(tries), *items.shape[1:]), torch.tensor(tries))
                assert float(costs.min()) >= own - 1e-9, (row, kind)


class TestTours:
    @pytest.mark.parametrize("closed", (True, False))
    @pytest.mark.parametrize("kind", ("points", "table", "one way"))
    @pytest.mark.parametrize("kinds", (("insert",), ("swap",), ("reverse",), KINDS))
    def test_no_move_helps_any_more(self, closed, kind, kinds):
        for N in (1, 2, 3, 4, 5, 6, 11):
            items, cost = instances(kind, closed, 12, N)
            order = torch.rand(12, N, generator=torch.Generator().manual_seed(1)).argsort(1)
            found = local_search(items, order, cost, kinds, neighbours=N)
            assert torch.equal(found.sort(1).values, torch.arange(N).expand(12, N))
            assert (cost(items, found) <= cost(items, order) + 1e-12).all()
            if closed and not uses_reference():
                assert torch.equal(found[:, 0], order[:, 0])  # it turns around the circle
            check_no_move_helps(items, found, cost, kinds)

    @pytest.mark.parametrize("closed", (True, False))
    @pytest.mark.parametrize("kind", ("points", "one way"))
    @pytest.mark.parametrize("name", RULES)
    def test_rules_are_kept(self, closed, kind, name):
        rules = RULES[name]
        for N, keep_first in ((7, False), (10, True)):
            items, cost = instances(kind, closed, 12, N)
            order = torch.arange(N).expand(12, N)
            found = local_search(items, order, cost, neighbours=N, constraints=rules, keep_first=keep_first)
            assert all(keeps(rules, row) for row in found.tolist())
            assert not keep_first or (found[:, 0] == 0).all()
            assert (cost(items, found) < cost(items, order)).any()
            check_no_move_helps(items, found, cost, KINDS, rules, int(keep_first))

    @pytest.mark.skipif(uses_reference(), reason="of the compiled search")
    def test_a_pin_at_place_0_costs_nothing(self):
        """A closed tour turns around the circle: the pinned item can be passed over by others."""
        items, cost = instances("points", True, 30, 12)
        order = torch.rand(30, 12, generator=torch.Generator().manual_seed(2)).argsort(1)
        pinned = [Constraints(pins={int(first): 0}) for first in order[:, 0]]
        free = local_search(items, order, cost)
        assert torch.equal(local_search(items, order, cost, constraints=pinned), free)
        assert torch.equal(local_search(items, order, cost, keep_first=True), free)

    def test_few_neighbours_are_nearly_as_good(self):
        items, cost = instances("points", True, 20, 60)
        order = torch.rand(20, 60, generator=torch.Generator().manual_seed(3)).argsort(1)
        all_near = cost(items, local_search(items, order, cost, neighbours=59)).mean()
        some_near = cost(items, local_search(items, order, cost, neighbours=8)).mean()
        assert some_near < 1.02 * all_near < 0.5 * cost(items, order).mean()

    def test_one_table_serves_all_rows(self):
        items, cost = instances("one way", True, 1, 9)
        order = torch.rand(6, 9, generator=torch.Generator().manual_seed(4)).argsort(1)
        one = MatrixTourLength(distances=items[0])
        found = local_search(torch.zeros(6, 9, 1), order, one)
        assert torch.equal(found, local_search(items.expand(6, 9, 9), order, cost))

    def test_rows_of_several_instances_in_turn(self):
        """Lists of neighbours are shared by rows of one instance, and only by them."""
        items, cost = instances("points", True, 4, 20)
        order = torch.rand(8, 20, generator=torch.Generator().manual_seed(5)).argsort(1)
        which = torch.tensor([0, 0, 1, 0, 2, 2, 3, 1])
        found = local_search(items[which], order, cost)
        alone = [local_search(items[w : w + 1], order[row : row + 1], cost) for row, w in enumerate(which.tolist())]
        assert torch.equal(found, torch.cat(alone))

    def test_equal_points_and_zero_tables_end(self):
        order = torch.arange(30)[None]
        for closed in (True, False):
            assert local_search(torch.ones(1, 30, 2), order, TourLength(closed)).shape == (1, 30)
            assert local_search(torch.zeros(1, 30, 30), order, MatrixTourLength(closed)).shape == (1, 30)

    def test_threads_change_nothing(self):
        items, cost = instances("points", True, 40, 30)
        order = torch.rand(40, 30, generator=torch.Generator().manual_seed(6)).argsort(1)
        threads = torch.get_num_threads()
        found = local_search(items, order, cost)
        try:
            torch.set_num_threads(3)
            assert torch.equal(local_search(items, order, cost), found)
        finally:
            torch.set_num_threads(threads)

    @pytest.mark.skipif(uses_reference(), reason="of the compiled search")
    @pytest.mark.parametrize("threads", (1, 2))
    def test_ctrl_c_ends_it(self, threads, tmp_path):
        script = f"""
import signal, threading, time, torch
from softrank_ext.costs import TourLength, local_search
torch.set_num_threads({threads})
order = torch.rand(64, 4000).argsort(1)
points = torch.rand(64, 4000, 2)
threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
started = time.monotonic()
try:
    local_search(points, order, TourLength())
    print("ended alone")
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - started < 20)
"""
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.stdout == "interrupted True\n", done.stderr


class TestProblems:
    @pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
    @pytest.mark.parametrize("kinds", (("insert",), ("swap",), ("reverse",), KINDS))
    def test_no_move_helps_any_more(self, cost, kinds):
        for N in (1, 2, 3, 5, 8):
            items, order = problem_items(cost, 6, N), problem_orders(6, N)
            found = local_search(items, order, cost, kinds)
            assert torch.equal(found.sort(1).values, torch.arange(N).expand(6, N))
            assert (cost(items, found) <= cost(items, order) + 1e-12).all()
            check_no_move_helps(items, found, cost, kinds)
        assert cost(items, found).mean() < 0.97 * cost(items, order).abs().mean()

    @pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
    @pytest.mark.parametrize("name", RULES)
    def test_rules_are_kept(self, cost, name):
        rules = RULES[name]
        for N, keep_first in ((7, False), (9, True)):
            items, order = problem_items(cost, 8, N), torch.arange(N).expand(8, N)
            found = local_search(items, order, cost, constraints=rules, keep_first=keep_first)
            assert all(keeps(rules, row) for row in found.tolist())
            assert not keep_first or (found[:, 0] == 0).all()
            assert (cost(items, found) < cost(items, order)).any()
            check_no_move_helps(items, found, cost, KINDS, rules, int(keep_first))

    @pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.name)
    def test_limit_threads_and_rows(self, cost):
        items, order = problem_items(cost, 6, 12), problem_orders(6, 12)
        costs = [cost(items, local_search(items, order, cost, limit=limit)) for limit in (0, 1, 2, 4)]
        assert torch.equal(costs[0], cost(items, order))
        assert all((later < earlier).all() for earlier, later in pairwise(costs))
        found = local_search(items, order, cost)
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert torch.equal(local_search(items, order, cost), found)
        finally:
            torch.set_num_threads(threads)
        alone = [local_search(items[row : row + 1], order[row : row + 1], cost) for row in range(6)]
        assert torch.equal(found, torch.cat(alone))

    def test_equal_jobs_end(self):
        for cost in COSTS:
            items = torch.ones_like(problem_items(cost, 2, 9))
            assert local_search(items, problem_orders(2, 9), cost).shape == (2, 9)

    def test_numbers_that_cannot_be_added_are_refused(self):
        items = torch.ones(1, 4, 3)
        items[0, 1, 1] = torch.inf
        for cost in (Makespan(), WeightedTardiness()):
            with pytest.raises(ValueError, match=r"items must be finite and below 1e\+100 in size"):
                local_search(items, torch.arange(4)[None], cost)


def uphill(items: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """A cost without a compiled search: items are numbers that should descend, with weights by place."""
    return (items[..., 0].gather(1, order) * torch.arange(order.shape[1])).sum(1)


class TestAnyCost:
    @pytest.mark.parametrize("name", RULES)
    def test_no_move_helps_any_more(self, name):
        rules = RULES[name]
        items = torch.rand(5, 7, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for kinds in (("insert",), ("swap",), ("reverse",), KINDS):
            found = local_search(items, torch.arange(7).expand(5, 7), uphill, kinds, constraints=rules)
            assert all(keeps(rules, row) for row in found.tolist())
            check_no_move_helps(items, found, uphill, kinds, rules)
        if rules is None:
            assert torch.equal(found, items[..., 0].argsort(1, descending=True))

    def test_many_rows_in_small_batches(self, monkeypatch):
        items = torch.rand(30, 6, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        monkeypatch.setattr("softrank_ext.costs.moves.MOVES_PER_TURN", 10)
        monkeypatch.setattr("softrank_ext.costs.moves.ORDERS_PER_CALL", 40)
        calls = []

        def counted(items, order):
            calls.append(len(order))
            return uphill(items, order)

        found = local_search(items, torch.arange(6).expand(30, 6), counted)
        assert torch.equal(found, items[..., 0].argsort(1, descending=True))
        assert max(calls) <= 40 and len(calls) > 10

    def test_orders_that_are_not_allowed(self):
        """From an infinite cost to a finite one, and never back."""
        items = torch.tensor([[[3.0], [1.0], [2.0], [0.0]]])

        def forbids(items, order):
            return uphill(items, order).masked_fill(order[:, 0] == 0, torch.inf)

        found = local_search(items, torch.tensor([[0, 1, 2, 3]]), forbids)
        assert found.tolist() == [[2, 0, 1, 3]]

    def test_limit(self):
        items = torch.rand(4, 8, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        order = torch.arange(8).expand(4, 8)
        assert torch.equal(local_search(items, order, uphill, limit=0), order)
        once = local_search(items, order, uphill, ("swap",), limit=1)
        assert ((once != order).sum(1) == 2).all()
        tours, cost = instances("points", True, 4, 12)
        start = torch.rand(4, 12, generator=torch.Generator().manual_seed(3)).argsort(1)
        assert torch.equal(local_search(tours, start, cost, limit=0), start)
        costs = [cost(tours, local_search(tours, start, cost, limit=limit)) for limit in (0, 1, 2, 5)]
        assert all((later < earlier).all() for earlier, later in pairwise(costs))


def test_moves_are_the_lists_of_the_brute_force():
    for first_place in (0, 1):
        for N in (1, 2, 3, 5):
            for kinds in (("insert",), ("swap",), ("reverse",), KINDS, ("reverse", "swap")):
                made = sources_of(all_moves(kinds, N, first_place, torch.device("cpu")), N).tolist()
                wanted = {tuple(new) for kind in kinds for new in plain_moves(list(range(N)), kind, first_place)}
                assert {tuple(row) for row in made} == wanted
                assert len(made) == len(wanted), "no move twice"


@pytest.mark.parametrize("cost", (TourLength(), uphill))
def test_padding_is_left_out(cost):
    generator = torch.Generator().manual_seed(0)
    items = torch.rand(6, 8, 2, generator=generator, dtype=torch.float64)
    mask = torch.ones(6, 8, dtype=torch.bool)
    mask[0, [1, 4]] = mask[3, [0, 2]] = mask[5, 7] = False
    items[~mask] = torch.nan
    order = torch.stack([torch.cat((m.nonzero()[:, 0], (~m).nonzero()[:, 0])) for m in mask])
    rules = Constraints(before=[(5, 3)], forbidden=[(3, 1), (6, 1), (6, 2)])
    order[:, :8] = torch.stack([torch.tensor([5] + [i for i in row.tolist() if i != 5]) for row in order])
    found = local_search(items, order, cost, mask=mask, constraints=rules)
    for row in range(6):
        real = mask[row].nonzero()[:, 0]
        numbers = {int(item): number for number, item in enumerate(real)}
        start = torch.tensor([[numbers[item] for item in order[row].tolist() if item in numbers]])
        places = [(numbers[3], 1), (numbers[6], 1), (numbers[6], 2)]
        own = Constraints(before=[(numbers[5], numbers[3])], forbidden=places)
        alone = local_search(items[row : row + 1, real], start, cost, constraints=own)
        assert found[row].tolist()[: len(real)] == real[alone[0]].tolist()
        assert found[row].tolist()[len(real) :] == order[row].tolist()[len(real) :]


@pytest.mark.parametrize("rows", [0, 3])
def test_there_is_one_order_of_no_items(rows):
    points, order = torch.zeros(rows, 0, 2), torch.zeros(rows, 0, dtype=torch.int64)
    for cost in (TourLength(), lambda items, order: torch.zeros(len(order))):
        for keep_first in (False, True):
            found = local_search(points, order, cost, keep_first=keep_first)
            assert found.shape == (rows, 0) and found.dtype == torch.int64
    assert two_opt(points, order).shape == (rows, 0)
    assert nearest_neighbour(points).shape == (rows, 0)
    assert nearest_neighbour(points, torch.zeros(rows, dtype=torch.int64)).shape == (rows, 0)


def test_empty_batches():
    order = torch.zeros(0, 5, dtype=torch.int64)
    assert local_search(torch.zeros(0, 5, 2), order, TourLength()).shape == (0, 5)
    assert local_search(torch.zeros(0, 5, 1), order, uphill).shape == (0, 5)


def test_the_given_order_is_not_changed():
    items, cost = instances("points", True, 3, 9)
    order = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)).argsort(1)
    before = order.clone()
    local_search(items, order, cost)
    search_in_batches(items, order, cost, KINDS)
    assert torch.equal(order, before)


def test_rules_kept_by():
    rules = rules_of(RULES["all"], 2, 7)
    assert rules is not None
    assert rules.kept_by(torch.tensor([[0, 2, 1, 3, 4, 5, 6], [0, 4, 2, 3, 5, 1, 6]])).tolist() == [True, False]


def test_errors():
    items, order = torch.rand(2, 4, 2), torch.tensor([[1, 3, 2, 0], [0, 1, 2, 3]])
    search = TourLength()
    with pytest.raises(ValueError, match="moves must be one of 'insert', 'swap', 'reverse', got 'turn'"):
        local_search(items, order, search, ("turn",))
    with pytest.raises(TypeError, match="moves must be a list of some of 'insert', 'swap', 'reverse', got 'swap'"):
        local_search(items, order, search, "swap")
    with pytest.raises(TypeError, match=r"moves must be a list of some of .*, got \(\)"):
        local_search(items, order, search, ())
    with pytest.raises(ValueError, match=r"items must begin with the shape of order \(2, 4\), got \(2, 3, 2\) float32"):
        local_search(items[:, :3], order, search)
    with pytest.raises(ValueError, match="limit must be an integer from 0 to 4611686018427387904, got -1"):
        local_search(items, order, search, limit=-1)
    with pytest.raises(ValueError, match="neighbours must be an integer from 1 to 4611686018427387904, got 0"):
        local_search(items, order, search, neighbours=0)
    with pytest.raises(ValueError, match="keep_first must be True or False, got 1"):
        local_search(items, order, search, keep_first=1)
    with pytest.raises(ValueError, match="order must keep the constraints to begin with, row 1 does not"):
        local_search(items, order, search, constraints=Constraints(before=[(1, 0)]))
    with pytest.raises(ValueError, match="order must hold each of 0 to 3 once per row"):
        local_search(items, torch.zeros_like(order), search)
    with pytest.raises(TypeError, match=r"cost must be a function cost\(items, order\) -> \(rows,\), got str"):
        local_search(items, order, "length")
    items[1, 2, 0] = torch.nan
    with pytest.raises(ValueError, match=r"items must be finite and below 1e\+100 in size"):
        local_search(items, order, search)
    started = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        local_search(items, order, lambda items, order: items.sum(0) / (1 // 0))
    assert time.monotonic() - started < 5
