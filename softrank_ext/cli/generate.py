"""`softrank generate tsp`."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from softrank_ext.cli.options import AsJson, tell


def generate_tsp(
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]],
    count: int = 1000,
    num_nodes: int = 20,
    seed: int = 0,
    rounds: int | None = None,
    as_json: AsJson = False,
) -> None:
    """Make a file of uniform TSP instances with near-optimal tours.

    Args:
        output: Text file to write; a killed run goes on where it stopped.
        count: Instances.
        num_nodes: Nodes per instance.
        seed: Another seed, other instances.
        rounds: Of the search for each tour, by default 5 a node.
    """
    from softrank_ext.tasks.tsp import generate

    is_shown = sys.stderr.isatty()
    path = generate(output, count, num_nodes, seed=seed, rounds=rounds, progress=is_shown)
    tell(as_json, {"output": str(path), "count": count, "num_nodes": num_nodes, "seed": seed}, str(path))
