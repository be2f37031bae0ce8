"""A run's folder: nothing is lost when a run is killed, and what to do with an existing run is an explicit choice."""

import dataclasses
import json
import math
import os
import resource
import signal
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from synthetic_runs import QUICK, TESTS, assert_same_weights, sort_three_and_signal, tiny_model, weights_of
from synthetic_tasks import SortNumbers

from softrank_ext import Bridge, DataFacts, model_folder
from softrank_ext.training import has_run, run_folder, train

pytestmark = pytest.mark.usefixtures("one_thread")
# Batches are made when they are asked for, so that a signal comes in the iteration meant.
UNHURRIED = dataclasses.replace(QUICK, prefetch=False)

KILLED_WHILE_SAVING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from softrank_ext import atomic_files
from synthetic_tasks import SortNumbers
from synthetic_runs import QUICK, tiny_model
from softrank_ext.training import train

write_to_disk = atomic_files._write_to_disk

def write_half_and_die(path, data):
    is_last = path.name.startswith("training") and b'iteration\\\\": 8' in data
    write_to_disk(path, data[:1000] if is_last else data)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)

atomic_files._write_to_disk = write_half_and_die
train(tiny_model(), SortNumbers(3), QUICK, sys.argv[2], quiet=True)
"""


def test_after_sigkill_amid_a_checkpoint_it_is_bit_exact(tmp_path):
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(TESTS), str(tmp_path / "killed")]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert model_folder.load_training(tmp_path / "killed" / "last")[1]["iteration"] == 4
    resumed = train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "killed", resume=True, quiet=True)
    whole = train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "whole", quiet=True)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))
    states = [load_file(tmp_path / run / "last" / "training.safetensors") for run in ("killed", "whole")]
    assert_same_weights(*states)
    assert {name.split(".")[0] for name in states[0]} == {"model", "average", "optimizer"}
    logs = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("killed", "whole")]
    assert [json.loads(line)["loss"] for line in logs[0]] == [json.loads(line)["loss"] for line in logs[1]]


def test_runs_struck_at_file_operations_lose_nothing(tmp_path):
    """Every 25th of the points; the job of .ci/attack takes all of them."""
    command = [sys.executable, str(TESTS / "attack" / "crash_points.py"), "--stride", "25", "--processes", "1"]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["tried"] >= 10 and counts["defects"] == 0


@pytest.mark.parametrize("how", ["old", "damaged", "missing"])
def test_the_model_is_made_to_agree_with_the_state(tmp_path, capfd, how):
    """A run of before 0.2 that died between the two files of its last checkpoint had the model of the one before."""
    done = train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "run", quiet=True)
    last = tmp_path / "run" / "last"
    if how == "old":
        (last / "manifest.json").unlink()
        model_folder.save_pretrained(tiny_model(), tmp_path / "before")
        (tmp_path / "before" / "model.safetensors").replace(last / "model.safetensors")
    elif how == "damaged":
        data = bytearray((last / "model.safetensors").read_bytes())
        data[-1] ^= 1
        (last / "model.safetensors").write_bytes(data)
    else:
        (last / "model.safetensors").unlink()
    assert train(tiny_model(), NoTask(3), QUICK, tmp_path / "run", resume=True, quiet=True).is_finished
    assert capfd.readouterr().err == f"the model in {last} was not that of its training state: written again\n"
    assert_same_weights(weights_of(model_folder.load_model(last)), weights_of(done.model))
    train(tiny_model(), NoTask(3), QUICK, tmp_path / "run", resume=True, quiet=True)
    assert capfd.readouterr().err == ""


def test_a_flipped_bit_in_the_training_state_is_told(tmp_path):
    train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    path = tmp_path / "last" / "training.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 8
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"training.safetensors must be the \d+ bytes with the SHA-256 .* that were"):
        train(tiny_model(), NoTask(3), QUICK, tmp_path, resume=True)


def test_lines_are_on_disk_before_the_checkpoint_that_counts_them(tmp_path, monkeypatch):
    """Else a crash of the machine could leave the checkpoint and lose lines before it."""
    synced = []
    save, sync = model_folder.save_checkpoint, run_folder._sync_metrics
    monkeypatch.setattr(run_folder, "_sync_metrics", lambda folder: (synced.append("lines"), sync(folder)))
    monkeypatch.setattr(model_folder, "save_checkpoint", lambda *given: (synced.append("checkpoint"), save(*given)))
    train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    assert synced == ["lines", "checkpoint"] * 3


class NoTask(SortNumbers):
    """Batches must not be asked for."""

    def training_batch(self, seed, step, size):
        raise AssertionError("training began")


def test_a_finished_run_returns_its_result_at_once(tmp_path, capfd):
    config = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6)
    done = train(tiny_model(), SortNumbers(3), config, tmp_path, quiet=True)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for resume in (True, "auto"):
        again = train(tiny_model(), NoTask(3), config, tmp_path, resume=resume)
        assert again.is_finished and (again.iteration, again.loss) == (8, done.loss)
        assert again.metrics == done.metrics and set(done.metrics) == {"loss", "accuracy", "wrong"}
        assert_same_weights(weights_of(again.model), weights_of(done.model))
        assert not again.model.training
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert capfd.readouterr().err == f"the run in {tmp_path} is finished: nothing to do\n" * 2


def test_an_existing_run_asks_for_a_choice(tmp_path):
    train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    with pytest.raises(
        ValueError,
        match=r"already holds a run: resume=True \(--resume\) goes on with it, resume=\"auto\" \(--auto-resume\) goes "
        r"on with a run or starts one, resume=\"restart\" \(--restart\) deletes it and starts anew; or choose another",
    ):
        train(tiny_model(), SortNumbers(3), QUICK, tmp_path)
    with pytest.raises(ValueError, match="resume must be one of False, True, 'auto', 'restart', got 'always'"):
        train(tiny_model(), SortNumbers(3), QUICK, tmp_path, resume="always")


def test_auto_starts_a_run_or_goes_on_with_it(tmp_path):
    stopped = train(tiny_model(), sort_three_and_signal(3), UNHURRIED, tmp_path / "run", resume="auto", quiet=True)
    assert stopped.iteration == 3 and has_run(tmp_path / "run")
    resumed = train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "run", resume="auto", quiet=True)
    whole = train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "whole", resume="auto", quiet=True)
    assert resumed.is_finished
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [2, 3, 4, 6, 8]


def test_restart_deletes_the_run_and_nothing_else(tmp_path):
    config = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6)
    train(tiny_model(), SortNumbers(3), config, tmp_path, quiet=True)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "tensorboard").mkdir()
    other = dataclasses.replace(QUICK, learning_rate=5e-3, iterations=4)
    restarted = train(tiny_model(), SortNumbers(3), other, tmp_path, resume="restart", quiet=True)
    fresh = train(tiny_model(), SortNumbers(3), other, quiet=True)
    assert_same_weights(weights_of(restarted.model), weights_of(fresh.model))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "metrics.jsonl", "notes.txt", "run.json"]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [2, 4]
    assert json.loads((tmp_path / "run.json").read_text())["config"]["learning_rate"] == 5e-3
    assert train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "new", resume="restart", quiet=True).is_finished


def test_another_run_is_not_mixed_up(tmp_path):
    train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    for model, task, config, message in (
        (tiny_model(), SortNumbers(3), dataclasses.replace(QUICK, learning_rate=0.5),
         r"has learning_rate = 0.01 \(config\), got 0.5; resume with what it was started with, or start anew with"),
        (tiny_model(), SortNumbers(4), QUICK, r"has num_items = 3 \(task\), got 4"),
        (tiny_model(time_steps=7), SortNumbers(3), QUICK, r"has time_steps = 5 \(model\), got 7"),
        (tiny_model(process=Bridge(0.1)), SortNumbers(3), QUICK, r"has process.noise_scale = 0.5 \(model\), got 0.1"),
        (tiny_model(data=DataFacts(num_items=(3, 3))), SortNumbers(3), QUICK, r"has data.num_items = None \(model\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            train(model, task, config, tmp_path, resume=True)
    train(tiny_model(), SortNumbers(3), dataclasses.replace(QUICK, log_every=1), tmp_path, resume=True, quiet=True)


def test_runs_of_before_0_2_are_resumed_and_mean_what_they_meant(tmp_path):
    """Their noise was an option of training, and their config had steps, process, target and visited side by side."""
    process = Bridge(0.1, "gaussian")
    facts = DataFacts(num_items=(3, 3))
    config = dataclasses.replace(QUICK, optimizer="adamw")
    unhurried = dataclasses.replace(UNHURRIED, optimizer="adamw")
    whole = train(tiny_model(process=process), SortNumbers(3), config, tmp_path / "whole", quiet=True)
    train(tiny_model(process=process), sort_three_and_signal(3), unhurried, tmp_path / "old", quiet=True)
    tensors, state = model_folder.load_training(tmp_path / "old" / "last")
    del state["config"]["optimizer"], state["config"]["matrix_rate"], state["config"]["keep_memory"]
    state["config"]["draws"] = state["config"].pop("noisy_orders")
    state["config"] |= {"noise_scale": 0.1, "reference": "gaussian"}
    model = state["model"]
    del model["process"], model["data"], model["time_steps"]
    model |= {"steps": 5, "process": "soft-rank", "target": "clean", "visited": None}
    model_folder.save_training(tmp_path / "old" / "last", tensors, state)
    with pytest.raises(ValueError, match=r"has process.noise_scale = 0.1 \(model\), got 0.5"):
        train(tiny_model(), SortNumbers(3), config, tmp_path / "old", resume=True)
    with pytest.raises(ValueError, match=r"has process.prior = 'gaussian' \(model\), got 'uniform'"):
        train(tiny_model(process=Bridge(0.1)), SortNumbers(3), config, tmp_path / "old", resume=True)
    with pytest.raises(ValueError, match=r"has optimizer = 'adamw' \(config\), got 'muon'"):
        train(tiny_model(process=process, data=facts), SortNumbers(3), QUICK, tmp_path / "old", resume=True)
    resumed = train(
        tiny_model(process=process, data=facts), SortNumbers(3), config, tmp_path / "old", resume=True, quiet=True
    )
    assert resumed.iteration == 8
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))


def test_says_what_is_wrong_before_it_trains(tmp_path):
    model, task = tiny_model(), SortNumbers(3)
    with pytest.raises(ValueError, match="resume needs the output folder of the run"):
        train(model, task, QUICK, resume=True)
    with pytest.raises(FileNotFoundError, match=r"there is no run to resume in .*run: .*training.safetensors is"):
        train(model, task, QUICK, tmp_path / "run", resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write .* MB of checkpoints into .*file.run: Not a directory"):
        train(model, task, QUICK, tmp_path / "file" / "run")


def test_a_full_disk_is_told_before_training(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write .* MB of checkpoints into .*run: File too large"):
            train(tiny_model(), NoTask(3), QUICK, tmp_path / "run", quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_loss_that_is_not_a_number_ends_the_run_with_the_checkpoint_from_before(tmp_path):
    model = tiny_model()
    model.start.data.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"the loss is nan at iteration 2.*Try a lower learning_rate"):
        train(model, SortNumbers(3), QUICK, tmp_path, quiet=True)
    assert model_folder.load_training(tmp_path / "last")[1]["iteration"] == 0


def test_the_objective_that_was_called_reinforce_has_another_name_now(tmp_path):
    config = dataclasses.replace(QUICK, optimizer="adamw", objective="lookalike", noisy_orders=2)
    model = {"head": "gpl", "decoder_layers": 0}
    whole = train(tiny_model(**model), SortNumbers(3), config, tmp_path / "whole", quiet=True)
    hurried = dataclasses.replace(config, prefetch=False)
    train(tiny_model(**model), sort_three_and_signal(3), hurried, tmp_path / "old", quiet=True)
    tensors, state = model_folder.load_training(tmp_path / "old" / "last")
    state["config"] |= {"objective": "reinforce", "draws": state["config"].pop("noisy_orders")}
    model_folder.save_training(tmp_path / "old" / "last", tensors, state)
    resumed = train(tiny_model(**model), SortNumbers(3), config, tmp_path / "old", resume=True, quiet=True)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))


def test_a_run_whose_state_is_missing_is_not_taken_for_none(tmp_path):
    """`resume="auto"` began anew beside what was left of the run, and its lines stayed before the new ones."""
    config = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6)
    train(tiny_model(), SortNumbers(3), config, tmp_path, quiet=True)
    (tmp_path / "last" / "training.safetensors").unlink()
    for listed in (True, False):
        if not listed:
            (tmp_path / "last" / "manifest.json").unlink()
        assert has_run(tmp_path)
        for resume in (True, "auto"):
            with pytest.raises(FileNotFoundError, match=r"no run to resume in .*training\.safetensors is missing"):
                train(tiny_model(), NoTask(3), config, tmp_path, resume=resume)
        with pytest.raises(ValueError, match="already holds a run"):
            train(tiny_model(), NoTask(3), config, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text().splitlines()
    train(tiny_model(), SortNumbers(3), config, tmp_path, resume="restart", quiet=True)
    after = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in after] == [json.loads(line)["iteration"] for line in before]


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_lost_best_model_is_told(tmp_path, capfd, how):
    config = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6)
    stopped = train(
        tiny_model(), sort_three_and_signal(6), dataclasses.replace(config, prefetch=False), tmp_path, quiet=True
    )
    path = tmp_path / "best" / "model.safetensors"
    assert not stopped.is_finished and path.exists()
    path.write_bytes(b"") if how == "damaged" else path.unlink()
    capfd.readouterr()
    train(tiny_model(), SortNumbers(3), config, tmp_path, resume=True, quiet=True)
    said = capfd.readouterr().err
    assert said.startswith("the best model so far is lost: ") and str(path) in said
    model_folder.load_model(tmp_path / "best")  # the best of what followed
    path.unlink()
    train(tiny_model(), NoTask(3), config, tmp_path, resume=True, quiet=True)
    assert "the best model so far is lost" in capfd.readouterr().err


def test_states_of_other_forms_are_refused_by_name(tmp_path):
    train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    (tmp_path / "last" / "manifest.json").unlink()
    tensors, state = model_folder.load_training(tmp_path / "last")
    for wrong, message in (
        ({}, "with its iteration, got none"),
        ([], "with its iteration, got none"),
        ({**state, "iteration": "3"}, "with its iteration, got '3'"),
        ({**state, "iteration": -1}, "with its iteration, got -1"),
        ({**state, "best": "x"}, "with its best, got 'x'"),
        ({**state, "task": []}, r"with its task, got \[\]"),
    ):
        model_folder.save_training(tmp_path / "last", tensors, wrong)
        with pytest.raises(ValueError, match=rf"training\.safetensors must be the state of a run, {message}"):
            train(tiny_model(), NoTask(3), QUICK, tmp_path, resume=True)
    model_folder.save_training(tmp_path / "last", {}, state)
    with pytest.raises(ValueError, match=r"training\.safetensors must have the tensors of this run: "):
        train(tiny_model(), NoTask(3), QUICK, tmp_path, resume=True)
    model_folder.save_training(tmp_path / "last", tensors, state)
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\x00 what a broken disk left")
    assert train(tiny_model(), NoTask(3), QUICK, tmp_path, resume=True, quiet=True).is_finished
