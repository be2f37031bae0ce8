"""Command line: `softrank COMMAND`, or `python -m softrank_ext COMMAND` outside the source tree.

A command is a function that takes the parsed arguments and one that adds its parser; `main` lists the latter.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from softrank_ext import bridge, build_info, noise, ops
from softrank_ext.permutations import ranks_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="softrank", description="Distributions over permutations by Soft-Rank Diffusion."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add_command in (_add_info, _add_walk):
        add_command(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, ImportError, OSError) as error:
        print(f"softrank: error: {error}", file=sys.stderr)
        return 1
    return 0


def _add_info(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("info", help="say what this build is and what it runs on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_info)


def _info(options: argparse.Namespace) -> None:
    info = build_info()
    if options.json:
        print(json.dumps(info))
        return
    width = max(map(len, info))
    for name, value in info.items():
        print(f"{name:<{width}}  {'none' if value in (None, '') else value}")


def _add_walk(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("walk", help="draw items walking from a clean order to noise along the bridge")
    parser.add_argument("--output", type=Path, default=Path("walk.png"), help="picture to write (default: %(default)s)")
    parser.add_argument("--items", type=int, default=8, help="number of items (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of the walk (default: %(default)s)")
    parser.add_argument("--noise-scale", type=float, default=0.5, help="paper's eta (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another walk (default: %(default)s)")
    parser.set_defaults(run=_walk)


def _walk(options: argparse.Namespace) -> None:
    try:
        import matplotlib  # noqa: F401

        from softrank_ext import plots
    except ImportError as error:
        raise ImportError('walk draws with matplotlib: pip install "softrank_ext[plots]"') from error
    if options.items < 1:
        raise ValueError(f"--items must be at least 1, got {options.items}")
    times, soft_ranks = draw_walk(options.items, options.steps, options.noise_scale, options.seed)
    orders, ranks = ops.decode_chamber(soft_ranks)
    changes = int((orders[1:] != orders[:-1]).any(1).sum())
    swapped = int(plots.swapped_pairs(ranks)[-1])

    title = f"{options.items} items from a clean order to noise (noise scale {options.noise_scale:g})"
    plots.save_figure(plots.plot_walk(times, soft_ranks, ranks, title), options.output)
    pairs = options.items * (options.items - 1) // 2
    print(f"order at t = 0 (clean): {orders[0].tolist()}")
    print(f"order at t = 1 (noise): {orders[-1].tolist()}")
    print(f"The order changed in {changes} of {options.steps} steps; {swapped} of {pairs} pairs ended up swapped.")
    print(f"Picture: {options.output}")


def draw_walk(items: int, steps: int, noise_scale: float, seed: int) -> tuple[list[float], torch.Tensor]:
    """One path of the bridge between a random clean order and noise: times ascending (T,), soft ranks (T, items).

    The path is drawn from time 1 down to 0, each value given the one before (`bridge.reverse_step` with the true clean
    end), so that it is one path and not a set of unrelated marginals.
    """
    sample = torch.tensor([0])
    clean_order, _ = ops.decode_chamber(noise.uniform(seed, sample, 0, items, stream=noise.TRAINING_STREAM))
    z_clean = bridge.lift_to_grid(ranks_of(clean_order))
    z_t = noise.uniform(seed, sample, 0, items, stream=noise.REFERENCE_STREAM)
    times = bridge.time_grid(steps)
    path = [z_t]
    for step, (t, s) in enumerate(pairwise(times)):
        step_noise = noise.normal(seed, sample, step, items, stream=noise.BRIDGE_STREAM)
        z_t = bridge.reverse_step(z_t, z_clean, t, s, step_noise, noise_scale=noise_scale)
        path.append(z_t)
    return times[::-1], ops.reflect(torch.cat(path[::-1]))  # (T, items)


if __name__ == "__main__":
    sys.exit(main())
