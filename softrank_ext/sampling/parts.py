"""Which part of an order `improve` draws again: small frozen choices, and what they choose in a batch of orders.

A size is drawn from `least` to `most`, once per round for all rows; integers count items, floats are shares of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import check_integer, check_number
from softrank_ext.choices import Rebuild


@dataclass(frozen=True)
class _Sized:
    least: float = 0.3
    most: float = 0.9

    def __post_init__(self) -> None:
        for name in ("least", "most"):
            value = getattr(self, name)
            if isinstance(value, int):
                check_integer(name, value, 1)
            else:
                check_number(name, value, "an integer or a share above 0 and at most 1", lambda x: 0 < x <= 1)
        if type(self.least) is type(self.most) and self.least > self.most:
            raise ValueError(f"least must be at most most = {self.most}, got {self.least}")

    def size(self, N: int, most: int, uniform: float) -> int:
        """A number of items, at least 2 of N and at most `most`, from a uniform number."""
        low, high = (
            min(max(bound if isinstance(bound, int) else math.ceil(bound * N), 2), most)
            for bound in (self.least, self.most)
        )
        return low + min(int(uniform * (max(high - low, 0) + 1)), max(high - low, 0))


@dataclass(frozen=True)
class Part(_Sized):
    """Consecutive places. A closed tour is turned so that they are its last ones; other orders have them anywhere."""


@dataclass(frozen=True)
class Tail(_Sized):
    """The last places."""


@dataclass(frozen=True)
class Near(_Sized):
    """An item drawn at random and those nearest to it, by the distance of their numbers."""

    least: float = 0.1
    most: float = 0.4


@dataclass(frozen=True)
class Unsure(_Sized):
    """Items at the places where the model finds the present order unlikely: drawn by their negative log-probability."""

    least: float = 0.1
    most: float = 0.4


@dataclass(frozen=True)
class Whole:
    """All items, at time t: the smaller, the nearer they stay to where they stood."""

    t: float = 0.2

    def __post_init__(self) -> None:
        check_number("t", self.t, "above 0 and at most 1", lambda x: 0 < x <= 1)


Rebuilding = Part | Tail | Near | Unsure | Whole


class Present(NamedTuple):
    """What a part is chosen from: items (B, N, ...) and orders (B, N), already turned; uniform (B, N) float64 numbers.

    size: the uniform number of the part's size. keeps_first: the item at place 0 stays. is_turned: orders are closed
    tours that were turned at random. log_probs: from orders to the model's log-probabilities (B, N) of their places.
    """

    items: Tensor
    order: Tensor
    uniform: Tensor
    size: float
    keeps_first: bool
    is_turned: bool
    log_probs: Callable[[Tensor], Tensor]


def chosen(kind: Rebuilding, present: Present) -> Rebuild:
    """The rebuilding of the part that `kind` chooses in each row."""
    order, uniform = present.order, present.uniform
    B, N = order.shape
    least_place = int(present.keeps_first)
    if isinstance(kind, Whole):
        return Rebuild(order, None, kind.t)
    size = kind.size(N, N - least_place, present.size)
    places = torch.arange(N, device=order.device)
    if isinstance(kind, Tail) or (isinstance(kind, Part) and present.is_turned):
        is_free = (places >= N - size).expand(B, N)
    elif isinstance(kind, Part):
        first = least_place + (uniform[:, :1] * (N - size - least_place + 1)).long()  # (B, 1)
        is_free = (places >= first) & (places < first + size)
    elif isinstance(kind, Near):
        stops = present.items.flatten(2) if present.items.ndim > 2 else present.items[..., None]  # (B, N, numbers)
        stops = stops.double().gather(1, order[..., None].expand(-1, -1, stops.shape[2]))  # by place
        centre = least_place + (uniform[:, :1] * (N - least_place)).long()  # (B, 1), a place
        middle = stops.gather(1, centre[..., None].expand(-1, -1, stops.shape[2]))
        is_free = _lowest((stops - middle).square().sum(2), size, least_place)
    else:
        # The `size` first of independent exponential times of rates -log_prob: a draw without replacement by weight.
        rates = (-present.log_probs(order).double()).clamp(min=1e-6)
        is_free = _lowest(-torch.log1p(-uniform) / rates, size, least_place)
    return Rebuild(order, torch.empty_like(is_free).scatter_(1, order, is_free))


def _lowest(values: Tensor, count: int, least_place: int) -> Tensor:
    """Where the `count` lowest values of each row are, (B, N) bool, places below `least_place` apart."""
    values = values.clone()
    values[:, :least_place] = torch.inf
    lowest = values.topk(count, 1, largest=False).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(1, lowest, True)
