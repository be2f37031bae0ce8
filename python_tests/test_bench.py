"""Smoke test of bench/ops.py: it runs, its JSON line holds what it should, --compare can fail. No speed is judged."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder")


def _run_script(name: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(BENCH / name), *arguments], capture_output=True, text=True, env=dict(os.environ)
    )


def _run(*arguments: str) -> subprocess.CompletedProcess:
    return _run_script("ops.py", "--repeats", "3", "--seconds", "0.01", *arguments)


def test_ops_benchmark_runs_and_compares(tmp_path):
    run = _run("--threads", "1")
    assert run.returncode == 0, run.stderr
    *shown, line = run.stdout.strip().splitlines()
    report = json.loads(line)
    assert report["machine"]["threads"] == 1
    rows = {row["name"]: row for row in report["rows"]}
    required = {
        "reflect 1e+03": 1.0,
        "reflect 1e+06": 3.0,
        "decode_chamber (256, 64)": 3.0,
        "decode_chamber (64, 200)": 3.0,
        "decode_chamber (16, 4096)": 1.5,
        "pick (256, 64)": 4.0,
        "uniform 1e+06, torch.rand": 1.0,
    }
    assert {name: rows[name]["required"] for name in required} == required
    for name, row in rows.items():
        assert any(shown_line.startswith(name) for shown_line in shown)
        assert 0 < row["ours_us"] <= row["ours_median_us"]
        assert abs(row["ratio"] - row["plain_us"] / row["ours_us"]) < 1e-9
        assert row["gb_per_s"] > 0 and row["copy_gb_per_s"] > 0
    # An earlier run that claims a thousand times these ratios makes every line a regression.
    better = {"rows": [row | {"ratio": 1000 * row["ratio"]} for row in report["rows"]]}
    earlier = tmp_path / "earlier.json"
    earlier.write_text("any text before it\n" + json.dumps(better) + "\n")
    worse = _run("--json", "--compare", str(earlier))
    assert worse.returncode == 1
    assert worse.stderr.count("fell to") == len(rows)
    json.loads(worse.stdout)


def test_compare_allows_for_noise(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    report = importlib.import_module("report")
    before = [{"name": "a", "ratio": 2.0}, {"name": "gone", "ratio": 9.0}]
    rows = [{"name": "a", "ratio": 1.5, "required": 1.0}, {"name": "new", "ratio": 1.0, "required": 1.0}]
    assert report.regressions(rows, before, 0.3) == []
    rows[0]["ratio"] = 1.3
    assert report.regressions(rows, before, 0.3) == ["a: 2.00x fell to 1.30x"]


def test_decode_benchmark_runs():
    run = _run_script(
        "decode.py", "--parts", "speed", "memory", "--batches", "1", "--rounds", "1", "--json", "--threads", "1"
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)["rows"]
    speed, teacher_forced, memory = rows
    assert speed["required"] == 5.0
    assert abs(speed["ratio"] - speed["other_ms"] / speed["ours_ms"]) < 1e-9
    assert abs(teacher_forced["ratio"] - teacher_forced["ours_ms"] / teacher_forced["other_ms"]) < 1e-9
    assert memory["allowed"] == 1.3
    assert 0 < memory["ratio"] < 1.3  # not a matter of speed: the caches of a tile, not of the batch


def test_runtime_benchmark_runs(tmp_path):
    picture = tmp_path / "runtime.png"
    run = _run_script(
        "runtime.py", "--grid", "3", "--samples", "2", "--repeats", "3", "--threads", "1", "--plot", str(picture)
    )
    assert run.returncode == 0, run.stderr
    *shown, line = run.stdout.strip().splitlines()
    rows = json.loads(line)["rows"]
    methods = [(row["method"], row["mode"]) for row in rows]
    modes = ("no cache", "cache", "compiled")
    baseline = "SymmetricDiffusers (GPL)"
    assert methods == [(baseline, "one pass"), *((name, mode) for name in ("cGPL", "pointer-cGPL") for mode in modes)]
    for row in rows:
        assert row["seconds"] > 0
        assert any(row["method"] in text and row["mode"] in text for text in shown)
    assert picture.stat().st_size > 5000


def test_runtime_benchmark_refuses_nonsense():
    run = _run_script("runtime.py", "--grid", "5")
    assert run.returncode != 0
    assert "invalid choice: 5 (choose from 3, 4, 8)" in run.stderr
    run = _run_script("runtime.py", "--samples", "0")
    assert "--samples must be at least 1, got 0" in run.stderr
