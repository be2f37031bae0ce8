"""`softrank demo`."""

import sys
from pathlib import Path
from typing import Literal

from softrank_ext.cli.options import AsJson, tell


def demo(
    task: Literal["all", "sorting", "tsp", "jigsaw", "flowshop"] = "all",
    n: int | None = None,
    seed: int = 0,
    output: Path = Path("outputs/demo"),
    weights: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Sort digits, find tours, solve jigsaws and schedule jobs with the bundled models.

    Args:
        task: What to do.
        n: Number of items, for one task: up to 100 numbers, 20 or 50 nodes, 9 or 16 patches, 20 jobs.
        seed: Another seed, other lists, shuffles and draws.
        output: Folder for the pictures and pages.
        weights: Folder of models by name instead of the bundled ones.
    """
    from softrank_ext.show import demo as shown

    done = shown.run(task, n, seed=seed, output=output, weights=weights, progress=sys.stderr.isatty())
    if as_json:
        rows = [row._asdict() for row in done.rows]
        tell(True, {"rows": rows, "files": list(map(str, done.files)), "missing": done.missing}, "")
        return
    print(shown.table_of(done.rows))
    print("all right: whole instances; equal items are interchangeable. gap: length above the best known.")
    for name in done.missing:
        print(f"{name} skipped: no such model.")
    if not shown.has_matplotlib():
        print('No pictures, which need matplotlib: pip install "softrank_ext[plots]"')
    print(f"Written to {output}: {', '.join(path.name for path in done.files)}")
