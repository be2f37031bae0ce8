"""The paper's tables on this machine: every row is trained and evaluated under the same wall-clock budget.

    python bench/tables.py --table sorting --budget 30 --sizes 9 15        minutes of training per row
    python bench/tables.py --table ablation --budget 30 --rows "riffle, GPL, previous"
    python bench/tables.py --table tsp --budget 60 --batch-size 32

A few updates are timed first, and as many are made as fit into the budget, so that the rate's decay ends with it; that
timing, evaluation and the making of TSP instances are not counted. A row that is done is not done again, and a killed
one is resumed from its checkpoint: both are looked up in --runs. The table, with the paper's numbers beside, goes to
--output as Markdown and JSON after each row, with all rows of the same settings that are done. Long lists need much
memory: lower --batch-size.
"""

import argparse
import copy
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import report
import table_text
import torch
from paper import JIGSAW_TABLES, SORTING_TABLES, TABLES, Row, papers_numbers
from timing import seconds_over_starts, timed_once

from softrank_ext import model_folder, pretrained
from softrank_ext.evaluation import evaluate
from softrank_ext.methods import method_of
from softrank_ext.model import OrderModel
from softrank_ext.tasks import Task
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP, generate
from softrank_ext.training import TrainConfig, train

# Settings that a row's result depends on: rows with others are not mixed into one table.
_SETTINGS = (
    "budget", "cnn", "patch_reader", "batch_size", "draws", "width", "reader", "count", "instances", "seed", "threads",
)  # fmt: skip


def task_of(table: str, size: int, args: argparse.Namespace) -> Task:
    """The task of a table at a size; TSP instances are made if they are not there."""
    if table in SORTING_TABLES:
        return Sorting(num_items=size, cnn=args.cnn)
    if table in JIGSAW_TABLES:
        return Jigsaw(grid=size, reader=args.patch_reader)  # type: ignore[arg-type]
    files = {
        part: str(generate(args.runs / f"tsp{size}_{part}_{count}_seed{seed}.txt", count, size, seed=seed))
        for part, count, seed in (("training", args.instances, args.seed + 1), ("test", args.count, args.seed))
    }
    return TSP(training_file=files["training"], test_file=files["test"])


def model_of(row: Row, task: Task, args: argparse.Namespace) -> OrderModel:
    """A row's model with random weights, except those of --reader; --width does not apply to DiffSort's scorers."""
    method = method_of(row.method)
    options = dataclasses.replace(method.options(task.name), **row.model)
    if row.process:
        options = dataclasses.replace(options, process=dataclasses.replace(options.process, **row.process))
    if args.width is not None and "diffsort" not in row.method:
        options = dataclasses.replace(options, d_model=args.width, feed_forward=4 * args.width)
    model = method.make(task, options)
    if args.reader is not None:
        try:
            model.embedder.load_state_dict(pretrained.from_pretrained(args.reader).embedder.state_dict())
        except RuntimeError as error:
            raise SystemExit(f"--reader {args.reader} does not fit {row.name}: {error}") from error
        model.embedder.requires_grad_(False)
    return model


def config_of(row: Row, task: Task, size: int, args: argparse.Namespace) -> TrainConfig:
    """How a row is trained, without the number of updates: as its method is, with the rate decaying to the end."""
    settings = {**method_of(row.method).training(task.name), **row.training(size)}
    if args.batch_size is not None:
        settings["batch_size"] = args.batch_size
    if args.draws is not None and row.method in ("softrank", "symmetric-diffusers"):
        settings |= {"noisy_orders": args.draws, "times": "drawn"}
    return TrainConfig(**{**settings, "schedule": "cosine", "seed": args.seed})


def seconds_per_update(
    model: OrderModel,
    task: Task,
    config: TrainConfig,
    budget: float,
    timed: Callable[[Callable[[], object]], float] = timed_once,
) -> float:
    """Time updates of a copy of the model until a few seconds have passed, after one that reads the data."""

    def seconds_of(updates: int) -> float:
        trial = dataclasses.replace(config, iterations=updates, log_every=updates, warmup=0)
        return timed(lambda: train(copy.deepcopy(model), task, trial, quiet=True))

    seconds_of(1)
    updates = 2
    while (seconds := seconds_of(updates)) < min(5.0, 0.1 * budget):
        updates *= 4
    return seconds / updates


def plan(model: OrderModel, task: Task, config: TrainConfig, args: argparse.Namespace) -> dict[str, Any]:
    """How many updates fit into the budget, and how often to keep a checkpoint: ten times, or once a minute."""
    budget = 60 * args.budget
    seconds = seconds_per_update(model, task, config, budget)
    iterations = max(1, int(budget / seconds))
    every = max(1, int(min(60, budget / 10) / seconds))
    return {
        "iterations": iterations, "warmup": min(config.warmup, iterations // 10), "checkpoint_every": every,
        "log_every": min(50, every), "planned_seconds_per_update": seconds,
    }  # fmt: skip


def training_seconds(folder: Path) -> float:
    """How long a run trained, over all times that it was started."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return seconds_over_starts(json.loads(line)["seconds"] for line in lines)


def run_row(table: str, row: Row, size: int, args: argparse.Namespace) -> bool:
    """Train and evaluate a row at a size, from where an earlier run stopped; False if it was interrupted."""
    folder = args.runs / table / f"{row.name.replace(', ', '-').replace(' ', '-')}-{size}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(args, name) for name in _SETTINGS}
    plan_file, result_file = folder / "plan.json", folder / "result.json"
    task = task_of(table, size, args)
    torch.manual_seed(args.seed)
    model = model_of(row, task, args)
    config = config_of(row, task, size, args)
    if not plan_file.exists():
        planned = {"settings": settings, **plan(model, task, config, args)}
        plan_file.write_text(json.dumps(planned, indent=2) + "\n")
    planned = json.loads(plan_file.read_text())
    if planned["settings"] != settings:
        raise SystemExit(f"{folder} was made with {planned['settings']}, not with {settings}: take another --runs")
    if result_file.exists():
        return True
    names = ("iterations", "warmup", "checkpoint_every", "log_every")
    config = dataclasses.replace(config, **{name: planned[name] for name in names})
    print(f"{row.name}, {TABLES[table].size_name} {size}: {planned['iterations']} updates", file=sys.stderr)
    if not train(model, task, config, folder, resume="auto", quiet=args.json).is_finished:
        return False
    trained = pretrained.from_pretrained(folder / "last")
    assert isinstance(trained, torch.nn.Module)
    lines = []
    for line, changes in row.evaluation.items():
        process = dataclasses.replace(trained.config.process, **changes) if changes else None
        scores = evaluate(
            trained, task, count=args.count, batch_size=args.evaluate_batch_size, process=process, seed=args.seed
        )
        lines.append({"line": line, **scores})
    result = {
        "name": row.name, "size": size, "method": row.method, "model": model_folder.config_to_json(trained.config),
        "parameters": sum(parameter.numel() for parameter in trained.parameters()), "settings": settings,
        "updates": planned["iterations"], "seconds": training_seconds(folder), "training": dataclasses.asdict(config),
        "evaluations": lines,
    }  # fmt: skip
    result_file.write_text(json.dumps(result, indent=2) + "\n")
    return True


def results_of(table: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The results in --runs with the settings of this call, in the order of the table, beside the paper's numbers."""
    found = [json.loads(path.read_text()) for path in (args.runs / table).glob("*/result.json")]
    settings = json.loads(json.dumps({name: getattr(args, name) for name in _SETTINGS}))
    rows = {row.name: row for row in TABLES[table].rows}
    same = [result for result in found if result["settings"] == settings]
    for result in same:
        for evaluation in result["evaluations"]:
            evaluation |= papers_numbers(rows[result["name"]], evaluation["line"], result["size"])
    return sorted(same, key=lambda result: (result["size"], list(rows).index(result["name"])))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", required=True, choices=TABLES)
    parser.add_argument("--budget", required=True, type=float, metavar="MINUTES", help="training time of each row")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="rows by name (default: all)")
    parser.add_argument("--sizes", nargs="+", type=int, help="items, nodes or patches per side (default: the paper's)")
    parser.add_argument("--cnn", choices=("light", "paper"), default="light", help="how four-digit images are read")
    parser.add_argument("--patch-reader", choices=("edges", "paper"), default="edges", help="how patches are read")
    parser.add_argument("--batch-size", type=int, help="of every method (default: each method's own)")
    parser.add_argument(
        "--draws", type=int,
        help="noisy orders per instance and update of every diffusion, each at one drawn time (default: Soft-Rank one, "
        "SymmetricDiffusers three at all its times)",
    )  # fmt: skip
    parser.add_argument(
        "--width",
        type=int,
        help="of the networks over lists, feed-forward layers four times that (default: the task's)",
    )
    parser.add_argument(
        "--reader",
        metavar="CHECKPOINT",
        help="how items are read: as this model of the same width does, so that rows only learn to put them in order",
    )
    parser.add_argument("--count", type=int, default=1000, help="held-out instances")
    parser.add_argument("--evaluate-batch-size", type=int, default=64)
    parser.add_argument("--instances", type=int, default=20_000, help="training instances of TSP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/tables"), help="folder of the runs, which can be resumed"
    )
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", help="folder of the table")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON line")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    table = TABLES[args.table]
    if not args.budget > 0:
        parser.error(f"--budget must be positive, got {args.budget}")
    names = [row.name for row in table.rows]
    unknown = [name for name in args.rows or () if name not in names]
    if unknown:
        parser.error(f"--rows must be of {'; '.join(names)}; got {'; '.join(unknown)}")
    about = report.begin(args)
    for size in args.sizes or table.sizes:
        for row in table.rows:
            if args.rows and row.name not in args.rows:
                continue
            if not run_row(args.table, row, size, args):
                print("interrupted; run the same command to continue", file=sys.stderr)
                return 130
            table_text.write(args.table, about, results_of(args.table, args), args)
    results = results_of(args.table, args)
    lines = table_text.write(args.table, about, results, args)
    print(json.dumps(results) if args.json else report.table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
