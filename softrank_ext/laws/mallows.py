"""The Mallows law: probabilities that fall with the distance to a center, in disagreeing pairs."""

import torch
from torch import Tensor
from torch.distributions import constraints

from softrank_ext.checks import check_instance, check_tensor, described, dtype_name
from softrank_ext.laws.orders import OrderDistribution, batch_shape_of, permutation
from softrank_ext.permutations import order_of, ranks_of


class Mallows(OrderDistribution):
    """P(order) is proportional to dispersion^d, d = the number of pairs of items in the opposite order to the center's.

    center: (..., N) int64, an order, real items first. dispersion: (...) float, from 0 (always the center) to 1
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
        check_tensor("center", center, ("...", "N"), torch.int64)
        if center.shape[-1] == 0:
            raise ValueError(f"center must have at least one item, got {described(center)}")
        check_instance("dispersion", dispersion, (int, float, Tensor))
        self.dispersion = torch.as_tensor(dispersion, device=center.device)
        if not self.dispersion.is_floating_point():
            raise ValueError(f"dispersion must be float, from 0 to 1, got {dtype_name(self.dispersion.dtype)}")
        N = center.shape[-1]
        batch_shape = batch_shape_of(torch.broadcast_shapes(center.shape[:-1], self.dispersion.shape), mask)
        self.center = center.expand(*batch_shape, N)
        self.dispersion = self.dispersion.expand(batch_shape)
        super().__init__(batch_shape, mask, N, center.device, validate_args)
        if self._validate_args and not bool(self.support.check(self.center).all()):
            raise ValueError(f"center must list real items before padding, got {self.center.tolist()}")

    @property
    def mode(self) -> Tensor:
        """The center."""
        return self.center

    @property
    def log_normalizer(self) -> Tensor:
        """Log of the sum of dispersion^d over all orders, (*batch_shape)."""
        places = torch.arange(self.event_shape[0], device=self.mask.device)
        return self._log_sums().masked_fill(places >= self.num_items[..., None], 0.0).sum(-1)

    @property
    def mean_distance(self) -> Tensor:
        """Mean number of pairs in the opposite order to the center's, (*batch_shape)."""
        powers = self._powers(self.dispersion)
        places = torch.arange(powers.shape[-1], device=powers.device)
        # The mean number of pairs that item i of the center reverses when it is inserted.
        reversed_pairs = (places * powers).cumsum(-1) / powers.cumsum(-1)
        return reversed_pairs.masked_fill(places >= self.num_items[..., None], 0.0).sum(-1)

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
        return self.log_normalizer - torch.xlogy(self.mean_distance, self.dispersion)

    def _log_probs(self, order: Tensor) -> Tensor:
        # The pick at a place reverses its pairs with the remaining items that the center has before it. Their number
        # can be anything from 0 to remaining - 1, whatever was picked before.
        N = order.shape[-1]
        places = torch.arange(N, device=order.device)
        central = ranks_of(self.center).expand_as(order).gather(-1, order)
        is_real = self.mask.expand_as(order).gather(-1, order)
        is_reversed = central[..., None] > central[..., None, :]  # (..., place, later place)
        is_reversed = is_reversed & (places[:, None] < places) & is_real[..., None, :]
        reversed_pairs = is_reversed.sum(-1)
        left = self.num_items[..., None] - places  # remaining items at each place
        log_sums = self._log_sums().expand(order.shape).gather(-1, (left - 1).clamp(min=0).expand(order.shape))
        # Not xlogy: its gradient at dispersion 0 is 0 / 0 where no pair is reversed.
        log_power = reversed_pairs * torch.where(reversed_pairs > 0, self.dispersion[..., None], 1.0).log()
        return (log_power - log_sums).masked_fill(left <= 0, 0.0)

    def _powers(self, dispersion: Tensor) -> Tensor:
        return dispersion[..., None] ** torch.arange(self.event_shape[0], device=dispersion.device)

    def _log_sums(self) -> Tensor:
        """Log of the sum of dispersion^v over v = 0 to i, for i = 0 to N - 1: (*batch_shape, N)."""
        return self._powers(self.dispersion).cumsum(-1).log()
