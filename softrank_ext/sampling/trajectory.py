"""The path of a sample from noise to an order, time by time.

`sample(..., record=True)` fills `Samples.trajectory`. The page that plays it is made by `show.page`, which is imported
only when a page is asked for.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from softrank_ext.permutations import ranks_of
from softrank_ext.processes.bridge import lift_to_grid

PAGE_TITLE = "From noise to an order"


@dataclass(frozen=True, eq=False)
class TrajectoryPoint:
    """A diffusion time of a recorded run: soft ranks (..., N) in [0, 1] at `t`, their order, and the predicted one."""

    t: float
    soft_ranks: Tensor
    order: Tensor
    predicted_order: Tensor


class Frames(NamedTuple):
    """A path of one sample, its end included: times, descending from 1 to 0, and a row (N,) for each.

    soft_ranks (T, N) float. order (T, N) int64: of the soft ranks. predicted_order (T, N) int64: what the model made of
    them; at time 0, the order itself.
    """

    times: list[float]
    soft_ranks: Tensor
    order: Tensor
    predicted_order: Tensor


class Trajectory(Sequence[TrajectoryPoint]):
    """The points of a recorded run, from time 1 down; the last one's predicted order is the sample."""

    def __init__(self, points: Iterable[TrajectoryPoint]) -> None:
        self._points = tuple(points)

    def __len__(self) -> int:
        return len(self._points)

    @overload
    def __getitem__(self, index: int) -> TrajectoryPoint: ...

    @overload
    def __getitem__(self, index: slice) -> "Trajectory": ...

    def __getitem__(self, index: int | slice) -> "TrajectoryPoint | Trajectory":
        return Trajectory(self._points[index]) if isinstance(index, slice) else self._points[index]

    def __repr__(self) -> str:
        if not self._points:
            return "Trajectory(0 times)"
        first, last = self._points[0], self._points[-1]
        times = f"{len(self)} time{'' if len(self) == 1 else 's'} from t = {first.t:g} to {last.t:g}"
        return f"Trajectory({times}, orders {tuple(first.order.shape)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the page of `save_html`, without items; for several samples, which one to take."""
        if not self._points or math.prod(self._points[0].order.shape[:-1]) != 1:
            return f"<code>{html.escape(repr(self))}</code>: samples[instance][draw].trajectory shows its page"
        from softrank_ext.show.page import frame_of, page_of

        return frame_of(page_of(self))

    def frames(self, mask: Tensor | np.ndarray | None = None) -> Frames:
        """The path of the one sample in this trajectory, its end at time 0 added. mask: (N,) bool, True = real item.

        Padding is left out, and real items are renumbered. Take one sample first: `samples[instance][draw]`.
        """
        soft_ranks, order, predicted = (
            torch.stack([_row_of(getattr(point, name)) for point in self._points])
            for name in ("soft_ranks", "order", "predicted_order")
        )  # (T, N)
        if mask is not None:
            is_real = torch.as_tensor(mask)
            if is_real.dtype != torch.bool or is_real.shape != soft_ranks.shape[1:]:
                wanted = f"({soft_ranks.shape[1]},) bool, True = real item"
                raise ValueError(f"mask must be {wanted}, got {tuple(is_real.shape)} {is_real.dtype}")
            count, numbers = int(is_real.sum()), is_real.cumsum(0) - 1
            soft_ranks, order, predicted = (
                soft_ranks[:, is_real],
                numbers[order[:, :count]],
                numbers[predicted[:, :count]],
            )
        end = predicted[-1:]
        z_clean = lift_to_grid(ranks_of(end), dtype=soft_ranks.dtype)
        times = [*(point.t for point in self._points), 0.0]
        return Frames(times, torch.cat((soft_ranks, z_clean)), torch.cat((order, end)), torch.cat((predicted, end)))

    def save_html(
        self,
        path: str | Path,
        items: Tensor | np.ndarray | None = None,
        *,
        layout: str | None = None,
        labels: Sequence[object] | None = None,
        true_order: Tensor | np.ndarray | Sequence[int] | None = None,
        mask: Tensor | np.ndarray | None = None,
        title: str = PAGE_TITLE,
    ) -> None:
        """Write one self-contained HTML page that plays the path of one sample; take it first: `samples[i][j]`.

        items: points (N, 2), drawn as a tour, or images (N, C, height, width) with C 1 or 3, uint8 or float in [0, 1];
        None for labels alone. layout: for images "row", one after the other (default), or "grid", a square of patches;
        otherwise "tour" for points and "list" for labels. labels: N texts, by default the items' numbers; items with
        equal labels are interchangeable. true_order: (N,), the right order, to mark what is wrong. mask: (N,) bool,
        True = real item; items, labels and true_order then include padding, the latter after the real items.
        """
        from softrank_ext.show.page import page_of

        text = page_of(self, items, layout=layout, labels=labels, true_order=true_order, mask=mask, title=title)
        Path(path).write_text(text, encoding="utf-8")


def _row_of(value: Tensor | np.ndarray) -> Tensor:
    tensor = torch.as_tensor(value).cpu()
    if tensor.shape[:-1].numel() != 1:
        raise ValueError(
            f"a trajectory must be of one sample here, got leading dimensions {tuple(tensor.shape[:-1])}: "
            "take it first, samples[instance][draw].trajectory"
        )
    return tensor.reshape(-1)
