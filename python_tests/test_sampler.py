"""sample(): right frames, right distribution, the same samples however they are computed, every error."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from softrank_ext import Samples, build_info, decode_chamber, noise, reflect, sample
from softrank_ext.model import HEADS, SoftRankConfig, SoftRankModel
from softrank_ext.permutations import arrange, check_order, compose, ranks_of
from softrank_ext.processes import bridge

# compiled, cache: the kernel, plain torch with caches, plain torch without.
PATHS = ((True, True), (False, True), (False, False))


def index_of(order: Tensor) -> Tensor:
    """Number of each order (..., N) among all N! in lexicographic order."""
    N = order.shape[-1]
    number = torch.zeros(order.shape[:-1], dtype=torch.int64)
    for place in range(N):
        number = number * (N - place) + (order[..., place + 1 :] < order[..., place : place + 1]).sum(-1)
    return number


@pytest.mark.parametrize("mask", (None, "mixed"))
@pytest.mark.parametrize("head", HEADS)
def test_fields(make_model, head, mask):
    torch.manual_seed(1)
    model, items = make_model(head), torch.randn(3, 5, 2)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0]], dtype=torch.bool) if mask else None
    samples = sample(model, items, mask=mask, num_samples=4, record=True)
    assert isinstance(samples, Samples) and len(samples) == 3
    assert samples.order.shape == samples.ranks.shape == samples.soft_ranks.shape == (3, 4, 5)
    assert samples.log_prob.shape == samples.margin.shape == (3, 4)
    check_order(samples.order.flatten(0, 1))
    assert torch.equal(samples.ranks, ranks_of(samples.order))
    sizes = [5, 3, 1] if mask is not None else [5, 5, 5]
    for row, size in enumerate(sizes):
        real = list(range(5)) if mask is None else mask[row].nonzero()[:, 0].tolist()
        for order, soft_ranks, margin in zip(
            samples.order[row], samples.soft_ranks[row], samples.margin[row], strict=True
        ):
            assert sorted(order[:size].tolist()) == real and order[size:].tolist() == sorted(order[size:].tolist())
            for place in range(size):
                wanted = place / (size - 1) if size > 1 else 0.0
                assert math.isclose(float(soft_ranks[order[place]]), wanted, abs_tol=1e-6)
            assert soft_ranks[order[size:]].eq(0).all()
            wanted = 0.5 / (size - 1) if size > 1 else math.inf
            assert math.isclose(float(margin), wanted, abs_tol=1e-6)
    assert [point.t for point in samples.trajectory] == [1.0, 0.8, 0.6, 0.4, 0.2]
    for point in samples.trajectory:
        assert ((point.soft_ranks >= 0) & (point.soft_ranks <= 1)).all()
        check_order(point.order.flatten(0, 1))
        check_order(point.predicted_order.flatten(0, 1))
    assert torch.equal(samples.trajectory[-1].predicted_order, samples.order)
    assert sample(model, items).trajectory is None


@pytest.mark.parametrize("head", HEADS)
def test_log_prob_is_that_of_the_last_prediction(make_model, head):
    torch.manual_seed(2)
    model, items = make_model(head, torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
    samples = sample(model, items, num_samples=2, record=True)
    last = samples.trajectory[-1]
    for row in range(3):
        for draw in range(2):
            order_t, order = last.order[row, draw], samples.order[row, draw]
            slots = ranks_of(order_t)[order]
            log_prob = model.log_prob(items[row, order_t][None], 0.2, slots[None]).total.detach()
            torch.testing.assert_close(samples.log_prob[row, draw], log_prob[0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("decode", ("sample", "greedy"))
@pytest.mark.parametrize("head", HEADS)
def test_same_samples_however_they_are_computed(make_model, head, decode):
    """Any batch split, one instance at a time without padding, number of threads, compiled or plain, cached or not."""
    torch.manual_seed(3)
    model = make_model(head, torch.float64)
    items = torch.randn(6, 5, 2, dtype=torch.float64)
    mask = torch.rand(6, 5) < 0.7
    mask[:, 2] = True
    options = {"num_samples": 3, "decode": decode, "seed": 5}
    wanted = sample(model, items, mask=mask, **options)
    row_bytes = 8 * 5 * ((4 * model.config.decoder_layers + 12) * 16 + 2 * 24)
    for max_memory in (1, 2 * row_bytes, 7 * row_bytes):
        assert torch.equal(sample(model, items, mask=mask, max_memory=max_memory, **options).order, wanted.order)
    for compiled, cache in PATHS:
        other = sample(model, items, mask=mask, compiled=compiled, cache=cache, **options)
        assert torch.equal(other.order, wanted.order)
        torch.testing.assert_close(other.log_prob, wanted.log_prob, atol=1e-10, rtol=0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(sample(model, items, mask=mask, **options).order, wanted.order)
    finally:
        torch.set_num_threads(threads)
    for filling in (1e9, torch.nan):
        filled = items.masked_fill(~mask[..., None], filling)
        assert torch.equal(sample(model, filled, mask=mask, **options).order, wanted.order)
    for row in range(6):
        real = mask[row].nonzero()[:, 0]
        alone = sample(model, items[row, real], first_sample=3 * row, **options)
        assert torch.equal(real[alone.order], wanted.order[row, :, : len(real)])
        torch.testing.assert_close(alone.log_prob, wanted.log_prob[row], atol=1e-10, rtol=0)
    more = sample(model, items[:1], mask=mask[:1], **{**options, "num_samples": 2})
    assert torch.equal(more.order[0], wanted.order[0, :2])


@pytest.mark.parametrize("decode", ("sample", "greedy"))
def test_batch_split_in_float32(make_model, decode):
    """Rounding differs between batch sizes, so a rare draw may change: at most 1 in 100 (see the sampler's head)."""
    torch.manual_seed(4)
    model, items = make_model("pointer"), torch.randn(200, 8, 2)
    whole = sample(model, items, decode=decode)
    cut = sample(model, items, decode=decode, max_memory=500_000)
    assert (whole.order == cut.order).all(-1).float().mean() >= 0.99


def test_seeds_and_draws_differ(make_model):
    model, items = make_model("pointer"), torch.randn(1, 8, 2)
    samples = sample(model, items, num_samples=50, seed=1)
    assert len(samples.order[0].unique(dim=0)) > 25
    assert not torch.equal(samples.order, sample(model, items, num_samples=50, seed=2).order)
    assert torch.equal(samples.order, sample(model, items, num_samples=50, seed=1).order)


def chi_square(observed: Tensor, expected: Tensor) -> float:
    """P-value of counts against expected ones; cells that expect fewer than 5 are taken together."""
    is_rare = expected < 5
    counts = torch.cat((observed[~is_rare], observed[is_rare].sum()[None])).double()
    wanted = torch.cat((expected[~is_rare], expected[is_rare].sum()[None])).double()
    return stats.chisquare(counts[wanted > 0].numpy(), wanted[wanted > 0].numpy()).pvalue


@pytest.mark.parametrize("temperature", (1.0, 2.0))
@pytest.mark.parametrize("head", HEADS)
def test_one_step_draws_from_the_prediction(make_model, head, temperature):
    """With one step, shuffled instances are equally likely and orders of each follow the model."""
    torch.manual_seed(5)
    model, items, draws = make_model(head, torch.float64), torch.randn(1, 4, 2, dtype=torch.float64), 20_000
    orders = torch.tensor(list(permutations(range(4))))
    assert torch.equal(index_of(orders), torch.arange(24))
    wanted = torch.zeros(24, 24, dtype=torch.float64)  # (order of z_ref, order drawn)
    with torch.no_grad():
        for order_t in orders:
            embedded = model.embed(items[:, order_t]).expand(24, -1, -1)
            scores = model.scores(embedded, 1.0, orders) / temperature
            for slots, slots_scores in zip(orders, scores, strict=True):
                log_prob = sum(slots_scores[i, slots[i]] - slots_scores[i, slots[i:]].logsumexp(0) for i in range(4))
                wanted[index_of(order_t), index_of(order_t[slots])] = log_prob.exp() / 24
    assert math.isclose(float(wanted.sum()), 1.0, abs_tol=1e-9)
    samples = sample(model, items, num_samples=draws, steps=1, temperature=temperature, record=True)
    start, end = index_of(samples.trajectory[0].order[0]), index_of(samples.order[0])
    assert chi_square(torch.bincount(start * 24 + end, minlength=576), wanted.flatten() * draws) > 1e-4
    # Negative control: ranks taken for orders.
    end = index_of(samples.ranks[0])
    assert chi_square(torch.bincount(start * 24 + end, minlength=576), wanted.flatten() * draws) < 1e-6


@pytest.mark.parametrize("carry", bridge.CARRIES)
@pytest.mark.parametrize("reference", bridge.REFERENCES)
def test_several_steps_agree_with_a_loop_by_hand(make_model, reference, carry):
    """The last two states and the result, compared as one distribution over 6 x 6 x 6 cells."""
    torch.manual_seed(6)
    model, items, draws = make_model("pointer"), torch.randn(1, 3, 2), 20_000

    def counts_of_samples(noise_scale: float) -> Tensor:
        samples = sample(
            model, items, num_samples=draws, steps=3, noise_scale=noise_scale, reference=reference, carry=carry,
            record=True,
        )  # fmt: skip
        return counts_of([*(point.order[0] for point in samples.trajectory[1:]), samples.order[0]])

    def counts_of(orders: list[Tensor]) -> Tensor:
        first, second, third = (index_of(order) for order in orders)
        return torch.bincount(36 * first + 6 * second + third, minlength=216)

    repeated = items.expand(draws, -1, -1)
    z_t = torch.rand(draws, 3) if reference == "uniform" else reflect(torch.randn(draws, 3))
    seen = []
    for t, s in pairwise((1.0, 2 / 3, 1 / 3, 0.0)):
        order_t, _ = decode_chamber(reflect(z_t))
        slots = model.decode(arrange(repeated, order_t), t, uniform=torch.rand(draws, 3)).order
        order = compose(order_t, slots)
        mean = (1 - s / t) * ranks_of(order) / 2 + s / t * z_t
        z_t = mean + 0.8 * math.sqrt(s * (t - s) / t) * torch.randn(draws, 3)
        z_t = reflect(z_t) if carry == "reflected" else z_t
        seen.append(order_t)
    by_hand = counts_of([*seen[1:], order])

    def p_value(counts: Tensor) -> float:
        table = torch.stack((by_hand, counts))
        return stats.chi2_contingency(table[:, table.sum(0) > 0].numpy()).pvalue

    assert p_value(counts_of_samples(0.8)) > 1e-4
    assert p_value(counts_of_samples(0.4)) < 1e-6  # negative control


@pytest.mark.skipif(build_info()["kernels"] != "compiled", reason="without compiled libraries")
@pytest.mark.parametrize("decode", ["sample", "greedy"])
def test_samples_have_the_same_bits_in_any_batch(decode):
    """In float32, where the embedder leaves nothing to rounding."""
    torch.manual_seed(6)
    config = SoftRankConfig(d_model=16, feed_forward=32, heads=2, encoder_layers=2, decoder_layers=2, embedder=None)
    model = SoftRankModel(config, torch.nn.Identity())
    items = torch.randn(40, 9, 16)
    together = sample(model, items, decode=decode, num_samples=2)
    for begin, end in ((0, 1), (1, 4), (4, 40)):
        apart = sample(model, items[begin:end], decode=decode, num_samples=2, first_sample=2 * begin)
        assert torch.equal(apart.order, together.order[begin:end])
        assert torch.equal(apart.log_prob, together.log_prob[begin:end])


def test_an_oracle_is_followed(make_model, monkeypatch):
    """A network that sorts the slots it sees by their first feature makes sample() sort the items."""
    torch.manual_seed(7)
    model, items = make_model("pointer"), torch.randn(20, 9, 2)
    monkeypatch.setattr(model, "embed", lambda items, mask: torch.nn.functional.pad(items, (0, 14)))

    def decode_embedded(embedded, t, mask, choices, *, order, **_):
        B, N = embedded.shape[:2]
        return arrange(embedded[..., 0], order).argsort(1), torch.zeros(B, N), torch.ones(B, 2, dtype=torch.int64)

    monkeypatch.setattr(model, "decode_embedded", decode_embedded)
    samples = sample(model, items, num_samples=3, record=True)
    wanted = items[..., 0].argsort(1)[:, None].expand(-1, 3, -1)
    assert torch.equal(samples.order, wanted)
    # Late states are close to the truth, early ones are not.
    distances = [(point.soft_ranks - samples.soft_ranks).abs().mean() for point in samples.trajectory]
    assert all(earlier > later for earlier, later in pairwise(distances))


def test_items_are_embedded_once(make_model):
    model, items, seen = make_model("pointer"), torch.randn(7, 4, 2), []
    model.embedder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    sample(model, items, num_samples=3)
    assert len(seen) == 1
    sample(model, items, num_samples=3, max_memory=40_000)
    assert len(seen) > 2 and torch.equal(torch.cat(seen[1:]), items)


def test_one_instance_and_numpy(make_model):
    torch.manual_seed(8)
    model, items = make_model("pointer"), torch.randn(4, 6, 2)
    batch = sample(model, items, num_samples=3)
    single = sample(model, items[0], num_samples=3)
    assert single.order.shape == (3, 6) and torch.equal(single.order, batch.order[0])
    assert torch.equal(batch[2].order, batch.order[2]) and batch[2].log_prob.shape == (3,)
    mask = np.ones((4, 6), dtype=bool)
    arrays = sample(model, items.double().numpy(), mask=mask, num_samples=3, record=True)
    for field in (arrays.order, arrays.log_prob, arrays[1].margin, arrays.trajectory[0].soft_ranks):
        assert isinstance(field, np.ndarray)
    assert np.array_equal(arrays.order, batch.order.numpy())
    assert isinstance(arrays.best(lambda order: order[..., 0]).order, np.ndarray)
    assert sample(model, items[:0]).order.shape == (0, 1, 6)


def test_learned_embedder_and_model_mode():
    config = SoftRankConfig(
        d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1,
        embedder={"kind": "learned", "num_items": 6},
    )  # fmt: skip
    model = SoftRankModel(config)
    model.encoder_norm.eval()
    one, other = (sample(model, torch.arange(6), num_samples=2) for _ in range(2))
    assert one.order.shape == (2, 6) and torch.equal(one.log_prob, other.log_prob)
    assert model.training and not model.encoder_norm.training


def test_best(make_model):
    samples = sample(make_model("pointer"), torch.randn(3, 5, 2), num_samples=8, record=True)
    best = samples.best(lambda order: (order[..., 0] - 2).abs().float())
    assert best.order.shape == (3, 5) and best.log_prob.shape == (3,) and best.trajectory[0].order.shape == (3, 5)
    for row in range(3):
        costs = [abs(int(order[0]) - 2) for order in samples.order[row]]
        assert torch.equal(best.order[row], samples.order[row, costs.index(min(costs))])
        assert torch.equal(best[row].order, samples[row].best(lambda order: (order[..., 0] - 2).abs()).order)
    with pytest.raises(ValueError, match=r"cost must return \(3, 8\) numbers, got \(3,\)"):
        samples.best(lambda order: order[:, 0, 0])


def test_progress_bar(make_model, capsys):
    sample(make_model("pointer"), torch.randn(2, 4, 2), progress=True)
    assert "10/10" in capsys.readouterr().err
    sample(make_model("pointer"), torch.randn(2, 4, 2))
    assert capsys.readouterr().err == ""


ITEMS = torch.zeros(2, 4, 2)


@pytest.mark.parametrize(
    "change, message",
    (
        ({"items": [[1.0, 2.0]]}, "items must be a tensor or a numpy array, got list"),
        ({"items": np.array([["a"]])}, "items must hold numbers, got a numpy array of <U1"),
        ({"items": torch.zeros(2, 4, 3)}, r"items must be \(B, N, 2\) float, got \(2, 4, 3\)"),
        ({"items": torch.zeros(2, 4, 2, 1)}, r"items must be \(B, N, ...\) with 1 dimensions per item"),
        ({"items": torch.zeros(2)}, r"items must be \(B, N, ...\) with N at least 1, got \(2,\)"),
        ({"items": torch.zeros(2, 0, 2)}, r"items must be \(B, N, ...\) with N at least 1, got \(2, 0, 2\)"),
        ({"items": torch.zeros(2, 4, 2, dtype=torch.int64)}, r"items must be \(B, N, 2\) float, got .* torch.int64"),
        ({"items": torch.zeros(2, 4, 2, dtype=torch.bool)}, "items must hold real numbers, got torch.bool"),
        ({"items": ITEMS.index_fill(1, torch.tensor(3), torch.nan)}, "items must be finite, got NaN .* row 0, item 3"),
        ({"items": torch.zeros(2, 9, 2)}, "this linear head takes up to 8 items, got 9"),
        ({"mask": torch.ones(2, 4)}, r"mask must be \(2, 4\) bool, True = real item, got \(2, 4\) torch.float32"),
        ({"mask": torch.ones(2, 5).bool()}, r"mask must be \(2, 4\) bool, True = real item, got \(2, 5\)"),
        ({"mask": torch.tensor([[True] * 4, [False] * 4])}, "mask must leave at least one real item per row, row 1"),
        ({"mask": True}, "mask must be a tensor or a numpy array, got bool"),
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        ({"first_sample": -1}, "first_sample must be an integer of at least 0, got -1"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"noise_scale": -0.5}, "noise_scale must be at least 0 and finite, got -0.5"),
        ({"noise_scale": math.nan}, "noise_scale must be at least 0 and finite, got nan"),
        ({"reference": "normal"}, "reference must be one of 'uniform', 'gaussian', got 'normal'"),
        ({"decode": "best"}, "decode must be one of 'sample', 'greedy', 'beam', got 'best'"),
        ({"carry": "paper"}, "carry must be one of 'exact', 'reflected', got 'paper'"),
        ({"temperature": -1.0}, "temperature must be positive and finite, got -1.0"),
        ({"temperature": 0}, "temperature must be positive and finite, got 0"),
        ({"seed": 0.5}, "seed must be a 64-bit integer, got 0.5"),
        ({"seed": 2**63}, "seed must be a 64-bit integer, got 9223372036854775808"),
        ({"max_memory": 0}, "max_memory must be a positive number of bytes, got 0"),
    ),
)
def test_errors(make_model, change, message):
    model = make_model("linear", max_items=8)
    arguments = {"items": ITEMS, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        sample(model, arguments.pop("items"), **arguments)


def test_unknown_option(make_model):
    with pytest.raises(TypeError, match="num_sample"):
        sample(make_model("pointer"), ITEMS, num_sample=3)


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
    plain = sample(model, items, speculative=False, **options)
    drafted = sample(model, items, speculative=True, **options)
    assert torch.equal(plain.order, drafted.order)
    assert torch.equal(plain.log_prob, drafted.log_prob)
    choices = mask.sum(1, keepdim=True) - 1
    assert torch.equal(plain.passes, 4 * choices)
    assert (plain.accepted == 1).all()
    assert (drafted.passes <= plain.passes).all()
    assert (drafted.accepted <= 1).all()
    assert (drafted.accepted > 0).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("head", ["pointer", "gpl"])
def test_the_first_item_stands_first(make_model, head, compiled):
    torch.manual_seed(3)
    model, items = make_model(head), torch.randn(6, 7, 2)
    first = torch.tensor([0, 6, 3, 2, 2, 5])
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2, 0] = mask[4, [1, 6]] = False
    samples = sample(model, items, mask=mask, first=first, num_samples=20, record=True, compiled=compiled)
    assert (samples.order[..., 0] == first[:, None]).all()
    assert torch.equal(samples.order.sort(-1).values, torch.arange(7).expand(6, 20, 7))
    for point in samples.trajectory:
        assert (point.soft_ranks.gather(-1, first[:, None, None].expand(6, 20, 1)) == 0).all()
        assert (point.order[..., 0] == first[:, None]).all()
    again = sample(model, items[1:2], mask=mask[1:2], first=6, num_samples=20, first_sample=20, compiled=compiled)
    assert torch.equal(again.order[0], samples.order[1])


def test_the_decreed_place_has_no_probability(make_model):
    """With two items and the first decreed nothing is left to chance."""
    samples = sample(make_model("pointer"), torch.randn(5, 2, 2), first=1)
    assert torch.equal(samples.log_prob, torch.zeros(5, 1))
    assert (samples.order == torch.tensor([1, 0])).all()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (7, r"first must be a real item, 0 to 6, got 7 in row 0"),
        (torch.tensor([0, 2]), r"first must be a real item, 0 to 6, got 2 in row 1"),
        (torch.tensor([0.5, 1.0]), r"first must be an integer or \(2,\) int64, got \(2,\) torch.float32"),
        (torch.tensor([0, 1, 2]), r"first must be an integer or \(2,\) int64, got \(3,\) torch.int64"),
    ],
)
def test_bad_first_items(make_model, first, message):
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 2] = False
    with pytest.raises(ValueError, match=message):
        sample(make_model("pointer"), torch.randn(2, 7, 2), mask=mask, first=first)


def test_a_half_precision_model_is_refused(make_model):
    with pytest.raises(ValueError, match=r"the model must be float32 or float64, got torch.float16; convert it with"):
        sample(make_model("pointer").half(), torch.randn(2, 7, 2))


def test_samples_in_inference_mode_leave_training_possible(make_model):
    """What sampling keeps, the position tables, must not be tensors that autograd refuses."""
    model, items = make_model("pointer"), torch.randn(2, 11, 2)
    with torch.inference_mode():
        order = sample(model, items).order[:, 0]
    model.log_prob(items, 0.4, order.clone()).total.sum().backward()
    assert model.start.grad.isfinite().all()


def beam_by_hand(model, items, steps, width, kept, seed, first=None):
    """The search over one sample's diffusion steps as `sample` describes it, by enumeration: order and log_prob."""
    N = len(items)
    times = bridge.time_grid(steps)
    moves = torch.ones(1, N, dtype=torch.float64)
    if first is not None:
        moves[0, first] = 0.0
    number = torch.tensor([0])
    start = noise.uniform(seed, number, 0, N, stream=noise.REFERENCE_STREAM, dtype=torch.float64) * moves
    hypotheses = [(0.0, start)]
    for step, (t, s) in enumerate(pairwise(times)):
        predictions: dict[tuple[int, ...], tuple[float, float, Tensor]] = {}
        for path, z_t in hypotheses:
            order_t = reflect(z_t)[0].argsort()
            slots = torch.tensor(list(permutations(range(N))))
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
            hypotheses.append((path, bridge.reverse_step(z_t, z_clean, t, s, step_noise)))
    return list(order), log_prob


@pytest.mark.parametrize("first", (None, 2))
@pytest.mark.parametrize("kept", (1, 3))
@pytest.mark.parametrize("head", ("pointer", "linear", "gpl"))
def test_beam_over_diffusion_steps(make_model, head, kept, first):
    torch.manual_seed(11)
    model, items = make_model(head, torch.float64), torch.randn(6, 4, 2, dtype=torch.float64)
    for row in range(6):
        wanted, log_prob = beam_by_hand(model, items[row], 3, 24 * kept, kept, row, first)
        drawn = sample(model, items[row], first=first, steps=3, decode="beam", beam=24 * kept, beam_kept=kept, seed=row)
        assert drawn.order[0].tolist() == wanted
        assert float(drawn.log_prob[0]) == pytest.approx(log_prob, abs=1e-9)


def test_hypotheses_that_are_carried_change_orders(make_model):
    """The test above could not fail for beam_kept otherwise."""
    torch.manual_seed(11)
    model, items = make_model("pointer", torch.float64), torch.randn(20, 5, 2, dtype=torch.float64)
    one, three = (sample(model, items, decode="beam", beam=20, beam_kept=kept).order for kept in (1, 3))
    assert not torch.equal(one, three)


@pytest.mark.parametrize("head", HEADS)
def test_a_beam_of_one_is_greedy(make_model, head):
    torch.manual_seed(12)
    model, items = make_model(head, torch.float64), torch.randn(9, 6, 2, dtype=torch.float64)
    mask = torch.rand(9, 6) < 0.8
    mask[:, 1] = True
    greedy = sample(model, items, mask=mask, num_samples=3, decode="greedy", record=True)
    beam = sample(model, items, mask=mask, num_samples=3, decode="beam", beam=1, record=True)
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
    options = {"decode": "beam", "beam": 6, "beam_kept": kept, "record": True}
    together = sample(model, items, mask=mask, num_samples=2, **options)
    in_parts = sample(model, items, mask=mask, num_samples=2, max_memory=1, **options)
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
    drawn = sample(model, items, steps=2, decode="beam", beam=12, beam_kept=4, record=True)
    one = sample(model, items, steps=2, decode="beam", beam=12, record=True)
    before, after = drawn.trajectory
    assert not torch.equal(before.predicted_order, one.trajectory[0].predicted_order)
    z_clean = bridge.lift_to_grid(ranks_of(before.predicted_order[:, 0]), dtype=torch.float64)
    normal = noise.normal(0, torch.arange(8), 0, 5, stream=noise.BRIDGE_STREAM, dtype=torch.float64)
    z_s = bridge.reverse_step(before.soft_ranks[:, 0], z_clean, 1.0, 0.5, normal)
    torch.testing.assert_close(after.soft_ranks[:, 0], reflect(z_s), atol=1e-12, rtol=0)


def test_best_by_log_prob(make_model):
    torch.manual_seed(14)
    model, items = make_model("pointer"), torch.randn(3, 5, 2)
    samples = sample(model, items, num_samples=6)
    best = samples.best()
    for row in range(3):
        number = samples.log_prob[row].tolist().index(max(samples.log_prob[row].tolist()))
        assert torch.equal(best.order[row], samples.order[row, number])
        assert best.log_prob[row] == samples.log_prob[row, number]
    one = sample(model, items[0].numpy(), num_samples=6).best()
    assert one.order.tolist() == best.order[0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": "beam"}, 'beam must be given with decode="beam" and only then, got None with decode="beam"'),
        ({"beam": 3}, 'beam must be given with decode="beam" and only then, got 3 with decode="sample"'),
        ({"decode": "beam", "beam": 0}, "beam must be an integer of at least 1, got 0"),
        ({"decode": "beam", "beam": 3, "beam_kept": 4}, "beam_kept must be an integer from 1 to beam = 3, got 4"),
        ({"beam_kept": 2}, "beam_kept must be an integer from 1 to beam = None, got 2"),
        ({"decode": "beam", "beam": 3, "cache": False}, "needs compiled=True and cache=True"),
    ],
)
def test_wrong_beams_are_named(make_model, options, message):
    with pytest.raises(ValueError, match=message):
        sample(make_model("pointer"), torch.zeros(1, 3, 2), **options)
