"""SymmetricDiffusers' one-pass network on this package's compiled encoder, for bench/runtime.py to time.

The compiled encoder lets every token attend to every other, where the network's tokens of places attend to items and to
earlier places only: the products are the same, the scores are not. It is there to be timed, with random weights.
"""

import torch
from torch import Tensor

from softrank_ext import SoftRankConfig, SoftRankModel, ops
from softrank_ext.model.layers import sine_cosine
from softrank_ext.ops import LAYER_PARTS, Transformer


class CompiledOnePass(SoftRankModel):
    """A GPL network whose one pass over 2N tokens, an item's and a place's each, is the op `encode`."""

    def __init__(self, config: SoftRankConfig) -> None:
        super().__init__(config)
        self._packed: Transformer | None = None

    @torch.no_grad()
    def scores(self, embedded: Tensor, t: float | Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, place, slot); see `SoftRankModel.scores`."""
        if mask is not None:
            raise ValueError("mask must be None: instances that are timed have no padding")
        if self._packed is None:
            parts = [layer.get_submodule(part) for layer in self.encoder_layers for part in LAYER_PARTS["encoder"]]
            weights = [getattr(part, name).detach() for part in parts for name in ("weight", "bias")]
            D = embedded.shape[2]
            weights += [embedded.new_ones(D), embedded.new_zeros(D)]  # of the last norm, which has none to learn here
            self._packed = Transformer(weights, ops.pack_encoder(weights), self.config.heads, self.config.norm_first)
        B, N, D = embedded.shape
        tokens = torch.cat((embedded, torch.zeros_like(embedded)), 1)  # (B, 2N, D)
        x = tokens + sine_cosine(2 * N, D, embedded) + self._time(t, embedded)
        every = torch.ones(B, 2 * N, dtype=torch.bool, device=x.device)
        slots, stages = ops.encode(self._packed, x, every).chunk(2, 1)
        scores: Tensor = stages @ slots.transpose(1, 2)  # (B, place, slot)
        return scores
