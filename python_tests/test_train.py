"""Training: the loss by hand, the loop's arithmetic, and that nothing is lost when a run is killed."""

import dataclasses
import json
import math
import os
import resource
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from synthetic_tasks import SortNumbers, generator_of

from softrank_ext import SoftRankConfig, SoftRankModel, model_folder
from softrank_ext.training import TrainConfig, rate_at, train

TESTS = Path(__file__).parent
QUICK = TrainConfig(iterations=8, batch_size=4, learning_rate=1e-2, warmup=2, log_every=2, checkpoint_every=4, ema=0.9)


def tiny_model(**changes: object) -> SoftRankModel:
    torch.manual_seed(3)
    embedder = {"kind": "linear", "features": 1}
    config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=embedder)
    return SoftRankModel(dataclasses.replace(config, **changes))


def weights_of(model: SoftRankModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert got.keys() == wanted.keys()
    assert [name for name in got if not torch.equal(got[name], wanted[name])] == []


class TestConfig:
    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("iterations", 0, "iterations must be an integer of at least 1, got 0"),
            ("batch_size", 2.5, "batch_size must be an integer of at least 1, got 2.5"),
            ("evaluate_every", -1, "evaluate_every must be an integer of at least 0, got -1"),
            ("learning_rate", math.inf, "learning_rate must be at least 0 and finite, got inf"),
            ("clip", -1.0, "clip must be at least 0 and finite, got -1.0"),
            ("ema", 1.0, "ema must be at least 0 and below 1, got 1.0"),
            ("final_rate", 2.0, "final_rate must be from 0 to 1, got 2.0"),
            ("schedule", "linear", "schedule must be one of 'cosine', 'transformer', 'constant', got 'linear'"),
            ("best_is", "good", "best_is must be one of 'lowest', 'highest', got 'good'"),
        ],
    )
    def test_says_what_is_wrong(self, field, value, message):
        with pytest.raises(ValueError, match=message):
            TrainConfig(**{field: value})

    def test_rates(self):
        config = TrainConfig(iterations=110, warmup=10, learning_rate=2.0, final_rate=0.1)
        cosine = [rate_at(iteration, config) for iteration in (1, 5, 10, 60, 110)]
        assert cosine == pytest.approx([0.2, 1.0, 2.0, 1.1, 0.2])
        constant = dataclasses.replace(config, schedule="constant")
        assert [rate_at(iteration, constant) for iteration in (5, 10, 110)] == pytest.approx([1.0, 2.0, 2.0])
        # SymmetricDiffusers: d_model^-0.5 min(step^-0.5, step warmup^-1.5), its peak 3.891e-4 at 128 and 51,600.
        peak = (128 * 51_600) ** -0.5
        transformer = TrainConfig(iterations=10**6, warmup=51_600, learning_rate=peak, schedule="transformer")
        assert peak == pytest.approx(3.891e-4, rel=1e-3)
        for step in (1, 1000, 51_600, 100_000, 10**6):
            assert rate_at(step, transformer) == pytest.approx(128**-0.5 * min(step**-0.5, step * 51_600**-1.5))


class TestLoop:
    def test_writes_a_run_s_folder(self, tmp_path, capfd):
        config = dataclasses.replace(
            QUICK, evaluate_every=4, evaluate_count=6, best_metric="accuracy", best_is="highest"
        )
        result = train(tiny_model(), SortNumbers(3), config, tmp_path / "run", command="softrank train numbers")
        assert result.is_finished and result.iteration == 8 and not result.model.training
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
            "best",
            "last",
            "metrics.jsonl",
            "run.json",
        ]
        lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in lines] == [2, 4, 4, 6, 8, 8]
        assert set(lines[0]) == {"iteration", "loss", "loss_per_place", "learning_rate", "gradient_norm",
                                 "items_per_second", "seconds"}  # fmt: skip
        assert set(lines[2]) == {"iteration", "test_loss", "test_accuracy", "test_wrong"}
        assert set(result.metrics) == {"loss", "accuracy", "wrong"}
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        assert record["command"] == "softrank train numbers"
        assert record["config"]["batch_size"] == 4 and record["task"]["num_items"] == 3
        assert record["versions"]["torch_running"] == torch.__version__
        saved = SoftRankModel.from_pretrained(tmp_path / "run" / "last")
        assert_same_weights(weights_of(saved), weights_of(result.model))
        assert SoftRankModel.from_pretrained(tmp_path / "run" / "best").config == saved.config
        printed = capfd.readouterr().err
        assert "iteration 8/8  loss " in printed and " items/s  0:00:00 left" in printed
        assert "held out: loss " in printed

    def test_saved_weights_are_the_average(self):
        """One update: the average starts at the first weights and moves by 9/11 of the way."""
        model = tiny_model()
        before = weights_of(model)
        result = train(model, SortNumbers(3), dataclasses.replace(QUICK, iterations=1, ema=0.9), quiet=True)
        after = weights_of(model)
        for name, averaged in weights_of(result.model).items():
            torch.testing.assert_close(averaged, before[name] + 9 / 11 * (after[name] - before[name]))
        plain = tiny_model()
        assert train(plain, SortNumbers(3), dataclasses.replace(QUICK, ema=0.0), quiet=True).model is plain

    def test_prefetching_changes_nothing_and_leaves_the_global_generator_alone(self):
        torch.manual_seed(0)
        expected = torch.rand(3)
        weights = []
        for prefetch in (True, False):
            model = tiny_model()
            torch.manual_seed(0)
            train(model, SortNumbers(3), dataclasses.replace(QUICK, prefetch=prefetch), quiet=True)
            assert torch.equal(torch.rand(3), expected)
            weights.append(weights_of(model))
        assert_same_weights(*weights)

    def test_clipping_limits_the_update(self):
        config = dataclasses.replace(QUICK, iterations=1, clip=1e-12, weight_decay=0.0, warmup=0, ema=0.0)
        model = tiny_model()
        before = weights_of(model)
        train(model, SortNumbers(3), config, quiet=True)
        moved = max(float((after - before[name]).abs().max()) for name, after in weights_of(model).items())
        assert moved < 1e-4  # AdamW would move by the rate, 1e-2, were the gradient not far below its eps of 1e-9

    def test_tensorboard(self, tmp_path, monkeypatch):
        scalars = []

        class SummaryWriter:
            def __init__(self, folder):
                assert folder == str(tmp_path / "run" / "tensorboard")

            def add_scalar(self, name, number, iteration):
                scalars.append((name, iteration))

            def close(self):
                scalars.append("closed")

        fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
        config = dataclasses.replace(QUICK, tensorboard=True)
        train(tiny_model(), SortNumbers(3), config, tmp_path / "run", quiet=True)
        assert ("loss", 8) in scalars and scalars[-1] == "closed"

    def test_says_what_is_wrong_before_it_trains(self, tmp_path, monkeypatch):
        model, task = tiny_model(), SortNumbers(3)
        with pytest.raises(ValueError, match="resume needs the output folder of the run"):
            train(model, task, QUICK, resume=True)
        with pytest.raises(FileNotFoundError, match=r"there is no run to resume in .*run: .*training.safetensors is"):
            train(model, task, QUICK, tmp_path / "run", resume=True)
        with pytest.raises(ValueError, match="tensorboard needs an output folder"):
            train(model, task, dataclasses.replace(QUICK, tensorboard=True))
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(
            ImportError, match=r'tensorboard is not installed: pip install "softrank_ext\[tensorboard\]"'
        ):
            train(model, task, dataclasses.replace(QUICK, tensorboard=True), tmp_path / "run")
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match=r"cannot write .* MB of checkpoints into .*file.run: Not a directory"):
            train(model, task, QUICK, tmp_path / "file" / "run")

    def test_a_full_disk_is_told_before_training(self, tmp_path):
        class NoTask(SortNumbers):
            def training_batch(self, seed, step, size):
                raise AssertionError("training began")

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            with pytest.raises(OSError, match=r"cannot write .* MB of checkpoints into .*run: File too large"):
                train(tiny_model(), NoTask(3), QUICK, tmp_path / "run", quiet=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list((tmp_path / "run").iterdir()) == []

    def test_says_what_is_wrong_with_a_task(self):
        class Short(SortNumbers):
            def training_batch(self, seed, step, size):
                return super().training_batch(seed, step, size - 1)

        class NotFirst(SortNumbers):
            def training_batch(self, seed, step, size):
                return dataclasses.replace(super().training_batch(seed, step, size), first=torch.zeros(size).long())

        with pytest.raises(ValueError, match="the task must make batches of 4 instances, got 3"):
            train(tiny_model(), Short(3), QUICK, quiet=True)
        with pytest.raises(ValueError, match=r"batch.first must be the items at place 0 of batch.order"):
            train(tiny_model(), NotFirst(3), QUICK, quiet=True)
        with pytest.raises(ValueError, match="best_metric must be one of loss, accuracy, wrong, got 'gap'"):
            config = dataclasses.replace(QUICK, iterations=1, evaluate_every=1, evaluate_count=2, best_metric="gap")
            train(tiny_model(), SortNumbers(3), config, quiet=True)

    def test_a_loss_that_is_not_a_number_ends_the_run_with_the_checkpoint_from_before(self, tmp_path):
        model = tiny_model()
        model.start.data.fill_(math.nan)
        with pytest.raises(FloatingPointError, match=r"the loss is nan at iteration 2.*Try a lower learning_rate"):
            train(model, SortNumbers(3), QUICK, tmp_path, quiet=True)
        assert model_folder.load_training(tmp_path / "last")[1]["iteration"] == 0


class SignalAt(SortNumbers):
    """Sends this process a signal while batch number `at` is made."""

    at: int = 0
    number: int = signal.SIGINT
    times: int = 1

    def training_batch(self, seed, step, size):
        if step == self.at:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
        return super().training_batch(seed, step, size)


KILLED_WHILE_SAVING = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import safetensors.torch
from softrank_ext import model_folder
from synthetic_tasks import SortNumbers
from test_train import QUICK, tiny_model
from softrank_ext.training import train

def save_file(tensors, path, metadata):
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    if '"iteration": 8' in metadata.get("state", ""):
        os.truncate(path, 1000)
        os.kill(os.getpid(), signal.SIGKILL)

model_folder.save_file = save_file
train(tiny_model(), SortNumbers(3), QUICK, sys.argv[2], quiet=True)
"""


class TestResume:
    @pytest.fixture(autouse=True)
    def one_thread(self):
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    def test_after_sigkill_amid_a_checkpoint_it_is_bit_exact(self, tmp_path):
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

    @pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
    def test_after_a_signal(self, tmp_path, number, capfd):
        config = dataclasses.replace(QUICK, prefetch=False)
        task = SignalAt(3)
        object.__setattr__(task, "at", 3)
        object.__setattr__(task, "number", number)
        before = signal.getsignal(number)
        stopped = train(tiny_model(), task, config, tmp_path / "run", command="softrank train numbers")
        assert signal.getsignal(number) is before
        assert not stopped.is_finished and stopped.iteration == 3
        told = capfd.readouterr().err.splitlines()[-1]
        assert told == (f"stopped after iteration 3 of 8, saved in {tmp_path / 'run'}; "
                        "go on with: softrank train numbers --resume")  # fmt: skip
        model = tiny_model()
        resumed = train(model, SortNumbers(3), config, tmp_path / "run", resume=True, quiet=True)
        whole = tiny_model()
        train(whole, SortNumbers(3), config, quiet=True)
        assert resumed.is_finished
        assert_same_weights(weights_of(model), weights_of(whole))

    def test_a_second_ctrl_c_ends_at_once(self, tmp_path):
        task = SignalAt(3)
        object.__setattr__(task, "at", 2)
        object.__setattr__(task, "times", 2)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_model(), task, dataclasses.replace(QUICK, prefetch=False), tmp_path, quiet=True)

    def test_a_finished_run_stays_as_it_is(self, tmp_path):
        done = train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
        again = train(tiny_model(), SortNumbers(3), QUICK, tmp_path, resume=True, quiet=True)
        assert again.is_finished
        assert_same_weights(weights_of(again.model), weights_of(done.model))

    def test_another_run_is_not_overwritten_or_mixed_up(self, tmp_path):
        train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
        with pytest.raises(FileExistsError, match="already holds a run: --resume"):
            train(tiny_model(), SortNumbers(3), QUICK, tmp_path)
        with pytest.raises(ValueError, match=r"has learning_rate = 0.01 \(config\), got 0.5; resume with what it was"):
            train(tiny_model(), SortNumbers(3), dataclasses.replace(QUICK, learning_rate=0.5), tmp_path, resume=True)
        with pytest.raises(ValueError, match=r"has num_items = 3 \(task\), got 4"):
            train(tiny_model(), SortNumbers(4), QUICK, tmp_path, resume=True)
        with pytest.raises(ValueError, match=r"has steps = 5 \(model\), got 7"):
            train(tiny_model(steps=7), SortNumbers(3), QUICK, tmp_path, resume=True)
        train(tiny_model(), SortNumbers(3), dataclasses.replace(QUICK, log_every=1), tmp_path, resume=True, quiet=True)


TWO_RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_train import train_in_float64
train_in_float64(sys.argv[2], float(sys.argv[3]))
"""


def train_in_float64(folder: str, seed: float) -> None:
    """A run without dropout; float64, so that rounding does not decide the sign of gradients that should be 0."""
    config = dataclasses.replace(QUICK, seed=int(seed), evaluate_every=8, evaluate_count=10)
    train(tiny_model(dropout=0.0).double(), SortNumbers(4), config, folder, quiet=True, device="cpu")


def test_two_processes_train_as_one_does(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "script.py"
    script.write_text(TWO_RANKS)
    command = [*torchrun, str(script), str(TESTS), str(tmp_path / "two"), "1"]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    train_in_float64(str(tmp_path / "one"), 1)
    two, one = (load_file(tmp_path / run / "last" / "training.safetensors") for run in ("two", "one"))
    assert two.keys() == one.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)
    first = weights_of(tiny_model(dropout=0.0).double())
    assert max(float((one[f"model.{name}"] - tensor).abs().max()) for name, tensor in first.items()) > 1e-2
    metrics = [json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[-1]) for run in ("two", "one")]
    assert metrics[0].keys() == metrics[1].keys() > {"test_loss", "test_accuracy"}
    assert metrics[0]["test_loss"] == pytest.approx(metrics[1]["test_loss"], rel=1e-9)
    assert metrics[0]["test_accuracy"] == metrics[1]["test_accuracy"]


def test_the_batch_must_divide_among_the_processes(tmp_path, monkeypatch):
    import contextlib

    import softrank_ext.training as module

    monkeypatch.setattr(module, "processes", lambda device: contextlib.nullcontext((0, 3, torch.device("cpu"))))
    with pytest.raises(ValueError, match="batch_size must be a multiple of the 3 processes, got 4"):
        train(tiny_model(), SortNumbers(3), QUICK)


def test_synthetic_batches_are_functions_of_seed_and_step():
    task = SortNumbers(4)
    assert torch.equal(task.training_batch(1, 2, 3).items, task.training_batch(1, 2, 3).items)
    assert not torch.equal(task.training_batch(1, 2, 3).items, task.training_batch(1, 3, 3).items)
    assert generator_of(1, 2).initial_seed() != generator_of(2, 1).initial_seed()
