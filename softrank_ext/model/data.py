"""What a model knows of the data that it was trained on; it travels with the model in config.json."""

from dataclasses import dataclass
from typing import Literal

from softrank_ext.checks import check_choice, check_integer

SYMMETRIES = ("none", "tour")
DIRECTIONS = ("file", "counterclockwise", "random")
SCALINGS = ("none", "unit square")


@dataclass(frozen=True)
class DataFacts:
    """Facts about a model's instances and orders.

    symmetry: which orders mean the same, "none", or "tour" for closed tours, which may be turned and reversed.
    direction: of tours in training, as in `tasks.tsp.TSP`; None where orders have none. fixed_start: trained with the
    first item of the order held at soft rank 0, as for tours. num_items: fewest and most items of an instance in
    training. value_range: lowest and highest number of the items in training. scaling: how raw numbers are brought into
    that range, "none" or, for points, "unit square". None for what is not known.
    """

    symmetry: Literal["none", "tour"] = "none"
    direction: Literal["file", "counterclockwise", "random"] | None = None
    fixed_start: bool = False
    num_items: tuple[int, int] | None = None
    value_range: tuple[float, float] | None = None
    scaling: Literal["none", "unit square"] = "none"

    def __post_init__(self) -> None:
        check_choice("symmetry", self.symmetry, SYMMETRIES)
        check_choice("direction", self.direction, (None, *DIRECTIONS))
        check_choice("scaling", self.scaling, SCALINGS)
        if not isinstance(self.fixed_start, bool):
            raise ValueError(f"fixed_start must be True or False, got {self.fixed_start!r}")
        for name in ("num_items", "value_range"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, tuple | list) or len(value) != 2 or not value[0] <= value[1]:
                raise ValueError(f"{name} must be two ascending numbers or None, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        if self.num_items is not None:
            for number in self.num_items:
                check_integer("num_items", number, 1)
