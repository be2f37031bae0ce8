"""`softrank walk`: one path of the bridge, drawn."""

from itertools import pairwise
from pathlib import Path

import torch

from softrank_ext import noise, ops
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import Bridge
from softrank_ext.processes.bridge import lift_to_grid


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

        from softrank_ext.show import plots
    except ImportError as error:
        raise ImportError('walk draws with matplotlib: pip install "softrank_ext[plots]"') from error
    if items < 1:
        raise ValueError(f"--items must be at least 1, got {items}")
    times, soft_ranks = draw_walk(items, steps, noise_scale, seed)
    orders, ranks = ops.decode_chamber(soft_ranks)
    changes = int((orders[1:] != orders[:-1]).any(1).sum())
    swapped = int(plots.swapped_pairs(ranks)[-1])

    title = f"{items} items from a clean order to noise (noise scale {noise_scale:g})"
    plots.save_figure(plots.plot_walk(times, soft_ranks, ranks, title), output)
    pairs = items * (items - 1) // 2
    print(f"order at t = 0 (clean): {orders[0].tolist()}")
    print(f"order at t = 1 (noise): {orders[-1].tolist()}")
    print(f"The order changed in {changes} of {steps} steps; {swapped} of {pairs} pairs ended up swapped.")
    print(f"Picture: {output}")


def draw_walk(
    items: int, steps: int, noise_scale: float, seed: int, clean_order: torch.Tensor | None = None
) -> tuple[list[float], torch.Tensor]:
    """One path of the bridge between a clean order (1, items) and noise: times ascending (T,), soft ranks (T, items).

    clean_order: None for a random one. The noise is what `sample` with this seed starts its first sample from.

    The path is drawn from time 1 down to 0, each value given the one before (the bridge's step back with the true clean
    end), so that it is one path and not a set of unrelated marginals.
    """
    bridge, number = Bridge(noise_scale, sampling_steps=steps), torch.tensor([0])
    if clean_order is None:
        clean_order, _ = ops.decode_chamber(noise.uniform(seed, number, 0, items, stream=noise.TRAINING_STREAM))
    z_clean = lift_to_grid(ranks_of(clean_order))
    z_t = noise.uniform(seed, number, 0, items, stream=noise.PRIOR_STREAM)
    times = bridge.times()
    path = [z_t]
    for step, (t, s) in enumerate(pairwise(times)):
        step_noise = noise.normal(seed, number, step, items, stream=noise.BRIDGE_STREAM)
        z_t = bridge.step_back(z_t, z_clean, t, s, step_noise)
        path.append(z_t)
    return times[::-1], ops.reflect(torch.cat(path[::-1]))  # (T, items)
