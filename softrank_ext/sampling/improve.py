"""`improve`: look for cheap orders by drawing parts of good ones again.

Each row of a batch has `chains` searches. A search begins with `initial` independent draws; the cheapest different ones
are its pool. In a round it makes one draw: of a part of an order of the pool, the rest kept, which takes that order's
place in the pool if it is accepted; or a fresh one, which takes the place of the pool's most costly order if it is
cheaper. The share of fresh draws follows what has lately paid: a draw pays if it is cheaper than anything before it.

All numbers are keyed by (seed, row, chain, round), so a result does not depend on the batch that it is found in.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext.checks import check_instance, check_limited, check_positive, described
from softrank_ext.constraints import Constraining, Constraints, Rules, settings_of
from softrank_ext.costs import Cost
from softrank_ext.model import DataFacts, OrderModel, evaluating
from softrank_ext.permutations import check_slots
from softrank_ext.processes import Bridge, OnePass, process_of_call
from softrank_ext.sampling.reverse import Call
from softrank_ext.sampling.sample import inputs_of, shared_seed
from softrank_ext.sampling.search import Instances, RoundDraw, SearchRows
from softrank_ext.sampling.settings import Drawing, Search

DEFAULT_ROUNDS = 48
_PLAIN_SEARCH, _PLAIN_DRAWING = Search(), Drawing()
_MOST_ROUNDS = 2**24 - 1  # that noise can number
_MOST_DRAWS = 2**32  # that a round can number apart
_MOST_ORDERS = 10**6  # that a row draws at once


@dataclass(frozen=True, eq=False, repr=False)
class Improved:
    """The cheapest orders that a search found; tensors, or numpy arrays if the items were.

    order (B, N) int64, `order[place] = item`, real items first. cost (B,) float64. history (B, rounds + 1) float64: the
    lowest cost after the initial draws and after each round. rounds: so many were run; with the same seed, `rounds=`
    that many gives the same result. draws: per row, in all chains. seed: the one that repeats it.
    draws_of_rounds: if `Drawing(record=True)`, the cheapest initial draw and what each round drew, a `RoundDraw` each.
    """

    order: Tensor
    cost: Tensor
    history: Tensor
    rounds: int
    draws: int
    seed: int
    draws_of_rounds: list[RoundDraw] | None = None

    def numpy(self) -> "Improved":
        """The same as numpy arrays."""
        fields = {name: getattr(self, name).cpu().numpy() for name in ("order", "cost", "history")}
        return replace(self, **fields)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.order.shape))
        return f"Improved({shape} order, {self.rounds} rounds, {self.draws} draws per row, seed {self.seed})"


@torch.no_grad()
def improve(
    model: OrderModel,
    items: Tensor | np.ndarray,
    cost: Cost,
    *,
    start: Tensor | np.ndarray | None = None,
    mask: Tensor | np.ndarray | None = None,
    constraints: Constraining = None,
    initial: int = 16,
    rounds: int | None = None,
    chains: int = 1,
    search: Search = _PLAIN_SEARCH,
    drawing: Drawing = _PLAIN_DRAWING,
    seconds: float | None = None,
    seed: int | torch.Generator | None = None,
    progress: bool = False,
) -> Improved:
    """Look for orders of low cost: draw some from the model, then draw parts of the best ones again and again.

    items, mask, constraints (law "prefix"), seed: as in `sample`. cost: `cost(items, order) -> (rows,)`, lower is
    better, see `costs`. start: (B, N) int64, orders to begin with beside the draws. initial: independent draws per
    chain. rounds: one more draw per chain each; by default 48, or as many as fit into `seconds`. chains: independent
    searches per row, of which the best counts. search: what is drawn again, what is taken, local search. drawing: how
    draws are made. seconds: stop after the round that passes this. progress: show a bar.

    For closed tours (the model's `data.symmetry`) without rules but a pin at place 0, the part is any stretch of the
    tour, and the result begins with the pinned item, or with item 0.
    Ctrl-C returns the best orders found so far, once the initial draws are made. Raises ValueError or TypeError, saying
    what is wanted.

    >>> found = improve(from_pretrained("tsp"), points, tour_length, seed=0)
    >>> found.order, found.cost  # (B, N), (B,)
    """
    check_instance("model", model, OrderModel)
    check_instance("search", search, Search)
    check_instance("drawing", drawing, Drawing)
    for name, number in (("initial", initial), ("chains", chains)):
        check_limited(name, number, 1, _MOST_ORDERS)
    if rounds is not None:
        check_limited("rounds", rounds, 0, _MOST_ROUNDS)
    if seconds is not None:
        check_positive("seconds", seconds)
    ends = None if seconds is None else time.monotonic() + seconds
    seed = shared_seed(seed)
    settings = settings_of(constraints)
    if settings.law != "prefix" or settings.reflect_noise:
        raise ValueError('improve needs constraints with law="prefix" and reflect_noise=False')
    own = model.process
    if isinstance(own, OnePass) or own.target != "clean":
        raise ValueError(f"improve needs a model that predicts clean orders, got a {model.model_type} model")
    is_given = drawing.process is not None or not isinstance(own, Bridge)
    process = process_of_call(own, drawing.process, None if is_given else 1)
    is_numpy = isinstance(items, np.ndarray)
    given = inputs_of(model, items, mask)
    B, N = given.items.shape[:2]
    if (drawing.first_row + B) * chains * initial > _MOST_DRAWS:
        raise ValueError(f"rows, chains and initial draws must multiply to at most {_MOST_DRAWS}")
    starts = None if start is None else _orders_of(start, given.is_single, (B, N), given.mask, given.items.device)
    if drawing.record and given.mask is not None and not bool(given.mask.all()):
        raise ValueError("record needs rows of equally many items: draws of rounds have one shape")
    last_round = rounds if rounds is not None else DEFAULT_ROUNDS if seconds is None else _MOST_ROUNDS

    with evaluating(model), tqdm(unit="draw", disable=not progress) as bar:
        call = Call(
            model,
            process,
            drawing.choice(getattr(model.config, "data", DataFacts())),
            settings,
            drawing.engine,
            seed,
            False,
            model.packed_weights(),
            bar,
        )
        searches = [
            SearchRows(call, cost, search, instances, chains, drawing)
            for instances in _instances_of(given.items, given.mask, starts, constraints)
        ]
        for rows in searches:
            rows.begin(initial)
        done = 0
        try:
            while done < last_round and (ends is None or time.monotonic() < ends):
                drawn = [rows.drawn(done + 1) for rows in searches]
                # Taken together, in no time: a round that Ctrl-C cuts short counts for no row.
                for rows, draws in zip(searches, drawn, strict=True):
                    rows.take(draws)
                done += 1
        except KeyboardInterrupt:
            pass
    result = _collected(searches, given.items, given.mask, done, chains * (initial + done), seed)
    if drawing.record:
        result = replace(result, draws_of_rounds=searches[0].rounds[: done + 1])
    if given.is_single:
        result = replace(result, order=result.order[0], cost=result.cost[0], history=result.history[0])
    if is_numpy:
        result = result.numpy()
    return result


def _orders_of(
    start: Tensor | np.ndarray, is_single: bool, shape: tuple[int, int], mask: Tensor | None, device: torch.device
) -> Tensor:
    """The orders to begin with as a (B, N) tensor, checked."""
    orders = torch.from_numpy(start) if isinstance(start, np.ndarray) else start
    if not isinstance(orders, Tensor):
        raise TypeError(f"start must be a tensor or a numpy array of orders, got {described(start)}")
    orders = orders[None] if is_single else orders
    if orders.shape != shape or orders.dtype != torch.int64:
        raise ValueError(f"start must be {shape} int64, an order per row, got {described(orders)}")
    orders = orders.to(device)
    check_slots(orders, mask, "start")
    return orders


def _instances_of(
    items: Tensor, mask: Tensor | None, starts: Tensor | None, constraints: Constraining
) -> list[Instances]:
    """The rows grouped by their number of real items, without padding."""
    B, N = items.shape[:2]
    if isinstance(constraints, Rules):
        raise ValueError("constraints must be Constraints, or a list of them")
    if mask is None or bool(mask.all()):
        rows = torch.arange(B, device=items.device)
        every = torch.arange(N, device=items.device).expand(B, N)
        return [Instances(rows, items, every, starts, constraints)]
    per_row = [constraints] * B if constraints is None or isinstance(constraints, Constraints) else list(constraints)
    if len(per_row) != B:
        raise ValueError(f"constraints must be Constraints, or a list of {B}, got a list of {len(per_row)}")
    found = []
    sizes, numbers = mask.sum(1), mask.cumsum(1) - 1  # numbers: of a real item among them
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero()[:, 0]
        real = mask[rows].nonzero()[:, 1].view(len(rows), size)
        own = None if starts is None else numbers[rows].gather(1, starts[rows, :size])
        rules = [per_row[row] and per_row[row].renumbered(numbers[row].tolist()) for row in rows.tolist()]
        given = items[rows][mask[rows]].unflatten(0, (len(rows), size))
        found.append(Instances(rows, given, real, own, rules if any(rules) else None))
    return found


def _collected(
    searches: list[SearchRows], items: Tensor, mask: Tensor | None, rounds: int, draws: int, seed: int
) -> Improved:
    """The results of all groups, padding behind the real items."""
    B, N = items.shape[:2]
    order = torch.empty(B, N, dtype=torch.int64, device=items.device)
    cost = torch.empty(B, dtype=torch.float64, device=items.device)
    history = torch.empty(B, rounds + 1, dtype=torch.float64, device=items.device)
    if mask is not None:
        order = torch.argsort(mask.to(torch.int8), dim=1, descending=True, stable=True)
    for search in searches:
        rows = search.instances.rows
        orders, costs = search.result()
        order[rows[:, None], torch.arange(orders.shape[1], device=order.device)] = orders
        cost[rows] = costs
        history[rows] = torch.stack(search.history[: rounds + 1], 1)
    return Improved(order, cost, history, rounds, draws, seed)
