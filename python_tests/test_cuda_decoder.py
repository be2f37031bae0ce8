"""The CUDA decoder's own source, compiled for the host, against the plain-torch reference.

This shows its logic: masks, choices, drafts, rules, failures, and that rows per block change no bit. It says nothing
about speed, nor about what a GPU does; `.ci/sanitizers` runs the same source under the sanitizers.
"""

import ctypes
import math
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from testing.decoder_on_host import HostDecoder, Plan, compiled_for_host
from torch import Tensor

from softrank_ext import Constraints, ops
from softrank_ext.constraints import rules_of
from softrank_ext.ops.layers import weight_shapes

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}


class Sizes(NamedTuple):
    B: int
    N: int
    D: int
    F: int
    heads: int
    layers: int


class Case(NamedTuple):
    """Sizes, how rows are laid on blocks, and what else the arguments of a call depend on."""

    sizes: Sizes
    plan: Plan
    dtype: torch.dtype = torch.float64
    norm_first: bool = True
    shares_head: bool = False
    is_masked: bool = False


CASES = (
    Case(Sizes(3, 5, 16, 32, 4, 2), Plan(1)),
    Case(Sizes(3, 5, 16, 32, 4, 2), Plan(4), norm_first=False, shares_head=True, is_masked=True),
    Case(Sizes(1, 1, 16, 32, 4, 1), Plan(1)),
    Case(Sizes(2, 2, 8, 12, 2, 1), Plan(2, attention_warps=1), is_masked=True),
    # Widths that are no multiple of 4, so that matrices and activations are padded.
    Case(Sizes(5, 9, 18, 27, 3, 2), Plan(8, attention_warps=2), is_masked=True),
    Case(Sizes(17, 6, 16, 24, 2, 1), Plan(16), norm_first=False),
    # More than a warp's lanes of slots; heads of one channel, of as many as a warp has lanes, and of more.
    Case(Sizes(2, 40, 8, 16, 8, 1), Plan(2), is_masked=True),
    Case(Sizes(2, 70, 64, 40, 2, 1), Plan(2, attention_warps=4), norm_first=False, is_masked=True),
    Case(Sizes(2, 9, 64, 128, 1, 1), Plan(2)),
    Case(Sizes(3, 9, 24, 40, 1, 1), Plan(4), dtype=torch.float32, shares_head=True),
    # The sizes of the paper's models.
    Case(Sizes(3, 9, 128, 512, 8, 3), Plan(8, places_per_pass=2), dtype=torch.float32, is_masked=True),
    Case(Sizes(1, 4, 512, 300, 8, 1), Plan(1), dtype=torch.float32),
)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostDecoder:
    return HostDecoder(compiled_for_host("decoder_on_host.cpp", tmp_path_factory.mktemp("decoder_on_host")))


def arguments_of(case: Case, seed: int = 0) -> tuple[ops.Transformer, ops.DecoderInputs, Tensor]:
    """A decoder, inputs whose laws are far from uniform, and uniform numbers (B, N)."""
    B, N, D, F, heads, layers = case.sizes
    generator = torch.Generator().manual_seed(100 * seed + N)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=case.dtype, generator=generator)

    weights = []
    for name, shape in zip(ops.layer_weight_names("decoder"), weight_shapes("decoder", D, F), strict=True):
        is_norm = "norm_weight" in name
        scale = shape[-1] ** -0.5 if len(shape) == 2 else 0.1
        weights += [is_norm + scale * normal(*shape) for _ in range(layers)]
    per_layer = [weight for layer in range(layers) for weight in weights[layer::layers]]
    mask = torch.ones(B, N, dtype=torch.bool)
    if case.is_masked:
        mask = torch.rand(B, N, generator=generator) < 0.6
        mask[0] = False  # a row without a real slot, and one with a single one
        mask[-1] = torch.arange(N) == N // 2
    heads_of = 1 if case.shares_head else B
    inputs = ops.DecoderInputs(
        normal(B, N, D), normal(B, N, D), normal(B, D), normal(N, D), 1.5 * D**-0.5 * normal(heads_of, N, D),
        normal(heads_of, N), mask,
    )  # fmt: skip
    inputs.memory[~mask] = inputs.tokens[~mask] = math.nan  # what padding holds has no effect
    decoder = ops.Transformer([*per_layer, 1 + 0.1 * normal(D), 0.1 * normal(D)], None, heads, case.norm_first)
    return decoder, inputs, torch.rand(B, N, dtype=case.dtype, generator=generator)


def random_slots(mask: Tensor, seed: int) -> Tensor:
    """Orders over slots (B, N), real ones first."""
    order = torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)
    return order.gather(1, (~mask.gather(1, order)).to(torch.int8).argsort(dim=1, stable=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(host: HostDecoder, case: Case) -> None:
    decoder, inputs, uniform = arguments_of(case)
    forced = random_slots(inputs.mask, 1)
    for choices in (
        ops.Choices(),
        ops.Choices(uniform=uniform),
        ops.Choices(uniform=uniform, temperature=0.5),
        ops.Choices(forced_order=forced, temperature=1.5),
        ops.Choices(uniform=uniform, forced_order=forced, forced_places=2 % case.sizes.N),
    ):
        expected = ops.decode_order_reference(decoder, inputs, choices)
        actual = host.decode_order(decoder, inputs, choices, case.plan)
        assert torch.equal(actual.order, expected.order)
        assert torch.equal(actual.work, expected.work)
        tolerance = TOLERANCE[case.dtype]
        torch.testing.assert_close(actual.log_probs, expected.log_probs, atol=tolerance, rtol=tolerance)


LAID_OUT = Case(Sizes(9, 10, 32, 64, 4, 2), Plan(1), torch.float32, is_masked=True)


@pytest.mark.parametrize(
    "case", (LAID_OUT, LAID_OUT._replace(sizes=Sizes(9, 5, 16, 24, 2, 1), dtype=torch.float64)), ids=str
)
def test_rows_per_block_and_batch_change_no_bit(host: HostDecoder, case: Case) -> None:
    decoder, inputs, uniform = arguments_of(case)
    choices = ops.Choices(uniform=uniform)
    results = [host.decode_order(decoder, inputs, choices, Plan(tokens)) for tokens in (1, 2, 4, 8, 16)]
    results += [
        host.decode_order(decoder, inputs, choices, Plan(8, places, warps)) for places, warps in ((2, 1), (8, 4))
    ]
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            assert torch.equal(actual, expected)
    row = slice(4, 5)
    alone = ops.DecoderInputs(*(x if x is inputs.places else x[row] for x in inputs))
    result = host.decode_order(decoder, alone, ops.Choices(uniform=uniform[row]), Plan(4))
    assert torch.equal(result.order, results[0].order[row])
    assert torch.equal(result.log_probs, results[0].log_probs[row])


@pytest.mark.parametrize("plan", (Plan(4, 4), Plan(8, 2), Plan(16, 16, 2)), ids=str)
def test_a_draft_changes_no_bit(host: HostDecoder, plan: Plan) -> None:
    decoder, inputs, uniform = arguments_of(LAID_OUT)
    count = inputs.mask.sum(1)
    for choices in (ops.Choices(uniform=uniform), ops.Choices()):
        plain = host.decode_order(decoder, inputs, choices, Plan(4))
        half_right = plain.order.clone()
        half_right[:, 3:5] = half_right[:, 3:5].flip(1)
        half_right = half_right.gather(
            1, (~inputs.mask.gather(1, half_right)).to(torch.int8).argsort(dim=1, stable=True)
        )
        for draft in (plain.order, half_right, random_slots(inputs.mask, 2)):
            drafted = host.decode_order(decoder, inputs, choices._replace(draft=draft), plan)
            assert torch.equal(drafted.order, plain.order)
            assert torch.equal(drafted.log_probs, plain.log_probs)
            if draft is plain.order:  # passes are as long as the block lets them be
                passes = ((count - 1).clamp(min=0) + plan.places_per_pass - 1) // plan.places_per_pass
                assert torch.equal(drafted.work[:, 0], passes)
                assert torch.equal(drafted.work[:, 1], plain.work[:, 1])
            else:
                assert (drafted.work[:, 0] <= plain.work[:, 0]).all()
                assert (drafted.work[:, 1] >= plain.work[:, 1]).all()


@pytest.mark.parametrize(
    "constraints",
    (
        Constraints(before=[(0, 3), (3, 1), (5, 2)]),
        Constraints(pins={4: 2}, forbidden=[(0, 0), (1, 3)]),
        Constraints(together=[(0, 5, 2)], before=[(5, 2)], pins={1: 0}),
    ),
    ids=("pairs", "places", "groups"),
)
def test_rules_are_kept_with_one_wait_per_place(host: HostDecoder, constraints: Constraints) -> None:
    case = Case(Sizes(3, 6, 16, 24, 2, 1), Plan(2))
    decoder, inputs, uniform = arguments_of(case)
    rules = rules_of(constraints, 3, 6)
    assert rules is not None
    for choices in (ops.Choices(uniform=uniform), ops.Choices()):
        choices = choices._replace(before=rules.before, allowed=rules.allowed, group=rules.group)
        expected = ops.decode_order_reference(decoder, inputs, choices)
        before = host.reads
        actual = host.decode_order(decoder, inputs, choices, case.plan)
        assert host.reads - before == 6 - 2  # with that for the rules themselves, one less than places
        assert torch.equal(actual.order, expected.order)
        assert torch.equal(actual.work, expected.work)
        torch.testing.assert_close(actual.log_probs, expected.log_probs, atol=1e-11, rtol=1e-11)


def test_rules_of_masked_rows(host: HostDecoder) -> None:
    case = Case(Sizes(4, 6, 16, 24, 2, 1), Plan(2), is_masked=True)
    decoder, inputs, uniform = arguments_of(case)
    inputs.mask[0, :2] = True
    inputs.memory.nan_to_num_(), inputs.tokens.nan_to_num_()
    real = [row.nonzero()[:, 0].tolist() for row in inputs.mask]
    chains = [Constraints(before=list(pairwise(slots[::-1]))) for slots in real]
    rules = rules_of(
        [chain if len(slots) > 1 else None for chain, slots in zip(chains, real, strict=True)], 4, 6, inputs.mask
    )
    assert rules is not None
    choices = ops.Choices(uniform=uniform, before=rules.before, allowed=rules.allowed, group=rules.group)
    order = host.decode_order(decoder, inputs, choices, case.plan).order.tolist()
    for slots, row in zip(real, order, strict=True):
        assert row[: len(slots)] == slots[::-1]


def test_rules_that_leave_nothing_are_an_error(host: HostDecoder) -> None:
    case = Case(Sizes(2, 4, 16, 24, 2, 1), Plan(2))
    decoder, inputs, _ = arguments_of(case)
    nothing = ops.Choices(allowed=torch.zeros(2, 4, 4, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="constraints leave no order"):
        host.decode_order(decoder, inputs, nothing, case.plan)


@pytest.mark.parametrize("plan", (Plan(1), Plan(4), Plan(8, 4)), ids=str)
def test_nan_marks_its_row_alone(host: HostDecoder, plan: Plan) -> None:
    case = Case(Sizes(5, 7, 16, 24, 2, 1), plan)
    decoder, inputs, uniform = arguments_of(case)
    right = host.decode_order(decoder, inputs, ops.Choices(uniform=uniform), plan)
    inputs.memory[3, 2] = math.nan
    wrong = host.decode_order(decoder, inputs, ops.Choices(uniform=uniform, draft=right.order), plan)
    others = torch.tensor([0, 1, 2, 4])
    assert torch.equal(wrong.order[others], right.order[others])
    assert torch.equal(wrong.log_probs[others], right.log_probs[others])
    assert wrong.log_probs[3, :-1].isnan().all()
    assert wrong.order[3].sort().values.tolist() == list(range(7))  # the row goes on, and ends


@pytest.mark.parametrize(("dtype", "kind"), ((torch.float64, ""), (torch.float32, "_tensor")), ids=("plain", "tensor"))
def test_a_thousand_slots(host: HostDecoder, dtype: torch.dtype, kind: str) -> None:
    case = Case(Sizes(1, 1000, 8, 8, 1, 1), Plan(1, attention_warps=2), dtype)
    decoder, inputs, _ = arguments_of(case)
    forced = random_slots(inputs.mask, 3)
    choices = ops.Choices(forced_order=forced)
    few = choices._replace(draft=forced)  # a draft that is right makes 1,000 places 63 passes
    actual = host.decode_order(decoder, inputs, few, Plan(16, 16, 2), kind)
    expected = ops.decode_order_reference(decoder, inputs, choices)
    assert torch.equal(actual.order, expected.order)
    assert actual.work.tolist() == [[63, 999]]
    tolerance = 10 * TOLERANCE[dtype]
    torch.testing.assert_close(actual.log_probs, expected.log_probs, atol=tolerance, rtol=tolerance)


TENSOR_CASES = (
    Case(Sizes(3, 9, 128, 512, 8, 2), Plan(8, 2), torch.float32),
    Case(Sizes(10, 7, 64, 128, 4, 2), Plan(8), torch.float32, norm_first=False, shares_head=True, is_masked=True),
    # Widths that are no multiple of a tile's.
    Case(Sizes(5, 6, 36, 84, 4, 2), Plan(16), torch.float32, is_masked=True),
)


def test_tensor_cores_are_as_exact_as_float32(host: HostDecoder) -> None:
    """Their error against float64, in the mean square, is no larger than that of torch in float32."""
    squares, plain_squares = [], []
    for case in TENSOR_CASES:
        for seed in range(2):
            decoder, inputs, uniform = arguments_of(case, seed)
            choices = ops.Choices(uniform=uniform)
            plain = ops.decode_order_reference(decoder, inputs, choices)
            actual = host.decode_order(decoder, inputs, choices, case.plan, "_tensor")
            assert torch.equal(actual.order, plain.order)
            assert torch.equal(actual.work, plain.work)
            exact = ops.decode_order_reference(
                decoder._replace(weights=[weight.double() for weight in decoder.weights]),
                ops.DecoderInputs(*(x if x.dtype == torch.bool else x.double() for x in inputs)),
                ops.Choices(forced_order=plain.order),
            ).log_probs
            squares.append((actual.log_probs - exact).square().flatten())
            plain_squares.append((plain.log_probs - exact).square().flatten())
    error, plain_error = (torch.cat(parts).mean().sqrt().item() for parts in (squares, plain_squares))
    print(f"error against float64: tensor cores {error:.1e}, torch in float32 {plain_error:.1e}")
    assert error <= plain_error


@pytest.mark.parametrize("sizes", (Sizes(2, 3, 256, 128, 8, 1), Sizes(1, 2, 512, 64, 8, 1)), ids=str)
def test_tensor_cores_at_large_widths(host: HostDecoder, sizes: Sizes) -> None:
    decoder, inputs, uniform = arguments_of(Case(sizes, Plan(8), torch.float32))
    choices = ops.Choices(uniform=uniform)
    expected = ops.decode_order_reference(decoder, inputs, choices)
    actual = host.decode_order(decoder, inputs, choices, Plan(8, 4), "_tensor")
    assert torch.equal(actual.order, expected.order)
    torch.testing.assert_close(actual.log_probs, expected.log_probs, atol=2e-5, rtol=2e-5)


def test_tensor_cores_change_no_bit_by_layout(host: HostDecoder) -> None:
    case = LAID_OUT._replace(sizes=Sizes(9, 6, 32, 64, 4, 1))
    decoder, inputs, uniform = arguments_of(case)
    choices = ops.Choices(uniform=uniform)
    first = host.decode_order(decoder, inputs, choices, Plan(8), "_tensor")
    for plan, draft in ((Plan(16), None), (Plan(8, 8, 1), None), (Plan(16, 4), first.order)):
        result = host.decode_order(decoder, inputs, choices._replace(draft=draft), plan, "_tensor")
        assert torch.equal(result.order, first.order)
        assert torch.equal(result.log_probs, first.log_probs)


@pytest.mark.parametrize(
    ("rows", "has_draft", "kilobytes", "width", "slots", "plan"),
    (
        (1, False, 64, 128, 64, (1, 1, 8, 0)),  # one row
        (1, True, 64, 128, 64, (4, 4, 8, 0)),  # its draft fills the block
        (200, True, 64, 128, 64, (4, 1, 8, 0)),  # one round of 132 processors instead of two
        (10_000, False, 96, 128, 64, (16, 1, 8, 0)),  # many rows
        (10_000, False, 64, 256, 64, (4, 1, 8, 0)),  # less shared memory
        (1, False, 64, 512, 1000, (1, 1, 8, 0)),
        (10_000, False, 64, 512, 1000, (1, 1, 8, 0)),
        (1, False, 64, 512, 4000, (1, 1, 2, 0)),  # fewer warps attend at once
        (1, False, 64, 8192, 4000, (0, 1, 1, 0)),  # does not fit
        (1, False, 227, 128, 64, (8, 8, 8, 1)),  # a tile of tensor cores has 8 tokens, be they idle
        (200, False, 227, 128, 64, (8, 4, 8, 1)),
        (300, True, 227, 128, 64, (8, 2, 8, 1)),
        (1024, True, 227, 128, 64, (8, 1, 8, 1)),
        (10_000, True, 227, 128, 64, (16, 1, 8, 1)),
        (10_000, True, 227, 512, 1000, (8, 1, 8, 1)),
        (10_000, True, 99, 512, 1000, (4, 1, 8, 0)),  # too wide for a tile here
    ),
)  # fmt: skip
def test_plan(
    host: HostDecoder, rows: int, has_draft: bool, kilobytes: int, width: int, slots: int, plan: tuple[int, ...]
) -> None:
    """Tokens of a block, places of a row in it, warps that attend, tensor cores; GPUs below 96 KB have none."""
    made = (ctypes.c_int64 * 4)()
    sizes = map(ctypes.c_int64, (4, width, 4 * width, slots, rows))
    gpu = ctypes.c_int64(132), ctypes.c_int64(1024 * kilobytes), ctypes.c_bool(kilobytes > 96)
    host.library.plan_float32(*sizes, ctypes.c_bool(has_draft), *gpu, made)
    assert tuple(made) == plan
