"""What more diffusion steps do: quality and time over the number of steps, paired with one step.

    python bench/steps.py models sorting --count 2000     quality of a bundled model, to bench/results/steps_*.json
    python bench/steps.py times sorting --threads 1       its time, into the same file; this part needs a quiet machine
    python bench/steps.py cards sorting                   the table of that file onto its card, and its sampling_steps
    python bench/steps.py heads --count 400               weak heads beside strong ones, trained here to sort numbers

Everything is measured on validation data: lists and jigsaws of training images by a seed that no training used (jigsaws
moved by up to two pixels, which no training saw either), tours and flow shops of own instances. Greedy, a prediction a
step. Differences from one step are paired by instance. Beside them stands what the same number of predictions give as
draws of one step, of which the cheapest counts, or the most likely where there is no cost. A model of ballots is a law:
there it is the total variation of first two places between draws of so many steps and many draws of one step.

`cards` sets the model's `sampling_steps`: the fewest that no larger number beats by more than two standard errors,
of those larger numbers that are not behind as many draws of one step.
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
from law import distance, first_places, timed_counts
from timing import timed_once, timed_together
from torch import Tensor
from waves import SortWaves

from softrank_ext import Bridge, SoftRankConfig, SoftRankModel, from_pretrained, model_folder, sample
from softrank_ext.atomic_files import save_files
from softrank_ext.batch import Batch
from softrank_ext.metrics import tour_length
from softrank_ext.model import OrderModel
from softrank_ext.pretrained import BUNDLED
from softrank_ext.sampling import pins_of
from softrank_ext.tasks.flowshop import FlowShop
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP as Tours
from softrank_ext.tasks.tsp import generate, read_instances, tour_batch
from softrank_ext.training import TrainConfig, train

STEPS = (1, 2, 5, 10, 20)
MODELS = ("sorting", "tsp", "jigsaw-3x3", "jigsaw-4x4", "flowshop", "preferences-dublin-north")
VALIDATION_SEED = 9_770_001
TIMED = 64  # instances of a call that is timed; the best of three calls
RESULTS = Path(__file__).parent / "results"
HEADS: dict[str, dict[str, Any]] = {
    "pointer-cGPL": {"head": "pointer"},
    "cGPL": {"head": "linear", "max_items": 32},
    "GPL": {"head": "gpl", "encoder_layers": 7, "decoder_layers": 0},
    "PL": {"head": "pl", "encoder_layers": 7, "decoder_layers": 0},
}
# On a card: a command without --steps, and the number of steps in the first line of its table.
_EVALUATION = re.compile(
    r"^(?P<command>softrank evaluate (?:(?! --steps ).)*)(?P<table>\n```\n\n\| steps \|.*\n\|.*\n\| (?P<steps>\d+) \|)",
    re.MULTILINE,
)
_MARKS = ("<!-- steps: written by bench/steps.py -->", "<!-- end of steps -->")


class Validation(NamedTuple):
    """What a model is measured on: a task, a batch of its instances, the metric, and whether low values are good."""

    task: Any
    batch: Batch
    metric: str
    is_low_good: bool
    text: str


def validation_of(name: str, count: int, files: Path) -> Validation:
    """The validation data of a bundled model that is no law."""
    if name == "tsp":
        file = files / f"validation_50_{count}.txt"
        generate(file, count, 50, seed=VALIDATION_SEED)
        points, order = read_instances(file)
        text = f"{count} generated instances of 50 nodes"
        return Validation(Tours(), tour_batch(points, order), "gap", True, text)
    task: Any
    if name == "flowshop":
        task = FlowShop()
        (batch,) = task.test_batches(count, count, VALIDATION_SEED)
        return Validation(task, batch, "cost", True, f"{count} random flow shops of 20 jobs on 5 machines")
    if name == "sorting":
        task, text = Sorting(32, cnn="light"), f"{count} lists of 32 numbers made of training images"
    else:
        grid = int(name[-1])
        task = Jigsaw(grid, crop=2)  # type: ignore[arg-type]
        text = f"{count} jigsaws of training images, moved by up to two pixels"
    batch = task.training_batch(VALIDATION_SEED, 0, count)
    return Validation(task, batch, "tie_aware_accuracy", False, text)


def rows_of(name: str, model: OrderModel, data: Validation, steps: list[int]) -> list[report.Row]:
    """A row for each number of steps, with the best of as many draws of one step."""
    batch, rows = data.batch, []
    pins = pins_of(batch.first)
    many = sample(
        model, batch.items, constraints=pins, num_samples=steps[-1], steps=1, seed=1,
        decode="sample" if data.is_low_good else "greedy",
    )  # fmt: skip
    costs = -many.log_prob.double()
    if data.is_low_good:
        cost, items = (tour_length, batch.extras["points"]) if data.metric == "gap" else (data.task.cost, batch.items)
        costs = cost(items.repeat_interleave(steps[-1], 0), many.order.flatten(0, 1)).view(costs.shape)
    first: Tensor | None = None
    for number in steps:
        drawn = sample(model, batch.items, constraints=pins, decode="greedy", steps=number, seed=0)
        values = torch.as_tensor(data.task.score(batch, drawn.order[:, 0])[data.metric]).double()
        first = values if first is None else first
        best = many.order[torch.arange(len(costs)), costs[:, :number].argmin(1)]
        of_many = torch.as_tensor(data.task.score(batch, best)[data.metric]).double()
        row: report.Row = {
            "name": f"{name}, {number} steps", "model": name, "steps": number, "metric": data.metric,
            "is_low_good": data.is_low_good, "mean": float(values.mean()), "error": error_of(values),
            "difference": float((values - first).mean()), "difference_error": error_of(values - first),
            "best_of": float(of_many.mean()), "best_of_error": error_of(of_many),
            "less_best_of": float((values - of_many).mean()), "less_best_of_error": error_of(values - of_many),
        }  # fmt: skip
        rows.append(row)
        print(line_of(row), flush=True)
    return rows


def law_rows(name: str, model: SoftRankModel, steps: list[int], draws: int) -> list[report.Row]:
    """A row for each number of steps of a model of ballots: the distance to draws of one step, five times as many."""
    N = _items_of(model)
    items = torch.arange(N)[None]
    first_two = partial(first_places, places=2)
    law, _ = timed_counts(model, items, first_two, N * N, 5 * draws, 1, seed=1)
    rows: list[report.Row] = []
    for number in steps:
        counts, _ = timed_counts(model, items, first_two, N * N, draws, number)
        found = distance(counts, law)
        one = rows[0] if rows else {"mean": found.tv, "error": 0.0}
        row: report.Row = {
            "name": f"{name}, {number} steps", "model": name, "steps": number, "metric": "total_variation",
            "is_low_good": True, "mean": found.tv, "error": found.error, "difference": found.tv - one["mean"],
            "difference_error": float((found.error**2 + one["error"] ** 2) ** 0.5) if rows else 0.0,
        }  # fmt: skip
        rows.append(row)
        print(line_of(row), flush=True)
    return rows


def _items_of(model: SoftRankModel) -> int:
    """How many items a model of ballots orders."""
    assert model.config.data.num_items is not None
    return model.config.data.num_items[1]


def error_of(values: Tensor) -> float:
    """The standard error of a mean."""
    return float(values.std() / len(values) ** 0.5)


def line_of(row: report.Row) -> str:
    """A row as a line of text."""
    many = ""
    if "best_of" in row:
        many = (
            f"; best of {row['steps']} draws {row['best_of']:.4f} ± {row['best_of_error']:.4f}, steps less that "
            f"{row['less_best_of']:+.4f} ± {row['less_best_of_error']:.4f}"
        )
    return (
        f"{row['name']}: {row['metric']} {row['mean']:.4f} ± {row['error']:.4f}, less one step's "
        f"{row['difference']:+.4f} ± {row['difference_error']:.4f}{many}"
    )


def chosen_steps(rows: list[report.Row]) -> int:
    """The fewest steps that no larger number beats by two errors, of those that are not behind as many draws."""
    sign = -1 if rows[0]["is_low_good"] else 1
    best = rows[0]
    for row in rows[1:]:
        gain = sign * (row["difference"] - best["difference"])
        lost = -sign * row.get("less_best_of", 0.0)
        pays = gain > 2 * max(row["difference_error"], best["difference_error"])
        if pays and lost <= 2 * row.get("less_best_of_error", 0.0):
            best = row
    return int(best["steps"])


def markdown_of(record: dict[str, Any]) -> str:
    """The section of a card, from what `models` and `times` wrote."""
    rows = record["rows"]
    name, metric = rows[0]["model"], rows[0]["metric"].replace("_", " ")
    has_draws, has_times = "best_of" in rows[0], "milliseconds" in rows[0]
    header = ["steps", metric, "less one step's" + (" (paired)" if has_draws else "")]
    header += ["best of as many one-step draws", "steps less that (paired)"] if has_draws else []
    header += ["ms each"] if has_times else []
    lines = []
    for row in rows:
        cells = [str(row["steps"]), *(_stated(row, field) for field in ("mean", "difference"))]
        cells += [_stated(row, "best_of"), _stated(row, "less_best_of")] if has_draws else []
        lines.append([*cells, f"{row['milliseconds']:.2f}"] if has_times else cells)
    table = "\n".join(report.markdown_table(header, lines, 0))
    commands = f"`python bench/steps.py models {name} --count {record['count']}`"
    if has_times:
        machine = record["timed_on"]
        threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
        commands += (
            f"; times on {threads} of {machine['processor']}, calls of {record['timed']} instances, by "
            f"`python bench/steps.py times {name} --threads {machine['threads']}`"
        )
    meaning = "is the fewest that no larger number beats by more than two standard errors"
    meaning += ", of those that are not behind as many draws of one step" if has_draws else ""
    return (
        f"## Steps\n\n{record['text']}. By {commands}. The model's `sampling_steps`, {chosen_steps(rows)}, {meaning}."
        f"\n\n{table}\n"
    )


def _stated(row: report.Row, field: str) -> str:
    """A value and its error; differences with their sign."""
    error = row["error" if field == "mean" else f"{field}_error"]
    sign = "" if field in ("mean", "best_of") else "+"
    return f"{row[field]:{sign}.4f} ± {error:.4f}"


def write_card(folder: Path, section: str, number: int) -> None:
    """Put the section on the card in a model's folder, and the number of steps into its config.

    Evaluations on the card that named no steps, as they had the model's own, name theirs.
    """
    card, config = folder / "README.md", folder / model_folder.CONFIG_FILE
    marked = f"{_MARKS[0]}\n{section}{_MARKS[1]}\n"
    text = _EVALUATION.sub(
        lambda found: f"{found['command']} --steps {found['steps']}{found['table']}", card.read_text()
    )
    pattern = re.compile(re.escape(_MARKS[0]) + ".*?" + re.escape(_MARKS[1]) + "\n", re.DOTALL)
    card.write_text(pattern.sub(lambda _: marked, text) if pattern.search(text) else f"{text.rstrip()}\n\n{marked}")
    fields = json.loads(config.read_text())
    if fields["process"]["sampling_steps"] != number:
        fields["process"]["sampling_steps"] = number
        save_files(folder, {config.name: (json.dumps(fields, indent=2) + "\n").encode()})


def file_of(name: str) -> Path:
    """Where the figures of a bundled model stand."""
    return RESULTS / f"steps_{name}.json"


def measure_models(args: argparse.Namespace, about: dict[str, object]) -> list[report.Row]:
    """The quality of the bundled models that are named, one after the other."""
    rows: list[report.Row] = []
    for name in args.names or MODELS:
        model = from_pretrained(args.weights / name)
        assert isinstance(model, SoftRankModel)
        if name.startswith("preferences"):
            own = law_rows(name, model, args.steps, args.count)
            text = (
                f"Total variation of the first two places between {args.count} draws of so many steps and "
                f"{5 * args.count} draws of one step, which follow what was learned exactly. The first line is what "
                "chance alone gives"
            )
        else:
            data = validation_of(name, args.count, args.files)
            own = rows_of(name, model, data, args.steps)
            better = "cheapest" if data.is_low_good else "most likely"
            text = f"Greedy, on {data.text}, not on test data. Best of draws: the {better}"
        record = {"machine": about, "text": text, "count": args.count, "rows": own}
        file_of(name).write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {chosen_steps(own)} steps; written to {file_of(name)}")
        rows += own
    return rows


def measure_times(args: argparse.Namespace, about: dict[str, object]) -> list[report.Row]:
    """The milliseconds of an instance at each number of steps, into the models' files."""
    rows: list[report.Row] = []
    for name in args.names or MODELS:
        model = from_pretrained(args.weights / name)
        assert isinstance(model, SoftRankModel)
        record = json.loads(file_of(name).read_text())
        if name.startswith("preferences"):
            items, pins = torch.arange(_items_of(model)).expand(TIMED, -1), None
        else:
            batch = validation_of(name, TIMED, args.files).batch
            items, pins = batch.items, pins_of(batch.first)
        calls = {
            row["steps"]: partial(sample, model, items, constraints=pins, decode="greedy", steps=row["steps"], seed=0)
            for row in record["rows"]
        }
        times = timed_together(calls, repeats=3, seconds=1e9)
        for row in record["rows"]:
            row["milliseconds"] = 1e3 * times[row["steps"]].best / TIMED
            print(f"{row['name']}: {row['milliseconds']:.2f} ms each", flush=True)
        file_of(name).write_text(json.dumps(record | {"timed_on": about, "timed": TIMED}, indent=1) + "\n")
        rows += record["rows"]
    return rows


def write_cards(args: argparse.Namespace) -> None:
    """The tables of the models' files onto their cards, and their sampling_steps."""
    for name in args.names or MODELS:
        record = json.loads(file_of(name).read_text())
        write_card(args.weights / name, markdown_of(record), chosen_steps(record["rows"]))


def measure_heads(args: argparse.Namespace, about: dict[str, object]) -> list[report.Row]:
    """Models of each head, trained for as many updates to sort 32 numbers; shares of lists and places right."""
    task = SortWaves(32, 32)
    batch = task.batch(VALIDATION_SEED, args.count)
    rows: list[report.Row] = []
    for name in args.names or list(HEADS):
        torch.manual_seed(0)
        config = SoftRankConfig(64, 256, heads=8, dropout=0.0, embedder=task.embedder(), process=Bridge())
        model = SoftRankModel(replace(config, **HEADS[name]))
        trained: list[SoftRankModel] = []
        seconds = timed_once(lambda: trained.append(trained_for(model, task, args.updates)))  # noqa: B023
        for metric in ("accuracy", "correctness"):
            own = rows_of(name, trained[0].eval(), Validation(task, batch, metric, False, ""), args.steps)
            rows += [{**row, "updates": args.updates, "minutes": seconds / 60, "count": args.count} for row in own]
    (RESULTS / "steps_heads.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
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
    parser.add_argument("part", choices=("models", "times", "cards", "heads"))
    parser.add_argument("names", nargs="*", help="which models or heads, by default all")
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--count", type=int, default=1000, help="validation instances, or draws of a model of ballots")
    parser.add_argument("--weights", type=Path, default=BUNDLED, help="folder of the models")
    parser.add_argument("--files", type=Path, default=Path("runs/steps"), help="folder for generated instances")
    parser.add_argument("--updates", type=int, default=2000, help="training of each head")
    args = parser.parse_args()
    if args.steps[0] != 1 or sorted(set(args.steps)) != args.steps:
        parser.error(f"--steps must ascend from 1, got {' '.join(map(str, args.steps))}")
    args.files.mkdir(parents=True, exist_ok=True)
    about = report.begin(args)
    if args.part == "cards":
        write_cards(args)
        return 0
    if args.part == "models":
        rows = measure_models(args, about)
    elif args.part == "times":
        rows = measure_times(args, about)
    else:
        rows = measure_heads(args, about)
    return report.finish(args, about, rows, "\n".join(map(line_of, rows)))


if __name__ == "__main__":
    raise SystemExit(main())
