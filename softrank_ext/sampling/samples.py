"""`Samples`: what `sample` returns."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softrank_ext.costs import Cost, costs_of
from softrank_ext.sampling.trajectory import Trajectory, TrajectoryPoint


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Sampled orders; tensors, or numpy arrays if the items were. Leading dimensions (B, num_samples), see `sample`.

    order (..., N) int64, `order[place] = item`, real items first. ranks (..., N) int64, `ranks[item] = place`.
    soft_ranks (..., N): ranks lifted to the grid in [0, 1]. log_prob (...): log-probability of the order under the last
    prediction, at the temperature drawn at; it is not the marginal over the whole reverse process. margin (...): by how
    much every soft rank may move before the order can change. passes (...) int64: decoder passes of all steps. accepted
    (...): the share of the places run in them that was kept; below 1 where drafts were wrong. mask (..., N) bool, True
    = real item, None if all are. seed: the one that repeats the samples. trajectory: a `TrajectoryPoint` per time if
    recorded, else None; its `save_html` writes a page that plays it.
    With constraints log_prob is renormalised over what they allow (law "prefix"), or the model's own ("conditioned").
    effective_size (...), law "conditioned" only: how many equally weighted draws of the instance its weighted ones are
    worth; log_prob_allowed (...): log of the estimated probability that a draw without constraints keeps them.
    """

    order: Tensor
    ranks: Tensor
    soft_ranks: Tensor
    log_prob: Tensor
    margin: Tensor
    passes: Tensor
    accepted: Tensor
    mask: Tensor | None = None
    seed: int = 0
    trajectory: Trajectory | None = None
    effective_size: Tensor | None = None
    log_prob_allowed: Tensor | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int | slice | Tensor) -> "Samples":
        """Every field indexed along its first dimension."""
        return map_fields(lambda field: field[index], self)

    def __repr__(self) -> str:
        *leading, N = self.order.shape
        best = f"{float(self.log_prob.max()):.4g}" if 0 not in self.log_prob.shape else "none"
        padded = "" if self.mask is None else ", padded"
        recorded = "" if self.trajectory is None else f", {len(self.trajectory)} times recorded"
        draws = f"{' x '.join(map(str, leading))} orders" if leading else "one order"
        return f"Samples({draws} of {N} items{padded}, best log_prob {best}, seed {self.seed}{recorded})"

    def best(
        self, cost: Cost | Callable[[Tensor], Tensor] | None = None, items: Tensor | np.ndarray | None = None
    ) -> "Samples":
        """The sample of lowest cost for each instance, or of highest log_prob: fields without their num_samples.

        cost: `cost(items, order) -> (rows,)`, see `costs`, with the items (B, N, ...), or (N, ...) of one instance,
        that the samples were drawn for. Without items it is a function of orders alone, from (..., num_samples, N) to
        (..., num_samples). None for `-log_prob`.
        """
        costs = torch.as_tensor(-self.log_prob if cost is None else self._costs(cost, items))
        if costs.shape != self.order.shape[:-1]:
            raise ValueError(f"cost must return {tuple(self.order.shape[:-1])} numbers, got {tuple(costs.shape)}")
        if costs.ndim == 1:
            return self[int(costs.argmin())]
        lowest = costs.argmin(1)
        index = lowest.to(self.order.device) if isinstance(self.order, Tensor) else lowest.numpy()
        return map_fields(lambda field: field[list(range(len(field))), index], self)

    def _costs(self, cost: Callable[..., Tensor], items: Tensor | np.ndarray | None) -> Tensor:
        """The costs (..., num_samples) of all orders."""
        if items is None:
            return cost(self.order)
        order, items = torch.as_tensor(self.order), torch.as_tensor(items)
        *leading, draws, N = order.shape
        if items.shape[: len(leading) + 1] != (*leading, N):
            raise ValueError(f"items must begin with {(*leading, N)}, as the samples do, got {tuple(items.shape)}")
        instances = items.reshape(-1, *items.shape[len(leading) :])  # (B, N, ...)
        rows = instances.repeat_interleave(draws, 0).to(order.device)
        mask = None if self.mask is None else torch.as_tensor(self.mask).reshape(-1, N)
        return costs_of(cost, rows, order.reshape(-1, N), mask).view(*leading, draws)

    def numpy(self) -> "Samples":
        """The same samples as numpy arrays."""
        return map_fields(lambda field: field.cpu().numpy(), self)


def map_fields(change: Callable[..., Any], *parts: Samples) -> Samples:
    """Samples whose every tensor is `change(that tensor of each part)`; what is None stays so."""

    def changed(*values: Any) -> Any:
        return None if values[0] is None else change(*values)

    trajectory = None
    if parts[0].trajectory is not None:
        trajectory = Trajectory(
            TrajectoryPoint(
                points[0].t,
                change(*(point.soft_ranks for point in points)),
                change(*(point.order for point in points)),
                change(*(point.predicted_order for point in points)),
            )
            for points in zip(*(part.trajectory or [] for part in parts), strict=True)
        )
    names = [field.name for field in fields(Samples) if field.name not in ("seed", "trajectory")]
    tensors = {name: changed(*(getattr(part, name) for part in parts)) for name in names}
    return replace(parts[0], **tensors, trajectory=trajectory)
