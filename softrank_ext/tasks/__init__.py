"""Tasks: where instances with a right order come from, how the network reads their items, how an order is scored.

A task makes batches as a function of (seed, step), without hidden state, so that a resumed or distributed run sees
what an uninterrupted one would. `order[place] = item` everywhere.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor

from softrank_ext.batch import Batch


class Pool(NamedTuple):
    """Which pool of items: the `number`-th of a run's seed, of `size` items."""

    seed: int
    number: int
    size: int


class Task(Protocol):
    """What training and evaluation ask of a task.

    A task may also have `data_facts()`, the `DataFacts` that a model made for it keeps (`methods`); and a task without
    right orders has `cost`, a cost of the form of `costs` for the items of its batches, whose orders have no known
    place (`Batch.without_labels`). Such a task scores "cost", and may have `heuristics(batch)`, the costs (B,) that
    known methods reach, by name: `evaluate` reports them beside the model's. A task with right orders may have
    `search_cost`, a cost that `evaluate(improve=...)` minimises. With `training_count`, an integer, the training
    instances are so many fixed ones, and batches have their numbers in `extras["instance"]`; with `test_count`, there
    are so many held-out ones, and evaluations in training take no more. `constraints`: rules that all orders keep. A
    task whose items stand alone may have pools: `pool_items(pool)`, the items of a `Pool` in parts (count, ...), and
    `pooled_batch(pool, step, size)`, a training batch whose items are rows of it, (B, N) int64.
    """

    name: str

    def embedder(self) -> Mapping[str, object] | None:
        """The `embedder` of a SoftRankConfig that reads these items, or None if the user gives a module."""

    def max_items(self) -> int:
        """The largest N that a batch may have."""

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` training instances, the same for the same (seed, step)."""

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """`count` held-out instances in batches of at most `size`, the same for the same seed."""

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Metrics of predicted orders (B, N), one number per instance: name -> (B,)."""
