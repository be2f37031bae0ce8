"""`softrank schedule`: tables and pages written, pairs from a file, errors."""

import csv
import io
import json

import pytest

from softrank_ext.cli.main import main

JOBS = "job,saw,drill\nchair,3,2\ntable,1,4\nshelf,2,2\n"


@pytest.fixture
def jobs(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_a_table_is_printed(jobs, capsys):
    assert main(["schedule", str(jobs), "--seconds", "0.1"]) == 0
    printed = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    assert rows[0]["job"] == "table" and max(float(row["drill end"]) for row in rows) == 9
    assert "Schedule(3 jobs on 2 machines, makespan 9, no order is better" in printed.err


def test_pages_and_pairs(jobs, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("first;later\nshelf;table\n")
    page = tmp_path / "plan.html"
    assert main(["schedule", str(jobs), "--seconds", "0.1", "--before", str(pairs), "--output", str(page)]) == 0
    assert f"Written to {page}" in capsys.readouterr().out
    data = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    names = [data["jobs"][job] for job in data["orders"][-1]["order"]]
    assert names.index("shelf") < names.index("table") and data["title"] == "Schedule of jobs.csv"
    table = tmp_path / "plan.csv"
    options = ["--cost", "total_flow_time", "--machines", "drill", "--model", "none", "--output", str(table)]
    assert main(["schedule", str(jobs), "--seconds", "0.1", *options]) == 0
    assert [row["end"] for row in csv.DictReader(table.open())] == ["2.0", "4.0", "8.0"]


def test_due_dates(tmp_path, capsys):
    path = tmp_path / "due.csv"
    path.write_text("name,hours,until\na,2,5\nb,3,3\n")
    options = ["--cost", "weighted_tardiness", "--time", "hours", "--due", "until", "--seconds", "0.1"]
    assert main(["schedule", str(path), *options]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["0,b,1,0.0,3.0,3.0,0.0", "1,a,0,3.0,5.0,5.0,0.0"]


def test_errors(jobs, tmp_path, capsys):
    def error_of(*words):
        assert main(["schedule", *map(str, words)]) == 2
        return capsys.readouterr().err

    assert "missing; a table is read from a file" in error_of(tmp_path / "none.csv")
    assert "output must end in .html or .csv, got plan.txt" in error_of(jobs, "--output", "plan.txt")
    assert "no is not a folder: make it first" in error_of(jobs, "--output", tmp_path / "no" / "plan.html")
    assert "jobs.csv is read here: write to another file" in error_of(jobs, "--output", jobs)
    jobs.write_text("job,saw\nchair,soon\n")
    assert "column 'saw' has text in row 0: 'soon'" in error_of(jobs)
    jobs.write_text("job,saw\n")
    assert "jobs must have at least one row" in error_of(jobs)
    jobs.write_text("")
    assert "is empty; its first line must name the columns" in error_of(jobs)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("a\n1\n")
    jobs.write_text(JOBS)
    assert "must have two columns" in error_of(jobs, "--before", pairs)
    pairs.write_text("a,b\nchair,\n")
    assert "before must name two jobs, an empty cell is in row 0; rows count from 0" in error_of(
        jobs, "--before", pairs
    )
