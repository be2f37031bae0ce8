"""The noise process of SymmetricDiffusers, without a network: riffle shuffles of an order.

An a-shuffle cuts a list into a packets of multinomial sizes and interleaves them uniformly; one riffle is a 2-shuffle.
It is undone by giving each slot of the shuffled list a uniform label from 0 to a - 1 and sorting by it, stably. An
a-shuffle followed by a b-shuffle is an ab-shuffle, so t riffles are one 2^t-shuffle, and labels of t bits tell all of
them: the lowest bit undoes the last riffle, the lowest k bits the last k (Bayer and Diaconis, 1992).

Orders are `order[place] = item`. `slots` (B, N) int64 is the list before the riffles as places of the list after. A
place with a label below 0 stays in front and one with `BEHIND` at the back. The law is `distributions.Riffle`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from softrank_ext.checks import check_choice, check_integer, check_tensor
from softrank_ext.noise import BRIDGE_STREAM, PRIOR_STREAM, TRAINING_STREAM, RowNoise
from softrank_ext.permutations import compose, ranks_of
from softrank_ext.processes.bridge import TARGETS, NoisyOrder, Prediction, lift_to_grid

MOST_RIFFLES = 52  # a uniform number in float64 has 53 random bits
BEHIND = 2**62


@dataclass(frozen=True)
class Riffle:
    """Riffle shuffles of an order, undone jump by jump.

    visited: the numbers of riffles that the reverse process goes through, from 0 up, as (0, 3, 5, 9); the last one is
    time 1. target: the order that the network predicts, the clean one or that at the visited number before
    ("previous"). The state is an order; soft ranks on the grid stand for it.
    """

    visited: tuple[int, ...]
    target: Literal["clean", "previous"] = "clean"

    kind: ClassVar[str] = "riffle"

    def __post_init__(self) -> None:
        check_choice("target", self.target, TARGETS)
        object.__setattr__(self, "visited", _checked_visited(self.visited))

    @property
    def sampling_steps(self) -> int:
        """How many steps a sample takes: one for each visited number but 0."""
        return len(self.visited) - 1

    def times(self) -> list[float]:
        """Times of the reverse process, from 1 down to 0: visited numbers over the last one."""
        return [count / self.visited[-1] for count in reversed(self.visited)]

    def training_times(self, time_steps: int) -> list[float]:
        """Times that training sees: those of the reverse process, whatever time_steps."""
        return self.times()

    def draw_prior(self, noise: RowNoise) -> Tensor:
        """The state at time 1 of a batch's rows, (B, N): the soft ranks of a uniform order."""
        return noise.of_items(noise.uniform(0, PRIOR_STREAM))

    def draw_back(self, prediction: Prediction, t: float, s: float, noise: RowNoise, step: int) -> Tensor:
        """The state at time s, (B, N), after the prediction at time t in diffusion step `step`."""
        if self.target == "previous" or s == 0:
            return prediction.z_clean
        most = self.visited[-1]
        order_s = reverse_step(
            prediction.order_t,
            prediction.order,
            round(t * most),
            round(s * most),
            noise.uniform(step, BRIDGE_STREAM, torch.float64),
            noise.mask,
            is_first_fixed=noise.first is not None,
        )
        return lift_to_grid(ranks_of(order_s), noise.mask, dtype=prediction.z_t.dtype)

    def draw_noisy(self, order: Tensor, t: Tensor, noise: RowNoise, time_steps: int) -> NoisyOrder:
        """Orders at times t (B,) of clean orders (B, N), and what the network is to predict from them.

        Both are of the sample's one trajectory of riffles. time_steps: has no meaning here.
        """
        visited = torch.tensor(self.visited, device=order.device)
        most = self.visited[-1]
        uniform = noise.uniform(2, TRAINING_STREAM, torch.float64)
        labels = draw_labels(uniform, most, noise.mask, is_first_fixed=noise.first is not None)
        last = shuffle(order, labels)
        riffles = (t * most).round().long()
        order_t = compose(last, undo(labels, most - riffles))
        if self.target == "clean":
            return NoisyOrder(order_t, order)
        before = visited[torch.searchsorted(visited, riffles) - 1]
        return NoisyOrder(order_t, compose(last, undo(labels, most - before)))


def _checked_visited(visited: Iterable[int] | None) -> tuple[int, ...]:
    times = tuple(visited or ())
    is_integer = all(isinstance(time, int) and not isinstance(time, bool) for time in times)
    is_ascending = is_integer and all(a < b for a, b in pairwise(times))
    if len(times) < 2 or not is_ascending or times[0] != 0 or times[-1] > MOST_RIFFLES:
        raise ValueError(
            f"visited must be ascending numbers of riffles from 0 to {MOST_RIFFLES} at most, as (0, 3, 5, 9), "
            f"got {visited}"
        )
    return times


def draw_labels(uniform: Tensor, riffles: int, mask: Tensor | None = None, *, is_first_fixed: bool = False) -> Tensor:
    """Labels (B, N) int64 of 2^riffles-shuffled lists from uniform numbers (B, N) float64 in [0, 1).

    mask: (B, N) bool, True = real; padding must stand behind, and stays there. is_first_fixed: place 0 stays.
    """
    check_integer("riffles", riffles, 0, MOST_RIFFLES)
    check_tensor("uniform", uniform, ("B", "N"), torch.float64)
    if mask is not None:
        check_tensor("mask", mask, tuple(uniform.shape), torch.bool)
    labels: Tensor = (uniform * 2**riffles).long()
    if mask is not None:
        labels = labels.masked_fill(_is_behind(mask), BEHIND)
    if is_first_fixed:
        labels[:, :1] = -1
    return labels


def undo(labels: Tensor, riffles: int | Tensor) -> Tensor:
    """The list before the last `riffles` riffles, as slots (B, N) of the list that has the labels.

    labels: (B, N) int64, slot by slot. riffles: a number or (B,) int64.
    """
    below = (1 << (riffles.reshape(-1, 1) if isinstance(riffles, Tensor) else riffles)) - 1
    low = labels & below
    return torch.where((labels < 0) | (labels == BEHIND), labels, low).argsort(dim=1, stable=True)


def shuffle(order: Tensor, labels: Tensor, riffles: int | Tensor = MOST_RIFFLES) -> Tensor:
    """The order (B, N) after the riffles whose labels are given; arguments as in `undo`."""
    return compose(order, ranks_of(undo(labels, riffles)))


def reverse_step(
    order_t: Tensor,
    order_clean: Tensor,
    t: int,
    s: int,
    uniform: Tensor,
    mask: Tensor | None = None,
    *,
    is_first_fixed: bool = False,
) -> Tensor:
    """Draw the order (B, N) after s riffles given those after t > s and after none: the exact posterior.

    Given both ends, the labels are uniform among those whose stable sort leads from one to the other: along the clean
    order they ascend, strictly where the slots descend. Where t riffles cannot lead from order_clean to order_t (a
    prediction may be wrong), the draw forgets order_t: s riffles of order_clean.
    order_t, order_clean: (B, N) int64, padding behind. uniform: (B, N) float64. mask: (B, N) bool, in places.
    is_first_fixed: place 0 is not riffled.
    """
    check_integer("t", t, 0, MOST_RIFFLES)
    if not 0 <= s < t:
        raise ValueError(f"s and t must satisfy 0 <= s < t, got s = {s} and t = {t}")
    N = order_t.shape[1]
    slots = ranks_of(order_t).gather(1, order_clean)
    places = torch.arange(N, device=slots.device)
    is_free = torch.ones_like(slots, dtype=torch.bool) if mask is None else ~_is_behind(mask)
    if is_first_fixed:
        is_free = is_free & (places > 0)
    follows = is_free[:, 1:] & is_free[:, :-1]
    descents = torch.nn.functional.pad(
        ((slots.diff(dim=1) < 0) & follows).cumsum(1), (1, 0)
    )  # (B, N), up to each place
    values = 2**t - descents[:, -1:]  # how many the labels less `descents` have to choose from, (B, 1)
    ascending = _ascending(uniform, values.clamp(min=1), is_free)
    labels = torch.where(is_free, ascending + descents, BEHIND)
    if is_first_fixed:
        labels[:, :1] = -1
    labels_t = torch.empty_like(labels).scatter_(1, slots, labels)
    posterior = compose(order_t, undo(labels_t, t - s))
    fresh = shuffle(order_clean, draw_labels(uniform, s, mask, is_first_fixed=is_first_fixed))
    return torch.where(values > 0, posterior, fresh)


def _ascending(uniform: Tensor, values: Tensor, is_free: Tensor) -> Tensor:
    """Weakly ascending numbers from 0 to values - 1 at the free places of each row, uniform among all such rows.

    Such a row of n numbers, its i-th raised by i, is a set of n numbers below values + n - 1; Floyd draws such sets.
    """
    index = is_free.cumsum(1) - 1  # (B, N): how many free places come before
    chosen = torch.full_like(index, BEHIND)
    for place in range(index.shape[1]):
        top = values[:, 0] - 1 + index[:, place]
        candidate = (uniform[:, place] * (top + 1)).long()
        is_taken = (chosen == candidate[:, None]).any(1)
        number = torch.where(is_taken, top, candidate)
        chosen[:, place] = torch.where(is_free[:, place], number, BEHIND)
    ranked = chosen.sort(1).values  # free ones first
    return ranked.gather(1, index.clamp(min=0)) - index


def _is_behind(mask: Tensor) -> Tensor:
    """Places that hold padding, (B, N): those from the number of real items on."""
    return torch.arange(mask.shape[1], device=mask.device) >= mask.sum(1, keepdim=True)
