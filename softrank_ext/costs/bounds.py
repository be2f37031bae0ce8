"""Lengths that no tour goes below: how much a tour could still be shorter."""

import numpy as np
import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, uses_reference
from softrank_ext.checks import check_bool, check_integer, check_tensor
from softrank_ext.costs.tours import check_sizes


def tour_bound(distances: Tensor, closed: bool = True, length: float | None = None, rounds: int | None = None) -> float:
    """A length that no tour by these distances (N, N) float64, at least 0, goes below; Held and Karp's.

    Distances may differ from one way to the other: the shorter counts. An open tour is a closed one through one more
    place that is at distance 0 from all. Rules can only make tours longer, so it holds for tours that keep some too.
    length: of a tour, the shorter the better for the bound; None to take a rough one. rounds: the more, the nearer to
    the shortest tour, to about 1 % of it; None for as many as take some hundredths of a second. Without the compiled
    library a simple bound: each place has two nearest ones.
    """
    check_tensor("distances", distances, ("N", len(distances)), torch.float64)
    check_sizes("distances", distances)
    check_bool("closed", closed)
    rounds = max(10, min(400, 2 * 10**7 // max(len(distances), 1) ** 2)) if rounds is None else rounds
    check_integer("rounds", rounds, 1)
    table: np.ndarray = torch.minimum(distances, distances.T).numpy()
    if not closed:
        table = np.pad(table, (1, 0))
    if len(table) < 3:
        return float(distances.sum() - distances.trace()) if closed else float(table.max(initial=0.0))
    table = table.copy()
    np.fill_diagonal(table, np.inf)
    two_nearest = float(np.sort(table, 1)[:, :2].sum() / 2)
    if uses_reference():
        return two_nearest
    np.fill_diagonal(table, 0)
    rough = 1.25 * two_nearest if length is None else length
    return max(two_nearest, float(compiled_module().bound_tours(table, rough, rounds)))
