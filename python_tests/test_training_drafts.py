"""Training rows whose kept part is a draft of the model's own."""

import json
from dataclasses import replace

import pytest
import torch
from synthetic_runs import tiny_model
from synthetic_tasks import SortNumbers

from softrank_ext import DataFacts, SoftRankConfig, SoftRankModel, TrainConfig, train
from softrank_ext.permutations import ranks_of
from softrank_ext.tasks.tsp import TSP
from softrank_ext.training import SelfLabel
from softrank_ext.training.drafts import REDRAWS, Drafter, in_true_order
from softrank_ext.training.objectives import DenoisingLoss, Noising, noisy_orders
from softrank_ext.training.partial import noised_items

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = SoftRankConfig(
    16, 24, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, partial=True,
    embedder={"kind": "linear", "features": 1},
)  # fmt: skip
SETTINGS = TrainConfig(8, 16, warmup=2, log_every=4, checkpoint_every=4, partial=0.9, drafts=0.7)


def random_model(config=CONFIG):
    torch.manual_seed(0)
    return SoftRankModel(config)


def tour_model():
    data = DataFacts("tour", fixed_start=True)
    return random_model(replace(CONFIG, embedder=TSP(num_points=7).embedder(), data=data))


def test_the_noised_items_come_in_their_true_order():
    draft, order = torch.tensor([[4, 2, 0, 1, 3]]), torch.tensor([[0, 1, 2, 3, 4]])
    noised = torch.tensor([[True, False, False, True, True]])  # items 0, 3 and 4, on places 0, 2 and 4
    assert in_true_order(draft, noised, order).tolist() == [[0, 2, 3, 1, 4]]
    assert torch.equal(in_true_order(draft, torch.zeros_like(noised), order), draft)
    assert torch.equal(in_true_order(draft, torch.ones_like(noised), order), order)


def test_the_noised_part_of_a_draft_row_is_right_and_the_rest_is_the_drafts():
    batch, samples = SortNumbers(7).training_batch(0, 1, 300), torch.arange(300)
    found = Drafter(random_model(), SortNumbers(7), 0.8, 0.5, 0).of(batch, samples)
    is_draft = found.extras["is_draft"]
    assert abs(float(is_draft.double().mean()) - 0.4) < 0.08
    assert torch.equal(found.order[~is_draft], batch.order[~is_draft])
    is_partial, noised = noised_items(CONFIG, 0.8, found, 0, samples)
    assert bool(is_partial[is_draft].all())
    # The noised items ascend among themselves; of the kept ones of random weights some do not.
    ranks = ranks_of(found.order).double()
    values = batch.items[..., 0]
    for row in is_draft.nonzero()[:, 0].tolist():
        own = noised[row]
        assert torch.equal(values[row][own].argsort(), ranks[row][own].argsort())
    is_wrong = (found.order != batch.order).any(1)
    assert float(is_wrong[is_draft].double().mean()) > 0.5


def test_the_network_is_told_which_rows_are_drafts():
    batch, samples = SortNumbers(7).training_batch(0, 1, 200), torch.arange(200)
    model = random_model()
    found = Drafter(model, SortNumbers(7), 0.8, 0.5, 0).of(batch, samples)
    noisy = noisy_orders(CONFIG, Noising(partial=0.8), found, 0, samples)
    assert torch.equal(ranks_of(noisy.order_t)[noisy.kept], ranks_of(found.order)[noisy.kept])
    torch.nn.init.ones_(model.draft_mark)
    embedded = model.embed(batch.items)
    told, _ = noisy.arranged(model, embedded)
    not_told, _ = noisy._replace(is_draft=None).arranged(model, embedded)
    differs = (told != not_told).any(2).any(1)
    assert torch.equal(differs, noisy.is_draft & noisy.kept.any(1))


def test_with_a_cost_the_cheapest_redraw_is_the_target():
    task = TSP(num_points=7)
    batch, samples = task.training_batch(0, 1, 64), torch.arange(64)
    batch = replace(batch, known=None)  # as SelfLabel gives them
    model = tour_model()
    found = Drafter(model, task, 0.9, 0.9, 0).of(batch, samples)
    without = Drafter(model, task, 0.9, 0.9, 0)
    without.cost = None
    plain = without.of(batch, samples)
    costs = [TSP.search_cost(batch.items, given.order) for given in (found, plain)]
    is_draft = found.extras["is_draft"]
    assert (costs[0] <= costs[1] + 1e-9).all()
    assert float((costs[0] < costs[1])[is_draft].double().mean()) > 0.3
    assert torch.equal(found.order[:, 0], batch.first)
    assert REDRAWS > 1


def test_drafts_do_not_depend_on_the_other_rows():
    task = SortNumbers(6, padded=2)
    batch, samples = task.training_batch(0, 1, 40), torch.arange(40)
    drafter = Drafter(random_model(), task, 0.8, 0.6, 3)
    whole = drafter.of(batch, samples)
    half = replace(batch, items=batch.items[20:], order=batch.order[20:], mask=batch.mask[20:], extras={})
    assert torch.equal(drafter.of(half, samples[20:]).order, whole.order[20:])
    assert not torch.equal(Drafter(random_model(), task, 0.8, 0.6, 4).of(batch, samples).order, whole.order)


@pytest.mark.parametrize("objective", ["likelihood", SelfLabel(4)], ids=["labels", "cost"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, objective):
    def fresh():
        return (
            (tour_model(), TSP(num_points=7)) if isinstance(objective, SelfLabel) else (random_model(), SortNumbers(6))
        )

    settings = replace(SETTINGS, objective=objective)
    whole = train(*fresh(), settings, quiet=True).model
    with pytest.MonkeyPatch.context() as patch:
        made = 0

        def of(self, batch, samples, drafts=Drafter.of):
            nonlocal made
            made += 1
            if made == 6:
                raise RuntimeError("killed")
            return drafts(self, batch, samples)

        patch.setattr(Drafter, "of", of)
        with pytest.raises(RuntimeError, match="killed"):
            train(*fresh(), settings, tmp_path / "run", quiet=True)
    resumed = train(*fresh(), settings, tmp_path / "run", resume=True, quiet=True).model
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert float(whole.draft_mark.detach().abs().sum()) > 0


def test_losses_of_each_kind_are_logged(tmp_path):
    train(random_model(), SortNumbers(6), SETTINGS, tmp_path / "run", quiet=True)
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    parts = [line[f"loss_{kind}"] for kind in ("whole", "partial", "draft")]
    assert min(parts) < line["loss_per_place"] < max(parts)
    loss = DenoisingLoss(random_model())
    loss(SortNumbers(6).training_batch(0, 1, 8), 0, torch.arange(8))
    assert loss.by_kind is None


def test_errors():
    for wrong in ({}, {"partial": 0.5, "noisy_orders": 2}, {"partial": 0.5, "times": "all"}):
        with pytest.raises(ValueError, match='drafts needs partial above 0, noisy_orders=1 and times="drawn"'):
            TrainConfig(drafts=0.5, **wrong)
    with pytest.raises(ValueError, match=r"drafts must be at least 0 and below 1, got 1\.5"):
        TrainConfig(drafts=1.5)
    with pytest.raises(ValueError, match="partial noise needs a model"):
        train(tiny_model(), SortNumbers(4), SETTINGS, quiet=True)
