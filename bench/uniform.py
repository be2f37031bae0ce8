"""A model that knows nothing: what a search is worth without one."""

import torch
from torch import Tensor, nn

from softrank_ext import Engine, ops
from softrank_ext.model import DataFacts, OrderModel
from softrank_ext.processes import Bridge


class UniformModel(OrderModel):
    """Every pick is uniform among what remains and is allowed. data: as that of the model whose place it takes."""

    model_type, config_type = "uniform", None
    process = Bridge(sampling_steps=1)
    decodes_by_pick, takes_parts = False, True

    def __init__(self, data: DataFacts) -> None:
        super().__init__()
        self.config = type("Config", (), {"data": data})()
        self.embedder = nn.Linear(1, 1)  # a parameter, for its device and dtype

    @property
    def fixed_start(self) -> bool:
        """As the data have it."""
        return bool(self.config.data.fixed_start)

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """The items as they are."""
        return items.float()

    def marked(self, embedded: Tensor, kept: Tensor) -> Tensor:
        """The items as they are: nothing reads a mark."""
        return embedded

    def packed_weights(self) -> None:
        """None: nothing is shared."""

    def decode_embedded(
        self, embedded: Tensor, t: float | Tensor, mask: Tensor | None = None, choices: ops.Choices = ops.Choices(), *,
        order: Tensor | None = None, engine: Engine = Engine(), packed_weights: None = None,
    ) -> ops.DecodedOrder:  # fmt: skip
        """Picks from equal scores."""
        B, N = embedded.shape[:2]
        every = torch.ones(B, N, dtype=torch.bool) if mask is None else mask
        picked, log_probs = ops.decode_scores(torch.zeros(B, N, N), every, choices._replace(draft=None))
        return ops.DecodedOrder(picked, log_probs, torch.ones(B, 2, dtype=torch.int64))

    def own_loss(self) -> None:
        """None: nothing is learned."""

    def bytes_per_sample(self, N: int) -> int:
        """Scores, and a few numbers per item."""
        return 4 * N * N + 64 * N
