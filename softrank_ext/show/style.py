"""What all pictures share: colours, axes, and the file. Drawing needs matplotlib: `pip install "softrank_ext[plots]"`.

Colours are safe for colour-blind readers (viridis: dark is the first place of the clean order, light the last).
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, WRONG = "#0072b2", "#d55e00"  # Okabe and Ito's blue and vermilion
_DARK_TO_LIGHT = (0.0, 0.88)  # The last part of viridis is too light on white.

Colour = tuple[float, float, float, float]


def place_colour(place: int, size: int) -> Colour:
    """The colour of a place among `size`: dark for the first, light for the last."""
    from matplotlib import colormaps

    low, high = _DARK_TO_LIGHT
    red, green, blue, alpha = colormaps["viridis"](low + (high - low) * place / max(size - 1, 1))
    return red, green, blue, alpha


def new_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches; raises ImportError, saying what to install, where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('pictures need matplotlib: pip install "softrank_ext[plots]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def axes_or_new(axes: "Axes | None") -> "Axes":
    """The axes as given, or those of a new figure."""
    return axes if axes is not None else new_figure(5, 4).subplots()


def figure_of(axes: "Axes") -> "Figure":
    """The figure that the axes are in."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure; the suffix of the path (.png, .pdf, .svg) is its format."""
    figure.savefig(path, dpi=100)
