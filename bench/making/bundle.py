"""Puts a trained model into the package, with a card that is written from the run's own records.

    python bench/making/bundle.py sorting runs/sorting runs/sorting-slow
    softrank evaluate sorting softrank_ext/weights/sorting --task.num-items 9 --count 2000 --output nine.json
    python bench/making/bundle.py sorting runs/sorting runs/sorting-slow --evaluation nine.json

The runs are the stages of the training, oldest first; the weights are those of the last one (`last/`, or `best/` with
--best), matrices in float16. The card, README.md beside the weights, lists each stage (run.json, metrics.jsonl) and the
evaluations, which must be of these weights: their SHA-256 is checked. No number in it is typed by hand.

What the card tells of the stages is kept in training.json beside it. A bundled model may stand for the runs that made
it, so that training can go on from it when their folders are gone:

    softrank train sorting --start-from softrank_ext/weights/sorting ... --output runs/sorting-more
    python bench/making/bundle.py sorting softrank_ext/weights/sorting runs/sorting-more
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benches, when this script is run

from report import markdown_table
from timing import seconds_over_starts

from softrank_ext import SoftRankModel, model_folder

Record = dict[str, Any]

WEIGHTS = Path(__file__).parents[2] / "softrank_ext" / "weights"
MOST_BYTES = 30_000_000  # of all bundled models together
CURVE_POINTS = 8
STAGES_FILE = "training.json"
DATA = {
    "flowshop": "No labels: random flow shops as E. Taillard's (Benchmarks for basic scheduling problems, 1993), times "
    "uniform from 1 to 99; the model learned from the makespans of its own orders. Evaluations on his published "
    "instances, if any, say so by their test file; `gap` is over the best known makespans.",
    "tardiness": "No labels: random jobs of one machine as in the OR-Library, with times, weights and due dates; the "
    "model learned from the weighted tardiness of its own orders.",
    "sorting": "MNIST (Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document "
    "recognition, 1998): lists are drawn from its training images; evaluations use its test images.",
    "jigsaw": "CIFAR-10 (A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009): training images; "
    "evaluations use its test images.",
    "tsp": "Uniform instances of `softrank generate tsp`, with near-optimal tours (where a command has `--seconds`, by "
    "fast-tsp, as 0.1.0 did); evaluations use files of optimal tours, and for 100 nodes near-optimal ones: "
    "`softrank generate tsp tsp100_seed1001.txt --count 256 --num-nodes 100 --seed 1001 --rounds 20000`.",
    "preferences": "Ballots of PrefLib (N. Mattei, T. Walsh, PrefLib: A Library for Preferences, 2013).",
}


def bundle(name: str, runs: Sequence[Path], evaluations: Sequence[Path], part: str, weights: Path) -> Path:
    """Write the model of the last run and its card into a folder of `weights`; returns that folder."""
    folder = weights / name
    stages = [stage for run in runs for stage in stages_of(run, part if run == runs[-1] else "last")]
    model = SoftRankModel.from_pretrained(runs[-1] / part)
    model_folder.save_pretrained(model, folder, half=True)
    digest = model_folder.hash_of(folder)
    records = [json.loads(path.read_text()) for path in evaluations]
    for path, record in zip(evaluations, records, strict=True):
        if record["sha256"] != digest:
            raise SystemExit(f"{path} evaluates other weights: evaluate {folder} and pass that")
    (folder / STAGES_FILE).write_text(json.dumps(stages, indent=1) + "\n")
    (folder / "README.md").write_text(card(name, model, stages, records, folder))
    total = sum(path.stat().st_size for path in weights.rglob("*") if path.is_file())
    print(f"{folder}: {size_of(folder)}; all bundled models: {total / 1e6:.1f} MB")
    if total > MOST_BYTES:
        raise SystemExit(f"all bundled models together must take at most {MOST_BYTES / 1e6:.0f} MB")
    return folder


def card(name: str, model: SoftRankModel, stages: Sequence[Record], evaluations: Sequence[Record], folder: Path) -> str:
    """The model card, as Markdown."""
    first, config = stages[0], model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        f"# {name}",
        "",
        f'`SoftRankModel.from_pretrained("{name}")`: {first["task"]}, {config.head} head, width '
        f"{config.d_model}, {config.encoder_layers} + {config.decoder_layers} layers, {parameters:,} parameters, "
        f"{size_of(folder)} with matrices in float16. Written by `bench/making/bundle.py`.",
        "",
        f"SHA-256 of the weights: `{model_folder.hash_of(folder)}`",
        "",
        "## Training",
        "",
        f"{sum(stage['hours'] for stage in stages):.2f} hours in all, on {first['machine']}. The weights are the "
        "running average that training keeps.",
        "",
        *markdown_table(
            ("stage", "iterations", "batch", "seed", "hours", "loss per place at the end"),
            (
                (
                    number, f"{stage['iterations']:,}", stage["batch"], stage["seed"], f"{stage['hours']:.2f}",
                    f"{stage['loss']:.4f}",
                )
                for number, stage in enumerate(stages, start=1)
            ),
        ),
        "",
    ]  # fmt: skip
    for number, stage in enumerate(stages, start=1):
        curve = ", ".join(f"{iteration:,}: {loss:.3f}" for iteration, loss in stage["curve"])
        lines += [
            f"Stage {number}:", "", "```bash", stage["command"], "```", "",
            f"Loss per place by iteration: {curve}.", "",
        ]  # fmt: skip
    files = list(dict.fromkeys(command for stage in stages for command in stage["files"]))
    made = ["```bash", *files, "```", ""] if files else []
    lines += ["## Data", "", DATA[first["task"]], "", *made, "## Metrics", ""]
    if not evaluations:
        lines += ["Not evaluated yet."]
    for record in evaluations:
        lines += ["```bash", without_folders(record["command"]), "```", "", *metrics_table(record["rows"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def stages_of(run: Path, part: str) -> list[Record]:
    """What a card tells of a run, or of the runs that made a bundled model."""
    if (run / STAGES_FILE).exists():
        stages: list[Record] = json.loads((run / STAGES_FILE).read_text())
        return stages
    return [stage_of(run, part)]


def stage_of(run: Path, part: str) -> Record:
    """What a card tells of a run: its record, the iteration of the weights in `part`, hours until then, the curve."""
    record = json.loads((run / "run.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if part == "best":
        metric, is_lowest = f"test_{record['config']['best_metric'] or 'loss'}", record["config"]["best_is"] == "lowest"
        tests = [line for line in lines if metric in line]
        iteration = min(tests, key=lambda line: line[metric] if is_lowest else -line[metric])["iteration"]
    else:
        iteration = model_folder.load_training(run / "last")[1]["iteration"]
    losses = [line for line in lines if "loss_per_place" in line and line["iteration"] <= iteration]
    if not losses:
        raise SystemExit(f"{run / 'metrics.jsonl'} has no line up to iteration {iteration}, that of the weights")
    chosen = sorted({round(k * (len(losses) - 1) / (CURVE_POINTS - 1)) for k in range(CURVE_POINTS)})
    config, versions = record["config"], record["versions"]
    return {
        "task": record["task"]["name"],
        "command": without_folders(record["command"]),
        "iterations": iteration,
        "batch": config["batch_size"],
        "seed": config["seed"],
        "hours": seconds_over_starts(line["seconds"] for line in losses) / 3600,
        "loss": losses[-1]["loss_per_place"],
        "curve": [(losses[index]["iteration"], losses[index]["loss_per_place"]) for index in chosen],
        "files": generated_files(run, record["task"].get("training_file") or []),
        "machine": f"{versions['threads']} CPU thread{'' if versions['threads'] == 1 else 's'} of a shared machine "
        f"({versions['cpu_capability']}, torch {versions['torch_running']})",
    }


def generated_files(run: Path, named: str | Sequence[str]) -> list[str]:
    """The commands that made a run's training files, of those that `softrank generate tsp` made."""
    commands = []
    for file in [named] if isinstance(named, str) else named:
        # Training was started in the folder that holds the run; a name that is absolute stays what it is.
        settings_file = run.parent / f"{file}.json"
        if settings_file.exists():
            made = json.loads(settings_file.read_text())
            commands.append(
                f"softrank generate tsp {Path(file).name} --count {made['count']} --num-nodes {made['num_nodes']} "
                f"--seed {made['seed']} --rounds {made['rounds']}"
            )
    return commands


def metrics_table(rows: Sequence[Record]) -> list[str]:
    """Rows of an evaluation, each metric as its mean and standard error."""
    names = list(rows[0]["metrics"])

    def score(row: Record, name: str) -> str:
        return "{mean:.4f} ± {standard_error:.4f}".format(**row["metrics"][name])

    return markdown_table(
        ("steps", "decode", "draws", "instances", *(name.replace("_", " ") for name in names)),
        (
            (
                row["steps"], row["decode"], _draws(row), row["instances"],
                *(score(row, name) for name in names),
            )
            for row in rows
        ),
    )  # fmt: skip


def _draws(row: Record) -> str:
    """How many draws of an instance the best one was of, and how they were made."""
    return str(row["best_of"]) if row.get("improve") is None else f"{row['draws']} by improve"


def without_folders(command: str) -> str:
    """A command with absolute paths cut to their last part: folders of this machine mean nothing to others."""
    return re.sub(r"(?<![\w.])/(?:[^\s/'\"]+/)+", "", command)


def size_of(folder: Path) -> str:
    """Megabytes of a model's weights, as text."""
    return f"{(folder / model_folder.WEIGHTS_FILE).stat().st_size / 1e6:.1f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description="Put a trained model into the package, with its card.")
    parser.add_argument("name", help="name of the bundled model")
    parser.add_argument(
        "runs", type=Path, nargs="+", help="runs of the training, oldest first; a bundled model for its own"
    )
    parser.add_argument("--evaluation", type=Path, nargs="+", default=[], help="JSON files of softrank evaluate")
    parser.add_argument("--best", action="store_true", help="the best model of the last run instead of its last")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the bundled models")
    args = parser.parse_args()
    bundle(args.name, args.runs, args.evaluation, "best" if args.best else "last", args.weights)
    return 0


if __name__ == "__main__":
    sys.exit(main())
