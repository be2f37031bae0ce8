"""Tours made shorter for as long as one likes: local search, small changes, local search again.

Without order pairs a round exchanges two neighbouring parts of the tour and mends it by 2-opt and Or-opt; with pairs it
takes some items out, with their partners, and puts them back where it is cheapest. A longer tour is accepted as
simulated annealing does, the more rarely the further the search is. All of it is compiled.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, has_compiled_module
from softrank_ext.checks import check_instance, check_integer, check_number, check_positive
from softrank_ext.constraints import Constraints, Rules, rules_of
from softrank_ext.costs.form import costs_of
from softrank_ext.costs.moves import search_in_batches
from softrank_ext.costs.tours import MatrixTourLength, TourLength, check_sizes
from softrank_ext.noise import seed_of
from softrank_ext.permutations import check_order

# Longer by so many mean legs is accepted with probability 1 / e, at first and at last.
EXCHANGE_HEAT = (0.05, 0.005)
REBUILD_HEAT = (12.0, 0.02)

MOST_KEPT = 1000  # tours of one call


@dataclass(frozen=True, eq=False)
class FoundTours:
    """What `iterated_local_search` found.

    order (B, kept, N) int64, the shortest first; where fewer different tours were found the first is repeated. count
    (B,) int64: how many different ones there are. rounds (B,) int64: run in each row. is_interrupted: Ctrl-C ended it.
    """

    order: Tensor
    count: Tensor
    rounds: Tensor
    is_interrupted: bool


def iterated_local_search(
    items: Tensor,
    order: Tensor,
    cost: TourLength | MatrixTourLength,
    *,
    constraints: Constraints | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    kept: int = 1,
    difference: float = 0.1,
    neighbours: int = 10,
    seed: int | torch.Generator = 0,
) -> FoundTours:
    """The shortest tours that a search from each of the tours (B, N) comes across; none longer than its start.

    items: (B, N, ...), as the cost reads them. constraints: rules that the tours keep, and must keep to begin with.
    rounds, seconds: when each row ends, by default after 1,000 rounds; rows share the threads, and the seconds are
    those of the whole call. kept: how many tours, of which any two differ in a share `difference` of their legs.
    neighbours: as in `local_search`. The same seed and rounds give the same tours; a torch.Generator draws the
    seed. Ctrl-C returns the best so far.
    """
    check_order(order)
    check_instance("cost", cost, (TourLength, MatrixTourLength))
    table = cost.table_of(items, order)
    check_sizes("items", table)
    check_integer("kept", kept, 1, MOST_KEPT)
    check_integer("neighbours", neighbours, 1)
    check_number("difference", difference, "from 0 to 1", lambda x: 0 <= x <= 1)
    seed = seed_of(seed)
    if rounds is not None:
        check_integer("rounds", rounds, 0)
    if seconds is not None:
        check_positive("seconds", seconds)
    if rounds is None and seconds is None:
        rounds = 1000
    B, N = order.shape
    rules = rules_of(constraints, B, N)
    if rules is not None and not bool(rules.kept_by(order).all()):
        row = int((~rules.kept_by(order)).nonzero()[0])
        raise ValueError(f"order must keep the constraints to begin with, row {row} does not")
    if not has_compiled_module() or order.numel() == 0:
        return _plain_search(items, order, cost, rules, 0 if rounds is None else rounds, kept, seed)
    rest, keeps_first, keeps_last = _without_ends(constraints, N)
    rebuilds = rest is not None and bool(rest.before) and not (rest.pins or rest.forbidden or rest.together)
    before, allowed, group = (rules_of(rest, B, N) if rebuilds else rules) or (None, None, None)
    threads = torch.get_num_threads()
    module = compiled_module()
    hot, cold = REBUILD_HEAT if rebuilds else EXCHANGE_HEAT
    waves = -(-B // threads)
    found, count, rounds_run, is_interrupted = module.iterate_tours(
        (table if table.ndim == 3 else table[None]).cpu().numpy(),
        order.cpu().numpy(),
        is_matrix=isinstance(cost, MatrixTourLength),
        is_closed=cost.closed,
        rebuilds=rebuilds,
        neighbours=neighbours,
        options=module.IterationOptions(
            rounds=-1 if rounds is None else rounds,
            seconds=-1 if seconds is None else seconds / waves,
            kept=kept,
            difference=difference,
            hot=hot,
            cold=cold,
        ),
        before=None if before is None else before.cpu().numpy(),
        allowed=None if allowed is None else allowed.cpu().numpy(),
        group=None if group is None else group.cpu().numpy(),
        keeps_first=rebuilds and keeps_first,
        keeps_last=rebuilds and keeps_last,
        seed=seed % 2**64,
        threads=threads,
    )
    return FoundTours(
        torch.from_numpy(found).to(order.device), torch.from_numpy(count), torch.from_numpy(rounds_run), is_interrupted
    )


def _without_ends(constraints: Constraints | None, N: int) -> tuple[Constraints | None, bool, bool]:
    """The constraints without pins to the ends, None if none are left, and whether the first and last are pinned."""
    if constraints is None:
        return None, False, False
    ends = {item: place % N for item, place in constraints.pins.items() if place % N in (0, N - 1)}
    others = {item: place for item, place in constraints.pins.items() if item not in ends}
    rest = replace(constraints, pins=others)
    has_rules = bool(rest.before or others or rest.forbidden or rest.together)
    return (rest if has_rules else None), 0 in ends.values(), N > 1 and N - 1 in ends.values()


def _plain_search(
    items: Tensor,
    order: Tensor,
    cost: TourLength | MatrixTourLength,
    rules: Rules | None,
    rounds: int,
    kept: int,
    seed: int,
) -> FoundTours:
    """The search in plain torch, slow and simple: exchanges, accepted if no longer; random numbers are others."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    N = order.shape[1]
    best = search_in_batches(items, order, cost, ("insert", "reverse"), rules=rules) if order.numel() > 0 else order
    length = costs_of(cost, items, best)
    for _ in range(rounds if N >= 3 and order.numel() > 0 else 0):
        cuts = torch.randperm(N + 1, generator=generator)[:3].sort().values.tolist()
        new = torch.cat(
            (best[:, : cuts[0]], best[:, cuts[1] : cuts[2]], best[:, cuts[0] : cuts[1]], best[:, cuts[2] :]), 1
        )
        is_kept = torch.ones(len(new), dtype=torch.bool) if rules is None else rules.kept_by(new)
        new = torch.where(is_kept[:, None], new, best)
        new = search_in_batches(items, new, cost, ("insert", "reverse"), rules=rules)
        new_length = costs_of(cost, items, new)
        best = torch.where((new_length <= length)[:, None], new, best)
        length = torch.minimum(length, new_length)
    rows = torch.full((len(order),), rounds)
    return FoundTours(best[:, None].repeat(1, kept, 1), torch.ones_like(rows), rows, False)
