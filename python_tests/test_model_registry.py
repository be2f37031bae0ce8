"""Model types of a user's own: registered, they train, are sampled and evaluated, and their folders load again."""

import math
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from synthetic_tasks import SortNumbers
from torch import Tensor, nn

from softrank_ext import (
    Beam,
    Constraints,
    Engine,
    SoftRankModel,
    TrainConfig,
    evaluate,
    from_pretrained,
    ops,
    register_model,
    sample,
    train,
)
from softrank_ext.batch import Batch
from softrank_ext.model import LinearEmbedder, OrderModel, registry
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.processes import OnePass


@dataclass(frozen=True)
class ScorerConfig:
    d_model: int
    embedder: dict


class Scorer(OrderModel):
    """Orders by a score per item, or draws from Plackett-Luce; trained by the likelihood of Plackett-Luce."""

    model_type = "test-scorer"
    config_type = ScorerConfig
    process = OnePass()
    fixed_start = True
    decodes_by_pick = False

    def __init__(self, config: ScorerConfig, embedder: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedder = embedder or LinearEmbedder(config.d_model, config.embedder["features"])
        self.score = nn.Linear(config.d_model, 1)

    def embed(self, items, mask=None):
        return self.score(self.embedder(items).relu())

    def packed_weights(self):
        return None

    def decode_embedded(
        self, embedded, t, mask=None, choices=ops.Choices(), *, order=None, engine=Engine(), packed_weights=None
    ):
        scores = (embedded if order is None else arrange(embedded, order))[..., 0] / choices.temperature
        if choices.uniform is not None:
            scores = scores - (-choices.uniform.log()).log()
        if choices.forced_order is not None:
            scores = scores.scatter(1, choices.forced_order[:, :1], math.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        work = torch.ones(len(scores), 2, dtype=torch.int64)
        slots = scores.argsort(dim=1, descending=True, stable=True)
        return ops.DecodedOrder(slots, torch.full_like(scores, math.nan), work)

    def own_loss(self):
        return ScorerLoss(self)

    def bytes_per_sample(self, N):
        return 4 * N * self.config.d_model


class ScorerLoss(nn.Module):
    def __init__(self, model: Scorer) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        arranged = self.model.embed(batch.items)[..., 0].gather(1, batch.order)
        loss = -(arranged - arranged.flip(1).logcumsumexp(1).flip(1)).sum(1).mean()
        return loss, (loss / batch.order.shape[1]).detach()


@pytest.fixture
def empty(monkeypatch):
    """No model type is registered, whatever other tests did."""
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def model(empty) -> Scorer:
    register_model(Scorer)
    torch.manual_seed(1)
    return Scorer(ScorerConfig(8, {"kind": "linear", "features": 1}))


def test_trains_evaluates_saves_and_resumes(model, tmp_path):
    task = SortNumbers(5)
    config = TrainConfig(iterations=60, batch_size=32, learning_rate=0.1, warmup=0, evaluate_every=60, ema=0.5)
    result = train(model, task, config, tmp_path, quiet=True)
    assert result.metrics["accuracy"] > 0.9
    saved = from_pretrained(tmp_path / "last")
    assert isinstance(saved, Scorer) and not saved.training
    row = evaluate(saved, task, count=200)
    assert row["metrics"]["accuracy"]["mean"] > 0.9 and row["steps"] == 1
    assert train(model, task, config, tmp_path, resume=True, quiet=True).is_finished
    with pytest.raises(ValueError, match=r"holds a test-scorer model: use softrank_ext\.from_pretrained"):
        SoftRankModel.from_pretrained(tmp_path / "last")


def test_samples(model):
    items = torch.randn(5, 4, 1)
    drawn = sample(model, items, num_samples=300, seed=1)
    assert drawn.order.shape == (5, 300, 4)
    assert torch.equal(drawn.ranks, ranks_of(drawn.order))
    assert len(drawn.order[0].unique(dim=0)) > 5
    assert torch.equal(sample(model, items[2:3], num_samples=300, seed=1, first_sample=600).order, drawn.order[2:3])
    assert torch.equal(sample(model, items, num_samples=300, seed=1, engine=Engine(max_memory=1)).order, drawn.order)
    greedy = sample(model, items, decode="greedy", constraints=Constraints(pins={3: 0}))
    assert bool((greedy.order[..., 0] == 3).all())
    assert int(drawn.passes.max()) == 1 and sample(model, items[0].numpy()).order.shape == (1, 4)
    mask = torch.tensor([True, False, True, True]).expand(5, 4)
    assert bool((sample(model, items, mask=mask).order[..., 3] == 1).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 5}, "steps of this model must be its own 1, or None, got 5"),
        ({"decode": Beam(3)}, "decode must not be Beam"),
    ],
)
def test_says_what_a_model_of_one_pass_cannot_do(model, options, message):
    with pytest.raises(ValueError, match=message):
        sample(model, torch.randn(2, 4, 1), **options)


def test_registering(empty):
    assert registry.model_types() == ["soft-rank", "diffsort", "factorised"]
    assert registry.model_class("soft-rank") is SoftRankModel
    with pytest.raises(
        ValueError, match="model_type must be one of soft-rank, diffsort, factorised, got 'test-scorer'"
    ):
        registry.model_class("test-scorer")
    assert register_model(Scorer) is Scorer and register_model(Scorer) is Scorer  # a notebook's cell, run twice
    assert registry.model_class("test-scorer") is Scorer
    for kind, message in (
        (type("Other", (), {"model_type": "test-scorer", "config_type": ScorerConfig}), "must be new, another class"),
        (
            type("Own", (), {"model_type": "soft-rank", "config_type": ScorerConfig}),
            "must be new, another class has it",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            register_model(kind)
    with pytest.raises(TypeError, match="Nameless must have a model_type"):
        register_model(type("Nameless", (), {}))


def test_entry_points(empty, monkeypatch):
    point = EntryPoint("test-scorer", f"{__name__}:Scorer", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == registry.ENTRY_POINTS else [])
    assert registry.model_types()[-1] == "test-scorer"
    assert registry.model_class("test-scorer").model_type == "test-scorer"
