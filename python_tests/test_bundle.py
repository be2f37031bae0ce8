"""bench/making/bundle.py: weights and a card from the records of runs; no number of the card is the script's own."""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from softrank_ext import SoftRankModel, model_folder
from softrank_ext.cli.main import main

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder")
SMALL = ["--model.d-model", "16", "--model.feed-forward", "24", "--model.heads", "2", "--model.encoder-layers", "1",
         "--model.decoder-layers", "1"]  # fmt: skip


@pytest.fixture
def bundle(monkeypatch):
    """The script, called with words."""
    for folder in (BENCH, BENCH / "making"):
        monkeypatch.syspath_prepend(str(folder))
    script = importlib.import_module("bundle")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["bundle.py", *map(str, words)])
        return script.main()

    return call


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two stages of three iterations; the records of the first are made up: a resumed run of 25,000 iterations."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ballots.csv").write_text("b,c,a\nb,c,a\nc,a,b\nb,c,a\nc,a,b\n")
    train = ["train", "preferences", "--task.file", str(tmp_path / "ballots.csv"), "--iterations", "3", "--log-every",
             "1", "--batch-size", "4", "--no-prefetch", *SMALL]  # fmt: skip
    assert main([*train, "--output", "first"]) == 0
    assert main([*train, "--output", "second", "--start-from", "first", "--seed", "7"]) == 0
    tensors, state = model_folder.load_training("first/last")
    model_folder.save_training("first/last", tensors, {**state, "iteration": 25000})
    seconds = [(10000, 1800.0, 2.5), (20000, 3600.0, 1.5), (25000, 900.0, 1.25), (26000, 1080.0, 1.0)]
    lines = [{"iteration": iteration, "seconds": clock, "loss_per_place": loss} for iteration, clock, loss in seconds]
    Path("first/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_card_tells_stages_and_evaluations_of_these_weights(runs, bundle):
    assert bundle("ballots", runs / "first", runs / "second", "--weights", runs / "weights") == 0
    folder = runs / "weights" / "ballots"
    text = (folder / "README.md").read_text()
    # Resumed after an hour, then a quarter; the last line is of after the checkpoint.
    assert "| 1 | 25,000 | 4 | 0 | 1.25 | 1.2500 |" in text
    assert "Loss per place by iteration: 10,000: 2.500, 20,000: 1.500, 25,000: 1.250." in text
    last_loss = json.loads((runs / "second" / "metrics.jsonl").read_text().splitlines()[-1])["loss_per_place"]
    assert f"| 2 | 3 | 4 | 7 | 0.00 | {last_loss:.4f} |" in text
    assert "softrank train preferences --task.file ballots.csv" in text and str(runs) not in text
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() in text
    assert "Not evaluated yet." in text and "PrefLib" in text
    read, trained = SoftRankModel.from_pretrained(folder), SoftRankModel.from_pretrained(runs / "second" / "last")
    torch.testing.assert_close(read.head.weight, trained.head.weight, rtol=2**-11, atol=2**-25)

    evaluate = ["evaluate", "preferences", str(folder), "--task.file", "ballots.csv", "--count", "1"]
    assert main([*evaluate, "--steps", "1", "2", "--output", "table.json"]) == 0
    assert bundle("ballots", "first", "second", "--weights", "weights", "--evaluation", "table.json") == 0
    text = (folder / "README.md").read_text()
    for row in json.loads((runs / "table.json").read_text())["rows"]:
        accuracy = row["metrics"]["accuracy"]
        assert f"{accuracy['mean']:.4f} ± {accuracy['standard_error']:.4f}" in text
        assert f"| {row['steps']} | greedy | 1 | 1 |" in text

    with pytest.raises(SystemExit, match=r"table\.json evaluates other weights"):
        bundle("ballots", "first", "--weights", "weights", "--evaluation", "table.json")


def test_a_bundled_model_stands_for_the_runs_that_made_it(runs, bundle):
    bundle("ballots", "first", "second", "--weights", "weights")
    at_once = Path("weights/ballots/README.md").read_text()
    bundle("ballots", "first", "--weights", "weights")
    bundle("ballots", "weights/ballots", "second", "--weights", "weights")
    assert Path("weights/ballots/README.md").read_text() == at_once
    stages = json.loads(Path("weights/ballots/training.json").read_text())
    assert [(stage["iterations"], stage["seed"]) for stage in stages] == [(25000, 0), (3, 7)]


def test_card_says_how_generated_files_were_made(runs, bundle):
    settings = {"count": 60, "num_nodes": 20, "seed": 7, "rounds": 80, "block": 2000}
    for stage, files in (("first", "a.txt"), ("second", ["a.txt", str(runs / "b.txt")])):
        record = json.loads(Path(stage, "run.json").read_text())
        record["task"] |= {"training_file": files}
        Path(stage, "run.json").write_text(json.dumps(record))
    Path("a.txt.json").write_text(json.dumps(settings))
    Path("b.txt.json").write_text(json.dumps(settings | {"num_nodes": 50, "rounds": 90}))
    bundle("ballots", runs / "first", runs / "second", "--weights", runs / "weights")
    text = (runs / "weights" / "ballots" / "README.md").read_text()
    assert text.count("softrank generate tsp") == 2
    assert "softrank generate tsp a.txt --count 60 --num-nodes 20 --seed 7 --rounds 80\n" in text
    assert "softrank generate tsp b.txt --count 60 --num-nodes 50 --seed 7 --rounds 90\n" in text
