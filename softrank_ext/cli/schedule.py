"""`softrank schedule`: jobs of a CSV file in order, as a table and as a page with a Gantt chart."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from softrank_ext.cli.options import AsJson, check_outputs, tell
from softrank_ext.cli.time_bar import time_bar


def schedule_command(
    jobs: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="JOBS.csv")]],
    cost: Literal["makespan", "total_flow_time", "weighted_tardiness"] = "makespan",
    seconds: float = 1.0,
    output: Path | None = None,
    machines: tuple[str, ...] = (),
    name: str | None = None,
    time: str = "time",
    due: str = "due",
    weight: str = "weight",
    before: Path | None = None,
    model: str = "bundled",
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Put the jobs of a table in an order of low cost, with start and end times.

    Args:
        jobs: CSV file with a line of column names and a row per job: a column of times for each machine; or for
            weighted_tardiness columns of times, due dates and, if they differ, weights.
        cost: When the last job ends, the sum of all ends, or weight times how late jobs end.
        seconds: How long to search. Ctrl-C ends it with the best order so far.
        output: Page (.html) or table (.csv) to write; by default the table is printed.
        machines: Columns of times, in the order in which jobs visit the machines; by default all but the names.
        name: Column of the jobs' names; by default job, name or id, if there is one.
        time: Column of times, for weighted_tardiness.
        due: Column of due dates.
        weight: Column of weights.
        before: CSV file of pairs of jobs: that of the first column comes before that of the second.
        model: A bundled model or the folder of one; none for search alone.
        seed: Another seed, another search.
    """
    from softrank_ext import tables
    from softrank_ext.schedules import schedule

    if output is not None and output.suffix not in (".html", ".csv"):
        raise ValueError(f"output must end in .html or .csv, got {output}")
    check_outputs((output,), (jobs, before))
    pairs: list[tuple[str, str]] = []
    if before is not None:
        columns = tables.columns_of(before)
        if len(columns) != 2:
            raise ValueError(f"{before} must have two columns, the job that comes first and the later one")
        first, later = (tables.texts_in(columns, key).tolist() for key in columns)
        pairs = list(zip(first, later, strict=True))
        for row, pair in enumerate(pairs):
            if None in pair:
                raise ValueError(f"before must name two jobs, an empty cell is in row {row}; rows count from 0")
    with time_bar(seconds):
        plan = schedule(
            jobs, cost, seconds, machines=machines or None, name=name, time=time, due=due, weight=weight, before=pairs,
            model=None if model == "none" else model, seed=seed,
        )  # fmt: skip
    print(plan, file=sys.stderr)
    if output is None:
        if not as_json:
            tables.write_csv(plan.columns(), sys.stdout)
    elif output.suffix == ".html":
        plan.save_html(output, f"Schedule of {jobs.name}")
    else:
        plan.to_csv(output)
    if as_json or output is not None:
        columns_found = {key: values.tolist() for key, values in plan.columns().items()}
        record = {"cost": plan.cost, "bound": plan.bound, "columns": columns_found, "output": output}
        tell(as_json, record, f"Written to {output}")
