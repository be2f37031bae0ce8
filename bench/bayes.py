"""Denoisers that know the law of the clean orders and make no error: the exact posterior, given what they read.

A bridge's soft ranks are independent given the clean order. That of an item with the clean value c = rank / (N - 1) is,
unfolded, `(1 - t) c + t u + noise_scale sqrt(t (1 - t)) n` with u uniform and n standard normal: a uniform number
blurred by a Gaussian, whose density is a difference of two normal distribution functions. Folding adds the densities of
all images, and the probability of an order is an integral over soft ranks that ascend along it.

A denoiser is an `OrderModel`, so that `sample` runs it as it runs a network.
"""

import math
from itertools import permutations
from typing import Literal

import torch
from torch import Tensor, nn

from softrank_ext import Bridge, ops, reflect
from softrank_ext.choices import Engine
from softrank_ext.laws import Mallows
from softrank_ext.model import OrderModel
from softrank_ext.permutations import ranks_of

Reads = Literal["soft-ranks", "fold", "order"]
_PER_UNIT = 2**13  # points of tables of densities; between them a logarithm is a straight line, to about 1e-6


def all_orders(N: int) -> Tensor:
    """All orders of N items, (N!, N), in lexicographic order."""
    return torch.tensor(list(permutations(range(N))))


def number_of(order: Tensor) -> Tensor:
    """Number (...) of orders (..., N) in `all_orders`."""
    N = order.shape[-1]
    number = torch.zeros(order.shape[:-1], dtype=torch.int64)
    for place in range(N):
        number = number * (N - place) + (order[..., place + 1 :] < order[..., place : place + 1]).sum(-1)
    return number


def two_camps(N: int) -> Tensor:
    """Chances (N!,) of all orders, of voters in two camps: Mallows laws around an order and around its reverse."""
    center, orders = torch.tensor([2, 0, *range(3, N), 1]), all_orders(N)
    majority, minority = Mallows(center, 0.3), Mallows(center.flip(0), 0.5)
    chances = 0.7 * majority.log_prob(orders).double().exp() + 0.3 * minority.log_prob(orders).double().exp()
    return chances / chances.sum()


def density(z: Tensor, clean: Tensor, t: float, noise_scale: float) -> Tensor:
    """Density of unfolded soft ranks z at time t in (0, 1], given their clean values: of the same shape."""
    off = (z - (1 - t) * clean - t / 2).abs()  # from the middle, about which it is symmetric
    deviation = noise_scale * math.sqrt(t * (1 - t))
    if deviation == 0:
        return (off <= t / 2).double() / t
    # Both arguments are below 0 far out, where the functions of large arguments would cancel.
    upper, lower = torch.special.ndtr((t / 2 - off) / deviation), torch.special.ndtr((-t / 2 - off) / deviation)
    return torch.sub(upper, lower) / t


def folded_density(z: Tensor, clean: Tensor, t: float, noise_scale: float) -> Tensor:
    """`density` of folded soft ranks: the sum over all images of z."""
    total = torch.zeros_like(z)
    most = max(1, math.ceil(2 * noise_scale))  # images beyond are more than eight deviations off
    for turn in range(-most, most + 1):
        total += density(2 * turn + z, clean, t, noise_scale) + density(2 * turn - z, clean, t, noise_scale)
    return total


def points_and_clean_values(least: int, most: int, N: int) -> tuple[Tensor, Tensor]:
    """Points from least to most, and the clean values 0, 1 / (N - 1), ..., 1; both (points, N)."""
    x = torch.arange(least * _PER_UNIT, most * _PER_UNIT + 1, dtype=torch.float64) / _PER_UNIT
    x, clean = torch.broadcast_tensors(x[:, None], torch.arange(N, dtype=torch.float64) / max(N - 1, 1))
    return x, clean


def chances_of_noisy_orders(N: int, t: float, noise_scale: float) -> Tensor:
    """Chances (N!,) of the orders at time t of items whose clean order is 0, 1, ..., N - 1; by the trapezoidal rule."""
    points, clean = points_and_clean_values(0, 1, N)
    x, densities = points[:, 0], folded_density(points, clean, t, noise_scale)  # (points,), (points, N)
    # P(the items of a prefix come in its order, and all of them lie below x), prefix by prefix.
    below: dict[tuple[int, ...], Tensor] = {(): torch.ones_like(x)}
    for order in permutations(range(N)):
        for place in range(N):
            prefix = order[: place + 1]
            if prefix not in below:
                rising = densities[:, order[place]] * below[prefix[:-1]]
                below[prefix] = nn.functional.pad(torch.cumulative_trapezoid(rising, x), (1, 0))
    chances = torch.stack([below[order][-1] for order in permutations(range(N))])
    return chances / chances.sum()


class ExactDenoiser(OrderModel):
    """Draws the clean order from its posterior given what it reads of the noisy state; all else is the sampler's.

    chances: (N!,) float64, of all orders. bridge: the noise process. reads: "soft-ranks" as they are carried, their
    "fold" or their "order".
    """

    model_type = "exact-denoiser"
    fixed_start = False
    decodes_by_pick = False

    def __init__(self, chances: Tensor, bridge: Bridge, reads: Reads) -> None:
        super().__init__()
        self.N = next(N for N in range(1, 9) if math.factorial(N) == len(chances))
        self.bridge, self.reads = bridge, reads
        self.embedder = nn.Identity()
        self.chances = nn.Parameter(chances, requires_grad=False)
        self.orders = all_orders(self.N)
        ranks = ranks_of(self.orders)  # (N!, N)
        # What an order's log-probability sums: [item * N + place, order] = the order has the item at the place.
        self.is_at = nn.functional.one_hot(ranks, self.N).flatten(1).T.double()
        # [noisy order, clean order] = the noisy order in places of the clean one.
        self.relative = number_of(ranks[None].expand(len(chances), -1, -1).gather(2, self._pairs()))
        self.least = -math.ceil(4 * bridge.noise_scale)  # eight deviations below the grid
        self.tables: dict[float, Tensor] = {}

    def _pairs(self) -> Tensor:
        return self.orders[:, None].expand(-1, len(self.orders), -1)  # (noisy, clean, place)

    @property
    def process(self) -> Bridge:
        """The noise process that the posterior is of."""
        return self.bridge

    def own_loss(self) -> None:
        """None: there is nothing to learn."""

    def packed_weights(self) -> None:
        """None: there are no weights."""

    def bytes_per_sample(self, N: int) -> int:
        """Posteriors of one state, and the densities that they are made of."""
        return 8 * (4 * len(self.chances) + 32 * N * N)

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """The items (B, N, 1) themselves, which are not looked at: an item is its number."""
        return items.double()

    def at_soft_ranks(self, embedded: Tensor, z_t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The soft ranks as (B, N, 1): all that is read."""
        return z_t[..., None]

    def posterior(self, z_t: Tensor, order_t: Tensor, t: float) -> Tensor:
        """Chances (B, N!) of the clean orders given soft ranks z_t and their order, both (B, N)."""
        if t == 1:
            return self.chances.expand(len(z_t), -1)
        if t not in self.tables:
            self.tables[t] = self._table(t)
        table = self.tables[t]
        if self.reads == "order":
            return table[number_of(order_t)]
        at = (z_t - self.least if self.reads == "soft-ranks" else reflect(z_t)) * _PER_UNIT
        left = at.long().clamp(0, len(table) - 2)
        log_densities = torch.lerp(table[left], table[left + 1], (at - left)[..., None])  # (B, item, place)
        return (log_densities.flatten(1) @ self.is_at + self.chances.log()).softmax(1)

    def _table(self, t: float) -> Tensor:
        """Of orders: posteriors (noisy order, clean order). Else log-densities (points, place) of an item."""
        noise_scale = self.bridge.noise_scale
        if self.reads == "order":
            joint = chances_of_noisy_orders(self.N, t, noise_scale)[self.relative] * self.chances
            return joint / joint.sum(1, keepdim=True)
        if self.reads == "fold":
            densities = folded_density(*points_and_clean_values(0, 1, self.N), t, noise_scale)
        else:
            densities = density(*points_and_clean_values(self.least, 1 - self.least, self.N), t, noise_scale)
        return densities.clamp(min=1e-300).log()

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
        """An order over slots, drawn as a whole by a row's first uniform number; its log-probability is at place 0."""
        if mask is not None or order is None or choices.uniform is None or not isinstance(t, float):
            raise ValueError("an exact denoiser draws orders without padding, at one time")
        posterior = self.posterior(embedded[..., 0], order, t)
        number = torch.searchsorted(posterior.cumsum(1), choices.uniform[:, :1].contiguous()).clamp(
            max=len(self.chances) - 1
        )
        log_probs = nn.functional.pad(posterior.gather(1, number).log(), (0, self.N - 1))
        slots = ranks_of(order).gather(1, self.orders[number[:, 0]])
        return ops.DecodedOrder(slots, log_probs, torch.ones(len(slots), 2, dtype=torch.int64))
