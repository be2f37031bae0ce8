"""The ops: schemas, checked wrappers, fake kernels and gradients.

`reference` is every op's default kernel; the libraries `_ops` and `_ops_cuda` add faster ones for CPU and CUDA.
Random numbers are arguments, never drawn inside an op that uses them.
"""

import torch
from torch import Tensor

from softrank_ext import reference

_library = torch.library.Library("softrank_ext", "DEF")
_library.define("reflect(Tensor x) -> Tensor")
_library.define("decode_chamber(Tensor soft_ranks, Tensor? mask) -> (Tensor order, Tensor ranks)")
_library.define("pick(Tensor scores, Tensor remaining, Tensor? uniform) -> (Tensor choice, Tensor log_prob)")
for _name in ("random_uniform", "random_normal"):
    _library.define(f"{_name}(Tensor samples, int seed, int step, int stream, int count, ScalarType dtype) -> Tensor")

_library.define("cpu_capability() -> str")

_default_kernels = {
    "reflect": reference.reflect,
    "decode_chamber": reference.decode_chamber,
    "pick": reference.pick,
    "random_uniform": reference.random_uniform,
    "random_normal": reference.random_normal,
    "cpu_capability": lambda: "plain torch",
}
for _name, _kernel in _default_kernels.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")

_FLOAT_DTYPES = (torch.float32, torch.float64)


def _described(value: object) -> str:
    """What came, for an error message: shape and dtype of a tensor, type of anything else."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def _check_float_tensor(name: str, value: object, wanted_shape: str, ndim: int | None) -> None:
    wanted = f"{name} must be a {wanted_shape} tensor of float32 or float64"
    if not isinstance(value, Tensor):
        raise TypeError(f"{wanted}, got {_described(value)}")
    if value.dtype not in _FLOAT_DTYPES or (ndim is not None and value.ndim != ndim):
        raise ValueError(f"{wanted}, got {_described(value)}")


def _check_bool_mask(name: str, value: object, like_name: str, like: Tensor) -> None:
    if not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape != like.shape:
        raise ValueError(
            f"{name} must be a bool tensor of the shape of {like_name} {tuple(like.shape)}, got {_described(value)}"
        )
    if value.device != like.device:
        raise ValueError(f"{name} must be on the device of {like_name}, {like.device}, got {value.device}")


def reflect(x: Tensor) -> Tensor:
    """Fold x of any shape onto [0, 1] with period 2: `m > 1 ? 2 - m : m`, `m = |x| mod 2`.

    Exact for every finite float32 or float64; NaN stays NaN and an infinity gives NaN. Differentiable: the slope
    is 1 or -1, and 1 where x is in [0, 1], its ends included.
    """
    _check_float_tensor("x", x, "float", None)
    return torch.ops.softrank_ext.reflect(x)


def decode_chamber(soft_ranks: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read the order off soft ranks: stable argsort, ties to the lower item.

    soft_ranks: (B, N) or (N,) float32 or float64, one number per item. mask: bool of the same shape, True = real item.
    Returns order and ranks, int64 of the same shape: `order[place] = item`, `ranks[item] = place`. Items whose mask
    is False stand behind all real ones, in index order, whatever their soft ranks.
    Raises ValueError if a real item's soft rank is NaN (skipped while compiling, where data cannot be read).
    """
    if isinstance(soft_ranks, Tensor) and soft_ranks.ndim == 1:
        order, ranks = decode_chamber(soft_ranks[None], None if mask is None else mask[None])
        return order[0], ranks[0]
    _check_float_tensor("soft_ranks", soft_ranks, "(B, N) or (N,)", 2)
    if mask is not None:
        _check_bool_mask("mask", mask, "soft_ranks", soft_ranks)
    if not torch.compiler.is_compiling():
        is_nan = soft_ranks.isnan() if mask is None else soft_ranks.isnan() & mask
        if bool(is_nan.any()):
            row, item = is_nan.nonzero()[0].tolist()
            raise ValueError(f"soft_ranks must not hold NaN, got NaN at row {row}, item {item}")
    return torch.ops.softrank_ext.decode_chamber(soft_ranks, mask)


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
    _check_float_tensor("scores", scores, "(B, N)", 2)
    _check_bool_mask("remaining", remaining, "scores", scores)
    if greedy == (uniform is not None):
        raise ValueError("pick takes either uniform or greedy=True, got " + ("both" if greedy else "neither"))
    if uniform is not None:
        _check_float_tensor("uniform", uniform, "(B,)", 1)
        if uniform.shape[0] != scores.shape[0]:
            raise ValueError(f"uniform must be ({scores.shape[0]},), one number per row, got {_described(uniform)}")
        uniform = uniform.to(scores.dtype)
    return torch.ops.softrank_ext.pick(scores, remaining, uniform)


@torch.library.register_fake("softrank_ext::reflect")
def _fake_reflect(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("softrank_ext::decode_chamber")
def _fake_decode_chamber(soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(soft_ranks.ndim == 2, lambda: f"soft_ranks must be (B, N), got {tuple(soft_ranks.shape)}")
    order = soft_ranks.new_empty(soft_ranks.shape, dtype=torch.int64)
    return order, torch.empty_like(order)


@torch.library.register_fake("softrank_ext::pick")
def _fake_pick(scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(scores.ndim == 2, lambda: f"scores must be (B, N), got {tuple(scores.shape)}")
    torch._check(remaining.shape == scores.shape, lambda: "remaining must have the shape of scores")
    return scores.new_empty(scores.shape[0], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _fake_random(samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    return samples.new_empty((samples.shape[0], count), dtype=dtype)


torch.library.register_fake("softrank_ext::random_uniform", _fake_random)
torch.library.register_fake("softrank_ext::random_normal", _fake_random)


def _save_reflect_input(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0])


def _reflect_gradient(ctx, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * reference.reflect_slope(x)


torch.library.register_autograd("softrank_ext::reflect", _reflect_gradient, setup_context=_save_reflect_input)


def _save_pick_inputs(ctx, inputs, output) -> None:
    scores, remaining, _ = inputs
    choice, _ = output
    ctx.mark_non_differentiable(choice)
    ctx.save_for_backward(scores, remaining, choice)


def _pick_gradient(ctx, _, grad_log_prob: Tensor) -> tuple[Tensor, None, None]:
    """d log_prob / d scores = one_hot(choice) - softmax over the remaining set (the score function)."""
    scores, remaining, choice = ctx.saved_tensors
    probabilities = scores.masked_fill(~remaining, -torch.inf).softmax(1)
    is_choice = torch.zeros_like(scores).scatter_(1, choice[:, None], 1.0)
    return (is_choice - probabilities) * grad_log_prob[:, None], None, None


torch.library.register_autograd("softrank_ext::pick", _pick_gradient, setup_context=_save_pick_inputs)
