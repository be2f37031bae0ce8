"""Evaluation: averages, errors and the best of several draws, against numbers worked out by hand."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from synthetic_tasks import SortNumbers
from testing import pin

from softrank_ext import Beam, Bridge, DataFacts, Draw, sample
from softrank_ext.evaluation import evaluate, record_of, table_of
from softrank_ext.model import SoftRankConfig, SoftRankModel
from softrank_ext.processes import process_to_json
from softrank_ext.tasks.own import Own
from softrank_ext.tasks.tsp import TSP

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model() -> SoftRankModel:
    torch.manual_seed(0)
    embedder = {"kind": "linear", "features": 1}
    config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=embedder)
    return SoftRankModel(config)


@dataclass(frozen=True)
class FirstItem(SortNumbers):
    """Its metric is the item that stands first."""

    def score(self, batch, order):
        return {"item": order[:, 0].double(), "last": order[:, -1].double()}


def test_means_and_errors_are_those_of_the_samples(model):
    task = FirstItem(4)
    process = Bridge(noise_scale=0.3, sampling_steps=2)
    row = evaluate(model, task, count=7, batch_size=3, process=process, decode="sample", seed=5)
    items = torch.cat([batch.items for batch in task.test_batches(7, 3, 5)])
    drawn = sample(model, items, process=process, decode="sample", seed=5).order[:, 0, 0].double()
    assert row["metrics"]["item"]["mean"] == pytest.approx(float(drawn.mean()))
    assert row["metrics"]["item"]["standard_error"] == pytest.approx(float(drawn.std() / 7**0.5))
    assert (row["instances"], row["steps"], row["decode"], row["seed"]) == (7, 2, "sample", 5)
    assert row["process"] == process_to_json(process)
    assert row["seconds"] > 0


def test_the_batch_size_changes_nothing(model):
    rows = [evaluate(model, FirstItem(4), count=9, batch_size=size, decode="sample", best_of=2, best_by="item")
            for size in (2, 9)]  # fmt: skip
    assert rows[0]["metrics"] == rows[1]["metrics"]


def test_best_of_takes_the_draw_with_the_lowest_metric(model):
    task = FirstItem(4)
    row = evaluate(model, task, count=8, best_of=5, best_by="item", decode="sample")
    items = torch.cat([batch.items for batch in task.test_batches(8, 8)])
    orders = sample(model, items, num_samples=5, decode="sample", seed=0).order
    best = orders[torch.arange(8), orders[:, :, 0].argmin(1)]
    assert row["metrics"]["item"]["mean"] == pytest.approx(float(orders[:, :, 0].amin(1).double().mean()))
    assert row["metrics"]["last"]["mean"] == pytest.approx(float(best[:, -1].double().mean()))


def test_best_of_takes_the_draw_with_the_highest_log_prob(model):
    task = FirstItem(4)
    row = evaluate(model, task, count=8, best_of=5, decode="sample")
    drawn = sample(model, torch.cat([batch.items for batch in task.test_batches(8, 8)]), num_samples=5, seed=0)
    best = [orders[log_prob.tolist().index(max(log_prob.tolist()))] for orders, log_prob in
            zip(drawn.order, drawn.log_prob, strict=True)]  # fmt: skip
    assert row["metrics"]["item"]["mean"] == pytest.approx(sum(float(order[0]) for order in best) / 8)


def test_a_beam_is_that_of_sample(model):
    task = FirstItem(5)
    row = evaluate(model, task, count=6, batch_size=4, decode=Beam(4, 2))
    items = torch.cat([batch.items for batch in task.test_batches(6, 6)])
    order = sample(model, items, decode=Beam(4, 2), seed=0).order[:, 0]
    assert row["metrics"]["item"]["mean"] == pytest.approx(float(order[:, 0].double().mean()))
    assert row["decode"] == "Beam(width=4, kept=2, returned=1)"


@pytest.mark.parametrize("fixed_start", (True, False))
def test_what_is_fixed_at_place_0_stands_there(model, fixed_start):
    model = SoftRankModel(replace(model.config, data=DataFacts(fixed_start=fixed_start)))
    row = evaluate(model, SortNumbers(4, first=True), count=20, decode="sample")
    assert row["metrics"]["wrong"]["mean"] <= 3
    batch = next(iter(SortNumbers(4, first=True).test_batches(20, 20)))
    order = sample(model, batch.items, constraints=pin(batch.first)).order[:, 0]
    assert torch.equal(order[:, 0], batch.first)
    item = evaluate(model, FirstItem(4, first=True), count=20, decode="sample")["metrics"]["item"]["mean"]
    assert item == pytest.approx(float(batch.first.double().mean()))


def test_padding_is_not_scored(model):
    row = evaluate(model, SortNumbers(6, padded=5), count=20)
    assert row["metrics"]["accuracy"] == {"mean": 1.0, "standard_error": 0.0}


def test_the_model_stays_in_training_mode(model):
    evaluate(model.train(), SortNumbers(3), count=2)
    assert model.training


def test_says_what_is_wrong(model):
    task = SortNumbers(3)
    with pytest.raises(ValueError, match="count must be an integer of at least 1, got 0"):
        evaluate(model, task, count=0)
    with pytest.raises(ValueError, match="best_of must be an integer of at least 1, got 0"):
        evaluate(model, task, best_of=0)
    with pytest.raises(
        ValueError, match="best_by must be log_prob or one of the metrics accuracy, wrong, got 'length'"
    ):
        evaluate(model, task, best_of=3, best_by="length", count=2)
    with pytest.raises(ValueError, match=r"decode must be 'sample', 'greedy', Draw\(\.\.\.\), .*, got 'best'"):
        evaluate(model, task, decode="best", count=2)
    with pytest.raises(ValueError, match="symmetries must be one of 1, 8, got 4"):
        evaluate(model, task, symmetries=4)
    with pytest.raises(ValueError, match="symmetries must be 1 for the task numbers: its instances have no copies"):
        evaluate(model, task, symmetries=8)


def test_table_shows_what_differs():
    def row(steps, decode, mean, noise_scale=0.5):
        return {
            "steps": steps, "process": process_to_json(Bridge(noise_scale, sampling_steps=steps)), "decode": decode,
            "best_of": 1, "best_by": "log_prob", "symmetries": 1, "seed": 0, "instances": 10, "seconds": 1.25,
            "metrics": {"gap": {"mean": mean, "standard_error": 0.001}},
        }  # fmt: skip

    lines = table_of([row(5, "greedy", 0.12345), row(20, "sample", 1.0)]).splitlines()
    assert lines[0].split() == ["steps", "decode", "gap", "instances", "seconds"]
    assert lines[1].split() == ["5", "greedy", "0.1235", "±", "0.0010", "10", "1.2"]
    assert len({len(line) for line in lines}) == 1
    other = table_of([row(5, "greedy", 0.1), row(5, "greedy", 0.2, noise_scale=0.1)]).splitlines()
    assert other[0].split() == ["steps", "noise_scale", "gap", "instances", "seconds"]
    assert other[2].split()[:3] == ["5", "0.1", "0.2000"]
    record = record_of([row(5, "greedy", 0.1)], command="softrank evaluate", checkpoint="runs/x", checkpoint_hash="ab")
    assert json.loads(json.dumps(record))["rows"][0]["metrics"]["gap"]["mean"] == 0.1
    assert (record["command"], record["sha256"]) == ("softrank evaluate", "ab")
    assert "torch_running" in record["versions"]


def test_the_process_is_the_model_s_own(model):
    own = Bridge(0.1, "gaussian", sampling_steps=3)
    model = SoftRankModel(replace(model.config, process=own))
    row = evaluate(model, FirstItem(4), count=2)
    assert row["steps"] == 3 and row["process"] == process_to_json(own)
    assert evaluate(model, FirstItem(4), count=2, steps=7)["process"] == process_to_json(replace(own, sampling_steps=7))
    with pytest.raises(ValueError, match=r"steps must be left out or agree with process\.sampling_steps = 3, got 7"):
        evaluate(model, FirstItem(4), count=2, process=own, steps=7)


def test_decode_is_named_as_the_calls_do(model):
    for decode, name in (("sample", "sample"), (Draw(), "sample"), (Draw(0.5), "Draw(temperature=0.5)")):
        assert evaluate(model, FirstItem(3), count=1, decode=decode)["decode"] == name


class Priced(Own):
    """A cost and two methods beside the model."""

    def heuristics(self, batch):
        return {"zero": torch.zeros(len(batch.items)), "row": batch.extras["instance"]}


def test_costs_stand_beside_heuristics(model):
    items = torch.rand(6, 4, 1, generator=torch.Generator().manual_seed(0))

    def last(items, order):
        return items[..., 0].gather(1, order)[:, -1]

    row = evaluate(model, Priced(items, cost=last), count=6, batch_size=4, best_of=3, best_by="cost", decode="sample")
    drawn = sample(model, items, num_samples=3, seed=0)
    each = torch.stack([last(items, drawn.order[:, draw]) for draw in range(3)])
    assert row["metrics"]["cost"]["mean"] == pytest.approx(float(each.min(0).values.double().mean()))
    assert row["metrics"]["zero"]["mean"] == 0 and row["metrics"]["row"]["mean"] == 2.5


class TestImprove:
    def test_a_row(self):
        """Costs fall with the rounds, and the row says how many draws and predictions they took."""
        torch.manual_seed(0)
        items = torch.rand(12, 6, 1)
        task = Own(items, cost=lambda items, order: items[..., 0].gather(1, order[:, :2]).sum(1))
        config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
        model = SoftRankModel(config)
        rows = [evaluate(model, task, count=12, improve=rounds, initial=4, batch_size=size, decode="sample")
                for rounds, size in ((0, 12), (40, 12), (40, 5))]  # fmt: skip
        costs = [row["metrics"]["cost"]["mean"] for row in rows]
        assert costs[1] < costs[0] and costs[1] == pytest.approx(costs[2])
        assert (rows[1]["draws"], rows[1]["predictions"], rows[1]["steps"]) == (44, 44, 1)
        two = evaluate(model, task, count=3, improve=2, initial=4, steps=2, decode="sample")
        assert (two["draws"], two["predictions"]) == (6, 12)
        table = table_of([evaluate(model, task, count=12), rows[1]])
        assert table.splitlines()[0].split()[:4] == ["steps", "decode", "improve", "draws"]

    def test_ctrl_c_ends_it(self):
        """A mean over searches that were cut short would count as one over whole searches."""
        calls = []

        def cost(items, order):
            calls.append(len(order))
            if len(calls) == 3:
                raise KeyboardInterrupt
            return order[:, 0].double()

        task = Own(torch.randn(6, 5, 2), cost=cost)
        model = SoftRankModel(
            SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
        )
        with pytest.raises(KeyboardInterrupt):
            evaluate(model, task, count=6, improve=9, initial=2, batch_size=3)
        assert len(calls) == 3

    def test_what_is_refused(self, model):
        with pytest.raises(ValueError, match="improve must be None for the task numbers: it has no cost"):
            evaluate(model, SortNumbers(4), improve=3)
        with pytest.raises(ValueError, match="improve goes with best_of and symmetries 1, got 2 and 1"):
            evaluate(model, SortNumbers(4), improve=3, best_of=2)


def test_ranges_have_the_instances_and_draws_of_the_whole(model):
    """The mean over all instances is that of its ranges, also where a range begins inside a batch."""
    task = FirstItem(4)
    whole = evaluate(model, task, count=10, batch_size=4, decode="sample", seed=5)
    parts = [evaluate(model, task, count=r, batch_size=4, decode="sample", seed=5) for r in (range(3), range(3, 10))]
    assert [(part["first_instance"], part["instances"]) for part in parts] == [(0, 3), (3, 7)]
    for name in ("item", "last"):
        means = [row["metrics"][name]["mean"] for row in (whole, *parts)]
        assert means[0] == pytest.approx((3 * means[1] + 7 * means[2]) / 10, abs=1e-12)
    for wrong in (range(0), range(4, 2), range(0, 9, 2), range(-1, 3)):
        with pytest.raises(ValueError, match="count must be a range of at least one instance"):
            evaluate(model, task, count=wrong)


def test_seed_chooses_instances_that_a_task_draws():
    drawn = Own(
        lambda count, generator: torch.rand(count, 5, 2, generator=generator), cost=lambda items, order: order[:, 0]
    )
    for task in (drawn, TSP(num_points=5)):
        first, again, other = (next(iter(task.test_batches(3, 3, seed))).items for seed in (1, 1, 2))
        assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_generator_draws_the_seed(model):
    options = {"count": 5, "steps": 1, "decode": "sample"}
    row = evaluate(model, FirstItem(4), seed=torch.Generator().manual_seed(4), **options)
    assert row["seed"] == int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))
    assert evaluate(model, FirstItem(4), seed=row["seed"], **options)["metrics"] == row["metrics"]
    with pytest.raises(ValueError, match="seed must be a 64-bit integer, got None"):
        evaluate(model, FirstItem(4), seed=None, **options)
