"""Sorting networks with soft swaps: a matrix of where each item goes, with gradients for the scores.

A network for N wires is `partners` (layers, N) int64: in each layer a wire is compared with its partner (itself if it
has none), and the smaller value goes to the earlier wire. With v = steepness (later - earlier) a comparison keeps its
two values in place with probability f(v), `keep_probability`; each new value is the expectation, and so is each row of
the matrix that starts as the identity. The result P[item, place] is doubly stochastic, and `sorted = scores @ P`.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import ANY_FLOAT, check_choice, check_integer, check_positive, check_tensor

SWAPS = ("logistic", "logistic-phi", "gaussian", "reciprocal", "cauchy", "optimal")
NETWORKS = ("odd-even", "bitonic")
# Matrices are made for a few instances at a time, few enough to stay in a core's cache.
_CACHED_NUMBERS = 2**19
_PHI = 0.25  # exponent of logistic-phi


def num_layers(network: str, N: int) -> int:
    """Layers of a network for N wires: N (odd-even), or k (k + 1) / 2 with k = ceil(log2 N) (bitonic)."""
    check_choice("network", network, NETWORKS)
    blocks = max(N - 1, 0).bit_length()
    return N if network == "odd-even" else blocks * (blocks + 1) // 2


@lru_cache(maxsize=64)
def make_network(network: str, N: int) -> Tensor:
    """Partners (layers, N) int64 of a network that sorts N wires.

    The network for fewer wires consists of the first layers of this one, without the other wires.
    """
    check_integer("N", N, 1)
    wires = torch.arange(N)
    if network == "odd-even":
        layers = [wires + torch.where((wires - layer) % 2 == 0, 1, -1) for layer in range(N)]
    else:
        # All comparisons ascend; the first of a block is with the mirror wire. A wire beyond N would hold a value above
        # all others, which no comparison moves: such comparisons are left out, and the rest sorts for every N.
        # (The network of alternating directions does not if it is cut to 75 or 150 wires, for example.)
        layers = []
        for block in range(1, (N - 1).bit_length() + 1):
            layers.append(wires ^ (2**block - 1))
            layers += [wires ^ 2**bit for bit in reversed(range(block - 1))]
    assert len(layers) == num_layers(network, N)
    partners = torch.stack(layers) if layers else torch.empty(0, N, dtype=torch.int64)
    return torch.where((partners >= 0) & (partners < N), partners, wires)


def keep_probability(difference: Tensor, swap: str, steepness: float) -> Tensor:
    """How much a comparison keeps its values in place: f(v), v = steepness * difference (later value - earlier value).

    f goes from 0 to 1 with f(0) = 1/2. reciprocal, cauchy and optimal keep the sorted values monotone in the scores.
    """
    check_choice("swap", swap, SWAPS)
    v = steepness * difference
    if swap == "logistic":
        return v.sigmoid()
    if swap == "logistic-phi":
        return (v / (difference.abs() + 1e-10) ** _PHI).sigmoid()
    if swap == "gaussian":
        normal: Tensor = torch.special.ndtr(v)
        return normal
    if swap == "reciprocal":
        return (v / (2 + v.abs()) + 1) / 2
    if swap == "cauchy":
        return v.atan() / math.pi + 0.5
    tail = 1 / (16 * v.abs().clamp(min=0.25))
    return torch.where(v.abs() <= 0.25, v + 0.5, torch.where(v > 0, 1 - tail, tail))


class SoftSorted(NamedTuple):
    """Sorted scores `values` (B, N) and the matrix (B, item, place) that sorts them."""

    values: Tensor
    matrix: Tensor


def soft_sort(
    scores: Tensor,
    network: str = "odd-even",
    *,
    swap: str = "cauchy",
    steepness: float = 10.0,
    counts: Tensor | None = None,
    error_free: bool = False,
) -> SoftSorted:
    """Sort scores (B, N) float by a network with soft swaps, differentiably.

    counts: (B,) int64, how many leading items of each row are real: they go through the network for that many wires,
    and the others stay where they are. error_free: each swap has the value of the hard one, so that values are sorted
    and the matrix is a permutation matrix, and the gradient of the soft one, taken at the values of the hard swaps.
    """
    check_tensor("scores", scores, ("B", "N"), ANY_FLOAT)
    check_positive("steepness", steepness)
    if counts is not None:
        check_tensor("counts", counts, (len(scores),), torch.int64)
    partners = make_network(network, scores.shape[1]).to(scores.device)
    is_idle = None if counts is None else _idle_wires(network, partners, counts)
    keep, forward_keep, values = _run(scores, partners, swap, steepness, is_idle, error_free)
    rows = max(1, _CACHED_NUMBERS // scores.shape[1] ** 2)
    parts = zip(keep.split(rows, 1), forward_keep.split(rows, 1), strict=True)
    mix: Callable[[Tensor, Tensor, Tensor], Tensor] = _Mix.apply
    columns = torch.cat([mix(*part, partners) for part in parts])  # (B, place, item)
    return SoftSorted(values, columns.transpose(1, 2))


def _idle_wires(network: str, partners: Tensor, counts: Tensor) -> Tensor:
    """Wires without a comparison if only the first `counts` (B,) of them are real: (layers, B, N) bool."""
    N = partners.shape[1]
    wires = torch.arange(N, device=partners.device)
    layers = torch.arange(len(partners), device=partners.device)
    own_layers = torch.tensor([num_layers(network, count) for count in range(N + 1)], device=partners.device)[counts]
    is_late = (layers[:, None] >= own_layers)[..., None]  # (layers, B, 1)
    return is_late | (torch.maximum(partners, wires)[:, None] >= counts[:, None])


def _run(
    scores: Tensor, partners: Tensor, swap: str, steepness: float, is_idle: Tensor | None, error_free: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """How much each wire keeps its value in each layer (layers, B, N), soft and as in the forward pass; the values."""
    x = scores
    wires = torch.arange(x.shape[1], device=x.device)
    keeps, forward_keeps = [], []
    for layer, partner in enumerate(partners.unbind(0)):
        other = x[:, partner]
        difference = torch.where(partner >= wires, other - x, x - other)
        keep = keep_probability(difference, swap, steepness)
        is_kept = difference >= 0
        if is_idle is not None:
            keep, is_kept = keep.masked_fill(is_idle[layer], 1.0), is_kept | is_idle[layer]
        soft = torch.lerp(other, x, keep)
        if error_free:
            x = torch.where(is_kept, x, other).detach() + (soft - soft.detach())  # exact: the bracket is 0
            forward_keeps.append(is_kept.to(x.dtype))
        else:
            x = soft
        keeps.append(keep)
    keep = torch.stack(keeps) if keeps else x.new_empty(0, *x.shape)
    return keep, torch.stack(forward_keeps) if forward_keeps else keep.detach(), x


class _Mix(torch.autograd.Function):
    """The layers' mixing of rows applied to the identity: keep (layers, B, N) -> (B, wire, item).

    A layer maps X to `keep X + (1 - keep) X[partner]`, a symmetric matrix, so gradients are mixed in the same way.
    Every sqrt(layers)-th state is kept, and the backward pass recomputes those in between: memory grows with the square
    root of the number of layers. Values are mixed by forward_keep, gradients by keep.
    """

    @staticmethod
    def forward(ctx: Any, keep: Tensor, forward_keep: Tensor, partners: Tensor) -> Tensor:
        layers, B, N = keep.shape
        ctx.stride = max(1, math.isqrt(layers))
        x = torch.eye(N, dtype=keep.dtype, device=keep.device).repeat(B, 1, 1)
        states = []
        scratch = torch.empty_like(x)
        for layer in range(layers):
            if layer % ctx.stride == 0:
                states.append(x.clone())
            _mix_(x, forward_keep[layer], partners[layer], scratch)
        ctx.save_for_backward(keep, forward_keep, partners, *states)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        keep, forward_keep, partners, *kept_states = ctx.saved_tensors
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        of_keep = torch.zeros_like(keep)
        scratch = torch.empty_like(gradient)
        for index in reversed(range(len(kept_states))):
            begin, end = index * ctx.stride, min((index + 1) * ctx.stride, len(keep))
            states = [kept_states[index]]
            for layer in range(begin, end - 1):
                states.append(_mix_(states[-1].clone(), forward_keep[layer], partners[layer], scratch))
            for layer in reversed(range(begin, end)):
                x = states.pop()
                torch.index_select(x, 1, partners[layer], out=scratch)
                of_keep[layer] = torch.sub(x, scratch, out=scratch).mul_(gradient).sum(2)
                _mix_(gradient, keep[layer], partners[layer], scratch)
        return of_keep, None, None


def _mix_(x: Tensor, keep: Tensor, partner: Tensor, scratch: Tensor) -> Tensor:
    """`x = keep x + (1 - keep) x[partner]` in place. x, scratch: (B, N, M). keep: (B, N). partner: (N,)."""
    torch.index_select(x, 1, partner, out=scratch)
    return torch.lerp(scratch, x, keep[..., None], out=x)
