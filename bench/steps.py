"""What more diffusion steps do: quality and time over the number of steps, paired with one step.

    python bench/steps.py models                       the bundled models; --write puts it on their cards
    python bench/steps.py models tsp --count 1000 --write
    python bench/steps.py heads --minutes 5            weak heads beside strong ones, trained here to sort numbers

Everything is measured on validation data: lists and jigsaws of training images by a seed that no training used (jigsaws
moved by up to two pixels, which no training saw either), tours of own generated instances. Greedy, a prediction a step.
Differences from one step are paired by instance. For tours, which have a cost, the cheapest of as many draws of one
step stands beside: the same number of predictions.

--write puts the table on the model's card and sets the model's `sampling_steps`: the fewest for which no larger number
is better by more than two standard errors. A model of ballots is a law: there `bench/law.py` tells what steps do.
"""

import argparse
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import report
import torch
from timing import timed_once, timed_together
from torch import Tensor
from waves import SortWaves

from softrank_ext import Bridge, SoftRankConfig, SoftRankModel, from_pretrained, model_folder, sample
from softrank_ext.batch import Batch
from softrank_ext.metrics import tour_length
from softrank_ext.pretrained import BUNDLED
from softrank_ext.sampling import pins_of
from softrank_ext.tasks import Task
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP as Tours
from softrank_ext.tasks.tsp import generate, read_instances, tour_batch
from softrank_ext.training import TrainConfig, train

STEPS = (1, 2, 5, 10, 20)
VALIDATION_SEED = 9_770_001
TIMED = 64  # instances of a call that is timed, the best of three
RESULTS = Path(__file__).parent / "results"
HEADS: dict[str, dict[str, Any]] = {
    "pointer-cGPL": {"head": "pointer"},
    "cGPL": {"head": "linear", "max_items": 32},
    "GPL": {"head": "gpl", "encoder_layers": 7, "decoder_layers": 0},
    "PL": {"head": "pl", "encoder_layers": 7, "decoder_layers": 0},
}
_MARKS = ("<!-- steps: written by bench/steps.py -->", "<!-- end of steps -->")


class Validation(NamedTuple):
    """What a model is measured on: a task, a batch of its instances, the metric, and whether low values are good."""

    task: Task
    batch: Batch
    metric: str
    is_low_good: bool
    text: str


def validation_of(name: str, count: int, files: Path) -> Validation:
    """The validation data of a bundled model."""
    if name == "tsp":
        file = files / f"validation_50_{count}.txt"
        generate(file, count, 50, seed=VALIDATION_SEED)
        points, order = read_instances(file)
        text = f"{count} generated instances of 50 nodes"
        return Validation(Tours(), tour_batch(points, order), "gap", True, text)
    task: Any
    if name == "sorting":
        task, text = Sorting(32, cnn="light"), f"{count} lists of 32 numbers made of training images"
    else:
        grid = int(name[-1])
        task = Jigsaw(grid, crop=2)  # type: ignore[arg-type]
        text = f"{count} jigsaws of training images, moved by up to two pixels"
    batch = task.training_batch(VALIDATION_SEED, 0, count)
    return Validation(task, batch, "tie_aware_accuracy", False, text)


def rows_of(name: str, model: SoftRankModel, data: Validation, steps: list[int]) -> list[report.Row]:
    """A row for each number of steps."""
    batch, rows = data.batch, []
    first: Tensor | None = None
    pins = pins_of(batch.first)
    some, some_pins = batch.items[:TIMED], pins_of(None if batch.first is None else batch.first[:TIMED])
    calls = {
        number: partial(sample, model, some, constraints=some_pins, decode="greedy", steps=number, seed=0)
        for number in steps
    }
    times = timed_together(calls, repeats=3, seconds=1e9)
    for number in steps:
        drawn = sample(model, batch.items, constraints=pins, decode="greedy", steps=number, seed=0)
        values = torch.as_tensor(data.task.score(batch, drawn.order[:, 0])[data.metric]).double()
        first = values if first is None else first
        row: report.Row = {
            "name": f"{name}, {number} steps", "model": name, "steps": number, "metric": data.metric,
            "mean": float(values.mean()), "error": error_of(values), "difference": float((values - first).mean()),
            "difference_error": error_of(values - first), "milliseconds": 1e3 * times[number].best / len(some),
        }  # fmt: skip
        if data.metric == "gap":
            many = sample(model, batch.items, constraints=pins, num_samples=number, steps=1, seed=1)
            points = batch.extras["points"]
            order = many.order.flatten(0, 1)
            lengths = tour_length(points.repeat_interleave(number, 0), order).view(-1, number)
            best = lengths.amin(1) / batch.extras["best_length"] - 1
            row |= {"best_of": float(best.mean()), "best_of_error": error_of(best)}
        rows.append(row)
        print(line_of(row), flush=True)
    return rows


def error_of(values: Tensor) -> float:
    """The standard error of a mean."""
    return float(values.std() / len(values) ** 0.5)


def line_of(row: report.Row) -> str:
    """A row as a line of text."""
    best = f"; cheapest of {row['steps']} draws {row['best_of']:.4f}" if "best_of" in row else ""
    return (
        f"{row['name']}: {row['metric']} {row['mean']:.4f} ± {row['error']:.4f}, less one step's "
        f"{row['difference']:+.4f} ± {row['difference_error']:.4f}, {row['milliseconds']:.2f} ms each{best}"
    )


def chosen_steps(rows: list[report.Row], is_low_good: bool) -> int:
    """The fewest steps such that no larger number is better by more than two standard errors of the difference."""
    sign = -1 if is_low_good else 1
    best = rows[0]
    for row in rows[1:]:
        gain = sign * (row["difference"] - best["difference"])
        if gain > 2 * max(row["difference_error"], best["difference_error"]):
            best = row
    return int(best["steps"])


def markdown_of(rows: list[report.Row], text: str, about: dict[str, object], number: int) -> str:
    """The section of a card."""
    has_cost = "best_of" in rows[0]
    metric = rows[0]["metric"].replace("_", " ")
    header = ["steps", metric, "less one step's (paired)", "ms each"]
    header += ["cheapest of as many one-step draws"] if has_cost else []
    lines = []
    for row in rows:
        cells = [
            str(row["steps"]), f"{row['mean']:.4f} ± {row['error']:.4f}",
            f"{row['difference']:+.4f} ± {row['difference_error']:.4f}", f"{row['milliseconds']:.2f}",
        ]  # fmt: skip
        lines.append([*cells, f"{row['best_of']:.4f} ± {row['best_of_error']:.4f}"] if has_cost else cells)
    table = "\n".join(report.markdown_table(header, lines, 0))
    where = f"{about['threads']} threads of {about['processor']}"
    return (
        f"## Steps\n\nGreedy, on {text}, not on test data. {where}, by `python bench/steps.py models "
        f"{rows[0]['model']} --count {rows[0]['count']} --write`. The model's `sampling_steps` is {number}: no larger "
        f"number is better by more than two standard errors.\n\n{table}\n"
    )


def write_card(folder: Path, section: str, number: int) -> None:
    """Put the section on the card in a model's folder, and the number of steps into its config."""
    card, config = folder / "README.md", folder / model_folder.CONFIG_FILE
    marked = f"{_MARKS[0]}\n{section}{_MARKS[1]}\n"
    text = card.read_text()
    pattern = re.compile(re.escape(_MARKS[0]) + ".*?" + re.escape(_MARKS[1]) + "\n", re.DOTALL)
    card.write_text(pattern.sub(lambda _: marked, text) if pattern.search(text) else f"{text.rstrip()}\n\n{marked}")
    fields = json.loads(config.read_text())
    fields["process"]["sampling_steps"] = number
    config.write_text(json.dumps(fields, indent=2) + "\n")


def measure_models(args: argparse.Namespace, about: dict[str, object]) -> list[report.Row]:
    """The bundled models that are named, one after the other."""
    rows = []
    for name in args.names or ["sorting", "tsp", "jigsaw-3x3", "jigsaw-4x4"]:
        model = from_pretrained(args.weights / name)
        assert isinstance(model, SoftRankModel)
        data = validation_of(name, args.count, args.files)
        own = [{**row, "count": args.count} for row in rows_of(name, model, data, args.steps)]
        number = chosen_steps(own, data.is_low_good)
        print(f"{name}: {number} steps")
        if args.write:
            write_card(args.weights / name, markdown_of(own, data.text, about, number), number)
        rows += own
    return rows


def measure_heads(args: argparse.Namespace) -> list[report.Row]:
    """Models of each head, trained for equal time to sort 32 numbers."""
    task = SortWaves(32, 32)
    rows = []
    for name in args.names or list(HEADS):
        torch.manual_seed(0)
        config = SoftRankConfig(64, 256, heads=8, dropout=0.0, embedder=task.embedder(), process=Bridge())
        model = SoftRankModel(replace(config, **HEADS[name]))
        per_update = timed_once(partial(trained_for, model, task, 10)) / 10
        torch.manual_seed(0)
        model = SoftRankModel(replace(config, **HEADS[name]))
        updates = max(20, int(60 * args.minutes / per_update))
        trained = trained_for(model, task, updates)
        data = Validation(task, task.batch(VALIDATION_SEED, args.count), "accuracy", False, "")
        rows += [
            {**row, "updates": updates, "minutes": args.minutes} for row in rows_of(name, trained, data, args.steps)
        ]
    return rows


def trained_for(model: SoftRankModel, task: SortWaves, updates: int) -> SoftRankModel:
    """The model after so many updates."""
    settings = TrainConfig(
        updates, 32, warmup=min(100, updates // 4), learning_rate=1e-3, ema=0.99, keep_memory=True, prefetch=False
    )
    trained = train(model, task, settings, quiet=True).model
    assert isinstance(trained, SoftRankModel)
    return trained


def main() -> int:
    parser = report.options("Quality and time over the number of diffusion steps.")
    parser.add_argument("part", choices=("models", "heads"))
    parser.add_argument("names", nargs="*", help="which models or heads, by default all")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--count", type=int, default=1000, help="validation instances")
    parser.add_argument("--weights", type=Path, default=BUNDLED, help="folder of the models")
    parser.add_argument("--files", type=Path, default=Path("runs/steps"), help="folder for generated instances")
    parser.add_argument("--minutes", type=float, default=5.0, help="training of each head")
    parser.add_argument("--write", action="store_true", help="write the cards and set sampling_steps")
    args = parser.parse_args()
    if args.steps[0] != 1 or sorted(set(args.steps)) != args.steps:
        parser.error(f"--steps must ascend from 1, got {' '.join(map(str, args.steps))}")
    args.files.mkdir(parents=True, exist_ok=True)
    about = report.begin(args)
    rows = measure_models(args, about) if args.part == "models" else measure_heads(args)
    return report.finish(args, about, rows, "\n".join(map(line_of, rows)))


if __name__ == "__main__":
    raise SystemExit(main())
