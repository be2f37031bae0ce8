"""A batch of instances: items, their right orders, and what goes with them. `order[place] = item`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances with their right orders.

    items (B, N, ...) as the task's embedder takes them. order (B, N) int64, real items first. mask (B, N) bool, True =
    real item, or None for all. first (B,) int64: the item fixed at place 0 (a tour's start), or None.
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
