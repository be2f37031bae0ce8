"""`sample(start=Rebuild(...))`: a part of given orders is drawn again by the model's law of that part."""

from itertools import permutations

import pytest
import torch
from testing import chi_square, counts_of, each_engine, index_of

from softrank_ext import Beam, Constraints, Engine, Rebuild, sample
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import Bridge, Riffle
from softrank_ext.sampling import conditioning

pytestmark = pytest.mark.usefixtures("one_thread")
ITEMS = torch.tensor([[0.3, -1.0], [1.4, 0.2], [-0.7, 0.9], [0.1, 0.5]])
START = torch.tensor([1, 3, 2, 0])  # not its own inverse
DRAWS = 20000


def law_of_part(model, noised, *, moves_all):
    """The 24 probabilities of a one-step rebuild, by the teacher-forced scores and a sum over what the encoder may see.

    moves_all: noise moves all items (models that were not trained for parts), else the noised ones alone.
    """
    free = [place for place in range(4) if noised[START[place]]]
    moved = [int(item) for item in START if noised[item]]
    law = torch.zeros(24, dtype=torch.float64)
    embedded = model.embed(ITEMS[None])
    if not moves_all:
        embedded = model.marked(embedded, ~noised[None])
    seen = [torch.tensor(order) for order in permutations(range(4))]
    if not moves_all:
        seen = [START.clone().index_copy(0, torch.tensor(free), torch.tensor(fill)) for fill in permutations(moved)]
    for order_t in seen:
        for fill in permutations(moved):
            order = START.clone().index_copy(0, torch.tensor(free), torch.tensor(fill))
            slots = ranks_of(order_t)[order]
            with torch.no_grad():
                scores = model.scores(embedded[:, order_t], 1.0, slots[None])[0].double()
            log_prob, left = 0.0, list(moved)
            for place in free:
                among = scores[place, ranks_of(order_t)[left]].log_softmax(0)
                log_prob += among[left.index(int(order[place]))]
                left.remove(int(order[place]))
            law[index_of(order)] += torch.exp(torch.as_tensor(log_prob)) / len(seen)
    return law


@pytest.mark.parametrize("head", ["pointer", "linear", "gpl"])
def test_a_tail_follows_its_law(make_model, head):
    model = make_model(head)
    noised = torch.tensor([True, False, True, True])
    drawn = sample(model, ITEMS, start=Rebuild(START, noised), num_samples=DRAWS, steps=1, seed=0)
    assert (drawn.order[:, 0] == 1).all()
    law = law_of_part(model, noised, moves_all=True)
    assert float(law.sum()) == pytest.approx(1)
    assert chi_square(counts_of(drawn.order), law) > 1e-3
    whole = counts_of(sample(model, ITEMS, num_samples=DRAWS, steps=1, seed=0).order)
    assert chi_square(whole, law) < 1e-6


@pytest.mark.parametrize("head", ["pointer", "linear", "pl"])
@pytest.mark.parametrize("kept", [1, 3])
def test_any_part_follows_its_law(make_model, head, kept):
    """Of a model that takes parts: item 1 stands first in the start, item 3 in between."""
    model = make_model(head, partial=True)
    noised = torch.ones(4, dtype=torch.bool)
    noised[kept] = False
    drawn = sample(model, ITEMS, start=Rebuild(START, noised), num_samples=DRAWS, steps=1, seed=1)
    assert (drawn.ranks[:, kept] == ranks_of(START)[kept]).all()
    law = law_of_part(model, noised, moves_all=False)
    assert float(law.sum()) == pytest.approx(1)
    assert chi_square(counts_of(drawn.order), law) > 1e-3
    biased = law.clone()
    biased[law > 0] *= 1 + 0.15 * torch.tensor([1, -1, 1, -1, 1, -1])
    assert chi_square(counts_of(drawn.order), biased) < 1e-6


@each_engine
def test_the_ways_to_compute_agree(make_model, engine):
    model, items = make_model("pointer", torch.float64, partial=True), torch.randn(5, 8, 2, dtype=torch.float64)
    order = torch.rand(5, 8).argsort(1)
    noised = torch.rand(5, 8) < 0.6
    start = Rebuild(order, noised, t=0.7)
    drawn = sample(model, items, start=start, steps=3, num_samples=4, seed=2)
    other = sample(model, items, start=start, steps=3, num_samples=4, seed=2, engine=engine)
    assert torch.equal(drawn.order, other.order)
    torch.testing.assert_close(drawn.log_prob, other.log_prob)
    is_kept = ~noised[:, None].expand(5, 4, 8)
    assert torch.equal(drawn.ranks[is_kept], ranks_of(order)[:, None].expand(5, 4, 8)[is_kept])
    guessing = sample(model, items, start=start, steps=3, num_samples=4, seed=2, engine=Engine(speculative=False))
    assert torch.equal(drawn.order, guessing.order)
    small = Engine(max_memory=2 * model.bytes_per_sample(8))
    assert torch.equal(
        drawn.order, sample(model, items, start=start, steps=3, num_samples=4, seed=2, engine=small).order
    )


def test_a_kept_prefix_costs_one_pass(make_model):
    model, items = make_model("pointer"), torch.randn(3, 20, 2)
    order = torch.rand(3, 20).argsort(1)
    noised = torch.zeros(3, 20, dtype=torch.bool).scatter(1, order[:, 15:], True)
    engine = Engine(speculative=False)
    drawn = sample(model, items, start=Rebuild(order, noised), steps=1, seed=0, engine=engine)
    assert torch.equal(drawn.order[:, 0, :15], order[:, :15])
    assert (drawn.passes == 4).all()  # the prefix with the first free place, then three picks; the last is left over


def test_log_prob_counts_what_was_drawn(make_model):
    model = make_model("pointer", partial=True)
    noised = torch.tensor([True, False, False, True])
    drawn = sample(model, ITEMS, start=Rebuild(START, noised), num_samples=200, steps=1, seed=0)
    is_same = drawn.order[:, 3] == 0
    assert is_same.any() and (~is_same).any()
    # Two items on two places: one choice, whose two probabilities sum to 1 for each of the two noisy orders.
    assert len({round(float(value), 4) for value in drawn.log_prob}) == 4
    assert (sample(model, ITEMS, start=Rebuild(START, START == 9), steps=1).log_prob == 0).all()


def test_a_little_noise_stays_near_where_much_noise_forgets(make_model):
    """Read back at once, order and noisy order are as near as the time says."""
    model = make_model("pointer", partial=True)
    start = torch.arange(12)
    items = torch.randn(12, 2)
    moves = []
    for t in (0.01, 0.5):
        drawn = sample(
            model, items, start=Rebuild(start, t=t), num_samples=200, process=Bridge(0.1, sampling_steps=1), record=True
        )
        moves.append(float((ranks_of(drawn.trajectory[0].order) - torch.arange(12)).abs().double().mean()))
        assert drawn.trajectory[0].t == t
    assert moves[0] < 0.3 < 1 < moves[1]


def test_of_tours_the_first_item_is_kept(make_model):
    model, items = make_model("pointer", fixed_start=True), torch.randn(2, 6, 2)
    order = torch.tensor([[2, 0, 4, 1, 5, 3], [5, 3, 1, 0, 2, 4]])
    drawn = sample(model, items, start=Rebuild(order), num_samples=30, seed=0)
    assert (drawn.order[..., 0] == order[:, :1]).all()
    assert len(drawn.order[0].unique(dim=0)) > 5
    with pytest.raises(ValueError, match=r"start.noised must keep the item at place 0"):
        sample(model, items, start=Rebuild(order, torch.ones(2, 6, dtype=torch.bool)))
    with pytest.raises(ValueError, match=r"start.order must begin with the items that constraints pin to place 0"):
        sample(model, items, start=Rebuild(order), constraints=Constraints(pins={0: 0}))


def test_padding_and_tails_of_different_length(make_model):
    model, items = make_model("pointer"), torch.randn(2, 6, 2)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    order = torch.tensor([[2, 0, 4, 1, 5, 3], [5, 3, 0, 2, 1, 4]])
    noised = torch.zeros(2, 6, dtype=torch.bool)
    noised[0, [1, 5, 3]] = noised[1, [0, 2]] = True
    drawn = sample(model, items, mask=mask, start=Rebuild(order, noised), num_samples=40, seed=0)
    assert torch.equal(drawn.order[0, :, :3], order[0, :3].expand(40, 3))
    assert torch.equal(drawn.order[1, :, :2], order[1, :2].expand(40, 2))
    assert torch.equal(drawn.order[1, :, 4:], order[1, 4:].expand(40, 2))
    assert len(drawn.order[0].unique(dim=0)) > 3 and len(drawn.order[1].unique(dim=0)) == 2


def test_an_order_for_each_draw(make_model):
    model, items = make_model("pointer", partial=True), torch.randn(2, 5, 2)
    order = torch.rand(2, 3, 5).argsort(2)
    noised = torch.rand(2, 3, 5) < 0.5
    drawn = sample(model, items, start=Rebuild(order, noised), num_samples=3, seed=0)
    assert torch.equal(drawn.ranks[~noised], ranks_of(order)[~noised])


@pytest.mark.parametrize("partial", [True, False])
def test_rules_hold_beside_what_is_kept(make_model, partial):
    model, items = make_model("pointer", partial=partial), torch.randn(3, 7, 2)
    order = torch.arange(7).expand(3, 7)
    noised = (torch.arange(7) >= 3).expand(3, 7)
    rules = Constraints(before=[(6, 4)], forbidden=[(3, 3)])
    drawn = sample(model, items, start=Rebuild(order, noised), constraints=rules, num_samples=50, seed=0)
    assert torch.equal(drawn.order[..., :3], torch.arange(3).expand(3, 50, 3))
    assert (drawn.ranks[..., 6] < drawn.ranks[..., 4]).all() and (drawn.ranks[..., 3] != 3).all()
    with pytest.raises(
        ValueError, match="start must keep the constraints: item 1 of row 0, pinned to place -1, is kept"
    ):
        sample(model, items, start=Rebuild(order, noised), constraints=Constraints(pins={1: -1}))
    with pytest.raises(ValueError, match=r"start must keep the constraints: .*2"):
        sample(model, items, start=Rebuild(order, noised), constraints=Constraints(before=[(2, 1)]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": Rebuild(START, START == 3)}, "start must draw the last places of each order again, at t = 1"),
        ({"start": Rebuild(START, t=0.5)}, "start must draw the last places of each order again, at t = 1"),
        ({"start": Rebuild(START.expand(2, 4))}, r"start.order must be .*got \(1, 2, 4\)"),
        ({"start": Rebuild(torch.tensor([0, 0, 1, 2]))}, "start.order must hold each of 0 to 3 once per row"),
        ({"start": START}, r"start must be Rebuild\(...\) or None, got \(4,\) int64"),
        ({"start": Rebuild(START), "decode": Beam(2)}, r"start must be None for decode=Beam"),
        (
            {"start": Rebuild(START), "constraints": Constraints(law="conditioned")},
            'start needs constraints with law="prefix"',
        ),
    ],
)
def test_what_is_refused(make_model, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        sample(make_model("pointer"), ITEMS, **arguments)


def test_models_that_do_not_predict_clean_orders_refuse(make_model):
    model = make_model("pointer", process=Riffle((0, 2, 4), target="previous"))
    with pytest.raises(
        ValueError, match="start must be None for this soft-rank model: it does not predict clean orders"
    ):
        sample(model, ITEMS, start=Rebuild(START))


def test_a_start_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match=r"t must be above 0 and at most 1, got 0"):
        Rebuild(START, t=0)
    with pytest.raises(TypeError, match=r"order must be a \(B, N\) or"):
        Rebuild([0, 1])
    with pytest.raises(ValueError, match=r"noised must be a bool tensor of the shape of order"):
        Rebuild(START, torch.ones(3, dtype=torch.bool))


def test_rows_keep_their_conditions():
    kept = conditioning.Kept(START.expand(3, 4), torch.zeros(3, 4, dtype=torch.bool), 2, False, 1.0)
    rows = conditioning.Conditions(kept=kept).rows(torch.tensor([2, 0]))
    assert rows.kept.order.shape == (2, 4) and rows.first is None and rows.kept.places == 2
