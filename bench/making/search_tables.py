"""Markdown tables of searches beside other methods: schedules_*, cost_*, tours, improve_* and partial.json."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benches, when a script of this folder is run

from report import Row, markdown_table


def schedules_table(results: Path) -> str:
    """`schedule` beside other methods, from schedules_*.json: a line per method, a column per kind of instances.

    A cell has the mean and, but for `schedule`, how much more that is than `schedule`'s, paired by instance.
    """
    rows = [row for path in sorted(results.glob("schedules_*.json")) for row in json.loads(path.read_text())["rows"]]
    if not rows:
        return "Not measured yet."
    kinds = list(dict.fromkeys((row["instances"], row["seconds"]) for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    cells = {(row["way"], (row["instances"], row["seconds"])): _beside_schedule(row) for row in rows}
    lines = [(way, *(cells.get((way, kind), "-") for kind in kinds)) for way in ways]
    header = ("method", *(f"{name}, {seconds:g} s" for name, seconds in kinds))
    return "\n".join([*markdown_table(header, lines), "", *_machines(rows, "instances")])


def _beside_schedule(row: Row) -> str:
    if row["way"] == "schedule":
        return f"{row['mean']:.2f}"
    return "{mean:.2f} ({behind schedule:+.2f} ± {its error:.2f})".format(**row)


def _machines(rows: Sequence[Row], key: str) -> list[str]:
    """Sentences: what was measured on which machine."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        machine = ", ".join(f"{name} {value}" for name, value in row["machine"].items())
        found.setdefault(machine, {})[str(row[key])] = None
    if len(found) == 1:
        return [f"Measured on: {machine}." for machine in found]
    return [f"{', '.join(which)}: measured on {machine}." for machine, which in found.items()]


COSTS = {
    "flowshop": "Taillard's flow shops, percent over the best known makespans. Rows of draws have that many; those "
    "below them have {seconds:g} s per instance each.",
    "tardiness": "Weighted tardiness of one machine, percent of ATC's mean cost, {count} instances of each "
    "size. Rows of draws have that many; those below them have {seconds:g} s per instance each.",
    "tsp": "Tours, percent over the best of the file.",
    "drawing": "Orders drawn per second in training, flow shops of 20 jobs.",
    "objectives": "Objectives and heads, {minutes:g} minutes of training each.",
}


def costs_tables(results: Path) -> str:
    """What bench/cost.py measured, a table each: those of several ways have a line per way and a column per size."""
    parts = []
    for name, title in COSTS.items():
        if not (file := results / f"cost_{name}.json").exists():
            continue
        report = json.loads(file.read_text())
        rows, about = report["rows"], ", ".join(f"{key} {value}" for key, value in report["machine"].items())
        if "way" in rows[0]:
            sizes = list(dict.fromkeys(row["instances"] for row in rows))
            cells = {(row["way"], row["instances"]): str(row["value"]) for row in rows}
            ways = dict.fromkeys(row["way"] for row in rows)
            table = markdown_table(
                ("way", *sizes), [(way, *(cells.get((way, size), "-") for size in sizes)) for way in ways]
            )
        else:
            header = list(dict.fromkeys(key for row in rows for key in row))
            table = markdown_table(header, [[str(row.get(key, "")) for key in header] for row in rows])
        told = f"{title.format(**report['options'])} `python bench/cost.py --tables {name}`, {about}:"
        parts.append("\n".join([told, "", *table]))
    return "\n\n".join(parts) or "Not measured yet."


def tours_table(results: Path) -> str:
    """Tours beside other methods on equal seconds, from tours.json: a line per cell."""
    path = results / "tours.json"
    if not path.exists():
        return "Not measured yet."
    record = json.loads(path.read_text(encoding="utf-8"))
    names = list(dict.fromkeys(name for row in record["rows"] for name in row["gap"]))
    lines = []
    for row in record["rows"]:
        size = "100 to 200" if row["kind"] == "tsplib" else row["N"]
        gaps = [row["gap"].get(name, "-") for name in names]
        lines.append((row["kind"], size, f"{row['seconds']:g}", row["instances"], *gaps))
    table = markdown_table(("places", "N", "seconds", "instances", *names), lines)
    machines: dict[str, list[Row]] = {}
    for row in record["rows"]:
        machine = ", ".join(f"{name} {value}" for name, value in row["machine"].items())
        machines.setdefault(f"{row['seconds']:g} s on {machine}.", []).append(row)
    told = []
    for line, rows in machines.items():
        calls = [(name, seconds) for row in rows for name, seconds in row.get("taken", {}).items()]
        longest = [(name, max(seconds for one, seconds in calls if one == name)) for name in dict(calls)]
        each = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in longest)
        told.append(f"{line} The longest call took: {each}." if each else line)
    return "\n".join([*table, "", *told])


def _improve_tables(results: Path, name: str) -> list[Row]:
    """The table of that name from every improve_N.json that has it, by number of points."""
    records = (json.loads(path.read_text()) for path in results.glob("improve_[0-9]*.json"))
    tables = [record[name] for record in records if name in record]
    return [table | {"size": f"{table['points']} points"} for table in sorted(tables, key=lambda one: one["points"])]


def improve_table(results: Path) -> str:
    """`improve` beside as many draws, from improve_N.json: a line per number of points and draws."""
    tables = _improve_tables(results, "draws")
    if not tables:
        return "Not measured yet."
    searches = ("draws of copies", "improve", "improve with local search")
    lines = []
    for table in tables:
        for draws in dict.fromkeys(row["draws"] for row in table["rows"]):
            rows = {row["search"]: row for row in table["rows"] if row["draws"] == draws}
            found = [rows[search]["gap"] for search in searches]
            lines.append((table["points"], table["instances"], draws, rows["improve"]["independent"], *found))
    header = ("points", "instances", "draws", "independent draws", *searches)
    return "\n".join([*markdown_table(header, lines), "", *_machines(tables, "size")])


def improve_seconds_table(results: Path) -> str:
    """Searches in the seconds that `improve` took, from improve_N.json: a line per search, columns per size."""
    tables = _improve_tables(results, "seconds")
    if not tables:
        return "Not measured yet."
    cells = {(row["search"], table["points"]): row for table in tables for row in table["rows"]}
    header = ["search in the same seconds"]
    for table in tables:
        header += [f"{table['points']} points, {1000 * table['seconds'] / table['instances']:.0f} ms each", "draws"]
    lines = []
    for search in dict.fromkeys(search for search, _ in cells):
        rows = [cells.get((search, table["points"])) for table in tables]
        found = [(row["gap"], row["draws"] or "-") if row else ("-", "-") for row in rows]
        lines.append((search, *(cell for pair in found for cell in pair)))
    return "\n".join([*markdown_table(tuple(header), lines), "", *_machines(tables, "size")])


def improve_parts_table(results: Path) -> str:
    """What `improve` may draw again, on equal draws, from improve_N.json: a line per kind, columns per size."""
    tables = _improve_tables(results, "parts")
    if not tables:
        return "Not measured yet."
    header = ["drawn again"]
    for table in tables:
        header += [f"{table['points']} points, {table['draws']} draws", "more than the first"]
    lines = []
    for kind in dict.fromkeys(row["drawn again"] for table in tables for row in table["rows"]):
        rows = [{row["drawn again"]: row for row in table["rows"]}.get(kind, {}) for table in tables]
        lines.append((kind, *(row.get(cell, "-") for row in rows for cell in ("gap", "more than the first"))))
    return "\n".join([*markdown_table(tuple(header), lines), "", *_machines(tables, "size")])


def partial_table(results: Path) -> str:
    """Models trained for equal time with and without parts and drafts, from partial.json: a line per training."""
    file = results / "partial.json"
    if not file.exists():
        return "Not measured yet."
    record = json.loads(file.read_text())
    columns = {
        "training": "training", "minutes": "minutes", "milliseconds of an update": "ms each", "updates": "updates",
        "answer": "answer", "unit": "unit", "value": "mean", "less whole orders'": "less whole orders' (paired)",
    }  # fmt: skip
    lines = [(name, *(row[cell] for cell in columns)) for name, table in record.items() for row in table["rows"]]
    header = ("task", *columns.values())
    tables = [table | {"task": name} for name, table in record.items()]
    return "\n".join([*markdown_table(header, lines, 2), "", *_machines(tables, "task")])
