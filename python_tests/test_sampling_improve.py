"""`improve`: cheap orders by drawing parts of good ones again."""

import numpy as np
import pytest
import torch
from testing import all_orders

from softrank_ext import Constraints, Drawing, Engine, Search, from_pretrained, improve, sample
from softrank_ext.metrics import tour_length
from softrank_ext.model import square_copy
from softrank_ext.permutations import ranks_of
from softrank_ext.sampling import Annealed, Near, Part, Tail, Unsure, Whole

pytestmark = pytest.mark.usefixtures("one_thread")
ITEMS = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0))


def path_length(items, order):
    """Length of open paths."""
    stops = items.gather(1, order[..., None].expand_as(items)).double()
    return (stops[:, 1:] - stops[:, :-1]).norm(dim=2).sum(1)


def best_of_all(items, cost):
    orders = all_orders(items.shape[1])
    return torch.stack([cost(row.expand(len(orders), *row.shape), orders).min() for row in items])


def test_it_finds_the_best_of_few_items(make_model):
    model = make_model("pointer", partial=True)
    found = improve(model, ITEMS, path_length, initial=8, rounds=300, chains=4, seed=0)
    torch.testing.assert_close(found.cost, best_of_all(ITEMS, path_length))
    torch.testing.assert_close(path_length(ITEMS, found.order), found.cost)


def test_what_comes_back(make_model):
    found = improve(make_model("pointer"), ITEMS, path_length, initial=4, rounds=5, chains=3, seed=0)
    assert found.order.shape == (3, 6) and found.cost.shape == (3,) and found.cost.dtype == torch.float64
    assert torch.equal(found.order.sort(1).values, torch.arange(6).expand(3, 6))
    assert found.history.shape == (3, 6) and (found.history.diff(dim=1) <= 0).all()
    assert torch.equal(found.history[:, -1], found.cost)
    assert (found.rounds, found.draws, found.seed) == (5, 27, 0)
    assert repr(found) == "Improved(3 x 6 order, 5 rounds, 27 draws per row, seed 0)"


def test_a_generator_draws_the_seed(make_model):
    model, options = make_model("pointer"), {"initial": 2, "rounds": 3}
    found = improve(model, ITEMS, path_length, seed=torch.Generator().manual_seed(4), **options)
    assert found.seed == int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))
    again = improve(model, ITEMS, path_length, seed=found.seed, **options)
    assert torch.equal(again.order, found.order) and torch.equal(again.history, found.history)


def test_without_rounds_it_is_the_best_of_draws(make_model):
    """The initial draws of one chain are those of `sample` with one step."""
    model = make_model("pointer")
    found = improve(model, ITEMS, path_length, initial=7, rounds=0, seed=5)
    drawn = sample(model, ITEMS, num_samples=7, steps=1, seed=5)
    costs = torch.stack([path_length(ITEMS, order) for order in drawn.order.unbind(1)], 1)
    torch.testing.assert_close(found.cost, costs.amin(1))


def test_draws_take_the_copies_in_turn(make_model):
    """Draw k of row r is that of `sample` for copy r + k of the eight; its cost is that of the items as given."""
    model, points = make_model("pointer", copies="square"), ITEMS.sigmoid()
    drawing = Drawing(decode="sample")
    found = improve(model, points, path_length, initial=12, rounds=0, drawing=drawing, seed=5)
    costs = torch.full((3, 12), torch.nan, dtype=torch.float64)
    for copy in range(8):
        seen = square_copy(points, torch.full((3,), copy))
        drawn = sample(model, seen, num_samples=12, steps=1, seed=5).order
        for row in range(3):
            for draw in range((copy - row) % 8, 12, 8):
                costs[row, draw] = path_length(points[row, None], drawn[row, draw, None])
    torch.testing.assert_close(found.cost, costs.amin(1))
    few = [improve(model, points, path_length, initial=2, rounds=0, drawing=drawing, seed=5).order
           for drawing in (drawing, Drawing(decode="sample", copies=False))]  # fmt: skip
    drawn = sample(model, points, num_samples=2, steps=1, seed=5)
    assert not torch.equal(few[0], few[1]) and torch.equal(few[1], drawn.best(path_length, points).order)
    with pytest.raises(ValueError, match=r"items must be \(B, N, 2\) points, got \(1, 4, 3\) float32"):
        improve(model, torch.rand(1, 4, 3), path_length)


@pytest.mark.parametrize("copies", ["none", "square"])
@pytest.mark.parametrize("kind", [None, Part(), Near(), Unsure(), Whole(0.3), (Tail(), Part(2, 3))])
def test_the_same_result_at_any_split(make_model, kind, copies):
    model = make_model("pointer", torch.float64, partial=True, copies=copies)
    items, arguments = ITEMS.double(), {"initial": 4, "rounds": 6, "chains": 2, "seed": 3}
    arguments["search"] = Search(rebuild=kind)
    found = improve(model, items, path_length, **arguments)
    again = improve(model, items, path_length, **arguments)
    small = Drawing(engine=Engine(max_memory=2 * model.bytes_per_sample(6)))
    parts = [improve(model, items[:1], path_length, **arguments, drawing=small)]
    parts.append(improve(model, items[1:], path_length, **arguments, drawing=Drawing(first_row=1)))
    assert torch.equal(found.order, again.order) and torch.equal(found.history, again.history)
    assert torch.equal(found.order, torch.cat([part.order for part in parts]))
    assert torch.equal(found.history, torch.cat([part.history for part in parts]))


def test_rows_of_different_length(make_model):
    model = make_model("pointer")
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True], [False, True, True, True, True, True]])
    items = ITEMS.masked_fill(~mask[..., None], torch.nan)
    seen = []

    def cost(items, order):
        assert items.isfinite().all()
        seen.append(items.shape[1])
        return path_length(items, order)

    found = improve(model, items, cost, mask=mask, initial=4, rounds=8, seed=0)
    assert set(seen) == {4, 5, 6}
    for row in range(3):
        real = mask[row].nonzero()[:, 0]
        drawing = Drawing(first_row=row)
        alone = improve(model, ITEMS[row, real], path_length, initial=4, rounds=8, seed=0, drawing=drawing)
        assert torch.equal(found.order[row, : len(real)], real[alone.order])
        torch.testing.assert_close(found.cost[row], alone.cost)
    assert found.order[1, 4:].tolist() == [1, 4]


def test_rules_hold(make_model):
    rules = Constraints(before=[(5, 0)], forbidden=[(2, 0)], pins={3: -1})
    mask = torch.tensor([[True] * 6, [True, False, True, True, True, True], [True] * 6])
    found = improve(make_model("pointer"), ITEMS, path_length, mask=mask, constraints=rules, rounds=20, seed=0)
    ranks = ranks_of(found.order)
    assert (ranks[:, 5] < ranks[:, 0]).all() and (ranks[:, 2] != 0).all() and ranks[:, 3].tolist() == [5, 4, 5]


@pytest.mark.parametrize("copies", ["none", "square"])
@pytest.mark.parametrize("start", [None, 4])
def test_tours_are_turned_and_come_back_from_their_start(make_model, start, copies):
    model = make_model("pointer", fixed_start=True, symmetry="tour", copies=copies)
    pins = None if start is None else Constraints(pins={start: 0})
    found = improve(model, ITEMS, tour_length, constraints=pins, initial=8, rounds=100, chains=2, seed=0)
    torch.testing.assert_close(found.cost, best_of_all(ITEMS, tour_length))
    torch.testing.assert_close(tour_length(ITEMS, found.order), found.cost)
    assert (found.order[:, 0] == (start or 0)).all()


def test_tours_with_rules_are_not_turned(make_model):
    model = make_model("pointer", fixed_start=True, symmetry="tour")
    rules = Constraints(before=[(5, 0)], pins={3: 0})
    found = improve(model, ITEMS, tour_length, constraints=rules, initial=4, rounds=30, seed=0)
    ranks = ranks_of(found.order)
    assert (ranks[:, 5] < ranks[:, 0]).all() and (found.order[:, 0] == 3).all()


def test_a_start_is_never_lost(make_model):
    best = torch.stack([all_orders(6)[path_length(row.expand(720, 6, 2), all_orders(6)).argmin()] for row in ITEMS])
    found = improve(make_model("pointer"), ITEMS, path_length, start=best, initial=1, rounds=3, seed=0)
    torch.testing.assert_close(found.cost, best_of_all(ITEMS, path_length))


def test_polish_is_applied_to_every_draw(make_model):
    """A polish that knows the answer gives it at once."""
    orders = all_orders(6)

    def solved(items, order):
        return torch.stack([orders[path_length(row.expand(720, 6, 2), orders).argmin()] for row in items])

    found = improve(make_model("pointer"), ITEMS, path_length, initial=1, rounds=0, search=Search(polish=solved))
    torch.testing.assert_close(found.cost, best_of_all(ITEMS, path_length))
    with pytest.raises(ValueError, match="what polish returns must hold each of 0 to 5 once per row"):
        improve(make_model("pointer"), ITEMS, path_length, search=Search(polish=lambda items, order: order * 0))


def test_annealing_leaves_the_pool_but_keeps_the_best(make_model):
    hot = Search(accept=Annealed(10.0, 1.0), fresh=0.0)
    found = improve(make_model("pointer"), ITEMS, path_length, initial=4, rounds=30, search=hot, seed=0)
    torch.testing.assert_close(path_length(ITEMS, found.order), found.cost)
    assert (found.history.diff(dim=1) <= 0).all()


def test_seconds_say_how_many_rounds_they_were(make_model):
    model = make_model("pointer")
    found = improve(model, ITEMS, path_length, initial=2, seconds=0.2, seed=1)
    assert found.rounds > 0
    again = improve(model, ITEMS, path_length, initial=2, rounds=found.rounds, seed=1)
    assert torch.equal(found.order, again.order) and torch.equal(found.history, again.history)


def test_ctrl_c_returns_the_best_so_far(make_model):
    calls = []

    def cost(items, order):
        calls.append(len(items))
        if len(calls) == 4:  # the initial draws, and two whole rounds before
            raise KeyboardInterrupt
        return path_length(items, order)

    model = make_model("pointer")
    found = improve(model, ITEMS, cost, initial=4, rounds=50, seed=0)
    assert found.rounds == 2 and found.history.shape == (3, 3)
    assert torch.equal(found.order, improve(model, ITEMS, path_length, initial=4, rounds=2, seed=0).order)


def test_ctrl_c_takes_no_half_of_a_round(make_model):
    """Rows of 4 and of 6 items are searched apart: the last round counts for both or for none."""
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    calls = []

    def cost(items, order):
        calls.append(order.shape[1])
        if len(calls) == 8:  # the initial draws of both, two rounds of both, and the third of the first group
            raise KeyboardInterrupt
        return path_length(items, order)

    model = make_model("pointer")
    found = improve(model, ITEMS, cost, mask=mask, initial=1, rounds=50, seed=17)
    again = improve(model, ITEMS, path_length, mask=mask, initial=1, rounds=2, seed=17)
    longer = improve(model, ITEMS, path_length, mask=mask, initial=1, rounds=3, seed=17)
    assert calls == [4, 6, 4, 6, 4, 6, 4, 6] and found.rounds == 2
    assert longer.cost[1] < again.cost[1]  # that round finds something for the first group
    assert torch.equal(found.cost, again.cost) and torch.equal(found.order, again.order)
    assert torch.equal(found.history[:, -1], found.cost)


def test_orders_that_are_not_allowed_are_avoided(make_model):
    def cost(items, order):
        return torch.where(order[:, 0] == 2, path_length(items, order), torch.inf)

    found = improve(make_model("pointer"), ITEMS, cost, initial=16, rounds=40, seed=0)
    assert (found.order[:, 0] == 2).all()
    nothing = improve(make_model("pointer"), ITEMS, lambda items, order: torch.full((len(items),), torch.inf), rounds=3)
    assert nothing.cost.isinf().all()


def test_rounds_are_recorded(make_model):
    model = make_model("pointer")
    found = improve(model, ITEMS, path_length, initial=4, rounds=9, seed=0, drawing=Drawing(record=True))
    assert len(found.draws_of_rounds) == 10
    lowest = found.history[:, 0]
    for number, drawn in enumerate(found.draws_of_rounds):
        torch.testing.assert_close(path_length(ITEMS, drawn.order), drawn.cost)
        lowest = torch.minimum(lowest, drawn.cost)
        torch.testing.assert_close(found.history[:, number], lowest)
        torch.testing.assert_close(path_length(ITEMS, drawn.best_order), lowest)
        # What is drawn again are the last places.
        is_free = drawn.noised.gather(1, drawn.order)
        assert (is_free[:, 1:] >= is_free[:, :-1]).all()
    assert any(not drawn.noised.all() for drawn in found.draws_of_rounds)
    with pytest.raises(ValueError, match="record needs rows of equally many items"):
        mask = torch.ones(3, 6, dtype=torch.bool)
        mask[0, 0] = False
        improve(model, ITEMS, path_length, mask=mask, drawing=Drawing(record=True))


def test_one_instance_and_numpy(make_model):
    model = make_model("pointer")
    found = improve(model, ITEMS[0].numpy(), path_length, initial=4, rounds=3, seed=0)
    assert isinstance(found.order, np.ndarray) and found.order.shape == (6,) and found.history.shape == (4,)
    whole = improve(model, ITEMS, path_length, initial=4, rounds=3, seed=0)
    assert np.array_equal(found.order, whole.order[0].numpy())


def test_it_pays_on_tours():
    """On tours longer than trained for, rebuilt parts beat as many independent draws of the same model."""
    points = torch.rand(8, 60, 2, generator=torch.Generator().manual_seed(3))
    model = from_pretrained("tsp")
    found = improve(model, points, tour_length, initial=8, rounds=24, seed=0)
    independent = improve(model, points, tour_length, initial=32, rounds=0, seed=0)
    assert float((found.cost / independent.cost).mean()) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": 3}, "cost must be a function"),
        ({"initial": 0}, "initial must be an integer of at least 1, got 0"),
        ({"rounds": -1}, "rounds must be an integer of at least 0, got -1"),
        ({"seconds": 0}, "seconds must be positive and finite, got 0"),
        ({"start": torch.zeros(2, 6, dtype=torch.int64)}, r"start must be \(3, 6\) int64, an order per row"),
        ({"start": [1]}, "start must be a tensor or a numpy array of orders, got list"),
        (
            {"search": Search(rebuild=Near())},
            r"search.rebuild must be Tail\(\.\.\.\) for this model, .* got Near\(least=0.1",
        ),
        ({"search": Search(rebuild=(Tail(), Whole(0.5)))}, r"was not trained .* \(SoftRankConfig.partial\), got Whole"),
        (
            {"search": Search(rebuild=Part(), fresh=1.0)},
            r"search.rebuild must be Tail\(\.\.\.\) for this model, .* got Part",
        ),
        ({"constraints": Constraints(law="conditioned")}, 'improve needs constraints with law="prefix"'),
        ({"constraints": Constraints(before=[(0, 1), (1, 0)])}, "contradict each other"),
    ],
)
def test_what_is_refused(make_model, arguments, message):
    given = {"cost": path_length, "rounds": 2, "search": Search(fresh=0.0), **arguments}
    with pytest.raises((ValueError, TypeError), match=message):
        improve(make_model("pointer"), ITEMS, **given)


def test_numbers_run_out(make_model):
    with pytest.raises(ValueError, match="must multiply to at most"):
        improve(make_model("pointer"), ITEMS, path_length, drawing=Drawing(first_row=2**32))
