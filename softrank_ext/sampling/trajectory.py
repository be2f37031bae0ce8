"""The path of a sample from noise to an order, time by time, and the page that shows it moving.

`sample(..., record=True)` fills `Samples.trajectory`. The page is `trajectory.html` with the path written into it as
JSON: one file, without network or other scripts.
"""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from softrank_ext.permutations import check_order, ranks_of
from softrank_ext.processes import bridge

_PAGE = Path(__file__).parents[1] / "show" / "trajectory.html"
_DATA_MARK = "{{data}}"


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

    def frames(self, mask: Tensor | np.ndarray | None = None) -> Frames:
        """The path of the one sample in this trajectory, its end at time 0 added. mask: (N,) bool, True = real item.

        Padding is left out, and real items are numbered anew. Take one sample first: `samples[instance][draw]`.
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
        z_clean = bridge.lift_to_grid(ranks_of(end), dtype=soft_ranks.dtype)
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
        title: str = "From noise to an order",
    ) -> None:
        """Write one self-contained HTML page that plays the path of one sample; take it first: `samples[i][j]`.

        items: points (N, 2), drawn as a tour, or images (N, C, height, width) with C 1 or 3, uint8 or float in [0, 1];
        None for labels alone. layout: for images "row", one after the other (default), or "grid", a square of patches;
        otherwise "tour" for points and "list" for labels. labels: N texts, by default the items' numbers; items with
        equal labels are interchangeable. true_order: (N,), the right order, to mark what is wrong. mask: (N,) bool,
        True = real item; items, labels and true_order then include padding, the latter after the real items.
        """
        frames = self.frames(mask)
        N = frames.order.shape[1]
        real = torch.arange(N) if mask is None else torch.as_tensor(mask).nonzero()[:, 0]
        total = N if mask is None else len(mask)
        data: dict[str, object] = {
            "title": title,
            "times": frames.times,
            "soft_ranks": [[round(value, 5) for value in row] for row in frames.soft_ranks.tolist()],
            "predicted_order": frames.predicted_order.tolist(),
        }
        names = list(range(total)) if labels is None else list(labels)
        if len(names) != total:
            raise ValueError(f"labels must be {total} texts, got {len(names)}")
        data["labels"] = [str(names[item]) for item in real.tolist()]
        if true_order is not None:
            right = torch.as_tensor(true_order)
            if right.shape != (total,):
                raise ValueError(f"true_order must be ({total},) int64, got {tuple(right.shape)} {right.dtype}")
            check_order(right[None], "true_order")
            numbers = torch.full((total,), -1).scatter(0, real, torch.arange(N))
            data["true_order"] = right_items = numbers[right[:N]].tolist()
            if -1 in right_items:
                raise ValueError("true_order must list the real items first")
        data |= _picture_of(items, layout, total, real)
        # "<" cannot end the script element that holds the data, nor begin a comment in it.
        text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        Path(path).write_text(_PAGE.read_text(encoding="utf-8").replace(_DATA_MARK, text), encoding="utf-8")


def _row_of(value: Tensor | np.ndarray) -> Tensor:
    tensor = torch.as_tensor(value).cpu()
    if tensor.shape[:-1].numel() != 1:
        raise ValueError(
            f"a trajectory must be of one sample here, got leading dimensions {tuple(tensor.shape[:-1])}: "
            "take it first, samples[instance][draw].trajectory"
        )
    return tensor.reshape(-1)


def _picture_of(items: Tensor | np.ndarray | None, layout: str | None, total: int, real: Tensor) -> dict[str, object]:
    """What the page draws beside the soft ranks: the layout, and points or pixels of the real items."""
    if items is None:
        possible: tuple[str, ...] = ("list",)
    else:
        items = torch.as_tensor(items).detach().cpu()
        is_images = items.ndim == 4 and items.shape[1] in (1, 3)
        if items.shape[:1] != (total,) or not (is_images or items.shape[1:] == (2,)):
            raise ValueError(
                f"items must be points ({total}, 2) or images ({total}, 1 or 3, height, width), "
                f"got {tuple(items.shape)}"
            )
        possible = ("row", "grid") if is_images else ("tour",)
    layout = possible[0] if layout is None else layout
    if layout not in possible:
        raise ValueError(f"layout must be {' or '.join(possible)} for these items, got {layout!r}")
    if layout == "grid" and math.isqrt(len(real)) ** 2 != len(real):
        raise ValueError(f"a grid needs a square number of patches, got {len(real)}")
    if items is None:
        return {"layout": layout}
    items = items[real]
    if layout == "tour":
        return {"layout": layout, "points": items.double().tolist()}
    if items.dtype != torch.uint8:
        if not items.is_floating_point() or not bool(((items >= 0) & (items <= 1)).all()):
            raise ValueError(f"images must be uint8, or float in [0, 1], got {items.dtype}")
        items = (items * 255).round().to(torch.uint8)
    pixels = items.permute(0, 2, 3, 1).contiguous().numpy()  # (N, height, width, C)
    _, height, width, channels = pixels.shape
    encoded = base64.b64encode(pixels.tobytes()).decode("ascii")
    return {"layout": layout, "height": height, "width": width, "channels": channels, "pixels": encoded}
