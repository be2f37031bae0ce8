"""A pool of items that the model's reader has read once: training on long lists costs what the transformer costs.

The reader (the model's embedder, a CNN say) keeps its weights: nothing asks it for a gradient. Lists are rows of the
pool, drawn by the task; every `TrainConfig.pool_updates` updates there is a new pool. Pools are functions of (seed,
number), so a resumed run reads what the uninterrupted one did.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from softrank_ext.batch import Batch
from softrank_ext.model import OrderModel, SoftRankModel, evaluating
from softrank_ext.tasks import Pool, Task
from softrank_ext.training.config import TrainConfig


class ReaderPool:
    """The pools of a run: which one an update draws from, and its items' vectors.

    vectors: (size, D), the embedded items of the pool at hand, read when they are first asked for.
    """

    def __init__(self, model: OrderModel, task: Task, config: TrainConfig) -> None:
        if not hasattr(task, "pool_items") or not hasattr(task, "pooled_batch"):
            raise ValueError(f"pool must be 0 for the task {task.name}, which has no pools of items, got {config.pool}")
        if not isinstance(model, SoftRankModel):
            raise ValueError(f"pool must be 0 for a model of type {model.model_type}, got {config.pool}")
        self.model, self.task, self.config = model, cast(Any, task), config
        self.vectors: Tensor | None = None
        self._number: int | None = None

    def batch(self, iteration: int) -> Batch:
        """The training batch of an update, counted from 1: its items are rows of the pool, (B, N) int64."""
        batch: Batch = self.task.pooled_batch(self._pool(iteration), iteration, self.config.batch_size)
        return batch

    def read(self, batch: Batch, iteration: int) -> Batch:
        """A batch of that update with its items' vectors (B, N, D) in extras["embedded"]."""
        pool = self._pool(iteration)
        if self.vectors is None or self._number != pool.number:
            self.vectors, self._number = self._read(pool), pool.number
        return replace(batch, extras={**batch.extras, "embedded": self.vectors[batch.items]})

    def _pool(self, iteration: int) -> Pool:
        return Pool(self.config.seed, (iteration - 1) // self.config.pool_updates, self.config.pool)

    @torch.no_grad()
    def _read(self, pool: Pool) -> Tensor:
        model = self.model
        device = next(model.parameters()).device
        with evaluating(model):
            return torch.cat([model.embed(part[None].to(device))[0] for part in self.task.pool_items(pool)])
