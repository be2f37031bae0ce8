"""Smoke tests of bench/: the scripts run, their JSON holds what it should, --compare can fail. No speed is judged."""

import argparse
import gzip
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from synthetic_data import write_cifar10, write_mnist

from softrank_ext import Bridge, DataFacts, SoftRankConfig, SoftRankModel, sample
from softrank_ext.atomic_files import read_files, save_files
from softrank_ext.tasks.tsp import TSP, solve, write_instances
from softrank_ext.training import loss_of

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


@pytest.mark.parametrize("path", sorted(BENCH.rglob("*.py")), ids=lambda path: path.name)
def test_only_timing_holds_the_clock(path):
    assert path.name == "timing.py" or not re.search(
        r"\bperf_counter|\btime\.time\b|^import time\b", path.read_text(), re.M
    )


SCRIPTS = ("bundle", "demo_items", "deliveries", "figures")


@pytest.mark.parametrize("name", ["readme", *(pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS)])
def test_scripts_that_make_things_start_by_themselves(name):
    run = _run_script(f"making/{name}.py", "--help")
    assert run.returncode == 0 and run.stdout.startswith(f"usage: {name}.py"), run.stderr


def test_tables_of_attacks_and_certificates(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH / "making"))
    monkeypatch.syspath_prepend(str(BENCH))
    tables = importlib.import_module("result_tables")
    assert tables.attack_table(tmp_path) == "Not run yet." and tables.certificates_table(tmp_path) == "Not made yet."
    (tmp_path / "attack.jsonl").write_text(json.dumps({"job": "fuzzed calls", "tried": 10_000, "defects": 2}) + "\n")
    assert tables.attack_table(tmp_path).splitlines()[2].split(" | ")[1::3] == ["10,000", "2 |"]
    row = {"sampler": "riffle", "N": 4, "draws": 1000, "statistic": 0.01, "threshold": 0.02, "distance": 0.03,
           "passes": False, "control_statistic": 0.5, "control_found": True}  # fmt: skip
    (tmp_path / "certificates.json").write_text(json.dumps({"rows": [row]}))
    line = tables.certificates_table(tmp_path).splitlines()[2]
    assert line == "| riffle | 4 | 1,000 | 0.0100 (fails) | 0.0200 | 0.030 | 0.5000, found |"


@pytest.mark.slow
def test_samplers_have_their_certificates(tmp_path):
    run = _run_script("certificates.py", "--large-draws", "4000", "--output", str(tmp_path / "made.json"))
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "made.json").read_text())["rows"]
    assert len(rows) >= 19 and all(row["passes"] and row["control_found"] and row["control_promised"] for row in rows)


def test_markdown_tables_align_numbers_to_the_right(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    report = importlib.import_module("report")
    lines = report.markdown_table(("a", "b", "c"), [(1, "x", 2.5)], numbers_from=2)
    assert lines == ["| a | b | c |", "| --- | --- | ---: |", "| 1 | x | 2.5 |"]


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


def test_benchmark_of_partial_training_runs(tmp_path):
    start = SoftRankModel(
        SoftRankConfig(16, 32, heads=2, encoder_layers=1, decoder_layers=1, embedder=TSP().embedder())
    )
    start.save_pretrained(tmp_path / "start")
    run = _run_script(
        "partial.py", "--tasks", "sorting", "tsp", "--minutes", "0.001", "--count", "4", "--draws", "8",
        "--train-count", "4", "--start-from", str(tmp_path / "start"), "--files", str(tmp_path / "files"),
        "--output", str(tmp_path / "partial.json"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "partial.json").read_text())
    assert {row["training"] for row in record["sorting"]["rows"]} == {"whole orders", "parts", "parts and drafts"}
    rows = record["tsp"]["rows"]
    assert [row["answer"] for row in rows] == ["greedy", "8 draws", "improve, 8"] * 3
    assert all(float(row["value"].split()[0]) > 0 for row in rows)  # nothing beats the tours that were searched for
    run = _run_script("partial.py", "--tasks", "tsp")
    assert run.returncode == 2 and "--start-from: tsp needs a model" in run.stderr


def test_improve_benchmark_runs(tmp_path):
    pytest.importorskip("fast_tsp")
    points = torch.rand(3, 12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    write_instances(tmp_path / "tsp12.txt", points, torch.stack([solve(row) for row in points]))
    run = _run_script(
        "improve.py", "--file", str(tmp_path / "tsp12.txt"), "--count", "3", "--draws", "20", "--threads", "1",
        "--output", str(tmp_path / "improve.json"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    record = json.loads((tmp_path / "improve.json").read_text())
    assert record["draws"]["instances"] == 3 and record["draws"]["points"] == 12
    assert [row["search"] for row in record["draws"]["rows"]] == [
        "draws of copies",
        "improve",
        "improve with local search",
    ]
    gaps = {row["search"]: float(row["gap"].split()[0]) for row in record["seconds"]["rows"]}
    assert len(gaps) == 8 and all(gap > -1e-3 for gap in gaps.values())
    assert gaps["improve with local search"] <= gaps["improve by uniform draws"]

    run = _run_script(
        "improve.py", "--file", str(tmp_path / "tsp12.txt"), "--count", "3", "--draws", "18", "--threads", "1",
        "--tables", "draws", "parts", "--output", str(tmp_path / "improve.json"),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    merged = json.loads((tmp_path / "improve.json").read_text())
    assert merged["seconds"] == record["seconds"]
    assert [row["draws"] for row in merged["draws"]["rows"]] == [18] * 3 + [20] * 3
    assert merged["draws"]["rows"][3:] == record["draws"]["rows"]
    assert record["draws"]["rows"][0]["less than draws of copies"] == "0.0000 ± 0.0000"

    given = ["improve.py", "--file", str(tmp_path / "tsp12.txt"), "--count", "3", "--threads", "1", "--tables", "draws"]
    run = _run_script(*given, "--draws", "20", "18", "--output", str(tmp_path / "both.json"))
    assert run.returncode == 0, run.stderr
    both = json.loads((tmp_path / "both.json").read_text())["draws"]["rows"]
    assert [row["seconds"] is None for row in both] == [True] * 3 + [False] * 3
    assert [row | {"seconds": 0} for row in both] == [row | {"seconds": 0} for row in merged["draws"]["rows"]]
    rows = {row["drawn again"]: row for row in merged["parts"]["rows"]}
    assert float(rows["the tail"]["gap"].split()[0]) > -1e-3
    assert "trained" in rows["points near each other"].get("why", "trained")


def test_runtime_benchmark_runs(tmp_path):
    picture, models = tmp_path / "runtime.png", tmp_path / "models"
    run = _run_script(
        "runtime.py", "--grid", "3", "--samples", "2", "--batches", "2", "--parts", "table", "speed", "--repeats", "3",
        "--threads", "1", "--models", str(models), "--updates", "2", "--plot", str(picture),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *shown, line = run.stdout.strip().splitlines()
    report = json.loads(line)
    table = [row for row in report["rows"] if row["part"] == "table"]
    methods = [(row["method"], row["mode"]) for row in table]
    modes = ("no cache", "cache", "compiled")
    baseline = "SymmetricDiffusers (GPL)"
    one_pass = [(baseline, "one pass"), (baseline, "compiled one-pass")]
    assert methods == [*one_pass, *((name, mode) for name in ("cGPL", "pointer-cGPL") for mode in modes)]
    for row in table:
        assert row["seconds"] > 0
        assert any(row["method"] in text and row["mode"] in text for text in shown)
        assert abs(row["ratio"] - row["seconds"] / table[0]["seconds"]) < 1e-9
        assert abs(row["ratio_to_compiled"] - row["seconds"] / table[1]["seconds"]) < 1e-9
    speed = [row for row in report["rows"] if row["part"] == "speed"]
    assert [row["name"].split(":")[0] for row in speed] == ["N 9, batch 2, greedy", "N 9, batch 2, sample"]
    for row in speed:
        assert row["is_same"] and row["accuracy"] == row["accuracy_without_drafts"]
        assert row["log_prob"] == row["log_prob_without_drafts"] < 0
        assert abs(row["ratio"] - row["eager_ms"] / row["ours_ms"]) < 1e-9
        assert row["share_of_matmul"] == row["gflops"] / report["machine"]["matmul_gflops"]
    assert picture.stat().st_size > 5000


def test_parts_of_an_update_have_times_and_shares(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    training, timing = importlib.import_module("training"), importlib.import_module("timing")

    def timed(call, **_):
        call()
        return timing.Timing(0.5, 0.5, 0.0)

    monkeypatch.setattr(training, "timed", timed)
    rows = training.measured("tsp", 2, 1e9)
    by_part = {row["part"]: row for row in rows}
    assert list(by_part) == ["data", "reader", "encoder", "decoder", "loss", "optimizer", "update"]
    assert by_part["data"]["share_of_matmul"] == by_part["loss"]["share_of_matmul"] == 0
    # By hand, 100 tokens: three layers with four D x D and two D x F matrices, three times with the way back.
    layers = 3 * 2 * 100 * (4 * 128 * 128 + 2 * 128 * 512)
    assert by_part["encoder"]["share_of_matmul"] * 0.5e9 == pytest.approx(3 * layers, rel=0.1)
    assert by_part["update"]["items_per_second"] == 2 * 50 / 0.5
    assert "tsp, optimizer" in training.text_of(rows, 1e9)


def test_steps_are_as_many_as_pay_and_stand_on_the_card(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    steps = importlib.import_module("steps")

    def rows(*differences, low=False, less_best_of=(0.0, 0.0, 0.0)):
        return [
            {"model": "m", "steps": number, "metric": "gap", "is_low_good": low, "mean": 0.5 + gain, "error": 0.1,
             "difference": gain, "difference_error": 0.0 if number == 1 else 0.01, "best_of": 0.5,
             "best_of_error": 0.1, "less_best_of": less, "less_best_of_error": 0.02}
            for number, gain, less in zip((1, 2, 5), differences, less_best_of, strict=True)
        ]  # fmt: skip

    assert steps.chosen_steps(rows(0.0, 0.015, 0.019)) == 1
    assert steps.chosen_steps(rows(0.0, 0.03, 0.04)) == 2
    assert steps.chosen_steps(rows(0.0, 0.03, 0.06)) == 5
    assert steps.chosen_steps(rows(0.0, 0.03, 0.06, low=True)) == 1
    assert steps.chosen_steps(rows(0.0, -0.01, -0.06, low=True)) == 5
    # As many draws of one step are better than five steps, by two errors or more; than two steps they are not.
    assert steps.chosen_steps(rows(0.0, 0.03, 0.06, less_best_of=(0.0, -0.03, -0.05))) == 2
    assert steps.chosen_steps(rows(0.0, -0.03, -0.06, low=True, less_best_of=(0.0, 0.03, 0.05))) == 2

    folder = tmp_path / "m"
    folder.mkdir()
    table = "\n```\n\n| steps | gap |\n| --- | --- |\n| 5 | 0.1 |\n"
    evaluations = [f"```bash\nsoftrank evaluate tsp m{given}{table}" for given in (" --count 4", " --steps 5 10")]
    (folder / "README.md").write_text("# m\n\n" + "\n".join(evaluations))
    config = {"process": {"kind": "bridge", "sampling_steps": 5}, "heads": 8}
    save_files(folder, {"config.json": json.dumps(config).encode()})  # with a manifest, as bundled models have
    monkeypatch.setattr(steps, "RESULTS", tmp_path)
    args = argparse.Namespace(names=["m"], weights=tmp_path)
    for gain, times in ((0.0, {}), (0.03, {"milliseconds": 4.0})):
        own = [{**row, **times} for row in rows(0.0, gain, 0.0)]
        record = {"text": "Seven lists", "count": 7, "rows": own}
        record |= {"timed_on": {"threads": 1, "processor": "P"}, "timed": 64} if times else {}
        (tmp_path / "steps_m.json").write_text(json.dumps(record))
        steps.write_cards(args)
        card = (folder / "README.md").read_text()
        assert card.startswith("# m\n\n```bash\nsoftrank evaluate tsp m --count 4 --steps 5\n```\n\n| steps | gap |")
        assert card.count("softrank evaluate tsp m --steps 5 10\n") == 1 and card.count("--steps") == 2
        assert card.count("## Steps") == 1 and "Seven lists. By" in card
        assert ("ms each" in card) == bool(times) and ("times on 1 thread of P" in card) == bool(times)
    line = "| 2 | 0.5300 ± 0.1000 | +0.0300 ± 0.0100 | 0.5000 ± 0.1000 | +0.0000 ± 0.0200 | 4.00 |"
    assert line in card and "`sampling_steps`, 2," in card
    config = json.loads(read_files(folder, ["config.json"])["config.json"])  # still what the manifest says
    assert config == {"process": {"kind": "bridge", "sampling_steps": 2}, "heads": 8}


def test_steps_are_measured_on_paired_draws(monkeypatch):
    """A list of two and one of two draws: rows by hand."""
    monkeypatch.syspath_prepend(str(BENCH))
    steps = importlib.import_module("steps")
    waves = importlib.import_module("waves")
    task = waves.SortWaves(4, 3)
    torch.manual_seed(0)
    model = SoftRankModel(
        SoftRankConfig(8, 16, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
    ).eval()
    data = steps.Validation(task, task.batch(1, 40), "accuracy", False, "")
    one, two = steps.rows_of("m", model, data, [1, 2])
    right = [
        task.score(data.batch, sample(model, data.batch.items, decode="greedy", steps=number, seed=0).order[:, 0])
        for number in (1, 2)
    ]
    first, second = (score["accuracy"].double() for score in right)
    assert two["mean"] == pytest.approx(float(second.mean())) and one["difference_error"] == 0
    assert two["difference"] == pytest.approx(float((second - first).mean()))
    assert two["difference_error"] == pytest.approx(float((second - first).std() / 40**0.5))
    draws = sample(model, data.batch.items, decode="greedy", steps=1, num_samples=2, seed=1)
    best = draws.best().order  # of the highest log-probability
    assert two["best_of"] == pytest.approx(float(task.score(data.batch, best)["accuracy"].double().mean()))


def test_steps_of_a_law_move_it_from_one_step(monkeypatch):
    """A model of ballots that reads orders: more steps move the law; one step differs from one step by chance alone."""
    monkeypatch.syspath_prepend(str(BENCH))
    steps = importlib.import_module("steps")
    torch.manual_seed(0)
    config = SoftRankConfig(
        8, 16, heads=2, encoder_layers=1, decoder_layers=1, embedder={"kind": "learned", "num_items": 4},
        data=DataFacts(num_items=(4, 4)),
    )  # fmt: skip
    one, five = steps.law_rows("m", SoftRankModel(config).eval(), [1, 5], 4000)
    perfect = (2 * 12 / (3.14159 * 4000)) ** 0.5 / 2  # of 12 equal chances, counted from 4,000 draws, about
    assert 0.3 * perfect < one["mean"] < 2 * perfect and one["is_low_good"]
    assert five["difference"] == pytest.approx(five["mean"] - one["mean"]) and five["difference_error"] > one["error"]


def test_operations_of_a_sample_are_counted(monkeypatch):
    """One encoder and one decoder layer, N = 2, one step, one place run: by hand."""
    monkeypatch.syspath_prepend(str(BENCH))
    runtime = importlib.import_module("runtime")
    config = SoftRankConfig(
        d_model=4, feed_forward=8, heads=2, encoder_layers=1, decoder_layers=1, process=Bridge(sampling_steps=1),
        embedder={"kind": "linear", "features": 2},
    )  # fmt: skip
    drawn = sample(SoftRankModel(config), torch.rand(3, 2, 2), seed=0)
    flops, weight_bytes = runtime.work_of(config, 2, drawn)
    encoder = 2 * (2 * (64 + 64) + 4 * 2 * 4)  # two tokens: four products 4 x 4, two 4 x 8; attention to two slots
    decoder = 2 * (96 + 64) + 4 * 4 * 3 + 2 * 2 * 4  # six products 4 x 4, two 4 x 8; attention; scores of two slots
    memory = 2 * (2 * 2 * 16 + 2 * 16)  # keys and values of two slots, and the pointer's keys
    assert flops == 3 * (encoder + decoder + memory)
    assert weight_bytes == 4 * ((64 + 64) + (96 + 64) + 32)


def test_roofline_is_the_slowest_of_its_parts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    roofline = importlib.import_module("roofline")
    decoder, gpu = roofline.Decoder(), roofline.GPUS[0]
    assert decoder.weights() == 4 * (6 * 128 * 128 + 2 * 128 * 512)
    one, many = roofline.place(gpu, decoder, 64, 1), roofline.place(gpu, decoder, 64, 1024)
    # One row reads 3.7 MB of weights through one multiprocessor, at 64 bytes per clock.
    assert one.limit == "weights" and one.bound == pytest.approx(4 * decoder.weights() / 64 / 1.755e9)
    # 1,024 rows of 64 items hold 537 MB of keys and values, more than L2: they come from memory.
    assert many.limit == "caches" and many.bound == pytest.approx(1024 * decoder.cache_bytes(64) / 3.35e12)
    assert many.estimate > many.bound
    page = (BENCH.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    assert roofline.tables() in page  # the page has what the script says


def test_runtime_benchmark_refuses_nonsense():
    run = _run_script("runtime.py", "--grid", "5")
    assert run.returncode != 0
    assert "invalid choice: 5 (choose from 3, 4, 8)" in run.stderr
    run = _run_script("runtime.py", "--samples", "0")
    assert "--samples must be at least 1, got 0" in run.stderr


@pytest.fixture
def tables(monkeypatch):
    """bench/tables.py as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("tables")


def test_tables_are_made_and_resumed(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOFTRANK_DATA", str(write_mnist(tmp_path / "data")))
    runs, output = tmp_path / "runs", tmp_path / "results"
    words = ["--budget", "0.002", "--batch-size", "2", "--count", "4", "--threads", str(torch.get_num_threads())]
    words += ["--table", "sorting", "--sizes", "9", "--runs", str(runs), "--output", str(output)]
    words += ["--rows", "DiffSort", "Lehmer code"]
    assert tables.main(words) == 0
    record = json.loads((output / "table_sorting.json").read_text())
    rows = {result["name"]: result for result in record["results"]}
    assert list(rows) == ["DiffSort", "Lehmer code"]
    assert "Budget and hardware differ from the paper's" in record["note"]
    sorter = rows["DiffSort"]["evaluations"][0]
    assert sorter["paper"] == {"kendall_tau": 0.8163, "accuracy": 0.5555, "correctness": 0.8643}
    assert {"accuracy", "tie_aware_accuracy", "tie_aware_correctness"} <= sorter["metrics"].keys()
    assert rows["DiffSort"]["updates"] >= 1 and rows["DiffSort"]["seconds"] > 0
    assert rows["DiffSort"]["training"]["schedule"] == "cosine"
    text = (output / "table_sorting.md").read_text()
    assert "| 9 | DiffSort |" in text and "| 0.5555 |" in text and record["note"] in text
    # A row that is done is not done again; one that was killed is resumed from its checkpoint.
    done, killed = (runs / "sorting" / f"{name}-9" for name in ("DiffSort", "Lehmer-code"))
    before = (done / "result.json").stat().st_mtime_ns
    plan = json.loads((killed / "plan.json").read_text())
    (killed / "plan.json").write_text(json.dumps(plan | {"iterations": 3, "warmup": 0, "log_every": 5}))
    for path in ("result.json", "metrics.jsonl", "run.json"):
        (killed / path).unlink()
    shutil.rmtree(killed / "last")  # as if killed before its first checkpoint
    with monkeypatch.context() as patch:
        patch.setattr("softrank_ext.training.torchrun.Stop.is_asked", lambda *_: True)  # as after Ctrl-C
        assert tables.main(words) == 130
    assert not (killed / "result.json").exists()
    capsys.readouterr()
    assert tables.main([*words, "--json"]) == 0
    assert [result["name"] for result in json.loads(capsys.readouterr().out)] == ["DiffSort", "Lehmer code"]
    iterations = [json.loads(line)["iteration"] for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert iterations == [1, 3]
    assert (done / "result.json").stat().st_mtime_ns == before
    words[1] = "0.004"
    with pytest.raises(SystemExit, match="take another --runs"):
        tables.main(words)


def test_every_row_of_every_table_makes_a_model(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTRANK_DATA", str(write_cifar10(tmp_path / "data")))
    words = ["--budget", "1", "--runs", str(tmp_path), "--instances", "2", "--count", "2", "--table", "sorting"]
    args = tables._parser().parse_args(words)
    # Lines that are the paper's.
    numbers = {"sorting": 5, "tsp": 3, "jigsaw": 3, "ablation": 10, "ablation-jigsaw": 0, "prior": 8}
    for name, table in tables.TABLES.items():
        size = table.sizes[0]
        task = tables.task_of(name, size, args)
        for row in table.rows:
            model = tables.model_of(row, task, args)
            config = tables.config_of(row, task, size, args)
            assert config.schedule == "cosine"
            loss_of(model, config)  # raises if the objective does not go with the network
            for key, value in row.model.items():
                assert getattr(model.config, key) == value
            for key, value in row.process.items():
                assert getattr(model.config.process, key) == value
        lines = [numbers for row in table.rows for numbers in row.paper.values()]
        assert len(lines) == numbers[name]
        assert all(tuple(line) == table.sizes for line in lines)
    args.width = 16
    narrow = [tables.model_of(row, task, args).config for row in tables.TABLES["jigsaw"].rows]
    assert {(config.d_model, config.feed_forward) for config in narrow} == {(16, 64)}


def test_tables_with_a_reader_that_is_given(tables, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTRANK_DATA", str(write_cifar10(tmp_path / "data")))
    reader, runs = tmp_path / "reader", tmp_path / "runs"
    words = ["--table", "jigsaw", "--budget", "0.002", "--sizes", "2", "--rows", "Soft-Rank, cGPL", "--width", "16"]
    words += ["--count", "4", "--batch-size", "2", "--threads", str(torch.get_num_threads())]
    words += ["--runs", str(runs), "--output", str(tmp_path), "--reader", str(reader)]
    args = tables._parser().parse_args(words)
    row, task = tables.TABLES["jigsaw"].rows[1], tables.task_of("jigsaw", 2, args)
    args.reader = None
    given = tables.model_of(row, task, args)
    given.save_pretrained(reader)
    assert tables.main(words) == 0
    trained = SoftRankModel.from_pretrained(runs / "jigsaw" / "Soft-Rank-cGPL-2" / "last")
    is_same = {name: torch.equal(value, given.state_dict()[name]) for name, value in trained.state_dict().items()}
    assert all(same for name, same in is_same.items() if name.startswith("embedder."))
    assert not all(same for name, same in is_same.items() if not name.startswith("embedder."))
    assert f"taken from {reader} and not trained here" in (tmp_path / "table_jigsaw.md").read_text()
    words[words.index("--width") + 1] = "32"
    with pytest.raises(SystemExit, match=r"(?s)reader does not fit Soft-Rank, cGPL: .*size mismatch"):
        tables.main([*words, "--runs", str(tmp_path / "others")])


def test_tables_refuse_nonsense(tables, capsys):
    for words, message in (
        (["--table", "sorting", "--budget", "0"], "--budget must be positive, got 0.0"),
        (["--table", "tsp", "--budget", "1", "--rows", "DiffSort"], "--rows must be of SymmetricDiffusers, GPL; Soft-"),
    ):
        with pytest.raises(SystemExit):
            tables.main(words)
        assert message in capsys.readouterr().err


def test_times_of_several_starts_add_up(tables, tmp_path):
    lines = [{"iteration": i, "seconds": s} for i, s in ((1, 2.0), (2, 5.0), (3, 1.0), (4, 4.0), (5, 0.5))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tables.training_seconds(tmp_path) == 5.0 + 4.0 + 0.5


def test_constraints_benchmark_counts_broken_rules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    constraints = importlib.import_module("constraints")
    rules = constraints.Constraints(before=[(2, 0)], pins={1: 2}, forbidden=[(3, 0)], together=[(0, 3)])
    assert constraints.broken_rules(rules, [2, 3, 1, 0]) == 1
    assert constraints.broken_rules(rules, [3, 1, 0, 2]) == 4
    row = constraints.violation_row(1000)
    assert row["name"].startswith("1000 samples") and row["ratio"] == 0 and row["allowed"] == 0.0


def test_ranking_benchmark_reads_and_compares(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCH))
    ranking = importlib.import_module("ranking")
    for part, text, sizes in (("train", "2 1:0.5 3:1\n0 2:4\n1 1:2\n", "2\n1\n"), ("test", "3 3:7\n", "1\n")):
        with gzip.open(tmp_path / f"rank.{part}.gz", "wt") as file:
            file.write(text)
        (tmp_path / f"rank.{part}.query").write_text(sizes)
    rows = ranking.read_ltr(tmp_path)
    assert rows.X.tolist() == [[0.5, 0, 1], [0, 4, 0], [2, 0, 0], [0, 0, 7]]
    assert rows.y.tolist() == [2, 0, 1, 3] and rows.group.tolist() == [0, 0, 1, 2] and rows.sizes() == [2, 1, 1]
    pytest.importorskip("lightgbm")
    from softrank_ext.ranking import members

    monkeypatch.setattr(members, "MOST_UPDATES", 10)
    monkeypatch.setattr(members, "FEWEST_UPDATES", 10)
    found = ranking.compare(ranking.drawn_lists(12), [ranking.np.arange(4)])
    assert found.ours.shape == found.lightgbm.shape == (4, 3) and found.report.groups == 4
    assert "NDCG@10" in "\n".join(ranking.lines_of("lists", found))
    drawn = ranking.drawn_lists(10), ranking.drawn_lists(20)
    monkeypatch.setattr(ranking, "read_ltr", lambda folder: drawn[1])
    monkeypatch.setattr(ranking, "drawn_lists", lambda: drawn[0])
    lines = ranking.fit_lines(tmp_path)
    assert lines[0].startswith("fit to ltr (16 groups, ") and ", 3 features): Ranker " in lines[0]
    assert lines[1].startswith("fit to lists (8 groups, ")
    monkeypatch.setattr(ranking, "fix_threads", lambda count: None)  # it would stay for the tests that follow
    monkeypatch.setattr(sys, "argv", ["ranking.py", "lists", "--folds", "1", "--output", str(tmp_path / "made")])
    ranking.main()
    assert not (tmp_path / "made").exists() and "1 of 5 folds: not written" in capsys.readouterr().out
