"""`softrank evaluate`: a row for each combination of options."""

import hashlib
import json

import pytest
import torch
from synthetic_runs import SMALL_DECODER

from softrank_ext import DataFacts, SoftRankConfig, SoftRankModel
from softrank_ext.cli.main import main
from softrank_ext.tasks.tsp import write_instances


def test_rows_of_a_run(ballots, capfd):
    train = ["train", "preferences", "--task.file", "ballots.soc", "--iterations", "2", "--batch-size", "4"]
    assert main([*train, *SMALL_DECODER, "--output", "run"]) == 0
    evaluate = ["evaluate", "preferences", "run", "--count", "4", "--steps", "1", "2", "--output", "table.json"]
    assert main(evaluate) == 0
    printed = capfd.readouterr().out
    assert "run/last on {'name': 'preferences', 'file': 'ballots.soc'" in printed
    table = json.loads((ballots / "table.json").read_text())
    assert [row["steps"] for row in table["rows"]] == [1, 2] and all(row["metrics"] for row in table["rows"])
    assert table["command"] == "softrank " + " ".join(evaluate)
    weights = (ballots / "run" / "last" / "model.safetensors").read_bytes()
    assert table["sha256"] == hashlib.sha256(weights).hexdigest()

    process = ["--process.noise-scale", "0.1", "0.3", "--process.prior", "uniform", "gaussian"]
    assert main([*evaluate[:5], *process, "--process.carry", "reflected", "--output", "table.json"]) == 0
    rows = json.loads((ballots / "table.json").read_text())["rows"]
    got = [(row["process"]["noise_scale"], row["process"]["prior"], row["process"]["carry"]) for row in rows]
    assert got == [(scale, prior, "reflected") for scale in (0.1, 0.3) for prior in ("uniform", "gaussian")]
    assert capfd.readouterr().out.splitlines()[1].split()[:3] == ["steps", "noise_scale", "prior"]


@pytest.fixture
def tours(tmp_path, monkeypatch):
    """A folder with tsp5.txt and a model, and the current one."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    points, order = torch.rand(6, 5, 2, generator=generator), torch.rand(6, 5, generator=generator).argsort(1)
    write_instances("tsp5.txt", points, order)
    sizes = {"d_model": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    data = DataFacts("tour", fixed_start=True)
    SoftRankModel(SoftRankConfig(**sizes, embedder={"kind": "points"}, data=data)).save_pretrained("model")
    return tmp_path


EVALUATE = ["evaluate", "tsp", "model", "--task.test-file", "tsp5.txt", "--count", "6", "--steps", "2"]


def test_rows_of_kinds_of_search(tours, capfd):
    kinds = ["--decode", "greedy", "beam", "--beam.width", "6", "--best-of", "1", "3", "--symmetries", "1", "8"]
    assert main([*EVALUATE, *kinds]) == 0
    rows = json.loads((tours / "evaluation.json").read_text())["rows"]
    assert [(row["decode"], row["best_of"], row["symmetries"]) for row in rows] == [
        (decode, best_of, symmetries)
        for decode in ("greedy", "Beam(width=6, kept=1, returned=1)")
        for best_of in (1, 3)
        for symmetries in (1, 8)
    ]
    assert capfd.readouterr().out.splitlines()[1].split()[:4] == ["steps", "decode", "best_of", "symmetries"]
    for row in rows:
        assert {"gap", "length", "validity"} <= row["metrics"].keys() and row["best_by"] == "length"


def test_rows_of_improve(tours, capfd):
    assert main([*EVALUATE, "--improve", "0", "20", "--initial", "2", "--output", "table.json"]) == 0
    rows = json.loads((tours / "table.json").read_text())["rows"]
    assert [row["improve"] for row in rows] == [None, 0, 20] and [row["draws"] for row in rows] == [1, 2, 22]
    lengths = [row["metrics"]["length"]["mean"] for row in rows]
    assert lengths[2] < lengths[1]
    assert all(row["metrics"]["validity"]["mean"] == 1 for row in rows)
    assert "improve" in capfd.readouterr().out.splitlines()[1]


def test_the_engine_does_not_change_a_row(tours):
    metrics = []
    for engine in ([], ["--engine.compiled", "False"]):
        assert main([*EVALUATE, *engine]) == 0
        metrics.append(json.loads((tours / "evaluation.json").read_text())["rows"][0]["metrics"])
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam.width", "6"], "--beam.width, .kept and .returned are for --decode beam, got --decode greedy"),
        (["--draw.temperature", "0.5"], "--draw.temperature is for --decode sample, got --decode greedy"),
        (["--process.noise-scale", "-1"], "noise_scale must be at least 0 and finite, got -1.0"),
    ],
)
def test_says_what_is_wrong(tours, options, message, capsys):
    assert main([*EVALUATE, *options]) == 2
    assert message in capsys.readouterr().err


def test_objects_of_options_are_checked_as_they_are_made(tours, capsys):
    with pytest.raises(SystemExit) as exit:
        main([*EVALUATE, "--decode", "beam", "--beam.kept", "20"])
    assert exit.value.code == 2 and "kept must be an integer from 1 to 16, got 20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "embedder", "columns"),
    [
        ("flowshop", {"kind": "times", "machines": 20}, ["cost", "neh_cost", "iterated_greedy_cost"]),
        ("tardiness", {"kind": "due-jobs"}, ["cost", "atc_cost", "atc_local_search_cost", "iterated_greedy_cost"]),
    ],
)
def test_costs_stand_beside_heuristics(tmp_path, monkeypatch, capfd, name, embedder, columns):
    monkeypatch.chdir(tmp_path)
    sizes = {"d_model": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    SoftRankModel(SoftRankConfig(**sizes, embedder=embedder)).save_pretrained("model")
    words = ["evaluate", name, "model", "--task.num-jobs", "6", "--count", "4", "--steps", "1", "--best-of", "2"]
    assert main([*words, "--decode", "sample"]) == 0
    (row,) = json.loads((tmp_path / "evaluation.json").read_text())["rows"]
    assert list(row["metrics"]) == columns and row["best_by"] == "cost"
    assert capfd.readouterr().out.splitlines()[1].split() == ["steps", *columns, "instances", "seconds"]


def test_instances_are_a_range(tours, capfd):
    assert main([*EVALUATE, "--instances", "2:5", "--json"]) == 0
    shown = capfd.readouterr()
    record = json.loads(shown.out)
    assert record == json.loads((tours / "evaluation.json").read_text())
    assert [(row["first_instance"], row["instances"]) for row in record["rows"]] == [(2, 3)]
    assert shown.err == ""  # no bar: it is no terminal
    for word in ("2", "5:2", "a:b", "2:2"):
        assert main([*EVALUATE, "--instances", word]) == 2
        assert "--instances must be FIRST:END like 200:300" in capfd.readouterr().err


def test_seed_chooses_drawn_instances(tours):
    lengths = []
    for seed in ("1", "1", "2"):
        words = ["evaluate", "tsp", "model", "--task.num-points", "5", "--count", "4", "--steps", "1", "--seed", seed]
        assert main(words) == 0
        rows = json.loads((tours / "evaluation.json").read_text())["rows"]
        lengths.append(next(value["mean"] for name, value in rows[0]["metrics"].items() if "nearest" in name))
    assert lengths[0] == lengths[1] != lengths[2]
