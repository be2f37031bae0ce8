"""`softrank demo`."""

from pathlib import Path
from typing import Literal


def demo(
    task: Literal["all", "sorting", "tsp", "jigsaw"] = "all",
    n: int | None = None,
    seed: int = 0,
    output: Path = Path("outputs/demo"),
    weights: Path | None = None,
) -> None:
    """Sort digits, find tours and solve jigsaws with the bundled models.

    Args:
        task: What to do.
        n: Number of items, for one task: up to 100 numbers, 20 or 50 nodes, 9 or 16 patches.
        seed: Another seed, other lists, shuffles and draws.
        output: Folder for the pictures and pages.
        weights: Folder of models by name instead of the bundled ones.
    """
    from softrank_ext.show import demo as shown

    done = shown.run(task, n, seed=seed, output=output, weights=weights)
    print(shown.table_of(done.rows))
    print("all right: whole instances; equal items are interchangeable. gap: length above the best tour's.")
    for name in done.missing:
        print(f"{name} skipped: no such model.")
    if not any(path.suffix == ".png" for path in done.files):
        print('No pictures, which need matplotlib: pip install "softrank_ext[plots]"')
    print(f"Written to {output}: {', '.join(path.name for path in done.files)}")
