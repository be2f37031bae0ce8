"""`schedule` beside known methods on the same seconds per instance.

    python bench/schedules.py --data FOLDER --sizes 20_5 50_10 --seconds 1
    python bench/schedules.py --tables tardiness --seconds 1

flowshop: Taillard's instances in FOLDER (tai20_5.txt and so on, with best.csv), percent over the best known makespans.
tardiness: random instances of one machine, weighted tardiness in percent of the mean of ATC.
All but NEH and ATC have the same seconds and threads for each instance: restarts of the local search from random orders
and from NEH or ATC, iterated greedy from there (a search per thread), OR-Tools CP-SAT with that order as a hint.
Means with standard errors, and the paired difference from `schedule`: positive where `schedule` is better. The rows of
each size go into a JSON file at once, in place of older rows of that size.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from timing import Deadline, fix_threads, machine, timed_once
from torch import Tensor

from softrank_ext import schedule
from softrank_ext.costs import Cost, Makespan, WeightedTardiness, atc, iterated_greedy, local_search, neh
from softrank_ext.tasks.flowshop import FlowShop, read_taillard
from softrank_ext.tasks.tardiness import Tardiness

RESULTS = Path(__file__).parent / "results"
FLOW_SHOPS = ("20_5", "20_10", "20_20", "50_5", "50_10")
JOBS_DUE = (20, 40, 100)
Row = dict[str, object]
Way = Callable[[Tensor, Tensor], Tensor]  # items (1, N, F) and the first order (1, N) to an order (1, N)


def by_schedule(cost: str, seconds: float, model: str | None, items: Tensor, first: Tensor) -> Tensor:
    """The door itself, which finds its own first order."""
    return torch.from_numpy(schedule(items[0].numpy(), cost, seconds, model=model).order)[None]


def by_restarts(cost: Cost, seconds: float, is_random: bool, items: Tensor, first: Tensor) -> Tensor:
    """The best of local searches from random orders, or from `first` with a tenth of the items moved."""
    N, threads = first.shape[1], torch.get_num_threads()
    rows = items.expand(threads, -1, -1)
    generator, deadline = torch.Generator().manual_seed(0), Deadline(seconds)
    best, lowest = first, cost(items, first)
    share = 0.0  # of items moved; none at first
    while not deadline.has_passed():
        keys = torch.arange(N).expand(threads, N).float()
        moved = torch.rand(threads, N, generator=generator) < (1.0 if is_random else share)
        keys = torch.where(moved, N * torch.rand(threads, N, generator=generator), keys)
        found = local_search(rows, first.expand(threads, N).gather(1, keys.argsort(1)), cost)
        costs = cost(rows, found)
        if costs.min() < lowest:
            best, lowest = found[costs.argmin()][None], costs.min()[None]
        share = 0.1
    return best


def by_iterated_greedy(cost: Cost, seconds: float, items: Tensor, first: Tensor) -> Tensor:
    """The best of one search per thread."""
    threads = torch.get_num_threads()
    rows = items.expand(threads, -1, -1)
    found = iterated_greedy(rows, first.expand(threads, -1), cost, seconds=seconds)
    return found[cost(rows, found).argmin()][None]


def by_cp_sat(cost: Cost, seconds: float, items: Tensor, first: Tensor) -> Tensor:
    """OR-Tools CP-SAT: an interval per job and machine, and for each pair of jobs one literal for its order."""
    from ortools.sat.python import cp_model

    is_due = isinstance(cost, WeightedTardiness)
    table = items[0].long()
    times = table[:, :1] if is_due else table[:, table.sum(0) > 0]
    N, M = times.shape
    horizon = int(times.sum())
    program = cp_model.CpModel()
    start = [[program.new_int_var(0, horizon, "") for _ in range(M)] for _ in range(N)]
    for machine_number in range(M):
        program.add_no_overlap(
            program.new_fixed_size_interval_var(start[job][machine_number], int(times[job, machine_number]), "")
            for job in range(N)
        )
    place = first[0].argsort().tolist()
    for a in range(N):
        for machine_number in range(M - 1):
            program.add(start[a][machine_number + 1] >= start[a][machine_number] + int(times[a, machine_number]))
        for b in range(a + 1, N):
            is_before = program.new_bool_var("")
            program.add_hint(is_before, place[a] < place[b])
            for k in range(M):
                program.add(start[b][k] >= start[a][k] + int(times[a, k])).only_enforce_if(is_before)
                program.add(start[a][k] >= start[b][k] + int(times[b, k])).only_enforce_if(~is_before)
    if is_due:
        late = []
        for job in range(N):
            own = program.new_int_var(0, horizon, "")
            program.add(own >= start[job][0] + int(times[job, 0]) - int(table[job, 2]))
            late.append(int(table[job, 1]) * own)
        program.minimize(sum(late))
    else:
        end = program.new_int_var(0, horizon, "")
        for job in range(N):
            program.add(end >= start[job][M - 1] + int(times[job, M - 1]))
        program.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = torch.get_num_threads()
    if solver.solve(program) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return first  # nothing in the time: the hint is what is known
    starts = torch.tensor([[solver.value(start[job][0]) for job in range(N)]])
    found = starts.argsort(dim=1, stable=True)
    return found if cost(items, found) <= cost(items, first) else first


def table_of(
    name: str,
    items: Tensor,
    cost: Cost,
    first: Tensor,
    value: Callable[[Tensor], Tensor],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Rows of all methods on these instances (B, N, F). first: orders by the rule; value: what is printed of costs."""
    seconds = arguments.seconds
    rule = "ATC" if isinstance(cost, WeightedTardiness) else "NEH"
    cost_name = "weighted_tardiness" if rule == "ATC" else "makespan"
    ways: dict[str, Way] = {
        "schedule": partial(by_schedule, cost_name, seconds, arguments.model if rule == "NEH" else None),
        "schedule without a model": partial(by_schedule, cost_name, seconds, None),
        "iterated greedy": partial(by_iterated_greedy, cost, seconds),
        f"local search from {rule}": partial(by_restarts, cost, seconds, False),
        "local search from random orders": partial(by_restarts, cost, seconds, True),
        "OR-Tools CP-SAT": partial(by_cp_sat, cost, seconds),
        rule: lambda items, first: first,
    }
    if rule == "ATC":
        del ways["schedule without a model"]  # there is no model for it: the same
    rows: list[Row] = []
    own: Tensor | None = None
    for way, call in ways.items():
        found: list[Tensor] = []
        call(items[:1], first[:1])  # warm-up: models and libraries are read
        taken = timed_once(
            lambda: found.extend(call(items[row : row + 1], first[row : row + 1]) for row in range(len(items)))  # noqa: B023
        )
        values = value(cost(items, torch.cat(found)))
        own = values if own is None else own
        rows.append(
            {"instances": name, "way": way, "count": len(items), "mean": float(values.mean()),
             "error": error_of(values), "behind schedule": float((values - own).mean()),
             "its error": error_of(values - own), "seconds": seconds,
             "seconds taken": taken / len(items), "threads": torch.get_num_threads(), "machine": machine()}
        )  # fmt: skip
        print(
            f"{name:>8}  {way:<32} {rows[-1]['mean']:8.3f} ± {rows[-1]['error']:.3f}   behind schedule by "
            f"{rows[-1]['behind schedule']:+.3f} ± {rows[-1]['its error']:.3f}   {taken / len(items):.2f} s", flush=True
        )  # fmt: skip
    return rows


def error_of(values: Tensor) -> float:
    """The standard error of the mean."""
    return float(values.std() / len(values) ** 0.5)


def flow_shop_rows(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """Percent over the best known makespans of Taillard's flow shops."""
    for size in arguments.sizes:
        file = Path(arguments.data) / f"tai{size}.txt"
        times = read_taillard(file)[: arguments.count].double()
        best = next(FlowShop(test_file=str(file)).test_batches(len(times), len(times))).extras["best"]

        def value(costs: Tensor, best: Tensor = best) -> Tensor:
            return 100 * (costs / best - 1)

        yield table_of(size, times, Makespan(), neh(times), value, arguments)


def tardiness_rows(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """Weighted tardiness of one machine, in percent of the mean of ATC."""
    for jobs in JOBS_DUE:
        items = next(Tardiness(jobs).test_batches(arguments.count, arguments.count, seed=1000)).items.double()
        first = atc(items)
        mean = WeightedTardiness()(items, first).mean()

        def value(costs: Tensor, mean: Tensor = mean) -> Tensor:
            return 100 * costs / mean

        yield table_of(f"N {jobs}", items, WeightedTardiness(), first, value, arguments)


TABLES = {"flowshop": flow_shop_rows, "tardiness": tardiness_rows}


def write(output: Path, rows: list[Row]) -> None:
    """Put the rows of a size into the file, in place of those of the same size and seconds."""
    before = json.loads(output.read_text())["rows"] if output.exists() else []
    measured = {(row["instances"], row["seconds"]) for row in rows}
    rows = [row for row in before if (row["instances"], row["seconds"]) not in measured] + rows
    known = [*FLOW_SHOPS, *(f"N {jobs}" for jobs in JOBS_DUE)]
    rows.sort(key=lambda row: (row["seconds"], known.index(str(row["instances"]))))
    output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    print(f"written to {output}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["flowshop"])
    parser.add_argument("--data", default=os.path.join(os.environ.get("SOFTRANK_DATA", "data"), "flowshop"))
    parser.add_argument("--model", default="bundled", help="of flow shops: a folder, or the bundled one")
    parser.add_argument("--sizes", nargs="+", default=FLOW_SHOPS)
    parser.add_argument("--count", type=int, default=10, help="instances of each kind")
    parser.add_argument("--seconds", type=float, default=1.0, help="per instance and method")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    fix_threads(arguments.threads)
    print(machine())
    for table in arguments.tables:
        print(f"{table}: {(TABLES[table].__doc__ or '').splitlines()[0]}")
        for rows in TABLES[table](arguments):
            write(RESULTS / f"schedules_{table}.json", rows)


if __name__ == "__main__":
    main()
