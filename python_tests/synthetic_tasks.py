"""Small tasks that need no data: numbers to sort, and given laws over the orders of fixed items."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from testing import all_orders
from torch import Tensor

from softrank_ext.batch import Batch


def generator_of(*numbers: int) -> torch.Generator:
    """A generator that is a function of the numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % 2**63
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class SortNumbers:
    """Put N uniform numbers in ascending order. instances: train on that many fixed ones, 0 for fresh ones each time.

    padded: the last items of each instance are padding. first: the smallest number is fixed at place 0. known: how
    many leading places training knows.
    """

    num_items: int = 5
    instances: int = 0
    padded: int = 0
    first: bool = False
    known: int | None = None
    name: str = "numbers"

    def embedder(self) -> Mapping[str, object]:
        return {"kind": "linear", "features": 1}

    def max_items(self) -> int:
        return self.num_items

    def _batch(self, numbers: Tensor) -> Batch:
        mask = None
        key = numbers
        if self.padded:
            mask = torch.ones_like(numbers, dtype=torch.bool)
            mask[:, self.num_items - self.padded :] = False
            key = numbers.masked_fill(~mask, 2.0)
        order = key.argsort(dim=1, stable=True)
        size = len(numbers)
        return Batch(
            numbers[..., None],
            order,
            mask,
            order[:, 0].clone() if self.first else None,
            None if self.known is None else torch.full((size,), self.known),
        )

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        if self.instances:
            numbers = torch.rand(self.instances, self.num_items, generator=generator_of(seed))
            return self._batch(numbers.repeat(math.ceil(size / self.instances), 1)[:size])
        return self._batch(torch.rand(size, self.num_items, generator=generator_of(seed, step)))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        if self.instances:
            yield self.training_batch(seed, 0, self.instances)
            return
        numbers = torch.rand(count, self.num_items, generator=generator_of(-1, seed))
        for part in numbers.split(size):
            yield self._batch(part)

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        is_equal = order == batch.order
        if batch.mask is not None:
            is_equal = is_equal | (torch.arange(order.shape[1]) >= batch.mask.sum(1, keepdim=True))
        return {"accuracy": is_equal.all(1).double(), "wrong": (~is_equal).sum(1).double()}


@dataclass(frozen=True, eq=False)
class Law:
    """Items 0 to N - 1, always the same, and a law over their orders: orders (M, N) with probabilities (M,)."""

    orders: Tensor
    probabilities: Tensor
    name: str = "law"

    def embedder(self) -> Mapping[str, object]:
        return {"kind": "learned", "num_items": self.max_items()}

    def max_items(self) -> int:
        return self.orders.shape[1]

    def entropy(self) -> float:
        return float(torch.special.entr(self.probabilities).sum())

    def items(self, size: int) -> Tensor:
        return torch.arange(self.max_items()).expand(size, -1).contiguous()

    def _batch(self, size: int, generator: torch.Generator) -> Batch:
        drawn = torch.multinomial(self.probabilities, size, replacement=True, generator=generator)
        return Batch(self.items(size), self.orders[drawn])

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        return self._batch(size, generator_of(seed, step))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        generator = generator_of(-1, seed)
        for first in range(0, count, size):
            yield self._batch(min(size, count - first), generator)

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        return {"accuracy": (order == batch.order).all(1).double()}


def mallows(center: list[int], dispersion: float) -> Law:
    """Probability proportional to exp(-dispersion * number of pairs ordered otherwise than in `center`)."""
    orders = all_orders(len(center))
    place_of = {item: place for place, item in enumerate(center)}
    weights = []
    for order in orders.tolist():
        places = [place_of[item] for item in order]
        swapped = sum(a > b for i, a in enumerate(places) for b in places[i + 1 :])
        weights.append(math.exp(-dispersion * swapped))
    probabilities = torch.tensor(weights, dtype=torch.float64)
    return Law(orders, probabilities / probabilities.sum())


def cyclic(start: list[int]) -> Law:
    """The N rotations of one order, all equally likely."""
    N = len(start)
    orders = torch.tensor([start[shift:] + start[:shift] for shift in range(N)])
    return Law(orders, torch.full((N,), 1 / N, dtype=torch.float64))


def with_name(law: Law, name: str) -> Law:
    return replace(law, name=name)
