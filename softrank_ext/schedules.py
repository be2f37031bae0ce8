"""`schedule`: put jobs in order, from a table of them to start and end times.

Machines take the jobs in one order (a permutation flow shop), or there is one machine with due dates. `order[place] =
job`, jobs being the rows of the table, counted from 0.
"""

import difflib
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softrank_ext import noise
from softrank_ext.checks import check_positive
from softrank_ext.constraints import Constraints
from softrank_ext.costs import Cost, Makespan, TotalFlowTime, WeightedTardiness
from softrank_ext.model import OrderModel
from softrank_ext.pretrained import BUNDLED, bundled_names, from_pretrained
from softrank_ext.schedule_search import Found, JobSearch, times_of
from softrank_ext.tables import (
    Columns,
    column_in,
    columns_of,
    frame_of,
    is_number_column,
    numbers_in,
    texts_in,
    write_csv,
)
from softrank_ext.tasks.flowshop import MOST_MACHINES

COSTS = ("makespan", "total_flow_time", "weighted_tardiness")
MODELS = {"makespan": "flowshop"}  # bundled models by cost
MOST_JOBS = 5000
NAME_COLUMNS = ("job", "name", "id")


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """Jobs in order, with times.

    order (N,) int64: `order[place] = job`, a row of the table. cost: of this order, by the cost `cost_name`. bound: no
    order costs less; None if nothing is known. jobs, machines: their names. start, end (N, M) float64: of each job on
    each machine. due, weight (N,): of weighted tardiness, else None. found: every order that was better than those
    before it, the last being this one. answered_by: which model or search answers, and for what it was trained.
    """

    order: np.ndarray
    cost: float
    cost_name: str
    bound: float | None
    jobs: tuple[str, ...]
    machines: tuple[str, ...]
    start: np.ndarray
    end: np.ndarray
    due: np.ndarray | None
    weight: np.ndarray | None
    found: tuple[Found, ...]
    answered_by: str

    @property
    def certainty(self) -> str:
        """How sure the answer is, in words: how far from the best possible order it can be."""
        if self.bound is None:
            return "how far from the best possible order it is, is not known for a cost of your own"
        if self.cost <= self.bound * (1 + 1e-9):
            return "no order is better"
        if self.bound <= 0:
            return "how far from the best possible order it is, is not known"
        return f"at most {100 * (self.cost / self.bound - 1):.1f} % above the best possible order"

    def columns(self) -> Columns:
        """The schedule as columns, a row per job, in its order: place, job, row, then start and end on each machine."""
        columns: Columns = {
            "place": np.arange(len(self.order)),
            "job": np.array(self.jobs, dtype=object)[self.order],
            "row": self.order,
        }
        is_one = len(self.machines) == 1
        for number, machine in enumerate(self.machines):
            columns["start" if is_one else f"{machine} start"] = self.start[self.order, number]
            columns["end" if is_one else f"{machine} end"] = self.end[self.order, number]
        if self.due is not None:
            columns["due"] = self.due[self.order]
            columns["late"] = np.maximum(self.end[self.order, -1] - self.due[self.order], 0)
        return columns

    def to_frame(self) -> Any:
        """The same as a DataFrame of pandas, or of polars where only that is installed."""
        return frame_of(self.columns())

    def to_csv(self, path: str | Path) -> None:
        """Write the same as a CSV file."""
        write_csv(self.columns(), path)

    def plot(self) -> Any:
        """A Gantt chart, a figure of matplotlib."""
        from softrank_ext.show import plot_schedule

        return plot_schedule(self)

    def page(self, title: str = "Schedule") -> str:
        """One self-contained HTML page: the Gantt chart of every order found, and the times as a table."""
        from softrank_ext.show import schedule_page

        return schedule_page(self, title)

    def save_html(self, path: str | Path, title: str = "Schedule") -> None:
        """Write that page."""
        Path(path).write_text(self.page(title), encoding="utf-8")

    def __repr__(self) -> str:
        jobs, machines = len(self.order), len(self.machines)
        size = f"{jobs} job{'s' * (jobs != 1)} on {machines} machine{'s' * (machines != 1)}"
        return f"Schedule({size}, {self.cost_name} {_number(self.cost)}, {self.certainty}; {self.answered_by})"

    def _repr_html_(self) -> str:
        rows = [
            f"<tr><td>{place}</td><td>{html.escape(self.jobs[job])}</td>"
            f"<td>{_number(self.start[job, 0])}</td><td>{_number(self.end[job, -1])}</td></tr>"
            for place, job in enumerate(self.order[:20])
        ]
        more = f"<p>and {len(self.order) - 20} more jobs</p>" if len(self.order) > 20 else ""
        return (
            f"<p><b>{html.escape(self.cost_name)} {_number(self.cost)}</b>, {html.escape(self.certainty)}. "
            f"{html.escape(self.answered_by)}</p><table><thead><tr><th>place</th><th>job</th><th>start</th><th>end</th>"
            f"</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
        )


def schedule(
    jobs: Any,
    cost: str | Cost = "makespan",
    seconds: float = 1.0,
    *,
    machines: Sequence[str] | None = None,
    name: str | None = None,
    time: str = "time",
    due: str = "due",
    weight: str = "weight",
    before: Sequence[tuple[Any, Any]] = (),
    model: str | OrderModel | None = "bundled",
    seed: int | torch.Generator = 0,
) -> Schedule:
    """Put jobs in an order of low cost.

    jobs: a table with a row per job (a DataFrame, a dict of columns, the path of a CSV file), or an array (N, M) of
    the time of each job on each machine; for weighted tardiness (N, 3), time, weight and due date.
    cost: "makespan" (when the last job ends; machines take the jobs in one order), "total_flow_time" (the sum of all
    jobs' ends), "weighted_tardiness" (one machine: weight times how late a job ends, added up), or a function
    `cost(items, order) -> (rows,)`, see `costs`: items (rows, N, F) float64, the table's columns of numbers; the times
    of the schedule are then those of the columns `machines`. seconds: how long to search.
    machines: columns of times, in the order in which jobs visit them; None for all columns of numbers. name: the column
    of the jobs' names; None for one called job, name or id, or else rows are numbered. time, due, weight: columns for
    weighted tardiness; without a column for weights all are 1. before: pairs (a, b) of names: a comes before b.
    model: "bundled" for the one that fits the cost, if there is one; a model, its folder, or None for search alone.
    seed: another seed, another search, or a torch.Generator that draws it; the time decides how far a search comes, so
    results may differ between calls.

    Ctrl-C returns the best order found so far. Raises ValueError or TypeError, saying what is wanted.

    >>> plan = schedule("jobs.csv", "makespan", seconds=2)
    >>> plan.order, plan.cost, plan.to_frame()
    """
    check_positive("seconds", seconds)
    seed = noise.seed_of(seed)
    if not callable(cost) and cost not in COSTS:
        raise ValueError(f"cost must be one of {', '.join(map(repr, COSTS))} or a function, got {cost!r}")
    columns = _columns_of(jobs, cost)
    given = _given_of(columns, cost, machines, name, (time, weight, due))
    N = len(given.names)
    constraints = _constraints_of(before, given.names)
    used, answered_by = _model_of(model, cost, N, given.times.shape[1])
    search = JobSearch(torch.from_numpy(given.items)[None], given.cost, constraints, float(seconds), seed)
    search.run(used)
    best = search.found[-1]
    if not np.isfinite(best.cost):
        raise ValueError(
            f"no order of a finite cost was found in {seconds:g} seconds: the cost allows none of those tried"
        )
    start, end = times_of(best.order, given.times)
    is_due = cost == "weighted_tardiness"
    stopped = "; stopped by Ctrl-C" if search.is_interrupted else ""
    return Schedule(
        best.order, best.cost, given.cost_name, search.bound, given.names, given.machines, start,
        end, given.items[:, 2] if is_due else None, given.items[:, 1] if is_due else None, tuple(search.found),
        f"{answered_by}; best order by {best.by}{stopped}",
    )  # fmt: skip


@dataclass(frozen=True)
class _Given:
    """What the table says: items (N, F) for the cost, times (N, M) for the machines, and names."""

    items: np.ndarray
    times: np.ndarray
    cost: Cost
    cost_name: str
    names: tuple[str, ...]
    machines: tuple[str, ...]


def _columns_of(jobs: Any, cost: str | Cost) -> Columns:
    if isinstance(jobs, Tensor):
        jobs = jobs.detach().cpu().numpy()
    if isinstance(jobs, list | tuple) and not any(isinstance(row, dict | str) for row in jobs):
        try:
            jobs = np.array(jobs, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"jobs must be a table, or rows of equally many numbers: {error}") from error
    if isinstance(jobs, list | tuple) and jobs and all(isinstance(row, dict) for row in jobs):
        keys = list(jobs[0])
        for number, row in enumerate(jobs):
            if list(row) != keys:
                raise ValueError(f"jobs must have the same keys in all rows, {keys}, got {list(row)} in row {number}")
        jobs = {key: [row[key] for row in jobs] for key in keys}
    if isinstance(jobs, np.ndarray) and jobs.dtype.names is None:
        if jobs.ndim != 2 or jobs.shape[1] == 0:
            raise ValueError(f"jobs must be (N, M) times of jobs on machines, got an array {jobs.shape}")
        names = [f"machine {number + 1}" for number in range(jobs.shape[1])]
        if cost == "weighted_tardiness":
            if jobs.shape[1] != 3:
                raise ValueError(f"jobs must be (N, 3): time, weight and due date, got an array {jobs.shape}")
            names = ["time", "weight", "due"]
        columns = columns_of(jobs, names)
    else:
        columns = columns_of(jobs)
    rows = len(next(iter(columns.values())))
    if rows == 0:
        raise ValueError("jobs must have at least one row, got an empty table")
    if rows > MOST_JOBS:
        raise ValueError(f"jobs must have at most {MOST_JOBS} rows, got {rows}")
    return columns


def _given_of(
    columns: Columns,
    cost: str | Cost,
    machines: Sequence[str] | None,
    name: str | None,
    due_columns: tuple[str, str, str],
) -> _Given:
    """What the table says, checked. due_columns: names of those of time, weight and due date."""
    names, name_column = _names_of(columns, name)
    if cost == "weighted_tardiness":
        if machines is not None:
            raise ValueError("machines must be None for weighted tardiness, which has one machine")
        time, weight, due = due_columns
        rows = len(names)
        if weight == "weight" and weight not in columns:
            _check_no_weights(columns, (name_column, time, due))
            weights = np.ones(rows)
        else:
            weights = _times_in(columns, weight)
        items = np.stack((_times_in(columns, time), weights, numbers_in(columns, due)), 1)
        return _Given(items, items[:, :1].copy(), WeightedTardiness(), cost, names, ("machine",))
    numbers = [key for key in columns if key != name_column and is_number_column(columns[key])]
    if machines is None:
        texts = [key for key in columns if key != name_column and key not in numbers]
        chosen = numbers if callable(cost) else [key for key in columns if key != name_column]
        if texts and not callable(cost):
            for key in texts:  # raises with the row, unless all of it can be read as numbers
                numbers_in(columns, key)
    else:
        if isinstance(machines, str):
            raise TypeError(f"machines must be a list of columns, got the text {machines!r}")
        chosen = list(machines)
        for key in chosen:
            if chosen.count(key) > 1:
                raise ValueError(f"machines must be different columns, {key!r} is there {chosen.count(key)} times")
    if not chosen:
        raise ValueError(
            f"jobs must have a column of times for each machine, got columns {', '.join(map(repr, columns))}"
        )
    times = np.stack([_times_in(columns, key) for key in chosen], 1)
    if not callable(cost):
        problem = Makespan() if cost == "makespan" else TotalFlowTime()
        return _Given(times, times, problem, cost, names, tuple(chosen))
    items = np.stack([numbers_in(columns, key) for key in dict.fromkeys((*numbers, *chosen))], 1)
    cost_name = getattr(cost, "__name__", type(cost).__name__)
    return _Given(items, times, cost, cost_name, names, tuple(chosen))


def _names_of(columns: Columns, name: str | None) -> tuple[tuple[str, ...], str | None]:
    """The jobs' names, and the column that they are from."""
    if name is None:
        name = next((key for key in columns if key.lower() in NAME_COLUMNS), None)
        if name is None:
            return tuple(str(row) for row in range(len(next(iter(columns.values()))))), None
    column_in(columns, name)
    texts = texts_in(columns, name).tolist()
    seen: dict[str, int] = {}
    for row, text in enumerate(texts):
        if text is None:
            raise ValueError(f"column {name!r} has no name in row {row}; rows count from 0")
        if text in seen:
            raise ValueError(
                f"column {name!r} must have different names, rows {seen[text]} and {row} are both {text!r}"
            )
        seen[text] = row
    return tuple(texts), name


def _check_no_weights(columns: Columns, used: Sequence[str | None]) -> None:
    """Raise ValueError if a column that is not read is called nearly like the weights'."""
    unread = {key.lower(): key for key in columns if key not in used}
    for near in difflib.get_close_matches("weight", unread, 1, cutoff=0.9):
        key = unread[near]
        raise ValueError(f"the column {key!r} would not be read: give weight={key!r}, or leave it out")


def _times_in(columns: Columns, name: str) -> np.ndarray:
    times = numbers_in(columns, name)
    if (times < 0).any():
        row = int((times < 0).argmax())
        raise ValueError(f"column {name!r} must not be negative, got {times[row]:g} in row {row}; rows count from 0")
    if (times > 1e100).any():
        raise ValueError(f"column {name!r} must be below 1e+100, got {times.max():g}")
    return times


def _constraints_of(before: Sequence[tuple[Any, Any]], names: tuple[str, ...]) -> Constraints | None:
    """Pairs of names as constraints on jobs; raises ValueError, with the names, if they contradict each other."""
    is_listed = isinstance(before, Iterable) and not isinstance(before, str)
    if not is_listed or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in before):
        raise TypeError(f"before must be pairs of jobs, (first, later), got {before!r}")
    number = {text: row for row, text in enumerate(names)}
    by_letters = {text.lower(): text for text in names}
    pairs = []
    for pair in before:
        for job in map(str, pair):
            if job not in number:
                near = difflib.get_close_matches(job.lower(), by_letters, 1)
                hint = f"; did you mean {by_letters[near[0]]!r}?" if near else ""
                raise ValueError(f"before must name jobs of the table, got {job!r}{hint}")
        pairs.append((number[str(pair[0])], number[str(pair[1])]))
    if not pairs:
        return None
    circle = _circle_in(pairs, len(names))
    if circle:
        raise ValueError(f"before contradicts itself: {' before '.join(repr(names[job]) for job in circle)}")
    return Constraints(before=list(dict.fromkeys(pairs)))


def _circle_in(pairs: Sequence[tuple[int, int]], N: int) -> list[int]:
    """Jobs each of which is before the next, and the last of which is the first; empty if there is no such circle."""
    earlier: dict[int, list[int]] = {}
    for a, b in pairs:
        earlier.setdefault(b, []).append(a)
    is_waiting = set(range(N))
    while True:
        free = {job for job in is_waiting if not is_waiting & set(earlier.get(job, ()))}
        if not free:
            break
        is_waiting -= free
    if not is_waiting:
        return []
    path = [min(is_waiting)]
    while path[-1] not in path[:-1]:
        path.append(next(job for job in earlier[path[-1]] if job in is_waiting))
    return path[path.index(path[-1]) :][::-1]


def _model_of(model: str | OrderModel | None, cost: str | Cost, N: int, M: int) -> tuple[OrderModel | None, str]:
    """The model that draws orders, None for search alone, and what answers, in words."""
    if model is None:
        return None, "search alone, without a model"
    if callable(cost) or cost not in MODELS:
        if model != "bundled":
            raise ValueError(f"model must be 'bundled' or None for this cost, since models are of {', '.join(MODELS)}")
        kind = "a cost of your own" if callable(cost) else cost.replace("_", " ")
        return None, f"search alone: no model is bundled for {kind}"
    told = "the given model"
    if isinstance(model, str):
        if model == "bundled":
            model = MODELS[str(cost)]
            if model not in bundled_names():
                return None, f"search alone: no model is bundled for {cost}"
        name = Path(model).name if Path(model).parent == BUNDLED else model
        told, model = f"model {name!r}", _loaded(model)
    embedder = getattr(getattr(model, "config", None), "embedder", None)
    if not isinstance(embedder, Mapping) or embedder.get("kind") != "times":
        raise ValueError("model must be one of flow shops, trained by `softrank train flowshop`")
    jobs, machines = model.config.data.num_items or (1, MOST_JOBS), model.config.data.num_machines or (1, MOST_MACHINES)
    trained = f"trained for {_in_words(jobs, machines)}"
    if not (jobs[0] <= N <= jobs[1] and machines[0] <= M <= machines[1]):
        return None, f"search alone: {told} was {trained}, not for {_in_words((N, N), (M, M))}"
    return model, f"{told}, {trained}, and search"


def _in_words(jobs: tuple[int, int], machines: tuple[int, int]) -> str:
    """Fewest and most of each: "18 to 22 jobs on 5 machines"."""
    (least_jobs, most_jobs), (least, most) = jobs, machines
    told = f"{most_jobs if least_jobs == most_jobs else f'{least_jobs} to {most_jobs}'} job{'s' * (most_jobs != 1)}"
    return f"{told} on {most if least == most else f'{least} to {most}'} machine{'s' * (most != 1)}"


@lru_cache(maxsize=2)
def _loaded(name: str) -> OrderModel:
    return from_pretrained(name)


def _number(value: float) -> str:
    """A number as people write it."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.6g}"


__all__ = ["Schedule", "schedule"]
