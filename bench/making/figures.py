"""Measures what the figures show and draws them into bench/results.

    python bench/making/figures.py --measure     evaluate the bundled models (needs SOFTRANK_DATA; takes minutes)
    python bench/making/figures.py               draw: from that, the demo's items and bench/results/runtime.txt

Measurements are in figures.json. Figures without their model or measurements are skipped, with a line that says so.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benches, when this script is run

import plots
import torch
from paper import TABLES
from report import Row
from result_tables import rows_of
from timing import fix_threads, machine, timed

from softrank_ext import Engine, SoftRankModel, metrics, model_folder, pretrained, sample
from softrank_ext.evaluation import evaluate
from softrank_ext.show import demo, draw_walk, plot_there_and_back, save_figure
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[1] / "results"
GRIDS = {"jigsaw-3x3": 3, "jigsaw-4x4": 4}
STEPS = (1, 2, 3, 5, 10)
MODES = {"compiled": Engine(), "eager, cached": Engine(compiled=False)}
# Lines of the paper's table of sorting, and how the figure calls them.
PAPER = {
    "Soft-Rank, pointer-cGPL": "Soft-Rank, pointer (paper)",
    "SymmetricDiffusers, GPL": "SymmetricDiffusers (paper)",
}


def measure(weights: Path, count: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy over N, errors of jigsaws place by place, and accuracy and speed by diffusion steps."""
    measured: dict[str, Any] = {"machine": machine(), "sorting": [], "jigsaws": {}}
    if is_there(weights, "sorting"):
        model = SoftRankModel.from_pretrained(weights / "sorting")
        for size in sizes:
            scores: Any = evaluate(model, Sorting(size), count=count)["metrics"]
            measured["sorting"].append({"items": size, "lists": count, "metrics": scores})
            print(f"sorting {size}: {scores['accuracy']['mean']:.4f} accuracy", file=sys.stderr)
    for name, side in GRIDS.items():
        if is_there(weights, name):
            measured["jigsaws"][name] = measure_jigsaw(SoftRankModel.from_pretrained(weights / name), side, count)
            print(f"{name}: {measured['jigsaws'][name]['speed'][-1]}", file=sys.stderr)
    return measured


def measure_jigsaw(model: SoftRankModel, side: int, count: int) -> dict[str, Any]:
    """Of jigsaws: where they go wrong after 5 steps; accuracy and speed by the number of steps."""
    (batch,) = Jigsaw(side).test_batches(count, count)  # type: ignore[arg-type]
    orders = {steps: sample(model, batch.items, decode="greedy", steps=steps, seed=0).order[:, 0] for steps in STEPS}
    last = orders[5]

    def speed(steps: int, engine: Engine) -> float:
        call = partial(sample, model, batch.items[:32], decode="greedy", steps=steps, seed=0, engine=engine)
        return 32 / timed(call, repeats=3).best

    return {
        "images": count,
        "place_accuracy": metrics.place_accuracy(last, batch.order, side, side).tolist(),
        "displacement": metrics.displacement_histogram(last, batch.order, side, side).tolist(),
        "speed": [
            {
                "steps": steps,
                "accuracy": float(metrics.accuracy(order, batch.order).mean()),
                "samples_per_second": {mode: speed(steps, engine) for mode, engine in MODES.items()},
            }
            for steps, order in orders.items()
        ],
    }


def draw(measured: dict[str, Any], weights: Path, results: Path) -> Iterator[str]:
    """Draw what can be drawn; yields a line about each figure."""
    with TemporaryDirectory() as folder:
        for path in demo.run(output=folder, weights=weights).files:
            if path.suffix == ".png":
                shutil.copy(path, results)
                yield str(results / path.name)
    if is_there(weights, "sorting"):
        yield save(there_and_back(SoftRankModel.from_pretrained(weights / "sorting")), results / "there_and_back.png")
    sorting, jigsaws = measured.get("sorting", []), measured.get("jigsaws", {})
    if sorting:
        yield save(accuracy_over_n(sorting), results / "accuracy_over_n.png")
    if jigsaws:
        yield save(jigsaw_errors(jigsaws), results / "jigsaw_errors.png")
        speeds = baseline_speeds(results)
        yield save(accuracy_and_speed(jigsaws, speeds, measured["machine"]), results / "accuracy_and_speed.png")
    for name in ("sorting", *GRIDS):
        if not (sorting if name == "sorting" else name in jigsaws):
            yield f"skipped: no measurements of {name}"


def there_and_back(model: SoftRankModel) -> "Figure":
    """A list of the demo's digits, to noise and back."""
    size, seed = 9, 0
    _, batch = demo.batch_of("sorting", size, seed)
    trajectory = sample(model, batch.items[0], decode="greedy", seed=seed, record=True)[0].trajectory
    assert trajectory is not None
    walk = draw_walk(size, 400, seed=seed, clean_order=batch.order[0])
    labels = [f"{number:04d}" for number in batch.extras["labels"][0].tolist()]
    return plot_there_and_back(walk, trajectory, labels, "Soft ranks of nine numbers, to noise and back")


def accuracy_over_n(rows: list[Row]) -> "Figure":
    """Lists sorted wholly right over N, beside the paper's."""
    series = {
        "this package": [(row["items"], row["metrics"]["accuracy"]["mean"]) for row in rows],
        "this package, equal numbers interchangeable": [
            (row["items"], row["metrics"]["tie_aware_accuracy"]["mean"]) for row in rows
        ],
    }
    sizes = [row["items"] for row in rows]
    for row in reversed(TABLES["sorting"].rows):
        if row.name in PAPER:
            series[PAPER[row.name]] = [(N, row.paper[""][N]["accuracy"]) for N in row.paper[""] if N in sizes]
    title = f"Sorting four-digit MNIST numbers ({rows[0]['lists']:,} lists per N, greedy, 5 steps)"
    return plots.plot_accuracy_over_size(series, "this package", title)


def jigsaw_errors(jigsaws: dict[str, Row]) -> "Figure":
    """Where jigsaws go wrong."""
    places = {name: torch.tensor(row["place_accuracy"]) for name, row in jigsaws.items()}
    displacement = {name: torch.tensor(row["displacement"]) for name, row in jigsaws.items()}
    images = next(iter(jigsaws.values()))["images"]
    return plots.plot_jigsaw_errors(places, displacement, f"CIFAR-10 jigsaws, {images:,} test images")


def accuracy_and_speed(jigsaws: dict[str, Row], speeds: dict[str, float], about: dict[str, Any]) -> "Figure":
    """Accuracy over samples per second, by diffusion steps. speeds: of the one-pass baseline."""
    panels = {
        name: {
            mode: [(row["samples_per_second"][mode], row["accuracy"], f"K = {row['steps']}") for row in rows["speed"]]
            for mode in MODES
        }
        for name, rows in jigsaws.items()
    }
    title = f"Accuracy and speed by diffusion steps K\n({about['processor']}, {about['threads']} threads, batch 32)"
    return plots.plot_accuracy_and_speed(panels, speeds, title)


def baseline_speeds(results: Path) -> dict[str, float]:
    """Samples per second of the one-pass baseline, by jigsaw, as bench/runtime.py has measured them."""
    rows = rows_of(results, "runtime") if (results / "runtime.txt").exists() else []
    return {
        name: row["samples_per_second"]
        for name, side in GRIDS.items()
        for row in rows
        if row.get("grid") == side and row.get("mode") == "one pass"
    }


def is_there(weights: Path, name: str) -> bool:
    """Whether a folder of models has one of that name."""
    return (weights / name / model_folder.CONFIG_FILE).exists()


def save(figure: "Figure", path: Path) -> str:
    """Write a figure; returns its path."""
    save_figure(figure, path)
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
