"""Constraints: what is allowed and both laws against enumeration; contradictions are named; no rule is ever broken."""

import json
import math
import random
import time
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from testing import ENGINES, chi_square, counts_of, same_law
from torch import Tensor

from softrank_ext import Beam, Constraints, Draw, Engine, ops, sample
from softrank_ext.constraints import ConstraintSettings, Rules, pinned_first, read_constraints, rules_of, settings_of
from softrank_ext.model import HEADS, DataFacts
from softrank_ext.ops import constraints as constraint_ops
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.processes import bridge


def keeps(constraints: Constraints, order) -> bool:
    """Whether an order of all items keeps the constraints, read off their definition."""
    N = len(order)
    place = {item: place for place, item in enumerate(order)}
    return (
        all(place[a] < place[b] for a, b in constraints.before)
        and all(place[item] == pinned % N for item, pinned in constraints.pins.items())
        and all(place[item] != banned % N for item, banned in constraints.forbidden)
        and all(
            max(place[item] for item in group) - min(place[item] for item in group) == len(group) - 1
            for group in constraints.together
        )
    )


def random_constraints(N: int, generator: random.Random, *, satisfiable: bool) -> Constraints:
    """Rules of random kinds; those of a hidden order if they are to be satisfiable."""
    order = generator.sample(range(N), N)
    pair_rate, pin_rate, ban_rate = (
        generator.choice(rates) for rates in ((0, 0.1, 0.3), (0, 0, 0.15), (0, 0, 0.1, 0.3))
    )
    places = {item: place for place, item in enumerate(order)}
    before = [
        (a, b)
        for a, b in permutations(range(N), 2)
        if generator.random() < pair_rate / 2 and (not satisfiable or places[a] < places[b])
    ]
    pins = {
        item: places[item] if satisfiable else generator.randrange(-N, N)
        for item in range(N)
        if generator.random() < pin_rate
    }
    forbidden = [
        (item, place)
        for item in range(N)
        for place in range(N)
        if generator.random() < ban_rate and not (satisfiable and places[item] == place)
    ]
    together = []
    if generator.random() < 0.4 and N > 2:
        start = generator.randrange(N - 1)
        together = [order[start : start + generator.randint(2, N - 1)]]
    return Constraints(before, pins, forbidden, together)


def allowed_by(picks, rules: Rules | None, prefix: list[int], N: int) -> list[list[int]]:
    """What the kernel or the reference allows after each part of a prefix, as lists."""
    rules = rules or Rules(None, None, None)
    got = picks(torch.tensor([prefix], dtype=torch.int64), torch.ones(1, N, dtype=torch.bool), *rules)[0]
    return [row.nonzero()[:, 0].tolist() for row in got]


def test_allowed_picks_are_those_with_a_completion():
    """Kernel and reference against all N! orders, for rules of all kinds; rules nobody can keep are refused."""
    generator = random.Random(0)
    satisfied = refused = 0
    for _ in range(500):
        N = generator.choice((1, 2, 3, 4, 5))
        constraints = random_constraints(N, generator, satisfiable=False)
        good = [order for order in permutations(range(N)) if keeps(constraints, order)]
        if not good:
            with pytest.raises(ValueError, match=r"contradict each other|no order keeps the constraints"):
                rules_of(constraints, 1, N)
            refused += 1
            continue
        satisfied += 1
        rules = rules_of(constraints, 1, N)
        order = generator.choice(good)
        wanted = [sorted({other[p] for other in good if other[:p] == order[:p]}) for p in range(N)]
        for picks in (ops.allowed_picks, ops.allowed_picks_reference):
            assert allowed_by(picks, rules, list(order[:-1]), N) == wanted, (constraints, order)
    assert satisfied > 200 and refused > 60


def test_kernel_equals_reference_on_larger_rows():
    """Past what can be enumerated: random walks through what is allowed, padding between the items."""
    generator = random.Random(1)
    for trial in range(30):
        real = generator.choice((7, 9, 12))
        N = real + generator.choice((0, 3))
        mask = torch.zeros(1, N, dtype=torch.bool)
        items = sorted(generator.sample(range(N), real))
        mask[0, items] = True
        own = random_constraints(real, generator, satisfiable=True)
        constraints = Constraints(
            before=[(items[a], items[b]) for a, b in own.before],
            pins={items[item]: place for item, place in own.pins.items()},
            forbidden=[(items[item], place) for item, place in own.forbidden],
            together=[[items[item] for item in group] for group in own.together],
        )
        rules = rules_of(constraints, 1, N, mask) or Rules(None, None, None)
        prefix: list[int] = []
        for _ in range(real):
            sofar = torch.tensor([prefix], dtype=torch.int64)
            picks = ops.allowed_picks(sofar, mask, *rules)[0, -1].nonzero()[:, 0].tolist()
            assert picks == ops.allowed_picks_reference(sofar, mask, *rules)[0, -1].nonzero()[:, 0].tolist(), (
                trial,
                own,
            )
            prefix.append(generator.choice(picks))
        assert keeps(own, [items.index(item) for item in prefix])


def test_nothing_is_allowed_after_a_broken_rule():
    rules = rules_of(Constraints(before=[(2, 0)]), 1, 3)
    for picks in (ops.allowed_picks, ops.allowed_picks_reference):
        assert allowed_by(picks, rules, [0, 2], 3) == [[1, 2], [], []]


def test_a_search_that_would_take_too_long_is_an_error(monkeypatch):
    """Pinned items leave gaps of 10, 11 and 12 places; the groups fill them in few ways or none: bin packing."""
    monkeypatch.setattr(constraint_ops, "MOST_STATES", 50)
    sizes = [4, 6, 5, 6, 3, 4, 5]  # 33 items
    starts = np.cumsum([0, *sizes])
    groups = [range(start, end) for start, end in pairwise(starts)]
    constraints = Constraints(pins={33: 10, 34: 22}, together=groups)
    rules = rules_of(constraints, 1, 35)  # the kernel's limit is far away
    with pytest.raises(RuntimeError, match=r"constraints are too hard to check: the search passed 50 states"):
        ops.allowed_picks_reference(torch.empty(1, 0, dtype=torch.int64), torch.ones(1, 35, dtype=torch.bool), *rules)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(before=[(0, 1), (1, 4), (4, 0)]), r"0 before 1 before 4 before 0$"),
        (Constraints(before=[(3, 3)]), r"3 before 3$"),
        (
            Constraints(before=[(0, 1), (2, 0)], together=[(1, 2)]),
            r"contradict each other: .*before.*; items 1, 2 stay together",
        ),
        (Constraints(pins={0: 2, 3: -3}), r"items 0 and 3 are both pinned to place 2"),
        (Constraints(pins={1: 4}, forbidden=[(1, -1)]), r"item 1 is pinned to place 4, which is forbidden to it"),
        (
            Constraints(forbidden=[(item, place) for item in (0, 2, 3) for place in (1, 2, 3)]),
            r"no order keeps the constraints: items 0, 2, 3 have only places 0, 4 left \(3 items for 2\)$",
        ),
        (Constraints(forbidden=[(2, place) for place in range(5)]), r"item 2 has no place left$"),
        (
            Constraints(before=[(0, 4), (1, 4), (2, 4), (2, 3)], pins={4: 2, 3: 4}),
            r"items 0, 1, 2 have only places 0, 1 left \(3 items for 2\); "
            r"what contradicts itself: 0 before 4, 1 before 4, 2 before 4, item 4 pinned to place 2$",
        ),
        (
            Constraints(before=[(0, 3)], pins={3: 0, 2: 4}),
            r"item 0 has no place left; what contradicts itself: 0 before 3, item 3 pinned to place 0$",
        ),
        (
            Constraints(pins={0: 1, 1: 3}, together=[(2, 3)]),
            r"what contradicts itself: item 0 pinned to place 1, item 1 pinned to place 3, items 2, 3 together$",
        ),
        (Constraints(together=[(0, 1), (1, 2)]), r"together must be disjoint groups, item 1 is in two"),
        (Constraints(before=[(0, 5)]), r"constraints must name real items, 5 is not an item, 0 to 4"),
        (Constraints(pins={0: 5}), r"constraints must name places from -5 to 4, got 5"),
        (Constraints(forbidden=[(0, -6)]), r"constraints must name places from -5 to 4, got -6"),
    ],
)  # fmt: skip
def test_contradictions_name_the_items(make_model, constraints, message):
    with pytest.raises(ValueError, match=message):
        sample(make_model("pl"), torch.randn(2, 5, 2), constraints=constraints)
    with pytest.raises(ValueError, match=r"row 1: .*" + message):
        sample(make_model("pl"), torch.randn(2, 5, 2), constraints=[None, constraints])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"before": [(0, 1, 2)]}, r"before must hold pairs of integers, got \(0, 1, 2\)"),
        ({"before": [3]}, r"before must hold pairs of integers"),
        ({"before": [(0.5, 1)]}, r"before must hold integers, got 0.5"),
        ({"before": torch.ones(2, 3, dtype=torch.bool)}, r"before must be an \(N, N\) bool matrix, got \(2, 3\)"),
        ({"pins": [(0, 1)]}, r"pins must be a mapping from item to place, got list"),
        ({"pins": {True: 1}}, r"pins must hold integers, got True"),
        ({"together": [("a", "b")]}, r"together must hold integers, got 'a'"),
        ({"law": "conditional"}, r"law must be one of 'prefix', 'conditioned', got 'conditional'"),
        ({"particles": 0}, r"particles must be an integer of at least 1, got 0"),
        ({"particles": 4.0}, r"particles must be an integer of at least 1, got 4.0"),
        ({"reflect_noise": 1}, r"reflect_noise must be True or False, got 1"),
        ({"law": "conditioned", "reflect_noise": True}, r'law="conditioned" needs reflect_noise=False'),
    ],
)
def test_bad_constraints(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Constraints(**arguments)


def test_pairs_in_three_forms():
    matrix = torch.zeros(4, 4, dtype=torch.bool)
    matrix[2, 0] = matrix[2, 3] = True
    for before in ([(2, 0), (2, 3)], {2: [0, 3]}, matrix, matrix.numpy(), np.array([[2, 0], [2, 3]])):
        assert Constraints(before=before).before == ((2, 0), (2, 3))


def test_files(tmp_path):
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"before": [[2, 0]], "pins": {"1": -1}, "forbidden": [[0, 0]], "together": [[0, 3]]}))
    assert read_constraints(path) == Constraints([(2, 0)], {1: -1}, [(0, 0)], [(0, 3)])
    path.write_text(json.dumps([None, {"before": {"2": [0]}}]))
    assert read_constraints(path) == [None, Constraints([(2, 0)])]
    path.write_text(json.dumps({"pins": {"1": 0}, "law": "conditioned", "particles": 5, "reflect_noise": False}))
    assert read_constraints(path) == Constraints(pins={1: 0}, law="conditioned", particles=5)
    for text, message in (
        (
            '{"befor": []}',
            r"constraints must be an object with some of before, pins, forbidden, together, law, .*, got befor",
        ),
        ("3", r"constraints must be an object with some of .* got int"),
        ("{", r"rules.json is not valid JSON"),
        ("[" * 100_000, r"rules.json is not valid JSON: maximum recursion"),
        ('{"before": [[0, 1]], "before": [[1, 0]]}', r"rules.json is not valid JSON: 'before' is there twice"),
        ('{"pins": {"x": 1}}', r"pins must be an object whose names are items, integers, got 'x'"),
        ('{"law": "first"}', r"law must be one of 'prefix', 'conditioned', got 'first'"),
        ('[{"particles": 0}]', r"particles must be an integer of at least 1, got 0"),
        ('{"reflect_noise": "yes"}', r"reflect_noise must be True or False, got 'yes'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_constraints(path)


def test_settings_of_one_and_of_a_list():
    own = Constraints(pins={0: 1}, law="conditioned", particles=3)
    assert settings_of(own) == ConstraintSettings("conditioned", 3, False)
    assert settings_of([None, own, None, own]) == ConstraintSettings("conditioned", 3, False)
    assert settings_of(Constraints(reflect_noise=True)).reflect_noise is True
    everything = Rules(None, torch.ones(1, 2, 2, dtype=torch.bool), None)
    for nothing in (None, [], [None, None], Constraints(), everything):
        assert settings_of(nothing) == ConstraintSettings("prefix", 16, False)
    for other in (Constraints(particles=3), Constraints(law="conditioned"), Constraints(reflect_noise=True)):
        with pytest.raises(
            ValueError,
            match=r"^constraints must have the same law, particles and reflect_noise in all rows, "
            r"got \('conditioned', 3, False\) in row 1 and \(.*\) in row 3$",
        ):
            settings_of([None, own, own, other])
    with pytest.raises(ValueError, match=r"constraints must be Constraints, or a list of 1"):
        settings_of([{"pins": {0: 1}}])


def test_pins_at_place_0_and_what_remains():
    first, rest = pinned_first(Constraints(pins={3: 0}), 2, 5)
    assert first.tolist() == [3, 3] and first.dtype == torch.int64 and rest is None
    both = Constraints(before=[(1, 2)], pins={3: -5, 1: 4}, law="conditioned", particles=7)
    first, rest = pinned_first(both, 2, 5)
    assert first.tolist() == [3, 3]
    assert rest == Constraints(before=[(1, 2)], pins={1: 4}, law="conditioned", particles=7)
    # One per row; places count the real items, so -3 is place 0 of row 1 and another place of row 2.
    mask = torch.tensor([[True] * 5, [True, False, True, True, False], [True, True, True, True, False]])
    rows = [Constraints(pins={4: 0}), Constraints(pins={2: -3}), Constraints(forbidden=[(1, 1)], pins={3: 0, 2: -3})]
    first, rest = pinned_first(rows, 3, 5, mask)
    assert first.tolist() == [4, 2, 3]
    assert rest == [None, None, Constraints(forbidden=[(1, 1)], pins={2: -3})]
    first, rest = pinned_first(rows[:2], 2, 5, mask[:2])
    assert first.tolist() == [4, 2] and rest is None
    for none in (None, Constraints(), Constraints(before=[(0, 1)], pins={2: 1}), [None, Constraints(pins={2: -1})]):
        first, rest = pinned_first(none, 2, 5)
        assert first is None and rest is none
    rules = rules_of(Constraints(pins={3: 0}), 2, 5)
    assert pinned_first(rules, 2, 5) == (None, rules)
    assert pinned_first([], 0, 5) == (None, [])


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([None, Constraints(pins={2: 0})], r"in every row or in none, row 1 pins item 2 and row 0 none$"),
        ([Constraints(pins={2: 0}), Constraints(pins={2: 1})], r"row 0 pins item 2 and row 1 none$"),
        (Constraints(pins={2: -3}), r"row 1 pins item 2 and row 0 none$"),
        (
            Constraints(pins={2: 0, 0: -4}),
            r"^constraints contradict each other: items 2 and 0 are both pinned to place 0$",
        ),
        ([Constraints(pins={2: 0}), Constraints(pins={2: 0, 0: -3})], r"^row 1: .*items 2 and 0 are both pinned"),
        (Constraints(pins={1: 0}), r"^constraints must name real items, 1 is padding$"),
        (
            [Constraints(pins={0: 0}), Constraints(pins={1: 0})],
            r"^row 1: constraints must name real items, 1 is padding$",
        ),
        (Constraints(pins={4: 0}), r"^constraints must name real items, 4 is not an item, 0 to 3$"),
        (Constraints(pins={-1: 0}), r"^constraints must name real items, -1 is not an item, 0 to 3$"),
        ([Constraints(pins={0: 0})], r"constraints must be Constraints, or a list of 2"),
    ],
)
def test_errors_of_pins_at_place_0(constraints, message):
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    with pytest.raises(ValueError, match=message):
        pinned_first(constraints, 2, 4, mask)


def test_pins_of_ten_thousand_rows_are_read_fast():
    rows = [Constraints(pins={row % 200: 0}) for row in range(10_000)]
    begin = time.perf_counter()
    first, rest = pinned_first(rows, 10_000, 200, torch.ones(10_000, 200, dtype=torch.bool))
    assert settings_of(rows) == ConstraintSettings()
    assert time.perf_counter() - begin < 2  # building an N x N matrix per row takes far longer
    assert first.tolist() == [row % 200 for row in range(10_000)] and rest is None


def test_rules_follow_the_items_into_slots():
    constraints = Constraints(before=[(0, 2)], pins={3: 1}, together=[(1, 4)])
    order = torch.tensor([[2, 4, 0, 1, 3], [1, 0, 4, 3, 2]])  # item in each slot
    slots = rules_of(constraints, 2, 5).in_slots(order)
    for row in range(2):
        slot_of = ranks_of(order[row])
        assert slots.before[row].nonzero().tolist() == [[slot_of[0], slot_of[2]]]
        assert slots.allowed[row, slot_of[3]].nonzero().tolist() == [[1]]
        assert slots.group[row, slot_of[1]] == slots.group[row, slot_of[4]] >= 0
        assert (slots.group[row] >= 0).sum() == 2


def mixed_constraints(B: int, N: int, seed: int) -> list[Constraints | None]:
    generator = random.Random(seed)
    return [None, *(random_constraints(N, generator, satisfiable=True) for _ in range(B - 1))]


@pytest.mark.parametrize("decode", ("sample", "greedy"))
@pytest.mark.parametrize("head", HEADS)
def test_same_samples_however_they_are_computed(make_model, head, decode):
    """Kernel, plain torch, no caches, no drafts, any split of the batch; and no rule is broken."""
    torch.manual_seed(3)
    model, items = make_model(head, torch.float64), torch.randn(8, 6, 2, dtype=torch.float64)
    constraints = mixed_constraints(8, 6, seed=2)
    options = {"constraints": constraints, "decode": decode, "num_samples": 3, "seed": 4, "steps": 3}
    wanted = sample(model, items, **options)
    for own, orders in zip(constraints, wanted.order.tolist(), strict=True):
        assert own is None or all(keeps(own, order) for order in orders)
    for engine in ENGINES:
        other = sample(model, items, engine=engine, **options)
        assert torch.equal(other.order, wanted.order)
        torch.testing.assert_close(other.log_prob, wanted.log_prob, atol=1e-10, rtol=0)
    for engine in (Engine(speculative=False), Engine(max_memory=1)):
        assert torch.equal(sample(model, items, engine=engine, **options).order, wanted.order)
    for row, own in enumerate(constraints):
        alone = sample(model, items[row], **{**options, "constraints": own}, first_sample=3 * row)
        assert torch.equal(alone.order, wanted.order[row])
    free = sample(model, items, **{**options, "constraints": None})
    assert torch.equal(free.order[0], wanted.order[0])
    assert not torch.equal(free.order, wanted.order)


def test_without_constraints_nothing_changes(make_model):
    """No constraints, empty ones, and rules that everything keeps: the same bits."""
    torch.manual_seed(5)
    model, items = make_model("pointer"), torch.randn(40, 9, 2)
    wanted = sample(model, items, num_samples=2, seed=0)
    for constraints in (None, Constraints(), [Constraints()] * 40, [None] * 40):
        other = sample(model, items, num_samples=2, constraints=constraints, seed=0)
        assert torch.equal(other.order, wanted.order) and torch.equal(other.log_prob, wanted.log_prob)
    # The pick stage runs with candidates from the rules, which here allow whatever remains.
    everything = Rules(None, torch.ones(40, 9, 9, dtype=torch.bool), None)
    other = sample(model, items, num_samples=2, constraints=everything, seed=0)
    assert torch.equal(other.order, wanted.order) and torch.equal(other.log_prob, wanted.log_prob)


@pytest.mark.parametrize("head", ("pointer", "pl"))
def test_drafts_that_break_rules_change_nothing(make_model, head):
    torch.manual_seed(6)
    model, items = make_model(head, torch.float64), torch.randn(8, 7, 2, dtype=torch.float64)
    constraints = mixed_constraints(8, 7, seed=3)
    uniform = torch.rand(8, 7, dtype=torch.float64)
    wanted = model.decode(items, 0.4, uniform=uniform, constraints=constraints)
    for draft in (wanted.order, torch.rand(8, 7).argsort(1), wanted.order.flip(1)):
        other = model.decode(items, 0.4, uniform=uniform, constraints=constraints, draft=draft)
        assert torch.equal(other.order, wanted.order)
        torch.testing.assert_close(other.log_probs, wanted.log_probs, atol=1e-12, rtol=0)


@pytest.mark.parametrize("head", ("linear", "gpl"))
def test_log_prob_is_renormalised_over_what_is_allowed(make_model, head):
    """Over all orders that keep the constraints the probabilities sum to 1; others have none; decode agrees."""
    torch.manual_seed(7)
    model = make_model(head, torch.float64)
    constraints = Constraints(before=[(3, 1)], pins={0: -1}, forbidden=[(2, 0)])
    orders = torch.tensor(list(permutations(range(4))))
    items = torch.randn(1, 4, 2, dtype=torch.float64).expand(24, 4, 2)
    found = model.log_prob(items, 0.6, orders, constraints=constraints)
    is_kept = torch.tensor([keeps(constraints, order) for order in orders.tolist()])
    assert is_kept.sum() == 2
    assert (found.total[~is_kept] == -math.inf).all() and found.total[is_kept].isfinite().all()
    torch.testing.assert_close(found.total[is_kept].exp().sum().item(), 1.0, atol=1e-12, rtol=0)
    for engine in ENGINES:
        scored = model.decode(items[is_kept], 0.6, forced_order=orders[is_kept], constraints=constraints, engine=engine)
        torch.testing.assert_close(scored.log_probs, found.per_place[is_kept].detach(), atol=1e-10, rtol=0)
        with pytest.raises(ValueError, match=r"forced_order must keep the constraints, row 0 has 2 at place 0"):
            broken = torch.tensor([[2, 3, 1, 0]])
            model.decode(items[:1], 0.6, forced_order=broken, constraints=constraints, engine=engine)
    (-found.total[is_kept].sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_log_prob_of_broken_orders_has_finite_gradients(make_model):
    model = make_model("pointer")
    mask = torch.tensor([[True, True, True, False], [True, False, True, True]])
    order = torch.tensor([[2, 0, 1, 3], [3, 0, 2, 1]])
    found = model.log_prob(torch.randn(2, 4, 2), 0.5, order, mask, constraints=Constraints(before=[(0, 2)]))
    assert found.per_place[0].tolist()[:3] == [-math.inf] * 3 and found.per_place[0, 3] == 0
    assert found.total[1].isfinite()
    found.total[1].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_first_item_and_constraints(make_model):
    torch.manual_seed(8)
    model, items = make_model("pointer"), torch.randn(4, 6, 2)
    constraints = Constraints(before=[(5, 3)], together=[(2, 4)])
    first = torch.tensor([0, 2, 5, 4])
    pinned = [replace(constraints, pins={item: 0}) for item in first.tolist()]
    for is_fixed in (False, True):
        model.config = replace(model.config, data=DataFacts(fixed_start=is_fixed))
        samples = sample(model, items, constraints=pinned, num_samples=30, seed=0)
        assert (samples.order[..., 0] == first[:, None]).all()
        assert all(keeps(constraints, order) for order in samples.order.flatten(0, 1).tolist())
        with pytest.raises(
            ValueError, match=r"item 3 has no place left; what contradicts itself: 5 before 3, item 3 pinned to place 0"
        ):
            sample(model, items, constraints=replace(constraints, pins={3: 0}))
    with pytest.raises(ValueError, match=r"^item 1 is fixed at place 0 and pinned to place 2$"):
        rules_of(Constraints(pins={1: 2}), 4, 6, first=torch.ones(4, dtype=torch.int64))


def test_places_count_real_items(make_model):
    torch.manual_seed(9)
    model, items = make_model("pointer"), torch.randn(2, 6, 2)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1]], dtype=torch.bool)
    samples = sample(
        model, items, mask=mask, constraints=Constraints(pins={2: -1}, before=[(5, 0)]), num_samples=20, seed=0
    )
    for row, size in ((0, 6), (1, 4)):
        assert (samples.order[row, :, size - 1] == 2).all()
        assert (samples.ranks[row, :, 5] < samples.ranks[row, :, 0]).all()
    with pytest.raises(ValueError, match=r"constraints must name real items, 4 is padding"):
        sample(model, items, mask=mask, constraints=Constraints(pins={4: 0}))


def test_samples_reject_wrong_arguments(make_model):
    model, items = make_model("pointer"), torch.randn(2, 4, 2)
    rules = Constraints(before=[(0, 1)])
    for arguments, message in (
        ({"constraints": [rules]}, r"constraints must be Constraints, or a list of 2 \(None for no rules\), got"),
        (
            {"constraints": [rules, replace(rules, particles=3)]},
            r"the same law, particles and reflect_noise in all rows",
        ),
        (
            {"constraints": replace(rules, law="conditioned"), "decode": "greedy"},
            r'law="conditioned" needs decode="sample"',
        ),
        ({"constraints": rules, "decode": Beam(2)}, r'constraints need decode="sample" or "greedy"'),
    ):
        with pytest.raises(ValueError, match=message):
            sample(model, items, **arguments)


def test_bad_rules_for_ops():
    mask = torch.ones(2, 3, dtype=torch.bool)
    prefix = torch.empty(2, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"before must be a \(2, 3, 3\) tensor of bool, got \(2, 3\) bool"):
        ops.allowed_picks(prefix, mask, before=mask)
    with pytest.raises(ValueError, match=r"group must be a \(2, 3\) tensor of int64, got \(2, 3\) bool"):
        ops.allowed_picks(prefix, mask, group=mask)
    with pytest.raises(ValueError, match=r"prefix must hold slots from 0 to 2"):
        ops.allowed_picks(torch.tensor([[0], [3]]), mask)
    with pytest.raises(ValueError, match=r"prefix must be \(B, up to 3\) int64, got \(2, 4\) int64"):
        ops.allowed_picks(torch.zeros(2, 4, dtype=torch.int64), mask)


def test_opcheck():
    rules = rules_of(Constraints(before=[(3, 1)], pins={0: -1}, forbidden=[(2, 0)], together=[(3, 1)]), 2, 4)
    arguments = (torch.tensor([[3], [1]]), torch.ones(2, 4, dtype=torch.bool), *(rule.clone() for rule in rules))
    torch.library.opcheck(torch.ops.softrank_ext.allowed_picks.default, arguments)


# N = 5; each kind of rule, one at a time and together. 120 orders, of which the constraints keep a few.
LAW_CONSTRAINTS = {
    "pairs": Constraints(before=[(3, 0), (0, 4), (1, 4)]),
    "pins and forbidden": Constraints(pins={2: 1}, forbidden=[(4, 0), (0, 4), (3, 2)]),
    "all": Constraints(before=[(4, 1)], pins={0: 3}, forbidden=[(2, 0)], together=[(1, 3)]),
}


def law_of_one_step(model, items: Tensor, constraints: Constraints, law: str) -> Tensor:
    """Probabilities of all 120 orders for steps=1: exact sums over the 120 starting orders, all equally likely.

    "prefix" multiplies softmaxes over the picks that some kept order goes on with; "conditioned" is the model's own law
    cut to the kept orders. Nothing here uses the code under test.
    """
    orders = torch.tensor(list(permutations(range(5))))
    kept = [order for order in orders.tolist() if keeps(constraints, order)]
    is_candidate = torch.zeros(120, 5, 5, dtype=torch.bool)  # (order, place, item)
    for number, order in enumerate(orders.tolist()):
        for place in range(5):
            going_on = [other[place] for other in kept if other[:place] == order[:place]]
            is_candidate[number, place, going_on if law == "prefix" else order[place:]] = True
    starts = orders.repeat_interleave(120, 0)
    slots_of = ranks_of(starts)  # slot of each item, for every start and order
    slots = slots_of.gather(1, orders.repeat(120, 1))
    with torch.no_grad():
        scores = model.scores(model.embed(items[starts]), 1.0, slots)
    scores = scores.gather(2, slots_of[:, None].expand(-1, 5, -1)).view(120, 120, 5, 5)  # (start, order, place, item)
    log_probs = scores.masked_fill(~is_candidate, -torch.inf).log_softmax(3)
    picked = log_probs.gather(3, orders[None, :, :, None].expand(120, -1, -1, -1))[..., 0]  # (start, order, place)
    total = picked.sum(2).exp().nan_to_num(0.0).mean(0)
    if law == "conditioned":
        total *= torch.tensor([order in kept for order in orders.tolist()])
    return total / total.sum() if law == "conditioned" else total


@pytest.mark.parametrize("kind", LAW_CONSTRAINTS)
def test_both_laws_against_enumeration(make_model, kind):
    """Draws follow the law that was asked for, and fail a test of the other one."""
    torch.manual_seed(10)
    model, items = make_model("pointer", torch.float64), torch.randn(5, 2, dtype=torch.float64)
    constraints = LAW_CONSTRAINTS[kind]
    laws = {law: law_of_one_step(model, items, constraints, law) for law in ("prefix", "conditioned")}
    drawn = {
        "prefix": sample(model, items, constraints=constraints, steps=1, num_samples=4000, seed=1),
        "conditioned": sample(
            model,
            items,
            constraints=replace(constraints, law="conditioned", particles=12),
            steps=1,
            num_samples=1500,
            seed=2,
        ),
    }
    for law, other in (("prefix", "conditioned"), ("conditioned", "prefix")):
        counts = counts_of(drawn[law].order)
        assert counts[laws[law] == 0].sum() == 0
        assert chi_square(counts, laws[law]) > 1e-3
        assert chi_square(counts, laws[other]) < 1e-6
    conditioned = drawn["conditioned"]
    assert conditioned.effective_size.shape == (1500,)
    assert 1500 < conditioned.effective_size[0] < 18000
    # The mean weight is the probability that the model keeps the constraints by itself.
    free = sample(model, items, steps=1, num_samples=10000, seed=3)
    share = np.mean([keeps(constraints, order) for order in free.order.tolist()])
    error = math.sqrt(share * (1 - share) / 10000)
    assert abs(math.exp(conditioned.log_prob_allowed[0]) - share) < 4 * error
    assert drawn["prefix"].effective_size is None and drawn["prefix"].log_prob_allowed is None


def test_conditioned_law_of_the_whole_process(make_model):
    """With three diffusion steps: as the unconstrained draws that keep the constraints. The prefix law is another."""
    torch.manual_seed(10)
    model, items = make_model("pointer"), torch.randn(5, 2)
    constraints = LAW_CONSTRAINTS["pairs"]
    options = {"steps": 3, "decode": Draw(0.7)}
    free = sample(model, items, num_samples=20000, seed=4, **options).order
    ranks = ranks_of(free)
    is_kept = (ranks[:, 3] < ranks[:, 0]) & (ranks[:, 0] < ranks[:, 4]) & (ranks[:, 1] < ranks[:, 4])
    wanted = counts_of(free[is_kept])
    options |= {"num_samples": 1500, "seed": 0}
    drawn = {
        law: counts_of(sample(model, items, constraints=replace(constraints, law=law), **options).order)
        for law in ("prefix", "conditioned")
    }

    assert same_law(wanted, drawn["conditioned"], least=11) > 1e-3
    assert same_law(wanted, drawn["prefix"], least=11) < 1e-6


@pytest.mark.parametrize(("law", "is_free"), [("prefix", False), ("conditioned", True)])
def test_predictions_before_the_last_are_free_under_conditioned_alone(make_model, law, is_free):
    torch.manual_seed(10)
    model, items = make_model("pointer"), torch.randn(5, 2)
    constraints = Constraints(before=[(3, 0)], law=law)
    drawn = sample(model, items, constraints=constraints, num_samples=200, steps=3, record=True, seed=0)
    *earlier, last = (ranks_of(point.predicted_order) for point in drawn.trajectory)
    assert (last[:, 3] < last[:, 0]).all()
    for ranks in earlier:
        assert bool((ranks[:, 3] > ranks[:, 0]).any()) == is_free


def test_resampling_is_reproducible_and_keeps_fields_together(make_model):
    torch.manual_seed(11)
    model, items = make_model("pointer", torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
    constraints = replace(LAW_CONSTRAINTS["all"], law="conditioned", particles=5)
    options = {"constraints": constraints, "num_samples": 4, "seed": 0}
    samples = sample(model, items, record=True, **options)
    assert torch.equal(samples.ranks, ranks_of(samples.order))
    assert torch.equal(samples.trajectory[-1].predicted_order, samples.order)
    again = sample(model, items, engine=Engine(max_memory=1), **options)
    assert torch.equal(again.order, samples.order)
    alone = sample(model, items[1:2], first_sample=4, **options)
    assert torch.equal(alone.order[0], samples.order[1])
    # log_prob is the model's own: the last prediction's without constraints.
    last = samples.trajectory[-1]
    slots = ranks_of(last.order).gather(-1, samples.order)
    for row in range(3):
        arranged = items[row][last.order[row]]  # (4, 5, 2)
        log_prob = model.log_prob(arranged, 0.2, slots[row]).total.detach()
        torch.testing.assert_close(samples.log_prob[row], log_prob, atol=1e-10, rtol=0)


def test_reflected_noise_keeps_the_pairs(make_model):
    torch.manual_seed(12)
    model, items = make_model("pointer"), torch.randn(4, 8, 2)
    constraints = [Constraints(before=[(7, 2), (2, 5), (1, 5), (1, 0)]), None, Constraints(before=[(4, 3)]), None]
    reflected = [None if own is None else replace(own, reflect_noise=True) for own in constraints]
    for carry in bridge.CARRIES:
        options = {"process": replace(model.config.process, carry=carry), "num_samples": 20, "record": True, "seed": 0}
        samples = sample(model, items, constraints=reflected, **options)
        for point in samples.trajectory:
            for row, own in enumerate(constraints):
                for a, b in () if own is None else own.before:
                    assert (point.soft_ranks[row, :, a] <= point.soft_ranks[row, :, b]).all()
        plain = sample(model, items, constraints=constraints, **options)
        assert any((point.soft_ranks[0, :, 7] > point.soft_ranks[0, :, 2]).any() for point in plain.trajectory)
        assert torch.equal(plain.order[1], samples.order[1])


def test_reflect_pairs_by_hand():
    before = torch.zeros(3, 4, 4, dtype=torch.bool)
    before[0, 2, 0] = before[0, 0, 3] = True  # 2, 0, 3
    before[1, 1, 2] = True
    soft_ranks = torch.tensor([[0.9, 0.1, 0.5, 0.3], [0.9, 0.1, 0.5, 0.3], [0.9, 0.1, 0.5, 0.3]])
    wanted = [[0.5, 0.1, 0.3, 0.9], [0.9, 0.1, 0.5, 0.3], [0.9, 0.1, 0.5, 0.3]]
    torch.testing.assert_close(bridge.reflect_pairs(soft_ranks, before), torch.tensor(wanted))
    assert soft_ranks[0, 0] == 0.9  # the argument is left alone


def test_law_of_reflected_pairs():
    """Uniform soft ranks stay uniform over the orders of disjoint chains; those of a forked order do not."""
    torch.manual_seed(13)
    uniform = torch.rand(12000, 4)

    def p_value(pairs: list[tuple[int, int]]) -> float:
        before = torch.zeros(4, 4, dtype=torch.bool)
        before[tuple(zip(*pairs, strict=True))] = True
        folded = bridge.reflect_pairs(uniform, before.expand(12000, 4, 4))
        assert torch.equal(folded.sort(1).values, uniform.sort(1).values)
        order = folded.argsort(1)
        good = [order for order in permutations(range(4)) if keeps(Constraints(before=pairs), order)]
        counts = [int((order == torch.tensor(own)).all(1).sum()) for own in good]
        assert sum(counts) == 12000
        return chi_square(counts, [1 / len(good)] * len(good))

    assert p_value([(2, 0), (3, 1)]) > 1e-3
    assert p_value([(3, 0), (0, 2)]) > 1e-3
    assert p_value([(0, 2), (1, 2), (1, 3)]) < 1e-6


def test_no_rule_is_ever_broken(make_model):
    """N 5 to 50, a set of rules per instance; `bench/constraints.py` does 100,000 samples."""
    generator = random.Random(5)
    model = make_model("pointer")
    for N in (5, 12, 30, 50):
        constraints = []
        for _ in range(12):
            order = generator.sample(range(N), N)
            ends = [sorted(generator.sample(range(N), 2)) for _ in range(generator.randrange(N))]
            bans = [generator.sample(range(N), 2) for _ in range(generator.choice((0, N)))]
            start = generator.randrange(N - 3)
            constraints.append(
                Constraints(
                    before=[(order[a], order[b]) for a, b in ends],
                    pins={order[place]: place for place in generator.sample(range(N), generator.randrange(3))},
                    forbidden=[(order[own], other) for own, other in bans],
                    together=generator.choice(([], [order[start : start + 3]])),
                )
            )
        samples = sample(model, torch.randn(12, N, 2), constraints=constraints, num_samples=5, steps=2, seed=0)
        for own, orders in zip(constraints, samples.order.tolist(), strict=True):
            assert all(keeps(own, order) for order in orders)


def test_frames(make_model):
    """One diffusion step by hand: constraints on items hold for what the slots stand for."""
    torch.manual_seed(14)
    model, items = make_model("pointer"), torch.randn(30, 5, 2)
    order_t = torch.rand(30, 5).argsort(1)
    constraints = Constraints(before=[(4, 0)], pins={1: 2})
    rules = rules_of(constraints, 30, 5).in_slots(order_t)
    slots = model.decode(arrange(items, order_t), 0.6, uniform=torch.rand(30, 5), constraints=rules).order
    assert all(keeps(constraints, order) for order in compose(order_t, slots).tolist())


def test_command_line(make_model, tmp_path, capsys):
    from softrank_ext.cli.main import main

    torch.manual_seed(15)
    make_model("pointer").save_pretrained(tmp_path / "model")
    np.savez(tmp_path / "items.npz", items=torch.randn(2, 6, 2).numpy())
    command = ["sample", str(tmp_path / "model"), str(tmp_path / "items.npz"), str(tmp_path / "orders.npz")]
    options = ["--before", "3:5", "5:1", "--pin", "2:-1", "--forbid", "4:0", "--together", "0,4", "--num-samples", "20"]
    assert main([*command, *options]) == 0
    by_options = np.load(tmp_path / "orders.npz")["order"]
    constraints = Constraints([(3, 5), (5, 1)], {2: -1}, [(4, 0)], [(0, 4)])
    assert all(keeps(constraints, order) for order in by_options.reshape(-1, 6).tolist())

    rules = {"before": [[3, 5], [5, 1]], "pins": {"2": -1}, "forbidden": [[4, 0]], "together": [[0, 4]]}
    (tmp_path / "rules.json").write_text(json.dumps([rules, rules]))
    file = ["--constraints", str(tmp_path / "rules.json")]
    assert main([*command, *file, "--num-samples", "20"]) == 0
    assert np.array_equal(np.load(tmp_path / "orders.npz")["order"], by_options)
    capsys.readouterr()
    assert main([*command, *file, "--law", "conditioned", "--particles", "4"]) == 0
    assert "of 4 draws, in the worst instance" in capsys.readouterr().out

    for wrong, message in (
        ([*file, "--before", "0:1"], "--constraints FILE excludes --before, --pin, --forbid and --together, got both"),
        (["--before", "3"], "--before must be written like 3:5, got '3'"),
        (["--together", "1,b"], "--together must be written like 3,5,7, got '1,b'"),
        (["--pin", "1:2", "1:3"], "--pin must name an item once, 1 is pinned to 2 and 3"),
        (["--before", "0:1", "1:0"], "constraints contradict each other: 0 before 1 before 0"),
    ):
        assert main([*command, *wrong]) == 2
        assert message in capsys.readouterr().err
