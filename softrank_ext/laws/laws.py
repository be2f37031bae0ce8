"""Distributions over orders with the face of torch.distributions.

A value is an order, `order[place] = item`, (..., N) int64: event_shape is (N,). `mask` (..., N) bool, True = real item,
lets one batch hold instances of several sizes: an order lists its row's real items first, and the padding behind them,
in whatever order, has no part in its probability. `sample` reads torch's global random numbers; `from_uniform` makes
the same draws from uniform numbers that are given, such as those of `noise.uniform`.
All four laws choose place after place, so that the probability of an order's first places, the sum over all that may
follow, is known exactly: `log_prob_top`.

`Riffle` is the one home of the riffle law (Gilbert, Shannon, Reeds; Bayer and Diaconis 1992): draws, probabilities,
entropy and distance to uniform. `baselines` use it from here.
"""

import math
from functools import lru_cache
from itertools import permutations as itertools_permutations
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from softrank_ext import ops
from softrank_ext.permutations import order_of, ranks_of

MAX_ENUMERATED = 8
MAX_SUBSETS_OF = 12  # items: sums over all sets of first picks have 2^items terms
_MOST_BITS = 53  # of a uniform number in float64

Shape = torch.Size | list[int] | tuple[int, ...]
_Self = TypeVar("_Self", bound="OrderDistribution")


class Permutation(Constraint):
    """Orders (..., N) int64 that hold each of 0 to N - 1 once; with a mask (..., N), real items before padding."""

    is_discrete = True
    event_dim = 1

    def __init__(self, mask: Tensor | None = None) -> None:
        self._mask = mask
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Which orders qualify, bool (...)."""
        items = torch.arange(value.shape[-1], device=value.device)
        is_right = (value.sort(-1).values == items).all(-1)
        if value.dtype != torch.int64 or self._mask is None:
            return is_right & (value.dtype == torch.int64)
        # Items out of range would not gather; they are wrong already.
        shape = torch.broadcast_shapes(self._mask.shape, value.shape)
        is_real = self._mask.expand(shape).gather(-1, value.clamp(0, value.shape[-1] - 1).expand(shape))
        return is_right & (is_real[..., :-1] | ~is_real[..., 1:]).all(-1)


permutation = Permutation()


class _Finite(Constraint):
    def check(self, value: Tensor) -> Tensor:
        return value.isfinite()


_finite = _Finite()


class OrderDistribution(Distribution):
    """What the distributions over orders share.

    A subclass sets its parameters (named in arg_constraints, which tell how many of their dimensions belong to the
    event), then calls `__init__` here. self.mask is (*batch_shape, N) bool.
    """

    has_enumerate_support = True

    def __init__(
        self, batch_shape: torch.Size, mask: Tensor | None, N: int, device: torch.device, validate_args: bool | None
    ) -> None:
        self.mask = _checked_mask(mask, N, device).expand(*batch_shape, N)
        super().__init__(batch_shape, torch.Size((N,)), validate_args)

    @property
    def support(self) -> Permutation:
        return Permutation(self.mask)

    @property
    def num_items(self) -> Tensor:
        """Number of real items, int64 of batch_shape."""
        return self.mask.sum(-1)

    def expand(self: _Self, batch_shape: Shape, _instance: Any = None) -> _Self:
        new = self.__new__(type(self)) if _instance is None else _instance
        batch_shape = torch.Size(batch_shape)
        for name, constraint in self.arg_constraints.items():
            parameter = getattr(self, name)
            event_shape = parameter.shape[parameter.ndim - constraint.event_dim :]
            setattr(new, name, parameter.expand(batch_shape + event_shape))
        new.mask = self.mask.expand(batch_shape + self.event_shape)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All orders, (N!, *batch_shape, N), in lexicographic order; N is at most 8."""
        N, mask = self.event_shape[0], self.mask.reshape(-1, self.event_shape[0])
        if bool((mask != mask[:1]).any()):
            masks = len(mask.unique(dim=0))
            raise NotImplementedError(f"enumerate_support needs one mask for the whole batch, got {masks} masks")
        items = _real_first(mask[0]) if len(mask) > 0 else torch.arange(N, device=mask.device)
        size = int(mask[0].sum()) if len(mask) > 0 else N
        if size > MAX_ENUMERATED:
            raise NotImplementedError(f"enumerate_support is for at most {MAX_ENUMERATED} items, got {size}")
        places = torch.tensor(list(itertools_permutations(range(size))), device=mask.device).reshape(-1, size)
        orders = torch.cat((items[places], items[size:].expand(len(places), N - size)), 1)  # (N!, N)
        orders = orders.reshape(-1, *(1,) * len(self.batch_shape), N)
        return orders.expand(-1, *self.batch_shape, N) if expand else orders

    @torch.no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Orders (*sample_shape, *batch_shape, N)."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.from_uniform(torch.rand(shape, dtype=torch.float64, device=self.mask.device))

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """The orders (..., N) that uniform numbers give. uniform: (..., N) float64 in [0, 1), broadcast to the batch.

        float64, because 24 random bits are too few where probabilities are small.
        """
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability (...) of orders (..., N) int64, differentiable in the parameters that are float."""
        return self._log_probs(self._checked_order(value)).sum(-1)

    def log_prob_top(self, order_prefix: Tensor) -> Tensor:
        """Log-probability (...) that the order begins so: that of all orders that do, summed.

        order_prefix: (..., places) int64, `order_prefix[place] = item`, from 0 to N places.
        """
        return self._log_probs(self._completed(order_prefix))[..., : order_prefix.shape[-1]].sum(-1)

    def _log_probs(self, order: Tensor) -> Tensor:
        """Log-probability of each pick given those before it, (..., N), 0 at padded places."""
        raise NotImplementedError

    def _checked_uniform(self, uniform: Tensor) -> Tensor:
        if uniform.dtype != torch.float64 or uniform.shape[-1:] != self.event_shape:
            wanted = f"(..., {self.event_shape[0]}) float64"
            raise ValueError(f"uniform must be {wanted} in [0, 1), got {tuple(uniform.shape)} {uniform.dtype}")
        return uniform.expand(torch.broadcast_shapes(uniform.shape, self.mask.shape))

    def _checked_order(self, order: Tensor) -> Tensor:
        """The order, broadcast to the batch."""
        if order.dtype != torch.int64:
            raise ValueError(f"value must be an int64 order, order[place] = item, got {order.dtype}")
        if self._validate_args:
            self._validate_sample(order)
        return order.expand(torch.broadcast_shapes(order.shape, self.mask.shape))

    def _completed(self, order_prefix: Tensor) -> Tensor:
        """An order that begins with the prefix, broadcast to the batch; what follows goes by item, padding last."""
        N = self.event_shape[0]
        if order_prefix.dtype != torch.int64 or order_prefix.ndim == 0 or order_prefix.shape[-1] > N:
            got = f"{tuple(order_prefix.shape)} {order_prefix.dtype}"
            raise ValueError(f"order_prefix must be (..., places) int64 with at most {N} places, got {got}")
        if self._validate_args and bool(((order_prefix < 0) | (order_prefix >= N)).any()):
            raise ValueError(f"order_prefix must hold items from 0 to {N - 1}, got {order_prefix.tolist()}")
        places = order_prefix.shape[-1]
        shape = torch.broadcast_shapes(order_prefix.shape[:-1], self.batch_shape)
        prefix = order_prefix.expand(*shape, places)
        key = torch.arange(N, device=prefix.device) + N * (1 + ~self.mask.expand(*shape, N))
        # A place below N sorts before every key. An item that comes twice leaves a wrong order, which is told below.
        key = key.scatter(-1, prefix, torch.arange(places, device=prefix.device).expand(prefix.shape))
        order = torch.cat((prefix, key.argsort(-1)[..., places:]), -1)
        return self._checked_order(order)


class PlackettLuce(OrderDistribution):
    """Items are taken one after another, each with probability proportional to exp(score) among those that remain.

    scores: (..., N) float, finite at real items, any common shift is the same law. mask: (..., N) bool.
    """

    arg_constraints = {"scores": constraints.independent(_finite, 1)}  # noqa: RUF012

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, "(..., N)", 1)
        N = scores.shape[-1]
        batch_shape = _batch_shape(scores.shape[:-1], mask)
        self.scores = scores.expand(*batch_shape, N)
        if mask is not None:
            self.scores = self.scores.masked_fill(~_checked_mask(mask, N, scores.device), 0.0)
        super().__init__(batch_shape, mask, N, scores.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The items by falling score, the lower item first where scores are equal; (*batch_shape, N)."""
        return self.scores.masked_fill(~self.mask, -torch.inf).argsort(dim=-1, descending=True, stable=True)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        # A race: item i arrives after an exponential time of rate exp(score_i). Here is the logarithm of that time.
        arrival = torch.log(-torch.log1p(-self._checked_uniform(uniform))) - self.scores.double()
        return arrival.masked_fill(~self.mask, torch.inf).argsort(dim=-1, stable=True)

    def entropy(self) -> Tensor:
        """Entropy in nats, exact, for at most 12 items: a sum over all sets of first picks."""
        N = self.event_shape[0]
        return _entropy_over_subsets(self.scores[..., None, :].expand(*self.batch_shape, N, N), self.mask)

    def _log_probs(self, order: Tensor) -> Tensor:
        places = torch.arange(order.shape[-1], device=order.device)
        arranged = self.scores.expand(order.shape).gather(-1, order)
        return _race_log_probs(arranged, places < self.num_items[..., None])


class GeneralizedPlackettLuce(OrderDistribution):
    """Plackett-Luce with scores of its own at each place: a softmax over the items that remain, place after place.

    scores: (..., N, N) float, place by item, finite at real places and items; a shift of a place's scores changes
    nothing. mask: (..., N) bool, real items; a row of n real items uses the scores of its first n places.
    """

    arg_constraints = {"scores": constraints.independent(_finite, 2)}  # noqa: RUF012

    def __init__(self, scores: Tensor, mask: Tensor | None = None, validate_args: bool | None = None) -> None:
        _check_scores(scores, "(..., N, N), place by item", 2)
        N = scores.shape[-1]
        batch_shape = _batch_shape(scores.shape[:-2], mask)
        self.scores = scores.expand(*batch_shape, N, N)
        if mask is not None:
            mask = _checked_mask(mask, N, scores.device)
            is_place = torch.arange(N, device=scores.device) < mask.sum(-1, keepdim=True)
            self.scores = self.scores.masked_fill(~(is_place[..., None] & mask[..., None, :]), 0.0)
        super().__init__(batch_shape, mask, N, scores.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The most probable order, (*batch_shape, N), exact, for at most 12 items: the best way through subsets."""
        return _mode_over_subsets(self.scores, self.mask)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        uniform, N = self._checked_uniform(uniform), self.event_shape[0]
        scores = self.scores.detach().double().expand(*uniform.shape, N).reshape(-1, N, N)
        mask = self.mask.expand(uniform.shape).reshape(-1, N)
        order, _ = ops.decode_scores(scores, mask, ops.Choices(uniform=uniform.reshape(-1, N)))
        return order.reshape(uniform.shape)

    def entropy(self) -> Tensor:
        """Entropy in nats, exact, for at most 12 items: a sum over all sets of first picks."""
        return _entropy_over_subsets(self.scores, self.mask)

    def _log_probs(self, order: Tensor) -> Tensor:
        scores = self.scores.expand(*order.shape, order.shape[-1])
        return stagewise_log_probs(scores, order, self.mask.expand(order.shape))


def fit_plackett_luce(
    order: Tensor,
    known: Tensor | None = None,
    *,
    num_items: int | None = None,
    counts: Tensor | None = None,
    l2: float = 0.0,
    max_iterations: int = 500,
) -> PlackettLuce:
    """The Plackett-Luce law of highest likelihood given rankings; its scores (N,) are float64 and have mean 0.

    order: (R, K) int64, `order[r, place] = item`, -1 behind a ranking's last item. Without `known` a ranking compares
    the items that it lists, and says nothing about others. known: (R,) int64: the first `known` places of a ranking are
    as given, and all other of the N items stand behind them in an order that is not known (top-k lists, ballots).
    num_items: N; the highest item that occurs + 1 if None. counts: (R,) how often each ranking occurs.
    l2: adds -l2/2 |scores|^2 to the log-likelihood, a Gaussian prior of variance 1 / l2.

    Without l2 there is a maximum only if, however the items are split in two groups, some item of each stands before
    one of the other in some ranking. Raises ValueError if not, naming such a group.
    """
    items, size, known, N = _checked_rankings(order, known, num_items)
    weights = torch.ones(len(items)) if counts is None else counts
    if weights.shape != known.shape or not bool((weights > 0).all()):
        raise ValueError(f"counts must be ({len(items)},) positive numbers, got {tuple(weights.shape)}")
    if not 0 <= l2 < math.inf:
        raise ValueError(f"l2 must be at least 0 and finite, got {l2}")
    if l2 == 0:
        _check_connected(items, size, known, N)
    places = torch.arange(items.shape[1], device=items.device)
    weights = (weights.to(items.device, torch.float64)[:, None] * (places < known[:, None])) / len(items)
    scores = torch.zeros(N, dtype=torch.float64, device=items.device, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [scores], max_iter=max_iterations, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        log_probs = _race_log_probs(scores[items], places < size[:, None])
        value = l2 / len(items) / 2 * (scores**2).sum() - (weights * log_probs).sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
        loss()
    assert scores.grad is not None
    steepest = float(scores.grad.abs().max())
    if not steepest < 1e-6:
        raise RuntimeError(f"no maximum within max_iterations = {max_iterations}: a gradient of {steepest:.1e} is left")
    return PlackettLuce((scores - scores.mean()).detach())


def _checked_rankings(order: Tensor, known: Tensor | None, num_items: int | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """Items (R, M) that each ranking is about, their number (R,), how many of the first are ranked (R,), and N."""
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.ndim != 2 or order.numel() == 0:
        got = f"{tuple(order.shape)} {order.dtype}" if isinstance(order, Tensor) else type(order).__name__
        raise ValueError(f"order must be (R, K) int64, at least one ranking, got {got}")
    N = int(order.max()) + 1 if num_items is None else num_items
    if not -1 <= int(order.min()) <= int(order.max()) < N:
        raise ValueError(
            f"order must hold items from 0 to {N - 1}, or -1, got {int(order.min())} to {int(order.max())}"
        )
    places = torch.arange(order.shape[1], device=order.device)
    size = (order >= 0).sum(1)
    if known is None:
        known = size
    elif known.shape != size.shape or known.dtype != torch.int64:
        raise ValueError(f"known must be ({len(order)},) int64, got {tuple(known.shape)} {known.dtype}")
    is_known = places < known[:, None]
    ranks = torch.full((len(order), N + 1), N, device=order.device)  # column N takes what is not known
    ranks.scatter_(1, torch.where(is_known, order, -1) % (N + 1), places.expand_as(order))
    is_wrong = (known < 0) | ((ranks[:, :N] < N).sum(1) != known)
    if bool(is_wrong.any()):
        row = int(is_wrong.nonzero()[0])
        raise ValueError(
            f"order must list different items in its first {int(known[row])} places, row {row} is {order[row].tolist()}"
        )
    by_rank = ranks[:, :N].argsort(dim=1, stable=True)  # those that are known, then the others
    return by_rank, size if known is size else torch.full_like(size, N), known, N


def _check_connected(items: Tensor, size: Tensor, known: Tensor, N: int) -> None:
    """Raise ValueError if some group of items never stands behind one of the others."""
    if items.shape[1] < 2:
        return
    places = torch.arange(1, items.shape[1], device=items.device)
    # Before each item: the one that is ranked next before it, the last ranked one before all that are not ranked.
    before = torch.minimum(places, known[:, None]) - 1
    is_pair = (before >= 0) & (places < size[:, None])
    winner, loser = items.gather(1, before.clamp(min=0))[is_pair], items[:, 1:][is_pair]
    reaches = torch.eye(N, device=items.device)
    reaches[winner, loser] = 1.0
    for _ in range(N.bit_length()):
        reaches = (reaches @ reaches).clamp(max=1.0)
    fewest = reaches.sum(0).argmin()
    group = reaches[:, fewest].nonzero().flatten().tolist()
    if len(group) < N:
        raise ValueError(
            f"the rankings have no likeliest scores: items {group} never stand behind one of the others; "
            "give more rankings, or l2 above 0"
        )


def stagewise_log_probs(scores: Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of each of an order's picks among the items that remained, (..., N), 0 at padded places.

    scores: (..., N, N), place by item. order: (..., N) int64, real items first. mask: (..., N) bool, None for all real.
    """
    places = torch.arange(order.shape[-1], device=order.device)
    remaining = ranks_of(order)[..., None, :] >= places[:, None]  # (..., place, item)
    if mask is None:
        return scores.masked_fill(~remaining, -torch.inf).log_softmax(-1).gather(-1, order[..., None])[..., 0]
    # At a padded place nothing remains. Left open, its softmax is finite, and so is its gradient, which is 0.
    is_padded_place = places >= mask.sum(-1, keepdim=True)  # (..., place)
    remaining = (remaining & mask[..., None, :]) | is_padded_place[..., None]
    log_probs = scores.masked_fill(~remaining, -torch.inf).log_softmax(-1)
    return log_probs.gather(-1, order[..., None])[..., 0].masked_fill(is_padded_place, 0.0)


def _race_log_probs(arranged: Tensor, is_real: Tensor) -> Tensor:
    """`stagewise_log_probs` of one score per item: arranged (..., places), the scores in the order's order."""
    # Not -inf: a sum over nothing but padding, though dropped, would have a gradient of NaN.
    finite = arranged.masked_fill(~is_real, torch.finfo(arranged.dtype).min / 2)
    log_sums = finite.flip(-1).logcumsumexp(-1).flip(-1)
    return (finite - log_sums).masked_fill(~is_real, 0.0)


def _subset_log_probs(scores: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """All sets of `size` first picks, and the next pick's law given each.

    scores: (..., N, N). mask: (..., N). Returns sets (M,) int64, bit i for item i; remaining (..., M, N) bool; and
    log_probs (..., M, N), 0 where an item does not remain.
    """
    N = mask.shape[-1]
    sets = torch.arange(2**N, device=mask.device)
    is_taken = (sets[:, None] >> torch.arange(N, device=mask.device)) & 1 == 1  # (2^N, N)
    is_of_size = is_taken.sum(1) == size
    sets, is_taken = sets[is_of_size], is_taken[is_of_size]
    remaining = mask[..., None, :] & ~is_taken
    is_open = remaining | ~remaining.any(-1, keepdim=True)  # a softmax over nothing would be NaN
    log_probs = scores[..., size, None, :].masked_fill(~is_open, -torch.inf).log_softmax(-1)
    return sets, remaining, log_probs.masked_fill(~remaining, 0.0)


def _check_subsets(name: str, N: int) -> None:
    if N > MAX_SUBSETS_OF:
        raise NotImplementedError(f"{name} is exact, over all subsets, for at most {MAX_SUBSETS_OF} items, got {N}")


def _entropy_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """Sum over sets of first picks of their probability times the entropy of the next pick."""
    N = mask.shape[-1]
    _check_subsets("entropy", N)
    reached = scores.new_zeros(*mask.shape[:-1], 2**N)
    reached[..., 0] = 1.0
    entropy = scores.new_zeros(mask.shape[:-1])
    for size in range(N):
        sets, remaining, log_probs = _subset_log_probs(scores, mask, size)
        here = reached[..., sets]
        probs = log_probs.exp() * remaining
        entropy = entropy - (here * (probs * log_probs).sum(-1)).sum(-1)
        after = sets[:, None] | (1 << torch.arange(N, device=mask.device))  # (M, N)
        # Where an item does not remain, what is added is 0.
        reached = reached.index_add(-1, after.flatten(), (here[..., None] * probs).flatten(-2))
    return entropy


@torch.no_grad()
def _mode_over_subsets(scores: Tensor, mask: Tensor) -> Tensor:
    """The order of highest probability, by the best way on from every set of first picks."""
    N = mask.shape[-1]
    _check_subsets("mode", N)
    best = scores.new_zeros(*mask.shape[:-1], 2**N)
    choice = torch.zeros(best.shape, dtype=torch.int64, device=mask.device)
    items = torch.arange(N, device=mask.device)
    for size in reversed(range(N)):
        sets, remaining, log_probs = _subset_log_probs(scores, mask, size)
        onward = log_probs + best[..., sets[:, None] | (1 << items)]
        value, choice[..., sets] = onward.masked_fill(~remaining, -torch.inf).max(-1)
        best[..., sets] = value.masked_fill(~remaining.any(-1), 0.0)
    taken = torch.zeros(*mask.shape[:-1], 1, dtype=torch.int64, device=mask.device)
    picks = []
    for _ in range(N):
        picks.append(choice.gather(-1, taken))
        taken = taken | (1 << picks[-1])
    order = torch.cat(picks, -1)
    # Past a row's last real item nothing was chosen: the padding goes there.
    is_place = items < mask.sum(-1, keepdim=True)
    return torch.where(is_place, order, _real_first(mask))


class Mallows(OrderDistribution):
    """P(order) proportional to dispersion^d, d = the pairs of items that stand the other way round than in the center.

    center: (..., N) int64, an order, real items first. dispersion: (...) float, from 0 (the center alone) to 1
    (uniform). mask: (..., N) bool.
    """

    arg_constraints = {"center": permutation, "dispersion": constraints.unit_interval}  # noqa: RUF012

    def __init__(
        self,
        center: Tensor,
        dispersion: float | Tensor,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(center, Tensor) or center.dtype != torch.int64 or center.ndim == 0 or center.shape[-1] == 0:
            got = f"{tuple(center.shape)} {center.dtype}" if isinstance(center, Tensor) else type(center).__name__
            raise ValueError(f"center must be (..., N) int64, order[place] = item, got {got}")
        self.dispersion = torch.as_tensor(dispersion, device=center.device)
        if not self.dispersion.is_floating_point():
            raise ValueError(f"dispersion must be float, from 0 to 1, got {self.dispersion.dtype}")
        N = center.shape[-1]
        batch_shape = _batch_shape(torch.broadcast_shapes(center.shape[:-1], self.dispersion.shape), mask)
        self.center = center.expand(*batch_shape, N)
        self.dispersion = self.dispersion.expand(batch_shape)
        super().__init__(batch_shape, mask, N, center.device, validate_args)
        if self._validate_args and not bool(self.support.check(self.center).all()):
            raise ValueError(f"center must list real items before padding, got {self.center.tolist()}")

    @property
    def mode(self) -> Tensor:
        return self.center

    @property
    def log_normalizer(self) -> Tensor:
        """Log of the sum of dispersion^d over all orders, (*batch_shape)."""
        places = torch.arange(self.event_shape[0], device=self.mask.device)
        return self._log_sums().masked_fill(places >= self.num_items[..., None], 0.0).sum(-1)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """Repeated insertion: the center's item i goes before u of the i items that are there, P(u) ~ dispersion^u."""
        uniform = self._checked_uniform(uniform)
        sums = self._powers(self.dispersion.detach().double()).cumsum(-1)  # (*batch_shape, N)
        sums = sums.expand(uniform.shape).contiguous()
        places = torch.arange(uniform.shape[-1], device=uniform.device)
        passed = torch.searchsorted(sums, uniform * sums, right=True).minimum(places)
        passed = passed.masked_fill(places >= self.num_items[..., None], 0)
        place_of = places - passed
        for i in range(1, len(places)):
            place_of[..., :i] += place_of[..., :i] >= place_of[..., i : i + 1]
        return self.center.expand_as(place_of).gather(-1, order_of(place_of))

    def entropy(self) -> Tensor:
        """Entropy in nats, exact."""
        powers = self._powers(self.dispersion)
        places = torch.arange(powers.shape[-1], device=powers.device)
        # Number of pairs that item i of the center, on insertion, turns round: its mean.
        turned = (places * powers).cumsum(-1) / powers.cumsum(-1)
        turned = turned.masked_fill(places >= self.num_items[..., None], 0.0).sum(-1)
        return self.log_normalizer - torch.xlogy(turned, self.dispersion)

    def _log_probs(self, order: Tensor) -> Tensor:
        # The pick at a place turns round its pairs with the remaining items that the center has before it, and all
        # numbers of those, 0 to remaining - 1, can occur whatever was picked before.
        N = order.shape[-1]
        places = torch.arange(N, device=order.device)
        central = ranks_of(self.center).expand_as(order).gather(-1, order)
        is_turned = central[..., None] > central[..., None, :]  # (..., place, later place)
        is_turned = is_turned & (places[:, None] < places) & self.mask.expand_as(order).gather(-1, order)[..., None, :]
        turned = is_turned.sum(-1)
        left = self.num_items[..., None] - places  # remaining items at each place
        log_sums = self._log_sums().expand(order.shape).gather(-1, (left - 1).clamp(min=0).expand(order.shape))
        # Not xlogy: its gradient at dispersion 0 is 0 / 0 where nothing is turned.
        log_power = turned * torch.where(turned > 0, self.dispersion[..., None], 1.0).log()
        return (log_power - log_sums).masked_fill(left <= 0, 0.0)

    def _powers(self, dispersion: Tensor) -> Tensor:
        return dispersion[..., None] ** torch.arange(self.event_shape[0], device=dispersion.device)

    def _log_sums(self) -> Tensor:
        """Log of the sum of dispersion^v over v = 0 to i, for i = 0 to N - 1: (*batch_shape, N)."""
        return self._powers(self.dispersion).cumsum(-1).log()


class Riffle(OrderDistribution):
    """The order of a deck 0, 1, ..., n - 1 after a number of riffle shuffles.

    P(order) = C(a + n - r, n) / a^n for a = 2^shuffles, r = `rising_sequences(order)`.

    n: cards, N. shuffles: integers of at least 0, of any batch shape. mask: (..., n) bool: the deck is the real items.
    Nothing here has a gradient. Draws are exact up to 53 shuffles, as many as a uniform number has bits; more are drawn
    as 53, which moves the law by a total variation below n^2 / 2^54.
    """

    arg_constraints = {"shuffles": constraints.nonnegative_integer}  # noqa: RUF012

    def __init__(
        self, n: int, shuffles: int | Tensor, mask: Tensor | None = None, validate_args: bool | None = None
    ) -> None:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n must be an integer of at least 1, got {n!r}")
        self.shuffles = torch.as_tensor(shuffles)
        if self.shuffles.is_floating_point() or self.shuffles.dtype == torch.bool:
            raise ValueError(f"shuffles must be integers of at least 0, got {self.shuffles.dtype}")
        batch_shape = _batch_shape(self.shuffles.shape, mask)
        self.shuffles = self.shuffles.expand(batch_shape)
        super().__init__(batch_shape, mask, n, self.shuffles.device, validate_args)

    @property
    def mode(self) -> Tensor:
        """The unshuffled deck, (*batch_shape, N)."""
        return _real_first(self.mask)

    def from_uniform(self, uniform: Tensor) -> Tensor:
        # Each place gets a digit: the packet that its card falls from. Packets are consecutive cards, and cards of one
        # packet keep their order, so the card at a place is the place's rank in a stable sort of the digits.
        uniform = self._checked_uniform(uniform)
        places = torch.arange(uniform.shape[-1], device=uniform.device)
        packet = (uniform * 2.0 ** self.shuffles.double().clamp(max=_MOST_BITS)[..., None]).floor()
        packet = packet.masked_fill(places >= self.num_items[..., None], torch.inf)
        cards = ranks_of(packet.argsort(dim=-1, stable=True))
        return self.mode.expand_as(cards).gather(-1, cards)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability (...) in torch's default dtype; -inf for orders of more than 2^shuffles rising sequences."""
        order = self._checked_order(value)
        rising = self._rising_sequences(order)[..., None]
        # log of C(a + n - r, n) / a^n = product of (a - r + j) / (a j) over j = 1 to n: nothing cancels.
        factor = torch.arange(1, order.shape[-1] + 1, device=order.device)
        share = ((factor - rising) / 2.0 ** self.shuffles.double()[..., None]).clamp(min=-1)
        share = share.masked_fill(factor > self.num_items[..., None], 0.0)
        log_prob = share.log1p().sum(-1) - torch.lgamma(self.num_items.double() + 1)
        return log_prob.to(torch.get_default_dtype())

    def log_prob_top(self, order_prefix: Tensor) -> Tensor:
        """Log-probability (...) that the order begins so: a sum over rising sequences in whole numbers, row by row."""
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

    def _of_sizes(self, number_of: Any) -> Tensor:
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
    total = 2 ** (shuffles * n)
    terms = zip(_eulerian(n), _riffle_counts(n, shuffles), strict=False)
    return sum(orders * count / total * (math.log(total) - math.log(count)) for orders, count in terms if count > 0)


@lru_cache(maxsize=1024)
def _riffle_total_variation(n: int, shuffles: int) -> float:
    total, factorial = 2 ** (shuffles * n), math.factorial(n)
    terms = zip(_eulerian(n), _riffle_counts(n, shuffles), strict=False)
    return sum(orders * abs(count * factorial - total) for orders, count in terms) / (2 * total * factorial)


def _riffle_log_prob_top(prefix: list[int], n: int, shuffles: int) -> float:
    """Log-probability that a riffled deck of n cards begins with those of `prefix`, where places from n on are padding.

    Ranks descend from a card to the next where the next is in the prefix and stands before it. Runs of cards outside
    the prefix stand behind it in any order, so their inner descents have Eulerian numbers and the runs share out the
    places: completions by descents = (n - k)! / (m_1! m_2! ...) * the product of the runs' Eulerian polynomials.
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


def _real_first(mask: Tensor) -> Tensor:
    """An order that lists the real items by number, then the padding. mask: (..., N) bool."""
    return (~mask).to(torch.int8).argsort(dim=-1, stable=True)


def _batch_shape(shape: torch.Size, mask: Tensor | None) -> torch.Size:
    return shape if mask is None else torch.broadcast_shapes(shape, mask.shape[:-1])


def _check_scores(scores: Tensor, shape: str, ndim: int) -> None:
    is_wrong = not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.ndim < ndim
    if is_wrong or scores.shape[-1] == 0 or scores.shape[-ndim] != scores.shape[-1]:
        got = f"{tuple(scores.shape)} {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"scores must be {shape}, float, with N at least 1, got {got}")


def _checked_mask(mask: Tensor | None, N: int, device: torch.device) -> Tensor:
    if mask is None:
        return torch.ones(N, dtype=torch.bool, device=device)
    if mask.dtype != torch.bool or mask.shape[-1:] != (N,):
        raise ValueError(f"mask must be (..., {N}) bool, True = real item, got {tuple(mask.shape)} {mask.dtype}")
    return mask
