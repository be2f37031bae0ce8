"""A model's law of orders at one diffusion time, with the torch.distributions interface."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import constraints

from softrank_ext import ops
from softrank_ext.laws import Finite, OrderDistribution, Shape

if TYPE_CHECKING:
    from softrank_ext.model.model import SoftRankModel

_ROWS_AT_ONCE = 1024  # of a distribution's draws


class ModelDistribution(OrderDistribution):
    """The law of orders over slots that a model predicts at one diffusion time; see `SoftRankModel.distribution`.

    batch_shape is (B,). Values, masks and `log_prob_top` are as in `distributions`; log_prob has gradients. Entropy and
    mode are not known in closed form: both raise NotImplementedError.
    """

    arg_constraints = {  # noqa: RUF012
        "embedded": Finite(2),
        "t": constraints.unit_interval,
    }

    def __init__(
        self,
        model: "SoftRankModel",
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        B, N, _ = embedded.shape
        self.model = model
        self.embedded = embedded
        self.t = torch.as_tensor(t, dtype=embedded.dtype, device=embedded.device).expand(B)
        super().__init__(torch.Size((B,)), mask, N, embedded.device, validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "ModelDistribution":
        """The same law for more rows, as in torch.distributions."""
        new = super().expand(batch_shape, _instance)
        new.model = self.model
        return new

    def entropy(self) -> Tensor:
        """Raises NotImplementedError: it has no closed form."""
        raise NotImplementedError("the entropy of a model's law has no closed form: average -log_prob over its samples")

    @torch.no_grad()
    def from_uniform(self, uniform: Tensor) -> Tensor:
        """The orders (..., N) that uniform numbers (..., N) in [0, 1) draw, a number for each place."""
        uniform = self._checked_uniform(uniform)
        # Cut off, as `noise` does, not rounded: a uniform number must stay below 1.
        digits = 2.0 ** (24 if self.embedded.dtype == torch.float32 else 53)
        numbers = ((uniform * digits).floor() / digits).to(self.embedded.dtype)
        rows = zip(*(part.split(_ROWS_AT_ONCE) for part in self._rows_of(numbers)), strict=True)
        packed_weights = self.model.packed_weights()
        parts = [
            self.model.decode_embedded(embedded, t, mask, ops.Choices(uniform=numbers), packed_weights=packed_weights)
            for embedded, t, mask, numbers in rows
        ]
        ops.check_picks(torch.cat([part.log_probs for part in parts]))
        return torch.cat([part.order for part in parts]).reshape(uniform.shape)

    def _log_probs(self, order: Tensor) -> Tensor:
        embedded, t, mask, rows = self._rows_of(order)
        return self.model.log_prob(embedded, t, rows, mask, is_embedded=True).per_place.reshape(order.shape)

    def _rows_of(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embedded items, times, masks and values, all row by row; values: (..., *batch_shape, N)."""
        N, D = self.embedded.shape[-2:]
        return (
            self.embedded.expand(*values.shape, D).reshape(-1, N, D),
            self.t.expand(values.shape[:-1]).reshape(-1),
            self.mask.expand(values.shape).reshape(-1, N),
            values.reshape(-1, N),
        )
