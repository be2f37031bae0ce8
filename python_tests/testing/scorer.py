"""A user's own type of model, one that is no diffusion: a score per item."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.batch import Batch
from softrank_ext.choices import Engine
from softrank_ext.model import LinearEmbedder, OrderModel
from softrank_ext.permutations import arrange
from softrank_ext.processes import OnePass


@dataclass(frozen=True)
class ScorerConfig:
    """Width, and the embedder by name."""

    d_model: int
    embedder: dict[str, object]


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
        self.embedder = embedder or LinearEmbedder(config.d_model, int(str(config.embedder["features"])))
        self.score = nn.Linear(config.d_model, 1)

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, N, 1)."""
        scores: Tensor = self.score(self.embedder(items).relu())
        return scores

    def packed_weights(self) -> None:
        """None: nothing is shared."""

    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        choices: ops.Choices = ops.Choices(),
        *,
        order: Tensor | None = None,
        engine: Engine = Engine(),
        packed_weights: None = None,
    ) -> ops.DecodedOrder:
        """Sort by score, or by score and Gumbel noise."""
        if choices.has_rules():
            raise ValueError("a test-scorer model takes no constraints but a pin at place 0")
        scores = (embedded if order is None else arrange(embedded, order))[..., 0] / choices.temperature
        if choices.uniform is not None:
            scores = scores - (-choices.uniform.log()).log()
        if choices.forced_order is not None:
            scores = scores.scatter(1, choices.forced_order[:, :1], math.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        slots = scores.argsort(dim=1, descending=True, stable=True)
        work = torch.ones(len(slots), 2, dtype=torch.int64)
        return ops.DecodedOrder(slots, torch.full_like(scores, math.nan), work)

    def own_loss(self) -> nn.Module:
        """The likelihood of Plackett-Luce."""
        return ScorerLoss(self)

    def bytes_per_sample(self, N: int) -> int:
        """An estimate."""
        return 4 * N * self.config.d_model


class ScorerLoss(nn.Module):
    """Negative log-likelihood of Plackett-Luce, and the same per place."""

    def __init__(self, model: Scorer) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        arranged = self.model.embed(batch.items)[..., 0].gather(1, batch.order)
        loss = -(arranged - arranged.flip(1).logcumsumexp(1).flip(1)).sum(1).mean()
        return loss, (loss / batch.order.shape[1]).detach()


def make_scorer() -> Scorer:
    """A scorer of numbers with random weights."""
    torch.manual_seed(1)
    return Scorer(ScorerConfig(8, {"kind": "linear", "features": 1}))
