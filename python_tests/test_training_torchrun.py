"""Several processes train as one does."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from synthetic_runs import QUICK, TESTS, tiny_model, weights_of
from synthetic_tasks import SortNumbers

from softrank_ext import SoftRankModel
from softrank_ext.training import loop, processes, train
from softrank_ext.training.torchrun import Processes

KINDS = {"loss_whole", "loss_partial", "loss_draft"}
TWO_RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_training_torchrun import train_in_float64
train_in_float64(sys.argv[2], sys.argv[3] == "parts")
"""


def model_in_float64(parts: bool) -> SoftRankModel:
    """A model without dropout; float64, so that rounding does not decide the sign of gradients that should be 0."""
    return tiny_model(dropout=0.0, partial=parts).double()


def train_in_float64(folder: str, parts: bool) -> None:
    """A run, with parts noised and drafts or without."""
    config = dataclasses.replace(QUICK, seed=1, evaluate_every=8, evaluate_count=10)
    if parts:
        config = dataclasses.replace(config, partial=0.5, drafts=0.5)
    train(model_in_float64(parts), SortNumbers(4), config, folder, quiet=True, device="cpu")


def losses_of(run: Path) -> dict[str, float]:
    """The last loss of each kind of row in a run's record."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name: value for line in lines for name, value in line.items() if name in KINDS}


@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_two_processes_train_as_one_does(kind, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "script.py"
    script.write_text(TWO_RANKS)
    command = [*torchrun, str(script), str(TESTS), str(tmp_path / "two"), kind]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    train_in_float64(str(tmp_path / "one"), kind == "parts")
    two, one = (load_file(tmp_path / run / "last" / "training.safetensors") for run in ("two", "one"))
    assert two.keys() == one.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)
    first = weights_of(model_in_float64(kind == "parts"))
    assert max(float((one[f"model.{name}"] - tensor).abs().max()) for name, tensor in first.items()) > 1e-2
    metrics = [json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[-1]) for run in ("two", "one")]
    assert metrics[0].keys() == metrics[1].keys() > {"test_loss", "test_accuracy"}
    assert metrics[0]["test_loss"] == pytest.approx(metrics[1]["test_loss"], rel=1e-9)
    assert metrics[0]["test_accuracy"] == metrics[1]["test_accuracy"]
    losses = [losses_of(tmp_path / run) for run in ("two", "one")]
    assert losses[0].keys() == (KINDS if kind == "parts" else set())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_the_batch_must_divide_among_the_processes(monkeypatch):
    here = Processes(0, 3, torch.device("cpu"))
    monkeypatch.setattr(loop, "processes", lambda device: contextlib.nullcontext(here))
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 3 processes, got 4"):
        train(tiny_model(), SortNumbers(3), QUICK)


def test_one_process_is_the_first_of_one():
    with processes("cpu") as here:
        assert here == (0, 1, torch.device("cpu"))
        here.wait()
        assert here.is_anywhere(True) and not here.is_anywhere(False)


ENDED_BY_AN_ERROR = """
import torch.distributed as dist
from softrank_ext.training import processes, torchrun
try:
    with processes("cpu"):
        group = dist.group.WORLD
        raise ValueError("by the user's code")
except ValueError as error:
    print(error, dist.is_initialized(), torchrun._GROUPS_OF_ERRORS == [group])
with processes("cpu") as again:
    print(again.world)
"""


def test_a_group_that_an_error_ends_is_kept():
    """Not by the traceback alone: the last to let go of it must not hold Python's lock (seen as a deadlock)."""
    joined = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    command = [sys.executable, "-c", ENDED_BY_AN_ERROR]
    done = subprocess.run(command, env=os.environ | joined, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["by the user's code False True", "1"]
