"""Tables of searches beside other methods: what a cell says, and that a partial run keeps the rest of the table."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH / "making"))
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("search_tables")


def schedule_row(way, mean, behind=0.0, error=0.0, **more):
    return {"instances": "20_5", "way": way, "mean": mean, "error": 30.0, "behind schedule": behind, "its error": error,
            "seconds": 1.0, "machine": {"cores": 2}, **more}  # fmt: skip


def test_table_of_schedules_has_differences_in_pairs(tables, tmp_path):
    assert tables.schedules_table(tmp_path) == "Not measured yet."
    flow = [schedule_row("schedule", 0.5), schedule_row("NEH", 2.25, 1.75, 0.5)]
    late = [schedule_row("schedule", 97.6, instances="N 20", machine={"cores": 4})]
    (tmp_path / "schedules_flowshop.json").write_text(json.dumps({"rows": flow}))
    assert tables.schedules_table(tmp_path).splitlines()[-1] == "Measured on: cores 2."
    (tmp_path / "schedules_tardiness.json").write_text(json.dumps({"rows": late}))
    lines = tables.schedules_table(tmp_path).splitlines()
    assert lines[2:4] == ["| schedule | 0.50 | 97.60 |", "| NEH | 2.25 (+1.75 ± 0.50) | - |"]
    assert lines[-2:] == ["20_5: measured on cores 2.", "N 20: measured on cores 4."]


def test_benchmark_of_schedules_puts_kinds_into_the_table_that_is_there(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    schedules = importlib.import_module("schedules")
    monkeypatch.setattr(schedules, "RESULTS", tmp_path)
    monkeypatch.setattr(schedules, "fix_threads", lambda count: None)  # it would stay for the tests that follow

    def measured(arguments):
        """One size, and then the machine stops."""
        yield [schedule_row("schedule", 1.0)]
        raise KeyboardInterrupt

    monkeypatch.setattr(schedules, "TABLES", {"flowshop": measured})
    output = tmp_path / "schedules_flowshop.json"
    old = {"cores": 64}
    kept = [schedule_row("schedule", 7.0, instances="50_5", machine=old), schedule_row("NEH", 8.0, machine=old)]
    output.write_text(json.dumps({"rows": kept}))
    monkeypatch.setattr(sys, "argv", ["schedules.py"])
    with pytest.raises(KeyboardInterrupt):
        schedules.main()
    rows = json.loads(output.read_text())["rows"]
    assert [(row["instances"], row["mean"], row["machine"]) for row in rows] == [
        ("20_5", 1.0, {"cores": 2}), ("50_5", 7.0, {"cores": 64}),
    ]  # fmt: skip


def test_table_of_tours(tables, tmp_path):
    assert tables.tours_table(tmp_path) == "Not measured yet."
    rows = [
        {"kind": "tsplib", "N": 0, "seconds": 1.0, "instances": 3, "machine": {"cores": 2},
         "gap": {"plan_tour": "0.1 ± 0.1", "fast-tsp": "0"}},
        {"kind": "pairs", "N": 50, "seconds": 10.0, "instances": 2, "machine": {"cores": 4},
         "gap": {"plan_tour": "0.2 ± 0.1"}, "taken": {"plan_tour": 10.04, "OR-Tools": 10.312}},
    ]  # fmt: skip
    (tmp_path / "tours.json").write_text(json.dumps({"rows": rows}))
    lines = tables.tours_table(tmp_path).splitlines()
    assert lines[2:4] == [
        "| tsplib | 100 to 200 | 1 | 3 | 0.1 ± 0.1 | 0 |", "| pairs | 50 | 10 | 2 | 0.2 ± 0.1 | - |",
    ]  # fmt: skip
    assert lines[-2:] == [
        "1 s on cores 2.", "10 s on cores 4. The longest call took: plan_tour 10.04 s, OR-Tools 10.31 s.",
    ]  # fmt: skip


def test_benchmark_of_tours_puts_cells_into_the_table_that_is_there(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    tours = importlib.import_module("tours")
    output = tmp_path / "tours.json"
    known = [{"kind": "uniform", "N": 20, "seconds": 1.0, "gap": "old"},
             {"kind": "pairs", "N": 7, "seconds": 0.05, "gap": "old"}]  # fmt: skip
    output.write_text(json.dumps({"rows": known}))
    options = "--kinds pairs uniform --sizes 7 --seconds 0.05 --count 2 --methods plan_tour restarts"
    monkeypatch.setattr(tours, "fix_threads", lambda count: None)  # it would stay for the tests that follow
    monkeypatch.setattr(sys, "argv", ["tours.py", *options.split(), "--output", str(output)])
    tours.main()
    rows = json.loads(output.read_text())["rows"]
    assert [(row["kind"], row["N"], row["seconds"]) for row in rows] == [
        ("uniform", 7, 0.05), ("uniform", 20, 1.0), ("pairs", 7, 0.05),
    ]  # fmt: skip
    assert rows[1]["gap"] == "old" and list(rows[2]["gap"]) == ["plan_tour", "restarts"] and rows[2]["instances"] == 2
    assert all(0.01 < taken < 5 for taken in rows[2]["taken"].values()) and len(rows[2]["taken"]) == 2


def test_tables_of_improve(tables, tmp_path):
    assert tables.improve_table(tmp_path) == "Not measured yet."
    assert tables.improve_seconds_table(tmp_path) == tables.improve_parts_table(tmp_path) == "Not measured yet."

    def report(points, **more):
        searches = {"draws of copies": "3", "improve": "2", "improve with local search": "1"}
        rows = [{"draws": 64, "search": name, "gap": gap, "independent": "4", "seconds": 0.5}
                for name, gap in searches.items()]  # fmt: skip
        about = {"machine": {"cores": 2}, "instances": 10, "points": points}
        record = {name: about | table for name, table in {"draws": {"rows": rows}, **more}.items()}
        (tmp_path / f"improve_{points}.json").write_text(json.dumps(record))

    report(100)
    seconds = [{"search": "improve", "gap": "2", "draws": 60}, {"search": "other", "gap": "0", "draws": 0}]
    parts = [{"drawn again": "the tail", "gap": "2", "more than the first": "1"}, {"drawn again": "near", "gap": "-"}]
    report(50, seconds={"seconds": 0.5, "rows": seconds}, parts={"draws": 64, "rows": parts})
    lines = tables.improve_table(tmp_path).splitlines()
    assert lines[2:4] == ["| 50 | 10 | 64 | 4 | 3 | 2 | 1 |", "| 100 | 10 | 64 | 4 | 3 | 2 | 1 |"]
    assert lines[-1] == "Measured on: cores 2."
    lines = tables.improve_seconds_table(tmp_path).splitlines()
    assert lines[0] == "| search in the same seconds | 50 points, 50 ms each | draws |"
    assert lines[2:4] == ["| improve | 2 | 60 |", "| other | 0 | - |"]
    lines = tables.improve_parts_table(tmp_path).splitlines()
    assert lines[0] == "| drawn again | 50 points, 64 draws | more than the first |"
    assert lines[2:4] == ["| the tail | 2 | 1 |", "| near | - | - |"]


def test_table_of_partial_training(tables, tmp_path):
    assert tables.partial_table(tmp_path) == "Not measured yet."
    row = {"training": "parts", "answer": "greedy", "unit": "% wrong", "value": "2", "less whole orders'": "-1",
           "updates": 30, "milliseconds of an update": 7.5, "minutes": 1.1}  # fmt: skip
    record = {"sorting": {"machine": {"cores": 2}, "rows": [row]}}
    (tmp_path / "partial.json").write_text(json.dumps(record))
    lines = tables.partial_table(tmp_path).splitlines()
    assert lines[2:] == [
        "| sorting | parts | 1.1 | 7.5 | 30 | greedy | % wrong | 2 | -1 |",
        "",
        "Measured on: cores 2.",
    ]
