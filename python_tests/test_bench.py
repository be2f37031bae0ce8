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


def _run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BENCH / "ops.py"), "--repeats", "3", "--seconds", "0.01", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))


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
