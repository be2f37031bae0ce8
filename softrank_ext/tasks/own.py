"""Your own data: items with their right orders or with a cost, from arrays or from any dataset with `len` and `[]`.

Random, by (seed, step): only which pair comes next in a pass over the training data. Pairs of different lengths are
padded within a batch. Instances that a function draws come from a generator of their own in every batch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_integer, described
from softrank_ext.costs import Cost, costs_of
from softrank_ext.model import DataFacts
from softrank_ext.permutations import check_order
from softrank_ext.tasks.draws import generator_of, rows_of_passes

Array = Tensor | np.ndarray
Instances = Callable[[int, torch.Generator], Tensor]


class PairDataset(Protocol):
    """A torch.utils.data.Dataset, or a list, of pairs (items, order)."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> tuple[Any, Any]: ...


class Items(Protocol):
    """A torch.utils.data.Dataset, or a list, of items (N, ...)."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


class Own:
    """A task of your own data.

    training, test: a tuple of two arrays, items (count, N, ...) and order (count, N), or a dataset of pairs items
    (N, ...) and order (N,), where N may differ; `order[place] = item`. test: None tests on the training data.
    cost: what an order costs, `cost(items, order) -> (rows,)`, see `costs`, if there are no right orders. Then training
    and test are items alone: an array (count, N, ...), a dataset of items (N, ...), or a function
    `instances(count, generator)` that draws items (count, N, ...), where N may differ from call to call.
    embedder: of a SoftRankConfig; None for a linear layer if an item is a vector of floats, else the model needs a
    module of your own. max_items: the largest N; None to find it in the data, which reads every instance once, or draws
    one of a function.

    items (B, N, ...) as given, padded with zeros; mask (B, N) where a batch has several lengths. extras, with a cost
    and data that are not drawn: instance (B,) int64, the row in the data.
    """

    name = "own"

    def __init__(
        self,
        training: PairDataset | tuple[Array, Array] | Array | Items | Instances,
        test: PairDataset | tuple[Array, Array] | Array | Items | Instances | None = None,
        *,
        cost: Cost | None = None,
        embedder: Mapping[str, object] | None = None,
        max_items: int | None = None,
    ) -> None:
        if cost is not None and not callable(cost):
            raise TypeError(f"cost must be a function cost(items, order) -> (rows,), got {described(cost)}")
        self.cost = cost
        self._training = _source_of("training", training, cost)
        self._test = self._training if test is None else _source_of("test", test, cost)
        items, _ = _pair(self._training, 0)
        if embedder is None and items.ndim == 2 and items.is_floating_point():
            embedder = {"kind": "linear", "features": items.shape[1]}
        self._embedder = embedder
        if max_items is None:
            self._least_items, most = _sizes(self._training)
            self._max_items = most if test is None else max(most, _sizes(self._test)[1])
            self._most_items = most
        else:
            self._max_items = self._most_items = check_integer("max_items", max_items, 1)
            self._least_items = 1

    def embedder(self) -> Mapping[str, object] | None:
        """The embedder given, or a linear layer; None if the model needs a module of your own."""
        return self._embedder

    def max_items(self) -> int:
        """The largest N of training and test data."""
        return self._max_items

    def data_facts(self) -> DataFacts:
        """The fewest and most items of the training data; from 1 to max_items if that was given."""
        return DataFacts(num_items=(self._least_items, self._most_items))

    @property
    def training_count(self) -> int | None:
        """How many fixed instances training with a cost goes over and over; None if they are drawn."""
        return None if self.cost is None or isinstance(self._training, _Drawn) else len(self._training)

    @property
    def test_count(self) -> int | None:
        """How many test instances there are; None if they are drawn."""
        return None if isinstance(self._test, _Drawn) else len(self._test)

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` instances of the training data."""
        if isinstance(self._training, _Drawn):
            return self._without_labels([*self._training.draw(size, generator_of(seed, step, "training instances"))])
        rows = rows_of_passes(len(self._training), seed, step * size, size, "training pairs")
        return self._batch(self._training, rows)

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The first `count` instances of the test data, for every seed; or drawn, each by its number and the seed."""
        if not isinstance(self._test, _Drawn) and count > len(self._test):
            raise ValueError(f"the test data has {len(self._test)} instances, {count} were asked for")
        for start in range(0, count, size):
            rows = range(start, min(start + size, count))
            if isinstance(self._test, _Drawn):
                drawn = [self._test.draw(1, generator_of(seed, row, "test instances"))[0] for row in rows]
                yield self._without_labels(drawn)
            else:
                yield self._batch(self._test, torch.tensor(rows))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """The cost, or agreement with the right order; padding is left out."""
        if self.cost is not None:
            return {"cost": costs_of(self.cost, batch.items, order, batch.mask)}
        return {
            "kendall_tau": metrics.kendall_tau(order, batch.order, batch.mask),
            "accuracy": metrics.accuracy(order, batch.order, batch.mask),
            "correctness": metrics.correctness(order, batch.order, batch.mask),
            "kendall_tau_of_ranks": metrics.kendall_tau_of_ranks(order, batch.order, batch.mask),
        }

    def _batch(self, pairs: PairDataset, rows: Tensor) -> Batch:
        if self.cost is not None:
            found = (
                pairs.items[rows] if isinstance(pairs, _ArrayPairs) else [_pair(pairs, row)[0] for row in rows.tolist()]
            )
            return self._without_labels([*found], {"instance": rows})
        if isinstance(pairs, _ArrayPairs):
            return Batch(pairs.items[rows], pairs.order[rows])
        drawn = [_pair(pairs, row) for row in rows.tolist()]
        items, mask = self._padded([items for items, _ in drawn])
        N = items.shape[1]
        order = torch.stack([torch.cat((order, torch.arange(len(order), N))) for _, order in drawn])
        check_order(order)
        return Batch(items, order, mask=mask)

    def _without_labels(self, instances: list[Tensor], extras: Mapping[str, Tensor] | None = None) -> Batch:
        items, mask = self._padded(instances)
        return Batch.without_labels(items, mask, extras=extras)

    def _padded(self, instances: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Items (B, N, ...) of instances of up to N items, and which of them are real, None for all."""
        counts = torch.tensor([len(items) for items in instances])
        N = int(counts.max())
        if self._max_items < N:
            raise ValueError(f"an instance has {N} items, max_items is {self._max_items}")
        mask = torch.arange(N) < counts[:, None]
        return torch.stack([_padded(items, N) for items in instances]), None if bool(mask.all()) else mask


class _ArrayPairs:
    def __init__(self, items: Tensor, order: Tensor) -> None:
        self.items, self.order = items, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, row: int, /) -> tuple[Tensor, Tensor]:
        return self.items[row], self.order[row]


class _ItemsOnly:
    """Items without orders as pairs: the order is that of the data."""

    def __init__(self, name: str, items: Items) -> None:
        self.name, self.items = name, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int, /) -> tuple[Tensor, Tensor]:
        items = self.items[row]
        if isinstance(items, tuple | list):
            raise TypeError(
                f"{self.name} must be items alone, since a cost is given, got {type(items).__name__} in row {row}"
            )
        items = torch.as_tensor(items)
        return items, torch.arange(len(items))


class _Drawn:
    """Instances that a function draws."""

    def __init__(self, name: str, instances: Instances) -> None:
        self.name, self.instances = name, instances

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int, /) -> tuple[Tensor, Tensor]:
        items = self.draw(1, generator_of(0, row, "first instance"))[0]
        return items, torch.arange(len(items))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` instances (count, N, ...)."""
        items = self.instances(count, generator)
        if not isinstance(items, Tensor) or items.ndim < 2 or len(items) != count:
            raise ValueError(f"{self.name} must draw a tensor of items ({count}, N, ...), got {described(items)}")
        return items


def _source_of(name: str, given: Any, cost: Cost | None) -> PairDataset:
    """Training or test data as pairs."""
    if cost is None:
        return _pairs(name, given)
    if isinstance(given, Tensor | np.ndarray):
        items = torch.as_tensor(given)
        if items.ndim < 2 or len(items) == 0 or items.shape[1] == 0:
            raise ValueError(f"{name} must be items (count, N, ...), at least one, got {described(items)}")
        return _ArrayPairs(items, torch.arange(items.shape[1]).expand(items.shape[:2]))
    if isinstance(given, tuple):
        raise TypeError(f"{name} must be items alone, since a cost is given, got a tuple of {len(given)}")
    if callable(given) and not hasattr(given, "__getitem__"):
        return _Drawn(name, given)
    return _pairs(
        name, _ItemsOnly(name, given) if hasattr(given, "__len__") and hasattr(given, "__getitem__") else given
    )


def _pairs(name: str, given: PairDataset | tuple[Array, Array]) -> PairDataset:
    if isinstance(given, tuple):
        if len(given) != 2 or not all(isinstance(array, Tensor | np.ndarray) for array in given):
            raise TypeError(f"{name} must be a tuple of two arrays, items and order, or a dataset of such pairs")
        items, order = torch.as_tensor(given[0]), torch.as_tensor(given[1])
        if order.ndim != 2 or items.shape[:2] != order.shape:
            raise ValueError(
                f"{name} must be items (count, N, ...) and order (count, N), "
                f"got {described(items)} and {described(order)}"
            )
        check_order(order, f"order of {name}")
        given = _ArrayPairs(items, order)
    elif not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        raise TypeError(f"{name} must have len() and [], got {type(given).__name__}; iterable datasets do not resume")
    if len(given) == 0:
        raise ValueError(f"{name} is empty")
    return given


def _pair(pairs: PairDataset, row: int) -> tuple[Tensor, Tensor]:
    items, order = pairs[row]
    items, order = torch.as_tensor(items), torch.as_tensor(order)
    if order.dtype != torch.int64 or order.ndim != 1 or items.shape[:1] != order.shape:
        raise ValueError(
            f"pair {row} must be items (N, ...) and order (N,) int64, got {described(items)} and {described(order)}"
        )
    return items, order


def _sizes(pairs: PairDataset) -> tuple[int, int]:
    """The fewest and most items of a pair."""
    if isinstance(pairs, _ArrayPairs):
        return pairs.order.shape[1], pairs.order.shape[1]
    sizes = [len(_pair(pairs, row)[1]) for row in range(len(pairs))]
    return min(sizes), max(sizes)


def _padded(items: Tensor, N: int) -> Tensor:
    return torch.cat((items, items.new_zeros(N - len(items), *items.shape[1:])))
