"""What training for parts does: whole orders alone, with parts, and with parts and drafts, for equal time.

    python bench/partial.py --minutes 10                     sorting and the flow shop, from nothing
    python bench/partial.py --tasks tsp --start-from MODEL   tours of 50 points, from the weights of a saved model

Three models of a task train for the same minutes of processor time, so that others on the machine disturb no
comparison: all orders noised whole; half of them (PARTIAL) noised in a part only; and of these some (DRAFTS) around
drafts of the model's own. Each then solves the same held-out instances, made by a seed that no training uses: greedy,
one step; and, where the task has a cost, the best of independent draws and `improve`, on as many draws. Differences
from the first model are paired by instance, with their standard errors; lower is better.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import report
import torch
from tables import seconds_per_update
from timing import fix_threads, machine, processor_seconds
from torch import Tensor
from waves import SortWaves

from softrank_ext import Drawing, Search, SoftRankConfig, SoftRankModel, from_pretrained, improve, sample
from softrank_ext.batch import Batch
from softrank_ext.costs import Cost, neh
from softrank_ext.metrics import tour_length
from softrank_ext.sampling import pins_of
from softrank_ext.tasks import Task
from softrank_ext.tasks.flowshop import FlowShop
from softrank_ext.tasks.tsp import TSP, generate, read_instances, tour_batch
from softrank_ext.training import SelfLabel, TrainConfig, train

VALIDATION_SEED = 9_770_002
PARTIAL, DRAFTS = 0.5, 0.3
TRAININGS: dict[str, dict[str, float]] = {
    "whole orders": {}, "parts": {"partial": PARTIAL}, "parts and drafts": {"partial": PARTIAL, "drafts": DRAFTS},
}  # fmt: skip
TASKS = ("sorting", "flowshop", "tsp")
RESULTS = Path(__file__).parent / "results"
SIZES = SoftRankConfig(128, 512, encoder_layers=3, decoder_layers=3, dropout=0.0)


class Comparison(NamedTuple):
    """A task, the held-out instances, how to train on it, and what an order costs, if anything."""

    task: Any
    batch: Batch
    settings: TrainConfig
    unit: str
    cost: Cost | None = None
    baseline: Tensor | None = None  # cost (B,) that others are stated over


def comparison_of(name: str, args: argparse.Namespace) -> Comparison:
    """What a task's models are compared on."""
    settings = TrainConfig(batch_size=32, ema=0.995, prefetch=False, keep_memory=True)
    if name == "sorting":
        waves = SortWaves(32, 32)
        return Comparison(waves, waves.batch(VALIDATION_SEED, args.count), settings, "share of places wrong")
    if name == "flowshop":
        shop = FlowShop(num_jobs=20, num_machines=5)
        batch = shop.training_batch(VALIDATION_SEED, 0, args.count)
        settings = replace(settings, batch_size=16, objective=SelfLabel(draws=32))
        baseline = shop.cost(batch.items, neh(batch.items, shop.cost))
        return Comparison(shop, batch, settings, "% over NEH", shop.cost, baseline)
    args.files.mkdir(parents=True, exist_ok=True)
    train_file, held_out = args.files / "tsp50.txt", args.files / f"tsp50_validation_{args.count}.txt"
    if not train_file.exists():
        generate(train_file, args.train_count, 50, seed=VALIDATION_SEED + 1)
    if not held_out.exists():
        generate(held_out, args.count, 50, seed=VALIDATION_SEED)
    batch = tour_batch(*read_instances(held_out))
    task = TSP(str(train_file), direction="counterclockwise")
    baseline = tour_length(batch.items, batch.order)
    return Comparison(task, batch, settings, "% over the best tour", tour_length, baseline)


def answers_of(model: SoftRankModel, comparison: Comparison, draws: int) -> dict[str, Tensor]:
    """How bad each kind of answer is, (B,)."""
    task, batch, cost, baseline = comparison.task, comparison.batch, comparison.cost, comparison.baseline
    drawn = sample(model, batch.items, constraints=pins_of(batch.first), decode="greedy", steps=1, seed=0)
    order = drawn.order[:, 0]
    if cost is None or baseline is None:
        return {"greedy": 1 - task.score(batch, order)["correctness"].double()}
    costs = {"greedy": cost(batch.items, order)}
    plain = Drawing(decode="sample", copies=False)
    for name, initial, drawing in ((f"{draws} draws", draws, plain), (f"improve, {draws}", draws // 4, Drawing())):
        found = improve(
            model, batch.items, cost, initial=initial, rounds=draws - initial, search=Search(), drawing=drawing, seed=0
        )
        costs[name] = found.cost
    return {name: 100 * (found / baseline - 1) for name, found in costs.items()}


def trained(
    comparison: Comparison, more: Mapping[str, float], args: argparse.Namespace
) -> tuple[SoftRankModel, int, float]:
    """The model after the minutes, its updates, and the seconds of an update at the start."""
    task: Task = comparison.task
    torch.manual_seed(args.seed)
    config = replace(
        SIZES, partial=bool(more), embedder=task.embedder(), data=getattr(task, "data_facts", lambda: SIZES.data)()
    )
    if isinstance(task, TSP):
        start = from_pretrained(args.start_from)
        assert isinstance(start, SoftRankModel)
        config = replace(start.config, partial=bool(more), data=task.data_facts(), dropout=0.0)
    model = SoftRankModel(config)
    if isinstance(task, TSP):
        model.load_state_dict(start.state_dict(), strict=False)  # all but the marks of what is kept
    budget = 60 * args.minutes
    settings = replace(comparison.settings, seed=args.seed, **more)  # type: ignore[arg-type]
    seconds = seconds_per_update(model, task, settings, budget, processor_seconds)
    updates = max(1, int(budget / seconds))
    settings = replace(settings, iterations=updates, warmup=min(100, updates // 5))
    return train(model, task, settings, quiet=True).model.eval(), updates, seconds  # type: ignore[return-value]


def stated(values: Tensor) -> str:
    """Mean and standard error."""
    return f"{float(values.mean()):.3f} ± {float(values.std() / len(values) ** 0.5):.3f}"


def rows_of(name: str, args: argparse.Namespace) -> list[report.Row]:
    """A row for each training and kind of answer."""
    comparison = comparison_of(name, args)
    rows: list[report.Row] = []
    first: dict[str, Tensor] = {}
    for training, more in TRAININGS.items():
        models: list[tuple[SoftRankModel, int, float]] = []
        seconds = processor_seconds(lambda: models.append(trained(comparison, more, args)))  # noqa: B023
        model, updates, each = models[0]
        answers = answers_of(model, comparison, args.draws)
        first = first or answers
        for kind, values in answers.items():
            rows.append(
                {"task": name, "training": training, "answer": kind, "unit": comparison.unit, "value": stated(values),
                 "less whole orders'": stated(values - first[kind]), "updates": updates,
                 "milliseconds of an update": round(1000 * each, 1), "minutes": round(seconds / 60, 1)}
            )  # fmt: skip
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", choices=TASKS, nargs="+", default=["sorting", "flowshop"])
    parser.add_argument("--minutes", type=float, default=10, help="of processor time for each training")
    parser.add_argument("--start-from", default=None, help="model of tours to start from; tsp needs one")
    parser.add_argument("--count", type=int, default=256, help="held-out instances")
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--train-count", type=int, default=20_000, help="tours to train on, made once")
    parser.add_argument("--files", type=Path, default=Path("runs/partial"), help="folder of the tours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "partial.json")
    args = parser.parse_args()
    if "tsp" in args.tasks and args.start_from is None:
        parser.error("--start-from: tsp needs a model to start from")
    fix_threads(args.threads)
    record: dict[str, object] = json.loads(args.output.read_text()) if args.output.exists() else {}
    for name in args.tasks:
        rows = rows_of(name, args)
        record[name] = {"machine": machine(), "instances": args.count, "minutes": args.minutes, "rows": rows}
        args.output.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
