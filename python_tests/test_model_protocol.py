"""One protocol for all models: diffusions, and models of one pass, which go through the same loop."""

import pytest
import torch
from synthetic_tasks import SortNumbers
from testing import pin
from testing.scorer import make_scorer
from testing.tiny_models import small_model

from softrank_ext import Beam, Constraints, Engine, evaluate, sample
from softrank_ext.baselines.diffsort import DiffSortConfig, DiffSortModel
from softrank_ext.baselines.factorised import FactorisedConfig, FactorisedModel
from softrank_ext.model import OrderModel
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import OnePass

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBERS = {"kind": "linear", "features": 1}
MODELS = {
    "soft-rank": lambda: small_model(head="pointer"),
    "gpl": lambda: small_model(head="gpl"),
    "diffsort": lambda: DiffSortModel(DiffSortConfig(d_model=16, embedder=NUMBERS)),
    "factorised": lambda: FactorisedModel(
        FactorisedConfig(6, d_model=16, feed_forward=24, heads=2, encoder_layers=1, embedder=NUMBERS)
    ),
    "a user's own": make_scorer,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_model_keeps_it(make):
    model = make()
    assert isinstance(model, OrderModel)
    assert model.bytes_per_sample(20) > model.bytes_per_sample(5) > 0
    loss = model.own_loss()
    assert (loss is None) == (model.model_type == "soft-rank")
    assert loss is None or loss.model is model
    assert model.embedder is not None and isinstance(model.config, model.config_type)
    row = evaluate(model, SortNumbers(4), count=3)
    assert row["steps"] == model.process.sampling_steps
    assert (row["process"] == {}) == isinstance(model.process, OnePass)


def test_what_is_no_model_does_not():
    assert not isinstance(torch.nn.Linear(2, 2), OrderModel)


class TestOnePass:
    def test_samples(self):
        model, items = make_scorer(), torch.randn(5, 4, 1)
        drawn = sample(model, items, num_samples=300, seed=1)
        assert drawn.order.shape == (5, 300, 4)
        assert torch.equal(drawn.ranks, ranks_of(drawn.order))
        assert len(drawn.order[0].unique(dim=0)) > 5
        assert torch.equal(sample(model, items[2:3], num_samples=300, seed=1, first_sample=600).order, drawn.order[2:3])
        cut = sample(model, items, num_samples=300, seed=1, engine=Engine(max_memory=1))
        assert torch.equal(cut.order, drawn.order)
        greedy = sample(model, items, decode="greedy", constraints=pin(3))
        assert bool((greedy.order[..., 0] == 3).all())
        assert int(drawn.passes.max()) == 1 and sample(model, items[0].numpy()).order.shape == (1, 4)
        mask = torch.tensor([True, False, True, True]).expand(5, 4)
        assert bool((sample(model, items, mask=mask).order[..., 3] == 1).all())

    def test_orders_are_those_of_the_scores(self):
        model, items = make_scorer(), torch.randn(5, 6, 1)
        scores = model.embed(items)[..., 0].detach()
        greedy = sample(model, items, decode="greedy", num_samples=2)
        assert torch.equal(greedy.order, scores.argsort(1, descending=True)[:, None].expand(-1, 2, -1))
        assert greedy.log_prob.isnan().all() and greedy.accepted.eq(1).all()

    def test_a_recorded_run_has_one_point(self):
        drawn = sample(make_scorer(), torch.randn(2, 4, 1), record=True, decode="greedy")
        (point,) = drawn.trajectory
        assert point.t == 1.0 and torch.equal(point.predicted_order, drawn.order)
        assert point.order[0, 0].tolist() == [0, 1, 2, 3], "the items as given"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 5}, "steps of this model must be its own 1, or None, got 5"),
            ({"decode": Beam(3)}, r"decode must not be Beam\(\.\.\.\) for a test-scorer model"),
            ({"constraints": Constraints(before=[(0, 1)])}, "takes no constraints but a pin at place 0"),
        ],
    )
    def test_says_what_is_wrong(self, options, message):
        with pytest.raises(ValueError, match=message):
            sample(make_scorer(), torch.randn(2, 4, 1), **options)
