"""What the laws over orders share: their support, and the torch.distributions interface.

A value is an order, `order[place] = item`, (..., N) int64: event_shape is (N,). `mask` (..., N) bool, True = real item,
lets one batch hold instances of several sizes: an order lists its row's real items first, and the padding behind them,
in any order, has no part in its probability.
"""

from itertools import permutations as itertools_permutations
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from softrank_ext.checks import check_tensor, described

MAX_ENUMERATED = 8

Shape = torch.Size | list[int] | tuple[int, ...]
_Self = TypeVar("_Self", bound="OrderDistribution")


class Permutation(Constraint):
    """Orders (..., N) int64 that hold each of 0 to N - 1 once; with a mask (..., N), real items before padding."""

    is_discrete = True
    event_dim = 1

    def __init__(self, mask: Tensor | None = None) -> None:
        self._mask = mask
        super().__init__()

    def __repr__(self) -> str:
        return "Permutation()" if self._mask is None else f"Permutation(mask={tuple(self._mask.shape)})"

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


class Finite(Constraint):
    """Finite numbers; the last event_dim dimensions belong together. Unlike torch's own, for empty batches too."""

    def __init__(self, event_dim: int) -> None:
        self.event_dim = event_dim
        super().__init__()

    def __repr__(self) -> str:
        return f"Finite(event_dim={self.event_dim})"

    def check(self, value: Tensor) -> Tensor:
        """Which blocks of numbers qualify, bool of the leading shape of value."""
        return value.isfinite().flatten(value.ndim - self.event_dim).all(-1)


class OrderDistribution(Distribution):
    """A distribution over orders, with the torch.distributions interface.

    A subclass sets its parameters (named in arg_constraints, which tell how many of their dimensions belong to the
    event), then calls `__init__` here. self.mask is (*batch_shape, N) bool.
    """

    has_enumerate_support = True

    def __init__(
        self, batch_shape: torch.Size, mask: Tensor | None, N: int, device: torch.device, validate_args: bool | None
    ) -> None:
        self.mask = checked_mask(mask, N, device).expand(*batch_shape, N)
        super().__init__(batch_shape, torch.Size((N,)), validate_args)

    @property
    def support(self) -> Permutation:
        """The orders that have a probability: real items before padding."""
        return Permutation(self.mask)

    @property
    def num_items(self) -> Tensor:
        """Number of real items, int64 of batch_shape."""
        return self.mask.sum(-1)

    def expand(self: _Self, batch_shape: Shape, _instance: Any = None) -> _Self:
        """The same law with its parameters expanded to this batch shape."""
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
        items = real_first(mask[0]) if len(mask) > 0 else torch.arange(N, device=mask.device)
        size = int(mask[0].sum()) if len(mask) > 0 else N
        if size > MAX_ENUMERATED:
            raise NotImplementedError(f"enumerate_support is for at most {MAX_ENUMERATED} items, got {size}")
        places = torch.tensor(list(itertools_permutations(range(size))), device=mask.device).reshape(-1, size)
        orders = torch.cat((items[places], items[size:].expand(len(places), N - size)), 1)  # (N!, N)
        orders = orders.reshape(-1, *(1,) * len(self.batch_shape), N)
        return orders.expand(-1, *self.batch_shape, N) if expand else orders

    @torch.no_grad()
    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw orders (*sample_shape, *batch_shape, N) by torch's global random numbers."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return self.from_uniform(torch.rand(shape, dtype=torch.float64, device=self.mask.device))

    def from_uniform(self, uniform: Tensor) -> Tensor:
        """Draw orders (..., N) by the uniform numbers given, such as those of `noise.uniform`.

        uniform: (..., N) float64 in [0, 1), broadcast to the batch; 24 random bits are too few for small probabilities.
        """
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability (...) of orders (..., N) int64, differentiable in the parameters that are float."""
        return self._log_probs(self._checked_order(value)).sum(-1)

    def log_prob_top(self, order_prefix: Tensor) -> Tensor:
        """Log-probability (...) of an order's first places, summed over all that may follow.

        order_prefix: (..., places) int64, `order_prefix[place] = item`, from 0 to N places.
        """
        return self._log_probs(self._completed(order_prefix))[..., : order_prefix.shape[-1]].sum(-1)

    def _log_probs(self, order: Tensor) -> Tensor:
        """Log-probability of each pick given those before it, (..., N), 0 at padded places."""
        raise NotImplementedError

    def _checked_uniform(self, uniform: Tensor) -> Tensor:
        check_tensor("uniform", uniform, ("...", self.event_shape[0]), torch.float64)
        return uniform.expand(torch.broadcast_shapes(uniform.shape, self.mask.shape))

    def _checked_order(self, order: Tensor) -> Tensor:
        """The order, broadcast to the batch."""
        check_tensor("value", order, ("...", "N"), torch.int64, "; it is an order, order[place] = item")
        if self._validate_args:
            self._validate_sample(order)
        return order.expand(torch.broadcast_shapes(order.shape, self.mask.shape))

    def _completed(self, order_prefix: Tensor) -> Tensor:
        """An order that begins with the prefix, broadcast to the batch; the others follow by item, padding last."""
        N = self.event_shape[0]
        check_tensor("order_prefix", order_prefix, ("...", "places"), torch.int64)
        if order_prefix.shape[-1] > N:
            raise ValueError(f"order_prefix must have at most {N} places, got {described(order_prefix)}")
        if self._validate_args and bool(((order_prefix < 0) | (order_prefix >= N)).any()):
            raise ValueError(f"order_prefix must hold items from 0 to {N - 1}, got {order_prefix.tolist()}")
        places = order_prefix.shape[-1]
        shape = torch.broadcast_shapes(order_prefix.shape[:-1], self.batch_shape)
        prefix = order_prefix.expand(*shape, places)
        key = torch.arange(N, device=prefix.device) + N * (1 + ~self.mask.expand(*shape, N))
        # A place below N sorts before every key. An item named twice leaves a wrong order, which the check below finds.
        key = key.scatter(-1, prefix, torch.arange(places, device=prefix.device).expand(prefix.shape))
        order = torch.cat((prefix, key.argsort(-1)[..., places:]), -1)
        return self._checked_order(order)


def real_first(mask: Tensor) -> Tensor:
    """An order that lists the real items by number, then the padding. mask: (..., N) bool."""
    return (~mask).to(torch.int8).argsort(dim=-1, stable=True)


def batch_shape_of(shape: torch.Size, mask: Tensor | None) -> torch.Size:
    """The batch shape of parameters of batch shape `shape` together with a mask."""
    return shape if mask is None else torch.broadcast_shapes(shape, mask.shape[:-1])


def checked_mask(mask: Tensor | None, N: int, device: torch.device) -> Tensor:
    """The mask (..., N) bool, checked; all True (N,) if there is none."""
    if mask is None:
        return torch.ones(N, dtype=torch.bool, device=device)
    return check_tensor("mask", mask, ("...", N), torch.bool)
