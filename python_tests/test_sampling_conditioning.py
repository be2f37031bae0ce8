"""What holds for a draw beside the model: an item fixed at place 0, rules, and the choice among weighted draws."""

import math
from dataclasses import replace

import pytest
import torch
from testing import chi_square, each_engine, pin

from softrank_ext import Constraints, Samples, noise, sample
from softrank_ext.constraints import Rules
from softrank_ext.sampling import Conditions, conditions_of, pins_of
from softrank_ext.sampling.conditioning import resampled

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


@each_engine
@pytest.mark.parametrize("head", ["pointer", "gpl"])
def test_the_first_item_stands_first(make_model, head, engine):
    torch.manual_seed(3)
    model, items = make_model(head, fixed_start=True), torch.randn(6, 7, 2)
    first = torch.tensor([0, 6, 3, 2, 2, 5])
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2, 0] = mask[4, [1, 6]] = False
    samples = sample(
        model, items, mask=mask, constraints=pin(first), num_samples=20, record=True, seed=0, engine=engine
    )
    assert (samples.order[..., 0] == first[:, None]).all()
    assert torch.equal(samples.order.sort(-1).values, torch.arange(7).expand(6, 20, 7))
    for point in samples.trajectory:
        assert (point.soft_ranks.gather(-1, first[:, None, None].expand(6, 20, 1)) == 0).all()
        assert (point.order[..., 0] == first[:, None]).all()
    again = sample(model, items[1:2], mask=mask[1:2], constraints=pin(6), num_samples=20, first_sample=20, seed=0)
    assert torch.equal(again.order[0], samples.order[1])


def test_the_fixed_place_has_no_probability(make_model):
    """With two items and the first fixed nothing is left to chance."""
    samples = sample(make_model("pointer", fixed_start=True), torch.randn(5, 2, 2), constraints=pin(1))
    assert torch.equal(samples.log_prob, torch.zeros(5, 1))
    assert (samples.order == torch.tensor([1, 0])).all()


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (pin(7), r"^constraints must name real items, 7 is not an item, 0 to 6$"),
        (pin(-1), r"^constraints must name real items, -1 is not an item, 0 to 6$"),
        (pin([0, 2]), r"^row 1: constraints must name real items, 2 is padding$"),
        (pin([0, 1, 2]), r"^constraints must be Constraints, or a list of 2 \(None for no rules\), got "),
        ([0, 1], r"^constraints must be Constraints, or a list of 2 \(None for no rules\), got "),
        (Constraints(pins={1: 0, 3: 0}), r"contradict each other: items 1 and 3 are both pinned to place 0"),
        (Constraints(pins={1: 0, 3: -8}), r"constraints must name places from -7 to 6, got -8"),
        (Constraints(pins={1: 0}, forbidden=[(1, 0)]), r"item 1 is pinned to place 0, which is forbidden to it"),
        ([Constraints(pins={1: 0}), None], r"in every row or in none, row 0 pins item 1 and row 1 none$"),
        (
            [Constraints(pins={1: 0}), Constraints(pins={1: 3})],
            r"^constraints must pin an item to place 0 in every row or in none, row 0 pins item 1",
        ),
    ],
)
def test_bad_first_items(make_model, constraints, message):
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 2] = False
    with pytest.raises(ValueError, match=message):
        sample(make_model("pointer", fixed_start=True), torch.randn(2, 7, 2), mask=mask, constraints=constraints)


class TestFixedStart:
    """For a model that was trained with a fixed start, a pin at place 0 is that start and no rule."""

    @pytest.fixture
    def without_rules(self, monkeypatch):
        """Rules must not be made."""

        def no_rules(*arguments):
            raise AssertionError("rules were made")

        monkeypatch.setattr("softrank_ext.constraints.rules.arrays_of", no_rules)

    @pytest.mark.parametrize("decode", ("sample", "greedy"))
    @pytest.mark.parametrize(
        "constraints", [pin(3), pin([3, 3, 3, 3]), Constraints(pins={3: -6})], ids=("one", "list", "-N")
    )
    def test_is_the_start_held_by_hand(self, make_model, without_rules, constraints, decode):
        """A loop as `reverse` has it, with the start's noise, soft rank and first pick taken away by hand."""
        torch.manual_seed(2)
        model, items = make_model("pointer", torch.float64, fixed_start=True), torch.randn(4, 6, 2).double()
        drawn = sample(model, items, constraints=constraints, decode=decode, seed=5, steps=3, record=True)
        numbers, moves = torch.arange(4), torch.ones(6, dtype=torch.float64)
        moves[3] = 0.0
        z_t = noise.uniform(5, numbers, 0, 6, stream=noise.PRIOR_STREAM, dtype=torch.float64) * moves
        for step, (t, s) in enumerate(((1.0, 2 / 3), (2 / 3, 1 / 3), (1 / 3, 0.0))):
            folded = torch.remainder(z_t, 2)
            folded = torch.where(folded > 1, 2 - folded, folded)
            assert bool((folded[:, 3] == 0).all())
            order_t = folded.argsort(1)
            point = drawn.trajectory[step]
            torch.testing.assert_close(point.soft_ranks[:, 0], folded, atol=1e-12, rtol=0)
            assert torch.equal(point.order[:, 0], order_t)
            uniform = noise.uniform(5, numbers, step, 6, stream=noise.PICK_STREAM, dtype=torch.float64)
            slots = torch.arange(6).expand(4, 6)
            seen = items.gather(1, order_t[..., None].expand(-1, -1, 2))
            picks = {"uniform": uniform} if decode == "sample" else {}
            slots, log_probs, _ = model.decode(
                seen, t, forced_order=slots, forced_places=1, **picks
            )  # slot 0 is item 3
            order = order_t.gather(1, slots)
            z_clean = order.argsort(1).double() / 5
            normal = noise.normal(5, numbers, step, 6, stream=noise.BRIDGE_STREAM, dtype=torch.float64) * moves
            z_t = (1 - s / t) * z_clean + s / t * z_t + 0.5 * math.sqrt(s * (t - s) / t) * normal
        assert torch.equal(drawn.order[:, 0], order)
        torch.testing.assert_close(drawn.log_prob[:, 0], log_probs[:, 1:].sum(1), atol=1e-10, rtol=0)

    def test_one_pin_for_all_is_a_pin_per_row(self, make_model):
        torch.manual_seed(3)
        model, items = make_model("pointer", fixed_start=True), torch.randn(4, 6, 2)
        one = sample(model, items, constraints=pin(3), num_samples=5, seed=1, record=True)
        each = sample(model, items, constraints=pin([3] * 4), num_samples=5, seed=1, record=True)
        assert torch.equal(one.order, each.order) and torch.equal(one.log_prob, each.log_prob)
        assert torch.equal(one.trajectory[2].soft_ranks, each.trajectory[2].soft_ranks)
        rows = [
            sample(model, items[row], constraints=pin(3), num_samples=5, seed=1, first_sample=5 * row)
            for row in range(4)
        ]
        assert torch.equal(torch.stack([row.order for row in rows]), one.order)

    def test_other_rules_stay_rules(self, make_model):
        torch.manual_seed(4)
        model, items = make_model("pointer", fixed_start=True), torch.randn(2, 6, 2)
        rules = Constraints(pins={3: 0, 1: -1}, before=[(4, 0)])
        drawn = sample(model, items, constraints=rules, num_samples=40, seed=1, record=True)
        assert (drawn.order[..., 0] == 3).all() and (drawn.order[..., 5] == 1).all()
        assert (drawn.ranks[..., 4] < drawn.ranks[..., 0]).all()
        assert all((point.soft_ranks[..., 3] == 0).all() for point in drawn.trajectory)

    def test_for_another_model_a_pin_is_a_rule(self, make_model):
        torch.manual_seed(5)
        model, items = make_model("pointer"), torch.randn(2, 5, 2)
        assert not model.fixed_start
        drawn = sample(model, items, constraints=pin(3), num_samples=60, seed=1, record=True)
        assert (drawn.order[..., 0] == 3).all()
        assert (drawn.trajectory[0].soft_ranks[..., 3] > 0).any(), "its soft rank is drawn as any other"
        # Rows may differ then: one has a pin, the other none.
        mixed = sample(model, items, constraints=[pin(3), None], num_samples=60, seed=1)
        assert torch.equal(mixed.order[0], drawn.order[0])
        assert torch.equal(mixed.order[1], sample(model, items, num_samples=60, seed=1).order[1])
        held = sample(make_model("pointer", fixed_start=True), items, constraints=pin(3), num_samples=60, seed=1)
        assert not torch.equal(held.order, drawn.order)

    def test_without_a_pin_the_start_is_free(self, make_model):
        model, items = make_model("pointer", fixed_start=True), torch.randn(1, 5, 2)
        drawn = sample(model, items, num_samples=100, seed=1)
        assert len(drawn.order[0, :, 0].unique()) > 1
        assert torch.equal(drawn.order, sample(make_model("pointer"), items, num_samples=100, seed=1).order)


class TestConditions:
    def test_of_a_model_with_a_fixed_start(self):
        conditions = conditions_of(pin([2, 0]), True, (2, 3), None, CPU)
        assert conditions.first.tolist() == [2, 0] and conditions.rules is None
        first, rules, _ = conditions_of(Constraints(pins={2: 0}, before=[(1, 0)]), True, (2, 3), None, CPU)
        assert first.tolist() == [2, 2] and rules.before[0].nonzero().tolist() == [[1, 0]]

    def test_of_another_model(self):
        first, rules, _ = conditions_of(pin(2), False, (2, 3), None, CPU)
        assert first is None and rules.allowed[1, 2].tolist() == [True, False, False]

    def test_of_none(self):
        for fixed_start in (True, False):
            for constraints in (None, Constraints(), [None, None]):
                assert conditions_of(constraints, fixed_start, (2, 3), None, CPU) == Conditions(None, None)
        assert conditions_of(pin(1), True, (0, 3), None, CPU) == Conditions(None, None)

    def test_made_rules_go_through(self):
        rules = Rules(None, torch.ones(2, 3, 3, dtype=torch.bool), None)
        assert conditions_of(rules, True, (2, 3), None, CPU) == Conditions(None, rules)

    def test_rows(self):
        conditions = conditions_of([Constraints(pins={2: 0}, before=[(1, 0)]), pin(0)], True, (2, 3), None, CPU)
        rows = conditions.rows(torch.tensor([1, 0, 0]))
        assert rows.first.tolist() == [0, 2, 2]
        assert rows.rules.before[:, 1, 0].tolist() == [False, True, True]
        assert Conditions().rows(torch.tensor([0])) == Conditions()

    def test_pins_of(self):
        assert pins_of(None) is None
        rows = pins_of(torch.tensor([4, 1, 4]))
        assert [row.pins for row in rows] == [{4: 0}, {1: 0}, {4: 0}]
        assert rows[0] is rows[2], "equal rows are worked out once"


def test_resampled_draws_are_in_proportion_to_their_weights():
    weights = torch.tensor([[0.1, 0.4, 0.0, 0.5]], dtype=torch.float64)
    order = torch.arange(4)[None, :, None]  # draw number as its one "item"
    numbers = torch.zeros(1, 4, dtype=torch.float64)
    weighted = Samples(
        order, order, order.double(), numbers, numbers, order[..., 0], numbers, seed=3,
        log_prob_allowed=(8 * weights).log(),
    )  # fmt: skip
    drawn = resampled(weighted, torch.arange(4000)[None])
    counts = torch.bincount(drawn.order.flatten(), minlength=4)
    assert chi_square(counts, weights[0]) > 1e-3
    assert chi_square(counts, [0.1, 0.4, 0.1, 0.4]) < 1e-6  # the test can fail
    assert float(drawn.effective_size[0, 0]) == pytest.approx(1 / (0.01 + 0.16 + 0.25))
    assert float(drawn.log_prob_allowed[0, 7]) == pytest.approx(math.log(8 / 4))  # the mean of the four weights
    assert torch.equal(resampled(weighted, torch.arange(9, 12)[None]).order, drawn.order[:, 9:12])


def test_law_conditioned_on_the_start_alone_needs_no_weights(make_model):
    model = make_model("pointer", fixed_start=True)
    items, pinned = torch.randn(2, 4, 2), Constraints(pins={2: 0})
    plain = sample(model, items, constraints=pinned, num_samples=3, seed=1)
    conditioned = sample(model, items, constraints=replace(pinned, law="conditioned"), num_samples=3, seed=1)
    assert torch.equal(conditioned.order, plain.order) and torch.equal(conditioned.log_prob, plain.log_prob)
    assert (conditioned.effective_size == 3).all() and (conditioned.log_prob_allowed == 0).all()
    assert plain.effective_size is None and plain.log_prob_allowed is None
