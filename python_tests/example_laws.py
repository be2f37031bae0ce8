"""Laws over five items that the tests of `laws` share, and their fixtures."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution

from softrank_ext.laws import GeneralizedPlackettLuce, Mallows, OrderDistribution, PlackettLuce, Riffle

DOUBLE = torch.float64
# Two of five items are padding, in the middle and at the end.
PADDED = torch.tensor([True, False, True, True, False])


def scores_of(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 1.5 * torch.randn(*shape, generator=generator, dtype=DOUBLE)


def laws(mask: Tensor | None = None) -> dict[str, OrderDistribution]:
    """A law of each kind over five items, in float64 where it has a dtype."""
    center = torch.tensor([3, 0, 2, 1, 4])  # with PADDED, its padding 1 and 4 stands last
    return {
        "PlackettLuce": PlackettLuce(scores_of(5), mask),
        "GeneralizedPlackettLuce": GeneralizedPlackettLuce(scores_of(5, 5), mask),
        "Mallows": Mallows(center, torch.tensor(0.6, dtype=DOUBLE), mask),
        "Riffle": Riffle(5, 2, mask),
    }


@pytest.fixture(autouse=True)
def double_by_default() -> Iterator[None]:
    """The riffle has no parameter to take its dtype from."""
    torch.set_default_dtype(DOUBLE)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def validation_by_default() -> None:
    """torch.compile turns it off for the rest of the process, for all of torch.distributions."""
    Distribution.set_default_validate_args(True)
