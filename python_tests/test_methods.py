"""Methods by name: each cell of the ablation grid and each baseline is one command."""

import json

import numpy as np
import pytest

from softrank_ext import SoftRankModel, model_folder
from softrank_ext.cli.main import main
from softrank_ext.methods import METHODS, method_of

BALLOTS = ["# NUMBER ALTERNATIVES: 4", "# ALTERNATIVE NAME 1: a", "# ALTERNATIVE NAME 2: b", "# ALTERNATIVE NAME 3: c",
           "# ALTERNATIVE NAME 4: d", "# NUMBER VOTERS: 12", "# NUMBER UNIQUE ORDERS: 2", "8: 2,3,1,4",
           "4: 3,1,4,2"]  # fmt: skip
SMALL = ["--model.d-model", "16", "--model.feed-forward", "24", "--model.heads", "2", "--model.encoder-layers", "1"]
QUICK = ["--iterations", "2", "--batch-size", "4", "--no-prefetch", "--task.file", "ballots.soc"]


@pytest.fixture
def ballots(tmp_path, monkeypatch):
    """A folder with ballots.soc and items.npz, and the current one."""
    (tmp_path / "ballots.soc").write_text("\n".join(BALLOTS) + "\n")
    monkeypatch.chdir(tmp_path)
    np.savez("items.npz", items=np.array([[0, 1, 2, 3], [2, 1, 0, 3]]))
    return tmp_path


def run_through(folder, words: list[str], evaluation: tuple[str, ...] = ()) -> dict:
    """Train, evaluate and sample by the command line; returns the row of the evaluation."""
    assert main(["train", "preferences", *words, *QUICK, "--output", "run"]) == 0
    assert main(["evaluate", "preferences", "run", "--count", "4", "--output", "row.json", *evaluation]) == 0
    assert main(["sample", "run", "items.npz", "orders.json", "--num-samples", "2"]) == 0
    orders = json.loads((folder / "orders.json").read_text())
    assert len(orders) == 4 and all(sorted(row["order"]) == [0, 1, 2, 3] for row in orders)
    (row,) = json.loads((folder / "row.json").read_text())["rows"]
    return row


@pytest.mark.parametrize("target", ("clean", "previous"))
@pytest.mark.parametrize("head", ("gpl", "linear", "pointer"))
@pytest.mark.parametrize("process", ("soft-rank", "riffle"))
def test_a_cell_of_the_ablation_grid_is_one_command(ballots, process, head, target):
    layers = "0" if head == "gpl" else "1"
    cell = ["--model.process", process, "--model.head", head, "--model.target", target]
    row = run_through(ballots, [*cell, *SMALL, "--model.decoder-layers", layers])
    config = SoftRankModel.from_pretrained("run/last").config
    assert (config.process, config.head, config.target) == (process, head, target)
    assert config.visited == ((0, 2, 7) if process == "riffle" else None)
    assert row["steps"] == (2 if process == "riffle" else 5)


@pytest.mark.parametrize("trained", ("uniform", "gaussian"))
@pytest.mark.parametrize("sampled", ("uniform", "gaussian"))
def test_a_row_of_the_reference_table_is_one_command(ballots, trained, sampled):
    row = run_through(ballots, [*SMALL, "--model.decoder-layers", "1", "--reference", trained],
                      ("--reference", sampled))  # fmt: skip
    assert json.loads((ballots / "run" / "run.json").read_text())["config"]["reference"] == trained
    assert row["reference"] == sampled


def test_symmetric_diffusers(ballots):
    beam = ("--decode", "beam", "--beam", "24", "--beam-kept", "6")
    row = run_through(ballots, ["--method", "symmetric-diffusers", *SMALL], beam)
    assert (row["decode"], row["beam"], row["beam_kept"], row["steps"]) == ("beam", 24, 6, 2)
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert (record["config"]["draws"], record["config"]["times"]) == (3, "all")
    saved = json.loads((ballots / "run" / "last" / "config.json").read_text())
    assert {name: saved[name] for name in ("model_type", "process", "target", "head", "visited", "norm_first")} == {
        "model_type": "soft-rank", "process": "riffle", "target": "previous", "head": "gpl", "visited": [0, 2, 7],
        "norm_first": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "model_type", "decode"),
    [
        (["--method", "diffsort", "--model.network", "bitonic", "--model.swap", "optimal"], "diffsort", "greedy"),
        (["--method", "error-free-diffsort", *SMALL, "--model.hard-weight", "0"], "diffsort", "greedy"),
        (["--method", "lehmer", *SMALL], "factorised", "sample"),
        (["--method", "lehmer", "--model.code", "insertion", *SMALL], "factorised", "sample"),
    ],
)
def test_one_pass_baselines(ballots, words, model_type, decode, capsys):
    train = ["train", "preferences", *words, *QUICK, "--output", "run"]
    assert main(train) == 0
    assert json.loads((ballots / "run" / "last" / "config.json").read_text())["model_type"] == model_type
    assert main(["evaluate", "preferences", "run", "--count", "4", "--output", "row.json"]) == 0
    command = ["sample", "run", "items.npz", "orders.json", "--num-samples", "3", "--decode", decode]
    drawn = []
    for seed in ("1", "1", "2"):
        assert main([*command, "--seed", seed]) == 0
        drawn.append([row["order"] for row in json.loads((ballots / "orders.json").read_text())])
    assert len(drawn[0]) == 6 and all(sorted(order) == [0, 1, 2, 3] for order in drawn[0])
    assert drawn[0] == drawn[1]
    assert (drawn[0] != drawn[2]) == (decode == "sample")
    assert main([*train, "--resume"]) == 0  # nothing is left to do
    if decode == "greedy":
        assert main(["sample", "run", "items.npz", "orders.json"]) == 1
        assert 'it needs decode="greedy"' in capsys.readouterr().err


def test_error_free_diffsort_has_the_published_settings(ballots, capsys):
    assert main(["train", "preferences", "--method", "error-free-diffsort", *QUICK, "--output", "run"]) == 1
    assert "they must be images or vectors, got (4, 4) torch.int64; set hard_weight to 0" in capsys.readouterr().err


def test_the_method_may_stand_in_a_file(ballots):
    (ballots / "run.yaml").write_text("method: symmetric-diffusers\nmodel:\n  visited: [0, 3, 8]\n  head: pl\n")
    row = run_through(ballots, ["--config", "run.yaml", *SMALL])
    config = SoftRankModel.from_pretrained("run/last").config
    assert (config.process, config.visited, config.head) == ("riffle", (0, 3, 8), "pl")
    assert row["steps"] == 2


def test_unknown_methods_are_told(ballots, capsys):
    with pytest.raises(ValueError, match=r"method must be one of softrank, symmetric-diffusers.*, got 'softsort'"):
        method_of("softsort")
    assert main(["train", "preferences", "--method", "softsort"]) == 1
    assert "method must be one of softrank, symmetric-diffusers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "preferences", "--method=symmetric-diffusers", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--model.process {soft-rank,riffle} (default: riffle)" in told
    assert all(name in told for name in METHODS)


def test_a_run_of_another_method_is_not_resumed(ballots, capsys):
    run_through(ballots, ["--method", "symmetric-diffusers", *SMALL])
    again = ["train", "preferences", *QUICK, *SMALL, "--model.decoder-layers", "1", "--output", "run", "--resume"]
    assert main(again) == 1
    assert "resume with what it was started with" in capsys.readouterr().err


def test_a_run_of_before_is_resumed(ballots):
    """Its records have the target among the options of training, and nothing of processes."""
    words = ["train", "preferences", *QUICK, *SMALL, "--model.decoder-layers", "1", "--output", "run"]
    assert main(words) == 0
    tensors, state = model_folder.load_training(ballots / "run" / "last")
    state["config"]["target"] = "clean"
    del state["config"]["times"], state["config"]["objective"]
    for name in ("model_type", "process", "target", "visited"):
        del state["model"][name]
    model_folder.save_training(ballots / "run" / "last", tensors, state)
    assert main([*words, "--resume"]) == 0
