"""The noise process of SymmetricDiffusers, without a network: riffle shuffles of an order.

An a-shuffle cuts a list into a packets of multinomial sizes and interleaves them uniformly; one riffle is a 2-shuffle.
It is undone by giving each slot of the shuffled list a uniform label from 0 to a - 1 and sorting by it, stably. An
a-shuffle followed by a b-shuffle is an ab-shuffle, so t riffles are one 2^t-shuffle, and labels of t bits tell all of
them: the lowest bit undoes the last riffle, the lowest k bits the last k (Bayer and Diaconis, 1992).

Orders are `order[place] = item`. `slots` (B, N) int64 is the list before the riffles as places of the list after. A
place with a label below 0 stays in front and one with `BEHIND` at the back. The law is `distributions.Riffle`.
"""

import torch
from torch import Tensor

from softrank_ext.permutations import compose, ranks_of

MOST_RIFFLES = 52  # a uniform number in float64 has 53 random bits
BEHIND = 2**62


def draw_labels(uniform: Tensor, riffles: int, mask: Tensor | None = None, *, is_first_pinned: bool = False) -> Tensor:
    """Labels (B, N) int64 of 2^riffles-shuffled lists from uniform numbers (B, N) float64 in [0, 1).

    mask: (B, N) bool, True = real; padding must stand behind, and stays there. is_first_pinned: place 0 stays.
    """
    _check_riffles("riffles", riffles)
    if uniform.ndim != 2 or uniform.dtype != torch.float64:
        raise ValueError(f"uniform must be (B, N) float64, got {tuple(uniform.shape)} {uniform.dtype}")
    labels = (uniform * 2**riffles).long()
    if mask is not None:
        labels = labels.masked_fill(_is_behind(mask), BEHIND)
    if is_first_pinned:
        labels[:, :1] = -1
    return labels


def undo(labels: Tensor, riffles: int | Tensor) -> Tensor:
    """The list before the last `riffles` riffles, as slots (B, N) of the list that has the labels.

    labels: (B, N) int64, slot by slot. riffles: a number or (B,) int64.
    """
    riffles = torch.as_tensor(riffles, device=labels.device).reshape(-1, 1)
    low = labels & ((1 << riffles) - 1)
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
    is_first_pinned: bool = False,
) -> Tensor:
    """Draw the order (B, N) after s riffles given those after t > s and after none: the exact posterior.

    Given both ends, the labels are uniform among those whose stable sort leads from one to the other: along the clean
    order they ascend, strictly where the slots descend. Where t riffles cannot lead from order_clean to order_t (a
    prediction may be wrong), the draw forgets order_t: s riffles of order_clean.
    order_t, order_clean: (B, N) int64, padding behind. uniform: (B, N) float64. mask: (B, N) bool, in places.
    is_first_pinned: place 0 is not riffled.
    """
    _check_riffles("t", t)
    if not 0 <= s < t:
        raise ValueError(f"s and t must satisfy 0 <= s < t, got s = {s} and t = {t}")
    N = order_t.shape[1]
    slots = ranks_of(order_t).gather(1, order_clean)
    places = torch.arange(N, device=slots.device)
    is_free = torch.ones_like(slots, dtype=torch.bool) if mask is None else ~_is_behind(mask)
    if is_first_pinned:
        is_free = is_free & (places > 0)
    follows = is_free[:, 1:] & is_free[:, :-1]
    descents = torch.nn.functional.pad(
        ((slots.diff(dim=1) < 0) & follows).cumsum(1), (1, 0)
    )  # (B, N), up to each place
    values = 2**t - descents[:, -1:]  # how many the labels less `descents` have to choose from, (B, 1)
    ascending = _ascending(uniform, values.clamp(min=1), is_free)
    labels = torch.where(is_free, ascending + descents, BEHIND)
    if is_first_pinned:
        labels[:, :1] = -1
    labels_t = torch.empty_like(labels).scatter_(1, slots, labels)
    posterior = compose(order_t, undo(labels_t, t - s))
    fresh = shuffle(order_clean, draw_labels(uniform, s, mask, is_first_pinned=is_first_pinned))
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


def _check_riffles(name: str, riffles: int) -> None:
    if not isinstance(riffles, int) or not 0 <= riffles <= MOST_RIFFLES:
        raise ValueError(f"{name} must be an integer from 0 to {MOST_RIFFLES}, got {riffles!r}")
