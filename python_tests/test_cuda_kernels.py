"""The CUDA kernels, run on the host: one fiber per thread, real barriers, against the reference.

This shows their logic, not speed, and not what a GPU does. Where the CUDA library was compiled, it must also be loaded.
"""

import ctypes
import math

import pytest
import torch
from testing.decoder_on_host import KERNELS as SOURCES
from testing.decoder_on_host import compiled_for_host
from torch import Tensor

import softrank_ext
from softrank_ext import ops

KERNELS = SOURCES / "row_kernels.cuh"

CUDA_OPS = ("reflect", "decode_chamber", "pick", "random_uniform", "random_normal", "pack_decoder", "decode_order")
DTYPES = (torch.float32, torch.float64)
# A block has 32 to 256 threads: rows shorter than it, as long, longer, and with an uneven last tile.
SHAPES = ((0, 5), (1, 1), (3, 2), (4, 31), (2, 32), (3, 33), (2, 256), (2, 257), (2, 1100))
POISON = 0x55
GUARD = 64  # bytes in front of and behind each output that must not change


class Outputs:
    """Output arrays between guard bytes, all bytes poisoned."""

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []

    def new(self, *shape: int, dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        buffer = torch.full((size + 2 * GUARD,), POISON, dtype=torch.uint8)
        self._buffers.append(buffer)
        return buffer[GUARD : GUARD + size].view(dtype).view(shape)

    def check_guards(self) -> None:
        for buffer in self._buffers:
            assert (buffer[:GUARD] == POISON).all() and (buffer[-GUARD:] == POISON).all(), "written out of bounds"


class HostKernels:
    """The kernels with the signatures of the ops."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def _run(self, name: str, dtype: torch.dtype, outputs: Outputs, *arguments: object) -> None:
        pointers = [
            ctypes.c_void_p(None if argument is None else argument.data_ptr())
            if argument is None or isinstance(argument, Tensor)
            else argument
            for argument in arguments
        ]
        outcome = getattr(self.library, f"{name}_{str(dtype).removeprefix('torch.')}")(*pointers)
        outputs.check_guards()
        if outcome != 0:
            raise RuntimeError({1: "trapped", 2: "diverged"}[outcome])

    def reflect(self, x: Tensor) -> Tensor:
        outputs = Outputs()
        out = outputs.new(*x.shape, dtype=x.dtype)
        self._run("reflect", x.dtype, outputs, x, out, ctypes.c_int64(x.numel()))
        return out

    def decode_chamber(self, soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = Outputs()
        order, ranks = (outputs.new(*soft_ranks.shape, dtype=torch.int64) for _ in range(2))
        sizes = map(ctypes.c_int64, soft_ranks.shape)
        self._run("decode_chamber", soft_ranks.dtype, outputs, soft_ranks, mask, *sizes, order, ranks)
        return order, ranks

    def pick(self, scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = Outputs()
        choice = outputs.new(scores.shape[0], dtype=torch.int64)
        log_prob = outputs.new(scores.shape[0], dtype=scores.dtype)
        weights = outputs.new(*scores.shape, dtype=scores.dtype)
        sizes = map(ctypes.c_int64, scores.shape)
        self._run("pick", scores.dtype, outputs, scores, remaining, uniform, *sizes, choice, log_prob, weights)
        return choice, log_prob

    def random(
        self, is_normal: bool, samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype
    ) -> Tensor:
        outputs = Outputs()
        out = outputs.new(samples.shape[0], count, dtype=dtype)
        key = ctypes.c_uint64(seed % 2**64), ctypes.c_uint32(step | stream << 24)
        sizes = ctypes.c_int64(samples.shape[0]), ctypes.c_int64(count)
        self._run("random", dtype, outputs, ctypes.c_bool(is_normal), samples, *key, *sizes, out)
        return out


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    library = compiled_for_host("kernels_on_host.cpp", tmp_path_factory.mktemp("cuda_on_host"), "-ffp-contract=off")
    return HostKernels(ctypes.CDLL(str(library)))


def random_of(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def assert_same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1025])
def test_reflect_equals_reference(kernels: HostKernels, dtype: torch.dtype, n: int) -> None:
    x = 5 * torch.randn(n, dtype=dtype, generator=random_of(n))
    special = torch.tensor(
        [0.0, -0.0, 1, -1, 2, 1.5, -3.25, 1e9 + 1, -1e30, math.inf, -math.inf, math.nan], dtype=dtype
    )
    x[: len(special)] = special[:n]
    assert_same(kernels.reflect(x), ops.reflect_reference(x))


def soft_ranks_with_ties(rows: int, n: int, dtype: torch.dtype) -> Tensor:
    """About two items per value, with 0 beside -0 and infinities."""
    values = torch.randint(0, n // 2 + 1, (rows, n), generator=random_of(rows, n)).to(dtype) / max(n, 1)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, -0.0, 0.0], dtype=dtype)
    places = torch.randint(0, n, (6,), generator=random_of(n))
    values[:, places] = special
    return values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("is_masked", [False, True])
def test_decode_chamber_equals_reference(
    kernels: HostKernels, dtype: torch.dtype, shape: tuple[int, int], is_masked: bool
) -> None:
    soft_ranks = soft_ranks_with_ties(*shape, dtype)
    mask = torch.rand(shape, generator=random_of(*shape)) < 0.7 if is_masked else None
    if mask is not None:
        soft_ranks[~mask] = math.nan  # what padding holds has no effect
    expected = ops.decode_chamber_reference(soft_ranks.nan_to_num(0.0, math.inf, -math.inf), mask)
    assert_same(kernels.decode_chamber(soft_ranks, mask), expected)


def test_decode_chamber_by_hand(kernels: HostKernels) -> None:
    order, ranks = kernels.decode_chamber(torch.tensor([[0.9, 0.1, 0.5, 0.3]]), None)
    assert (order.tolist(), ranks.tolist()) == ([[1, 3, 2, 0]], [[3, 0, 2, 1]])
    mask = torch.tensor([[True, False, True, False, True]])
    order, ranks = kernels.decode_chamber(torch.tensor([[0.9, 0.1, 0.0, 0.05, -0.0]]), mask)
    assert (order.tolist(), ranks.tolist()) == ([[2, 4, 0, 1, 3]], [[2, 3, 0, 4, 1]])
    order, _ = kernels.decode_chamber(torch.zeros(2, 0), None)
    assert order.shape == (2, 0)


def scores_and_answers(rows: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Scores, remaining, uniforms in the middle of a likely item's cell, that item, its log-probability."""
    generator = random_of(rows, n)
    scores = torch.randn(rows, n, dtype=torch.float64, generator=generator).to(dtype)
    remaining = torch.rand(rows, n, generator=generator) < 0.6
    remaining[torch.arange(rows), torch.randint(0, n, (rows,), generator=generator)] = True
    log_probs = scores.double().masked_fill(~remaining, -math.inf).log_softmax(1)
    probabilities = log_probs.exp()
    is_likely = probabilities > 0.1 / n  # float32 rounding is far smaller than such a cell
    choice = torch.where(is_likely, torch.rand(rows, n, generator=generator), -1.0).argmax(1, keepdim=True)
    uniform = (probabilities.cumsum(1) - probabilities / 2).gather(1, choice)[:, 0].to(dtype)
    return scores, remaining, uniform, choice[:, 0], log_probs.gather(1, choice)[:, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES[1:], (0, 5)])
def test_pick_draws_by_inverse_cdf(kernels: HostKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    scores, remaining, uniform, expected_choice, expected_log_prob = scores_and_answers(*shape, dtype)
    choice, log_prob = kernels.pick(scores, remaining, uniform)
    assert_same(choice, expected_choice)
    tolerance = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(log_prob.double(), expected_log_prob, atol=tolerance, rtol=tolerance)
    reference_choice, reference_log_prob = ops.pick_reference(scores, remaining, uniform)
    assert_same(choice, reference_choice)
    torch.testing.assert_close(log_prob, reference_log_prob, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [n for _, n in SHAPES])
def test_greedy_pick_takes_the_lowest_of_the_best(kernels: HostKernels, dtype: torch.dtype, n: int) -> None:
    scores, remaining, *_ = scores_and_answers(16, n, dtype)
    tolerance = 64 * torch.finfo(dtype).eps
    for values in (scores, scores.round()):  # without and with ties
        choice, log_prob = kernels.pick(values, remaining, None)
        reference_choice, reference_log_prob = ops.pick_reference(values, remaining, None)
        assert_same(choice, reference_choice)
        torch.testing.assert_close(log_prob, reference_log_prob, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pick_of_infinite_scores(kernels: HostKernels, dtype: torch.dtype) -> None:
    inf, nan = math.inf, math.nan
    rows = [
        # scores, remaining, uniform, choice, number of equally likely items
        ([1.0, inf, 2.0, inf], [1, 1, 1, 1], 0.25, 1, 2),
        ([1.0, inf, 2.0, inf], [1, 1, 1, 1], 0.75, 3, 2),
        ([1.0, inf, 2.0, inf], [1, 0, 1, 1], 0.0, 3, 1),
        ([-inf, -inf, -inf, -inf], [0, 1, 1, 0], 0.4, 1, 2),
        ([-inf, -inf, -inf, -inf], [0, 1, 1, 0], 0.6, 2, 2),
        ([-inf, 3e38, 3e38, -inf], [1, 1, 1, 1], 0.6, 2, 2),
        ([nan, 0.0, -inf, nan], [0, 1, 1, 0], 1 - 2**-24, 1, 1),
        ([-200.0, 0.0, -200.0, 5.0], [1, 1, 1, 0], 1 - 2**-24, 1, 1),
    ]
    scores = torch.tensor([row[0] for row in rows], dtype=dtype)
    remaining = torch.tensor([row[1] for row in rows]).bool()
    choice, log_prob = kernels.pick(scores, remaining, torch.tensor([row[2] for row in rows], dtype=dtype))
    assert choice.tolist() == [row[3] for row in rows]
    expected = torch.tensor([-math.log(row[4]) for row in rows], dtype=dtype)
    torch.testing.assert_close(log_prob, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 300, 1100])
def test_pick_at_the_ends_stays_in_the_set(kernels: HostKernels, dtype: torch.dtype, n: int) -> None:
    scores, remaining, *_ = scores_and_answers(6, n, dtype)
    remaining[:, 0], remaining[:, -1], remaining[:, 1] = False, False, True
    below_one = torch.nextafter(torch.ones(6, dtype=dtype), torch.zeros(6, dtype=dtype))
    for uniform in (torch.zeros(6, dtype=dtype), below_one):
        choice, log_prob = kernels.pick(scores, remaining, uniform)
        assert remaining.gather(1, choice[:, None]).all()
        assert log_prob.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 300])
def test_pick_marks_nan_and_an_empty_set(kernels: HostKernels, dtype: torch.dtype, n: int) -> None:
    """The row has log-probability NaN and an item of the set, 0 if that is empty; other rows are as they were."""
    scores, uniform = torch.zeros(4, n, dtype=dtype), torch.full((4,), 0.999, dtype=dtype)
    remaining = torch.ones(4, n, dtype=torch.bool)
    remaining[:, 0] = n == 1
    scores[1, n - 1] = scores[2] = math.nan
    remaining[3] = False
    for draws in (uniform, None):
        choice, log_prob = kernels.pick(scores, remaining, draws)
        assert choice[1:].tolist() == [min(1, n - 1), min(1, n - 1), 0]
        assert log_prob.isnan().tolist() == [False, True, True, True]
        assert choice[0] == ops.pick_reference(scores[:1], remaining[:1], draws if draws is None else draws[:1])[0][0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 513])
@pytest.mark.parametrize("is_normal", [False, True])
def test_random_bits_equal_reference(kernels: HostKernels, dtype: torch.dtype, count: int, is_normal: bool) -> None:
    samples = torch.tensor([0, 1, 2**40 + 3, -7])
    expected_of = ops.random_normal_reference if is_normal else ops.random_uniform_reference
    for seed, step, stream in ((0, 0, 0), (-(2**63) + 5, 2**24 - 1, 255)):
        actual = kernels.random(is_normal, samples, seed, step, stream, count, dtype)
        assert_same(actual, expected_of(samples, seed, step, stream, count, dtype))
    assert kernels.random(is_normal, samples[:0], 0, 0, 0, count, dtype).shape == (0, count)


def is_right(kernels: HostKernels) -> dict[str, bool]:
    """Whether kernels with barriers give the reference's answers on rows of several tiles."""
    results = {}
    soft_ranks = soft_ranks_with_ties(3, 600, torch.float32)
    order, ranks = kernels.decode_chamber(soft_ranks, None)
    expected_order, expected_ranks = ops.decode_chamber_reference(soft_ranks, None)
    results["decode_chamber"] = torch.equal(order, expected_order) and torch.equal(ranks, expected_ranks)
    scores, _, uniform, *_ = scores_and_answers(24, 600, torch.float32)  # many rows: the top is lost in some only
    remaining = torch.ones_like(scores, dtype=torch.bool)
    results["pick"] = True
    for draws in (uniform, None):
        choice, log_prob = kernels.pick(scores, remaining, draws)
        expected_choice, expected_log_prob = ops.pick_reference(scores, remaining, draws)
        results["pick"] &= torch.equal(choice, expected_choice)
        results["pick"] &= torch.allclose(log_prob, expected_log_prob, atol=1e-5, rtol=1e-5)
    return results


def barrier_lines() -> list[int]:
    if not KERNELS.exists():
        return []
    lines = KERNELS.read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.lstrip().startswith("__syncthreads();")]


def test_without_barriers_the_answers_are_wrong(kernels: HostKernels) -> None:
    """Negative control: the tests above would notice."""
    assert is_right(kernels) == {"decode_chamber": True, "pick": True}
    kernels.library.ignore_barrier(-1)
    try:
        assert is_right(kernels) == {"decode_chamber": False, "pick": False}
    finally:
        kernels.library.ignore_barrier(0)


@pytest.mark.parametrize("line", barrier_lines())
def test_each_single_barrier_is_needed(kernels: HostKernels, line: int) -> None:
    kernels.library.ignore_barrier(line)
    try:
        assert sorted(is_right(kernels).values()) == [False, True]
    finally:
        kernels.library.ignore_barrier(0)


def test_host_stand_in_finds_faults(kernels: HostKernels) -> None:
    """Shared memory is poisoned for every block; threads that do not meet at one barrier are reported."""
    seen = torch.zeros(2, dtype=torch.int64)
    assert kernels.library.run_poison_kernel(ctypes.c_void_p(seen.data_ptr())) == 0
    assert seen.tolist() == [-1, -1]
    assert kernels.library.run_diverging_kernel() == 2
    assert kernels.library.run_two_barriers_kernel() == 2


def test_compiled_cuda_library_is_registered() -> None:
    info = softrank_ext.build_info()
    if not info["cuda_compiled"]:
        pytest.skip("this build has no CUDA library: nvcc was not found or SOFTRANK_CUDA=0")
    if not info["cuda_loaded"]:
        pytest.skip(f"the CUDA library needs torch 2.13 or later, this is {torch.__version__}")
    assert info["cuda_architectures"]
    for op in CUDA_OPS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"softrank_ext::{op}", "CUDA"), op
