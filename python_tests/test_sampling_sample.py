"""sample(): fields, the same samples however they are computed, seeds, the model's own process, every error."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_runs import tiny_model
from testing import ENGINES

from softrank_ext import Beam, Bridge, Constraints, Draw, Engine, Riffle, Samples, build_info, sample
from softrank_ext.model import HEADS, SoftRankConfig, SoftRankModel
from softrank_ext.permutations import check_order, ranks_of
from softrank_ext.sampling import fresh_seed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("mask", (None, "mixed"))
@pytest.mark.parametrize("head", HEADS)
def test_fields(make_model, head, mask):
    torch.manual_seed(1)
    model, items = make_model(head), torch.randn(3, 5, 2)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 1, 0]], dtype=torch.bool) if mask else None
    samples = sample(model, items, mask=mask, num_samples=4, record=True, seed=0)
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
    assert (samples.mask is None) if mask is None else torch.equal(samples.mask, mask[:, None].expand(3, 4, 5))


@pytest.mark.parametrize("head", HEADS)
def test_log_prob_is_that_of_the_last_prediction(make_model, head):
    torch.manual_seed(2)
    model, items = make_model(head, torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
    samples = sample(model, items, num_samples=2, record=True, seed=0)
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
        engine = Engine(max_memory=max_memory)
        assert torch.equal(sample(model, items, mask=mask, engine=engine, **options).order, wanted.order)
    for engine in ENGINES:
        other = sample(model, items, mask=mask, engine=engine, **options)
        assert torch.equal(other.order, wanted.order)
        torch.testing.assert_close(other.log_prob, wanted.log_prob, atol=1e-10, rtol=0)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
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
    """Rounding differs between batch sizes, so a rare draw may change: at most 1 in 100 (head of sampling.reverse)."""
    torch.manual_seed(4)
    model, items = make_model("pointer"), torch.randn(200, 8, 2)
    whole = sample(model, items, decode=decode, seed=0)
    cut = sample(model, items, decode=decode, seed=0, engine=Engine(max_memory=500_000))
    assert (whole.order == cut.order).all(-1).float().mean() >= 0.99


@pytest.mark.skipif(build_info()["kernels"] != "compiled", reason="without compiled libraries")
@pytest.mark.parametrize("decode", ["sample", "greedy"])
def test_samples_have_the_same_bits_in_any_batch(decode):
    """In float32, where the embedder leaves nothing to rounding."""
    torch.manual_seed(6)
    config = SoftRankConfig(d_model=16, feed_forward=32, heads=2, encoder_layers=2, decoder_layers=2, embedder=None)
    model = SoftRankModel(config, torch.nn.Identity())
    items = torch.randn(40, 9, 16)
    together = sample(model, items, decode=decode, num_samples=2, seed=0)
    for begin, end in ((0, 1), (1, 4), (4, 40)):
        apart = sample(model, items[begin:end], decode=decode, num_samples=2, first_sample=2 * begin, seed=0)
        assert torch.equal(apart.order, together.order[begin:end])
        assert torch.equal(apart.log_prob, together.log_prob[begin:end])


def test_seeds_and_draws_differ(make_model):
    model, items = make_model("pointer"), torch.randn(1, 8, 2)
    samples = sample(model, items, num_samples=50, seed=1)
    assert len(samples.order[0].unique(dim=0)) > 25
    assert not torch.equal(samples.order, sample(model, items, num_samples=50, seed=2).order)
    assert torch.equal(samples.order, sample(model, items, num_samples=50, seed=1).order)


class TestNoSeed:
    """seed=None draws one from torch's generator."""

    def draw(self, model, items, **options):
        return sample(model, items, num_samples=5, **options)

    def test_two_calls_differ_and_a_seeded_generator_repeats_them(self, make_model):
        model, items = make_model("pointer"), torch.randn(2, 8, 2)
        torch.manual_seed(1)
        one, other = self.draw(model, items), self.draw(model, items)
        torch.manual_seed(1)
        again = self.draw(model, items), self.draw(model, items, seed=None)
        assert one.seed != other.seed and not torch.equal(one.order, other.order)
        for first, second in zip((one, other), again, strict=True):
            assert first.seed == second.seed and torch.equal(first.order, second.order)

    def test_a_generator_draws_the_seed(self, make_model):
        model, items = make_model("pointer"), torch.randn(2, 8, 2)
        generator = torch.Generator().manual_seed(4)
        one, other = self.draw(model, items, seed=generator), self.draw(model, items, seed=generator)
        generator.manual_seed(4)
        assert [one.seed, other.seed] == torch.randint(2**63 - 1, (2,), generator=generator).tolist()
        assert torch.equal(one.order, self.draw(model, items, seed=one.seed).order)
        assert not torch.equal(one.order, other.order)

    def test_the_seed_that_is_returned_repeats_the_call(self, make_model):
        model, items = make_model("pointer"), torch.randn(2, 8, 2)
        one = self.draw(model, items)
        again = self.draw(model, items, seed=one.seed)
        assert again.seed == one.seed
        assert torch.equal(one.order, again.order) and torch.equal(one.log_prob, again.log_prob)

    def test_a_given_seed_is_returned_and_leaves_the_generator_alone(self, make_model):
        model, items = make_model("pointer"), torch.randn(2, 8, 2)
        torch.manual_seed(1)
        before = torch.get_rng_state()
        assert self.draw(model, items, seed=-7).seed == -7
        assert torch.equal(torch.get_rng_state(), before)

    def test_all_processes_get_that_of_the_first(self, monkeypatch):
        def broadcast_object_list(shared, src):
            assert src == 0
            shared[0] = 12

        for name, answer in (("is_available", True), ("is_initialized", True)):
            monkeypatch.setattr(f"torch.distributed.{name}", lambda answer=answer: answer)
        monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast_object_list)
        assert fresh_seed() == 12

    def test_is_any_64_bit_number(self):
        torch.manual_seed(0)
        seeds = [fresh_seed() for _ in range(50)]
        assert len(set(seeds)) == 50 and all(0 <= seed < 2**63 for seed in seeds) and max(seeds) > 2**61


class TestProcess:
    """A model is sampled with the process that it was trained for; a call may name another."""

    quiet = Bridge(noise_scale=0.1, prior="gaussian", sampling_steps=3)

    def test_a_saved_model_is_sampled_with_its_own(self, make_model, tmp_path):
        model, items = make_model("pointer", process=self.quiet), torch.randn(4, 9, 2)
        model.save_pretrained(tmp_path)
        loaded = SoftRankModel.from_pretrained(tmp_path)
        assert loaded.config == model.config and loaded.config.process == self.quiet
        drawn = sample(loaded, items, num_samples=20, seed=1, record=True)
        assert [point.t for point in drawn.trajectory] == pytest.approx([1, 2 / 3, 1 / 3])
        default = make_model("pointer")  # the same weights, trained for another process
        asked = sample(default, items, num_samples=20, seed=1, process=self.quiet)
        assert torch.equal(drawn.order, asked.order) and torch.equal(drawn.log_prob, asked.log_prob)
        # Each of the three settings counts.
        for change in ({"noise_scale": 0.5}, {"prior": "uniform"}, {"sampling_steps": 5}):
            other = sample(loaded, items, num_samples=20, seed=1, process=replace(self.quiet, **change))
            assert not torch.equal(drawn.order, other.order), change

    def test_steps_are_short_for_one_field(self, make_model):
        model, items = make_model("pointer", process=self.quiet), torch.randn(3, 7, 2)
        short = sample(model, items, steps=2, seed=1, record=True)
        long = sample(model, items, process=replace(self.quiet, sampling_steps=2), seed=1)
        both = sample(model, items, process=replace(self.quiet, sampling_steps=2), steps=2, seed=1)
        assert len(short.trajectory) == 2
        assert torch.equal(short.order, long.order) and torch.equal(short.order, both.order)
        with pytest.raises(
            ValueError, match=r"steps must be left out or agree with process\.sampling_steps = 3, got 2"
        ):
            sample(model, items, process=self.quiet, steps=2)

    @pytest.mark.parametrize(
        "options", [{"steps": 10}, {"process": Bridge(0.2, "gaussian", sampling_steps=10)}], ids=str
    )
    def test_what_the_network_reads_of_a_time_does_not_change(self, make_model, options):
        model, items, seen = make_model("pointer"), torch.randn(2, 5, 2), []
        model.time_embedder.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0])))
        with pytest.warns(RuntimeWarning, match="hook"):  # which the kernels would not call
            sample(model, items, seed=1)
        assert sorted(set(seen)) == pytest.approx([1, 2, 3, 4, 5])  # t * time_steps
        seen.clear()
        drawn = sample(model, items, seed=1, record=True, **options)
        halves = [0.5 * number for number in range(1, 11)]
        assert [point.t * 5 for point in drawn.trajectory] == pytest.approx(halves[::-1])
        assert sorted(set(seen)) == pytest.approx(halves)

    def test_another_kind_is_told(self, make_model):
        items = torch.randn(1, 4, 2)
        with pytest.raises(ValueError, match="process must be of the model's own kind and target"):
            sample(make_model("pointer"), items, process=Riffle((0, 2)))
        with pytest.raises(ValueError, match="process must be of the model's own kind and target"):
            sample(make_model("pointer"), items, process=Bridge(target="previous"))


def test_items_are_embedded_once(make_model):
    model, items, seen = make_model("pointer"), torch.randn(7, 4, 2), []
    model.embedder.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    sample(model, items, num_samples=3)
    assert len(seen) == 1
    sample(model, items, num_samples=3, engine=Engine(max_memory=40_000))
    assert len(seen) > 2 and torch.equal(torch.cat(seen[1:]), items)


def test_one_instance_and_numpy(make_model):
    torch.manual_seed(8)
    model, items = make_model("pointer"), torch.randn(4, 6, 2)
    batch = sample(model, items, num_samples=3, seed=0)
    single = sample(model, items[0], num_samples=3, seed=0)
    assert single.order.shape == (3, 6) and torch.equal(single.order, batch.order[0])
    assert torch.equal(batch[2].order, batch.order[2]) and batch[2].log_prob.shape == (3,)
    mask = np.ones((4, 6), dtype=bool)
    arrays = sample(model, items.double().numpy(), mask=mask, num_samples=3, record=True, seed=0)
    for field in (arrays.order, arrays.log_prob, arrays[1].margin, arrays.mask, arrays.trajectory[0].soft_ranks):
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
    one, other = (sample(model, torch.arange(6), num_samples=2, seed=0) for _ in range(2))
    assert one.order.shape == (2, 6) and torch.equal(one.log_prob, other.log_prob)
    assert model.training and not model.encoder_norm.training


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
        ({"items": torch.zeros(2, 4, 2, dtype=torch.bool)}, "items must hold real numbers, got bool"),
        ({"items": ITEMS.index_fill(1, torch.tensor(3), torch.nan)}, "items must be finite, got NaN .* row 0, item 3"),
        ({"items": torch.zeros(2, 9, 2)}, "this linear head takes up to 8 items, got 9"),
        ({"mask": torch.ones(2, 4)}, r"mask must be a \(2, 4\) tensor of bool, got \(2, 4\) float32; True = real"),
        ({"mask": torch.ones(2, 5).bool()}, r"mask must be a \(2, 4\) tensor of bool, got \(2, 5\) bool; True = real"),
        ({"mask": torch.tensor([[True] * 4, [False] * 4])}, "mask must leave at least one real item per row, row 1"),
        ({"mask": True}, "mask must be a tensor or a numpy array, got bool"),
        ({"num_samples": 0}, "num_samples must be an integer of at least 1, got 0"),
        ({"first_sample": -1}, "first_sample must be an integer of at least 0, got -1"),
        ({"steps": 0}, "sampling_steps must be an integer of at least 1, got 0"),
        ({"decode": "best"}, r"decode must be 'sample', 'greedy', Draw\(\.\.\.\), .* got 'best'"),
        ({"num_samples": True}, "num_samples must be an integer of at least 1, got True"),
        ({"seed": 0.5}, "seed must be a 64-bit integer, got 0.5"),
        ({"seed": 2**63}, "seed must be a 64-bit integer, got 9223372036854775808"),
        ({"seed": True}, "seed must be a 64-bit integer, got True"),
        (
            {"constraints": Constraints(before=[(0, 1)]), "decode": Beam(2)},
            'constraints need decode="sample" or "greedy"',
        ),
    ),
)
def test_errors(make_model, change, message):
    model = make_model("linear", max_items=8)
    arguments = {"items": ITEMS, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        sample(model, arguments.pop("items"), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bridge(noise_scale=-0.5), "noise_scale must be at least 0 and finite, got -0.5"),
        (lambda: Bridge(noise_scale=math.nan), "noise_scale must be at least 0 and finite, got nan"),
        (lambda: Bridge(prior="normal"), "prior must be one of 'uniform', 'gaussian', got 'normal'"),
        (lambda: Bridge(carry="paper"), "carry must be one of 'exact', 'reflected', got 'paper'"),
        (lambda: Draw(-1.0), "temperature must be positive and finite, got -1.0"),
        (lambda: Draw(0), "temperature must be positive and finite, got 0"),
        (lambda: Engine(max_memory=0), "max_memory must be positive and finite, got 0"),
    ],
)
def test_errors_of_what_is_handed_over(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_option(make_model):
    with pytest.raises(TypeError, match="num_sample"):
        sample(make_model("pointer"), ITEMS, num_sample=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_a_half_precision_model_runs_in_float32(make_model, head, dtype):
    """Its weights are rounded, nothing else is: a bfloat16 grid would have ties."""
    items, model = torch.randn(2, 7, 2), make_model(head).to(dtype)
    wanted = sample(make_model(head).to(dtype).float(), items, num_samples=3, seed=1)
    for given in (items, items.to(dtype)):
        samples = sample(model, given, num_samples=3, seed=1)
        assert samples.soft_ranks.dtype == samples.log_prob.dtype == torch.float32
        assert next(model.parameters()).dtype == dtype
        if given is items:
            assert torch.equal(samples.order, wanted.order) and torch.equal(samples.log_prob, wanted.log_prob)


def test_autocast_changes_nothing(make_model):
    items, model = torch.randn(2, 7, 2), make_model("pointer")
    wanted = sample(model, items, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        samples = sample(model, items, seed=1)
        uncompiled = sample(model, items, seed=1, engine=Engine(compiled=False))
    assert torch.equal(samples.order, wanted.order) and torch.equal(samples.log_prob, wanted.log_prob)
    assert torch.equal(uncompiled.order, wanted.order)


def test_samples_in_inference_mode_leave_training_possible(make_model):
    """What sampling keeps, the position tables, must not be tensors that autograd refuses."""
    model, items = make_model("pointer"), torch.randn(2, 11, 2)
    with torch.inference_mode():
        order = sample(model, items).order[:, 0]
    model.log_prob(items, 0.4, order.clone()).total.sum().backward()
    assert model.start.grad.isfinite().all()


def test_threads_may_sample_from_one_model_that_is_in_training_mode():
    """The first thread to end switched dropout on under the others."""
    model = tiny_model(dropout=0.5).train()
    items = torch.rand(4, 6, 1)
    wanted = [sample(model, items, num_samples=8, seed=seed).order for seed in range(6)]
    assert model.training
    for _ in range(3):
        with ThreadPoolExecutor(6) as threads:
            drawn = list(threads.map(lambda seed: sample(model, items, num_samples=8, seed=seed).order, range(6)))
        assert all(torch.equal(*pair) for pair in zip(drawn, wanted, strict=True))
        assert all(module.training for module in model.modules())


def test_more_samples_than_memory_holds_are_refused():
    with pytest.raises(ValueError, match=r"num_samples must be an integer of at most \d+, got 1000000000000"):
        sample(tiny_model(), torch.rand(2, 3, 1), num_samples=10**12)
    with pytest.raises(TypeError, match="model must be OrderModel, got NoneType"):
        sample(None, torch.rand(2, 3, 1))
