"""The noise process on soft ranks, without a network: paper section 3.1 and equation 6, as reflected Gaussian bridges.

Soft ranks `z` are (B, N), one number per item. Time runs from 0 (clean: `z_clean` on the grid) to 1 (`z_ref`, noise).
A bridge value is a Gaussian around the straight line between its ends, folded into [0, 1] by `reflect`:
`z_t = reflect((1 - t) z_clean + t z_ref + noise_scale sqrt(t (1 - t)) noise)`.
Folding the unreflected bridge defines the process; it is not the law of the reflected SDE with the bridge's drift.
Random draws are arguments: make them with `noise`, or with torch.

`reflect_pairs` keeps soft ranks in half-spaces z_a <= z_b as well, for constraints "a before b". The reflection in the
wall z_a = z_b exchanges the two numbers, so a fold permutes coordinates and commutes with the fold of the cube. For
disjoint chains (each item in one chain a < b < ... at most) the cone is a chamber of the chains' permutations: the fold
sorts each chain, every point of the cone has equally many images, and folded Brownian motion is Brownian motion
reflected at the walls; uniform soft ranks stay uniform on the cone. For other partial orders the result is in the cone
and moves no point that was, but parts of the cone get different numbers of images, and which part gets how many depends
on the order of the reflections: uniform soft ranks become non-uniform. No rule of exchanges mends that: a < c, b < c,
b < d has 5 orders, and 5 does not divide 4!.
"""

import torch
from torch import Tensor

from softrank_ext import ops

GRIDS = ("paper", "midpoint")
REFERENCES = ("uniform", "gaussian")
CARRIES = ("exact", "reflected")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, listing what is allowed, unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def lift_to_grid(
    ranks: Tensor, mask: Tensor | None = None, *, grid: str = "paper", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Soft ranks of ranks: `ranks / (N - 1)` on the paper's grid (0 if N = 1), `(ranks + 1/2) / N` on the midpoint one.

    ranks: (B, N) int64, `ranks[item] = place` (not an order). mask: (B, N) bool, True = real item; N is then counted
    per row and padding gets 0. Returns (B, N) of dtype.
    """
    check_choice("grid", grid, GRIDS)
    if ranks.dtype != torch.int64 or ranks.ndim != 2:
        hint = "; did you pass soft_ranks?" if ranks.is_floating_point() else ""
        raise ValueError(f"ranks must be (B, N) int64, got {tuple(ranks.shape)} {ranks.dtype}{hint}")
    least, shift = (2, 1) if grid == "paper" else (1, 0)
    numerator = ranks.to(dtype) if grid == "paper" else ranks.to(dtype) + 0.5
    if mask is None:
        return numerator / (max(ranks.shape[1], least) - shift)
    size = mask.sum(1, keepdim=True).clamp(min=least).to(dtype)  # (B, 1)
    return (numerator / (size - shift)).masked_fill(~mask, 0.0)


def time_grid(steps: int) -> list[float]:
    """The K + 1 times of the reverse process, from 1 down to 0: `K/K, (K-1)/K, ..., 0`."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, got {steps!r}")
    return [k / steps for k in range(steps, -1, -1)]


def reference_sample(noise: Tensor, reference: str = "uniform") -> Tensor:
    """Soft ranks at time 1 from noise: uniform numbers as they are, or standard normal ones folded into [0, 1].

    A folded standard normal is almost uniform (its density is within 1.5 % of 1), so the two differ little.
    """
    check_choice("reference", reference, REFERENCES)
    return noise if reference == "uniform" else ops.reflect(noise)


def forward_sample(
    z_clean: Tensor, z_ref: Tensor, t: float | Tensor, noise: Tensor, *, noise_scale: float = 0.5
) -> Tensor:
    """Draw z_t given both ends, folded into [0, 1]; exactly z_clean at t = 0 and z_ref at t = 1 for ends inside [0, 1].

    z_clean, z_ref, noise: (B, N), noise standard normal. t: in [0, 1], a number or (B,). Returns (B, N).
    """
    time = _column(t, z_clean, "t")
    _check_noise_scale(noise_scale)
    mean = (1 - time) * z_clean + time * z_ref
    return ops.reflect(mean + noise_scale * (time * (1 - time)).sqrt() * noise)


def reverse_step(
    z_t: Tensor,
    z_clean: Tensor,
    t: float | Tensor,
    s: float | Tensor,
    noise: Tensor,
    *,
    noise_scale: float = 0.5,
    carry: str = "exact",
) -> Tensor:
    """Draw z_s given z_t and the (predicted) clean end, 0 <= s < t <= 1: the Gaussian bridge of paper equation 6.

    Mean `(1 - s/t) z_clean + (s/t) z_t` (z_ref cancels), deviation `noise_scale sqrt(s (t - s) / t)`; exactly z_clean
    at s = 0. carry="exact" returns the unfolded value: carry it to the next step and read orders off its `reflect`,
    which keeps the marginals of `forward_sample`. carry="reflected" returns the folded value, the paper's Algorithm 1,
    whose marginals drift slightly. z_t, z_clean, noise: (B, N), noise standard normal. t, s: numbers or (B,). Returns
    (B, N).
    """
    check_choice("carry", carry, CARRIES)
    _check_noise_scale(noise_scale)
    later: float | Tensor = t
    earlier: float | Tensor = s
    if isinstance(t, Tensor) or isinstance(s, Tensor):
        later, earlier = _column(t, z_t, "t"), _column(s, z_t, "s")
        is_past = torch.compiler.is_compiling() or bool((earlier < later).all())
    else:
        _check_number("t", t)
        _check_number("s", s)
        is_past = s < t
    if not is_past:
        raise ValueError(f"s and t must satisfy 0 <= s < t, got s = {s} and t = {t}")
    share = earlier / later
    mean = (1 - share) * z_clean + share * z_t
    z_s = mean + noise_scale * (share * (later - earlier)) ** 0.5 * noise
    return z_s if carry == "exact" else ops.reflect(z_s)


def reflect_pairs(soft_ranks: Tensor, before: Tensor) -> Tensor:
    """Reflect soft ranks (B, N) in the walls z_a = z_b until z_a <= z_b for every pair; what holds already stays as is.

    before: (B, N, N) bool, [a, b] = "a before b", without cycles. Pair after pair, by a and then b, exchanges its two
    numbers where they are the wrong way round, again and again until none does. That ends: each exchange brings the
    larger number to the item that comes later in any order that keeps the pairs. See the file's head for its law.
    """
    row, a, b = before.nonzero().unbind(1)
    counts = before.sum((1, 2))  # (B,)
    number = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]  # of a pair in its row
    pairs = torch.zeros(
        2, len(before), int(counts.max()) if len(before) > 0 else 0, dtype=torch.int64, device=row.device
    )
    pairs[0, row, number], pairs[1, row, number] = a, b  # (2, B, pairs); 0 and 0 in rows that have fewer
    z = soft_ranks.clone()
    is_done = False
    while not is_done:
        before_sweep = z.clone()
        for ends in pairs.unbind(2):  # (2, B)
            values = z.gather(1, ends.T)  # (B, 2)
            z.scatter_(1, ends.T, values.sort(1).values)
        is_done = torch.equal(before_sweep, z)
    return z


def _column(time: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A time as a (1, 1) or (B, 1) tensor of the dtype and device of `like`."""
    column = torch.as_tensor(time, dtype=like.dtype, device=like.device).reshape(-1, 1)
    if column.shape[0] not in (1, like.shape[0]):
        raise ValueError(f"{name} must be a number or ({like.shape[0]},), got {column.shape[0]} numbers")
    if not torch.compiler.is_compiling() and not bool(((column >= 0) & (column <= 1)).all()):
        raise ValueError(f"{name} must be in [0, 1], got {time}")
    return column


def _check_number(name: str, time: float) -> None:
    if not 0 <= time <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {time}")


def _check_noise_scale(noise_scale: float) -> None:
    if not noise_scale >= 0:
        raise ValueError(f"noise_scale must be at least 0, got {noise_scale}")
