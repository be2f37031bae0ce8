"""The reverse process: it draws from the law that the model and its process define, with drafts and with beams."""

import math
from itertools import pairwise, permutations

import pytest
import torch
from synthetic_tasks import SortNumbers
from testing import ENGINES, all_orders, chi_square, counts_of, index_of, pin, same_law
from testing.tiny_models import numbers_of, small_model
from torch import Tensor

from softrank_ext import (
    Beam,
    Bridge,
    Constraints,
    Draw,
    Engine,
    Riffle,
    decode_chamber,
    evaluate,
    noise,
    reflect,
    sample,
)
from softrank_ext.model import HEADS, SoftRankModel
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.processes import bridge

pytestmark = pytest.mark.usefixtures("one_thread")
PROCESSES = {
    "bridge": Bridge(sampling_steps=2),
    "bridge, previous": Bridge(target="previous", sampling_steps=2),
    "riffle": Riffle((0, 1, 3)),
    "riffle, previous": Riffle((0, 1, 3), "previous"),
}
each_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("head", HEADS)
def test_one_step_draws_from_the_prediction(make_model, head, temperature):
    """With one step, shuffled instances are equally likely and orders of each follow the model."""
    torch.manual_seed(5)
    model, items, draws = make_model(head, torch.float64), torch.randn(1, 4, 2, dtype=torch.float64), 10_000
    orders = all_orders(4)
    assert torch.equal(index_of(orders), torch.arange(24))
    wanted = torch.zeros(24, 24, dtype=torch.float64)  # (order of z_prior, order drawn)
    with torch.no_grad():
        for order_t in orders:
            embedded = model.embed(items[:, order_t]).expand(24, -1, -1)
            scores = model.scores(embedded, 1.0, orders) / temperature
            for slots, slots_scores in zip(orders, scores, strict=True):
                log_prob = sum(slots_scores[i, slots[i]] - slots_scores[i, slots[i:]].logsumexp(0) for i in range(4))
                wanted[index_of(order_t), index_of(order_t[slots])] = log_prob.exp() / 24
    assert math.isclose(float(wanted.sum()), 1.0, abs_tol=1e-9)
    samples = sample(model, items, num_samples=draws, steps=1, decode=Draw(temperature), record=True, seed=0)
    start, end = index_of(samples.trajectory[0].order[0]), index_of(samples.order[0])
    assert chi_square(torch.bincount(start * 24 + end, minlength=576), wanted) > 1e-4
    # Negative control: ranks taken for orders.
    end = index_of(samples.ranks[0])
    assert chi_square(torch.bincount(start * 24 + end, minlength=576), wanted) < 1e-6


@pytest.mark.parametrize("carry", bridge.CARRIES)
@pytest.mark.parametrize("prior", bridge.PRIORS)
def test_several_steps_agree_with_a_loop_by_hand(make_model, prior, carry):
    """The last two states and the result, compared as one distribution over 6 x 6 x 6 cells."""
    torch.manual_seed(6)
    model, items, draws = make_model("pointer"), torch.randn(1, 3, 2), 20_000

    def counts_of_samples(noise_scale: float) -> Tensor:
        process = Bridge(noise_scale, prior, carry, sampling_steps=3)
        samples = sample(model, items, num_samples=draws, process=process, record=True, seed=0)
        return counts_of_states([*(point.order[0] for point in samples.trajectory[1:]), samples.order[0]])

    def counts_of_states(orders: list[Tensor]) -> Tensor:
        first, second, third = (index_of(order) for order in orders)
        return torch.bincount(36 * first + 6 * second + third, minlength=216)

    repeated = items.expand(draws, -1, -1)
    z_t = torch.rand(draws, 3) if prior == "uniform" else reflect(torch.randn(draws, 3))
    seen = []
    for t, s in pairwise((1.0, 2 / 3, 1 / 3, 0.0)):
        order_t, _ = decode_chamber(reflect(z_t))
        slots = model.decode(arrange(repeated, order_t), t, uniform=torch.rand(draws, 3)).order
        order = compose(order_t, slots)
        mean = (1 - s / t) * ranks_of(order) / 2 + s / t * z_t
        z_t = mean + 0.8 * math.sqrt(s * (t - s) / t) * torch.randn(draws, 3)
        z_t = reflect(z_t) if carry == "reflected" else z_t
        seen.append(order_t)
    by_hand = counts_of_states([*seen[1:], order])

    assert same_law(by_hand, counts_of_samples(0.8)) > 1e-4
    assert same_law(by_hand, counts_of_samples(0.4)) < 1e-6  # negative control


def by_hand(model: SoftRankModel, items: Tensor, process: Bridge, seed: int, *, reads_fold: bool = False) -> Tensor:
    """Orders (B, N) of a model that reads soft ranks: one sample of each instance (B, N, ...), without padding."""
    embedded, numbers, N = model.embed(items), torch.arange(len(items)), items.shape[1]
    is_folded = reads_fold or process.carry == "reflected"
    z_t = noise.uniform(seed, numbers, 0, N, stream=noise.PRIOR_STREAM, dtype=items.dtype)
    for number, (t, s) in enumerate(pairwise(process.times())):
        order_t, _ = decode_chamber(reflect(z_t))
        vectors = model.soft_rank_embedder(reflect(z_t) if is_folded else z_t)
        uniform = noise.uniform(seed, numbers, number, N, stream=noise.PICK_STREAM, dtype=items.dtype)
        seen = arrange(embedded + vectors, order_t)
        order = compose(order_t, model.decode(seen, t, uniform=uniform, is_embedded=True).order)
        normal = noise.normal(seed, numbers, number, N, stream=noise.BRIDGE_STREAM, dtype=items.dtype)
        mean = (1 - s / t) * ranks_of(order).to(items.dtype) / (N - 1) + s / t * z_t
        z_t = mean + process.noise_scale * math.sqrt(s * (t - s) / t) * normal
    return order


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("carry", bridge.CARRIES)
def test_soft_ranks_are_read_as_they_are_carried(make_model, carry, head):
    torch.manual_seed(8)
    process = Bridge(1.2, carry=carry, sampling_steps=4)
    model = make_model(head, torch.float64, process=process, max_items=5, reads="soft-ranks")
    items = torch.randn(60, 5, 2, dtype=torch.float64)
    drawn = sample(model, items, seed=3).order[:, 0]
    if carry == "exact":
        assert torch.equal(drawn, by_hand(model, items, process, 3))
        wrong = by_hand(model, items, process, 3, reads_fold=True)
        assert (drawn != wrong).any(1).sum() > 5, "reading the fold would give the same"
        return
    # Folded after each step: from one to two steps the fold is the only difference.
    process = Bridge(1.2, carry=carry, sampling_steps=2)
    drawn = sample(model, items, seed=3, process=process).order[:, 0]
    assert torch.equal(drawn, by_hand(model, items, process, 3))
    unfolded = by_hand(model, items, Bridge(1.2, sampling_steps=2), 3)
    assert (drawn != unfolded).any(1).sum() > 5


def test_soft_ranks_of_padding_and_of_a_fixed_first_item(make_model):
    """An instance among padding gives what it gives alone; the first item's soft rank is read as 0."""
    torch.manual_seed(9)
    model = make_model("pointer", torch.float64, fixed_start=True, reads="soft-ranks")
    items = torch.randn(1, 4, 2, dtype=torch.float64)
    real = torch.tensor([0, 2, 3, 5])
    padded = torch.full((1, 6, 2), 7.0, dtype=torch.float64)
    padded[:, real] = items
    mask = torch.zeros(1, 6, dtype=torch.bool)
    mask[:, real] = True
    alone = sample(model, items, num_samples=40, seed=1, constraints=pin(2))
    among = sample(model, padded, mask=mask, num_samples=40, seed=1, constraints=pin(3))
    assert torch.equal(real[alone.order], among.order[..., :4])
    torch.testing.assert_close(alone.log_prob, among.log_prob)
    seen = []
    read = model.soft_rank_embedder.forward
    model.soft_rank_embedder.forward = lambda z_t: seen.append(z_t) or read(z_t)
    sample(model, items, num_samples=40, seed=1, constraints=pin(2))
    assert len(seen) == 5 and not any(bool(z_t[:, 2].any()) for z_t in seen)
    assert all(bool(z_t[:, 1].any()) for z_t in seen)


def test_beams_and_greedy_choices_read_soft_ranks(make_model):
    torch.manual_seed(10)
    model = make_model("pointer", torch.float64, process=Bridge(1.2), reads="soft-ranks")
    items = torch.randn(30, 5, 2, dtype=torch.float64)
    greedy, beam = (sample(model, items, decode=decode, seed=2) for decode in ("greedy", Beam(1)))
    assert torch.equal(greedy.order, beam.order)
    torch.testing.assert_close(greedy.log_prob, beam.log_prob)
    with torch.no_grad():
        model.soft_rank_embedder.projection.weight.zero_()
    assert not torch.equal(sample(model, items, decode="greedy", seed=2).order, greedy.order)
    # Hypotheses have states of their own.
    assert sample(model, items, decode=Beam(4, 3, 2), seed=2).order.shape == (30, 2, 5)


def test_what_is_read_of_reflected_noise(make_model, monkeypatch):
    """Under rules that reflect the noise the soft ranks read are those whose order the network sees."""
    model = make_model("pointer", process=Bridge(1.2), reads="soft-ranks")
    read, seen = model.soft_rank_embedder.forward, []
    monkeypatch.setattr(model.soft_rank_embedder, "forward", lambda z_t: seen.append(z_t) or read(z_t))
    rule = Constraints(before=[(2, 0)], reflect_noise=True)
    samples = sample(model, torch.randn(1, 4, 2), num_samples=50, constraints=rule, record=True, seed=0)
    for z_t, point in zip(seen, samples.trajectory, strict=True):
        assert torch.equal(z_t, point.soft_ranks[0])
        assert (z_t[:, 2] <= z_t[:, 0]).all()


def test_an_oracle_is_followed(make_model, monkeypatch):
    """A network that sorts the slots it sees by their first feature makes sample() sort the items."""
    torch.manual_seed(7)
    model, items = make_model("pointer"), torch.randn(20, 9, 2)
    monkeypatch.setattr(model, "embed", lambda items, mask: torch.nn.functional.pad(items, (0, 14)))

    def decode_embedded(embedded, t, mask, choices, *, order, **_):
        B, N = embedded.shape[:2]
        return arrange(embedded[..., 0], order).argsort(1), torch.zeros(B, N), torch.ones(B, 2, dtype=torch.int64)

    monkeypatch.setattr(model, "decode_embedded", decode_embedded)
    samples = sample(model, items, num_samples=3, record=True, seed=0)
    wanted = items[..., 0].argsort(1)[:, None].expand(-1, 3, -1)
    assert torch.equal(samples.order, wanted)
    # Late states are close to the truth, early ones are not.
    distances = [(point.soft_ranks - samples.soft_ranks).abs().mean() for point in samples.trajectory]
    assert all(earlier > later for earlier, later in pairwise(distances))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decode", ["sample", "greedy"])
@pytest.mark.parametrize("head", ["pointer", "linear"])
def test_drafts_change_no_sample(make_model, head, decode, dtype):
    """The compiled decoder rounds alike whether it goes by single places or by blocks, so the bits are the same."""
    torch.manual_seed(11)
    model = make_model(head, dtype, max_items=12 if head == "linear" else None)
    items = torch.randn(60, 12, 2, dtype=dtype)
    mask = torch.rand(60, 12) < 0.8
    mask[:, 3] = True
    options = {"mask": mask, "decode": decode, "seed": 5, "steps": 4}
    plain = sample(model, items, engine=Engine(speculative=False), **options)
    drafted = sample(model, items, **options)
    assert torch.equal(plain.order, drafted.order)
    assert torch.equal(plain.log_prob, drafted.log_prob)
    choices = mask.sum(1, keepdim=True) - 1
    assert torch.equal(plain.passes, 4 * choices)
    assert (plain.accepted == 1).all()
    assert (drafted.passes <= plain.passes).all()
    assert (drafted.accepted <= 1).all()
    assert (drafted.accepted > 0).all()


def chain_law(model: SoftRankModel, items: Tensor, is_composed: bool = True) -> Tensor:
    """Probabilities of the final order, in the order of `all_orders`: a sum over all paths of the process."""
    N, times = len(items), model.process.times()
    orders = [tuple(order) for order in permutations(range(N))]
    law = dict.fromkeys(orders, 1 / len(orders))
    for t, s in pairwise(times):
        following = dict.fromkeys(orders, 0.0)
        for order_t, probability in law.items():
            seen = items[list(order_t)].expand(len(orders), N, -1)
            slots_law = model.log_prob(seen, t, all_orders(N)).total.exp().tolist()
            for slots, share in zip(orders, slots_law, strict=True):
                order = tuple(order_t[slot] for slot in slots) if is_composed else slots
                if model.process.target == "previous" or s == 0:
                    following[order] += probability * share
                    continue
                most = model.process.visited[-1]
                for middle, weight in riffle_posterior(order, order_t, round(t * most), round(s * most)).items():
                    following[middle] += probability * share * weight
        law = following
    return torch.tensor([law[order] for order in orders], dtype=torch.float64)


def riffle_posterior(clean: tuple, last: tuple, t: int, s: int) -> dict[tuple, float]:
    def law(before: tuple, after: tuple, riffles: int) -> float:
        places = [before.index(item) for item in after]
        rising = 1 + sum(places.index(card) > places.index(card + 1) for card in range(len(places) - 1))
        return math.comb(max(2**riffles + len(places) - rising, 0), len(places)) / 2 ** (riffles * len(places))

    weights = {middle: law(clean, middle, s) * law(middle, last, t - s) for middle in permutations(range(len(clean)))}
    if sum(weights.values()) == 0:
        weights = {middle: law(clean, middle, s) for middle in weights}
    return {middle: weight / sum(weights.values()) for middle, weight in weights.items()}


@pytest.mark.parametrize(
    ("process", "head"),
    [("riffle, previous", "gpl"), ("riffle, previous", "pointer"), ("bridge, previous", "pointer"), ("riffle", "gpl"),
     ("riffle", "linear")],
)  # fmt: skip
def test_samples_have_the_law_of_the_reverse_process(process, head):
    model = small_model(PROCESSES[process], head, N=3)
    with torch.no_grad():
        if head == "gpl":
            model.encoder_norm = torch.nn.LayerNorm(model.config.d_model)
            model.encoder_norm.weight *= 0.5  # or some orders would be too rare to count
        elif head == "linear":
            model.head.weight *= 3
    items = numbers_of(3)
    drawn = sample(model, items, num_samples=20_000, seed=2).order
    with torch.no_grad():
        law = chain_law(model, items)
        wrong = chain_law(model, items, is_composed=False)
    assert float(law.min()) > 1e-3
    counts = counts_of(drawn)
    assert chi_square(counts, law) > 0.001
    assert chi_square(counts, wrong) < 1e-6, "slots are not items"


@each_process
def test_a_fixed_start_and_padding(process):
    model = small_model(process, N=5, fixed_start=True)
    items = torch.randn(6, 5, 1)
    alone = sample(model, items, constraints=pin(2), num_samples=3, seed=1)
    assert bool((alone.order[..., 0] == 2).all())
    padded = torch.full((6, 7, 1), 99.0)
    padded[:, [0, 1, 3, 4, 6]] = items
    mask = torch.tensor([True, True, False, True, True, False, True]).expand(6, 7)
    again = sample(model, padded, mask=mask, constraints=pin(3), num_samples=3, seed=1)
    item_of = torch.tensor([0, 1, 9, 2, 3, 9, 4])
    assert torch.equal(item_of[again.order[..., :5]], alone.order)
    torch.testing.assert_close(again.log_prob, alone.log_prob, atol=1e-4, rtol=1e-4)


def test_the_start_does_not_depend_on_how_the_items_came():
    """Items that came sorted are shuffled first: an untrained model must not profit from it."""
    model = small_model(PROCESSES["riffle, previous"], "pl", N=5)
    torch.nn.init.zeros_(model.head[2].weight)
    drawn = sample(model, torch.arange(5.0)[:, None], num_samples=200, decode="greedy", seed=0).order
    assert float((drawn == torch.arange(5)).all(1).double().mean()) < 0.1


@each_process
def test_steps_are_the_model_s_own(process):
    items, model = torch.randn(2, 4, 1), small_model(process)
    assert torch.equal(sample(model, items, seed=0).order, sample(model, items, steps=2, seed=0).order)
    if process == PROCESSES["bridge"]:
        assert len(sample(model, items, steps=7, record=True).trajectory) == 7
        return
    with pytest.raises(ValueError, match="steps of this model must be its own 2, or None, got 7"):
        sample(model, items, steps=7)


def test_trajectory_of_a_model_that_predicts_the_order_before():
    model = small_model(PROCESSES["riffle, previous"])
    samples = sample(model, torch.randn(2, 4, 1), record=True, seed=3)
    first, second = samples.trajectory
    assert (first.t, second.t) == (1.0, pytest.approx(1 / 3))
    assert torch.equal(first.predicted_order, second.order), "the predicted order is the next state"


# Beams


def beam_by_hand(model, items, steps, width, kept, seed, first=None):
    """The search over one sample's diffusion steps as `sample` describes it, by enumeration: order and log_prob."""
    N = len(items)
    times = bridge.time_grid(steps)
    moves = torch.ones(1, N, dtype=torch.float64)
    if first is not None:
        moves[0, first] = 0.0
    number = torch.tensor([0])
    start = noise.uniform(seed, number, 0, N, stream=noise.PRIOR_STREAM, dtype=torch.float64) * moves
    hypotheses = [(0.0, start)]
    for step, (t, s) in enumerate(pairwise(times)):
        predictions: dict[tuple[int, ...], tuple[float, float, Tensor]] = {}
        for path, z_t in hypotheses:
            order_t = reflect(z_t)[0].argsort()
            slots = all_orders(N)
            orders = order_t[slots]
            with torch.no_grad():
                per_place = model.log_prob(items[order_t].expand(len(slots), N, 2), t, slots).per_place
            log_probs = per_place.sum(1)
            if first is not None:
                is_allowed = orders[:, 0] == first
                orders, log_probs = orders[is_allowed], per_place[is_allowed, 1:].sum(1)
            for order, log_prob in zip(orders.tolist(), log_probs.tolist(), strict=True):
                found = predictions.get(tuple(order))
                if found is None or path + log_prob > found[0]:
                    predictions[tuple(order)] = (path + log_prob, log_prob, z_t)
        best = sorted(predictions.items(), key=lambda entry: -entry[1][0])[:kept]
        order, (_, log_prob, _) = best[0]
        hypotheses = []
        step_noise = noise.normal(seed, number, step, N, stream=noise.BRIDGE_STREAM, dtype=torch.float64) * moves
        for predicted, (path, _, z_t) in best:
            z_clean = bridge.lift_to_grid(ranks_of(torch.tensor([predicted])), dtype=torch.float64)
            hypotheses.append((path, Bridge().step_back(z_t, z_clean, t, s, step_noise)))
    return list(order), log_prob


@pytest.mark.parametrize("first", (None, 2))
@pytest.mark.parametrize("kept", (1, 3))
@pytest.mark.parametrize("head", ("pointer", "linear", "gpl"))
def test_beam_over_diffusion_steps(make_model, head, kept, first):
    torch.manual_seed(11)
    model, items = make_model(head, torch.float64, fixed_start=True), torch.randn(6, 4, 2, dtype=torch.float64)
    for row in range(6):
        wanted, log_prob = beam_by_hand(model, items[row], 3, 24 * kept, kept, row, first)
        constraints = None if first is None else pin(first)
        drawn = sample(model, items[row], constraints=constraints, steps=3, decode=Beam(24 * kept, kept), seed=row)
        assert drawn.order[0].tolist() == wanted
        assert float(drawn.log_prob[0]) == pytest.approx(log_prob, abs=1e-9)


def test_hypotheses_that_are_carried_change_orders(make_model):
    """The test above could not fail for `kept` otherwise."""
    torch.manual_seed(11)
    model, items = make_model("pointer", torch.float64), torch.randn(20, 5, 2, dtype=torch.float64)
    one, three = (sample(model, items, decode=Beam(20, kept), seed=0).order for kept in (1, 3))
    assert not torch.equal(one, three)


@pytest.mark.parametrize("head", HEADS)
def test_a_beam_of_one_is_greedy(make_model, head):
    torch.manual_seed(12)
    model, items = make_model(head, torch.float64), torch.randn(9, 6, 2, dtype=torch.float64)
    mask = torch.rand(9, 6) < 0.8
    mask[:, 1] = True
    greedy = sample(model, items, mask=mask, num_samples=3, decode="greedy", record=True, seed=0)
    beam = sample(model, items, mask=mask, num_samples=3, decode=Beam(1), record=True, seed=0)
    assert torch.equal(beam.order, greedy.order)
    torch.testing.assert_close(beam.log_prob, greedy.log_prob, atol=1e-9, rtol=0)
    for point, wanted in zip(beam.trajectory, greedy.trajectory, strict=True):
        assert torch.equal(point.order, wanted.order)
        assert torch.equal(point.predicted_order, wanted.predicted_order)
    assert beam.accepted.eq(1).all()


@pytest.mark.parametrize("kept", (1, 4))
def test_beam_samples_do_not_depend_on_the_batch(make_model, kept):
    torch.manual_seed(13)
    model, items = make_model("pointer", torch.float64), torch.randn(5, 5, 2, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0], [1, 1, 1, 1, 0], [1] * 5]).bool()
    options = {"decode": Beam(6, kept), "record": True, "seed": 0}
    together = sample(model, items, mask=mask, num_samples=2, **options)
    in_parts = sample(model, items, mask=mask, num_samples=2, engine=Engine(max_memory=1), **options)
    assert torch.equal(together.order, in_parts.order)
    torch.testing.assert_close(together.log_prob, in_parts.log_prob, atol=1e-9, rtol=0)
    for row in range(5):
        real = mask[row].nonzero()[:, 0]
        alone = sample(model, items[row, real], num_samples=2, first_sample=2 * row, **options)
        assert torch.equal(real[alone.order], together.order[row, :, : len(real)])
        for point, wanted in zip(alone.trajectory, together.trajectory, strict=True):
            assert torch.equal(real[point.predicted_order], wanted.predicted_order[row, :, : len(real)])


def test_a_recorded_beam_is_the_path_of_the_hypothesis_that_won(make_model):
    torch.manual_seed(15)
    model, items = make_model("pointer", torch.float64), torch.randn(8, 5, 2, dtype=torch.float64)
    drawn = sample(model, items, steps=2, decode=Beam(12, 4), record=True, seed=0)
    one = sample(model, items, steps=2, decode=Beam(12), record=True, seed=0)
    before, after = drawn.trajectory
    assert not torch.equal(before.predicted_order, one.trajectory[0].predicted_order)
    z_clean = bridge.lift_to_grid(ranks_of(before.predicted_order[:, 0]), dtype=torch.float64)
    normal = noise.normal(0, torch.arange(8), 0, 5, stream=noise.BRIDGE_STREAM, dtype=torch.float64)
    z_s = Bridge().step_back(before.soft_ranks[:, 0], z_clean, 1.0, 0.5, normal)
    torch.testing.assert_close(after.soft_ranks[:, 0], reflect(z_s), atol=1e-12, rtol=0)


def test_a_beam_finds_the_same_with_every_engine(make_model):
    torch.manual_seed(16)
    model, items = make_model("pointer", torch.float64), torch.randn(4, 5, 2, dtype=torch.float64)
    wanted, *others = (sample(model, items, decode=Beam(6, 2), seed=1, engine=engine) for engine in ENGINES)
    for other in others:
        assert torch.equal(other.order, wanted.order)
        torch.testing.assert_close(other.log_prob, wanted.log_prob, atol=1e-9, rtol=0)


def test_a_beam_of_full_width_finds_the_most_likely_order():
    model, items = small_model(Riffle((0, 8), "previous"), N=5), numbers_of(5)[None]
    found = sample(model, items, decode=Beam(120), seed=1)
    order_t = sample(model, items, seed=1, record=True).trajectory[0].order[0, 0]
    with torch.no_grad():
        log_probs = model.log_prob(items[0, order_t].expand(120, 5, 1), 1.0, all_orders(5)).total
    best = compose(order_t, all_orders(5)[log_probs.argmax()])
    assert torch.equal(found.order[0, 0], best)
    assert float(found.log_prob[0, 0]) == pytest.approx(float(log_probs.max()), abs=1e-4)


@pytest.mark.parametrize("process", ("riffle, previous", "bridge, previous"))
def test_a_beam_carried_over_time_finds_the_most_likely_path(process):
    model, items = small_model(PROCESSES[process], N=4), numbers_of(4)
    orders, times = all_orders(4), model.process.times()
    start = sample(model, items[None], seed=6, record=True).trajectory[0].order[0, 0]
    with torch.no_grad():
        first = model.log_prob(items[start].expand(24, 4, 1), times[0], orders).total
        middles = [compose(start, slots) for slots in orders]
        second = [model.log_prob(items[middle].expand(24, 4, 1), times[1], orders).total for middle in middles]
    totals = torch.stack([first[index] + row for index, row in enumerate(second)])  # (24, 24)
    best = int(totals.argmax())
    wanted = compose(middles[best // 24], orders[best % 24])
    found = sample(model, items[None], decode=Beam(24 * 24, 24), seed=6).order[0, 0]
    assert torch.equal(found, wanted)


def test_a_beam_returns_what_it_kept_and_the_shortest_is_chosen():
    model, items = small_model(PROCESSES["riffle, previous"], N=5), torch.rand(3, 5, 1)
    one, all_kept = (sample(model, items, decode=Beam(40, 10, returned), seed=2) for returned in (1, 10))
    assert all_kept.order.shape == (3, 10, 5)
    assert torch.equal(all_kept.order[:, 0], one.order[:, 0])
    assert all(len(kept.unique(dim=0)) == 10 for kept in all_kept.order)

    class LastItem(SortNumbers):
        def score(self, batch, order):
            return {"length": order[:, -1].double()}

    task = LastItem(5)
    row = evaluate(model, task, count=3, best_by="length", decode=Beam(40, 10, 10), seed=2)
    items = next(task.test_batches(3, 3, 2)).items
    kept = sample(model, items, decode=Beam(40, 10, 10), seed=2).order
    assert row["metrics"]["length"]["mean"] == pytest.approx(float(kept[..., -1].amin(1).double().mean()))
