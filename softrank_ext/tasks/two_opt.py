"""2-opt: tours shortened by reversing parts of them, compiled and in plain numpy."""

import numpy as np
import torch
from torch import Tensor

from softrank_ext._libraries import has_compiled_module
from softrank_ext.checks import ANY_FLOAT, check_integer, check_tensor
from softrank_ext.costs import TourLength, local_search
from softrank_ext.costs.tours import check_sizes
from softrank_ext.permutations import check_order


def two_opt(points: Tensor, order: Tensor, neighbours: int = 10) -> Tensor:
    """Tours (B, N) through points (B, N, 2), shortened until no reversal of a part helps; the first item stays first.

    New neighbours of a point are searched among its nearest `neighbours`, or among all points in plain numpy (with the
    environment variable SOFTRANK_EXT_REFERENCE=1). No tour gets longer.
    """
    check_order(order)
    check_tensor("points", points, (*order.shape, 2), ANY_FLOAT, "; it must fit order")
    check_integer("neighbours", neighbours, 1)
    check_sizes("points", points)
    if has_compiled_module():
        return local_search(points, order, TourLength(), ("reverse",), keep_first=True, neighbours=neighbours)
    pairs = zip(points.double().cpu().numpy(), order.cpu().numpy(), strict=True)
    shorter = [torch.from_numpy(plain_two_opt(*pair)) for pair in pairs]
    return torch.stack(shorter).to(order.device) if shorter else order


def plain_two_opt(points: np.ndarray, tour: np.ndarray) -> np.ndarray:
    """One tour (N,) through points (N, 2), shortened by reversals until none helps: slow and simple."""
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    tour = tour.copy()
    is_better = True
    while is_better:
        is_better = False
        for first in range(1, len(tour) - 1):
            # Reversing first ... last replaces the edges into `first` and out of `last`.
            before, begin, ends, after = tour[first - 1], tour[first], tour[first:], np.roll(tour, -1)[first:]
            change = distance[before, ends] + distance[begin, after] - distance[before, begin] - distance[ends, after]
            best = int(change.argmin())
            if change[best] < -1e-10:
                tour[first : first + best + 1] = tour[first : first + best + 1][::-1].copy()
                is_better = True
    return tour
