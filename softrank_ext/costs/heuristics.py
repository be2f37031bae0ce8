"""Orders by known methods that need no model, to stand beside one: NEH, ATC, nearest neighbour, iterated greedy."""

import time

import numpy as np
import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, has_compiled_module
from softrank_ext.checks import (
    ANY_FLOAT,
    check_integer,
    check_not_negative,
    check_positive,
    check_tensor,
    described,
)
from softrank_ext.constraints import Constraining, Rules, rules_of
from softrank_ext.costs.form import Cost, costs_of
from softrank_ext.costs.moves import search_in_batches
from softrank_ext.costs.problems import LinearOrdering, Makespan, Problem, TotalFlowTime, WeightedTardiness
from softrank_ext.costs.tours import MatrixTourLength, TourLength, check_sizes
from softrank_ext.noise import seed_of
from softrank_ext.permutations import check_order, check_range


def neh(times: Tensor, cost: Cost | None = None, *, constraints: Constraining = None) -> Tensor:
    """Orders (B, N) of flow shops by Nawaz, Enscore and Ham: the longest jobs first, each put where it is cheapest.

    times: (B, N, M), time of each job on each machine. cost: None for `Makespan()`. Jobs of one length come in the
    order given, and of equally cheap places the first is taken. constraints: pairs that the orders keep,
    `Constraints(before=...)`.
    """
    order = torch.argsort(_times(times).double().sum(2), dim=1, descending=True, stable=True)
    return insert_in_turn(times, order, Makespan() if cost is None else cost, constraints=constraints)


def atc(jobs: Tensor, lookahead: float = 2.0, *, constraints: Constraining = None) -> Tensor:
    """Orders (B, N) of jobs with due dates by the rule of apparent tardiness cost (Vepsalainen and Morton).

    Next comes the job with the highest `weight / time exp(-max(due - time - now, 0) / (lookahead mean time))`, the mean
    being that of the jobs left. jobs: (B, N, 3), processing time, weight and due date. constraints: pairs that the
    orders keep, `Constraints(before=...)`: only jobs whose predecessors are done may come next.
    """
    check_tensor("jobs", jobs, ("B", "N", 3), ANY_FLOAT)
    check_sizes("jobs", jobs)
    check_positive("lookahead", lookahead)
    lookahead = float(lookahead)
    length, weight, due = jobs.double().unbind(2)  # (B, N) each
    length, weight = (value.clamp(min=torch.finfo(value.dtype).tiny) for value in (length, weight))
    before = _before_of(constraints, jobs)
    is_left = torch.ones_like(length, dtype=torch.bool)
    now = length.new_zeros(len(length), 1)
    order = []
    for _ in range(length.shape[1]):
        mean = length.where(is_left, 0).sum(1, keepdim=True) / is_left.sum(1, keepdim=True)
        # Its logarithm: the exponential of a far due date would be 0 for several jobs.
        index = weight.log() - length.log() - (due - length - now).clamp(min=0) / (lookahead * mean)
        may_come = is_left if before is None else is_left & ~(before & is_left[:, :, None]).any(1)
        job = index.masked_fill(~may_come, -torch.inf).argmax(1, keepdim=True)
        order.append(job)
        is_left = is_left.scatter(1, job, False)
        now = now + length.gather(1, job)
    return torch.cat(order, 1) if order else torch.zeros(jobs.shape[:2], dtype=torch.int64)


def nearest_neighbour(points: Tensor, first: Tensor | None = None) -> Tensor:
    """Tours (B, N) through points (B, N, D) that always go on to the nearest one left.

    first: (B,) int64, where they begin; None for item 0.
    """
    check_tensor("points", points, ("B", "N", "D"), ANY_FLOAT)
    check_sizes("points", points)
    B, N, D = points.shape
    if N == 0:
        return torch.zeros(B, 0, dtype=torch.int64, device=points.device)
    at = torch.zeros(B, dtype=torch.int64, device=points.device) if first is None else first
    check_tensor("first", at, (B,), torch.int64)
    check_range("first", at, N)
    is_left = torch.ones(B, N, dtype=torch.bool, device=points.device)
    order = []
    for place in range(N):
        if place > 0:
            here = points.gather(1, at[:, None, None].expand(B, 1, D))
            at = (points.double() - here.double()).norm(dim=2).masked_fill(~is_left, torch.inf).argmin(1)
        order.append(at)
        is_left = is_left.scatter(1, at[:, None], False)
    return torch.stack(order, 1)


def insert_in_turn(items: Tensor, order: Tensor, cost: Cost, *, constraints: Constraining = None) -> Tensor:
    """Orders (B, N) built item by item, as `order` (B, N) lists them, each put at the first place where it is cheapest.

    The cost is asked for parts of an instance: items (rows, n, ...) with n up to N. Compiled for the costs of
    `costs.problems`. constraints: pairs that the orders keep, `Constraints(before=...)`.
    """
    check_order(order)
    _check_items(items, order, cost)
    before = _before_of(constraints, items)
    if isinstance(cost, Problem) and has_compiled_module() and order.numel() > 0:
        built: np.ndarray = compiled_module().build_orders(
            cost.table_of(items, order).cpu().numpy(),
            order.cpu().numpy(),
            cost.name,
            before=None if before is None else before.cpu().numpy(),
            threads=torch.get_num_threads(),
        )
        return torch.from_numpy(built).to(order.device)
    sequence = order[:, :0]
    for place in range(order.shape[1]):
        sequence = _put_cheapest(items, sequence, order[:, place], cost, before)
    return sequence


def iterated_greedy(
    items: Tensor,
    order: Tensor,
    cost: Cost,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    removed: int = 4,
    temperature: float = 0.4,
    constraints: Constraining = None,
    seed: int | torch.Generator = 0,
) -> Tensor:
    """Orders (B, N) by iterated greedy search (Ruiz and Stuetzle), the best that each row met.

    A round takes `removed` random items out, puts each back where it is cheapest, and inserts until nothing helps; a
    dearer order is accepted with the probability of annealing at `temperature` tenths of a typical time (of a typical
    weighted time for tardiness, of the cost per item for other costs). rounds, seconds: how long, for each row; at
    least one of them. With rounds alone the same seed gives the same orders, whatever the other rows are.
    seed: any 64-bit integer, or a torch.Generator that draws one.
    constraints: pairs that the orders keep, `Constraints(before=...)`; `order` must keep them to begin with.
    Compiled for the costs of `costs.problems`; other costs are asked for parts of an instance, see `insert_in_turn`.
    """
    check_order(order)
    if rounds is None and seconds is None:
        raise ValueError("rounds or seconds must be given, got neither")
    if rounds is not None:
        check_integer("rounds", rounds, 0)
    if seconds is not None:
        check_not_negative("seconds", seconds)
    check_integer("removed", removed, 1)
    check_positive("temperature", temperature)
    seed = seed_of(seed)
    _check_items(items, order, cost)
    before = _before_of(constraints, items)
    if before is not None and not bool(Rules(before, None, None).kept_by(order).all()):
        raise ValueError("order must keep the constraints to begin with")
    heat = temperature / 10 * _typical_step(items, order, cost)  # (B,)
    if isinstance(cost, Problem) and has_compiled_module() and order.numel() > 0:
        found: np.ndarray = compiled_module().iterated_greedy(
            cost.table_of(items, order).cpu().numpy(),
            order.cpu().numpy(),
            cost.name,
            rounds=-1 if rounds is None else rounds,
            seconds=-1.0 if seconds is None else float(seconds),
            removed=removed,
            temperature=heat.cpu().numpy(),
            seed=seed % 2**64,
            before=None if before is None else before.cpu().numpy(),
            threads=torch.get_num_threads(),
        )
        return torch.from_numpy(found).to(order.device)
    limits = rounds, seconds
    found_rows = []
    for row in range(len(order)):
        own = None if before is None else before[row : row + 1]
        found_rows.append(
            _plain_iterated_greedy(
                items[row : row + 1], order[row : row + 1], cost, limits, removed, float(heat[row]), own, seed + row
            )
        )
    return torch.cat(found_rows) if found_rows else order


def _plain_iterated_greedy(
    items: Tensor,
    order: Tensor,
    cost: Cost,
    limits: tuple[int | None, float | None],
    removed: int,
    heat: float,
    before: Tensor | None,
    seed: int,
) -> Tensor:
    """One row of `iterated_greedy` in plain torch; random numbers differ from those of the compiled one."""
    rounds, seconds = limits
    started = time.monotonic()
    generator = torch.Generator().manual_seed(seed % 2**63)
    N = order.shape[1]
    rules = None if before is None else Rules(before, None, None)
    order = best = search_in_batches(items, order, cost, ("insert",), rules=rules)
    own = best_cost = float(costs_of(cost, items, order))
    number = 0
    while number != rounds and (seconds is None or time.monotonic() - started < seconds):
        number += 1
        is_taken = torch.zeros(N, dtype=torch.bool)
        is_taken[torch.randperm(N, generator=generator)[:removed]] = True
        new = order[:, ~is_taken]
        for item in order[0, is_taken]:
            new = _put_cheapest(items, new, item[None], cost, before)
        new = search_in_batches(items, new, cost, ("insert",), rules=rules)
        new_cost = float(costs_of(cost, items, new))
        chance = float(torch.rand((), generator=generator))
        if new_cost <= own or chance < np.exp((own - new_cost) / heat):
            order, own = new, new_cost
        if new_cost < best_cost:
            best, best_cost = new, new_cost
    return best


def _put_cheapest(items: Tensor, sequence: Tensor, item: Tensor, cost: Cost, before: Tensor | None = None) -> Tensor:
    """Sequences (B, n) with one more item (B,) at the first place where it is cheapest and `before` (B, N, N) holds."""
    B, n = sequence.shape
    tries = torch.stack([torch.cat((sequence[:, :at], item[:, None], sequence[:, at:]), 1) for at in range(n + 1)], 1)
    flat = tries.flatten(0, 1)  # (B * (n + 1), n + 1)
    of_row = torch.arange(B, device=sequence.device).repeat_interleave(n + 1)
    part = items[of_row[:, None], flat]  # (B * (n + 1), n + 1, ...)
    if isinstance(cost, LinearOrdering | MatrixTourLength):
        if isinstance(cost, MatrixTourLength) and cost.distances is not None:
            raise ValueError("cost must be one of parts of an instance, got a table of distances for whole ones")
        part = part.gather(2, flat[:, None].expand(-1, n + 1, -1))
    in_order = torch.arange(n + 1, device=sequence.device).expand(len(flat), n + 1)
    costs = costs_of(cost, part, in_order).unflatten(0, (B, n + 1))
    if before is not None:
        row = torch.arange(B, device=sequence.device)[:, None]
        places = torch.arange(n, device=sequence.device)
        first = torch.where(before[row, sequence, item[:, None]], places + 1, 0).amax(1) if n else item * 0
        last = torch.where(before[row, item[:, None], sequence], places, n).amin(1) if n else item * 0
        at = torch.arange(n + 1, device=sequence.device)
        costs = costs.masked_fill((at < first[:, None]) | (at > last[:, None]), torch.inf)
    least = costs.amin(1, keepdim=True)
    at = (costs <= least + 1e-12 * least.abs()).int().argmax(1)  # rounding decides nothing
    return tries[torch.arange(B, device=at.device), at]


def _before_of(constraints: Constraining, items: Tensor) -> Tensor | None:
    """Which item stands before which, (B, N, N) bool, with all that follows from it; None if there is no rule.

    Raises ValueError for rules of other kinds: a part of an order does not show whether it will keep them.
    """
    B, N = items.shape[:2]
    rules = rules_of(constraints, B, N, device=items.device)
    if rules is None or all(rule is None for rule in rules):
        return None
    before, allowed, group = rules
    if before is None or allowed is not None or group is not None:
        raise ValueError("constraints must be pairs alone here, Constraints(before=...): no pins, places or groups")
    is_shared = before.stride(0) == 0
    closed = before[:1].clone() if is_shared else before.clone()
    for own in closed:
        for item in (own.any(0) & own.any(1)).nonzero()[:, 0].tolist():
            own[own[:, item]] |= own[item]  # what stands before the item stands before all that it stands before
    return closed.expand(B, N, N) if is_shared else closed


def _typical_step(items: Tensor, order: Tensor, cost: Cost) -> Tensor:
    """How much a small change may cost, (B,) float64, positive."""
    if isinstance(cost, Makespan | TotalFlowTime):
        times = _times(items).double().flatten(1)
        step = times.sum(1) / (times != 0).sum(1).clamp(min=1)
    elif isinstance(cost, WeightedTardiness):
        step = items[..., :2].double().mean(1).prod(1)
    else:
        step = costs_of(cost, items, order).abs() / max(order.shape[1], 1)
    return step.clamp(min=1e-12)


def _times(times: Tensor) -> Tensor:
    return check_tensor("times", times, ("B", "N", "M"), (*ANY_FLOAT, torch.int32, torch.int64))


def _check_items(items: Tensor, order: Tensor, cost: Cost) -> None:
    """Raise ValueError unless the items are what a cost of this room takes, and finite; of other costs, tensors."""
    if isinstance(cost, Problem | TourLength | MatrixTourLength):
        check_sizes("items", cost.table_of(items, order))
    elif not isinstance(items, Tensor) or items.shape[:2] != order.shape:
        raise ValueError(f"items must be {(*order.shape, ...)} to fit order, got {described(items)}")
