"""The law of a group's order: rows are picked from the first place to the last, with probability in proportion to
exp(score / temperature) among those that remain. The first FIRST picks have one temperature, the others another.

Labels say more about the top of a list than about its end, where rows tie, so that one temperature is too wide above
and too narrow below. At equal temperatures it is the Plackett-Luce law.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext.laws.plackett_luce import race_log_probs
from softrank_ext.permutations import ranks_of
from softrank_ext.ranking.groups import GroupBatch, drawn_orders

FIRST = 3
TIE_BREAKS = 8  # of labels, in losses
_SMALLEST_RATE = 1e-300


class Temperatures(NamedTuple):
    """What scores are divided by: at the first FIRST picks, and at the others."""

    first: float
    rest: float


def _earliest(arrival: Tensor, count: int) -> Tensor:
    """The `count` rows (B, S, count) that arrive first, one after the other; arrival: (B, S, N)."""
    if count >= arrival.shape[2] // 4:
        return arrival.argsort(dim=2, stable=True)[..., :count]
    return arrival.topk(count, largest=False).indices


class GroupLaw(NamedTuple):
    """The law of orders of groups of N rows each. scores: (B, N) float64."""

    scores: Tensor
    temperatures: Temperatures

    @property
    def mode(self) -> Tensor:
        """Rows by falling score (B, N): the likeliest order, and the one that disagrees least with a draw.

        Whatever was picked before, of two rows that remain the one of higher score is likelier to be picked.
        """
        return self.scores.argsort(dim=1, descending=True, stable=True)

    @property
    def p_first(self) -> Tensor:
        """P(first), (B, N)."""
        return (self.scores / self.temperatures.first).softmax(1)

    def drawn(self, uniform: Tensor, top: int | None = None) -> Tensor:
        """Orders (B, S, N) from uniform numbers (B, S, N), or their first `top` places (B, S, top)."""
        N = uniform.shape[2]
        top = N if top is None else min(top, N)
        # A race: row i arrives after a time of rate exp(score / temperature), relative to the fastest one.
        relative = self.scores - self.scores.amax(1, keepdim=True)
        first, rest = ((relative / one).exp().clamp(min=_SMALLEST_RATE)[:, None] for one in self.temperatures)
        waiting = -torch.log1p(-uniform)
        arrival = waiting / first
        is_one_race = self.temperatures.first == self.temperatures.rest or N <= FIRST + 1
        order = _earliest(arrival, top if is_one_race or top <= FIRST else FIRST)
        if is_one_race or top <= FIRST:
            return order
        # When the last of the first has arrived, what the others still have to wait is exponential again, and free of
        # what has happened: the race goes on with other rates.
        last = arrival.gather(2, order[..., FIRST - 1 :])
        later = ((waiting - last * first).clamp(min=0) / rest).scatter(2, order, torch.inf)
        return torch.cat((order, _earliest(later, top - FIRST)), 2)

    def p_before(self, order: Tensor) -> Tensor:
        """P(row i stands before row j) (B, N, N). order: draws (B, S, N)."""
        difference = self.scores[:, :, None] - self.scores[:, None]
        first, rest = (torch.sigmoid(difference / one) for one in self.temperatures)
        if self.temperatures.first == self.temperatures.rest:
            return first
        # Draws say only how often neither is among the first; who comes first then is known.
        is_later = (ranks_of(order) >= FIRST).double()
        neither = is_later.transpose(1, 2) @ is_later / order.shape[1]
        return first + neither * (rest - first)

    def by_place(self) -> Tensor:
        """Scores divided by the temperature of each place, (B, place, row)."""
        N = self.scores.shape[1]
        divisor = torch.full((N,), self.temperatures.rest, dtype=self.scores.dtype)
        divisor[:FIRST] = self.temperatures.first
        return self.scores[:, None] / divisor[:, None]


def best_temperatures(scored: Sequence[tuple[Tensor, GroupBatch]]) -> Temperatures:
    """Those at which the law of scores (B, N) fits held-out labels best."""
    generator = torch.Generator().manual_seed(0)
    orders = [(scores, batch, *drawn_orders(batch, generator)) for scores, batch in scored for _ in range(TIE_BREAKS)]
    grid = np.exp(np.linspace(-1.5, 1.5, 61))
    losses = np.array([_losses_of(orders, float(temperature)) for temperature in grid])  # (61, 2)
    first = float(grid[losses[:, 0].argmin()]) if losses[:, 0].any() else 1.0
    return Temperatures(first, float(grid[losses[:, 1].argmin()]) if losses[:, 1].any() else first)


def _losses_of(orders: Sequence[tuple[Tensor, GroupBatch, Tensor, Tensor]], temperature: float) -> tuple[float, float]:
    """Negative log-likelihood of the first FIRST picks and of the others; orders: scores, batch, order, known picks."""
    first = rest = 0.0
    for scores, batch, order, known in orders:
        place = torch.arange(order.shape[1])
        picks = score_log_probs(scores.double() / temperature, order, batch.mask) * (place < known[:, None])
        first -= float(picks[:, :FIRST].sum())
        rest -= float(picks[:, FIRST:].sum())
    return first, rest


def score_log_probs(scores: Tensor, order: Tensor, mask: Tensor) -> Tensor:
    """Log-probabilities (B, N) of the picks of an order at one temperature, given scores (B, N)."""
    return race_log_probs(scores.gather(1, order), mask.gather(1, order))
