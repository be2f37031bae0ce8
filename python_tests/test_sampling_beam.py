"""Beam search against enumeration: full width finds the most likely orders, width 1 is greedy."""

from itertools import permutations

import pytest
import torch
from testing.engines import each_engine

from softrank_ext import ops
from softrank_ext.choices import Engine
from softrank_ext.model import HEADS
from softrank_ext.sampling.beam import beam_decode, beam_search


def stagewise(scores: list[list[float]], order: tuple[int, ...]) -> float:
    """Log-probability of an order under scores[place][slot], by the definition."""
    table = torch.tensor(scores, dtype=torch.float64)
    total = 0.0
    for place in range(len(order)):
        left = list(order[place:])
        total += float(table[place, order[place]] - table[place, left].logsumexp(0))
    return total


def most_likely(scores: list[list[float]], slots: list[int]) -> list[tuple[float, tuple[int, ...]]]:
    return sorted(((stagewise(scores, order), order) for order in permutations(slots)), reverse=True)


def make_scores(B: int, N: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(B, N, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("N", [1, 2, 3, 4, 5])
def test_full_width_lists_all_orders_by_probability(N):
    scores = make_scores(3, N)
    for row, table in enumerate(scores):
        expected = most_likely(table.tolist(), list(range(N)))
        orders, log_probs, starts = beam_search(scores, len(expected))
        assert [tuple(order) for order in orders[row].tolist()] == [order for _, order in expected]
        wanted = torch.tensor([log_prob for log_prob, _ in expected], dtype=torch.float64)
        torch.testing.assert_close(log_probs[row], wanted, atol=1e-12, rtol=0)
        torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(3, dtype=torch.float64), atol=1e-12, rtol=0)
        assert not starts.any()


def test_more_width_than_orders_leaves_the_rest_without_probability():
    scores = make_scores(2, 3)
    mask = torch.tensor([[True, True, True], [True, False, True]])
    orders, log_probs, _ = beam_search(scores, 9, mask=mask)
    assert (log_probs > -torch.inf).sum(1).tolist() == [6, 2]
    assert orders.shape == (2, 9, 3)
    assert orders.sort(2).values.eq(torch.arange(3)).all()
    assert len({tuple(order) for order in orders[0, :6].tolist()}) == 6
    assert sorted(orders[1, :2].tolist()) == [[0, 2, 1], [2, 0, 1]]
    assert (orders[1, 2:] == orders[1, 0]).all()


def test_width_one_is_greedy():
    scores = make_scores(20, 7)
    mask = torch.ones(20, 7, dtype=torch.bool)
    mask[::2, [0, 3]] = False
    order = beam_search(scores, 1, mask=mask).orders[:, 0]
    for row in range(20):
        left = mask[row].nonzero()[:, 0].tolist()
        for place in range(len(left)):
            choice = max(left, key=lambda slot: float(scores[row, place, slot]))
            assert order[row, place] == choice
            left.remove(choice)
        assert order[row, int(mask[row].sum()) :].tolist() == (~mask[row]).nonzero()[:, 0].tolist()


def test_a_narrow_beam_can_miss_what_a_wide_one_finds():
    # Slot 0 is a little more likely first, but what follows it is a coin toss; after slot 1 all is certain.
    scores = torch.log(torch.tensor([[[0.55, 0.45, 1e-9], [1e-9, 0.5, 0.5], [1.0, 1.0, 1.0]]]))
    scores[0, 1, 0] = 5.0
    assert beam_search(scores, 1).orders.tolist() == [[[0, 1, 2]]]
    orders, log_probs, _ = beam_search(scores, 2)
    assert orders[0, 0].tolist() == [1, 0, 2]
    assert float(log_probs[0, 0].exp()) == pytest.approx(0.45, abs=0.01)


def test_masks_are_shorter_instances():
    scores = make_scores(2, 5, seed=4)
    mask = torch.tensor([[True, False, True, True, True], [False, True, True, False, True]])
    orders, log_probs, _ = beam_search(scores, 24, mask=mask)
    for row in range(2):
        slots = mask[row].nonzero()[:, 0].tolist()
        expected = most_likely(scores[row].tolist(), slots)
        found = [tuple(order[: len(slots)]) for order in orders[row, : len(expected)].tolist()]
        assert found == [order for _, order in expected]
        assert log_probs[row, 0] == pytest.approx(expected[0][0], abs=1e-12)


@pytest.mark.parametrize("width", [1, 5, 24])
def test_ties_go_to_the_earlier_prefix_and_the_lower_slot(width):
    orders = beam_search(torch.zeros(2, 4, 4), width).orders
    assert orders.tolist() == [[list(order) for order in permutations(range(4))][:width]] * 2


def test_a_decreed_first_slot_costs_nothing():
    scores = make_scores(2, 4, seed=1)
    first = torch.tensor([2, 1])
    orders, log_probs, _ = beam_search(scores, 6, first=first)
    for row, slot in enumerate(first.tolist()):
        others = [other for other in range(4) if other != slot]
        expected = most_likely(scores[row, 1:].tolist(), others)
        assert orders[row].tolist() == [[slot, *order] for _, order in expected]
        wanted = torch.tensor([log_prob for log_prob, _ in expected], dtype=torch.float64)
        torch.testing.assert_close(log_probs[row], wanted, atol=1e-12, rtol=0)


def test_forbidden_slots_are_never_taken():
    scores = make_scores(1, 4)
    scores[0, 0, :3] = -torch.inf  # slot 3 first
    scores[0, 1:, 3] = -torch.inf
    scores[0, 2, 0] = -torch.inf
    orders, log_probs, _ = beam_search(scores, 24)
    is_found = log_probs[0] > -torch.inf
    # After 3, 1, 2 only slot 0 remains for the last place; after 3, 1, 0 is forbidden at place 2, and so on.
    assert sorted(orders[0, is_found].tolist()) == [[3, 0, 1, 2], [3, 0, 2, 1], [3, 1, 2, 0], [3, 2, 1, 0]]
    with pytest.raises(ValueError, match="row 0 has none"):
        beam_search(torch.full((1, 2, 2), -torch.inf), 1)


def test_starting_hypotheses_share_one_beam():
    tables = make_scores(6, 3, seed=2).unflatten(0, (2, 3))  # two rows, three hypotheses
    start = torch.tensor([[-1.0, -2.5, -torch.inf], [-3.0, 0.0, -0.5]], dtype=torch.float64)
    orders, log_probs, starts = beam_search(tables, 4, start_log_probs=start)
    for row in range(2):
        expected = sorted(
            (
                (float(start[row, k]) + log_prob, order, k)
                for k in range(3)
                for log_prob, order in most_likely(tables[row, k].tolist(), [0, 1, 2])
            ),
            reverse=True,
        )
        wide = beam_search(tables, 18, start_log_probs=start)
        found = zip(wide.log_probs[row].tolist(), wide.orders[row].tolist(), wide.starts[row].tolist(), strict=True)
        for (log_prob, order, k), (wanted, wanted_order, wanted_k) in zip(found, expected, strict=True):
            assert log_prob == pytest.approx(wanted, abs=1e-12)
            if wanted > -torch.inf:
                assert (tuple(order), k) == (wanted_order, wanted_k)
    assert orders.shape == (2, 4, 3)
    assert (log_probs.diff(dim=1) <= 0).all()
    assert 2 not in starts[0].tolist()


def test_starting_hypotheses_have_masks_of_their_own():
    tables = make_scores(2, 3, seed=3).unflatten(0, (1, 2))
    mask = torch.tensor([[[True, True, False], [False, True, True]]])
    first = torch.tensor([[1, 2]])
    orders, log_probs, starts = beam_search(tables, 2, mask=mask, first=first)
    found = dict(zip(starts[0].tolist(), orders[0].tolist(), strict=True))
    assert found == {0: [1, 0, 2], 1: [2, 1, 0]}
    assert log_probs.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": torch.zeros(2, 3)}, r"scores must be \(B, N, N\) or \(B, K, N, N\) float, got \(2, 3\)"),
        ({"scores": torch.zeros(2, 3, 4)}, r"scores must be .* got \(2, 3, 4\)"),
        ({"scores": torch.full((2, 3, 3), torch.nan)}, "scores must be finite or -inf, got NaN"),
        ({"width": 0}, "width must be an integer of at least 1, got 0"),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, r"mask must be \(2, 3\) torch.bool, got \(2, 4\)"),
        ({"first": torch.zeros(2)}, r"first must be \(2,\) torch.int64, got \(2,\) torch.float32"),
        ({"start_log_probs": torch.zeros(1)}, r"start_log_probs must be \(2,\) torch.float32, got \(1,\)"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        beam_search(**({"scores": torch.zeros(2, 3, 3), "width": 2} | arguments))


def test_hypotheses_of_a_row_must_be_of_one_length():
    mask = torch.tensor([[[True, True], [True, False]]])
    with pytest.raises(ValueError, match="as many real slots in each hypothesis"):
        beam_search(torch.zeros(1, 2, 2, 2), 2, mask=mask)


def test_no_rows():
    orders, log_probs, starts = beam_search(torch.zeros(0, 3, 3), 4)
    assert (orders.shape, log_probs.shape, starts.shape) == ((0, 4, 3), (0, 4), (0, 4))


def orders_by_log_prob(model, items, t, slots, first=None):
    """All orders of one instance's real slots with their log-probabilities by the model, most likely first."""
    orders = [order for order in permutations(slots) if first is None or order[0] == first]
    padding = [slot for slot in range(items.shape[0]) if slot not in slots]
    mask = torch.tensor([slot in slots for slot in range(items.shape[0])])
    rows = torch.tensor([[*order, *padding] for order in orders])
    count = len(orders)
    with torch.no_grad():
        log_prob = model.log_prob(items.expand(count, *items.shape), t, rows, mask.expand(count, -1)).per_place
    total = log_prob[:, (0 if first is None else 1) :].sum(1)
    ranked = total.sort(descending=True)
    return rows[ranked.indices], ranked.values


def make_case(make_model, head):
    torch.manual_seed(5)
    model, items = make_model(head, torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 1, 0]], dtype=torch.bool)
    return model, items, mask


@pytest.mark.parametrize("is_masked", (False, True))
@pytest.mark.parametrize("head", HEADS)
@each_engine
def test_full_width_finds_the_models_most_likely_orders(make_model, head, is_masked, engine):
    model, items, mask = make_case(make_model, head)
    mask = mask if is_masked else torch.ones_like(mask)
    orders, log_probs, starts = beam_decode(model, items, 0.6, 120, mask if is_masked else None, engine=engine)
    assert not starts.any()
    for row in range(3):
        expected, wanted = orders_by_log_prob(model, items[row], 0.6, mask[row].nonzero()[:, 0].tolist())
        assert orders[row, : len(expected)].tolist() == expected.tolist()
        torch.testing.assert_close(log_probs[row, : len(wanted)], wanted, atol=1e-10, rtol=0)
        assert log_probs[row, len(wanted) :].isneginf().all()


@pytest.mark.parametrize("head", HEADS)
def test_width_one_is_greedy_decoding(make_model, head):
    torch.manual_seed(6)
    model, items = make_model(head, torch.float64), torch.randn(40, 6, 2, dtype=torch.float64)
    mask = torch.rand(40, 6) < 0.8
    mask[:, 2] = True
    t = torch.rand(40, dtype=torch.float64)
    greedy = model.decode(items, t, mask)
    beam = beam_decode(model, items, t, 1, mask)
    assert torch.equal(beam.orders[:, 0], greedy.order)
    torch.testing.assert_close(beam.log_probs[:, 0], greedy.log_probs.sum(1), atol=1e-10, rtol=0)


@pytest.mark.parametrize("head", ("pointer", "linear"))
def test_a_narrow_beam_scores_its_orders_as_the_model_does(make_model, head):
    torch.manual_seed(7)
    model, items = make_model(head, torch.float64), torch.randn(4, 6, 2, dtype=torch.float64)
    orders, log_probs, _ = beam_decode(model, items, 0.4, 5)
    for number in range(5):
        with torch.no_grad():
            wanted = model.log_prob(items, 0.4, orders[:, number]).total
        torch.testing.assert_close(log_probs[:, number], wanted, atol=1e-10, rtol=0)
    greedy = model.decode(items, 0.4).log_probs.sum(1)
    assert (log_probs[:, 0] >= greedy - 1e-10).all()
    assert (log_probs[:, 0] > greedy + 1e-3).any()  # a case in which the search pays


def test_a_beam_runs_on_the_engine_that_is_asked_for(make_model, monkeypatch):
    torch.manual_seed(9)
    model, items = make_model("pointer", torch.float64), torch.randn(2, 5, 2, dtype=torch.float64)
    kernel = beam_decode(model, items, 0.4, 3)
    for name in ("open_decoder", "advance_decoder"):
        monkeypatch.setattr(ops, name, None)
    plain = beam_decode(model, items, 0.4, 3, engine=Engine(compiled=False))
    assert torch.equal(plain.orders, kernel.orders)
    torch.testing.assert_close(plain.log_probs, kernel.log_probs, atol=1e-12, rtol=0)
    with pytest.raises(TypeError):  # the kernel's functions are gone
        beam_decode(model, items, 0.4, 3)


@pytest.mark.parametrize("head", ("pointer", "gpl"))
def test_hypotheses_of_an_instance_share_a_beam(make_model, head):
    torch.manual_seed(8)
    model, items = make_model(head, torch.float64), torch.randn(2, 4, 2, dtype=torch.float64)
    start = torch.tensor([[-0.3, -1.0]], dtype=torch.float64)
    first = torch.tensor([3, 1])
    orders, log_probs, starts = beam_decode(model, items, 0.6, 12, first=first, start_log_probs=start)
    expected = []
    for number in range(2):
        ranked = orders_by_log_prob(model, items[number], 0.6, [0, 1, 2, 3], first=int(first[number]))
        expected += [
            (float(log_prob + start[0, number]), order.tolist(), number)
            for order, log_prob in zip(*ranked, strict=True)
        ]
    expected.sort(reverse=True)
    assert orders[0].tolist() == [order for _, order, _ in expected]
    assert starts[0].tolist() == [number for _, _, number in expected]
    assert log_probs[0].tolist() == pytest.approx([log_prob for log_prob, _, _ in expected], abs=1e-10)


def test_items_alone_are_not_enough_for_a_model_that_reads_soft_ranks(make_model):
    with pytest.raises(ValueError, match="items must be embedded and given their soft ranks"):
        beam_decode(make_model("pl", reads="soft-ranks"), torch.randn(1, 3, 2), 0.5, 2)


def test_wrong_arguments_of_beam_decode_are_named(make_model):
    model, items = make_model("pointer"), torch.zeros(4, 3, 2)
    with pytest.raises(
        ValueError, match=r"start_log_probs must be \(B / K, K\) torch.float32, 4 numbers, got \(2, 3\)"
    ):
        beam_decode(model, items, 1.0, 2, start_log_probs=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"first must be a \(4,\) tensor of int64, got \(3,\) int64"):
        beam_decode(model, items, 1.0, 2, first=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="width must be an integer of at least 1, got 0"):
        beam_decode(model, items, 1.0, 0)


def test_a_padded_first_slot_is_told():
    mask = torch.tensor([[True, True, False]])
    for first in (2, 7, -1):
        with pytest.raises(ValueError, match=f"first must be real slots from 0 to 2, got {first}"):
            beam_search(torch.rand(1, 3, 3), 2, mask=mask, first=torch.tensor([first]))
