"""Everything that a person with a GPU would call, on the tests' device: the CPU's answers, and what the host waits for.

The device is a GPU where there is one, else tensors that claim to be on one (`testing.fake_cuda`).
"""

import math
from collections.abc import Callable

import pytest
import torch
from testing.devices import Device
from testing.fake_cuda import FakeCuda
from torch import Tensor

from softrank_ext import Beam, Constraints, Engine, Riffle, SoftRankModel, log_likelihood, noise, ops, sample
from softrank_ext.batch import Batch
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.sampling import IncrementalDecoder
from softrank_ext.training.objectives import DenoisingLoss

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


def test_constraints_wait_once_per_place(device: Device, make_model: MakeModel) -> None:
    rules = Constraints(before=[(0, 1), (4, 2)], forbidden=[(3, 0)])
    wanted = sample(make_model("pointer", torch.float64), items_of(), constraints=rules, num_samples=2, seed=5)
    model, items = device.put(make_model("pointer", torch.float64)), device.put(items_of())
    with device.counted() as counts:
        samples = sample(model, items, constraints=rules, num_samples=2, seed=5)
    assert torch.equal(device.back(samples.order), wanted.order)
    steps, places = 5, 6
    of_rules = sum(number for what, number in counts.waits.items() if what.startswith("rules"))
    assert of_rules <= steps * places
    assert sum(counts.waits.values()) - of_rules <= 4, (
        counts.waits
    )  # the call's two, and copies of the rules to the GPU


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
    wanted = sample(make_model("pointer", torch.float64), items_of(), decode=Beam(3), seed=5)
    model = device.put(make_model("pointer", torch.float64))
    assert torch.equal(device.back(sample(model, device.put(items_of()), decode=Beam(3), seed=5).order), wanted.order)


def test_incremental(device: Device, make_model: MakeModel) -> None:
    items, picks = items_of(), torch.tensor([2, 0, 5, 1])

    def scores(model: SoftRankModel, put: Callable[[Tensor], Tensor]) -> Tensor:
        decoder = IncrementalDecoder(model, put(items), 0.5)
        decoder.step(put(picks))
        decoder.truncate(0)
        return decoder.step(put(picks))

    wanted = scores(make_model("pointer", torch.float64), lambda tensor: tensor)
    actual = scores(device.put(make_model("pointer", torch.float64)), device.put)
    torch.testing.assert_close(device.back(actual), wanted, atol=1e-10, rtol=1e-10)


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


@pytest.mark.parametrize("head", ("pointer", "gpl"))
def test_train(device: Device, make_model: MakeModel, head: str) -> None:
    """The loss, and on a real GPU its gradients."""
    order = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in range(4)])

    def gradients(model: SoftRankModel, put: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        model.train()
        loss, _ = DenoisingLoss(model)(Batch(put(items_of()), put(order)), 0, put(torch.arange(4)))
        if not isinstance(loss, FakeCuda):  # a backward pass needs a device that is one
            loss.backward()
        return loss.detach(), [parameter.grad for parameter in model.parameters()]

    wanted, wanted_gradients = gradients(make_model(head, torch.float64), lambda tensor: tensor)
    loss, made = gradients(device.put(make_model(head, torch.float64)), device.put)
    torch.testing.assert_close(device.back(loss), wanted, atol=1e-10, rtol=1e-10)
    for gradient, expected in zip(made, wanted_gradients, strict=True):
        if gradient is not None and expected is not None:
            torch.testing.assert_close(device.back(gradient), expected, atol=1e-9, rtol=1e-9)


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
