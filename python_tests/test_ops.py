"""Tests of ops.py: one list of sample inputs per op feeds the correctness, gradient and opcheck tests.

The compiled kernels are compared with `reference`, and the reference with answers worked out by other means (fractions,
hand-written tables, exact probabilities), so that neither is its own judge.
"""

import hashlib
import itertools
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing import chi_square
from torch import Tensor
from torch.autograd import gradcheck
from torch.library import opcheck

from softrank_ext import noise, ops
from softrank_ext._libraries import uses_reference
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.processes import bridge

DTYPES = (torch.float32, torch.float64)
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
needs_compiled = pytest.mark.skipif(uses_reference(), reason="runs on the reference: there is nothing to compare")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=("float32", "float64"))
each_device = pytest.mark.parametrize("device", DEVICES)

EXAMPLE = [0.9, 0.1, 0.5, 0.3]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=_generator(), dtype=torch.float64)


def _mask(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(*shape, generator=_generator(1)) < share


def _at_least_one(mask: Tensor) -> Tensor:
    mask[:, -1] |= ~mask.any(1)
    return mask


def _huge(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    numbers = [1e9, 1e9 + 1, 16777217.0, 123456789.7, 1e15 + 1, 1e30, info.max, info.tiny, info.tiny / 8, 33.3, 1e-30]
    return [sign * number for number in numbers for sign in (1.0, -1.0)]


REFLECT_INPUTS: dict[str, Callable[[torch.dtype], Tensor]] = {
    "no elements": lambda dtype: torch.empty(0, dtype=dtype),
    "no rows": lambda dtype: torch.empty(0, 5, dtype=dtype),
    "no columns": lambda dtype: torch.empty(3, 0, dtype=dtype),
    "scalar": lambda dtype: torch.tensor(-1.25, dtype=dtype),
    "one": lambda dtype: torch.tensor([2.75], dtype=dtype),
    "inside": lambda dtype: torch.rand(3, 17, generator=_generator()).to(dtype),
    "outside": lambda dtype: _normal(5, 33, scale=10).to(dtype),
    "three dimensions": lambda dtype: _normal(2, 3, 4).to(dtype),
    "transposed": lambda dtype: _normal(7, 9, scale=3).to(dtype).T,
    "strided": lambda dtype: _normal(6, 40, scale=3).to(dtype)[::2, ::3],
    "expanded": lambda dtype: _normal(6, 1, scale=3).to(dtype).expand(6, 5),
    "several tasks": lambda dtype: _normal(100_003, scale=50).to(dtype),
    "folds": lambda dtype: torch.arange(-6, 7, dtype=dtype),
    "zeros of both signs": lambda dtype: torch.tensor([0.0, -0.0], dtype=dtype),
    "huge and tiny": lambda dtype: torch.tensor(_huge(dtype), dtype=dtype),
    "not finite": lambda dtype: torch.tensor([math.nan, math.inf, -math.inf, 0.5], dtype=dtype),
}

# Rows of up to 384 items are decoded by counting, longer ones by radix sort.
_CHAMBER_SIZES = (1, 2, 9, 64, 200, 256, 257, 383, 384, 385, 1500, 4096)
_CHAMBER_SHAPES = [(0, 0), (0, 5), (3, 0), *((3, N) for N in _CHAMBER_SIZES)]


def _chamber_input(*shape: int, is_masked: bool = False) -> Callable[[torch.dtype], tuple[Tensor, Tensor | None]]:
    return lambda dtype: (_normal(*shape).to(dtype), _mask(*shape) if is_masked else None)


CHAMBER_INPUTS = {f"{B} x {N}": _chamber_input(B, N) for B, N in _CHAMBER_SHAPES}
CHAMBER_INPUTS |= {
    f"{B} x {N} masked": _chamber_input(B, N, is_masked=True) for B, N in [*_CHAMBER_SHAPES, (3, 640), (3, 645)]
}
CHAMBER_INPUTS |= {
    "ties": lambda dtype: (torch.randint(0, 4, (4, 40), generator=_generator()).to(dtype), None),
    "ties in a long row": lambda dtype: (torch.randint(-4, 4, (4, 900), generator=_generator()).to(dtype), None),
    "ties masked": lambda dtype: (torch.randint(0, 4, (4, 40), generator=_generator()).to(dtype), _mask(4, 40)),
    "all equal": lambda dtype: (torch.full((2, 300), 0.5, dtype=dtype), None),
    "zeros of both signs": lambda dtype: (torch.tensor([[0.0, -0.0, 0.0, -0.0, -1.0]], dtype=dtype), None),
    "zeros of both signs in a long row": lambda dtype: (torch.tensor([[0.0, -0.0] * 200], dtype=dtype), None),
    "infinities": lambda dtype: (torch.tensor([[math.inf, -math.inf, 0.0, math.inf, -math.inf]], dtype=dtype), None),
    "infinities in a long row": lambda dtype: (
        torch.tensor([[math.inf, -math.inf, 0.0] * 100], dtype=dtype),
        None,
    ),
    "near neighbours": lambda dtype: (1 + torch.finfo(dtype).eps * _normal(2, 300).mul(9).round().to(dtype), None),
    "denormal": lambda dtype: (torch.finfo(dtype).tiny / 8 * _normal(2, 300).mul(99).round().to(dtype), None),
    "transposed": lambda dtype: (_normal(30, 7).to(dtype).T, _mask(30, 7).T),
    "strided": lambda dtype: (_normal(8, 90).to(dtype)[::2, ::3], _mask(8, 90)[::2, ::3]),
    "no real item": lambda dtype: (_normal(3, 5).to(dtype), torch.zeros(3, 5, dtype=torch.bool)),
    "all real": lambda dtype: (_normal(3, 5).to(dtype), torch.ones(3, 5, dtype=torch.bool)),
    "padding is not finite": lambda dtype: (
        torch.tensor([[math.nan, 0.9, -math.inf, 0.1, 0.5, math.inf, 0.3]], dtype=dtype),
        torch.tensor([[False, True, False, True, True, False, True]]),
    ),
}


def _pick_input(
    *shape: int, scale: float = 1.0, share: float = 0.6
) -> Callable[[torch.dtype], tuple[Tensor, Tensor, Tensor]]:
    def make(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        remaining = _mask(*shape, share=share)
        uniform = torch.rand(shape[0], generator=_generator(2), dtype=torch.float64)
        return (
            _normal(*shape, scale=scale).to(dtype),
            _at_least_one(remaining) if shape[1] else remaining,
            uniform.to(dtype),
        )

    return make


def _infinite_scores(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    inf = math.inf
    rows = [
        ([-inf, 1.0, -inf, 2.0], [True, True, True, True], 0.9),
        ([inf, 1.0, inf, -inf], [True, True, True, True], 0.6),
        ([inf, 1.0, inf, -inf], [False, True, True, True], 0.0),
        ([-inf, -inf, -inf, -inf], [True, False, True, True], 0.5),
        ([-inf, inf, -inf, -inf], [True, False, True, False], 0.99),
        ([1e38, -1e38, 1e38, 3e38], [True, True, True, False], 0.7),
        ([-1e38, -1e38, 0.0, 0.0], [True, True, False, False], 0.2),
    ]
    scores, remaining, uniform = zip(*rows, strict=True)
    return torch.tensor(scores, dtype=dtype), torch.tensor(remaining), torch.tensor(uniform, dtype=dtype)


def _strided_pick(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    scores, remaining, uniform = _pick_input(9, 12)(dtype)
    return scores.T.contiguous().T, _at_least_one(remaining.clone()).T.contiguous().T, uniform.repeat(2, 1).T[:, 0]


PICK_INPUTS: dict[str, Callable[[torch.dtype], tuple[Tensor, Tensor, Tensor]]] = {
    "no rows": _pick_input(0, 5),
    "no rows, no items": _pick_input(0, 0),
    "one item": _pick_input(3, 1),
    "two items": _pick_input(50, 2),
    "17 items": _pick_input(40, 17),
    "64 items": _pick_input(256, 64),
    "one remains": _pick_input(9, 33, share=0.0),
    "long row": _pick_input(5, 1500),
    "far apart": _pick_input(60, 20, scale=60),
    "strided": _strided_pick,
    "infinite and very large": _infinite_scores,
}


def each_input(inputs: dict[str, Callable]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", inputs.values(), ids=inputs.keys())


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """`torch.set_num_threads`, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _folded(number: float) -> float:
    """The fold by rational arithmetic: the exact answer, which is a float again."""
    m = abs(Fraction(number)) % 2
    return float(2 - m if m > 1 else m)


# reflect


@each_device
@each_dtype
@each_input(REFLECT_INPUTS)
def test_reflect_equals_reference_bit_for_bit(make, dtype, device):
    x = make(dtype).to(device)
    folded, expected = ops.reflect(x), ops.reflect_reference(x)
    assert folded.dtype == dtype and folded.shape == x.shape and folded.is_contiguous()
    assert torch.equal(folded.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert not (folded.signbit() & ~folded.isnan()).any()


@each_dtype
@each_input({name: make for name, make in REFLECT_INPUTS.items() if name != "not finite"})
def test_reflect_is_the_exact_fold(make, dtype):
    x = make(dtype).flatten()[:2000]
    assert ops.reflect(x).tolist() == [_folded(number) for number in x.tolist()]


@each_dtype
def test_reflect_of_hand_written_values(dtype):
    x = torch.tensor([0.0, 0.25, 1.0, 1.25, 2.0, 2.5, 3.0, 3.75, -0.25, -1.0, -1.5, -2.0, -2.75], dtype=dtype)
    expected = [0.0, 0.25, 1.0, 0.75, 0.0, 0.5, 1.0, 0.25, 0.25, 1.0, 0.5, 0.0, 0.75]
    assert ops.reflect(x).tolist() == expected


@each_dtype
def test_reflect_of_nan_and_infinity_is_nan(dtype):
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.5] * 9, dtype=dtype)
    assert ops.reflect(x).isnan().tolist() == [True, True, True, False] * 9


any_float = st.floats(allow_nan=False, allow_infinity=False)
unit_float32 = st.floats(0, 1, width=32)


@given(st.lists(any_float, min_size=1, max_size=40))
def test_reflect_is_even_and_exact_for_any_finite_number(numbers):
    x = torch.tensor(numbers, dtype=torch.float64)
    assert torch.equal(ops.reflect(x), ops.reflect(-x))
    assert ops.reflect(x).tolist() == [_folded(number) for number in numbers]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=40))
def test_reflect_is_exact_for_any_finite_float32(numbers):
    folded = ops.reflect(torch.tensor(numbers, dtype=torch.float32))
    assert folded.tolist() == [_folded(number) for number in numbers]


@given(st.lists(unit_float32, min_size=1, max_size=40))
def test_reflect_changes_nothing_inside(numbers):
    x = torch.tensor(numbers, dtype=torch.float32)
    assert torch.equal(ops.reflect(x), x)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40), st.integers(-20, 20))
def test_reflect_has_period_two_to_rounding(numbers, periods):
    x = torch.tensor(numbers, dtype=torch.float64)
    rounding = 100 * torch.finfo(torch.float64).eps  # of the sum x + 2 periods, at most 90 in magnitude
    torch.testing.assert_close(ops.reflect(x + 2 * periods), ops.reflect(x), atol=rounding, rtol=0)


@pytest.mark.parametrize("name", ["inside", "outside", "three dimensions", "transposed", "strided"])
def test_reflect_gradient(name):
    x = REFLECT_INPUTS[name](torch.float64)
    away_from_folds = torch.where((x - x.round()).abs() < 0.01, x + 0.02, x).requires_grad_()
    assert gradcheck(ops.reflect, (away_from_folds,))


@each_dtype
def test_reflect_slope_table(dtype):
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.5, -0.5, -1.5, -2.5, 1e9 + 0.5], dtype=dtype, requires_grad=True)
    ops.reflect(x).sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype
    assert x.grad.tolist() == [1, 1, 1, -1, 1, -1, 1, -1, 1]


def test_reflect_gradient_of_nan_is_nan():
    x = torch.tensor([math.nan, math.inf, 0.5], requires_grad=True)
    ops.reflect(x).sum().backward()
    assert x.grad is not None and x.grad.isnan().tolist() == [True, True, False]


# decode_chamber


@each_device
@each_dtype
@each_input(CHAMBER_INPUTS)
def test_decode_chamber_equals_reference(make, dtype, device):
    soft_ranks, mask = make(dtype)
    soft_ranks, mask = soft_ranks.to(device), None if mask is None else mask.to(device)
    order, ranks = ops.decode_chamber(soft_ranks, mask)
    expected_order, expected_ranks = ops.decode_chamber_reference(soft_ranks, mask)
    assert order.dtype == ranks.dtype == torch.int64
    assert torch.equal(order, expected_order)
    assert torch.equal(ranks, expected_ranks)


@each_dtype
@pytest.mark.parametrize("is_masked", [False, True])
def test_read_order_is_reflect_and_decode_chamber(dtype, is_masked):
    torch.manual_seed(3)
    z = 3 * torch.randn(20, 9, dtype=dtype)
    mask = torch.rand(20, 9) < 0.7 if is_masked else None
    soft_ranks, order, ranks = ops.read_order(z, mask)
    assert torch.equal(soft_ranks, ops.reflect(z))
    expected_order, expected_ranks = ops.decode_chamber_reference(soft_ranks, mask)
    assert torch.equal(order, expected_order) and torch.equal(ranks, expected_ranks)
    for wanted, got in zip((soft_ranks, order, ranks), ops.read_order_reference(z, mask), strict=True):
        assert torch.equal(wanted, got)
    opcheck(torch.ops.softrank_ext.read_order.default, (z, mask))
    z[4, 2] = torch.inf
    if mask is not None:
        mask[4, 2] = True
    with pytest.raises(ValueError, match="soft_ranks must not hold NaN, got NaN at row 4, item 2"):
        ops.read_order(z, mask)


@each_dtype
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("shape", [(20, 9), (3, 1), (2, 300), (0, 4), (2, 0)])
def test_lift_order_is_compose_ranks_of_and_lift_to_grid(dtype, is_masked, shape):
    torch.manual_seed(4)
    z = torch.rand(shape)
    mask = torch.rand(shape) < 0.7 if is_masked else None
    order_t, _ = ops.decode_chamber(z, mask)
    mask_t = None if mask is None else arrange(mask, order_t)
    slots, _ = ops.decode_chamber(torch.rand(shape), mask_t)
    order = compose(order_t, slots)
    wanted = (order, ranks_of(order), bridge.lift_to_grid(ranks_of(order), mask, dtype=dtype))
    for lift in (torch.ops.softrank_ext.lift_order, ops.lift_order_reference):
        for got, expected in zip(lift(order_t, slots, mask, dtype), wanted, strict=True):
            assert got.dtype == expected.dtype and torch.equal(got, expected)
    if shape == (20, 9):
        opcheck(torch.ops.softrank_ext.lift_order.default, (order_t, slots, mask, dtype))


def test_lift_order_errors():
    order = torch.arange(3).expand(2, 3)
    with pytest.raises(ValueError, match=r"slots must be a \(B, N\) tensor of int64, got \(2, 3\) float32"):
        ops.lift_order(order, torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"slots must have the shape of order \(2, 3\), got \(2, 2\)"):
        ops.lift_order(order, order[:, :2])
    with pytest.raises(ValueError, match=r"dtype must be float32 or float64, got torch\.int32"):
        ops.lift_order(order, order, dtype=torch.int32)


@needs_compiled
def test_lift_order_reads_nothing_out_of_bounds():
    order = torch.arange(3).expand(2, 3)
    for wrong in (-1, 3):
        with pytest.raises(RuntimeError, match="must hold each of 0 to 2 once per row, row 1 holds something else"):
            ops.lift_order(order, torch.tensor([[0, 1, 2], [0, wrong, 2]]))
        with pytest.raises(RuntimeError, match="must hold each of 0 to 2 once per row, row 0 holds something else"):
            ops.lift_order(torch.tensor([[0, wrong, 2], [0, 1, 2]]), order)


@each_dtype
@each_input(CHAMBER_INPUTS)
def test_decode_chamber_is_the_stable_sort_of_python(make, dtype):
    soft_ranks, mask = make(dtype)
    order, ranks = ops.decode_chamber(soft_ranks, mask)
    is_real = torch.ones_like(soft_ranks, dtype=torch.bool) if mask is None else mask
    rows = zip(soft_ranks.tolist(), is_real.tolist(), order.tolist(), ranks.tolist(), strict=True)
    for values, real, order_row, ranks_row in rows:
        items = range(len(values))
        expected = sorted(filter(real.__getitem__, items), key=values.__getitem__)  # Python's sort is stable
        assert order_row == expected + [item for item in items if not real[item]]
        assert [ranks_row[item] for item in order_row] == list(items)


@each_dtype
def test_decode_chamber_of_the_example(dtype):
    for soft_ranks in (torch.tensor(EXAMPLE, dtype=dtype), torch.tensor([EXAMPLE], dtype=dtype)):
        order, ranks = ops.decode_chamber(soft_ranks)
        assert order.shape == ranks.shape == soft_ranks.shape
        assert order.flatten().tolist() == [1, 3, 2, 0]
        assert ranks.flatten().tolist() == [3, 0, 2, 1]


def test_decode_chamber_puts_real_items_first_and_padding_by_index():
    soft_ranks = torch.tensor([math.nan, 0.9, -9.0, 0.1, 0.5, math.inf, 0.3])
    mask = torch.tensor([False, True, False, True, True, False, True])
    order, ranks = ops.decode_chamber(soft_ranks, mask)
    assert order.tolist() == [3, 6, 4, 1, 0, 2, 5]
    assert ranks.tolist() == [4, 3, 5, 0, 2, 6, 1]


@pytest.mark.parametrize("N", [40, 600])
def test_decode_chamber_ignores_what_padding_holds(N):
    soft_ranks, mask = _normal(3, N), _mask(3, N)
    expected = ops.decode_chamber(soft_ranks, mask)
    for content in (0.0, -math.inf, math.inf, math.nan):
        order, ranks = ops.decode_chamber(soft_ranks.masked_fill(~mask, content), mask)
        assert torch.equal(order, expected[0]) and torch.equal(ranks, expected[1])


few_values = st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 5e-324])


@given(st.lists(any_float | few_values, min_size=1, max_size=300))
@settings(max_examples=60)
def test_decode_chamber_is_stable_and_ranks_are_its_inverse(numbers):
    order, ranks = ops.decode_chamber(torch.tensor(numbers, dtype=torch.float64))
    assert order.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)
    assert ranks[order].tolist() == list(range(len(numbers)))


# pick


def _assert_valid_picks(scores: Tensor, remaining: Tensor, uniform: Tensor, choice: Tensor, log_prob: Tensor) -> None:
    """Choices are where the exact inverse CDF puts them, to the rounding of the dtype, and have its log-probability."""
    rounding = 4 * scores.shape[1] * torch.finfo(scores.dtype).eps
    exact = _exact_probabilities(scores, remaining)
    assert bool(remaining.gather(1, choice[:, None]).all())
    cumulative = exact.cumsum(1)
    upper = cumulative.gather(1, choice[:, None])[:, 0]
    probability = exact.gather(1, choice[:, None])[:, 0]
    assert bool((probability > 0).all())
    assert bool((upper - probability <= uniform.double() + rounding).all())
    assert bool((upper >= uniform.double() - rounding).all())
    # float32 scores of magnitude 60 differ by up to 4e-6 before anything is computed.
    largest = scores.masked_fill(~remaining | scores.isinf(), 0.0).abs().amax() if scores.numel() else torch.zeros(())
    atol = 8 * torch.finfo(scores.dtype).eps * (1 + float(largest) if largest < 1e6 else 1.0)
    torch.testing.assert_close(log_prob.double(), probability.log(), atol=atol, rtol=1e-5)


def _exact_probabilities(scores: Tensor, remaining: Tensor) -> Tensor:
    """Softmax over the remaining set in Python floats; items at +inf, or all when only -inf remains, share alike."""
    rows = []
    for score_row, allowed in zip(scores.tolist(), remaining.tolist(), strict=True):
        top = max(score for score, is_allowed in zip(score_row, allowed, strict=True) if is_allowed)
        weights = [
            0.0 if not is_allowed else 1.0 if score == top else math.exp(score - top)
            for score, is_allowed in zip(score_row, allowed, strict=True)
        ]
        rows.append([weight / math.fsum(weights) for weight in weights])
    return torch.tensor(rows, dtype=torch.float64).reshape(scores.shape)


@each_device
@each_dtype
@each_input(PICK_INPUTS)
def test_pick_equals_reference(make, dtype, device):
    scores, remaining, uniform = (value.to(device) for value in make(dtype))
    choice, log_prob = ops.pick(scores, remaining, uniform)
    expected_choice, expected_log_prob = ops.pick_reference(scores, remaining, uniform)
    assert choice.dtype == torch.int64 and log_prob.dtype == dtype and choice.shape == log_prob.shape == uniform.shape
    for answer in ((choice, log_prob), (expected_choice, expected_log_prob)):
        _assert_valid_picks(scores.cpu(), remaining.cpu(), uniform.cpu(), *(value.cpu() for value in answer))
    if dtype == torch.float64:  # the same uniform gives the same pick
        assert torch.equal(choice, expected_choice)
        torch.testing.assert_close(log_prob, expected_log_prob, atol=1e-14, rtol=1e-14)


@each_device
@each_dtype
@each_input(PICK_INPUTS)
def test_greedy_pick_equals_reference(make, dtype, device):
    scores, remaining, _ = (value.to(device) for value in make(dtype))
    choice, log_prob = ops.pick(scores, remaining, greedy=True)
    expected_choice, expected_log_prob = ops.pick_reference(scores, remaining, None)
    assert torch.equal(choice, expected_choice)
    torch.testing.assert_close(log_prob, expected_log_prob, atol=4 * torch.finfo(dtype).eps, rtol=1e-6)


@each_dtype
def test_pick_by_hand(dtype):
    # Weights 1, 2, 4 on items 0, 2, 3 of 4: cumulative 1/7, 3/7, 1.
    scores = torch.tensor([[0.0, 99.0, math.log(2), math.log(4)]], dtype=dtype).expand(5, 4)
    remaining = torch.tensor([[True, False, True, True]]).expand(5, 4)
    choice, log_prob = ops.pick(scores, remaining, torch.tensor([0.0, 0.14, 0.15, 0.42, 0.43], dtype=dtype))
    assert choice.tolist() == [0, 0, 2, 2, 3]
    expected = [math.log(share / 7) for share in (1, 1, 2, 2, 4)]
    torch.testing.assert_close(log_prob.double(), torch.tensor(expected).double(), atol=1e-6, rtol=0)


adversarial_uniforms = [0.0, 1e-45, 0.5, 1 - 2**-24, 1 - 2**-53, 1.0]


@each_dtype
@pytest.mark.parametrize("number", adversarial_uniforms)
@pytest.mark.parametrize("kernel", [ops.pick, ops.pick_reference], ids=("op", "reference"))
def test_pick_never_leaves_the_set(kernel, number, dtype):
    for make in PICK_INPUTS.values():
        scores, remaining, uniform = make(dtype)
        choice, log_prob = kernel(scores, remaining, torch.full_like(uniform, number))
        assert bool(remaining.gather(1, choice[:, None]).all())
        assert bool(log_prob.isfinite().all())


@given(st.data())
@settings(max_examples=100)
def test_pick_stays_in_the_set_for_any_scores(data):
    N = data.draw(st.integers(1, 40))
    number = st.floats(allow_nan=False, width=32) | st.sampled_from([1e38, -1e38, math.inf, -math.inf])
    scores = torch.tensor([data.draw(st.lists(number, min_size=N, max_size=N))], dtype=torch.float32)
    remaining = torch.tensor([data.draw(st.lists(st.booleans(), min_size=N, max_size=N).filter(any))])
    uniform = torch.tensor([data.draw(st.floats(0, 1, width=32))])
    for choice, log_prob in (
        ops.pick(scores, remaining, uniform),
        ops.pick_reference(scores, remaining, uniform),
        ops.pick(scores, remaining, greedy=True),
    ):
        assert remaining[0, choice].all()
        assert not log_prob.isnan().any() and (log_prob <= 0).all()


@each_dtype
def test_greedy_pick_gives_ties_to_the_lower_item(dtype):
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0], [5.0, 2.0, 2.0, 2.0], [-math.inf] * 4, [math.inf] * 4], dtype=dtype)
    remaining = torch.tensor([[True] * 4, [False, True, True, True], [False, False, True, True], [False, True] * 2])
    choice, log_prob = ops.pick(scores, remaining, greedy=True)
    assert choice.tolist() == [1, 1, 2, 1]
    expected = [-math.log(3 + math.exp(-2)), -math.log(3), -math.log(2), -math.log(2)]
    torch.testing.assert_close(log_prob.double(), torch.tensor(expected).double(), atol=1e-6, rtol=0)


@each_dtype
def test_pick_of_one_item_is_certain(dtype):
    for score in (0.0, -1e30, math.inf, -math.inf):
        scores, remaining = torch.full((3, 1), score, dtype=dtype), torch.ones(3, 1, dtype=torch.bool)
        choice, log_prob = ops.pick(scores, remaining, torch.tensor([0.0, 0.5, 0.99], dtype=dtype))
        assert choice.tolist() == [0, 0, 0] and log_prob.tolist() == [0, 0, 0]


def test_pick_converts_uniform_to_the_dtype_of_scores():
    scores, remaining, uniform = _pick_input(5, 7)(torch.float32)
    choice, _ = ops.pick(scores, remaining, uniform.double())
    assert torch.equal(choice, ops.pick(scores, remaining, uniform)[0])


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("name", ["two items", "17 items", "one remains", "strided"])
def test_pick_gradient(name, greedy):
    scores, remaining, uniform = PICK_INPUTS[name](torch.float64)
    choice, _ = ops.pick(scores, remaining, None if greedy else uniform, greedy=greedy)
    # Scores that stay away from ties and CDF boundaries: the choice is the same on both sides of a difference.
    scores = scores.detach().requires_grad_()
    assert gradcheck(
        lambda scores: ops.pick(scores, remaining, None if greedy else uniform, greedy=greedy)[1],
        (scores,),
        eps=1e-7,
        atol=1e-5,
    )
    log_prob = ops.pick(scores, remaining, None if greedy else uniform, greedy=greedy)[1]
    (gradient,) = torch.autograd.grad(log_prob.sum(), scores)
    expected = torch.nn.functional.one_hot(choice, scores.shape[1]) - _exact_probabilities(scores, remaining)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)


def test_pick_gradient_of_infinite_scores_is_finite():
    scores, remaining, uniform = _infinite_scores(torch.float64)
    scores.requires_grad_()
    choice, log_prob = ops.pick(scores, remaining, uniform)
    (gradient,) = torch.autograd.grad(log_prob.sum(), scores)
    expected = torch.nn.functional.one_hot(choice, scores.shape[1]) - _exact_probabilities(scores, remaining)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    assert not choice.requires_grad


# The law of pick. Chi-square at a fixed seed; a right sampler falls below P_RIGHT once in a thousand seeds, and a
# wrong one must fall far below P_WRONG.

DRAWS = 200_000
P_RIGHT, P_WRONG = 1e-3, 1e-12
LAW_SCORES = [0.3, 2.0, -1.0, 0.7, 1.1, -0.2, 0.0, 3.0]
LAW_REMAINING = [True, False, True, True, True, False, True, False]


def _chi_square_p(choice: Tensor, probabilities: list[float]) -> float:
    return chi_square(torch.bincount(choice, minlength=len(probabilities)), probabilities)


def _law() -> tuple[Tensor, Tensor, list[float]]:
    scores = torch.tensor([LAW_SCORES]).expand(DRAWS, -1)
    remaining = torch.tensor([LAW_REMAINING]).expand(DRAWS, -1)
    return scores, remaining, _exact_probabilities(scores[:1], remaining[:1])[0].tolist()


def _uniforms(step: int) -> Tensor:
    return noise.uniform(5, torch.arange(DRAWS), step, 1, stream=noise.PICK_STREAM)[:, 0]


def test_pick_draws_from_the_softmax_over_the_remaining_set():
    scores, remaining, probabilities = _law()
    choice, _ = ops.pick(scores, remaining, _uniforms(0))
    assert _chi_square_p(choice, probabilities) > P_RIGHT


def test_law_test_fails_for_wrong_draws():
    scores, remaining, probabilities = _law()
    ignoring_remaining, _ = ops.pick(scores, torch.ones_like(remaining), _uniforms(0))
    assert _chi_square_p(ignoring_remaining, probabilities) < P_WRONG
    # Adding exponential instead of Gumbel noise is a mistake that shapes and ranges do not show.
    exponential = -torch.rand(scores.shape, generator=_generator()).log()
    wrong_noise = (scores + exponential).masked_fill(~remaining, -math.inf).argmax(1)
    assert _chi_square_p(wrong_noise, probabilities) < P_WRONG
    slightly_wrong, _ = ops.pick(scores * 1.05, remaining, _uniforms(0))
    assert _chi_square_p(slightly_wrong, probabilities) < P_WRONG


def test_picks_without_replacement_follow_plackett_luce():
    scores = torch.tensor([[0.5, -0.3, 1.2, 0.0]])
    remaining = torch.ones(DRAWS, 4, dtype=torch.bool)
    order = torch.empty(DRAWS, 4, dtype=torch.int64)
    log_prob = torch.zeros(DRAWS)
    for step in range(4):
        choice, step_log_prob = ops.pick(scores.expand(DRAWS, 4), remaining, _uniforms(step))
        order[:, step] = choice
        log_prob += step_log_prob
        remaining.scatter_(1, choice[:, None], False)
    weights = scores.double().exp()[0].tolist()
    orders = list(itertools.permutations(range(4)))
    probabilities = []
    for candidate in orders:
        left = [sum(weights[item] for item in candidate[place:]) for place in range(4)]
        probabilities.append(math.prod(weights[item] / total for item, total in zip(candidate, left, strict=True)))
    assert math.isclose(sum(probabilities), 1.0, abs_tol=1e-12)
    code = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    number_of = {sum(item * 4 ** (3 - place) for place, item in enumerate(o)): i for i, o in enumerate(orders)}
    drawn = torch.tensor([number_of[c] for c in code.tolist()])
    assert _chi_square_p(drawn, probabilities) > P_RIGHT
    expected = torch.tensor(probabilities).log()[drawn]
    torch.testing.assert_close(log_prob.double(), expected.double(), atol=2e-6, rtol=0)


# opcheck, torch.compile


def _requiring_grad(value: Tensor) -> Tensor:
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_()


@pytest.mark.parametrize("name", ["outside", "three dimensions", "transposed", "no rows", "scalar"])
def test_opcheck_reflect(name):
    x = REFLECT_INPUTS[name](torch.float32)
    opcheck(torch.ops.softrank_ext.reflect.default, (x,))
    opcheck(torch.ops.softrank_ext.reflect.default, (_requiring_grad(x),))


@pytest.mark.parametrize("name", ["3 x 9", "3 x 9 masked", "0 x 5", "3 x 257 masked", "transposed"])
def test_opcheck_decode_chamber(name):
    opcheck(torch.ops.softrank_ext.decode_chamber.default, CHAMBER_INPUTS[name](torch.float64))


@pytest.mark.parametrize("name", ["two items", "17 items", "strided", "no rows"])
def test_opcheck_pick(name):
    scores, remaining, uniform = PICK_INPUTS[name](torch.float32)
    opcheck(torch.ops.softrank_ext.pick.default, (scores, remaining, uniform))
    # opcheck's gradient test adds up the outputs and stumbles over an integer one; `test_pick_gradient` and
    # `test_gradients_pass_through_a_compiled_graph` stand in for it.
    without_gradient_test = ("test_schema", "test_autograd_registration", "test_faketensor")
    for draw in (uniform, None):
        args = (_requiring_grad(scores), remaining, draw)
        opcheck(torch.ops.softrank_ext.pick.default, args, test_utils=without_gradient_test)


@pytest.mark.parametrize("name", ["random_uniform", "random_normal"])
def test_opcheck_noise(name):
    op = getattr(torch.ops.softrank_ext, name).default
    opcheck(op, (torch.arange(3), -7, 2, 1, 5, torch.float32))
    opcheck(op, (torch.arange(0), 7, 0, 0, 4, torch.float64))


def _compile_cases() -> dict[str, tuple[Callable, tuple]]:
    scores, remaining, uniform = PICK_INPUTS["17 items"](torch.float32)
    soft_ranks, mask = CHAMBER_INPUTS["3 x 9 masked"](torch.float32)
    samples = torch.arange(4)
    return {
        "reflect": (ops.reflect, (REFLECT_INPUTS["outside"](torch.float32),)),
        "decode_chamber": (ops.decode_chamber, (soft_ranks,)),
        "decode_chamber of one row": (ops.decode_chamber, (soft_ranks[0],)),
        "decode_chamber masked": (ops.decode_chamber, (soft_ranks, mask)),
        "pick": (ops.pick, (scores, remaining, uniform)),
        "greedy pick": (lambda *args: ops.pick(*args, greedy=True), (scores, remaining)),
        "uniform": (lambda samples: noise.uniform(3, samples, 1, 7), (samples,)),
        "normal": (lambda samples: noise.normal(3, samples, 1, 7, dtype=torch.float64), (samples,)),
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=("static", "dynamic"))
@pytest.mark.parametrize("name", _compile_cases())
def test_compiled_graph_gives_the_same(name, dynamic):
    function, args = _compile_cases()[name]
    torch._dynamo.reset()
    graph = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    answers, expected = graph(*args), function(*args)
    for answer, wanted in zip(
        answers if isinstance(answers, tuple) else (answers,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        assert torch.equal(answer, wanted)


def test_gradients_pass_through_a_compiled_graph():
    scores, remaining, uniform = PICK_INPUTS["17 items"](torch.float64)
    torch._dynamo.reset()

    def loss(x: Tensor) -> Tensor:
        return ops.pick(ops.reflect(3 * x), remaining, uniform)[1].sum()

    graph = torch.compile(loss, fullgraph=True, backend="aot_eager")
    gradients = [torch.autograd.grad(f(x), x)[0] for f in (loss, graph) for x in (_requiring_grad(scores),)]
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-14, rtol=0)
    assert bool((gradients[0] != 0).any())


# The same answers for any number of threads and any instruction set.


@needs_compiled
def test_answers_do_not_depend_on_threads(threads):
    x, soft_ranks = _normal(200_000).float(), _normal(700, 300)
    scores, remaining, uniform = _pick_input(3000, 70)(torch.float32)

    def answers() -> list[Tensor]:
        return [ops.reflect(x), *ops.decode_chamber(soft_ranks), *ops.pick(scores, remaining, uniform)]

    threads(1)
    alone = answers()
    threads(2)
    assert all(torch.equal(one, two) for one, two in zip(alone, answers(), strict=True))


_CAPABILITY_SCRIPT = """
import sys
import softrank_ext
print(softrank_ext.build_info()["cpu_capability"])
sys.path.insert(0, sys.argv[1])
import test_ops
print(test_ops.digest_of_answers())
"""


def digest_of_answers() -> str:
    """Fingerprint of what must be equal bit for bit on every instruction set; `pick` is compared with exact answers."""
    digest = hashlib.sha256()
    for dtype in DTYPES:
        for make in REFLECT_INPUTS.values():
            digest.update(ops.reflect(make(dtype)).nan_to_num(7.0).numpy().tobytes())
        for make_row in CHAMBER_INPUTS.values():
            for answer in ops.decode_chamber(*make_row(dtype)):
                digest.update(answer.numpy().tobytes())
        for draw in (noise.uniform, noise.normal):
            digest.update(draw(3, torch.arange(5), 1, 1001, dtype=dtype).numpy().tobytes())
        for make_pick in PICK_INPUTS.values():
            scores, remaining, uniform = make_pick(dtype)
            _assert_valid_picks(scores, remaining, uniform, *ops.pick(scores, remaining, uniform))
            if dtype == torch.float64:
                digest.update(ops.pick(scores, remaining, uniform)[0].numpy().tobytes())
            digest.update(ops.pick(scores, remaining, greedy=True)[0].numpy().tobytes())
    return digest.hexdigest()


def _run_with_capability(capability: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"SOFTRANK_CPU_CAPABILITY": capability}
    command = [sys.executable, "-c", _CAPABILITY_SCRIPT, str(Path(__file__).parent)]
    # Not in the source tree: `-c` looks into the current folder first.
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parent)


def _capabilities_here() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    here = {"baseline"}
    if {"avx2", "fma"} <= set(flags):
        here.add("avx2")
        if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags):
            here.add("avx512")
    return here


on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="one instruction set here")


@needs_compiled
@each_dtype
@pytest.mark.parametrize("sizes", [(0,), (1,), (63, 64, 65), (128, 0, 1000)])
def test_checksum_equals_reference(sizes, dtype):
    tensors = [torch.randn(size, dtype=dtype) for size in sizes]
    assert ops.checksum(tensors) == ops.checksum_reference(tensors)


def test_checksum_sees_every_single_change_and_the_order():
    numbers = torch.randn(300)
    sums = {ops.checksum([numbers])}
    for index in range(300):
        for bit in (0, 22, 31):
            changed = numbers.clone()
            changed.view(torch.int32)[index] ^= -(2**31) if bit == 31 else 2**bit
            sums.add(ops.checksum([changed]))
    assert len(sums) == 901
    halves = [numbers[:128], numbers[128:256]]
    assert len({ops.checksum(halves), ops.checksum(halves[::-1]), ops.checksum([numbers[:256]])}) == 3
    # Two words of one lane exchanged: a sum of words would not see it.
    exchanged = numbers.clone()
    exchanged[[0, 64]] = numbers[[64, 0]]
    assert ops.checksum([exchanged]) != ops.checksum([numbers])
    with pytest.raises(ValueError, match=r"tensors\[1\] must be a .* of float32 or float64, got \(3,\) int64"):
        ops.checksum([numbers, torch.arange(3)])
    if not uses_reference():
        with pytest.raises(RuntimeError, match="tensors must be float32 or float64"):
            torch.ops.softrank_ext.checksum([numbers, torch.arange(3)])
    assert ops.checksum([numbers.view(30, 10).T]) == ops.checksum([numbers.view(30, 10).T.contiguous()])


@needs_compiled
@on_x86
@pytest.mark.parametrize("capability", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(capability):
    run = _run_with_capability(capability)
    if capability in _capabilities_here():
        assert run.returncode == 0, run.stderr
        assert run.stdout.split() == [capability, digest_of_answers()]
    else:
        assert run.returncode != 0
        assert f"SOFTRANK_CPU_CAPABILITY asks for {capability}, which this processor lacks" in run.stderr


@needs_compiled
@on_x86
def test_unknown_instruction_set_is_refused():
    run = _run_with_capability("avx3")
    assert run.returncode != 0
    assert "SOFTRANK_CPU_CAPABILITY must be baseline, avx2 or avx512, got avx3" in run.stderr


# Errors


def test_reflect_errors():
    with pytest.raises(TypeError, match=r"^x must be a float tensor of float32 or float64, got list$"):
        ops.reflect([0.5])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^x must be a float tensor of float32 or float64, got \(3,\) int64$"):
        ops.reflect(torch.arange(3))
    with pytest.raises(ValueError, match=r"got \(3,\) bfloat16$"):
        ops.reflect(torch.zeros(3, dtype=torch.bfloat16))


def test_decode_chamber_errors():
    wanted, hint = r"^soft_ranks must be a \(B, N\) tensor of float32 or float64, got ", r"; one row may be \(N,\)$"
    with pytest.raises(TypeError, match=wanted + "list" + hint):
        ops.decode_chamber(EXAMPLE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=wanted + r"\(2, 3, 4\) float32" + hint):
        ops.decode_chamber(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=wanted + r"\(\) float32" + hint):
        ops.decode_chamber(torch.tensor(0.5))
    with pytest.raises(ValueError, match=wanted + r"\(2, 3\) int64" + hint):
        ops.decode_chamber(torch.zeros(2, 3, dtype=torch.int64))
    wanted = r"^mask must be a bool tensor of the shape of soft_ranks \(2, 3\), got "
    for mask, got in (
        (torch.ones(2, 3), r"\(2, 3\) float32"),
        (torch.ones(3, dtype=torch.bool), r"\(3,\) bool"),
        ([[True] * 3] * 2, "list"),
    ):
        with pytest.raises(ValueError, match=wanted + got + "$"):
            ops.decode_chamber(torch.zeros(2, 3), mask)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^mask must be a bool tensor of the shape of soft_ranks \(3,\), got list$"):
        ops.decode_chamber(torch.zeros(3), [True] * 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^mask must be on the device of soft_ranks, cpu, got meta$"):
        ops.decode_chamber(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool, device="meta"))


@each_dtype
def test_decode_chamber_refuses_nan(dtype):
    soft_ranks = torch.zeros(4, 300, dtype=dtype)
    soft_ranks[2, 7] = soft_ranks[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"^soft_ranks must not hold NaN, got NaN at row 2, item 7$"):
        ops.decode_chamber(soft_ranks)
    mask = torch.ones(4, 300, dtype=torch.bool)
    mask[2, 7] = False
    with pytest.raises(ValueError, match=r"got NaN at row 3, item 1$"):
        ops.decode_chamber(soft_ranks, mask)
    with pytest.raises(ValueError, match=r"got NaN at row 0, item 1$"):
        ops.decode_chamber(torch.tensor([0.5, math.nan], dtype=dtype))


def test_pick_errors():
    scores, remaining, uniform = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2)
    wanted = r"^scores must be a \(B, N\) tensor of float32 or float64, got "
    with pytest.raises(TypeError, match=wanted + "list$"):
        ops.pick([[0.0]], remaining, uniform)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=wanted + r"\(3,\) float32$"):
        ops.pick(torch.zeros(3), remaining, uniform)
    wanted = r"^remaining must be a bool tensor of the shape of scores \(2, 3\), got "
    with pytest.raises(ValueError, match=wanted + r"\(2, 3\) int64$"):
        ops.pick(scores, remaining.long(), uniform)
    with pytest.raises(ValueError, match=wanted + r"\(3,\) bool$"):
        ops.pick(scores, remaining[0], uniform)
    with pytest.raises(ValueError, match=r"^remaining must be on the device of scores, cpu, got meta$"):
        ops.pick(scores, remaining.to("meta"), uniform)
    with pytest.raises(ValueError, match=r"^pick takes either uniform or greedy=True, got neither$"):
        ops.pick(scores, remaining)
    with pytest.raises(ValueError, match=r"^pick takes either uniform or greedy=True, got both$"):
        ops.pick(scores, remaining, uniform, greedy=True)
    with pytest.raises(TypeError, match=r"^uniform must be a \(B,\) tensor of float32 or float64, got float$"):
        ops.pick(scores, remaining, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^uniform must be a \(B,\) tensor .* got \(2, 3\) float32$"):
        ops.pick(scores, remaining, scores)
    with pytest.raises(ValueError, match=r"^uniform must be \(2,\), one number per row, got \(3,\) float32$"):
        ops.pick(scores, remaining, torch.zeros(3))


def test_scores_of_no_items_have_the_empty_order():
    for uniform in (None, torch.zeros(3, 0)):
        order, log_probs = ops.decode_scores(
            torch.zeros(3, 0, 0), torch.zeros(3, 0, dtype=torch.bool), ops.Choices(uniform=uniform)
        )
        assert order.shape == log_probs.shape == (3, 0)


@pytest.mark.parametrize("kernel", [ops.pick, ops.pick_reference], ids=("op", "reference"))
def test_pick_refuses_an_empty_set_and_nan(kernel):
    scores, remaining, uniform = torch.zeros(900, 70), torch.ones(900, 70, dtype=torch.bool), torch.zeros(900)
    remaining[[5, 700]] = False
    with pytest.raises(RuntimeError, match=r"remaining must hold at least one item per row, got none in row 5(\n|$)"):
        kernel(scores, remaining, uniform)
    with pytest.raises(RuntimeError, match="got none in row 0"):
        kernel(torch.zeros(2, 0), torch.ones(2, 0, dtype=torch.bool), torch.zeros(2))
    remaining[[5, 700]] = True
    scores[[3, 800], 69] = math.nan
    with pytest.raises(RuntimeError, match=r"scores must not be NaN where remaining is True, got NaN in row 3(\n|$)"):
        kernel(scores, remaining, uniform)
    remaining[[3, 800], 69] = False
    choice, _ = kernel(scores, remaining, uniform)
    assert choice.tolist() == [0] * 900


@needs_compiled
def test_kernels_check_what_the_wrappers_promise():
    with pytest.raises(RuntimeError, match=r"soft_ranks must be \(B, N\), got 3 dimensions"):
        torch.ops.softrank_ext.decode_chamber(torch.zeros(1, 2, 3), None)
    with pytest.raises(RuntimeError, match=r"scores must be \(B, N\), got 1 dimensions"):
        torch.ops.softrank_ext.pick(torch.zeros(3), torch.ones(3, dtype=torch.bool), None)
    with pytest.raises(RuntimeError, match="x must be float32 or float64"):
        torch.ops.softrank_ext.reflect(torch.zeros(3, dtype=torch.float16))


def test_fake_kernels_repeat_the_shape_checks():
    with torch._subclasses.FakeTensorMode():
        with pytest.raises(RuntimeError, match=r"soft_ranks must be \(B, N\), got \(3,\)"):
            torch.ops.softrank_ext.decode_chamber(torch.empty(3), None)
        with pytest.raises(RuntimeError, match=r"scores must be \(B, N\), got \(3,\)"):
            torch.ops.softrank_ext.pick(torch.empty(3), torch.empty(3, dtype=torch.bool), None)
        with pytest.raises(RuntimeError, match="remaining must have the shape of scores"):
            torch.ops.softrank_ext.pick(torch.empty(3, 2), torch.empty(2, 2, dtype=torch.bool), None)


_SCORES, _MASK = torch.rand(2, 3, 3), torch.ones(2, 3, dtype=torch.bool)
_ORDERS = torch.tensor([[1, 2, 0], [2, 0, 1]])


@needs_compiled
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("decode_chamber", (_SCORES[0], torch.ones(3, 2, dtype=torch.bool)), r"mask must be \(3, 3\), got \(3, 2\)"),
        ("decode_chamber", (_SCORES[0], torch.ones(3, 3)), "mask has the wrong dtype"),
        ("lift_order", (_ORDERS.int(), _ORDERS, None, torch.float32), "order has the wrong dtype"),
        ("lift_order", (_ORDERS, torch.tensor([[0, 0, 1], [0, 1, 2]]), None, torch.float32),
         "once per row, row 0 holds"),
        ("lift_order", (_ORDERS, _ORDERS, torch.ones(2, 3), torch.float32), "mask has the wrong dtype"),
        ("pick", (_SCORES[0], torch.ones(2, 3, dtype=torch.bool), None), r"remaining must be \(3, 3\), got \(2, 3\)"),
        ("pick", (_SCORES[0], torch.ones(3, 3, dtype=torch.bool), torch.rand(2)), r"uniform must be \(3\), got \(2\)"),
        ("pick", (_SCORES[0], torch.ones(3, 3, dtype=torch.bool), torch.tensor([0.1, math.nan, 0.2])),
         "uniform must be from 0 to 1, got nan in row 1"),
        ("decode_scores", (_SCORES[:, :2], _MASK), "scores must be .*place by slot, got 2 by 3"),
        ("decode_scores", (_SCORES, _MASK[:1]), r"mask must be \(2, 3\), got \(1, 3\)"),
        ("decode_scores", (_SCORES, _MASK, None, torch.tensor([[1, 1, 0], [0, 1, 2]])),
         "forced_order must list each real slot once before padding, row 0 has 1 at place 1"),
        ("decode_scores", (_SCORES, _MASK, None, torch.full((2, 3), 10**9)),
         "forced_order must hold slots from 0 to 2"),
        ("decode_scores", (_SCORES, _MASK, None, None, None, 1.0, torch.zeros(2, 3, dtype=torch.int64)),
         "draft must list each real slot once before padding, row 0 has 0 at place 1"),
        ("decode_scores", (_SCORES, _MASK, None, None, None, 1e-40), "temperature must be positive and finite in the"),
        ("decode_scores", (_SCORES, _MASK, None, None, None, 1.0, None, None, torch.zeros(2, 3, 3, dtype=torch.bool)),
         "constraints must leave an order, they leave none in row"),
        ("decode_scores", (_SCORES, _MASK, torch.rand(6)), r"uniform must be \(2, 3\), got \(6\)"),
        ("decode_scores", (_SCORES, _MASK, None, _ORDERS.flatten()), r"forced_order must be \(2, 3\), got \(6\)"),
        ("decode_scores", (_SCORES, _MASK, None, None, None, 1.0, None, torch.zeros(18, dtype=torch.bool)),
         r"before must be \(2, 3, 3\), got \(18\)"),
        ("allowed_picks", (torch.tensor([[-1], [0]]), _MASK, None, None, None),
         "prefix must hold slots from 0 to 2, got -1"),
        ("allowed_picks", (_ORDERS, _MASK, torch.ones(2, 3, 2, dtype=torch.bool), None, None),
         r"before must be \(2, 3, 3\)"),
        ("random_uniform", (torch.rand(3), 1, 0, 0, 5, torch.float32), "samples has the wrong dtype"),
        ("random_uniform", (torch.arange(3), 1, 0, 0, -5, torch.float32), "count must be from 0 to 2"),
        ("project", (torch.rand(2, 3, 4), torch.rand(5, 4), torch.zeros(1).expand(64)),
         "packed must be packed weights, a"),
        ("pack_projection", (torch.rand(5, 8, 0, 3),), r"weight must be \(outputs, D\), got 4 dimensions"),
    ],
)  # fmt: skip
def test_bad_calls_of_the_ops_are_told(name, arguments, message):
    """Each of these crashed, hung or read foreign memory."""
    with pytest.raises(RuntimeError, match=message):
        getattr(torch.ops.softrank_ext, name)(*arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("pick", (_SCORES[0], torch.ones(3, 3, dtype=torch.bool, device="meta"), None), "remaining .* scores, cpu"),
        ("decode_chamber", (torch.rand(2, 3), torch.ones(2, 3, dtype=torch.bool, device="meta")), "mask .* soft_ranks"),
        ("lift_order", (_ORDERS, _ORDERS.to("meta"), None, torch.float32), "slots .* order, cpu"),
        ("project", (torch.rand(2, 3, 4, device="meta"), torch.rand(5, 4), None), "weight .* x, meta, got cpu"),
        ("decode_scores", (_SCORES, _MASK, torch.rand(2, 3, device="meta")), "uniform .* scores, cpu"),
    ],
)
def test_tensors_of_one_call_are_on_one_device(name, arguments, message):
    """These returned memory that nothing was written to."""
    with pytest.raises(RuntimeError, match=message.replace(" .* ", " must be on the device of ")):
        getattr(torch.ops.softrank_ext, name)(*arguments)


def test_the_wrappers_raise_value_errors_that_are_runtime_errors():
    for call in (
        lambda: ops.pick(_SCORES[0], torch.zeros(3, 3, dtype=torch.bool), torch.rand(3)),
        lambda: ops.project(torch.rand(2, 3, 4), torch.rand(5, 4), packed=torch.zeros(1).expand(64)),
        lambda: ops.decode_scores(_SCORES, _MASK, ops.Choices(allowed=torch.zeros(2, 3, 3, dtype=torch.bool))),
    ):
        with pytest.raises(ops.OpError, match=" must "):
            call()
    assert issubclass(ops.OpError, ValueError) and issubclass(ops.OpError, RuntimeError)
    with pytest.raises(ValueError, match=r"weight must be a \(outputs, D\) tensor"):
        ops.pack_projection(torch.rand(5, 8, 0, 3))
    with pytest.raises(TypeError, match="x must be a tensor, got NoneType"):
        torch.ops.softrank_ext.reflect(None)


def test_numbers_that_no_pick_can_be_made_with_are_told():
    for uniform in (math.nan, -0.1, 1.5, math.inf):
        with pytest.raises(ValueError, match="uniform must be from 0 to 1"):
            ops.decode_scores(_SCORES, _MASK, ops.Choices(uniform=torch.full((2, 3), uniform)))
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 1e-40"):
        ops.decode_scores(_SCORES, _MASK, ops.Choices(temperature=1e-40))


def test_a_large_search_for_a_completion_is_quick():
    """One group and one forbidden place at N = 1000: it took minutes, as every item of a kind was searched anew."""
    N = 1000
    allowed = torch.ones(1, N, N, dtype=torch.bool)
    allowed[:, 5, 7] = False
    group = torch.full((1, N), -1)
    group[0, :3] = 0
    prefix = torch.arange(N - 1, N - 4, -1)[None]
    picks = ops.allowed_picks(prefix, torch.ones(1, N, dtype=torch.bool), None, allowed, group)
    assert picks[0, 0].all() and picks[0, 3].sum() == N - 3


@needs_compiled
def test_a_search_ends_in_seconds():
    """Half of all places forbidden at random and 60 groups: few states, each of which takes long."""
    N, begun = 3000, time.process_time()
    allowed = torch.rand(1, N, N, generator=torch.Generator().manual_seed(0)) < 0.5
    group = (torch.arange(N) // 50)[None]
    prefix = torch.zeros(1, 0, dtype=torch.int64)
    with pytest.raises(ops.OpError, match="constraints are too hard to check"):
        ops.allowed_picks(prefix, torch.ones(1, N, dtype=torch.bool), None, allowed, group)
    assert time.process_time() - begun < 30
