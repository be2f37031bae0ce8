"""`softrank selftest`: whether a device agrees with the CPU in float64, check by check, and one line at the end."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import build_info, noise, ops
from softrank_ext.choices import Draw, Engine
from softrank_ext.cli.options import AsJson, Device, tell
from softrank_ext.constraints import Constraints, settings_of
from softrank_ext.model import SoftRankConfig, SoftRankModel
from softrank_ext.sampling import conditions_of, sample
from softrank_ext.sampling.reverse import Call, Rows, reverse

# What the library adds for CUDA tensors.
_CUDA_OPS = ("reflect", "decode_chamber", "pick", "random_uniform", "random_normal", "pack_decoder", "decode_order")


class Skipped(Exception):
    """A check that does not apply here, and why."""


@dataclass(frozen=True)
class SelfTest:
    """Compare a device with the CPU in float64: every op, the noise bit by bit, whole samples. Takes a minute."""

    device: Device = None
    as_json: AsJson = False

    def run(self, command: str) -> int:
        """Run all checks; returns 0 if none failed."""
        device = torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError("device must be one that is there, got cuda: torch sees no GPU")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        checks_left = tqdm(CHECKS.items(), unit="check", delay=2, leave=False, disable=not sys.stderr.isatty())
        if self.as_json:
            found = {name: _outcome(check, device) for name, check in checks_left}
            is_passed = all(how != "failed" for how, _ in found.values())
            checks = {name: {"outcome": how, "said": said} for name, (how, said) in found.items()}
            tell(True, {"device": str(device), "passed": is_passed, "checks": checks}, "")
            return 0 if is_passed else 1
        print(_described(device))
        failed = [name for name, check in checks_left if not _passes(name, check, device)]
        if device.type == "cuda":
            print("Next, with the CUDA toolkit's compute-sanitizer:")
            for tool in ("memcheck", "racecheck", "initcheck"):
                print(f"  compute-sanitizer --tool {tool} {sys.executable} -m softrank_ext selftest --device {device}")
        print(f"FAILED: {', '.join(failed)}" if failed else "PASS")
        return 1 if failed else 0


def _described(device: torch.device) -> str:
    info = build_info()
    said = [f"softrank_ext {info['version']}, torch {info['torch_running']}, kernels: {info['kernels']}"]
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        said.append(
            f"{gpu.name}, compute capability {gpu.major}.{gpu.minor}, {gpu.multi_processor_count} multiprocessors, "
            f"{gpu.total_memory / 2**30:.0f} GiB; torch for CUDA {torch.version.cuda}"
        )
        said.append(
            f"CUDA library: {'loaded' if info.get('cuda_loaded') else 'not loaded'}, "
            f"compiled for {info.get('cuda_architectures') or 'nothing'}"
        )
    return "\n".join(said)


def _outcome(check: Callable[[torch.device], str], device: torch.device) -> tuple[str, str]:
    """How a check went, passed, skipped or failed, and what it says."""
    try:
        return "passed", check(device)
    except Skipped as reason:
        return "skipped", str(reason)
    except Exception as error:  # whatever a device comes up with is a result of this command
        return "failed", f"{type(error).__name__}: {error}"


def _passes(name: str, check: Callable[[torch.device], str], device: torch.device) -> bool:
    """Run a check and say how it went."""
    how, said = _outcome(check, device)
    mark = {"passed": "ok  ", "skipped": "--  ", "failed": "FAILED"}[how]
    tqdm.write(f"{name:<28} {mark} {said}".rstrip())
    return how != "failed"


def _wanted(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)


def _random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _model(head: Any = "pointer", dtype: torch.dtype = torch.float64, **sizes: Any) -> SoftRankModel:
    """A small model whose random weights give laws far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        options: dict[str, Any] = {"d_model": 64, "feed_forward": 96, "heads": 4, "encoder_layers": 2} | sizes
        model = SoftRankModel(
            SoftRankConfig(
                head=head, decoder_layers=0 if head in ("gpl", "pl") else 2, max_items=64 if head == "linear" else None,
                embedder={"kind": "linear", "features": 2}, **options,
            )
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def _items(B: int = 5, N: int = 9, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same items in any dtype."""
    return torch.rand(B, N, 2, dtype=torch.float32, generator=torch.Generator().manual_seed(3)).to(dtype)


def _mask(B: int = 5, N: int = 9) -> Tensor:
    mask = torch.rand(B, N, generator=torch.Generator().manual_seed(4)) < 0.7
    mask[:, 1] = True
    return mask


def _library(device: torch.device) -> str:
    if device.type != "cuda":
        raise Skipped("for GPUs")
    for name in _CUDA_OPS:
        is_there = torch._C._dispatch_has_kernel_for_dispatch_key(f"softrank_ext::{name}", "CUDA")
        _wanted(is_there, f"{name} has no CUDA kernel: see `softrank info`, the package was built without CUDA")
    return f"{len(_CUDA_OPS)} kernels"


def _noise(device: torch.device) -> str:
    samples = torch.tensor([0, 1, 2**40 + 3, -7])
    for draw in (noise.uniform, noise.normal):
        for dtype in (torch.float32, torch.float64):
            for count in (1, 7, 1000):
                here = draw(-5, samples, 3, count, stream=2, dtype=dtype)
                there = draw(-5, samples.to(device), 3, count, stream=2, dtype=dtype).cpu()
                _wanted(torch.equal(here, there), f"{draw.__name__} in {dtype} has other bits than on the CPU")
    return "bit by bit"


def _row_ops(device: torch.device) -> str:
    for N in (1, 2, 33, 300, 1100):
        for dtype in (torch.float32, torch.float64):
            z, mask = 3 * _random(4, N, dtype=dtype), _mask(4, max(N, 2))[:, :N]
            strided = _random(4, 2 * N, dtype=dtype).to(device)[:, ::2]
            _same(ops.reflect(strided), ops.reflect(strided.cpu()), "reflect of strided numbers")
            for own in (None, mask):
                there = None if own is None else own.to(device)
                read = ops.read_order(z.to(device), there)
                wanted = ops.read_order(z, own)
                for actual, expected in zip(read, wanted, strict=True):
                    _same(actual, expected, f"read_order at N = {N}")
                lifted = ops.lift_order(*read[1:], there, dtype=dtype)
                wanted = ops.lift_order(*wanted[1:], own, dtype=dtype)
                for actual, expected in zip(lifted, wanted, strict=True):
                    _same(actual, expected, f"lift_order at N = {N}")
            remaining = torch.ones(4, N, dtype=torch.bool)
            choice, log_prob = ops.pick(z.to(device), remaining.to(device), greedy=True)
            expected_choice, expected_log_prob = ops.pick(z.double(), remaining, greedy=True)
            _same(choice, expected_choice, f"greedy pick at N = {N}")
            torch.testing.assert_close(log_prob.cpu().double(), expected_log_prob, atol=1e-4, rtol=1e-4)
    return "N up to 1,100, masks, strided inputs"


def _same(actual: Tensor, expected: Tensor, what: str) -> None:
    _wanted(torch.equal(actual.cpu(), expected), f"{what} differs from the CPU")


def _decode(device: torch.device) -> str:
    forced = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(5)])
    uniform = torch.rand(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    items = _items().to(device)
    for head in ("pointer", "linear"):
        for norm_first in (True, False):
            here = _model(head, norm_first=norm_first)
            there = _model(head, norm_first=norm_first).to(device)
            for mask in (None, _mask()):
                drawn = here.decode(_items(), 0.5, mask, uniform=uniform)
                real = None if mask is None else mask.to(device)
                got = there.decode(items, 0.5, real, uniform=uniform.to(device), draft=drawn.order.to(device))
                _same(got.order, drawn.order, f"decode of a {head} model")
                torch.testing.assert_close(got.log_probs.cpu(), drawn.log_probs, atol=1e-9, rtol=1e-9)
            scored = there.decode(items, 0.5, forced_order=forced.to(device)).log_probs.cpu()
            expected = here.decode(_items(), 0.5, forced_order=forced).log_probs
            torch.testing.assert_close(scored, expected, atol=1e-9, rtol=1e-9)
    return "float64: masks, drafts, forced orders, both norms"


def _float32(device: torch.device) -> str:
    """The error of log-probabilities in float32 against float64, beside that of plain torch on this device."""
    errors = []
    order = torch.stack([torch.randperm(20, generator=torch.Generator().manual_seed(i)) for i in range(16)])
    exact = _model(d_model=128, feed_forward=512, heads=8).decode(_items(16, 20), 0.5, forced_order=order).log_probs
    model = _model(dtype=torch.float32, d_model=128, feed_forward=512, heads=8).to(device)
    for engine in (Engine(), Engine(compiled=False)):
        items = _items(16, 20, torch.float32).to(device)
        scored = model.decode(items, 0.5, forced_order=order.to(device), engine=engine).log_probs
        errors.append((scored.cpu().double() - exact).square().mean().sqrt().item())
    _wanted(
        errors[0] <= min(2 * errors[1], 1e-3), f"the kernel's error is {errors[0]:.1e}, plain torch's {errors[1]:.1e}"
    )
    return f"error {errors[0]:.1e}, plain torch {errors[1]:.1e}"


def _any_batch(device: torch.device) -> str:
    """Rows of the decoder have the same bits in any batch: with the inputs of the decoder given."""
    model = _model(dtype=torch.float32).to(device)
    inputs = model.decoder_inputs(_items(40, 9, torch.float32).to(device), 0.5)
    decoder = model.packed_weights().decoder
    whole = ops.decode_order(decoder, inputs)
    for rows in (slice(0, 1), slice(3, 10)):
        own = ops.DecoderInputs(*(x if x is inputs.places else x[rows].contiguous() for x in inputs))
        part = ops.decode_order(decoder, own)
        _wanted(torch.equal(part.log_probs, whole.log_probs[rows]), f"rows {rows} have other bits than in the batch")
    return "the same bits"


def _samples(device: torch.device) -> str:
    rules = Constraints(before=[(0, 3), (5, 1)], forbidden=[(2, 0)])
    for head in ("pointer", "linear", "gpl", "pl"):
        there = _model(head).to(device)
        for mask, constraints in ((None, None), (_mask(), None), (None, rules)):
            options: dict[str, Any] = {"constraints": constraints, "num_samples": 3, "seed": 5}
            wanted = sample(_model(head), _items(), mask=mask, **options)
            drawn = sample(there, _items(), mask=mask, **options)
            _same(drawn.order, wanted.order, f"sample of a {head} model")
    return "float64: the CPU's orders, with masks and constraints"


def _failure(device: torch.device) -> str:
    model = _model(dtype=torch.float32)
    with torch.no_grad():
        model.decoder_norm.weight[0] = torch.nan
    try:
        sample(model.to(device), _items(dtype=torch.float32), seed=0)
    except RuntimeError as error:
        _wanted("NaN" in str(error), f"a NaN weight is reported as: {error}")
    else:
        raise AssertionError("a NaN weight raises no error")
    _noise(device)  # the device still works
    return "NaN is an error, and the device works on"


def _stream(device: torch.device) -> str:
    if device.type != "cuda":
        raise Skipped("for GPUs")
    model, items = _model().to(device), _items().to(device)
    wanted = sample(model, items, seed=5).order
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        drawn = sample(model, items, seed=5).order
    torch.cuda.current_stream(device).wait_stream(stream)
    _same(drawn, wanted.cpu(), "sample on a side stream")
    return ""


def _second_gpu(device: torch.device) -> str:
    others = [torch.device("cuda", i) for i in range(torch.cuda.device_count()) if i != device.index]
    if device.type != "cuda" or not others:
        raise Skipped("there is no second GPU")
    wanted = sample(_model(), _items(), seed=5).order
    _same(sample(_model().to(others[0]), _items(), seed=5).order, wanted, f"sample on {others[0]}")
    return str(others[0])


def reverse_of(model: SoftRankModel, items: Tensor, seed: int) -> Callable[[], Tensor]:
    """The reverse process of a `sample` call, without its checks and its embedder; returns orders (B, N)."""
    process, device = model.process, items.device
    call = Call(
        model, process, Draw(), settings_of(None), Engine(), seed, False, model.packed_weights(), tqdm(disable=True)
    )  # fmt: skip
    numbers = torch.arange(len(items), device=device)
    conditions = conditions_of(None, model.fixed_start, (items.shape[0], items.shape[1]), None, device)
    with torch.no_grad():
        rows = Rows(model.embed(items), None, conditions.rows(numbers), numbers)
    return lambda: reverse(call, rows).order


def _graph(device: torch.device) -> str:
    """The whole reverse process, captured once and replayed."""
    if device.type != "cuda":
        raise Skipped("for GPUs")
    model, items = _model().to(device), _items().to(device)
    wanted = sample(model, items, seed=5).order
    drawn_by = reverse_of(model, items, 5)
    with torch.no_grad():
        drawn_by()  # what is made once is made now
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drawn = drawn_by()
        graph.replay()
    torch.cuda.synchronize(device)
    _same(drawn, wanted[:, 0].cpu(), "a replayed graph")
    return "the reverse process, captured and replayed"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "CUDA kernels": _library,
    "noise": _noise,
    "ops on rows": _row_ops,
    "decode_order": _decode,
    "decode_order in float32": _float32,
    "decode_order in any batch": _any_batch,
    "sample": _samples,
    "NaN": _failure,
    "side stream": _stream,
    "second GPU": _second_gpu,
    "CUDA graph": _graph,
}
