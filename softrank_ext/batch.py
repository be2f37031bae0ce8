"""A batch of instances: items, their right orders, and what goes with them. `order[place] = item`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances with their right orders.

    items (B, N, ...) as the task's embedder takes them. order (B, N) int64, real items first. mask (B, N) bool, True =
    real item, or None for all. first (B,) int64: the item fixed at place 0 (a tour's start), or None.
    known (B,) int64: how many leading places of `order` are known (partial rankings train on these; 0 if there are no
    labels), or None for all.
    extras: what the task scores by, tensors with leading dimension B (labels, coordinates, best lengths).
    """

    items: Tensor
    order: Tensor
    mask: Tensor | None = None
    first: Tensor | None = None
    known: Tensor | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def without_labels(
        items: Tensor,
        mask: Tensor | None = None,
        first: Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> "Batch":
        """Instances whose right orders nobody knows: no place of `order` is known, it only lists the real items first.

        With first (B,), `order` begins with these items.
        """
        B, N = items.shape[:2]
        real = torch.ones(B, N, dtype=torch.bool, device=items.device) if mask is None else mask
        rank = torch.where(real, 1, 2)
        if first is not None:
            rank = rank.scatter(1, first[:, None], 0)
        order = rank.argsort(dim=1, stable=True)
        return Batch(items, order, mask, first, real.new_zeros(B, dtype=torch.int64), extras or {})

    def of_rows(self, rows: slice) -> "Batch":
        """These instances of the batch."""
        mask, first, known = (None if field is None else field[rows] for field in (self.mask, self.first, self.known))
        extras = {name: values[rows] for name, values in self.extras.items()}
        return Batch(self.items[rows], self.order[rows], mask, first, known, extras)

    def has_labels(self) -> bool:
        """Whether any place of any order is known."""
        return self.known is None or bool((self.known > 0).any())

    def is_whole(self) -> bool:
        """Whether all places of all orders are known."""
        if self.known is None:
            return True
        sizes = self.order.shape[1] if self.mask is None else self.mask.sum(1)
        return bool((self.known >= sizes).all())
