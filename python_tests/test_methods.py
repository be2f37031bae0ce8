"""Methods by name: each cell of the ablation grid and each baseline is one command."""

import json

import pytest
from synthetic_runs import SMALL, SMALL_DECODER

from softrank_ext import Beam, Bridge, Riffle, SoftRankModel, model_folder
from softrank_ext.cli.main import main
from softrank_ext.methods import METHODS, method_of
from softrank_ext.tasks.tsp import TSP

QUICK = ["--iterations", "2", "--batch-size", "4", "--no-prefetch", "--task.file", "ballots.soc"]


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
@pytest.mark.parametrize("kind", ("bridge", "riffle"))
def test_a_cell_of_the_ablation_grid_is_one_command(ballots, kind, head, target):
    layers = "0" if head == "gpl" else "1"
    cell = ["--model.process.kind", kind, "--model.head", head, "--model.process.target", target]
    row = run_through(ballots, [*cell, *SMALL, "--model.decoder-layers", layers])
    config = SoftRankModel.from_pretrained("run/last").config
    assert config.head == head
    assert config.process == (Riffle((0, 2, 7), target) if kind == "riffle" else Bridge(target=target))
    assert row["steps"] == (2 if kind == "riffle" else 5)


@pytest.mark.parametrize("trained", ("uniform", "gaussian"))
@pytest.mark.parametrize("sampled", (None, "uniform", "gaussian"))
def test_a_row_of_the_table_of_priors_is_one_command(ballots, trained, sampled):
    evaluation = () if sampled is None else ("--process.prior", sampled)
    row = run_through(ballots, [*SMALL_DECODER, "--model.process.prior", trained], evaluation)
    assert json.loads((ballots / "run" / "run.json").read_text())["model"]["process"]["prior"] == trained
    assert row["process"]["prior"] == (sampled or trained)


def test_a_model_is_evaluated_and_sampled_with_the_noise_that_it_was_trained_with(ballots):
    noise = ["--model.process.noise-scale", "0.1", "--model.process.sampling-steps", "3"]
    row = run_through(ballots, [*SMALL_DECODER, *noise])
    assert (row["process"]["noise_scale"], row["steps"]) == (0.1, 3)
    config = SoftRankModel.from_pretrained("run/last").config
    assert config.process == Bridge(0.1, sampling_steps=3) and config.time_steps == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.process.visited", "0", "3"], "visited is for the process riffle, a bridge has sampling_steps; got"),
        (["--model.process.kind", "riffle", "--model.process.noise-scale", "0.1"],
         "noise_scale is for the process bridge, got 0.1 for riffle"),
    ],
)  # fmt: skip
def test_options_of_another_process_are_told(ballots, options, message, capsys):
    assert main(["train", "preferences", *QUICK, *options]) == 2
    assert message in capsys.readouterr().err


def test_symmetric_diffusers(ballots):
    beam = ("--decode", "beam", "--beam.width", "24", "--beam.kept", "6")
    row = run_through(ballots, ["--method", "symmetric-diffusers", *SMALL], beam)
    assert (row["decode"], row["steps"]) == (repr(Beam(24, 6)), 2)
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert (record["config"]["noisy_orders"], record["config"]["times"]) == (3, "all")
    saved = json.loads((ballots / "run" / "last" / "config.json").read_text())
    assert {name: saved[name] for name in ("model_type", "process", "head", "norm_first")} == {
        "model_type": "soft-rank", "process": {"kind": "riffle", "visited": [0, 2, 7], "target": "previous"},
        "head": "gpl", "norm_first": True,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["symmetric-diffusers", "symmetric-diffusers-as-published"])
def test_symmetric_diffusers_of_tours_is_as_large_as_published(name):
    method = method_of(name)
    model = method.make(TSP(num_points=20), method.options("tsp"))
    assert model.config.embedder == {"kind": "points", "learned": False}
    assert sum(parameter.numel() for parameter in model.parameters()) == 12_767_744


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
        assert main(["sample", "run", "items.npz", "orders.json"]) == 2
        assert 'it needs decode="greedy"' in capsys.readouterr().err


def test_error_free_diffsort_has_the_published_settings(ballots, capsys):
    assert main(["train", "preferences", "--method", "error-free-diffsort", *QUICK, "--output", "run"]) == 2
    assert "they must be images or vectors, got (4, 4) torch.int64; set hard_weight to 0" in capsys.readouterr().err


def test_the_method_may_stand_in_a_file(ballots):
    (ballots / "run.yaml").write_text(
        "method: symmetric-diffusers\nmodel:\n  process:\n    visited: [0, 3, 8]\n  head: pl\n"
    )
    row = run_through(ballots, ["--config", "run.yaml", *SMALL])
    config = SoftRankModel.from_pretrained("run/last").config
    assert (config.process, config.head) == (Riffle((0, 3, 8), "previous"), "pl")
    assert row["steps"] == 2


def test_unknown_methods_are_told(ballots, capsys):
    with pytest.raises(ValueError, match=r"method must be one of softrank, symmetric-diffusers.*, got 'softsort'"):
        method_of("softsort")
    assert main(["train", "preferences", "--method", "softsort"]) == 2
    assert "method must be one of softrank, symmetric-diffusers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "preferences", "--method=symmetric-diffusers", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--model.process.kind {bridge,riffle} What orders are noised by. (default: riffle)" in told
    assert all(name in told for name in METHODS)


def test_a_run_of_another_method_is_not_resumed(ballots, capsys):
    run_through(ballots, ["--method", "symmetric-diffusers", *SMALL])
    again = ["train", "preferences", *QUICK, *SMALL_DECODER, "--output", "run", "--resume"]
    assert main(again) == 2
    assert "resume with what it was started with" in capsys.readouterr().err


@pytest.mark.parametrize("is_first_version", (True, False))
def test_a_run_of_before_is_resumed(ballots, is_first_version):
    """Its records have the noise among the options of training, at first the target too, and a flat config."""
    words = ["train", "preferences", *QUICK, *SMALL_DECODER, "--output", "run"]
    assert main(words) == 0
    tensors, state = model_folder.load_training(ballots / "run" / "last")
    state["config"] |= {"noise_scale": 0.5, "reference": "uniform"}
    for name in ("process", "data", "time_steps"):
        del state["model"][name]
    if is_first_version:
        state["config"]["target"] = "clean"
        del state["config"]["times"], state["config"]["objective"], state["model"]["model_type"]
        state["model"]["steps"] = 5
    else:
        state["model"] |= {"steps": 5, "process": "soft-rank", "target": "clean", "visited": None}
    model_folder.save_training(ballots / "run" / "last", tensors, state)
    assert main([*words, "--resume"]) == 0
    assert main([*words, "--resume", "--model.process.noise-scale", "0.1"]) == 2
