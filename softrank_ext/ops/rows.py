"""The ops on rows of numbers: fold into the cube, read an order off soft ranks, lift it back, pick one item.

`order[place] = item`, `ranks[item] = place`; rows are independent. Each op: reference, checked wrapper, fake kernel,
gradient where it has one.
"""

from typing import Any

import torch
from torch import Tensor

from softrank_ext.checks import FLOAT_DTYPES, check_mask, check_tensor, described
from softrank_ext.ops.library import LIBRARY, call_op, define


def reflect(x: Tensor) -> Tensor:
    """Fold x of any shape onto [0, 1] with period 2: `m > 1 ? 2 - m : m`, `m = |x| mod 2`.

    Exact for every finite float32 or float64; NaN stays NaN and an infinity gives NaN. Differentiable: the slope
    is 1 or -1, and 1 where x is in [0, 1], its ends included.
    """
    if not isinstance(x, Tensor) or x.dtype not in FLOAT_DTYPES:
        wanted = "x must be a float tensor of float32 or float64"
        raise (ValueError if isinstance(x, Tensor) else TypeError)(f"{wanted}, got {described(x)}")
    folded: Tensor = call_op(torch.ops.softrank_ext.reflect, x)
    return folded


def reflect_reference(x: Tensor) -> Tensor:
    """Fold onto [0, 1] with period 2: `m > 1 ? 2 - m : m` with `m = |x| mod 2`.

    Every operation is exact in floating point, so the fold is exact for any finite x. Infinities have no
    place in the fold and give NaN.
    """
    m = torch.fmod(x.abs(), 2)
    return torch.where(m > 1, 2 - m, m).contiguous()


def reflect_slope(x: Tensor) -> Tensor:
    """Slope of `reflect` at x: 1 on [2k, 2k+1] for x >= 0, -1 on the other cells, mirrored for x < 0; NaN stays."""
    m = torch.fmod(x.abs(), 2)
    slope = torch.where(m > 1, -1.0, 1.0).to(x.dtype) + m * 0
    return torch.where(x < 0, -slope, slope)


def _fake_reflect(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _save_reflect_input(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _reflect_gradient(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * reflect_slope(x)


define("reflect", ("Tensor x",), "Tensor", reflect_reference, _fake_reflect)
torch.library.register_autograd(
    "softrank_ext::reflect", _reflect_gradient, setup_context=_save_reflect_input, lib=LIBRARY
)


def decode_chamber(soft_ranks: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read the order off soft ranks: stable argsort, ties to the lower item.

    soft_ranks: (B, N) or (N,) float32 or float64, one number per item. mask: bool of the same shape, True = real item.
    Returns order and ranks, int64 of the same shape: `order[place] = item`, `ranks[item] = place`. Items whose mask
    is False stand behind all real ones, in index order, whatever their soft ranks.
    Raises ValueError if a real item's soft rank is NaN (skipped while compiling, where data cannot be read).
    """
    is_one_row = isinstance(soft_ranks, Tensor) and soft_ranks.ndim == 1
    check_tensor("soft_ranks", soft_ranks, ("N",) if is_one_row else ("B", "N"), FLOAT_DTYPES, "; one row may be (N,)")
    if mask is not None:
        check_mask("mask", mask, "soft_ranks", soft_ranks)
    if is_one_row:
        order, ranks = decode_chamber(soft_ranks[None], None if mask is None else mask[None])
        return order[0], ranks[0]
    if not torch.compiler.is_compiling():
        _check_no_nan(soft_ranks, mask)
    order, ranks = call_op(torch.ops.softrank_ext.decode_chamber, soft_ranks, mask)
    return order, ranks


def _check_no_nan(soft_ranks: Tensor, mask: Tensor | None) -> None:
    # A sum is NaN if a term is (or if infinities cancel): one cheap pass clears the common case.
    if not bool(soft_ranks.sum().isnan()):
        return
    is_nan = soft_ranks.isnan() if mask is None else soft_ranks.isnan() & mask
    if bool(is_nan.any()):
        row, item = is_nan.nonzero()[0].tolist()
        raise ValueError(f"soft_ranks must not hold NaN, got NaN at row {row}, item {item}")


def decode_chamber_reference(soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Order and ranks of soft ranks (B, N): stable, ties to the lower item; masked-out items come last, by index."""
    order = torch.argsort(soft_ranks, dim=1, stable=True)
    if mask is not None:
        is_padding = ~mask.gather(1, order)
        order = order.gather(1, torch.argsort(is_padding, dim=1, stable=True))
        # Padding is listed by index, whatever its soft ranks hold.
        padding_by_item = torch.argsort(~mask, dim=1, stable=True)
        order = torch.where(mask.gather(1, order), order, padding_by_item)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return order, ranks


def _fake_decode_chamber(soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(soft_ranks.ndim == 2, lambda: f"soft_ranks must be (B, N), got {tuple(soft_ranks.shape)}")
    order = soft_ranks.new_empty(soft_ranks.shape, dtype=torch.int64)
    return order, torch.empty_like(order)


define(
    "decode_chamber",
    ("Tensor soft_ranks", "Tensor? mask"),
    "(Tensor order, Tensor ranks)",
    decode_chamber_reference,
    _fake_decode_chamber,
)


def read_order(z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`reflect`, then `decode_chamber`: soft ranks, order and ranks of z (B, N), without gradients.

    Raises ValueError if z of a real item is NaN or infinite (skipped while compiling, where data cannot be read).
    """
    check_tensor("z", z, ("B", "N"), FLOAT_DTYPES)
    if mask is not None:
        check_mask("mask", mask, "z", z)
    soft_ranks, order, ranks = call_op(torch.ops.softrank_ext.read_order, z, mask)
    if not torch.compiler.is_compiling():
        _check_no_nan(soft_ranks, mask)
    return soft_ranks, order, ranks


@torch.no_grad()
def read_order_reference(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`reflect`, then `decode_chamber`, by the kernels of the device."""
    soft_ranks = torch.ops.softrank_ext.reflect(z)
    return soft_ranks, *torch.ops.softrank_ext.decode_chamber(soft_ranks, mask)


def _fake_read_order(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_reflect(z), *_fake_decode_chamber(z, mask)


define(
    "read_order",
    ("Tensor z", "Tensor? mask"),
    "(Tensor soft_ranks, Tensor order, Tensor ranks)",
    read_order_reference,
    _fake_read_order,
)


def lift_order(
    order: Tensor, slots: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """`permutations.compose`, `permutations.ranks_of` and `bridge.lift_to_grid` in one: from slots back to soft ranks.

    order: (B, N) int64, the items of the slots. slots: (B, N) int64, an order over them. mask: (B, N) bool, by item.
    Returns the order over items, its ranks, and soft ranks of dtype on the paper's grid.
    """
    check_tensor("order", order, ("B", "N"), torch.int64)
    check_tensor("slots", slots, ("B", "N"), torch.int64)
    if order.shape != slots.shape:
        raise ValueError(f"slots must have the shape of order {tuple(order.shape)}, got {tuple(slots.shape)}")
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if mask is not None:
        check_mask("mask", mask, "order", order)
    order, ranks, soft_ranks = call_op(torch.ops.softrank_ext.lift_order, order, slots, mask, dtype)
    return order, ranks, soft_ranks


def lift_order_reference(
    order: Tensor, slots: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Order over items of an order over slots, its ranks, and these on the grid from 0 to 1; all (B, N), padding 0."""
    order = order.gather(1, slots)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    ranks = torch.full_like(order, -1).scatter_(1, order, places)
    if order.device.type == "cpu" and bool((ranks < 0).any()):
        row = int((ranks < 0).any(1).nonzero()[0])
        wanted = f"each of 0 to {order.shape[1] - 1} once per row"
        raise RuntimeError(f"order and slots must hold {wanted}, row {row} holds something else")
    real = torch.ones_like(order, dtype=torch.bool) if mask is None else mask
    steps = real.sum(1, keepdim=True).clamp(min=2) - 1  # (B, 1)
    return order, ranks, (ranks.to(dtype) / steps).masked_fill(~real, 0.0)


def _fake_lift_order(
    order: Tensor, slots: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(order), torch.empty_like(order), torch.empty_like(order, dtype=dtype)


define(
    "lift_order",
    ("Tensor order", "Tensor slots", "Tensor? mask", "ScalarType dtype"),
    "(Tensor order, Tensor ranks, Tensor soft_ranks)",
    lift_order_reference,
    _fake_lift_order,
)


def pick(
    scores: Tensor, remaining: Tensor, uniform: Tensor | None = None, *, greedy: bool = False
) -> tuple[Tensor, Tensor]:
    """Choose one item per row from the softmax of scores over the remaining set.

    scores: (B, N) float32 or float64. remaining: (B, N) bool, True = may be chosen. uniform: (B,) in [0, 1), the
    random number that each row's inverse CDF is read at; or greedy=True for the highest score (ties to the lower item).
    Returns choice (B,) int64 and log_prob (B,), the log-probability of the choice in the softmax.
    A score of -inf is never chosen beside a larger one; scores of +inf share all the probability; if all that remain
    are -inf they are equally likely. Raises RuntimeError on a row with nothing remaining or with a NaN score.
    """
    check_tensor("scores", scores, ("B", "N"), FLOAT_DTYPES)
    check_mask("remaining", remaining, "scores", scores)
    if greedy == (uniform is not None):
        raise ValueError("pick takes either uniform or greedy=True, got " + ("both" if greedy else "neither"))
    if uniform is not None:
        check_tensor("uniform", uniform, ("B",), FLOAT_DTYPES)
        if uniform.shape[0] != scores.shape[0]:
            raise ValueError(f"uniform must be ({scores.shape[0]},), one number per row, got {described(uniform)}")
        uniform = uniform.to(scores.dtype)
    choice, log_prob = call_op(torch.ops.softrank_ext.pick, scores, remaining, uniform)
    if log_prob.is_cuda and not torch.compiler.is_compiling() and bool(log_prob.isnan().any()):
        _check_pick(scores, remaining)  # a CUDA kernel cannot raise: it marks a pick that failed by NaN
    return choice, log_prob


def _check_pick(scores: Tensor, remaining: Tensor) -> None:
    """Raise RuntimeError for a row with nothing remaining, or with a NaN score among what remains."""
    if not bool(remaining.any(1).all()):
        row = int((~remaining.any(1)).nonzero()[0])
        raise RuntimeError(f"remaining must hold at least one item per row, got none in row {row}")
    is_nan = scores.isnan() & remaining
    if bool(is_nan.any()):
        row = int(is_nan.any(1).nonzero()[0])
        raise RuntimeError(f"scores must not be NaN where remaining is True, got NaN in row {row}")


def pick_reference(scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one item per row from the softmax over the remaining set by inverse CDF; greedy when uniform is None.

    scores (B, N) float, remaining (B, N) bool, uniform (B,) in [0, 1) -> choice (B,) int64, log_prob (B,).
    Scores of +inf share all the probability; a row whose remaining scores are all -inf is uniform.
    """
    if scores.shape[0] == 0:
        return scores.new_empty(0, dtype=torch.int64), scores.new_empty(0)
    _check_pick(scores, remaining)
    if uniform is not None and not bool(((uniform >= 0) & (uniform <= 1)).all()):
        raise RuntimeError("uniform must be from 0 to 1")
    relative, weight = pick_weights(scores, remaining)
    total = weight.sum(1, keepdim=True)
    if uniform is None:
        choice = (remaining & (relative == 0)).to(torch.int8).argmax(1)
    else:
        cumulative = weight.cumsum(1)
        is_past = (cumulative > uniform[:, None].to(weight.dtype) * total) & (weight > 0)
        # Rounding may leave no item past the target: then the last one of positive weight is meant.
        last = weight.shape[1] - 1 - (weight > 0).flip(1).to(torch.int8).argmax(1)
        choice = torch.where(is_past.any(1), is_past.to(torch.int8).argmax(1), last)
    log_prob = (relative.gather(1, choice[:, None]) - total.log())[:, 0]
    return choice, log_prob


def pick_weights(scores: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, N) less the highest remaining one, 0 where they equal it; and their exp, 0 outside the set."""
    masked = scores.masked_fill(~remaining, -torch.inf)
    top = masked.amax(1, keepdim=True)
    relative = torch.where(masked == top, 0.0, masked - top)  # the top may be infinite, where inf - inf is NaN
    return relative, torch.where(remaining, relative.exp(), 0.0)


def _fake_pick(scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(scores.ndim == 2, lambda: f"scores must be (B, N), got {tuple(scores.shape)}")
    torch._check(remaining.shape == scores.shape, lambda: "remaining must have the shape of scores")
    return scores.new_empty(scores.shape[0], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _save_pick_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    scores, remaining, _ = inputs
    choice, _ = output
    ctx.mark_non_differentiable(choice)
    ctx.save_for_backward(scores, remaining, choice)


def _pick_gradient(ctx: Any, _: Any, grad_log_prob: Tensor) -> tuple[Tensor, None, None]:
    """d log_prob / d scores = one_hot(choice) - softmax over the remaining set (the score function)."""
    scores, remaining, choice = ctx.saved_tensors
    _, weight = pick_weights(scores, remaining)
    probabilities = weight / weight.sum(1, keepdim=True)
    is_choice = torch.zeros_like(scores).scatter_(1, choice[:, None], 1.0)
    return (is_choice - probabilities) * grad_log_prob[:, None], None, None


define(
    "pick",
    ("Tensor scores", "Tensor remaining", "Tensor? uniform"),
    "(Tensor choice, Tensor log_prob)",
    pick_reference,
    _fake_pick,
)
torch.library.register_autograd("softrank_ext::pick", _pick_gradient, setup_context=_save_pick_inputs, lib=LIBRARY)
