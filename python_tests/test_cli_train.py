"""`softrank train`: options become a run, and what to do with an existing run is said."""

import json
import os
import signal

import torch
from synthetic_runs import SMALL_DECODER as SMALL

from softrank_ext import Bridge, DataFacts, SoftRankModel
from softrank_ext.cli.main import main
from softrank_ext.tasks.preferences import Preferences
from softrank_ext.tasks.tsp import write_instances

QUICK = ["train", "preferences", "--task.file", "ballots.soc", "--iterations", "3", "--batch-size", "4",
         "--no-prefetch", "--output", "run", *SMALL]  # fmt: skip


def test_options_and_a_file_become_a_run(ballots):
    (ballots / "run.yaml").write_text(
        "iterations: 3\nbatch_size: 4\nlearning_rate: 1e-3\nprefetch: false\ntask:\n  file: ballots.soc\n"
        "model:\n  dropout: 0.0\n  norm_first: false\n  process:\n    noise_scale: 0.2\n    prior: gaussian\n"
    )
    words = ["train", "preferences", "--config", "run.yaml", *SMALL, "--output", "run", "--batch-size", "6"]
    assert main(words) == 0
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert record["command"].startswith("softrank train preferences --config run.yaml --model.d-model 16")
    assert record["task"] == {"name": "preferences", "file": "ballots.soc", "test_share": 0.2}
    assert {name: record["config"][name] for name in ("iterations", "batch_size", "learning_rate", "prefetch")} == {
        "iterations": 3, "batch_size": 6, "learning_rate": 1e-3, "prefetch": False,
    }  # fmt: skip
    assert record["model"]["dropout"] == 0.0 and not record["model"]["norm_first"]
    config = SoftRankModel.from_pretrained("run/last").config
    assert config.process == Bridge(0.2, "gaussian") and config.data == DataFacts(num_items=(4, 4))


def test_an_existing_run_asks_for_a_choice(ballots, capfd):
    assert main(QUICK) == 0
    capfd.readouterr()
    assert main(QUICK) == 2
    told = capfd.readouterr().err
    assert "run already holds a run: resume=True (--resume)" in told and "(--restart)" in told
    assert main([*QUICK, "--batch-size", "6", "--resume"]) == 2
    assert "has batch_size = 4 (config), got 6" in capfd.readouterr().err
    for way in ("--resume", "--auto-resume"):
        assert main([*QUICK, way]) == 0
        assert capfd.readouterr().err == "the run in run is finished: nothing to do\n"
    assert main([*QUICK, "--batch-size", "6", "--restart"]) == 0
    assert json.loads((ballots / "run" / "run.json").read_text())["config"]["batch_size"] == 6
    assert main([*QUICK, "--resume", "--restart"]) == 2
    assert "--resume, --auto-resume and --restart exclude each other, got more than one" in capfd.readouterr().err
    assert main([*QUICK, "--output", "other", "--resume"]) == 2
    assert "there is no run to resume in other" in capfd.readouterr().err
    assert main([*QUICK, "--output", "other", "--auto-resume"]) == 0


def test_a_run_may_start_from_another_s_weights(ballots, capfd):
    assert main(QUICK) == 0
    started = [*QUICK, "--output", "again", "--start-from", "run", "--learning-rate", "0"]
    assert main([*started, "--model.process.noise-scale", "0.1"]) == 0
    again, before = (SoftRankModel.from_pretrained(ballots / run / "last") for run in ("again", "run"))
    assert torch.equal(again.start, before.start) and again.config.process.noise_scale == 0.1
    assert main([*started, "--model.partial", "--partial", "0.5", "--prior-share", "0.5", "--model.time-steps", "3",
                 "--output", "parts"]) == 0  # fmt: skip
    parts = SoftRankModel.from_pretrained(ballots / "parts" / "last")
    assert torch.equal(parts.start, before.start) and parts.config.partial and parts.config.time_steps == 3
    assert main([*QUICK, "--output", "fourth", "--start-from", "parts"]) == 2
    assert "the model in parts is another" in capfd.readouterr().err
    assert main([*started, "--model.d-model", "32", "--output", "third"]) == 2
    assert "the model in run is another" in capfd.readouterr().err
    assert main([*QUICK, "--output", "again", "--start-from", "nowhere", "--learning-rate", "0", "--auto-resume",
                 "--model.process.noise-scale", "0.1"]) == 0  # fmt: skip


def test_train_on_tours_of_two_sizes(ballots, capfd):
    for n in (4, 6):
        generator = torch.Generator().manual_seed(n)
        points, order = torch.rand(5, n, 2, generator=generator), torch.rand(5, n, generator=generator).argsort(1)
        write_instances(f"tsp{n}.txt", points, order)
    options = ["--task.training-file", "tsp4.txt", "tsp6.txt", "--task.test-file", "tsp6.txt", "--task.rotations"]
    words = ["train", "tsp", *options, "--iterations", "4", "--batch-size", "2", "--output", "run", *SMALL]
    assert main(words) == 0
    assert json.loads((ballots / "run" / "run.json").read_text())["task"]["training_file"] == ["tsp4.txt", "tsp6.txt"]
    assert main([*words, "--resume"]) == 0
    config = SoftRankModel.from_pretrained("run/last").config
    assert config.data == DataFacts("tour", "file", True, (4, 6), (0.0, 1.0), "unit square")
    assert main(["evaluate", "tsp", "run", "--count", "5"]) == 0
    assert "'training_file': ('tsp4.txt', 'tsp6.txt')" in capfd.readouterr().out


def test_a_linear_head_gets_its_number_of_items(ballots):
    options = ["--task.file", "ballots.soc", "--model.head", "linear", "--iterations", "1", "--output", "run", *SMALL]
    assert main(["train", "preferences", *options]) == 0
    assert SoftRankModel.from_pretrained(ballots / "run" / "last").config.max_items == 4


def test_an_interrupted_run_says_how_to_go_on(ballots, capfd, monkeypatch):
    original = Preferences.training_batch

    def interrupted(self, seed, step, size):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, seed, step, size)

    monkeypatch.setattr(Preferences, "training_batch", interrupted)
    words = ["train", "preferences", "--task.file", "ballots.soc", "--output", "run", "--no-prefetch", *SMALL]
    assert main(words) == 130
    assert f"go on with: softrank {' '.join(words)} --resume" in capfd.readouterr().err


def test_options_of_an_objective_need_its_name(ballots, capfd):
    assert main([*QUICK, "--self-label.draws", "4"]) == 2
    assert "--self-label.* is for --objective self-label, got --objective likelihood" in capfd.readouterr().err
    assert main([*QUICK, "--objective", "self-label", "--self-label.draws", "4"]) == 2
    assert "SelfLabel needs a task with a cost, and the task preferences has none" in capfd.readouterr().err
    assert main([*QUICK, "--objective", "preference", "--preference.law", "plackett-luce"]) == 2
    assert "Preference needs a task with a cost" in capfd.readouterr().err


def test_train_on_jobs_without_right_orders(ballots, capfd):
    words = ["train", "flowshop", "--task.num-jobs", "5", "--task.num-machines", "3", "--iterations", "4",
             "--batch-size", "4", "--output", "run", "--self-label.draws", "3", *SMALL]  # fmt: skip
    assert main([*words, "--evaluate-every", "4", "--evaluate-count", "4"]) == 0
    record = json.loads((ballots / "run" / "run.json").read_text())
    wanted = {"kind": "self-label", "draws": 3, "temperature": 1.0, "polish": 0, "rebuilt": 0, "drawn_by": "average"}
    assert record["config"]["objective"] == wanted
    assert "held out: cost" in capfd.readouterr().err
    other = [*words, "--objective", "reinforce", "--reinforce.entropy", "0.1", "--restart"]
    assert main(other) == 2  # the options of another objective stand there
    assert main([*other, "--self-label.draws", "32"]) == 0  # as if they were not given
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert record["config"]["objective"] == {"kind": "reinforce", "draws": 16, "entropy": 0.1}
