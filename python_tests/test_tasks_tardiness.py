"""Jobs with due dates: how instances are drawn, costs beside heuristics, errors."""

import pytest
import torch

from softrank_ext import SoftRankConfig, SoftRankModel, evaluate
from softrank_ext.costs import WeightedTardiness, atc, local_search
from softrank_ext.model import DataFacts
from softrank_ext.tasks.tardiness import Tardiness


def test_instances_are_drawn_as_said():
    batch = Tardiness(num_jobs=10, tardiness_factor=0.6, due_width=0.4).training_batch(0, 0, 4000)
    assert batch.items.shape == (4000, 10, 3) and batch.items.dtype == torch.float32 and not batch.has_labels()
    time, weight, due = batch.items.unbind(2)
    assert (int(time.min()), int(time.max())) == (1, 100) and (int(weight.min()), int(weight.max())) == (1, 10)
    assert float(time.mean()) == pytest.approx(50.5, abs=1) and float(weight.mean()) == pytest.approx(5.5, abs=0.1)
    share = due / time.sum(1, keepdim=True)
    assert float(share.min()) > 0.19 and float(share.max()) < 0.61  # 1 - .6 -+ .2, rounded
    assert float(share.mean()) == pytest.approx(0.4, abs=0.01) and float(share.std()) == pytest.approx(
        0.4 / 12**0.5, abs=0.01
    )


def test_factors_are_drawn_per_instance():
    items = Tardiness(num_jobs=400).training_batch(0, 0, 300).items
    share = items[..., 2] / items[..., 0].sum(1, keepdim=True)
    # With factor 1 and width 1 due dates go from 0 to half of the total; with .2 and .2, from .7 to .9 of it.
    assert float(share.max()) == pytest.approx(1.3, abs=0.02) and float(share.min()) == 0
    assert len((share.amax(1) * 10).round().unique()) >= 9


def test_batches_are_by_seed_and_step():
    task = Tardiness(num_jobs=6, min_jobs=4)
    assert task.data_facts() == DataFacts(num_items=(4, 6)) and task.max_items() == 6
    first, again = (task.training_batch(0, 3, 5) for _ in range(2))
    assert torch.equal(first.items, again.items)
    assert {task.training_batch(0, step, 1).items.shape[1] for step in range(40)} == {4, 5, 6}
    fixed = Tardiness(num_jobs=6)
    whole = torch.cat([batch.items for batch in fixed.test_batches(7, 7)])
    assert torch.equal(whole, torch.cat([batch.items for batch in fixed.test_batches(7, 3)]))
    assert not torch.equal(whole, torch.cat([batch.items for batch in fixed.test_batches(7, 7, seed=1)]))


def test_scores_beside_heuristics():
    task = Tardiness(num_jobs=8)
    model = SoftRankModel(SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder()))
    row = evaluate(model, task, count=10, batch_size=4, steps=2)
    means = {name: value["mean"] for name, value in row["metrics"].items()}
    assert list(means) == ["cost", "atc_cost", "atc_local_search_cost", "iterated_greedy_cost"]
    items = torch.cat([batch.items for batch in task.test_batches(10, 10)])
    first = atc(items)
    assert means["atc_cost"] == pytest.approx(float(WeightedTardiness()(items, first).mean()))
    searched = WeightedTardiness()(items, local_search(items, first, WeightedTardiness())).mean()
    assert means["atc_local_search_cost"] == pytest.approx(float(searched))
    assert means["iterated_greedy_cost"] <= means["atc_local_search_cost"] < means["atc_cost"] < means["cost"]


def test_errors():
    for arguments, message in (
        ({"num_jobs": 0}, "num_jobs must be an integer of at least 1, got 0"),
        ({"min_jobs": 30}, "min_jobs must be an integer from 1 to 20, got 30"),
        ({"tardiness_factor": 1.5}, "tardiness_factor must be from 0 to 1, got 1.5"),
        ({"due_width": -1}, "due_width must be from 0 to 1, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            Tardiness(**arguments)
