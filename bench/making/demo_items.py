"""Chooses the demo's items from test sets in SOFTRANK_DATA: writes softrank_ext/show/demo_items.npz.

    python bench/making/demo_items.py --tsp tsp20.txt tsp50.txt

MNIST digits and CIFAR-10 images are drawn at random from the test sets (seed 0); TSP instances are the first of the
files given, lines `x1 y1 ... xN yN output t1 ... tN t1` with optimal tours. Where the sets come from is said in
softrank_ext/show/demo.py.
"""

import argparse
from pathlib import Path

import numpy as np

from softrank_ext.show.demo import ITEMS_FILE
from softrank_ext.tasks import data
from softrank_ext.tasks.draws import rows_of_passes
from softrank_ext.tasks.tsp import read_instances

ROOT = Path(__file__).parents[2]
DIGITS, IMAGES, TOURS = 256, 24, 16


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose the demo's items.")
    parser.add_argument("--tsp", type=Path, nargs="+", required=True, help="files of test instances with optimal tours")
    parser.add_argument("--output", type=Path, default=ROOT / "softrank_ext" / "show" / ITEMS_FILE.name)
    args = parser.parse_args()
    digits, labels = data.mnist(False)
    images = data.cifar10(False)
    rows = rows_of_passes(len(digits), 0, 0, DIGITS, "demo digits")
    arrays = {
        "digits": digits[rows].numpy(),
        "digit_labels": labels[rows].numpy(),
        "images": images[rows_of_passes(len(images), 0, 0, IMAGES, "demo images")].numpy(),
    }
    for path in args.tsp:
        points, tours = (part[:TOURS] for part in read_instances(path))
        arrays[f"points_{points.shape[1]}"] = points.numpy()
        arrays[f"tours_{points.shape[1]}"] = tours.numpy()
    np.savez_compressed(args.output, allow_pickle=False, **arrays)
    print(f"{args.output}: {args.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
