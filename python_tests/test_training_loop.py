"""The training loop: its arithmetic, what it leaves, how it ends."""

import dataclasses
import json
import math
import signal

import pytest
import torch
from synthetic_runs import QUICK, assert_same_weights, sort_three_and_signal, tiny_model, weights_of
from synthetic_tasks import SortNumbers, generator_of

from softrank_ext import Bridge, SoftRankModel, evaluate, sample
from softrank_ext.tasks.own import Own
from softrank_ext.training import TrainResult, train
from softrank_ext.training.loop import held_out_count


def test_writes_a_run_s_folder(tmp_path, capfd):
    config = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6, best_metric="accuracy", best_is="highest")
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


def test_an_evaluation_takes_all_instances_where_there_are_fewer():
    """The default of 256 is more than most people's first table has."""
    items = torch.rand(6, 4, 1, generator=torch.Generator().manual_seed(0))
    task = Own((items, items[..., 0].argsort(1)))
    result = train(tiny_model(), task, dataclasses.replace(QUICK, evaluate_every=8), quiet=True)
    assert result.metrics["accuracy"] == evaluate(result.model, task, count=6)["metrics"]["accuracy"]["mean"]
    assert held_out_count(task, QUICK) == 6 and held_out_count(SortNumbers(3), QUICK) == QUICK.evaluate_count
    assert held_out_count(task, dataclasses.replace(QUICK, evaluate_count=5)) == 5


def test_saved_weights_are_the_average():
    """One update: the average starts at the first weights and moves by 9/11 of the way."""
    model = tiny_model()
    before = weights_of(model)
    result = train(model, SortNumbers(3), dataclasses.replace(QUICK, iterations=1, ema=0.9), quiet=True)
    after = weights_of(model)
    for name, averaged in weights_of(result.model).items():
        torch.testing.assert_close(averaged, before[name] + 9 / 11 * (after[name] - before[name]))
    plain = tiny_model()
    assert train(plain, SortNumbers(3), dataclasses.replace(QUICK, ema=0.0), quiet=True).model is plain


def test_prefetching_changes_nothing_and_leaves_the_global_generator_alone():
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


def test_clipping_limits_the_update():
    config = dataclasses.replace(QUICK, iterations=1, clip=1e-12, weight_decay=0.0, warmup=0, ema=0.0)
    model = tiny_model()
    before = weights_of(model)
    train(model, SortNumbers(3), config, quiet=True)
    moved = max(float((after - before[name]).abs().max()) for name, after in weights_of(model).items())
    assert moved < 1e-4  # AdamW would move by the rate, 1e-2, were the gradient not far below its eps of 1e-9


def test_says_what_is_wrong_with_a_task():
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


def test_the_process_is_the_model_s():
    """Training and the evaluations in it see the noise of the model's own process."""
    config = dataclasses.replace(QUICK, iterations=2, evaluate_every=2, evaluate_count=8)
    results = [
        train(tiny_model(process=process), SortNumbers(5), config, quiet=True)
        for process in (Bridge(), Bridge(0.01), Bridge(prior="gaussian"))
    ]
    assert len({result.loss for result in results}) == 3
    assert len({result.metrics["loss"] for result in results}) == 3


def test_a_result_is_shown_in_a_line(make_model):
    result = TrainResult(make_model("pointer"), 8, True, 0.123456, {"loss": 0.5, "accuracy": 0.987654})
    assert repr(result) == "TrainResult(finished at iteration 8, loss 0.1235, metrics: loss 0.5, accuracy 0.9877)"
    stopped = TrainResult(make_model("pointer"), 3, False, float("nan"), {})
    assert repr(stopped) == "TrainResult(stopped at iteration 3, loss nan, metrics: none)"


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_after_a_signal(tmp_path, number, capfd):
    config = dataclasses.replace(QUICK, prefetch=False)
    task = sort_three_and_signal(3, number)
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


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    task = sort_three_and_signal(2, times=2)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_model(), task, dataclasses.replace(QUICK, prefetch=False), tmp_path, quiet=True)


def test_the_advice_names_one_way_to_go_on(tmp_path, capfd):
    task = sort_three_and_signal(1)
    command = "softrank train numbers --restart --output 'a b'"
    train(tiny_model(), task, dataclasses.replace(QUICK, prefetch=False), tmp_path / "run", command=command)
    told = capfd.readouterr().err.splitlines()[-1]
    assert told.endswith("go on with: softrank train numbers --output 'a b' --resume")


def test_synthetic_batches_are_functions_of_seed_and_step():
    task = SortNumbers(4)
    assert torch.equal(task.training_batch(1, 2, 3).items, task.training_batch(1, 2, 3).items)
    assert not torch.equal(task.training_batch(1, 2, 3).items, task.training_batch(1, 3, 3).items)
    assert generator_of(1, 2).initial_seed() != generator_of(2, 1).initial_seed()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch's own switch
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_half_precision_and_autocast_train(optimizer):
    """A bfloat16 model, and a float32 one under autocast: updates move weights, finite and of the same dtype."""
    config = dataclasses.replace(QUICK, iterations=3, optimizer=optimizer)
    with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 products end the process on some processors
        half = train(tiny_model().bfloat16(), SortNumbers(3), config, quiet=True)
        with torch.autocast("cpu", torch.bfloat16):
            full = train(tiny_model(), SortNumbers(3), config, quiet=True)
    for result, dtype in ((half, torch.bfloat16), (full, torch.float32)):
        before = weights_of(tiny_model().to(dtype))
        after = weights_of(result.model)
        assert all(tensor.dtype == dtype and tensor.isfinite().all() for tensor in after.values())
        assert any(not torch.equal(after[name], before[name]) for name in after)
        assert result.is_finished and math.isfinite(result.loss)
        samples = sample(result.model, torch.rand(2, 3, 1), seed=0)
        assert samples.soft_ranks.dtype == torch.float32
