"""`plan_tour`: a short tour through places, by a model's draws and a search that goes on from them."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softrank_ext import noise, ops
from softrank_ext.checks import check_bool, check_integer, check_positive
from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.costs import MatrixTourLength, iterated_local_search, local_search, tour_bound
from softrank_ext.model import DataFacts, OrderModel
from softrank_ext.pretrained import from_pretrained
from softrank_ext.sampling import Search, improve
from softrank_ext.tables import columns_of, texts_in
from softrank_ext.tours.places import Places, in_unit_square, on_a_map, places_of
from softrank_ext.tours.tour import Tour

MODEL_SHARE = 0.15  # of the seconds; the search has the rest
LEAST_SECONDS = 0.3  # with less there is no time for a model
MODEL_ROUNDS = 16
GOOD = 1.25  # times as long as the shortest one a tour may be that counts as good
DIFFERENCE = 0.1  # share of the legs in which tours differ that count as different
# Under pairs a search may be caught in tours that go round the wrong way; of few places several are done in the time.
PAIR_SEARCHES, FEW_PLACES = 4, 120


@dataclass(frozen=True, eq=False)
class _Problem:
    """One call: the places, the rules, and the cost by which every part of it goes."""

    places: Places
    constraints: Constraints | None
    cost: MatrixTourLength

    @property
    def size(self) -> int:
        return len(self.places.names)


def plan_tour(
    places: Any,
    *,
    metric: str | None = None,
    start: int | str | None = None,
    end: int | str | None = None,
    closed: bool = True,
    pairs: Any = (),
    groups: Iterable[Iterable[int | str]] = (),
    forbidden: Iterable[tuple[int | str, int]] = (),
    k: int = 1,
    seconds: float = 1.0,
    rounds: int | None = None,
    model: str | Path | OrderModel | None = "tsp",
    seed: int | torch.Generator = 0,
) -> Tour:
    """A short tour through places.

    places: an (N, 2) array or list, a table (DataFrame, dict, CSV file) with such columns and maybe one of names, or
    distances. metric, always to be given: "latlon" for degrees, latitude first, with great-circle distances in km;
    "plane" for coordinates of one unit; "matrix" for an (N, N) table of distances from row to column in place of
    places, which need not be the same both ways. Other arguments give a place by its row or by its name.

    start: where the tour begins. closed: it comes back; else it may end anywhere, or at `end`. pairs: (pickup,
    delivery), the one before the other; also a table with two columns. groups: places visited one right after another.
    forbidden: (place, when), never visited at that point of the tour, 0 for the first and -1 for the last.
    k: so many different good tours, as far as there are, in `Tour.others`. seconds: to think, on all threads of torch;
    or rounds: of the search, repeatable by `seed` on any machine. seed: any 64-bit integer, or a torch.Generator that
    draws one. Ctrl-C returns the best so far.

    model: draws tours to start from, if the places are like those that it was trained on; None for none.
    `Tour.answered_by` says which one did, or why none. Reading it, the first time, does not count as thinking.
    Raises TypeError or ValueError, saying what is wanted.

    >>> tour = plan_tour([(52.37, 4.90), (51.92, 4.48), (52.09, 5.12), (51.44, 5.47)], metric="latlon", start=0)
    >>> tour.order, tour.length  # rows in the order of the visit, km
    """
    check_bool("closed", closed)
    check_integer("k", k, 1, 100)
    check_positive("seconds", seconds)
    seed = noise.seed_of(seed)
    if rounds is not None:
        check_integer("rounds", rounds, 0)
    found = places_of(places, metric)
    constraints = _constraints_of(found, start, end, closed, pairs, groups, forbidden)
    problem = _Problem(found, constraints, MatrixTourLength(closed, found.distances))
    own = _loaded(str(model)) if isinstance(model, str | Path) else model
    limit = None if rounds is not None else time.monotonic() + seconds

    name = f"the model {str(model)!r}" if isinstance(model, str | Path) else "the model"
    drawn, told, is_interrupted = _drawn(problem, own, name, limit, seed)
    chains = 1 if rounds is not None else torch.get_num_threads()  # repeatable: not by what the machine has
    if rounds is None and constraints is not None and constraints.before and problem.size <= FEW_PLACES:
        chains *= PAIR_SEARCHES
    starts = _starts(problem, drawn, chains, seed)
    tours, count = list(starts), 0
    if not is_interrupted:
        share = 1.0 if k == 1 else 0.7
        tours, count, is_interrupted = _searched(problem, starts, k, limit, share, rounds, seed)
    if len(tours) < k and not is_interrupted:
        tours = _with_others(problem, tours, k, limit, rounds, seed)
    shortest, *rest = sorted(tours, key=lambda order: _length(problem, order))[:k]
    bound = tour_bound(torch.from_numpy(found.distances), closed, _length(problem, shortest))
    others = tuple(Tour(_turned(problem, order), found, closed, told, bound, count, is_interrupted) for order in rest)
    return Tour(_turned(problem, shortest), found, closed, told, bound, count, is_interrupted, others)


def _constraints_of(
    places: Places, start: object, end: object, closed: bool, pairs: Any, groups: Any, forbidden: Any
) -> Constraints | None:
    """The rules by rows, checked; None if there are none."""
    N = len(places.names)
    pins: dict[int, int] = {}
    if end is not None:
        if closed:
            raise ValueError("end needs closed=False: a closed tour ends where it starts")
        pins[places.number_of("end", end)] = N - 1
    if start is not None:
        first = places.number_of("start", start)
        if first in pins and N > 1:
            raise ValueError(f"start and end must be different places, got {start!r} for both; or closed=True")
        pins[first] = 0
    constraints = Constraints(
        before=[(places.number_of("pairs", a), places.number_of("pairs", b)) for a, b in _pairs_of(pairs)],
        pins=pins,
        forbidden=[(places.number_of("forbidden", place), when) for place, when in _listed("forbidden", forbidden, 2)],
        together=[[places.number_of("groups", place) for place in group] for group in _listed("groups", groups)],
    )
    if not (constraints.before or pins or constraints.forbidden or constraints.together):
        return None
    try:
        rules_of(constraints, 1, N)
    except ValueError as error:
        message = str(error).replace("together must be disjoint groups", "groups must be disjoint")
        message = message.replace("constraints must name places", "forbidden must name places")
        raise ValueError(_in_names(message, places)) from error
    return constraints


def _pairs_of(pairs: Any) -> list[tuple[Any, Any]]:
    """Pairs as given, or those of a table: its first two columns, as names."""
    is_frame = type(pairs).__module__.split(".")[0] in ("pandas", "polars")
    if is_frame or isinstance(pairs, str | Path | dict):
        columns = columns_of(pairs)
        if len(columns) < 2:
            raise ValueError(f"pairs must have two columns, pickup and delivery, got {', '.join(map(repr, columns))}")
        first, second = (texts_in(columns, name) for name in list(columns)[:2])
        for row, cells in enumerate(zip(first, second, strict=True)):
            if None in cells:
                raise ValueError(f"pairs must name two places, an empty cell is in row {row}; rows count from 0")
        return list(zip(first.tolist(), second.tolist(), strict=True))
    return [(a, b) for a, b in _listed("pairs", pairs, 2)]


def _listed(name: str, values: Any, width: int | None = None) -> list[tuple[Any, ...]]:
    wanted = "a list of groups of places" if width is None else "a list of pairs"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be {wanted}, got {type(values).__name__}")
    rows = []
    for value in values:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{name} must be {wanted}, got {value!r} in it")
        rows.append(tuple(value))
        if width is not None and len(rows[-1]) != width:
            raise ValueError(f"{name} must be {wanted}, got {value!r} in it")
    return rows


def _in_names(message: str, places: Places) -> str:
    """A sentence about items with the names of those places that have one."""
    rows = sorted({int(number) for number in re.findall(r"\d+", message) if int(number) < len(places.names)})
    named = [f"{row} is {places.names[row]!r}" for row in rows if places.names[row] != str(row)]
    return message + (f" ({', '.join(named)})" if named else "")


def _drawn(
    problem: _Problem, model: OrderModel | None, name: str, limit: float | None, seed: int
) -> tuple[Tensor | None, str, bool]:
    """A tour (N,) by the model, or None, what there is to tell about it, and whether Ctrl-C ended it."""
    left = None if limit is None else limit - time.monotonic()
    if model is None:
        return None, "No model was asked for: the tour is by search alone.", False
    data, points = getattr(model.config, "data", DataFacts()), problem.places.points
    flat = points
    if points is None:
        why: str | None = "it reads points, not distances"
    elif not problem.cost.closed:
        why = "it knows closed tours"
    elif left is not None and left < LEAST_SECONDS:
        why = f"less than {LEAST_SECONDS} seconds are left for it"
    else:
        flat = in_unit_square(on_a_map(points) if problem.places.metric == "latlon" else points)
        why = _why_not_for(data, flat)
    if why is not None or flat is None:
        return None, f"The tour is by search alone: {name} draws none here, as {why}.", False
    items = torch.from_numpy(flat).float()[None]

    # Without rules but a start `improve` turns tours around while it searches.
    kept = problem.constraints if problem.constraints is not None and _has_rules(problem.constraints) else None

    def polish(items: Tensor, order: Tensor) -> Tensor:
        return local_search(items, order, problem.cost, constraints=kept)

    seconds = None if left is None else MODEL_SHARE * left
    found = improve(
        model, items, problem.cost, constraints=problem.constraints, initial=8, search=Search(polish=polish), seed=seed,
        rounds=MODEL_ROUNDS if seconds is None else None, seconds=seconds,
    )  # fmt: skip
    has_ended_early = limit is None and found.rounds < MODEL_ROUNDS
    if limit is not None and left is not None:
        has_ended_early = time.monotonic() < limit - (1 - MODEL_SHARE) * left
    low, high = data.num_items or (0, 0)
    rules = "" if problem.constraints is None or not _has_rules(problem.constraints) else "; it has seen no rules"
    told = (
        f"{name[0].upper()}{name[1:]}, trained on closed tours through {low} to {high} places spread evenly over a "
        f"square{rules}, drew {found.draws} tours to start from; the search went on from the best."
    )
    return found.order[0], told, has_ended_early


@lru_cache(maxsize=4)
def _loaded(model: str) -> OrderModel:
    return from_pretrained(model)


def _has_rules(constraints: Constraints) -> bool:
    return bool(constraints.before or constraints.forbidden or constraints.together)


def _why_not_for(data: DataFacts, points: np.ndarray) -> str | None:
    """Why these points are not like those that the model was trained on; None if they are."""
    N = len(points)
    low, high = data.num_items or (1, 10**9)
    if data.symmetry != "tour":
        return "it was not trained on tours"
    if not low <= N <= high:
        return f"it was trained on {low} to {high} places, and there are {N}"
    if min(points.max(0)) < 0.5:
        return "it was trained on squares, and these places lie in a narrow strip"
    # Clark and Evans: the mean distance to the nearest other place, over what evenly spread places have.
    apart = np.sqrt(((points[:, None] - points[None]) ** 2).sum(2)) + 10 * np.eye(N)
    ratio = 2 * apart.min(1).mean() * np.sqrt(N / points.max(0).prod())
    if abs(ratio - 1) > 3 * 0.5227 / np.sqrt(N) + 0.1:  # 0.1: places at the border have their nearest one further off
        return f"it was trained on evenly spread places, and these stand in {'clusters' if ratio < 1 else 'rows'}"
    return None


def _starts(problem: _Problem, drawn: Tensor | None, chains: int, seed: int) -> Tensor:
    """Tours (chains, N) that keep the rules: the drawn one first, then random ones."""
    N = problem.size
    uniform = noise.uniform(seed, torch.arange(chains), 0, N, stream=noise.SEARCH_STREAM)
    if problem.constraints is None:
        starts = uniform.argsort(1)
    else:
        rules = rules_of(problem.constraints, chains, N) or (None, None, None)
        before, allowed, group = (None if rule is None else rule.contiguous() for rule in rules)
        choices = ops.Choices(uniform=uniform, before=before, allowed=allowed, group=group)
        starts, _ = ops.decode_scores(torch.zeros(chains, N, N), torch.ones(chains, N, dtype=torch.bool), choices)
    if drawn is not None:
        starts[0] = drawn
    return starts


def _searched(
    problem: _Problem, starts: Tensor, k: int, limit: float | None, share: float, rounds: int | None, seed: int
) -> tuple[list[Tensor], int, bool]:
    """Different tours by length, the rounds of the search, and whether Ctrl-C ended it."""
    chains, N = starts.shape
    seconds = None if limit is None else max(share * (limit - time.monotonic()), 1e-3)
    found = iterated_local_search(
        torch.zeros(chains, N, 1), starts, problem.cost, constraints=problem.constraints, rounds=rounds,
        seconds=seconds, kept=k, difference=DIFFERENCE, seed=seed,
    )  # fmt: skip
    tours = [found.order[row, i] for row in range(chains) for i in range(int(found.count[row]))]
    tours.sort(key=lambda order: _length(problem, order))
    different: list[Tensor] = []
    for tour in tours:
        if _length(problem, tour) > GOOD * _length(problem, tours[0]):
            break
        if all(_is_different(problem, tour, other) for other in different):
            different.append(tour)
    return different, int(found.rounds.sum()), found.is_interrupted


def _with_others(
    problem: _Problem, tours: list[Tensor], k: int, limit: float | None, rounds: int | None, seed: int
) -> list[Tensor]:
    """More different tours, as far as there are some: legs of those found are made longer, and searched again."""
    distances = problem.places.distances.copy()
    tries = 3 * (k - len(tours))
    for number in range(tries):
        if len(tours) >= k:
            break
        used = tours[-1].numpy()
        after = np.roll(used, -1)
        for a, b in ((used, after), (after, used)):
            distances[a, b] *= 1.2
        other = _Problem(problem.places, problem.constraints, MatrixTourLength(problem.cost.closed, distances))
        share = 1 / (tries - number)
        found, _, is_interrupted = _searched(other, tours[0][None], 1, limit, share, rounds, seed + number + 1)
        is_good = _length(problem, found[0]) <= GOOD * _length(problem, tours[0])
        if is_good and all(_is_different(problem, found[0], tour) for tour in tours):
            tours = [*tours, found[0]]
        if is_interrupted:
            break
    return tours


def _is_different(problem: _Problem, tour: Tensor, other: Tensor) -> bool:
    """Whether tours differ in enough legs to count as two."""
    legs = [_legs_of(problem, order.tolist()) for order in (tour, other)]
    return len(legs[0] - legs[1]) >= max(1, int(np.ceil(DIFFERENCE * len(legs[0]))))


def _legs_of(problem: _Problem, order: list[int]) -> set[tuple[int, int]]:
    legs = list(zip(order, order[1:] + order[:1], strict=True))[: None if problem.cost.closed else -1]
    is_symmetric = np.array_equal(problem.places.distances, problem.places.distances.T)
    return {(min(leg), max(leg)) for leg in legs} if is_symmetric else set(legs)


def _length(problem: _Problem, order: Tensor) -> float:
    return float(problem.cost(torch.zeros(len(order), 1), order))


def _turned(problem: _Problem, order: Tensor) -> np.ndarray:
    """The order as an array; a closed tour without rules begins with the first place given."""
    tour: np.ndarray = order.numpy().copy()
    if problem.constraints is None and problem.cost.closed:
        tour = np.roll(tour, -int(np.flatnonzero(tour == 0)[0]))
    return tour
