"""Items fixed at place 0."""

from collections.abc import Sequence

from torch import Tensor

from softrank_ext import Constraints


def pin(first: int | Sequence[int] | Tensor) -> Constraints | list[Constraints]:
    """Constraints that fix an item at place 0: one for all instances, or one per instance."""
    if isinstance(first, int):
        return Constraints(pins={first: 0})
    return [Constraints(pins={int(item): 0}) for item in first]
