"""Your own data: pairs of items and their right order, from arrays or from any dataset with `len` and `[]`.

Random, by (seed, step): only which pair comes next in a pass over the training data. Pairs of different lengths are
padded within a batch.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_integer, described
from softrank_ext.model import DataFacts
from softrank_ext.permutations import check_order
from softrank_ext.tasks.draws import rows_of_passes

Array = Tensor | np.ndarray


class PairDataset(Protocol):
    """A torch.utils.data.Dataset, or a list, of pairs (items, order)."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> tuple[Any, Any]: ...


class Own:
    """A task of your own data.

    training, test: a tuple of two arrays, items (count, N, ...) and order (count, N), or a dataset of pairs items
    (N, ...) and order (N,), where N may differ; `order[place] = item`. test: None tests on the training data.
    embedder: of a SoftRankConfig; None for a linear layer if an item is a vector of floats, else the model needs a
    module of your own. max_items: the largest N; None to find it in the data, which reads every pair once.

    items (B, N, ...) as given, padded with zeros; mask (B, N) where a batch has several lengths.
    """

    name = "own"

    def __init__(
        self,
        training: PairDataset | tuple[Array, Array],
        test: PairDataset | tuple[Array, Array] | None = None,
        *,
        embedder: Mapping[str, object] | None = None,
        max_items: int | None = None,
    ) -> None:
        self._training = _pairs("training", training)
        self._test = self._training if test is None else _pairs("test", test)
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

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` pairs of the training data."""
        rows = rows_of_passes(len(self._training), seed, step * size, size, "training pairs")
        return self._batch(self._training, rows)

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The first `count` pairs of the test data, for every seed."""
        if count > len(self._test):
            raise ValueError(f"the test data has {len(self._test)} pairs, {count} were asked for")
        for start in range(0, count, size):
            yield self._batch(self._test, torch.arange(start, min(start + size, count)))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Agreement with the right order; padding is left out."""
        return {
            "kendall_tau": metrics.kendall_tau(order, batch.order, batch.mask),
            "accuracy": metrics.accuracy(order, batch.order, batch.mask),
            "correctness": metrics.correctness(order, batch.order, batch.mask),
            "kendall_tau_of_ranks": metrics.kendall_tau_of_ranks(order, batch.order, batch.mask),
        }

    def _batch(self, pairs: PairDataset, rows: Tensor) -> Batch:
        if isinstance(pairs, _ArrayPairs):
            return Batch(pairs.items[rows], pairs.order[rows])
        drawn = [_pair(pairs, row) for row in rows.tolist()]
        counts = torch.tensor([len(order) for _, order in drawn])
        N = int(counts.max())
        if self._max_items < N:
            raise ValueError(f"a pair has {N} items, max_items is {self._max_items}")
        items = torch.stack([_padded(items, N) for items, _ in drawn])
        order = torch.stack([torch.cat((order, torch.arange(len(order), N))) for _, order in drawn])
        check_order(order)
        mask = torch.arange(N) < counts[:, None]
        return Batch(items, order, mask=None if bool(mask.all()) else mask)


class _ArrayPairs:
    def __init__(self, items: Tensor, order: Tensor) -> None:
        self.items, self.order = items, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, row: int, /) -> tuple[Tensor, Tensor]:
        return self.items[row], self.order[row]


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
