"""Pictures. Needs matplotlib: `pip install "softrank_ext[plots]"`.

Functions take arrays that are ready to draw and return a figure; `save_figure` writes it to a file.
Colours are safe for colour-blind readers (viridis: dark is the first place of the clean order, light the last).
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DARK_TO_LIGHT = (0.0, 0.88)  # The last part of viridis is too light on white.


def plot_walk(times: Sequence[float], soft_ranks: Tensor, ranks: Tensor, title: str = "") -> "Figure":
    """Soft ranks along one bridge, and how far their order is from the clean one.

    times: T ascending numbers, 0 = clean. soft_ranks: (T, N) float in [0, 1]. ranks: (T, N) int64, those of soft_ranks.
    Every item is a line; where two lines cross, the order changes.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    walk, distance = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    size = ranks.shape[1]
    colours = [_place_colour(int(place), size) for place in ranks[0]]
    for item, colour in enumerate(colours):
        walk.plot(times, soft_ranks[:, item].tolist(), color=colour, linewidth=1.4)
    for end, side, offset in ((0, "right", -8), (-1, "left", 8)):
        heights = soft_ranks[end].tolist()
        walk.scatter([times[end]] * size, heights, s=22, color=colours, clip_on=False, zorder=3)
        for item, height in enumerate(_spread(heights, gap=min(0.035, 1 / size))):
            walk.annotate(
                str(item), (times[end], height), (offset, 0), textcoords="offset points", ha=side, va="center",
                color=colours[item], weight="bold", fontsize="small",
            )  # fmt: skip
    walk.set(ylabel="soft rank of each item", xlim=(times[0], times[-1]), ylim=(-0.03, 1.03), title=title)
    walk.set_yticks([0, 0.5, 1])
    walk.tick_params(axis="y", pad=18)  # Leaves room for the item numbers.
    walk.grid(axis="y", alpha=0.3)

    swapped = swapped_pairs(ranks)
    most = size * (size - 1) // 2
    distance.fill_between(times, swapped.tolist(), step="post", color="0.75")
    distance.plot(times, swapped.tolist(), drawstyle="steps-post", color="0.25", linewidth=1)
    distance.axhline(most / 2, color="#d55e00", linestyle="--", linewidth=1, label="mean of a random order")
    distance.set(xlabel="time t: 0 is the clean order, 1 is noise", ylabel="pairs swapped", ylim=(0, max(most, 1)))
    distance.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    distance.legend(loc="upper left", frameon=False, fontsize="small")
    for axes in (walk, distance):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def swapped_pairs(ranks: Tensor) -> Tensor:
    """Number of item pairs that stand the other way round than in row 0. ranks: (T, N) int64. Returns (T,) int64."""
    is_before = ranks[:, :, None] < ranks[:, None, :]  # (T, N, N)
    return (is_before & ~is_before[:1] & (ranks[0, :, None] != ranks[0, None, :])).sum((1, 2))


def _spread(heights: list[float], gap: float) -> list[float]:
    """Heights moved up as little as keeps them `gap` apart, then down where they would pass 1."""
    ascending = sorted(range(len(heights)), key=lambda i: heights[i])
    spread = dict(enumerate(heights))
    for below, above in pairwise(ascending):
        spread[above] = max(spread[above], spread[below] + gap)
    ceiling = max(1.0, max(heights))
    for i in reversed(ascending):
        spread[i] = min(spread[i], ceiling)
        ceiling = spread[i] - gap
    return [spread[i] for i in range(len(heights))]


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure; the ending of the path (.png, .pdf, .svg) is its format."""
    figure.savefig(path, dpi=100)


def _place_colour(place: int, size: int) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    low, high = _DARK_TO_LIGHT
    return colormaps["viridis"](low + (high - low) * place / max(size - 1, 1))
