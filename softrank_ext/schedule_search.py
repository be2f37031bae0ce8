"""The search behind `schedule`: orders of one set of jobs, made cheaper until the time is over, and bounds from below.

Costs of `costs.problems` are searched compiled: NEH or ATC and the model's draws are where iterated greedy begins. For
any other cost random moves are tried in batches. Ctrl-C ends a search like the time does: what was found stays.
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.costs import Cost, Makespan, TotalFlowTime, WeightedTardiness, atc, costs_of, iterated_greedy, neh
from softrank_ext.costs.moves import MOVES, sources_of
from softrank_ext.costs.problems import Problem
from softrank_ext.model import OrderModel
from softrank_ext.sampling.sample import sample
from softrank_ext.tasks.flowshop import FlowShop

DRAWS = 32  # of the model
MODEL_SHARE = 0.1  # of the seconds, at most, for its draws
START_SHARE = 0.1  # of the seconds, for the orders that the search may begin with
LEAST_PIECE, MOST_PIECE = 0.02, 0.25  # seconds of compiled search between looks at what was found
MOVES_AT_ONCE = 64  # orders that a cost of the user's own is asked for at once
BOUND_STEPS = 200  # of subgradients
MOST_LEVELS = 200  # of weights


class Found(NamedTuple):
    """An order cheaper than those before it: after how many seconds, by what, and the order (N,)."""

    seconds: float
    cost: float
    by: str
    order: np.ndarray


@dataclass
class JobSearch:
    """Jobs, what an order of them costs, and the cheapest orders found so far, the last being the best.

    items: (1, N, F) float64, what the cost reads. constraints: pairs of jobs, or None. bound: see `bound_of`.
    """

    items: Tensor
    cost: Cost
    constraints: Constraints | None
    seconds: float
    seed: int
    found: list[Found] = field(default_factory=list)
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.rules = rules_of(self.constraints, 1, self.items.shape[1])
        self.bound = bound_of(self.cost, self.items[0].numpy())

    def run(self, model: OrderModel | None) -> None:
        """Search for the seconds given. model: of flow shops, or None."""
        try:
            self.offer("the order given", self._as_given())
            if isinstance(self.cost, Problem):
                self._search_compiled(model)
            else:
                self._search_any()
        except KeyboardInterrupt:
            self.is_interrupted = True
            if not self.found:
                raise

    def left(self) -> float:
        """Seconds that are left."""
        return self.began + self.seconds - time.monotonic()

    def offer(self, by: str, order: Tensor) -> Tensor:
        """Keep the cheapest of orders (R, N) if it is cheaper than all before; returns their costs (R,)."""
        costs = costs_of(self.cost, self.items.expand(len(order), -1, -1), order)
        costs = costs.masked_fill(~costs.isfinite(), torch.inf)
        lowest, row = costs.min(0)
        if not self.found or float(lowest) < self.found[-1].cost:
            seconds = time.monotonic() - self.began
            self.found.append(Found(seconds, float(lowest), by, order[int(row)].numpy().copy()))
        return costs

    def _as_given(self) -> Tensor:
        """The jobs in the order given, (1, N), moved back only as far as the rules ask."""
        N = self.items.shape[1]
        if self.rules is None or self.rules.before is None:
            return torch.arange(N)[None]
        waits = self.rules.before[0].sum(0)  # how many jobs each still waits for
        is_left, order = torch.ones(N, dtype=torch.bool), []
        for _ in range(N):
            job = int((is_left & (waits == 0)).int().argmax())
            is_left[job] = False
            waits = waits - self.rules.before[0][job].int()
            order.append(job)
        return torch.tensor(order)[None]

    def _search_compiled(self, model: OrderModel | None) -> None:
        rule = "ATC" if isinstance(self.cost, WeightedTardiness) else "NEH"
        if rule == "ATC":
            first = atc(self.items, constraints=self.constraints)
        else:
            first = neh(self.items, self.cost, constraints=self.constraints)
        self.offer(rule, first)
        starts, names = [first], [rule]
        if model is not None and not self._is_best():
            starts.append(self._drawn(model))
            names.append("the model")
        if self._is_best():
            return
        threads = torch.get_num_threads()
        current = torch.cat(starts)
        piece = START_SHARE * self.seconds / max(len(current) / threads, 1)
        searched = self._greedy(current, min(piece, self.left()), 0)
        costs = torch.cat([self.offer(f"iterated greedy from {name}", row[None])
                           for name, row in zip(names, searched, strict=True)])  # fmt: skip
        name = names[int(costs.argmin())]
        searched = searched[costs == costs.min()]  # a start that is behind by now only takes time
        current = searched[torch.arange(threads) % len(searched)]
        piece, number = LEAST_PIECE, 1
        while self.left() > 0 and not self._is_best():
            current = self._greedy(current, min(piece, self.left()), number)
            costs = self.offer(f"iterated greedy from {name}", current)
            if number % 4 == 0:  # a search that has fallen behind goes on from the best
                current[int(costs.argmax())] = current[int(costs.argmin())]
            piece, number = min(2 * piece, MOST_PIECE), number + 1

    def _greedy(self, order: Tensor, seconds: float, number: int) -> Tensor:
        """Iterated greedy search from orders (R, N), rows side by side. number: of this piece of the search."""
        return iterated_greedy(
            self.items.expand(len(order), -1, -1), order, self.cost, seconds=max(seconds, 0.0),
            constraints=self.constraints, seed=self.seed + 1_000_003 * number,
        )  # fmt: skip

    def _is_best(self) -> bool:
        """Whether no order can be better."""
        return self.bound is not None and self.found[-1].cost <= self.bound

    def _drawn(self, model: OrderModel) -> Tensor:
        """The cheapest (1, N) of the model's likeliest order and its draws."""
        items = FlowShop.items_of(self.items)
        allowed = self.began + MODEL_SHARE * self.seconds
        best = sample(model, items, decode="greedy", steps=1, seed=self.seed, constraints=self.constraints).order[0]
        cheapest = self.offer("the model", best)
        for start in range(0, DRAWS, 8):
            if time.monotonic() > allowed:
                break
            drawn = sample(
                model, items, num_samples=8, steps=1, seed=self.seed, first_sample=start, constraints=self.constraints
            ).order[0]
            costs = self.offer("the model", drawn)
            if costs.min() < cheapest.min():
                best, cheapest = drawn[costs.argmin()][None], costs.min()[None]
        return best

    def _search_any(self) -> None:
        """Random moves, many per call of the cost; the best of them is made if it costs no more, or by annealing."""
        N = self.items.shape[1]
        generator = torch.Generator().manual_seed(self.seed % 2**63)
        current = torch.from_numpy(self.found[-1].order)[None]
        own = self.found[-1].cost
        heat = None  # a typical difference between neighbours
        while self.left() > 0 and N > 1:
            tries = current.expand(MOVES_AT_ONCE, N)
            for again in (1.0, 0.5, 0.25):  # one move, in half of the tries two, in a quarter of these three
                kind = torch.randint(len(MOVES), (MOVES_AT_ONCE, 1), generator=generator)
                ends = torch.randint(N, (MOVES_AT_ONCE, 2), generator=generator)
                ends = torch.where(kind == MOVES.index("insert"), ends, ends.sort(1).values)
                moves = torch.cat((kind, ends), 1)
                moved = tries.gather(1, sources_of(moves, N))
                tries = torch.where(torch.rand(MOVES_AT_ONCE, 1, generator=generator) < again, moved, tries)
            if self.rules is not None:
                tries = tries[self.rules.rows(torch.zeros(len(tries), dtype=torch.int64)).kept_by(tries)]
                if len(tries) == 0:
                    continue
            costs = self.offer("random moves", tries)
            least = float(costs.min())
            if heat is None and bool(costs.isfinite().any()):
                heat = float(costs[costs.isfinite()].std(correction=0)) / 20
            share = max(self.left() / self.seconds, 1e-9)
            chance = float(torch.rand((), generator=generator))
            if least <= own or (heat and chance < np.exp((own - least) / (heat * share))):
                current, own = tries[costs.argmin()][None], least


def bound_of(cost: Cost, items: np.ndarray) -> float | None:
    """A number that no order costs less than; None if nothing is known about the cost. items: (N, F) float64."""
    if isinstance(cost, WeightedTardiness):
        return _tardiness_bound(items)
    if not isinstance(cost, Makespan | TotalFlowTime):
        return None
    heads = np.cumsum(items, 1) - items  # (N, M): the earliest that a job can begin on a machine
    tails = items.sum(1, keepdims=True) - heads - items
    if isinstance(cost, Makespan):
        return float(max((heads.min(0) + items.sum(0) + tails.min(0)).max(), items.sum(1).max()))
    # On each machine: the shortest jobs first, after the shortest head, and every job has its tail still to go.
    ends = heads.min(0) + np.sort(items, 0).cumsum(0)
    return float(max((ends.sum(0) + tails.sum(0)).max(), items.sum()))


def _tardiness_bound(jobs: np.ndarray) -> float:
    """The larger of two bounds on the weighted tardiness.

    `sum over levels of weight of (level - the one below) late(jobs of at least this weight)`, where `late` is the least
    sum, or the largest single value, of how late these jobs alone can be: the k-th to end does not end before the sum
    of the k shortest times, and the order by due dates has the least largest value.
    `max over 0 <= u <= weight of min over orders of sum u (end - due)`, approached by subgradients: for given u the
    order by `time / u` is the best (Smith), so every u gives a bound.
    """
    time_of, weight, due = jobs.T
    bound, below = 0.0, 0.0
    for level in np.unique(np.quantile(weight, np.linspace(0, 1, MOST_LEVELS), method="lower")):
        times, dues = time_of[weight >= level], due[weight >= level]
        by_due = np.argsort(dues)
        least = np.maximum(np.cumsum(np.sort(times)) - dues[by_due], 0).sum()
        bound += (level - below) * max(least, (np.cumsum(times[by_due]) - dues[by_due]).max())
        below = level
    u = weight.copy()
    scale = max(float(time_of.sum()), 1e-300)
    for step in range(BOUND_STEPS):
        order = np.argsort(time_of / np.maximum(u, 1e-300), kind="stable")
        ends = np.empty_like(time_of)
        ends[order] = np.cumsum(time_of[order])
        bound = max(bound, float((u * (ends - due)).sum()))
        u = np.clip(u + weight * (ends - due) / scale / (1 + step) ** 0.5, 0, weight)
    return bound * (1 - 1e-12)  # of what rounding may have added


def times_of(order: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end (N, M) of each job on each machine, as early as the order lets them be. times: (N, M)."""
    start, end = np.zeros_like(times), np.zeros_like(times)
    free = np.zeros(times.shape[1])
    for job in order:
        now = 0.0
        for machine in range(times.shape[1]):
            start[job, machine] = now = max(now, free[machine])
            end[job, machine] = now = free[machine] = now + times[job, machine]
    return start, end
