"""The command line, called as a function and once as a process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import softrank_ext
from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.cli.main import main, with_config_file


def test_info_prints_aligned_lines_and_json(capsys, monkeypatch):
    info_with_gaps = softrank_ext.build_info() | {"cuda_architectures": ""}
    monkeypatch.setattr("softrank_ext.cli.main.build_info", lambda: info_with_gaps)
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    width = max(map(len, names))
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert list(info) == names
    assert info["torch_running"] == torch.__version__


def test_module_runs_as_a_process(tmp_path):
    # In tmp_path: `-m` looks into the current folder first, and the source tree need not be compiled.
    command = [sys.executable, "-m", "softrank_ext", "info", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "version" in json.loads(done.stdout)


def test_walk_writes_a_picture_and_prints_both_orders(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "walk.png"
    assert main(["walk", "--items", "5", "--steps", "10", "--seed", "3", "--output", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for line in printed.splitlines()[:2]:
        assert sorted(json.loads(line.split(": ")[1])) == [0, 1, 2, 3, 4]
    assert str(picture) in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "0"], "--items must be at least 1, got 0"),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["--noise-scale", "-1"], "noise_scale must be at least 0, got -1.0"),
        (["--output", "no/such/folder/walk.png"], "No such file or directory"),
    ],
)
def test_walk_says_what_is_wrong(arguments, message, capsys):
    pytest.importorskip("matplotlib")
    assert main(["walk", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["wlak"])
    told = capsys.readouterr().err
    assert exit.value.code == 2
    assert "softrank: error: unknown word 'wlak'; did you mean walk?" in told
    assert all(command in told for command in ("train", "evaluate", "sample", "generate", "download", "info", "walk"))
    with pytest.raises(SystemExit):
        main(["train", "sortin"])
    assert "softrank train: error: unknown word 'sortin'; did you mean sorting?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["generate"])
    assert "softrank generate: error: a word is missing" in capsys.readouterr().err


@pytest.mark.parametrize("words", (["--help"], ["train", "--help"]))
def test_help_lists_the_words_that_may_follow(words, capsys):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 0
    assert "preferences" in capsys.readouterr().out


def test_help_of_training_has_typed_options_with_their_defaults(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["train", "tsp", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert exit.value.code == 0
    assert "--learning-rate FLOAT Peak rate." in told
    assert "--schedule {cosine,transformer,constant}" in told
    assert "--model.d-model INT (default: 256)" in told
    assert "--task.direction" in told


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["train", "tsp", "--learning-rat", "1"], "--learning-rate"),
        (["evaluate", "tsp", "model", "--cuont", "1"], "--count"),
        (["walk", "--item", "1"], "--items"),
    ],
)
def test_unknown_option_names_the_nearest(words, nearest, capsys):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 2
    told = capsys.readouterr().err
    assert "Unrecognized options" in told and nearest in told


BALLOTS = ["# NUMBER ALTERNATIVES: 3", "# ALTERNATIVE NAME 1: a", "# ALTERNATIVE NAME 2: b", "# ALTERNATIVE NAME 3: c",
           "# NUMBER VOTERS: 12", "# NUMBER UNIQUE ORDERS: 2", "8: 2,3,1", "4: 3,1,2"]  # fmt: skip
SMALL = ["--model.d-model", "16", "--model.feed-forward", "24", "--model.heads", "2", "--model.encoder-layers", "1",
         "--model.decoder-layers", "1"]  # fmt: skip


@pytest.fixture
def ballots(tmp_path, monkeypatch):
    """A folder with ballots.soc, and the current one."""
    (tmp_path / "ballots.soc").write_text("\n".join(BALLOTS) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_evaluate_and_sample(ballots, capfd):
    (ballots / "run.yaml").write_text(
        "iterations: 3\nbatch_size: 4\nlearning_rate: 1e-3\nprefetch: false\ntask:\n  file: ballots.soc\n"
        "model:\n  dropout: 0.0\n  norm_first: false\n"
    )
    train = ["train", "preferences", "--config", "run.yaml", *SMALL, "--output", "run"]
    assert main([*train, "--batch-size", "6"]) == 0
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert record["command"].startswith("softrank train preferences --config run.yaml --model.d-model 16")
    assert record["task"] == {"name": "preferences", "file": "ballots.soc", "test_share": 0.2}
    assert {name: record["config"][name] for name in ("iterations", "batch_size", "learning_rate", "prefetch")} == {
        "iterations": 3, "batch_size": 6, "learning_rate": 1e-3, "prefetch": False,
    }  # fmt: skip
    assert record["model"]["dropout"] == 0.0 and not record["model"]["norm_first"]

    assert main(train) == 1
    assert "run already holds a run: --resume" in capfd.readouterr().err
    assert main([*train, "--resume"]) == 1
    assert "has batch_size = 6 (config), got 4" in capfd.readouterr().err
    assert main([*train, "--batch-size", "6", "--resume"]) == 0

    evaluate = ["evaluate", "preferences", "run", "--count", "4", "--steps", "1", "2", "--output", "table.json"]
    assert main(evaluate) == 0
    printed = capfd.readouterr().out
    assert "run/last on {'name': 'preferences', 'file': 'ballots.soc'" in printed
    table = json.loads((ballots / "table.json").read_text())
    assert [row["steps"] for row in table["rows"]] == [1, 2] and all(row["metrics"] for row in table["rows"])
    assert table["command"] == "softrank " + " ".join(evaluate)
    weights = (ballots / "run" / "last" / "model.safetensors").read_bytes()
    assert table["sha256"] == hashlib.sha256(weights).hexdigest()

    np.savez("items.npz", items=np.array([[0, 1, 2], [2, 1, 0]]))
    assert main(["sample", "run", "items.npz", "orders.json", "--num-samples", "3", "--seed", "2"]) == 0
    orders = json.loads((ballots / "orders.json").read_text())
    assert len(orders) == 6 and all(sorted(row["order"]) == [0, 1, 2] for row in orders)
    assert main(["sample", "run", "items.npz", "orders.csv", "--first", "1"]) == 0
    assert [line.split(",")[3] for line in (ballots / "orders.csv").read_text().splitlines()] == ["place_0", "1", "1"]

    started = [*train[:-1], "again", "--batch-size", "6", "--start-from", "run", "--learning-rate", "0"]
    assert main(started) == 0
    again, before = (SoftRankModel.from_pretrained(ballots / run / "last") for run in ("again", "run"))
    assert torch.equal(again.start, before.start)
    assert main([*started[:-4], "--start-from", "run", "--model.d-model", "32", "--output", "third"]) == 1
    assert "the model in run is another" in capfd.readouterr().err


def test_search_by_command(ballots, capfd):
    from softrank_ext.tasks.tsp import write_instances

    generator = torch.Generator().manual_seed(0)
    points, order = torch.rand(6, 5, 2, generator=generator), torch.rand(6, 5, generator=generator).argsort(1)
    write_instances("tsp5.txt", points, order)
    sizes = {"d_model": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    SoftRankModel(SoftRankConfig(**sizes, embedder={"kind": "points"})).save_pretrained("model")
    words = ["evaluate", "tsp", "model", "--task.test-file", "tsp5.txt", "--count", "6", "--steps", "2"]
    assert (
        main([*words, "--decode", "greedy", "beam", "--beam", "6", "--best-of", "1", "3", "--symmetries", "1", "8"])
        == 0
    )
    rows = json.loads((ballots / "evaluation.json").read_text())["rows"]
    ways = [(row["decode"], row["beam"], row["best_of"], row["symmetries"]) for row in rows]
    assert ways == [
        (decode, beam, best_of, symmetries)
        for decode, beam in (("greedy", None), ("beam", 6))
        for best_of in (1, 3)
        for symmetries in (1, 8)
    ]
    assert capfd.readouterr().out.splitlines()[1].split()[:5] == ["steps", "decode", "beam", "best_of", "symmetries"]
    for row in rows:
        assert {"gap", "length", "validity"} <= row["metrics"].keys() and row["best_by"] == "length"
    np.savez("items.npz", items=points.numpy())
    beam = ["sample", "model", "items.npz", "orders.json", "--decode", "beam", "--beam", "6", "--beam-kept", "2"]
    assert main(beam) == 0
    assert all(sorted(row["order"]) == [0, 1, 2, 3, 4] for row in json.loads((ballots / "orders.json").read_text()))
    assert main([*beam[:6], "--beam-kept", "2"]) == 1
    assert 'beam must be given with decode="beam"' in capfd.readouterr().err


def test_train_on_tours_of_two_sizes(ballots, capfd):
    from softrank_ext.tasks.tsp import write_instances

    for n in (4, 6):
        generator = torch.Generator().manual_seed(n)
        points, order = torch.rand(5, n, 2, generator=generator), torch.rand(5, n, generator=generator).argsort(1)
        write_instances(f"tsp{n}.txt", points, order)
    options = ["--task.training-file", "tsp4.txt", "tsp6.txt", "--task.test-file", "tsp6.txt", "--task.rotations"]
    words = ["train", "tsp", *options, "--iterations", "4", "--batch-size", "2", "--output", "run", *SMALL]
    assert main(words) == 0
    assert json.loads((ballots / "run" / "run.json").read_text())["task"]["training_file"] == ["tsp4.txt", "tsp6.txt"]
    assert main([*words, "--resume"]) == 0
    assert main(["evaluate", "tsp", "run", "--count", "5"]) == 0
    assert "'training_file': ('tsp4.txt', 'tsp6.txt')" in capfd.readouterr().out


def test_a_linear_head_gets_its_number_of_items(ballots):
    options = ["--task.file", "ballots.soc", "--model.head", "linear", "--iterations", "1", "--output", "run", *SMALL]
    assert main(["train", "preferences", *options]) == 0
    assert SoftRankModel.from_pretrained(ballots / "run" / "last").config.max_items == 3


def test_an_interrupted_run_says_how_to_go_on(ballots, capfd, monkeypatch):
    from softrank_ext.tasks.preferences import Preferences

    original = Preferences.training_batch

    def interrupted(self, seed, step, size):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, seed, step, size)

    monkeypatch.setattr(Preferences, "training_batch", interrupted)
    words = ["train", "preferences", "--task.file", "ballots.soc", "--output", "run", "--no-prefetch", *SMALL]
    assert main(words) == 130
    assert f"go on with: softrank {' '.join(words)} --resume" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "a.yaml must hold options by name, got list"),
        ("a: [1\n", "a.yaml is not valid YAML"),
        (None, "No such file or directory: 'a.yaml'"),
    ],
)
def test_wrong_config_files_are_told(ballots, text, message, capsys):
    if text is not None:
        (ballots / "a.yaml").write_text(text)
    assert main(["train", "preferences", "--config", "a.yaml"]) == 1
    assert message in capsys.readouterr().err


def test_config_file_needs_a_name_and_known_options(ballots, capsys):
    assert main(["train", "preferences", "--config"]) == 1
    assert "--config needs the name of a YAML file" in capsys.readouterr().err
    (ballots / "a.yaml").write_text("learning_rat: 1\ntask: {file: ballots.soc}\n")
    with pytest.raises(SystemExit):
        main(["train", "preferences", "--config=a.yaml"])
    assert "--learning-rate" in capsys.readouterr().err


def test_config_file_becomes_options(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("steps: [1, 5]\nmodel: {norm_first: false, d_model: 8}\nresume: true\ndevice: null\n")
    assert with_config_file(["run", "--config", str(path), "--seed", "1"]) == [
        "run", "--steps", "1", "5", "--model.no-norm-first", "--model.d-model", "8", "--resume", "--device", "None",
        "--config", str(path), "--seed", "1",
    ]  # fmt: skip


def test_generate_and_download_hand_over(tmp_path, monkeypatch, capsys):
    from softrank_ext.tasks import data, tsp

    calls = []
    monkeypatch.setattr(tsp, "generate", lambda *words, **options: calls.append((words, options)) or words[0])
    monkeypatch.setattr(data, "download", lambda *words: calls.append(words) or "there")
    assert main(["generate", "tsp", "a.txt", "--count", "7", "--num-nodes", "5", "--seed", "2"]) == 0
    assert calls[0] == ((Path("a.txt"), 7, 5), {"seed": 2, "seconds": None, "workers": None})
    assert main(["download", "mnist", "--root", "here"]) == 0
    assert calls[1] == ("mnist", "here")
    assert capsys.readouterr().out.splitlines() == ["a.txt", "there"]


def test_missing_models_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "nowhere", "a.npz", "a.csv"]) == 1
    assert "nowhere is neither a folder nor a bundled model" in capsys.readouterr().err
    assert main(["sample", "nowhere", "a.npz", "a.txt"]) == 1
    assert "orders are written to a file ending in .csv, .json, .npz, got a.txt" in capsys.readouterr().err
