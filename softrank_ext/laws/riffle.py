"""The riffle law (Gilbert, Shannon, Reeds; Bayer and Diaconis 1992): draws, probabilities, entropy, mixing.

The rest of the package takes the riffle law from here.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributions import constraints

from softrank_ext.checks import check_instance, check_limited, dtype_name
from softrank_ext.laws.orders import OrderDistribution, batch_shape_of, real_first
from softrank_ext.permutations import ranks_of

MOST_CARDS = 2**16
_MOST_BITS = 53  # of a uniform number in float64


class Riffle(OrderDistribution):
    """The order of a deck 0, 1, ..., n - 1 after a number of riffle shuffles.

    P(order) = C(a + n - r, n) / a^n for a = 2^shuffles, r = `rising_sequences(order)`.

    n: number of cards, N. shuffles: integers of at least 0, of any batch shape. mask: (..., n) bool: the deck is the
    real items. There are no gradients. Draws are exact up to 53 shuffles, as many as a uniform number has bits; more
    are drawn as 53, an error in total variation below n^2 / 2^54.
    """

    arg_constraints = {"shuffles": constraints.nonnegative_integer}  # noqa: RUF012

    def __init__(
        self, n: int, shuffles: int | Tensor, mask: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        check_limited("n", n, 1, MOST_CARDS)
        check_instance("shuffles", shuffles, (int, Tensor))
        self.shuffles = torch.as_tensor(shuffles)
        if self.shuffles.is_floating_point() or self.shuffles.dtype == torch.bool:
            raise ValueError(f"shuffles must be integers of at least 0, got {dtype_name(self.shuffles.dtype)}")
        batch_shape = batch_shape_of(self.shuffles.shape, mask)
        self.shuffles = self.shuffles.expand(batch_shape)
        super().__init__(batch_shape, mask, n, self.shuffles.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The unshuffled deck, (*batch_shape, N)."""
        return real_first(self.mask)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """See `OrderDistribution.from_uniform`."""
        # Each place gets a digit: the packet that its card falls from. Packets are consecutive cards, and cards of one
        # packet keep their order, so the card at a place is the place's rank in a stable sort of the digits.
        uniform = self._checked_uniform(uniform)
        places = torch.arange(uniform.shape[-1], device=uniform.device)
        packet = (uniform * 2.0 ** self.shuffles.double().clamp(max=_MOST_BITS)[..., None]).floor()
        packet = packet.masked_fill(places >= self.num_items[..., None], torch.inf)
        cards = ranks_of(packet.argsort(dim=-1, stable=True))
        return self.mode.expand_as(cards).gather(-1, cards)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability (...) in torch's default dtype; -inf for more than 2^shuffles rising sequences."""
        order = self._checked_order(value)
        rising = self._rising_sequences(order)[..., None]
        # log of C(a + n - r, n) / a^n = product of (a - r + j) / (a j) over j = 1 to n: nothing cancels.
        factor = torch.arange(1, order.shape[-1] + 1, device=order.device)
        share = ((factor - rising) / 2.0 ** self.shuffles.double()[..., None]).clamp(min=-1)
        share = share.masked_fill(factor > self.num_items[..., None], 0.0)
        log_prob = share.log1p().sum(-1) - torch.lgamma(self.num_items.double() + 1)
        return log_prob.to(torch.get_default_dtype())

    def log_prob_top(self, order_prefix: Tensor) -> Tensor:
        """Log-probability (...) of an order's first places: an integer sum over rising sequences, row by row."""
        order = self._completed(order_prefix)
        cards = ranks_of(self.mode).expand_as(order).gather(-1, order)[..., : order_prefix.shape[-1]]
        sizes, shuffles = (x.expand(order.shape[:-1]).flatten() for x in (self.num_items, self.shuffles))
        rows = zip(cards.reshape(len(sizes), -1).tolist(), sizes.tolist(), shuffles.tolist(), strict=True)
        log_probs = [_riffle_log_prob_top(prefix, size, shuffle) for prefix, size, shuffle in rows]
        return torch.tensor(log_probs, dtype=torch.get_default_dtype(), device=order.device).reshape(order.shape[:-1])

    def entropy(self) -> Tensor:
        """Entropy in nats, exact: a sum over rising sequences with their Eulerian numbers."""
        return self._of_sizes(_riffle_entropy)

    def total_variation(self) -> Tensor:
        """Total variation distance to the uniform distribution, exact, (*batch_shape)."""
        return self._of_sizes(_riffle_total_variation)

    def _of_sizes(self, number_of: Callable[[int, int], float]) -> Tensor:
        pairs = zip(self.num_items.flatten().tolist(), self.shuffles.flatten().tolist(), strict=True)
        numbers = [number_of(size, shuffles) for size, shuffles in pairs]
        return torch.tensor(numbers, dtype=torch.get_default_dtype(), device=self.mask.device).reshape(self.batch_shape)

    def _rising_sequences(self, order: Tensor) -> Tensor:
        cards = ranks_of(self.mode).expand_as(order).gather(-1, order)
        # Padding stands last and in any order: sorted by card it adds no descent.
        places = torch.arange(order.shape[-1], device=order.device)
        cards = torch.where(places < self.num_items[..., None], cards, places)
        return rising_sequences(cards)


def rising_sequences(order: Tensor) -> Tensor:
    """Number of rising sequences: passes over the order, left to right, that pick up 0, 1, ..., N - 1 in turn.

    One plus the descents of the ranks, not of the order. order: (..., N) int64. Returns (...) int64.
    """
    ranks = ranks_of(order)
    return 1 + (ranks[..., 1:] < ranks[..., :-1]).sum(-1)


@lru_cache(maxsize=1024)
def _eulerian(n: int) -> list[int]:
    """Eulerian numbers: how many orders of n items have 0, 1, ..., n - 1 descents; [1] for n = 0."""
    numbers = [1]
    for size in range(2, n + 1):
        padded = [0, *numbers, 0]
        numbers = [(size - i) * padded[i] + (i + 1) * padded[i + 1] for i in range(size)]
    return numbers


def _riffle_counts(n: int, shuffles: int) -> list[int]:
    """a^n P(order) for orders of 1, 2, ..., n rising sequences, a = 2^shuffles."""
    return [math.comb(2**shuffles + n - rising, n) for rising in range(1, n + 1)]


@lru_cache(maxsize=1024)
def _riffle_entropy(n: int, shuffles: int) -> float:
    total: int = 2 ** (shuffles * n)
    terms = zip(_eulerian(n), _riffle_counts(n, shuffles), strict=False)
    return sum(orders * count / total * (math.log(total) - math.log(count)) for orders, count in terms if count > 0)


@lru_cache(maxsize=1024)
def _riffle_total_variation(n: int, shuffles: int) -> float:
    total: int = 2 ** (shuffles * n)
    factorial = math.factorial(n)
    terms = zip(_eulerian(n), _riffle_counts(n, shuffles), strict=False)
    return sum(orders * abs(count * factorial - total) for orders, count in terms) / (2 * total * factorial)


@lru_cache(maxsize=1024)
def riffle_divergence(n: int, shuffles: int, others: int) -> float:
    """Kullback-Leibler divergence of n cards riffled so many times from those riffled `others` times."""
    total: int = 2 ** (shuffles * n)
    terms = zip(_eulerian(n), _riffle_counts(n, shuffles), _riffle_counts(n, others), strict=False)
    reached = [(orders * count / total, count, other) for orders, count, other in terms if count > 0]
    if any(other == 0 for _, _, other in reached):
        return math.inf
    log_ratio = (others - shuffles) * n * math.log(2)
    return sum(share * (log_ratio + math.log(count) - math.log(other)) for share, count, other in reached)


def _riffle_log_prob_top(prefix: list[int], n: int, shuffles: int) -> float:
    """Log-probability that a riffled deck of n cards begins with those of `prefix`, where places from n on are padding.

    Ranks descend from a card to the next where the next is in the prefix and stands before it. Runs of cards outside
    the prefix stand behind it in any order, so their inner descents have Eulerian numbers and the places are divided
    among the runs: completions by descents = (n - k)! / (m_1! m_2! ...) * the product of the runs' Eulerian
    polynomials.
    """
    prefix = prefix[:n]
    place = {card: at for at, card in enumerate(prefix)}
    known = sum(card in place and place[card] < place.get(card - 1, n) for card in range(1, n))
    completions, free, run = [1], math.factorial(n - len(prefix)), 0
    for card in range(n + 1):
        if card < n and card not in place:
            run += 1
        elif run > 0:
            eulerian = _eulerian(run)
            product = [0] * (len(completions) + len(eulerian) - 1)
            for i, left in enumerate(completions):
                for j, right in enumerate(eulerian):
                    product[i + j] += left * right
            completions, free, run = product, free // math.factorial(run), 0
    packets = 2**shuffles
    count = sum(ways * math.comb(packets + n - 1 - known - extra, n) for extra, ways in enumerate(completions))
    return math.log(free * count) - n * shuffles * math.log(2) if count > 0 else -math.inf
