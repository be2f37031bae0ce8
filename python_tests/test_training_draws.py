"""Learning from a cost: draws and their log-probabilities, labels, runs that stop and go on, costs that misbehave."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from synthetic_runs import QUICK, TESTS, assert_same_weights, tiny_model, weights_of
from synthetic_tasks import SortNumbers

from softrank_ext import Constraints, DataFacts, Draw, Riffle, model_folder, sample
from softrank_ext.baselines.diffsort import DiffSortConfig, DiffSortModel
from softrank_ext.baselines.factorised import FactorisedConfig, FactorisedModel
from softrank_ext.batch import Batch
from softrank_ext.tasks.own import Own
from softrank_ext.training import Preference, Reinforce, SelfLabel, draws, train
from softrank_ext.training.draws import Drawer, KeptLabels, draw_costs, log_probs_of

pytestmark = pytest.mark.usefixtures("one_thread")
OBJECTIVES = (SelfLabel(4), Reinforce(4), Preference(4), Preference(4, "plackett-luce"))
NUMBERS = torch.rand(6, 5, 1, generator=torch.Generator().manual_seed(1))


def late_values(items: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Lowest for ascending numbers."""
    values = items[..., 0].gather(1, order)
    return (values * torch.arange(values.shape[1], 0, -1)).sum(1)


def drawn_numbers(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(count, 5, 1, generator=generator)


def config_of(objective: object, **changes: object) -> object:
    return dataclasses.replace(QUICK, objective=objective, **changes)


def padded_batch() -> Batch:
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    return Batch.without_labels(NUMBERS[:2], mask)


class WithRules:
    """A task whose orders keep rules."""

    name, constraints = "ruled", Constraints(before=[(3, 1)], pins={2: 4})

    @staticmethod
    def cost(items, order):
        return late_values(items, order)

    def max_items(self):
        return 5


def log_prob_cases() -> list[tuple[object, Batch, object]]:
    """Models, batches and tasks."""
    plain, task = Batch.without_labels(NUMBERS[:2]), Own(drawn_numbers, cost=late_values)
    one_pass = FactorisedConfig(5, "lehmer", 16, 24, 2, 1, embedder={"kind": "linear", "features": 1})
    start = Batch.without_labels(NUMBERS[:2], first=torch.tensor([3, 1]))
    return [
        (tiny_model(), plain, task),
        (tiny_model(), padded_batch(), task),
        (tiny_model(head="linear", max_items=5), plain, task),
        (tiny_model(head="gpl", decoder_layers=0), padded_batch(), task),
        (tiny_model(head="pl", decoder_layers=0), plain, task),
        (tiny_model(data=DataFacts(fixed_start=True)), start, task),
        (tiny_model(), plain, WithRules()),
        (FactorisedModel(one_pass), padded_batch(), task),
    ]


@pytest.mark.parametrize("number", range(8))
def test_the_log_probability_is_that_of_the_draw(number):
    """The loss sees the noise, the rules and the padding that the draw was made with."""
    model, batch, task = log_prob_cases()[number]
    model = model.double().eval()
    drawer = Drawer(model, task, Reinforce(6), seed=3)
    drawn = drawer.of(dataclasses.replace(batch, items=batch.items.double()), torch.tensor([7, 8]), 1)
    constraints = getattr(task, "constraints", None)
    if batch.first is not None:
        constraints = [Constraints(pins={item: 0}) for item in batch.first.tolist()]
    steps = None if isinstance(model, FactorisedModel) else 1
    samples = sample(
        model, batch.items.double(), mask=batch.mask, constraints=constraints, num_samples=6, steps=steps, seed=3,
        first_sample=42, decode=Draw(),
    )  # fmt: skip
    assert torch.equal(drawn.order, samples.order)
    log_prob = log_probs_of(model, drawn, 3, torch.tensor([7, 8]))
    torch.testing.assert_close(log_prob.detach(), samples.log_prob, rtol=1e-9, atol=1e-9)
    assert log_prob.requires_grad and len(set(log_prob.detach().flatten().tolist())) > 6


def test_the_label_is_the_cheapest_draw_and_its_cost_is_that_of_the_real_items():
    task = Own(drawn_numbers, cost=late_values)
    batch = padded_batch()
    drawer = Drawer(tiny_model(), task, SelfLabel(8), seed=0)
    labelled = drawer.of(batch, torch.tensor([0, 1]), 1)
    drawn = Drawer(tiny_model(), task, Reinforce(8), seed=0).of(batch, torch.tensor([0, 1]), 1)
    assert labelled.known is None and torch.equal(labelled.items, batch.items)
    for row, size in ((0, 5), (1, 3)):
        values = NUMBERS[row, :, 0].tolist()
        costs = [
            sum(values[item] * (size - place) for place, item in enumerate(order[:size]))
            for order in drawn.order[row].tolist()
        ]
        assert drawn.cost[row].tolist() == pytest.approx(costs, rel=1e-6)
        assert labelled.order[row].tolist() == drawn.order[row, costs.index(min(costs))].tolist()


def test_draws_are_polished_before_they_are_judged():
    task = Own(drawn_numbers, cost=late_values)
    batch = padded_batch()
    polished = Drawer(tiny_model(), task, SelfLabel(2, polish=50), seed=0).of(batch, torch.tensor([0, 1]), 1)
    key = batch.items[..., 0].masked_fill(~batch.mask, 2.0)
    assert torch.equal(polished.order[:, :3], key.argsort(1)[:, :3])  # swaps and insertions sort numbers


def rebuilt_cases():
    """Models, batches and tasks of draws that draw a part again."""
    plain, task = Batch.without_labels(NUMBERS[:2]), Own(drawn_numbers, cost=late_values)
    start = Batch.without_labels(NUMBERS[:2], first=torch.tensor([3, 1]))
    return {
        "tails": (tiny_model(), plain, task),
        "parts": (tiny_model(partial=True), plain, task),
        "masked": (tiny_model(partial=True), padded_batch(), task),
        "masked tails": (tiny_model(), padded_batch(), task),
        "fixed start": (tiny_model(data=DataFacts(fixed_start=True)), start, task),
        "rules": (tiny_model(partial=True), plain, WithRules()),
    }


@pytest.mark.parametrize("kind", rebuilt_cases())
def test_rebuilt_draws_change_a_part_of_the_cheapest(kind, monkeypatch):
    model, batch, task = rebuilt_cases()[kind]
    fresh = Drawer(model, task, Reinforce(4), seed=0).of(batch, torch.tensor([5, 6]), 1)
    drawer = Drawer(model, task, SelfLabel(36, rebuilt=32), seed=0)
    seen = []
    judged = drawer._judged
    monkeypatch.setattr(drawer, "_judged", lambda *given: seen.append(judged(*given)) or seen[-1])
    labelled = drawer.of(batch, torch.tensor([5, 6]), 1)
    first, again = seen
    assert torch.equal(first.order, fresh.order) and again.order.shape == (2, 32, 5)
    best = fresh.order[torch.arange(2), fresh.cost.argmin(1)]
    real = torch.ones(2, 5, dtype=torch.bool) if batch.mask is None else batch.mask.gather(1, best)
    same = (again.order == best[:, None]) & real[:, None]
    assert bool(again.order.sort(2).values.eq(torch.arange(5)).all())
    assert 0.2 < float(same.sum() / real.sum() / 32) < 0.95  # some of every order is kept, some is drawn again
    assert len({tuple(order) for order in again.order[0].tolist()}) > 3
    if kind == "tails":
        agrees = same.long().cumprod(2)  # what agrees before the part begins; the last two places are always drawn
        assert bool((agrees.sum(2) < 5).any()) and bool((again.order[:, :, :3] == best[:, None, :3]).all(2).any())
    if kind == "fixed start":
        assert bool((again.order[:, :, 0] == batch.first[:, None]).all())
    if kind == "rules":
        place = again.order.argsort(2)
        assert bool((place[..., 3] < place[..., 1]).all()) and bool((again.order[..., 4] == 2).all())
    costs = torch.cat((first.cost, again.cost), 1)
    label_cost = draw_costs(task.cost, batch, labelled.order[:, None])[:, 0]
    torch.testing.assert_close(label_cost, costs.amin(1))
    assert drawer.tally.draws == 72


def test_rebuilt_draws_begin_with_what_was_found_before():
    task = Own(NUMBERS, cost=late_values)
    drawer = Drawer(tiny_model(partial=True), task, SelfLabel(3, rebuilt=2), seed=0)
    right = NUMBERS[..., 0].argsort(1)
    drawer.kept.take(torch.arange(6), right, torch.zeros(6, dtype=torch.float64))
    starts = []
    drawer._rebuild = lambda drawn, first, own=drawer._rebuild: starts.append(own(drawn, first)) or starts[-1]
    batch = task.training_batch(0, 0, 6)
    drawer.of(batch, torch.arange(6), 1)
    wanted = right[batch.extras["instance"]]
    assert float((starts[0] == wanted[:, None]).float().mean()) > 0.3  # chance: 0.2


def test_draws_that_are_not_allowed_never_become_labels():
    def cost(items, order):
        return torch.where(order[:, 0] == 2, late_values(items, order), torch.inf)

    task = Own(drawn_numbers, cost=cost)
    batch = Batch.without_labels(NUMBERS[:4])
    drawer = Drawer(tiny_model(), task, SelfLabel(3), seed=0)
    labelled = drawer.of(batch, torch.arange(4), 1)
    is_allowed = labelled.order[:, 0] == 2
    assert 0 < int(is_allowed.sum()) < 4
    assert labelled.known.tolist() == [5 if allowed else 0 for allowed in is_allowed.tolist()]
    numbers = drawer.tally.numbers(1.0, 1, torch.device("cpu"))
    assert numbers["instances_skipped"] == 1 - float(is_allowed.float().mean())
    assert math.isfinite(numbers["draw_cost"]) and math.isfinite(numbers["best_draw_cost"])
    for objective in OBJECTIVES:
        never = Own(drawn_numbers, cost=lambda items, order: torch.full((len(order),), torch.inf))
        before = tiny_model()
        config = config_of(objective, iterations=2, weight_decay=0.0)
        result = train(tiny_model(), never, config, quiet=True, device="cpu")
        assert_same_weights(weights_of(result.model), weights_of(before))


def test_kept_labels_only_get_cheaper():
    kept = KeptLabels(3, 4)
    orders = torch.tensor([[1, 2, 0], [2, 0, 1], [0, 2, 1]])
    kept.take(torch.tensor([2, 0, 2]), orders, torch.tensor([5.0, 3.0, 4.0], dtype=torch.float64))
    assert kept.cost.tolist() == [3, math.inf, 4]
    assert kept.order.tolist() == [[2, 0, 1, 3], [0, 1, 2, 3], [0, 2, 1, 3]]
    kept.take(torch.tensor([2]), orders[:1], torch.tensor([4.0], dtype=torch.float64))
    assert kept.order[2].tolist() == [0, 2, 1, 3]


def test_labels_of_fixed_instances_are_the_cheapest_so_far():
    task = Own(NUMBERS, cost=late_values)
    drawer = Drawer(tiny_model(), task, SelfLabel(2), seed=0)
    lowest = torch.full((6,), torch.inf, dtype=torch.float64)
    improved = 0
    for step in range(1, 9):
        batch = task.training_batch(0, step, 3)
        labelled = drawer.of(batch, torch.arange(3) + 3 * step, step)
        costs = late_values(batch.items, labelled.order).double()
        rows = batch.extras["instance"]
        drawn = Drawer(tiny_model(), task, Reinforce(2), seed=0).of(batch, torch.arange(3) + 3 * step, step).cost
        improved += int((drawn.amin(1) < lowest[rows]).sum())
        lowest[rows] = torch.minimum(lowest[rows], drawn.amin(1))
        torch.testing.assert_close(costs, lowest[rows])
    assert drawer.tally.improved == improved and 6 < improved < 24


@pytest.mark.parametrize("objective", (*OBJECTIVES, SelfLabel(3, polish=2), SelfLabel(4, rebuilt=2)), ids=repr)
@pytest.mark.parametrize("training", (NUMBERS, drawn_numbers), ids=("fixed", "drawn"))
def test_a_run_that_fails_inside_a_cost_resumes_bit_for_bit(objective, training, tmp_path):
    config = config_of(objective)
    whole = train(tiny_model(), Own(training, cost=late_values), config, tmp_path / "whole", quiet=True)
    calls = []

    def failing(items, order):
        calls.append(1)
        if len(calls) == limit:
            raise OSError("no more")
        return late_values(items, order)

    limit = 6 if getattr(objective, "polish", 0) == 0 else 22
    with pytest.raises(OSError, match="no more") as raised:
        train(tiny_model(), Own(training, cost=failing), config, tmp_path / "run", quiet=True)
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__[-1].startswith("in the cost of training batch ")
    assert "failing" in [entry.name for entry in raised.traceback]
    resumed = train(tiny_model(), Own(training, cost=late_values), config, tmp_path / "run", resume=True, quiet=True)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))
    states = [load_file(tmp_path / run / "last" / "training.safetensors") for run in ("run", "whole")]
    assert_same_weights(*states)
    has_labels = isinstance(objective, SelfLabel) and training is NUMBERS
    assert ("loss.kept.order" in states[0]) == has_labels


@pytest.mark.parametrize(
    ("objective", "ema", "is_average"),
    [
        (SelfLabel(3), 0.9, True), (SelfLabel(3), 0.0, False), (SelfLabel(3, drawn_by="model"), 0.9, False),
        (Reinforce(3), 0.9, False), (Preference(3), 0.9, False),
    ],
    ids=repr,
)  # fmt: skip
def test_labels_are_drawn_by_the_running_average(monkeypatch, objective, ema, is_average):
    model, drawn_by = tiny_model(), []
    monkeypatch.setattr(
        draws, "sample", lambda used, *args, **options: (drawn_by.append(used), sample(used, *args, **options))[1]
    )
    config = config_of(objective, ema=ema, iterations=3)
    averaged = train(model, Own(drawn_numbers, cost=late_values), config, quiet=True).model
    assert len(drawn_by) == 3 and all(used is (averaged if is_average else model) for used in drawn_by)
    assert (averaged is model) == (ema == 0)


def test_ctrl_c_ends_a_slow_cost_at_once(tmp_path):
    config = config_of(SelfLabel(3), prefetch=False)
    whole = train(tiny_model(), Own(NUMBERS, cost=late_values), config, tmp_path / "whole", quiet=True)
    calls = []

    def slow(items, order):
        calls.append(1)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("the cost went on")
        return late_values(items, order)

    stopped = train(tiny_model(), Own(NUMBERS, cost=slow), config, tmp_path / "run", quiet=True)
    assert (stopped.iteration, stopped.is_finished) == (5, False)
    resumed = train(tiny_model(), Own(NUMBERS, cost=late_values), config, tmp_path / "run", resume=True, quiet=True)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))


def test_a_cost_that_changes_its_inputs_is_noticed():
    def sorts_in_place(items, order):
        order.numpy().sort(1)
        return torch.zeros(len(order))

    def scales_in_place(items, order):
        items.numpy()[:] *= 2
        return torch.zeros(len(order))

    batch = Batch.without_labels(NUMBERS[:2].clone())
    order = torch.tensor([[[1, 2, 0, 4, 3]], [[4, 3, 2, 0, 1]]])
    for cost in (sorts_in_place, scales_in_place):
        with pytest.raises(ValueError, match="cost must not change its inputs"):
            draw_costs(cost, batch, order)
        assert torch.equal(batch.items, NUMBERS[:2])


@pytest.mark.parametrize(
    ("head", "objective"),
    [*(("pointer", objective) for objective in OBJECTIVES), ("gpl", SelfLabel(4)), ("pl", Reinforce(4))],
)
def test_the_cost_falls(head, objective):
    changes = {} if head == "pointer" else {"decoder_layers": 0}
    task = Own(drawn_numbers, cost=late_values)
    config = config_of(
        dataclasses.replace(objective, draws=8), iterations=80, batch_size=16, evaluate_every=80, evaluate_count=64,
        log_every=80, evaluate_steps=1,
    )  # fmt: skip
    result = train(tiny_model(head=head, dropout=0.0, **changes), task, config, quiet=True, device="cpu")
    (test,) = task.test_batches(64, 64)
    random = torch.rand(64, 5, generator=torch.Generator().manual_seed(0)).argsort(1)
    guessed = float(late_values(test.items, random).mean())
    lowest = float(late_values(test.items, test.items[..., 0].argsort(1)).double().mean())
    assert set(result.metrics) == {"cost", "mean_cost", "best_cost"}
    gap = (result.metrics["cost"] - lowest) / (guessed - lowest)
    assert gap < 0.05  # measured: below 0.001
    assert lowest - 1e-9 <= result.metrics["best_cost"] <= result.metrics["mean_cost"]


def test_the_log_says_what_was_drawn(tmp_path):
    config = config_of(SelfLabel(4), evaluate_every=4, evaluate_count=6)
    result = train(tiny_model(), Own(NUMBERS, cost=late_values), config, tmp_path, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if "draw_cost" in line]
    assert len(reports) == 4
    for line in reports:
        assert line["best_draw_cost"] < line["draw_cost"] and line["draws_per_second"] > 0
        assert sum(line[f"{part}_share"] for part in ("draw", "cost", "update")) == pytest.approx(1)
        assert all(0 < line[f"{part}_share"] < 1 for part in ("draw", "cost", "update"))
        assert 0 <= line["labels_improved"] <= 1 and line["instances_skipped"] == 0
    assert reports[0]["labels_improved"] > 0.5
    best = min(line["test_cost"] for line in lines if "test_cost" in line)
    assert result.metrics["cost"] >= best and (tmp_path / "best" / "config.json").exists()


def test_a_run_of_before_rebuilt_draws_goes_on(tmp_path):
    task, config = Own(drawn_numbers, cost=late_values), config_of(SelfLabel(2), iterations=2, checkpoint_every=1)
    train(tiny_model(), task, config, tmp_path, quiet=True)
    tensors, state = model_folder.load_training(tmp_path / "last")
    del state["config"]["objective"]["rebuilt"]
    model_folder.save_training(tmp_path / "last", tensors, state)
    train(tiny_model(), task, config, tmp_path, resume=True, quiet=True)
    with pytest.raises(ValueError, match="has objective = "):
        train(tiny_model(), task, config_of(SelfLabel(2, rebuilt=1), iterations=2), tmp_path, resume=True, quiet=True)


def test_says_what_cannot_be(tmp_path):
    task = Own(drawn_numbers, cost=late_values)
    with pytest.raises(
        ValueError, match=r"the task has no right orders: objective must be SelfLabel\(...\), Reinforce"
    ):
        train(tiny_model(), task, QUICK, quiet=True)
    with pytest.raises(ValueError, match="SelfLabel needs a task with a cost, and the task numbers has none"):
        train(tiny_model(), SortNumbers(3), config_of(SelfLabel(2)), quiet=True)
    scores = DiffSortModel(DiffSortConfig(embedder={"kind": "linear", "features": 1}))
    with pytest.raises(ValueError, match="Reinforce needs a model with log-probabilities, got a diffsort model"):
        train(scores, task, config_of(Reinforce(2)), quiet=True)
    riffled = tiny_model(process=Riffle((0, 2, 7), "clean"))
    with pytest.raises(ValueError, match='SelfLabel needs a model whose process is a Bridge with the target "clean"'):
        train(riffled, task, config_of(SelfLabel(2)), quiet=True)
    one_pass = FactorisedModel(log_prob_cases()[-1][0].config)
    with pytest.raises(ValueError, match=r"rebuilt must be 0 for a .* model, which draws whole orders only"):
        train(one_pass, task, config_of(SelfLabel(4, rebuilt=2)), quiet=True)
    train(tiny_model(), task, config_of(SelfLabel(2)), tmp_path, quiet=True)
    with pytest.raises(ValueError, match=r"has objective = {'kind': 'self-label', 'draws': 2, .*got {.*'draws': 3"):
        train(tiny_model(), task, config_of(SelfLabel(3)), tmp_path, resume=True)
    ruled = WithRules()
    started = Batch.without_labels(NUMBERS[:2], first=torch.tensor([3, 1]))
    with pytest.raises(ValueError, match="constraints of a task whose batches fix the first items must be None"):
        Drawer(tiny_model(), ruled, SelfLabel(2), 0).of(started, torch.arange(2), 1)


TWO_RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from test_training_draws import train_in_float64
train_in_float64(sys.argv[2])
"""


def train_in_float64(folder: str) -> None:
    """SelfLabel on fixed instances: the processes share the labels."""
    config = config_of(SelfLabel(3), evaluate_every=8, evaluate_count=6)
    model = tiny_model(dropout=0.0).double()
    train(model, Own(NUMBERS.double(), cost=late_values), config, folder, quiet=True, device="cpu")


def test_two_processes_train_as_one_does(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    (tmp_path / "script.py").write_text(TWO_RANKS)
    done = subprocess.run(
        [*torchrun, str(tmp_path / "script.py"), str(TESTS), str(tmp_path / "two")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    train_in_float64(str(tmp_path / "one"))
    two, one = (load_file(tmp_path / run / "last" / "training.safetensors") for run in ("two", "one"))
    assert two.keys() == one.keys() > {"loss.kept.order", "loss.kept.cost"}
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-9)
    metrics = [
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("two", "one")
    ]
    for ours, theirs in zip(*metrics, strict=True):
        for name in ("draw_cost", "best_draw_cost", "labels_improved", "test_cost", "test_mean_cost", "test_best_cost"):
            assert (name in ours) == (name in theirs)
            assert ours.get(name, 0) == pytest.approx(theirs.get(name, 0), rel=1e-9)
