"""Lengths of tours as costs: through points, or by a table of distances, closed or open."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softrank_ext.checks import ANY_FLOAT, check_bool, check_tensor, described
from softrank_ext.metrics import matrix_tour_length, tour_length
from softrank_ext.permutations import check_range

MOST_SIZE = 1e100  # of coordinates and distances: its square is finite


@dataclass(frozen=True)
class TourLength:
    """Euclidean length of tours through points: items (..., N, D) float, order (..., N) int64, returns (...) float64.

    closed: with the way back from the last item to the first.
    """

    closed: bool = True

    def __post_init__(self) -> None:
        check_bool("closed", self.closed)

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The lengths of these tours."""
        points = self.table_of(items, order)
        if self.closed:
            return tour_length(points, order)
        check_range("order", order, order.shape[-1])
        stops = points.gather(-2, order[..., None].expand(*order.shape, items.shape[-1]))  # (..., place, D)
        lengths: Tensor = stops.diff(dim=-2).norm(dim=-1)
        return lengths.sum(-1)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The points (..., N, D) float64 of these items."""
        check_tensor("order", order, ("...", "N"), torch.int64)
        hint = "; it must be points that fit order"
        return check_tensor("items", items, (*order.shape, "D"), ANY_FLOAT, hint).double()


@dataclass(frozen=True, eq=False)
class MatrixTourLength:
    """Length of tours by distances from item to item, also one-way: `sum_place distances[item, next item]`.

    closed: with the way back from the last item to the first. distances: (N, N), from row to column, of the one
    instance that all rows are about; None if the items are the distances, items (..., N, N). Returns (...) float64.
    """

    closed: bool = True
    distances: Tensor | np.ndarray | None = None

    def __post_init__(self) -> None:
        check_bool("closed", self.closed)
        if self.distances is not None:
            if not isinstance(self.distances, Tensor | np.ndarray):
                raise TypeError(f"distances must be a tensor or a numpy array, got {described(self.distances)}")
            distances = torch.as_tensor(self.distances).double()
            object.__setattr__(self, "distances", distances)
            check_tensor("distances", distances, ("N", len(distances) if distances.ndim else 0), torch.float64)
            check_sizes("distances", distances)

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The lengths of these tours."""
        table = self.table_of(items, order)
        table = table.expand(*order.shape, table.shape[-1])
        if self.closed:
            return matrix_tour_length(table, order)
        check_range("order", order, order.shape[-1])
        edges = order[..., :-1] * order.shape[-1] + order[..., 1:]  # (..., N - 1)
        return table.flatten(-2).gather(-1, edges).sum(-1)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The distances (..., N, N) float64 of these items."""
        check_tensor("order", order, ("...", "N"), torch.int64)
        N = order.shape[-1]
        if isinstance(self.distances, Tensor):
            return check_tensor("distances", self.distances, (N, N), torch.float64, "; it must fit order").to(
                order.device
            )
        wanted = check_tensor("items", items, (*order.shape[:-1], N, N), ANY_FLOAT, "; it must be distances")
        return wanted.double()


def check_sizes(name: str, values: Tensor) -> None:
    """Raise ValueError unless all values are finite and not enormous. Reads the data: a sync."""
    if not bool((values.abs() < MOST_SIZE).all()):  # NaN too
        raise ValueError(f"{name} must be finite and below {MOST_SIZE:g} in size")
