"""Everything that a person with a GPU would call, on the tests' device: the CPU's answers, and what the host waits for.

The device is a GPU where there is one, else tensors that claim to be on one (`testing.fake_cuda`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import pytest
import torch
from synthetic_tasks import SortNumbers
from testing.devices import Device
from testing.engines import ENGINES
from testing.fake_cuda import FakeCuda
from torch import Tensor

from softrank_ext import (
    Beam,
    Constraints,
    Engine,
    Rebuild,
    Riffle,
    SoftRankModel,
    TrainConfig,
    improve,
    log_likelihood,
    noise,
    ops,
    sample,
)
from softrank_ext.batch import Batch
from softrank_ext.cli import selftest
from softrank_ext.laws import GeneralizedPlackettLuce, Mallows, OrderDistribution, PlackettLuce
from softrank_ext.metrics import tour_length
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.sampling import IncrementalDecoder
from softrank_ext.training.objectives import DenoisingLoss
from softrank_ext.training.run_folder import Run

HEADS = ("pointer", "linear", "gpl", "pl")
MakeModel = Callable[..., SoftRankModel]


def items_of(B: int = 4, N: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(B, N, 2, dtype=dtype, generator=torch.Generator().manual_seed(3))


def test_mixed_devices_are_refused(device: Device) -> None:
    """Negative control: the stand-in notices a tensor that was left on the CPU, and a wait."""
    here = device.put(torch.rand(3))
    with pytest.raises(RuntimeError, match="cuda:0"):
        here + torch.rand(3)
    with device.counted() as counts:
        assert float(here.sum()) > 0
    assert sum(counts.waits.values()) == 1


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_row_ops(device: Device, dtype: torch.dtype) -> None:
    z = 3 * torch.randn(4, 7, dtype=dtype, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True] * 5 + [False] * 2] * 4)
    for own in (None, mask):
        there = None if own is None else device.put(own)
        with device.counted() as counts:
            read = torch.ops.softrank_ext.read_order(device.put(z), there)
            lifted = torch.ops.softrank_ext.lift_order(read[1], read[2], there, dtype)
        assert sum(counts.waits.values()) == 0
        expected = ops.read_order(z, own)
        for actual, wanted in zip(
            (*read, *lifted), (*expected, *ops.lift_order(*expected[1:], own, dtype=dtype)), strict=True
        ):
            assert torch.equal(device.back(actual), wanted)
    order, ranks = device.put(expected[1]), device.put(expected[2])
    assert torch.equal(device.back(ranks_of(order)), expected[2])
    assert torch.equal(device.back(compose(order, ranks)), compose(expected[1], expected[2]))
    assert torch.equal(device.back(arrange(device.put(z), order)), arrange(z, expected[1]))


def test_noise(device: Device) -> None:
    samples = torch.tensor([0, 5, 2**40])
    for draw in (noise.uniform, noise.normal):
        for dtype in (torch.float32, torch.float64):
            with device.counted() as counts:
                drawn = draw(7, device.put(samples), 3, 5, stream=2, dtype=dtype)
            assert sum(counts.waits.values()) == 0
            assert torch.equal(device.back(drawn), draw(7, samples, 3, 5, stream=2, dtype=dtype))


def test_pick_reports_what_a_kernel_cannot(device: Device) -> None:
    scores, remaining = torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool)
    choice, _ = ops.pick(device.put(scores), device.put(remaining), greedy=True)
    assert device.back(choice).tolist() == [0, 0, 0]
    scores[1, 2] = math.nan
    with pytest.raises(RuntimeError, match=r"^scores must not be NaN where remaining is True, got NaN in row 1$"):
        ops.pick(device.put(scores), device.put(remaining), greedy=True)


def test_nan_weights_are_an_error(device: Device, make_model: MakeModel) -> None:
    model = make_model("pointer")
    with torch.no_grad():
        model.decoder_norm.weight[0] = math.nan
    items = device.put(items_of(dtype=torch.float32))
    there = device.put(model)
    message = r"^scores must not be NaN for a real slot: memory, tokens or weights hold NaN or infinities$"
    with pytest.raises(RuntimeError, match=message):
        sample(there, items, seed=0)
    with pytest.raises(RuntimeError, match=message):
        there.decode(items, 0.5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("decode", ("sample", "greedy"))
def test_sample_waits_twice(device: Device, make_model: MakeModel, head: str, decode: str) -> None:
    """Once for its checks of the items, once for the flag that says whether a prediction failed."""
    items, mask = items_of(), torch.tensor([[True] * 6] * 3 + [[True, False, True, True, True, False]])
    for own in (None, mask):
        wanted = sample(make_model(head, torch.float64), items, mask=own, num_samples=3, decode=decode, seed=5)
        model = device.put(make_model(head, torch.float64))
        there = device.put(items), None if own is None else device.put(own)
        with device.counted() as counts:
            samples = sample(model, there[0], mask=there[1], num_samples=3, decode=decode, seed=5)
        assert sum(counts.waits.values()) <= 2, counts.waits
        assert torch.equal(device.back(samples.order), wanted.order)
        assert torch.equal(device.back(samples.ranks), wanted.ranks)
        torch.testing.assert_close(device.back(samples.log_prob), wanted.log_prob, atol=1e-10, rtol=1e-10)


def test_other_processes_wait_no_more(device: Device, make_model: MakeModel) -> None:
    for process in (Riffle((0, 2, 4, 6)), None):
        options = {} if process is None else {"process": process}
        wanted = sample(make_model("pointer", torch.float64, **options), items_of(), seed=5, record=True)
        model, items = device.put(make_model("pointer", torch.float64, **options)), device.put(items_of())
        with device.counted() as counts:
            samples = sample(model, items, seed=5, record=True)
        assert sum(counts.waits.values()) <= 2, counts.waits
        assert torch.equal(device.back(samples.order), wanted.order)


def test_a_prediction_is_two_launches_after_the_encoder(device: Device, make_model: MakeModel) -> None:
    """Those of the decoder do not depend on the number of places; those of the encoder are torch's own."""
    model = device.put(make_model("pointer"))
    launches = []
    for N in (4, 12):
        embedded = model.embed(device.put(items_of(N=N, dtype=torch.float32)))
        weights = model.packed_weights()
        model.decode_embedded(embedded, 0.5, packed_weights=weights)  # makes tables that are kept
        with device.counted() as counts:
            model.decode_embedded(embedded, 0.5, packed_weights=weights)
        assert sum(counts.waits.values()) == 0, counts.waits
        launches.append(dict(counts.launches))
    assert launches[0] == launches[1]
    if launches[0]:
        assert launches[0]["decode_order"] == 2
        assert sum(launches[0].values()) <= 60  # of two encoder layers


@pytest.mark.parametrize("engine", ENGINES, ids=("kernel", "cached", "uncached"))
@pytest.mark.parametrize("head", HEADS)
def test_constraints_wait_once_per_place(device: Device, make_model: MakeModel, head: str, engine: Engine) -> None:
    """For the whole batch: no engine and no head has a wait per row."""
    rules = Constraints(before=[(0, 1), (4, 2)], forbidden=[(3, 0)])
    mask = torch.tensor([[True] * 6] * 3 + [[True] * 5 + [False]])
    places, steps = 6, 2
    for own in (None, mask):
        options: dict[str, Any] = {"constraints": rules, "num_samples": 2, "seed": 5, "steps": steps, "engine": engine}
        wanted = sample(make_model(head, torch.float64), items_of(), mask=own, **options)
        model, items = device.put(make_model(head, torch.float64)), device.put(items_of())
        there = None if own is None else device.put(own)
        with device.counted() as counts:
            samples = sample(model, items, mask=there, **options)
        assert torch.equal(device.back(samples.order), wanted.order)
        # Besides the places: the call's two, and copies of the rules to the GPU.
        assert sum(counts.waits.values()) <= steps * places + 4 + (own is not None), counts.waits


def test_constraints_that_leave_nothing(device: Device, make_model: MakeModel) -> None:
    """What the door would refuse, given to the ops themselves."""
    scores, mask = device.put(torch.zeros(2, 3, 3)), device.put(torch.ones(2, 3, dtype=torch.bool))
    nothing = ops.Choices(allowed=device.put(torch.zeros(2, 3, 3, dtype=torch.bool)))
    with pytest.raises(RuntimeError, match="constraints must leave an order, they leave none"):
        ops.decode_scores(scores, mask, nothing)
    model = device.put(make_model("pointer", torch.float64))
    inputs = model.decoder_inputs(device.put(items_of(2, 3)), 0.5)
    with pytest.raises(RuntimeError, match="constraints must leave an order, they leave none"):
        ops.decode_order_reference(model.packed_weights().decoder, inputs, nothing)


def test_the_reverse_process_never_waits(device: Device, make_model: MakeModel) -> None:
    """Nor does it copy a number to the GPU: a CUDA graph can hold all of it."""
    for head in HEADS:
        model, items = device.put(make_model(head, torch.float64)), device.put(items_of())
        wanted = sample(make_model(head, torch.float64), items_of(), seed=5).order[:, 0]
        drawn_by = selftest.reverse_of(model, items, 5)
        drawn_by()  # what is made once is made now
        with torch.no_grad(), device.counted() as counts:
            order = drawn_by()
        assert sum(counts.waits.values()) == 0, counts.waits
        assert torch.equal(device.back(order), wanted)


def test_batches_follow_the_free_memory(device: Device, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model, items = device.put(make_model("pointer", torch.float64)), device.put(items_of(8))
    wanted = sample(make_model("pointer", torch.float64), items_of(8), seed=5).order
    rows: list[int] = []
    decode = SoftRankModel.decode_embedded
    monkeypatch.setattr(
        SoftRankModel, "decode_embedded", lambda self, x, *a, **k: (rows.append(len(x)), decode(self, x, *a, **k))[1]
    )
    for free, batches in ((2**33, {8}), (6 * model.bytes_per_sample(6) + 1, {3, 2})):
        rows.clear()
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _=None, free=free: (free, 2**34))
        assert torch.equal(device.back(sample(model, items, seed=5).order), wanted)
        assert set(rows) == batches


def test_drafts_change_nothing(device: Device, make_model: MakeModel) -> None:
    model, items = device.put(make_model("pointer")), device.put(items_of(dtype=torch.float32))
    drafted, plain = (sample(model, items, seed=1, engine=Engine(speculative=choice)) for choice in (True, False))
    assert torch.equal(device.back(drafted.order), device.back(plain.order))


def test_decode_and_score(device: Device, make_model: MakeModel) -> None:
    model, items = make_model("pointer", torch.float64), items_of()
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    wanted = model.decode(items, 0.5, forced_order=order)
    there = device.put(make_model("pointer", torch.float64))
    decoded = there.decode(device.put(items), 0.5, forced_order=device.put(order), draft=device.put(order))
    torch.testing.assert_close(device.back(decoded.log_probs), wanted.log_probs, atol=1e-10, rtol=1e-10)
    with torch.no_grad():
        log_prob = there.log_prob(device.put(items), 0.5, device.put(order)).total
    torch.testing.assert_close(device.back(log_prob), wanted.log_probs.sum(1), atol=1e-10, rtol=1e-10)


def test_beam(device: Device, make_model: MakeModel) -> None:
    """The host waits at every place, but never for single rows."""
    for B in (2, 4):
        wanted = sample(make_model("pointer", torch.float64), items_of(B), decode=Beam(3), steps=2, seed=5)
        model, items = device.put(make_model("pointer", torch.float64)), device.put(items_of(B))
        with device.counted() as counts:
            samples = sample(model, items, decode=Beam(3), steps=2, seed=5)
        assert torch.equal(device.back(samples.order), wanted.order)
        assert sum(counts.waits.values()) <= 2 * 6 * 9 + 2, counts.waits


def test_incremental(device: Device, make_model: MakeModel) -> None:
    items, picks = items_of(), torch.tensor([2, 0, 5, 1])

    def scores(model: SoftRankModel, put: Callable[[Tensor], Tensor]) -> Tensor:
        decoder = IncrementalDecoder(model, put(items), 0.5)
        decoder.step(put(picks))
        decoder.truncate(0)
        decoder.select(put(torch.tensor([1, 1, 2, 3])))
        return decoder.step(put(picks))

    wanted = scores(make_model("pointer", torch.float64), lambda tensor: tensor)
    model = device.put(make_model("pointer", torch.float64))
    with device.counted() as counts:
        actual = scores(model, device.put)
    assert sum(counts.waits.values()) <= 2 * 7 + 2, counts.waits  # two steps, truncate, select
    torch.testing.assert_close(device.back(actual), wanted, atol=1e-10, rtol=1e-10)


def test_a_start_and_improve(device: Device, make_model: MakeModel) -> None:
    """Draws that begin with orders, and rounds of them: waits do not depend on the number of rows."""
    waits = []
    for B in (2, 4):
        order = torch.arange(6).expand(B, 6).clone()
        noised = torch.tensor([[False, True, True, False, True, True]] * B)
        here = make_model("pointer", torch.float64, partial=True)
        there, items = device.put(make_model("pointer", torch.float64, partial=True)), device.put(items_of(B))
        start = Rebuild(order, noised, 0.5)
        wanted = sample(here, items_of(B), start=start, steps=2, seed=5).order
        moved = Rebuild(device.put(order), device.put(noised), 0.5)
        with device.counted() as counts:
            drawn = sample(there, items, start=moved, steps=2, seed=5).order
            found = improve(there, items, tour_length, rounds=2, seed=1)
        assert torch.equal(device.back(drawn), wanted)
        assert torch.equal(device.back(found.order), improve(here, items_of(B), tour_length, rounds=2, seed=1).order)
        waits.append(sum(counts.waits.values()))
    assert waits[0] == waits[1] <= 60, counts.waits


def test_likelihood(device: Device, make_model: MakeModel) -> None:
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    wanted = log_likelihood(make_model("pointer", torch.float64), items_of(), order, num_samples=4, seed=3)
    model = device.put(make_model("pointer", torch.float64))
    estimate = log_likelihood(model, device.put(items_of()), device.put(order), num_samples=4, seed=3)
    torch.testing.assert_close(device.back(estimate.log_prob), wanted.log_prob, atol=1e-9, rtol=1e-9)


def test_distribution(device: Device, make_model: MakeModel) -> None:
    uniform = torch.rand(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    law = make_model("pointer", torch.float64).distribution(items_of(), 0.5)
    there = device.put(make_model("pointer", torch.float64)).distribution(device.put(items_of()), 0.5)
    order = there.from_uniform(device.put(uniform))
    assert torch.equal(device.back(order), law.from_uniform(uniform))
    torch.testing.assert_close(
        device.back(there.log_prob(order)), law.log_prob(device.back(order)), atol=1e-9, rtol=1e-9
    )


def test_laws(device: Device) -> None:
    """Draws need no wait; log-probabilities one, for the check of the orders."""
    scores, generator = torch.randn(3, 5, dtype=torch.float64), torch.Generator().manual_seed(1)
    stagewise = torch.randn(3, 5, 5, dtype=torch.float64, generator=generator)
    center = torch.tensor([2, 0, 1, 4, 3])
    made: tuple[Callable[[Callable[[Tensor], Tensor]], OrderDistribution], ...] = (
        lambda put: PlackettLuce(put(scores)),
        lambda put: GeneralizedPlackettLuce(put(stagewise)),
        lambda put: Mallows(put(center), 0.7),
    )
    for make in made:
        law = make(device.put)
        order = law.sample(torch.Size((4,)))
        with device.counted() as counts:
            log_prob = law.log_prob(order)
        assert sum(counts.waits.values()) <= 1, counts.waits
        wanted = make(lambda tensor: tensor).log_prob(device.back(order))
        torch.testing.assert_close(device.back(log_prob), wanted, atol=1e-12, rtol=1e-12)


class GivenGradients(NamedTuple):
    """Stands in for a loss: backward gives the parameters gradients that are known."""

    model: SoftRankModel
    gradients: list[Tensor | None]

    def backward(self) -> None:
        for parameter, gradient in zip(self.model.parameters(), self.gradients, strict=True):
            parameter.grad = gradient


@pytest.mark.parametrize("optimizer", ("adamw", "muon"))
@pytest.mark.parametrize("head", ("pointer", "gpl"))
def test_train(device: Device, make_model: MakeModel, head: str, optimizer: str) -> None:
    """Loss and updates. A backward pass needs a device that is one: elsewhere gradients of the CPU are given."""
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(4)])
    config = TrainConfig(iterations=2, batch_size=4, optimizer=optimizer, ema=0.9, clip=1e3)

    def updated(
        model: SoftRankModel, put: Callable[[Tensor], Tensor], given: list[list[Tensor | None]]
    ) -> list[Tensor]:
        loss_module = DenoisingLoss(model.train())
        run = Run(model, SortNumbers(6), config, next(model.parameters()).device, loss_module)
        seen = []
        for iteration in range(2):
            with device.counted() as counts:
                loss, _ = loss_module(Batch(put(items_of()), put(order)), 0, put(torch.arange(4) + 4 * iteration))
                if isinstance(loss, FakeCuda):
                    gradients = [None if gradient is None else put(gradient) for gradient in given[iteration]]
                    norm = run.update(cast(Tensor, GivenGradients(model, gradients)))
                else:
                    norm = run.update(loss)
                    given.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            assert sum(counts.waits.values()) <= 6, counts.waits  # checks of what was drawn
            seen += [loss.detach(), norm.detach()]
        return [*seen, *(p.detach() for p in model.parameters()), *(p.detach() for p in run.average.parameters())]

    gradients: list[list[Tensor | None]] = []
    wanted = updated(make_model(head, torch.float64), lambda tensor: tensor, gradients)
    for actual, expected in zip(
        updated(device.put(make_model(head, torch.float64)), device.put, gradients), wanted, strict=True
    ):
        torch.testing.assert_close(device.back(actual), expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_half_precision(device: Device, make_model: MakeModel, dtype: torch.dtype) -> None:
    """`sample` runs in float32, whatever the model and autocast say."""
    wanted = sample(make_model("pointer").to(dtype).float(), items_of(dtype=torch.float32), seed=5)
    there = device.put(make_model("pointer").to(dtype)), device.put(items_of(dtype=torch.float32))
    with torch.autocast("cuda", dtype):
        samples = sample(*there, seed=5)
    assert samples.soft_ranks.dtype == samples.log_prob.dtype == torch.float32
    torch.testing.assert_close(device.back(samples.log_prob), wanted.log_prob, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ("noise", "ops on rows", "decode_order", "decode_order in any batch", "sample", "NaN"))
def test_selftest(device: Device, name: str) -> None:
    """Its checks run as they would on a GPU."""
    assert selftest.CHECKS[name](torch.device("cuda", 0))


def test_cpu_items_and_numpy(device: Device, make_model: MakeModel) -> None:
    model = device.put(make_model("pointer", torch.float64))
    wanted = sample(make_model("pointer", torch.float64), items_of(), seed=5).order
    with device.counted() as counts:
        samples = sample(model, items_of(), seed=5)
    assert sum(counts.waits.values()) <= 2, counts.waits
    assert torch.equal(device.back(samples.order), wanted)
    if isinstance(samples.order, FakeCuda):
        return  # numpy() of the stand-in's tensors is numpy() of what `cpu` gives
    assert (sample(model, items_of().numpy(), seed=5).order == wanted.numpy()).all()
