"""Orders of which a part is noised and the rest is kept.

The noised items hold some places of the order, the free places. Noise moves them over these alone: their soft ranks
have a grid of their own in [0, 1], over the free places in ascending order, and the kept items stand where they stood.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.noise import RowNoise
from softrank_ext.processes.bridge import Bridge, NoisyOrder, Prediction, lift_to_grid


class PartialOrder(NamedTuple):
    """order (B, N) int64, over items; noised (B, N) bool, by item, True = noised. Padding is not noised."""

    order: Tensor
    noised: Tensor

    def is_free(self) -> Tensor:
        """The free places, (B, N) bool."""
        return self.noised.gather(1, self.order)

    def filled(self, chamber_order: Tensor) -> Tensor:
        """Orders (B, N) with the noised items, which `chamber_order` (B, N) begins with, on the free places in turn."""
        places = torch.argsort(~self.is_free(), dim=1, stable=True)  # the free ones first, each kind ascending
        is_noised = torch.arange(self.order.shape[1], device=self.order.device) < self.noised.sum(1, keepdim=True)
        items = torch.where(is_noised, chamber_order, self.order.gather(1, places))
        return torch.empty_like(self.order).scatter_(1, places, items)

    def lift(self, order: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Grid values (B, N) by item of orders that differ from this one on the free places only; 0 for kept items."""
        numbers = self.is_free().cumsum(1) - 1  # of a free place among them
        ranks = torch.empty_like(order).scatter_(1, order, numbers)
        return lift_to_grid(ranks, self.noised, dtype=dtype)

    def noised_to(self, t: float, z_prior: Tensor, process: Bridge, noise: RowNoise, step: int) -> Tensor:
        """The state (B, N) at time t on the bridge from this order's grid values to z_prior.

        step: of the noise, one that no step back has.
        """
        if t == 1:
            return z_prior
        z_clean = self.lift(self.order, z_prior.dtype)
        return process.draw_back(Prediction(z_prior, self.order, self.order, z_clean), 1.0, t, noise, step)

    def draw_noisy(self, process: Bridge, t: Tensor, noise: RowNoise) -> NoisyOrder:
        """Orders at times t (B,) of training, this order being the one to predict; z_t is 0 for kept items."""
        unfolded = process.draw_unfolded(self.lift(self.order, noise.dtype), t, noise)
        z_t = ops.reflect(unfolded)
        chamber_order, _ = ops.decode_chamber(z_t, self.noised)
        carried = unfolded if process.carry == "exact" else z_t
        return NoisyOrder(self.filled(chamber_order), self.order, carried.masked_fill(~self.noised, 0.0))
