"""`softrank walk`: one path of the bridge, drawn."""

from pathlib import Path

from softrank_ext.processes import Bridge


def walk(
    output: Path = Path("walk.png"), items: int = 8, steps: int = 200, noise_scale: float = 0.5, seed: int = 0
) -> None:
    """Draw items walking from a clean order to noise along the bridge.

    Args:
        output: Picture to write.
        items: Number of items.
        steps: Steps of the walk.
        noise_scale: Noise of the bridge, paper eta.
        seed: Another seed, another walk.
    """
    try:
        import matplotlib  # noqa: F401

        from softrank_ext import show
    except ImportError as error:
        raise ImportError('walk draws with matplotlib: pip install "softrank_ext[plots]"') from error
    if items < 1:
        raise ValueError(f"--items must be at least 1, got {items}")
    path = show.draw_walk(items, steps, process=Bridge(noise_scale), seed=seed)
    orders = path.order
    changes = int((orders[1:] != orders[:-1]).any(1).sum())
    swapped = int(show.swapped_pairs(path.ranks)[-1])

    title = f"{items} items from a clean order to noise (noise scale {noise_scale:g})"
    show.save_figure(show.plot_walk(path, title), output)
    pairs = items * (items - 1) // 2
    print(f"order at t = 0 (clean): {orders[0].tolist()}")
    print(f"order at t = 1 (noise): {orders[-1].tolist()}")
    print(f"The order changed in {changes} of {steps} steps; {swapped} of {pairs} pairs ended up swapped.")
    print(f"Picture: {output}")
