"""What a model knows of the data that it was trained on; it travels with the model in config.json."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softrank_ext.checks import check_choice, check_integer, check_tensor, described

SYMMETRIES = ("none", "tour")
DIRECTIONS = ("file", "counterclockwise", "random")
SCALINGS = ("none", "unit square")
COPIES = {"none": 1, "square": 8}


@dataclass(frozen=True)
class DataFacts:
    """Facts about a model's instances and orders.

    symmetry: which orders mean the same, "none", or "tour" for closed tours, which may be turned and reversed.
    direction: of tours in training, as in `tasks.tsp.TSP`; None where orders have none. fixed_start: trained with the
    first item of the order held at soft rank 0, as for tours. num_items: fewest and most items of an instance in
    training. value_range: lowest and highest number of the items in training. scaling: how raw numbers are brought into
    that range, "none" or, for points, "unit square". None for what is not known. copies: changes of the items that
    change no order and were trained with: "none", or "square" for the eight turned and mirrored copies of points in the
    unit square (`square_copy`). num_machines: fewest and most machines of a flow shop in training.
    """

    symmetry: Literal["none", "tour"] = "none"
    direction: Literal["file", "counterclockwise", "random"] | None = None
    fixed_start: bool = False
    num_items: tuple[int, int] | None = None
    value_range: tuple[float, float] | None = None
    scaling: Literal["none", "unit square"] = "none"
    copies: Literal["none", "square"] = "none"
    num_machines: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_choice("symmetry", self.symmetry, SYMMETRIES)
        check_choice("direction", self.direction, (None, *DIRECTIONS))
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("copies", self.copies, tuple(COPIES))
        if not isinstance(self.fixed_start, bool):
            raise ValueError(f"fixed_start must be True or False, got {self.fixed_start!r}")
        for name in ("num_items", "value_range", "num_machines"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, tuple | list) or len(value) != 2 or not value[0] <= value[1]:
                raise ValueError(f"{name} must be two ascending numbers or None, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        for name in ("num_items", "num_machines"):
            for number in getattr(self, name) or ():
                check_integer(name, number, 1)

    @property
    def num_copies(self) -> int:
        """How many copies of an instance there are, itself among them."""
        return COPIES[self.copies]

    def copy_of(self, items: Tensor, number: Tensor) -> Tensor:
        """The copies (B, N, ...) of items with the numbers (B,), below `num_copies`; number 0 is the items."""
        return items if self.copies == "none" else square_copy(items, number)


def square_copy(points: Tensor, number: Tensor) -> Tensor:
    """Points (B, N, 2) under symmetries 0 to 7 of the unit square: bit 1 mirrors x, 2 mirrors y, 4 swaps the two."""
    is_dense = isinstance(points, Tensor) and points.layout == torch.strided
    if not is_dense or points.shape[2:] != (2,) or not points.is_floating_point():
        raise ValueError(f"items must be (B, N, 2) points, got {described(points)}")
    check_tensor("number", number, (len(points),), torch.int64)
    mirrored = torch.stack((number % 2, number // 2 % 2), 1)[:, None] == 1  # (B, 1, 2)
    points = torch.where(mirrored, 1 - points, points)
    return torch.where((number >= 4)[:, None, None], points.flip(2), points)
