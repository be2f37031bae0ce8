"""The page that plays a recorded sample: `trajectory.html` with the path written into it as JSON.

One file, without network or other scripts. `Trajectory.save_html` writes it; a notebook shows it in a frame.
"""

import base64
import html
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softrank_ext.permutations import check_order
from softrank_ext.sampling.trajectory import PAGE_TITLE, Trajectory
from softrank_ext.show.templates import filled_page

FRAME_HEIGHT = 640  # pixels: the chart of soft ranks, the controls and the title without scrolling


def frame_of(page: str, height: int = FRAME_HEIGHT) -> str:
    """The page as an element of another page, such as a notebook: a frame that can run its script and nothing more."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="{PAGE_TITLE}" '
        f'width="100%" height="{height}" style="border: 0"></iframe>'
    )


def page_of(
    trajectory: Trajectory,
    items: Tensor | np.ndarray | None = None,
    *,
    layout: str | None = None,
    labels: Sequence[object] | None = None,
    true_order: Tensor | np.ndarray | Sequence[int] | None = None,
    mask: Tensor | np.ndarray | None = None,
    title: str = PAGE_TITLE,
) -> str:
    """One self-contained HTML page that plays the path of one sample. Arguments: as those of `Trajectory.save_html`."""
    frames = trajectory.frames(mask)
    N = frames.order.shape[1]
    real = torch.arange(N) if mask is None else torch.as_tensor(mask).nonzero()[:, 0]
    total = N if mask is None else len(mask)
    data: dict[str, object] = {
        "title": title,
        "times": frames.times,
        "soft_ranks": [[round(value, 5) for value in row] for row in frames.soft_ranks.tolist()],
        "predicted_order": frames.predicted_order.tolist(),
        "labels": _labels_of(labels, total, real),
    }
    if true_order is not None:
        data["true_order"] = _right_items(true_order, total, real)
    data |= _picture_of(items, layout, total, real)
    return filled_page("trajectory.html", data)


def _labels_of(labels: Sequence[object] | None, total: int, real: Tensor) -> list[str]:
    """Texts of the real items, by default their numbers."""
    names = list(range(total)) if labels is None else list(labels)
    if len(names) != total:
        raise ValueError(f"labels must be {total} texts, got {len(names)}")
    return [str(names[item]) for item in real.tolist()]


def _right_items(true_order: Tensor | np.ndarray | Sequence[int], total: int, real: Tensor) -> list[int]:
    """The true order of the real items, renumbered without padding."""
    right = torch.as_tensor(true_order)
    if right.shape != (total,):
        raise ValueError(f"true_order must be ({total},) int64, got {tuple(right.shape)} {right.dtype}")
    check_order(right[None], "true_order")
    numbers = torch.full((total,), -1).scatter(0, real, torch.arange(len(real)))
    items: list[int] = numbers[right[: len(real)]].tolist()
    if -1 in items:
        raise ValueError("true_order must list the real items first")
    return items


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
    return {"layout": layout, "points": items.double().tolist()} if layout == "tour" else _pixels_of(items, layout)


def _pixels_of(images: Tensor, layout: str) -> dict[str, object]:
    """Images (N, C, height, width) as bytes, row by row, channels last."""
    if images.dtype != torch.uint8:
        if not images.is_floating_point() or not bool(((images >= 0) & (images <= 1)).all()):
            raise ValueError(f"images must be uint8, or float in [0, 1], got {images.dtype}")
        images = (images * 255).round().to(torch.uint8)
    pixels = images.permute(0, 2, 3, 1).contiguous().numpy()  # (N, height, width, C)
    _, height, width, channels = pixels.shape
    encoded = base64.b64encode(pixels.tobytes()).decode("ascii")
    return {"layout": layout, "height": height, "width": width, "channels": channels, "pixels": encoded}
