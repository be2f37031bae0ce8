"""`softrank walk`: one path of the bridge, drawn."""

from dataclasses import dataclass
from pathlib import Path

from softrank_ext.cli.options import AsJson, Prior, tell
from softrank_ext.processes import Bridge


@dataclass(frozen=True)
class WalkProcess:
    """The bridge that the items walk along."""

    noise_scale: float = Bridge.noise_scale
    """Noise of the bridge, paper eta."""
    prior: Prior = Bridge.prior
    """Soft ranks at time 1."""


def walk(
    output: Path = Path("walk.png"),
    items: int = 8,
    steps: int = 200,
    process: WalkProcess = WalkProcess(),
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Draw items walking from a clean order to noise along the bridge.

    Args:
        output: Picture to write.
        items: Number of items.
        steps: Steps of the walk.
        seed: Another seed, another walk.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('walk draws with matplotlib: pip install "softrank_ext[plots]"') from error
    from softrank_ext import show

    path = show.draw_walk(items, steps, process=Bridge(process.noise_scale, process.prior), seed=seed)
    changes = int((path.order[1:] != path.order[:-1]).any(1).sum())
    swapped, pairs = int(show.swapped_pairs(path.ranks)[-1]), items * (items - 1) // 2
    title = f"{items} items from a clean order to noise (noise scale {process.noise_scale:g})"
    show.save_figure(show.plot_walk(path, title), output)
    first, last = path.order[0].tolist(), path.order[-1].tolist()
    text = f"""order at t = 0 (clean): {first}
order at t = 1 (noise): {last}
The order changed in {changes} of {steps} steps; {swapped} of {pairs} pairs ended up swapped.
Picture: {output}"""
    tell(as_json, {"clean": first, "noise": last, "changes": changes, "swapped": swapped, "picture": str(output)}, text)
