"""The noise process on soft ranks, without a network: paper section 3.1 and equation 6, as reflected Gaussian bridges.

Soft ranks `z` are (B, N), one number per item. Time runs from 0 (clean: `z_clean` on the grid) to 1 (`z_prior`, noise).
A bridge value is a Gaussian around the straight line between its ends, folded into [0, 1] by `reflect`:
`z_t = reflect((1 - t) z_clean + t z_prior + noise_scale sqrt(t (1 - t)) noise)`.
Folding the unreflected bridge defines the process; it is not the law of the reflected SDE with the bridge's drift.
Random draws are arguments: make them with `noise`, or with torch.

`reflect_pairs` keeps soft ranks in half-spaces z_a <= z_b as well, for constraints "a before b". The reflection in the
wall z_a = z_b exchanges the two numbers, so a fold permutes coordinates and commutes with the fold of the cube. For
disjoint chains (each item in one chain a < b < ... at most) the cone is a chamber of the chains' permutations: the fold
sorts each chain, every point of the cone has equally many images, and folded Brownian motion is Brownian motion
reflected at the walls; uniform soft ranks stay uniform on the cone. For other partial orders the result is in the cone
and moves no point that was, but parts of the cone get different numbers of images, and which part gets how many depends
on the order of the reflections: uniform soft ranks become non-uniform. No rule of exchanges avoids that: a < c, b < c,
b < d has 5 orders, and 5 does not divide 4!.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.checks import (
    ANY_FLOAT,
    check_choice,
    check_integer,
    check_limited,
    check_not_negative,
    check_number,
    check_tensor,
)
from softrank_ext.noise import BRIDGE_STREAM, PRIOR_STREAM, TRAINING_STREAM, RowNoise
from softrank_ext.permutations import ranks_of

MOST_STEPS = 10**6
MOST_NOISE = 1000
GRIDS = ("paper", "midpoint")
PRIORS = ("uniform", "gaussian")
CARRIES = ("exact", "reflected")
TARGETS = ("clean", "previous")


class Prediction(NamedTuple):
    """What a reverse step goes back from: state z_t, the order read off it, the predicted order and its grid values.

    All (B, N): z_t and z_clean by item, order_t and order over items.
    """

    z_t: Tensor
    order_t: Tensor
    order: Tensor
    z_clean: Tensor


class NoisyOrder(NamedTuple):
    """What training sees: the order at time t, and the order to predict from it; both (B, N) over items.

    z_t: (B, N) by item, the state at time t that the order was read off, as a sample carries it; None for riffles.
    """

    order_t: Tensor
    target: Tensor
    z_t: Tensor | None = None


@dataclass(frozen=True)
class Bridge:
    """Soft ranks on a Gaussian bridge between the clean order's grid values and noise, folded into [0, 1].

    noise_scale: paper eta. prior: soft ranks at time 1, "uniform" or "gaussian". carry: "exact" carries the unfolded
    value from step to step and reads orders off its fold, which keeps the marginals of `noised`; "reflected" carries
    the folded value, the paper's Algorithm 1, whose marginals drift slightly. target: the order that the network
    predicts, the clean one or that one step of the training grid before ("previous"), where orders alone are carried.
    sampling_steps: how many steps a sample takes, at times 1, (K-1)/K, ..., 1/K.
    """

    noise_scale: float = 0.5
    prior: Literal["uniform", "gaussian"] = "uniform"
    carry: Literal["exact", "reflected"] = "exact"
    target: Literal["clean", "previous"] = "clean"
    sampling_steps: int = 5

    kind: ClassVar[str] = "bridge"

    def __post_init__(self) -> None:
        check_not_negative("noise_scale", self.noise_scale)
        # Beyond it float32 has hardly a fraction left to fold.
        check_number("noise_scale", self.noise_scale, f"at most {MOST_NOISE}", lambda x: x <= MOST_NOISE)
        check_choice("prior", self.prior, PRIORS)
        check_choice("carry", self.carry, CARRIES)
        check_choice("target", self.target, TARGETS)
        check_limited("sampling_steps", self.sampling_steps, 1, MOST_STEPS)

    def times(self) -> list[float]:
        """Times of the reverse process, from 1 down to 0."""
        return time_grid(self.sampling_steps)

    def training_times(self, time_steps: int) -> list[float]:
        """Times that training sees on a grid of so many steps, from 1 down to 0."""
        return time_grid(time_steps)

    def prior_sample(self, noise: Tensor) -> Tensor:
        """Soft ranks at time 1 from noise: uniform numbers as they are, or standard normal ones folded into [0, 1].

        A folded standard normal is almost uniform (its density is within 1.5 % of 1), so the two differ little.
        """
        return noise if self.prior == "uniform" else ops.reflect(noise)

    def noised(self, z_clean: Tensor, z_prior: Tensor, t: float | Tensor, noise: Tensor) -> Tensor:
        """Draw z_t given both ends, folded into [0, 1]; exactly z_clean at t = 0 and z_prior at t = 1 for ends inside.

        z_clean, z_prior, noise: (B, N), noise standard normal. t: in [0, 1], a number or (B,). Returns (B, N).
        """
        return ops.reflect(self.noised_unfolded(z_clean, z_prior, t, noise))

    def noised_unfolded(self, z_clean: Tensor, z_prior: Tensor, t: float | Tensor, noise: Tensor) -> Tensor:
        """The value that `noised` folds, in any real number; arguments as there."""
        for name, value in (("z_clean", z_clean), ("z_prior", z_prior), ("noise", noise)):
            check_tensor(name, value, tuple(z_clean.shape) if isinstance(z_clean, Tensor) else (), ANY_FLOAT)
        time = _column(t, z_clean, "t")
        mean = (1 - time) * z_clean + time * z_prior
        return mean + self.noise_scale * (time * (1 - time)).sqrt() * noise

    def step_back(self, z_t: Tensor, z_clean: Tensor, t: float | Tensor, s: float | Tensor, noise: Tensor) -> Tensor:
        """Draw z_s given z_t and the (predicted) clean end, 0 <= s < t <= 1: the Gaussian bridge of paper equation 6.

        Mean `(1 - s/t) z_clean + (s/t) z_t` (z_prior cancels), deviation `noise_scale sqrt(s (t - s) / t)`; exactly
        z_clean at s = 0. Folded if carry is "reflected". z_t, z_clean, noise: (B, N), noise standard normal. t, s:
        numbers or (B,). Returns (B, N).
        """
        for name, value in (("z_t", z_t), ("z_clean", z_clean), ("noise", noise)):
            check_tensor(name, value, tuple(z_t.shape) if isinstance(z_t, Tensor) else (), ANY_FLOAT)
        later: float | Tensor = t
        earlier: float | Tensor = s
        if isinstance(t, Tensor) or isinstance(s, Tensor):
            later, earlier = _column(t, z_t, "t"), _column(s, z_t, "s")
            is_past = torch.compiler.is_compiling() or bool((earlier < later).all())
        else:
            _check_time("t", t)
            _check_time("s", s)
            is_past = s < t
        if not is_past:
            raise ValueError(f"s and t must satisfy 0 <= s < t, got s = {s} and t = {t}")
        share = earlier / later
        mean = (1 - share) * z_clean + share * z_t
        z_s = mean + self.noise_scale * (share * (later - earlier)) ** 0.5 * noise
        return z_s if self.carry == "exact" else ops.reflect(z_s)

    def draw_prior(self, noise: RowNoise) -> Tensor:
        """The state at time 1 of a batch's rows, (B, N)."""
        drawn = noise.uniform(0, PRIOR_STREAM) if self.prior == "uniform" else noise.normal(0, PRIOR_STREAM)
        return self.prior_sample(noise.of_items(drawn))

    def draw_back(self, prediction: Prediction, t: float, s: float, noise: RowNoise, step: int) -> Tensor:
        """The state at time s, (B, N), after the prediction at time t in diffusion step `step`."""
        if self.target == "previous" or s == 0:
            return prediction.z_clean
        return self.step_back(
            prediction.z_t, prediction.z_clean, t, s, noise.of_items(noise.normal(step, BRIDGE_STREAM))
        )

    def draw_unfolded(self, z_clean: Tensor, t: Tensor, noise: RowNoise) -> Tensor:
        """Unfolded states (B, N) at times t (B,) of training, from grid values z_clean (B, N)."""
        drawn = noise.uniform(1, TRAINING_STREAM) if self.prior == "uniform" else noise.normal(1, TRAINING_STREAM)
        z_prior = noise.held(self.prior_sample(drawn))
        return self.noised_unfolded(z_clean, z_prior, t, noise.held(noise.normal(2, TRAINING_STREAM)))

    def draw_noisy(self, order: Tensor, t: Tensor, noise: RowNoise, time_steps: int) -> NoisyOrder:
        """Orders at times t (B,) of clean orders (B, N), and what the network is to predict from them.

        time_steps: steps of the training grid, one of which lies between t and the target "previous".
        """
        z_clean = lift_to_grid(ranks_of(order), noise.mask)
        unfolded = self.draw_unfolded(z_clean, t, noise)
        z_t = ops.reflect(unfolded)
        order_t, _ = ops.decode_chamber(z_t, noise.mask)
        carried = unfolded if self.carry == "exact" else z_t
        if self.target == "clean":
            return NoisyOrder(order_t, order, carried)
        s = (t - 1 / time_steps).clamp(min=0)
        s = torch.where(s < 1e-6, 0.0, s)
        z_s = ops.reflect(self.step_back(z_t, z_clean, t, s, noise.held(noise.normal(3, TRAINING_STREAM))))
        return NoisyOrder(order_t, ops.decode_chamber(z_s, noise.mask)[0], carried)


def lift_to_grid(
    ranks: Tensor, mask: Tensor | None = None, *, grid: str = "paper", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Soft ranks of ranks: `ranks / (N - 1)` on the paper's grid (0 if N = 1), `(ranks + 1/2) / N` on the midpoint one.

    ranks: (B, N) int64, `ranks[item] = place` (not an order). mask: (B, N) bool, True = real item; N is then counted
    per row and padding gets 0. Returns (B, N) of dtype.
    """
    check_choice("grid", grid, GRIDS)
    is_float = isinstance(ranks, Tensor) and ranks.is_floating_point()
    check_tensor("ranks", ranks, ("B", "N"), torch.int64, "; did you pass soft_ranks?" if is_float else "")
    least, shift = (2, 1) if grid == "paper" else (1, 0)
    numerator = ranks.to(dtype) if grid == "paper" else ranks.to(dtype) + 0.5
    if mask is None:
        return numerator / (max(ranks.shape[1], least) - shift)
    size = mask.sum(1, keepdim=True).clamp(min=least).to(dtype)  # (B, 1)
    return (numerator / (size - shift)).masked_fill(~mask, 0.0)


def time_grid(steps: int) -> list[float]:
    """The K + 1 times of the reverse process, from 1 down to 0: `K/K, (K-1)/K, ..., 0`."""
    check_integer("steps", steps, 1)
    return [k / steps for k in range(steps, -1, -1)]


def reflect_pairs(soft_ranks: Tensor, before: Tensor) -> Tensor:
    """Reflect soft ranks (B, N) in the walls z_a = z_b until z_a <= z_b for every pair; what holds already stays as is.

    before: (B, N, N) bool, [a, b] = "a before b", without cycles. Pair after pair, by a and then b, exchanges its two
    numbers where they are the wrong way round, again and again until none does. That ends: each exchange brings the
    larger number to the item that comes later in any order that keeps the pairs. See the file's head for its law.
    Raises ValueError for NaN and for pairs that form a cycle.
    """
    check_tensor("soft_ranks", soft_ranks, ("B", "N"), ANY_FLOAT)
    B, N = soft_ranks.shape
    check_tensor("before", before, (B, N, N), torch.bool)
    if bool(soft_ranks.isnan().any()):
        raise ValueError("soft_ranks must not hold NaN")
    N = soft_ranks.shape[1]
    row, a, b = before.nonzero().unbind(1)
    if bool((a == b).any()):
        raise ValueError("before must hold pairs without cycles, got an item before itself")
    counts = before.sum((1, 2))  # (B,)
    number = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]  # of a pair in its row
    pairs = torch.zeros(
        2, len(before), int(counts.max()) if len(before) > 0 else 0, dtype=torch.int64, device=row.device
    )
    pairs[0, row, number], pairs[1, row, number] = a, b  # (2, B, pairs); 0 and 0 in rows that have fewer
    z = soft_ranks.clone()
    # An exchange mends an inversion of any order that keeps the pairs, and every sweep but the last makes one.
    for sweep in range(N * (N - 1) // 2 + 1):
        if sweep == N and _has_cycle(before):  # looked for only where it takes long
            break
        before_sweep = z.clone()
        for ends in pairs.unbind(2):  # (2, B)
            values = z.gather(1, ends.T)  # (B, 2)
            z.scatter_(1, ends.T, values.sort(1).values)
        if torch.equal(before_sweep, z):
            return z
    raise ValueError("before must hold pairs without cycles")


def _has_cycle(before: Tensor) -> bool:
    """Whether any row's pairs (B, N, N) form a cycle: items with none before them are taken away, in turn."""
    row, a, b = before.nonzero().unbind(1)
    while len(row) > 0:
        is_later = torch.zeros(before.shape[:2], dtype=torch.bool, device=before.device)
        is_later[row, b] = True
        stays = is_later[row, a]
        if bool(stays.all()):
            return True
        row, a, b = row[stays], a[stays], b[stays]
    return False


def _column(time: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A time as a (1, 1) or (B, 1) tensor of the dtype and device of `like`."""
    column = torch.as_tensor(time, dtype=like.dtype, device=like.device).reshape(-1, 1)
    if column.shape[0] not in (1, like.shape[0]):
        raise ValueError(f"{name} must be a number or ({like.shape[0]},), got {column.shape[0]} numbers")
    if not torch.compiler.is_compiling() and not bool(((column >= 0) & (column <= 1)).all()):
        raise ValueError(f"{name} must be in [0, 1], got {time}")
    return column


def _check_time(name: str, time: float) -> None:
    if not 0 <= time <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {time}")
