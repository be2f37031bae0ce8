"""Measures what the figures show and draws them into bench/results.

    python bench/figures.py --measure     evaluate the bundled models (needs SOFTRANK_DATA; takes minutes)
    python bench/figures.py               draw: from that, from the demo's items, and from bench/results/runtime.txt

Measurements are in figures.json. What a figure needs and is not there is named and left out.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import fix_threads, machine, timed

from softrank_ext import SoftRankModel, metrics, model_folder, pretrained, sample
from softrank_ext.cli.walk import draw_walk
from softrank_ext.evaluation import evaluate
from softrank_ext.show import demo, plots
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting

RESULTS = Path(__file__).parent / "results"
SIZES = (9, 15, 32, 52, 75, 100)
GRIDS = {"jigsaw-3x3": 3, "jigsaw-4x4": 4}
STEPS = (1, 2, 3, 5, 10)
MODES = {"compiled": {"compiled": True}, "eager, cached": {"compiled": False}}
# Accuracies of the paper's table of four-digit MNIST sorting (N = 9, 15, 32, 52, 75, 100).
PAPER = {
    "Soft-Rank, pointer (paper)": (0.9329, 0.8710, 0.6854, 0.4909, 0.2742, 0.1922),
    "SymmetricDiffusers (paper)": (0.8955, 0.8260, 0.5896, 0.3009, 0.1379, 0.0),
}


def measure(weights: Path, count: int, sizes: tuple[int, ...]) -> dict:
    """Accuracy over N, errors of jigsaws place by place, and accuracy and speed by diffusion steps."""
    measured: dict = {"machine": machine(), "sorting": [], "jigsaws": {}}
    if is_there(weights, "sorting"):
        model = SoftRankModel.from_pretrained(weights / "sorting")
        for size in sizes:
            scores = evaluate(model, Sorting(size), count=count)["metrics"]
            measured["sorting"].append({"items": size, "lists": count, "metrics": scores})
            print(f"sorting {size}: {scores['accuracy']['mean']:.4f} accuracy", file=sys.stderr)
    for name, side in GRIDS.items():
        if is_there(weights, name):
            measured["jigsaws"][name] = measure_jigsaw(SoftRankModel.from_pretrained(weights / name), side, count)
            print(f"{name}: {measured['jigsaws'][name]['speed'][-1]}", file=sys.stderr)
    return measured


def measure_jigsaw(model: SoftRankModel, side: int, count: int) -> dict:
    (batch,) = Jigsaw(side).test_batches(count, count)
    orders = {steps: sample(model, batch.items, decode="greedy", steps=steps).order[:, 0] for steps in STEPS}
    last = orders[5]
    return {
        "images": count,
        "place_accuracy": metrics.place_accuracy(last, batch.order, side, side).tolist(),
        "displacement": metrics.displacement_histogram(last, batch.order, side, side).tolist(),
        "speed": [
            {
                "steps": steps,
                "accuracy": float(metrics.accuracy(order, batch.order).mean()),
                "samples_per_second": {
                    mode: 32 / timed(
                        lambda steps=steps, options=options: sample(
                            model, batch.items[:32], decode="greedy", steps=steps, **options
                        ),
                        repeats=3,
                    ).best
                    for mode, options in MODES.items()
                },
            }
            for steps, order in orders.items()
        ],
    }  # fmt: skip


def draw(measured: dict, weights: Path, results: Path) -> Iterator[str]:
    """Draw what can be drawn; yields a line about each figure."""
    with TemporaryDirectory() as folder:
        for path in demo.run(output=folder, weights=weights).files:
            if path.suffix == ".png":
                shutil.copy(path, results)
                yield str(results / path.name)
    if is_there(weights, "sorting"):
        yield save(there_and_back(SoftRankModel.from_pretrained(weights / "sorting")), results / "there_and_back.png")
    if measured.get("sorting"):
        sizes = [row["items"] for row in measured["sorting"]]
        lists = measured["sorting"][0]["lists"]
        ours = {
            "this package": [(row["items"], row["metrics"]["accuracy"]["mean"]) for row in measured["sorting"]],
            "this package, equal numbers interchangeable": [
                (row["items"], row["metrics"]["tie_aware_accuracy"]["mean"]) for row in measured["sorting"]
            ],
        }
        paper = {name: [pair for pair in zip(SIZES, shares, strict=True) if pair[0] in sizes]
                 for name, shares in PAPER.items()}  # fmt: skip
        title = f"Sorting four-digit MNIST numbers ({lists:,} lists per N, greedy, 5 steps)"
        yield save(
            plots.plot_accuracy_over_size({**ours, **paper}, "this package", title), results / "accuracy_over_n.png"
        )
    jigsaws = measured.get("jigsaws", {})
    if jigsaws:
        places = {name: torch.tensor(row["place_accuracy"]) for name, row in jigsaws.items()}
        displacement = {name: torch.tensor(row["displacement"]) for name, row in jigsaws.items()}
        images = next(iter(jigsaws.values()))["images"]
        title = f"CIFAR-10 jigsaws, {images:,} test images"
        yield save(plots.plot_jigsaw_errors(places, displacement, title), results / "jigsaw_errors.png")
        panels = {
            name: {
                mode: [
                    (row["samples_per_second"][mode], row["accuracy"], f"K = {row['steps']}") for row in rows["speed"]
                ]
                for mode in MODES
            }
            for name, rows in jigsaws.items()
        }
        about = measured["machine"]
        title = f"Accuracy and speed by diffusion steps K\n({about['processor']}, {about['threads']} threads, batch 32)"
        yield save(
            plots.plot_accuracy_and_speed(panels, baseline_speeds(results / "runtime.txt"), title),
            results / "accuracy_and_speed.png",
        )
    for name in ("sorting", *GRIDS):
        if not (measured.get("sorting") if name == "sorting" else name in jigsaws):
            yield f"left out: what needs measurements of {name}"


def there_and_back(model: SoftRankModel) -> "plots.Figure":
    """A list of the demo's digits, to noise and back."""
    size, seed = 9, 0
    _, batch = demo.batch_of("sorting", size, seed)
    frames = sample(model, batch.items[0], decode="greedy", seed=seed, record=True)[0].trajectory.frames()
    times, soft_ranks = draw_walk(size, 400, 0.5, seed, clean_order=batch.order[:1])
    labels = [f"{number:04d}" for number in batch.extras["labels"][0].tolist()]
    return plots.plot_there_and_back(times, soft_ranks, frames, labels, "Soft ranks of nine numbers, to noise and back")


def baseline_speeds(path: Path) -> dict[str, float]:
    """Samples per second of the one-pass baseline, by jigsaw, from what bench/runtime.py printed."""
    rows = json.loads(path.read_text().strip().splitlines()[-1])["rows"] if path.exists() else []
    return {
        name: row["samples_per_second"]
        for name, side in GRIDS.items()
        for row in rows
        if row.get("grid") == side and row.get("mode") == "one pass"
    }


def is_there(weights: Path, name: str) -> bool:
    return (weights / name / model_folder.CONFIG_FILE).exists()


def save(figure: "plots.Figure", path: Path) -> str:
    plots.save_figure(figure, path)
    return str(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the figures show, and draw them.")
    parser.add_argument("--measure", action="store_true", help="evaluate the models first (needs SOFTRANK_DATA)")
    parser.add_argument("--count", type=int, default=500, help="lists or images per evaluation")
    parser.add_argument("--sizes", type=int, nargs="+", default=(5, 9, 15, 32, 52), help="numbers per list")
    parser.add_argument("--weights", type=Path, default=pretrained.BUNDLED, help="folder of models by name")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    fix_threads(args.threads)
    file = args.results / "figures.json"
    if args.measure:
        try:
            measured = measure(args.weights, args.count, tuple(args.sizes))
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from error
        file.write_text(json.dumps(measured, indent=1) + "\n")
    measured = json.loads(file.read_text()) if file.exists() else {}
    for line in draw(measured, args.weights, args.results):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
