"""Tasks: where instances with a right order come from, how the network reads their items, how an order is scored.

A task makes batches as a function of (seed, step), without hidden state, so that a resumed or distributed run sees
what an uninterrupted one would. `order[place] = item` throughout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances with their right orders.

    items (B, N, ...) as the task's embedder takes them. order (B, N) int64, real items first. mask (B, N) bool, True =
    real item, or None for all. first (B,) int64: the item that stands first by decree (a tour's start), or None.
    known (B,) int64: how many leading places of `order` are known (partial rankings train on these), or None for all.
    extras: what the task scores by, tensors with leading dimension B (labels, coordinates, best lengths).
    """

    items: Tensor
    order: Tensor
    mask: Tensor | None = None
    first: Tensor | None = None
    known: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def is_whole(self) -> bool:
        """Whether all places of all orders are known."""
        if self.known is None:
            return True
        sizes = self.order.shape[1] if self.mask is None else self.mask.sum(1)
        return bool((self.known >= sizes).all())


class Task(Protocol):
    """What training and evaluation ask of a task."""

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
