"""`plan_tour` beside OR-Tools' routing solver, fast-tsp and restarts of local search, on equal seconds.

    python bench/tours.py --kinds uniform clustered --sizes 20 50 --seconds 1
    python bench/tours.py --kinds tsplib --data FOLDER
    python bench/tours.py --kinds pairs --sizes 50 100

uniform: places evenly spread; clustered: around N / 10 centres; tsplib: the instances of FOLDER, by TSPLIB's own
distances, with their optima; pairs: evenly spread, a depot, and the other places in pairs of pickup and delivery (of an
even N one place is in no pair). Methods: plan_tour; plan_tour without a model; local search (2-opt and Or-opt) from
random starts; OR-Tools (first solution, then guided local search); fast-tsp, which knows no rules. All on one thread.
Gaps in percent over the best tour that any of them found, or the optimum where it is known, with the standard error of
the mean over instances (of one there is none); "behind" is paired: how much longer plan_tour's tours are than the
method's; "taken" is the longest call in seconds. A row per cell goes into a JSON file at once, in place of an older row
of that cell.
"""

import argparse
import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import Deadline, fix_threads, machine, timed_once

from softrank_ext import plan_tour
from softrank_ext.costs import MatrixTourLength, local_search
from softrank_ext.tasks.tsplib import read_tsplib

RESULTS = Path(__file__).parent / "results"
KINDS = ("uniform", "clustered", "tsplib", "pairs")
Pairs = list[tuple[int, int]]


class Instance:
    """Points or None, distances (N, N), pairs, and the length of the best known tour, infinite if none is."""

    def __init__(self, points: np.ndarray | None, distances: np.ndarray, pairs: Pairs, best: float = np.inf) -> None:
        self.points, self.distances, self.pairs, self.best = points, distances, pairs, best

    def length(self, order: np.ndarray) -> float:
        """Of a closed tour that keeps the rules; NaN if there is none, others are errors."""
        if len(order) == 0:
            return np.nan
        assert sorted(order.tolist()) == list(range(len(self.distances)))
        place = np.argsort(order)
        assert all(place[a] < place[b] for a, b in self.pairs) and (not self.pairs or order[0] == 0)
        return float(self.distances[order, np.roll(order, -1)].sum())


def drawn(kind: str, N: int, number: int) -> Instance:
    """A random instance."""
    random = np.random.default_rng((N, number, KINDS.index(kind)))
    points = random.random((N, 2))
    if kind == "clustered":
        centres = random.random((max(N // 10, 2), 2))
        points = centres[random.integers(0, len(centres), N)] + 0.04 * random.standard_normal((N, 2))
    pairs = [(i, i + 1) for i in range(1, N - 1, 2)] if kind == "pairs" else []
    return Instance(points, np.linalg.norm(points[:, None] - points[None], axis=2), pairs)


def from_tsplib(folder: Path, least: int) -> list[Instance]:
    """The instances of the folder with at least so many places, and their optima."""
    found = []
    with open(folder / "optima.csv", newline="") as file:
        optima = {row["name"]: float(row["optimal_length"]) for row in csv.DictReader(file)}
    for path in sorted(folder.glob("*.tsp")):
        instance = read_tsplib(path)
        if len(instance.distances) >= least and path.stem in optima:
            found.append(Instance(None, instance.distances.double().numpy(), [], optima[path.stem]))
    return found


def planned(instance: Instance, seconds: float, model: str | None) -> np.ndarray:
    """By plan_tour."""
    start = 0 if instance.pairs else None
    if instance.points is None:
        return plan_tour(instance.distances, metric="matrix", seconds=seconds, model=model).order
    return plan_tour(
        instance.points, metric="plane", start=start, pairs=instance.pairs, seconds=seconds, model=model
    ).order


def restarted(instance: Instance, seconds: float) -> np.ndarray:
    """The best of local searches from random tours; with pairs, from tours with all pickups first."""
    from softrank_ext import Constraints

    deadline, best, generator = Deadline(seconds), np.arange(0), torch.Generator().manual_seed(0)
    N, pairs = len(instance.distances), instance.pairs
    cost = MatrixTourLength(distances=instance.distances)
    rules = Constraints(before=pairs, pins={0: 0}) if pairs else None
    deliveries = torch.zeros(N)
    deliveries[[b for _, b in pairs]] = 1
    while not deadline.has_passed():
        keys = torch.rand(N, generator=generator) + deliveries
        if pairs:
            keys[0] = -1
        order = local_search(torch.zeros(1, N, 1), keys.argsort()[None], cost, constraints=rules)[0].numpy()
        if len(best) == 0 or instance.length(order) < instance.length(best):
            best = order
    return best


def by_fast_tsp(instance: Instance, seconds: float) -> np.ndarray:
    """By fast-tsp, which takes 16-bit distances."""
    import fast_tsp

    scale = 65000 / instance.distances.max() if instance.points is not None or instance.distances.max() > 65000 else 1.0
    table = np.rint(scale * instance.distances).astype(np.uint16)
    return np.array(fast_tsp.find_tour(table, duration_seconds=seconds))


def by_ortools(instance: Instance, seconds: float) -> np.ndarray:
    """By OR-Tools' routing solver: a first solution, then guided local search."""
    from ortools.constraint_solver import pywrapcp
    from ortools.constraint_solver import routing_enums_pb2 as choices

    N = len(instance.distances)
    scale = 1e6 / instance.distances.max()
    manager = pywrapcp.RoutingIndexManager(N, 1, 0)
    routing = pywrapcp.RoutingModel(manager)
    table = np.rint(scale * instance.distances).astype(np.int64).tolist()
    routing.SetArcCostEvaluatorOfAllVehicles(routing.RegisterTransitMatrix(table))
    first = choices.FirstSolutionStrategy.PATH_CHEAPEST_ARC
    if instance.pairs:
        first = choices.FirstSolutionStrategy.PARALLEL_CHEAPEST_INSERTION
        routing.AddConstantDimension(1, N + 1, True, "place")
        place = routing.GetDimensionOrDie("place")
        for a, b in instance.pairs:
            pickup, delivery = manager.NodeToIndex(a), manager.NodeToIndex(b)
            routing.AddPickupAndDelivery(pickup, delivery)
            routing.solver().Add(routing.VehicleVar(pickup) == routing.VehicleVar(delivery))
            routing.solver().Add(place.CumulVar(pickup) <= place.CumulVar(delivery))
    parameters = pywrapcp.DefaultRoutingSearchParameters()
    parameters.first_solution_strategy = first
    parameters.local_search_metaheuristic = choices.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
    parameters.time_limit.FromMilliseconds(round(1000 * seconds))
    solution = routing.SolveWithParameters(parameters)
    if solution is None:
        return np.arange(0)
    order, index = [], routing.Start(0)
    while not routing.IsEnd(index):
        order.append(manager.IndexToNode(index))
        index = solution.Value(routing.NextVar(index))
    return np.array(order)


METHODS: dict[str, Callable[[Instance, float], np.ndarray]] = {
    "plan_tour": lambda instance, seconds: planned(instance, seconds, "tsp"),
    "without a model": lambda instance, seconds: planned(instance, seconds, None),
    "restarts": restarted,
    "OR-Tools": by_ortools,
    "fast-tsp": by_fast_tsp,
}


def stated(values: np.ndarray) -> str:
    """Mean and its standard error."""
    if np.isnan(values).any():
        return f"no tour in time for {np.isnan(values).sum()} of {len(values)}"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def cell(kind: str, N: int, seconds: float, instances: list[Instance], methods: list[str]) -> dict[str, object]:
    """All methods on all instances, in turns."""
    used = [name for name in methods if not (kind == "pairs" and name == "fast-tsp")]
    lengths, taken = np.empty((len(instances), len(used))), dict.fromkeys(used, 0.0)
    for number, one in enumerate(instances):
        for i, name in enumerate(used):
            found: list[np.ndarray] = []
            call_seconds = timed_once(lambda: found.append(METHODS[name](one, seconds)))  # noqa: B023
            taken[name] = max(taken[name], call_seconds)
            lengths[number, i] = one.length(found[0])
    best = np.minimum(np.nanmin(lengths, 1), [one.best for one in instances])
    gaps = 100 * (lengths / best[:, None] - 1)
    row: dict[str, object] = {"kind": kind, "N": N, "seconds": seconds, "instances": len(instances),
                             "machine": machine()}  # fmt: skip
    row["gap"] = {name: stated(gaps[:, i]) for i, name in enumerate(used)}
    row["behind"] = {name: stated(gaps[:, 0] - gaps[:, i]) for i, name in enumerate(used) if i > 0}
    row["taken"] = {name: round(longest, 3) for name, longest in taken.items()}
    print(json.dumps(row, ensure_ascii=False), flush=True)
    return row


def write(output: Path, row: dict[str, object]) -> None:
    """Put a row into the file, in place of that of the same cell."""
    record = json.loads(output.read_text()) if output.exists() else {"rows": []}
    key = ("kind", "N", "seconds")
    rows = [old for old in record["rows"] if any(old[name] != row[name] for name in key)] + [row]
    rows.sort(key=lambda one: (KINDS.index(one["kind"]), one["seconds"], one["N"]))
    output.write_text(json.dumps({"rows": rows}, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 50, 100, 200])
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0])
    parser.add_argument("--count", type=int, default=4, help="instances per cell")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="plan_tour first")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SOFTRANK_DATA", "data")) / "tsplib")
    parser.add_argument("--output", type=Path, default=RESULTS / "tours.json")
    arguments = parser.parse_args()
    fix_threads(1)
    print(machine())
    for name in arguments.methods:
        METHODS[name](drawn("uniform", 20, 0), 0.4)  # reads the model and the libraries
    for kind in arguments.kinds:
        for seconds in arguments.seconds:
            if kind == "tsplib":
                found = from_tsplib(arguments.data, 100)[: 2 * arguments.count]
                write(arguments.output, cell(kind, 0, seconds, found, arguments.methods))
                continue
            for N in arguments.sizes:
                found = [drawn(kind, N, number) for number in range(arguments.count)]
                write(arguments.output, cell(kind, N, seconds, found, arguments.methods))


if __name__ == "__main__":
    main()
