"""The paper's tables on this machine: every row is trained and evaluated under the same wall-clock budget.

    python bench/tables.py --table sorting --budget 30 --sizes 9 15        minutes of training per row
    python bench/tables.py --table ablation --budget 30 --rows "riffle, GPL, previous"
    python bench/tables.py --table tsp --budget 60 --batch-size 32

A few updates are timed first, and as many are made as fit into the budget, so that the rate's decay ends with it; that
timing, evaluation and the making of TSP instances are not counted. A row that is done is not done again, and a killed
one goes on from its checkpoint: both are looked up in --runs. The table, with the paper's numbers beside, goes to
--output as Markdown and JSON after each row, with all rows of the same settings that are done. Long lists need much
memory: lower --batch-size.
"""

import argparse
import copy
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import report
import torch
from timing import timed_once

from softrank_ext import model_folder, pretrained
from softrank_ext.evaluation import evaluate
from softrank_ext.methods import method_of
from softrank_ext.tasks import Task
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP, generate
from softrank_ext.training import TrainConfig, train

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A method with its settings, and the paper's numbers for it by size.

    model, training: changes of the method's options and of its training, the latter by size. evaluation: settings of
    `evaluate`, by the name of the table's line; several lines share one trained model.
    """

    name: str
    method: str
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Callable[[int], Mapping[str, Any]] = lambda size: {}
    evaluation: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    paper: Mapping[str, Mapping[int, Metrics]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows, the sizes that the paper has, the name of a size, the metrics shown and the paper's table they are in."""

    rows: tuple[Row, ...]
    sizes: tuple[int, ...]
    size_name: str
    metrics: tuple[str, ...]
    source: str


def _by_size(sizes: Sequence[int], **columns: Sequence[float]) -> dict[str, dict[int, Metrics]]:
    """The paper's numbers of a row with one line: a list per metric, one number for each size."""
    return {"": {size: {name: values[i] for name, values in columns.items()} for i, size in enumerate(sizes)}}


_SORTING_SIZES = (9, 15, 32, 52, 75, 100, 150, 200)
_JIGSAW_SIZES = (3, 4, 8)
_ORDER_METRICS = ("kendall_tau", "accuracy", "correctness", "tie_aware_accuracy", "tie_aware_correctness")
_CGPL = {"head": "linear"}
# Of Error-free DiffSort the paper gives a rate by size.
_ERROR_FREE_RATES = {9: 1e-4, 15: 1e-4, 32: 1e-4, 52: 10**-3.5, 75: 10**-3.5, 100: 10**-3.5, 150: 10**-3.5, 200: 1e-4}
_TOUR_RATE = {"learning_rate": 2e-4}


def _error_free_rate(size: int) -> Mapping[str, Any]:
    return {"learning_rate": _ERROR_FREE_RATES.get(size, 1e-4)}


_SORTING = Table(
    rows=(
        Row(
            "DiffSort", "diffsort",
            paper=_by_size(
                _SORTING_SIZES,
                kendall_tau=(0.8163, 0.7386, 0.4423, 0.3037, 0.2227, 0.1617, 0.0891, 0.0636),
                accuracy=(0.5555, 0.2350, 0.0003, 0.0, 0.0, 0.0, 0.0, 0.0),
                correctness=(0.8643, 0.7975, 0.5335, 0.3897, 0.2987, 0.2251, 0.1307, 0.0953),
            ),
        ),
        Row(
            "Error-free DiffSort", "error-free-diffsort", training=_error_free_rate,
            paper=_by_size(
                _SORTING_SIZES,
                kendall_tau=(0.9151, 0.9160, 0.8798, 0.0042, 0.0005, 0.0029, 0.0006, 0.0002),
                accuracy=(0.7953, 0.7492, 0.5186, 0.0, 0.0, 0.0, 0.0, 0.0),
                correctness=(0.9365, 0.9334, 0.9019, 0.0258, 0.0132, 0.0112, 0.0072, 0.0030),
            ),
        ),
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_by_size(
                _SORTING_SIZES,
                kendall_tau=(0.9483, 0.9320, 0.8610, 0.7890, 0.7304, 0.1114, 0.0641, 0.0022),
                accuracy=(0.8955, 0.8260, 0.5896, 0.3009, 0.1379, 0.0, 0.0, 0.0),
                correctness=(0.9605, 0.9450, 0.8846, 0.8232, 0.7733, 0.1620, 0.0975, 0.0061),
            ),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL,
            paper=_by_size(
                _SORTING_SIZES,
                kendall_tau=(0.9668, 0.9384, 0.8765, 0.8092, 0.6925, 0.6279, 0.4821, 0.3982),
                accuracy=(0.9397, 0.8601, 0.6555, 0.4239, 0.1908, 0.0863, 0.0080, 0.0004),
                correctness=(0.9742, 0.9505, 0.8967, 0.8393, 0.7347, 0.6773, 0.5468, 0.4644),
            ),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank",
            paper=_by_size(
                _SORTING_SIZES,
                kendall_tau=(0.9645, 0.9455, 0.8944, 0.8459, 0.7727, 0.7454, 0.6198, 0.6048),
                accuracy=(0.9329, 0.8710, 0.6854, 0.4909, 0.2742, 0.1922, 0.0421, 0.0137),
                correctness=(0.9719, 0.9559, 0.9119, 0.8724, 0.8082, 0.7849, 0.6704, 0.6607),
            ),
        ),
        Row("Lehmer code", "lehmer"),
        Row("Insertion code", "lehmer", {"code": "insertion"}),
    ),
    sizes=_SORTING_SIZES,
    size_name="N",
    metrics=_ORDER_METRICS,
    source='"MNIST sorting benchmark"',
)  # fmt: skip

_TSP = Table(
    rows=(
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_by_size((20, 50), length=(5.4342, 12.8525), gap=(0.4169, 1.2618)),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL, lambda size: _TOUR_RATE,
            paper=_by_size((20, 50), length=(3.8732, 5.7336), gap=(0.0079, 0.0078)),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank", {}, lambda size: _TOUR_RATE,
            paper=_by_size((20, 50), length=(3.8557, 5.7157), gap=(0.0034, 0.0047)),
        ),
        Row("Lehmer code", "lehmer", {}, lambda size: _TOUR_RATE),
        Row("Insertion code", "lehmer", {"code": "insertion"}, lambda size: _TOUR_RATE),
    ),
    sizes=(20, 50),
    size_name="nodes",
    metrics=("length", "gap", "gap_after_2opt"),
    source='"TSP performance on TSP-20 and TSP-50"',
)  # fmt: skip

_JIGSAW = Table(
    rows=(
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_by_size(
                _JIGSAW_SIZES, kendall_tau=(0.8312, 0.6101, 0.0250), accuracy=(0.7002, 0.2172, 0.0),
                correctness=(0.8662, 0.6753, 0.0501),
            ),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL,
            paper=_by_size(
                _JIGSAW_SIZES, kendall_tau=(0.9494, 0.9320, 0.2521), accuracy=(0.9221, 0.8752, 0.0924),
                correctness=(0.9564, 0.9413, 0.2854),
            ),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank",
            paper=_by_size(
                _JIGSAW_SIZES, kendall_tau=(0.9542, 0.9345, 0.4962), accuracy=(0.9258, 0.8681, 0.2700),
                correctness=(0.9601, 0.9448, 0.5256),
            ),
        ),
        Row("Lehmer code", "lehmer"),
        Row("Insertion code", "lehmer", {"code": "insertion"}),
    ),
    sizes=_JIGSAW_SIZES,
    size_name="grid",
    metrics=_ORDER_METRICS,
    source='"CIFAR-10 jigsaw benchmark"',
)  # fmt: skip

# Sorting 32 numbers. Soft-rank with target clean is the main table's row; soft-rank with GPL is not in the paper.
_ABLATION_PAPER = {
    ("riffle", "GPL", "previous"): (0.8610, 0.5896, 0.8846),
    ("riffle", "GPL", "clean"): (-0.0013, 0.0, 0.0312),
    ("riffle", "cGPL", "previous"): (0.8527, 0.5833, 0.8758),
    ("riffle", "cGPL", "clean"): (-0.0011, 0.0, 0.0313),
    ("riffle", "pointer-cGPL", "previous"): (0.8742, 0.6404, 0.8950),
    ("riffle", "pointer-cGPL", "clean"): (0.0001, 0.0, 0.0314),
    ("soft-rank", "GPL", "previous"): None,
    ("soft-rank", "GPL", "clean"): None,
    ("soft-rank", "cGPL", "previous"): (0.8764, 0.6425, 0.8958),
    ("soft-rank", "cGPL", "clean"): (0.8765, 0.6555, 0.8967),
    ("soft-rank", "pointer-cGPL", "previous"): (0.9074, 0.7152, 0.9232),
    ("soft-rank", "pointer-cGPL", "clean"): (0.8944, 0.6854, 0.9119),
}
_REVERSE_MODELS: dict[str, Mapping[str, Any]] = {
    "GPL": {"head": "gpl", "encoder_layers": 7, "decoder_layers": 0},
    "cGPL": {"head": "linear", "encoder_layers": 3, "decoder_layers": 4},
    "pointer-cGPL": {"head": "pointer", "encoder_layers": 3, "decoder_layers": 4},
}


def _ablation_row(process: str, reverse: str, target: str, paper: Sequence[float] | None) -> Row:
    """Riffles are trained as SymmetricDiffusers is (three trajectories, all visited times), soft ranks as Soft-Rank.

    All by the likelihood: what SymmetricDiffusers adds to it for jigsaws needs a GPL network.
    """
    method = "symmetric-diffusers" if process == "riffle" else "softrank"
    numbers = {} if paper is None else {"": {32: dict(zip(_ORDER_METRICS, paper, strict=False))}}
    changes = {"process": process, "target": target, **_REVERSE_MODELS[reverse]}
    return Row(
        f"{process}, {reverse}, {target}", method, changes, lambda size: {"objective": "likelihood"}, paper=numbers
    )


_ABLATION = Table(
    rows=tuple(_ablation_row(*key, paper) for key, paper in _ABLATION_PAPER.items()),
    sizes=(32,),
    size_name="N",
    metrics=_ORDER_METRICS,
    source='"Ablation study" (soft-rank with target clean: "MNIST sorting benchmark")',
)

# The same cells on jigsaws, which the paper has not: patches are read so fast that minutes of training tell.
_JIGSAW_ABLATION = Table(
    rows=tuple(_ablation_row(*key, None) for key in _ABLATION_PAPER),
    sizes=(3,),
    size_name="grid",
    metrics=_ORDER_METRICS,
    source="",
)

# Of the 4 x 4 jigsaw, by the references of training and of evaluation: accuracy and correctness in per cent, tau.
_REFERENCE_PAPER = {
    ("cGPL", "uniform", "uniform"): (86.67, 93.93, 0.9303),
    ("cGPL", "uniform", "gaussian"): (87.09, 94.08, 0.931),
    ("cGPL", "gaussian", "uniform"): (86.71, 94.01, 0.932),
    ("cGPL", "gaussian", "gaussian"): (86.96, 94.08, 0.9317),
    ("pointer-cGPL", "uniform", "uniform"): (87.35, 94.43, 0.9365),
    ("pointer-cGPL", "uniform", "gaussian"): (87.33, 94.51, 0.937),
    ("pointer-cGPL", "gaussian", "uniform"): (87.17, 94.31, 0.935),
    ("pointer-cGPL", "gaussian", "gaussian"): (86.94, 94.38, 0.9347),
}


def _reference_row(reverse: str, reference: str) -> Row:
    evaluation, paper = {}, {}
    for other in ("uniform", "gaussian"):
        accuracy, correctness, tau = _REFERENCE_PAPER[reverse, reference, other]
        line = f"evaluated {other}"
        evaluation[line] = {"reference": other}
        paper[line] = {4: {"kendall_tau": tau, "accuracy": accuracy / 100, "correctness": correctness / 100}}
    return Row(
        f"{reverse}, trained {reference}", "softrank", _CGPL if reverse == "cGPL" else {},
        lambda size: {"reference": reference}, evaluation, paper,
    )  # fmt: skip


_REFERENCE = Table(
    rows=tuple(
        _reference_row(reverse, reference)
        for reverse in ("cGPL", "pointer-cGPL")
        for reference in ("uniform", "gaussian")
    ),
    sizes=(4,),
    size_name="grid",
    metrics=_ORDER_METRICS,
    source='"Matched" and "Mismatched train/eval p_ref on CIFAR10 jigsaw"',
)

TABLES = {
    "sorting": _SORTING, "tsp": _TSP, "jigsaw": _JIGSAW, "ablation": _ABLATION, "ablation-jigsaw": _JIGSAW_ABLATION,
    "reference": _REFERENCE,
}  # fmt: skip
_SORTING_TABLES, _JIGSAW_TABLES = ("sorting", "ablation"), ("jigsaw", "ablation-jigsaw", "reference")
# Settings that a row's result depends on: rows with others are not mixed into one table.
_SETTINGS = (
    "budget", "cnn", "patch_reader", "batch_size", "draws", "width", "reader", "count", "instances", "seed", "threads",
)  # fmt: skip


def task_of(table: str, size: int, args: argparse.Namespace) -> Task:
    """The task of a table at a size; TSP instances are made if they are not there."""
    if table in _SORTING_TABLES:
        return Sorting(num_items=size, cnn=args.cnn)
    if table in _JIGSAW_TABLES:
        return Jigsaw(grid=size, reader=args.patch_reader)  # type: ignore[arg-type]
    files = {
        part: str(generate(args.runs / f"tsp{size}_{part}_{count}_seed{seed}.txt", count, size, seed=seed))
        for part, count, seed in (("training", args.instances, args.seed + 1), ("test", args.count, args.seed))
    }
    return TSP(training_file=files["training"], test_file=files["test"])


def model_of(row: Row, task: Task, args: argparse.Namespace) -> torch.nn.Module:
    """A row's model with random weights, but for its --reader; --width is not that of DiffSort's scorers."""
    method = method_of(row.method)
    options = dataclasses.replace(method.options(task.name), **row.model)
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
    """How a row is trained, but for the number of updates: as its method is, with the rate decaying to the end."""
    settings = {**method_of(row.method).training(task.name), **row.training(size)}
    if args.batch_size is not None:
        settings["batch_size"] = args.batch_size
    if args.draws is not None and row.method in ("softrank", "symmetric-diffusers"):
        settings |= {"draws": args.draws, "times": "drawn"}
    return TrainConfig(**{**settings, "schedule": "cosine", "seed": args.seed})


def seconds_per_update(model: torch.nn.Module, task: Task, config: TrainConfig, budget: float) -> float:
    """Time updates of a copy of the model until a few seconds have passed, after one that reads the data."""

    def seconds_of(updates: int) -> float:
        trial = dataclasses.replace(config, iterations=updates, log_every=updates, warmup=0)
        return timed_once(lambda: train(copy.deepcopy(model), task, trial, quiet=True))

    seconds_of(1)
    updates = 2
    while (seconds := seconds_of(updates)) < min(5.0, 0.1 * budget):
        updates *= 4
    return seconds / updates


def plan(model: torch.nn.Module, task: Task, config: TrainConfig, args: argparse.Namespace) -> dict[str, Any]:
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
    """How long a run trained, over all times that it was started: every start counts its seconds from 0."""
    total = last = 0.0
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        seconds = json.loads(line)["seconds"]
        total += last if seconds < last else 0.0
        last = seconds
    return total + last


def run_row(table: str, row: Row, size: int, args: argparse.Namespace) -> bool:
    """Train and evaluate a row at a size, going on where an earlier run stopped; False if it was interrupted."""
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
    trained = model_folder.load_model(folder / "last")
    lines = []
    for line, how in row.evaluation.items():
        scores = evaluate(trained, task, count=args.count, batch_size=args.evaluate_batch_size, seed=args.seed, **how)
        lines.append({"line": line, **scores})
    result = {
        "name": row.name, "size": size, "method": row.method, "model": dataclasses.asdict(trained.config),
        "parameters": sum(parameter.numel() for parameter in trained.parameters()), "settings": settings,
        "updates": planned["iterations"], "seconds": training_seconds(folder), "training": dataclasses.asdict(config),
        "evaluations": lines,
    }  # fmt: skip
    result_file.write_text(json.dumps(result, indent=2) + "\n")
    return True


def papers_numbers(row: Row, line: str, size: int) -> dict[str, Any]:
    """The paper's numbers for a line of a row, and their size: this one, or the only one that the paper has."""
    by_size = row.paper.get(line, {})
    if size not in by_size and len(by_size) == 1:
        size = next(iter(by_size))
    return {"paper": by_size.get(size), "paper_size": size if size in by_size else None}


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


def papers_cell(evaluation: Mapping[str, Any], metric: str, size: int, digits: int = 4) -> str:
    """The paper's number for a metric of a line, with its size if that is another."""
    number = (evaluation["paper"] or {}).get(metric)
    if number is None:
        return "-"
    return f"{number:.{digits}f}" + (f" at {evaluation['paper_size']}" if evaluation["paper_size"] != size else "")


def lines_of(table: str, results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's cells: each metric with its standard error and, where the paper has it, the paper's number."""
    shown = TABLES[table]
    in_paper = [
        name for name in shown.metrics if any(name in (e["paper"] or {}) for r in results for e in r["evaluations"])
    ]
    header = [shown.size_name, "method"]
    for name in shown.metrics:
        header += [name.replace("_", " "), *(["paper"] if name in in_paper else [])]
    lines = [[*header, "updates", "minutes", "parameters"]]
    for result in results:
        for evaluation in result["evaluations"]:
            cells = [str(result["size"]), ", ".join(filter(None, (result["name"], evaluation["line"])))]
            for name in shown.metrics:
                score = evaluation["metrics"].get(name)
                cells.append("-" if score is None else f"{score['mean']:.4f} ± {score['standard_error']:.4f}")
                if name in in_paper:
                    cells.append(papers_cell(evaluation, name, result["size"]))
            millions = f"{result['parameters'] / 1e6:.2f} M"
            lines.append([*cells, str(result["updates"]), f"{result['seconds'] / 60:.2f}", millions])
    return lines


def note_of(table: str, about: Mapping[str, object], args: argparse.Namespace) -> str:
    """What the numbers are, and that they are not the paper's."""
    images = f"{args.cnn} CNN, " if table in _SORTING_TABLES else ""
    images += f"patches read by --task.reader {args.patch_reader}, " if table in _JIGSAW_TABLES else ""
    if args.reader is not None:
        images += f"weights of the reader taken from {args.reader} and not trained here, "
    instances = f"{args.instances} training instances made by fast-tsp, " if table == "tsp" else ""
    batch = "the method's own batch size" if args.batch_size is None else f"batches of {args.batch_size}"
    if args.width is not None:
        batch += f", networks over lists {args.width} wide"
    if args.draws is not None:
        batch += f", noisy orders per instance for every diffusion: {args.draws}"
    machine = ", ".join(f"{name} {value}" for name, value in about.items())
    source = TABLES[table].source
    paper = (
        f' Columns "paper" are from its table {source}, arXiv 2603.17353; where it has another size only, with that '
        f"{TABLES[table].size_name}."
        if source
        else ""
    )
    return (
        f"Budget and hardware differ from the paper's. Here: {args.budget:g} minutes of training per row on this "
        f"machine ({machine}); {images}{instances}{batch}, cosine decay to the end of the budget for every method. The "
        f"paper: 120 epochs (50 of TSP) on one H100.{paper}\n\n"
        f"Means over {args.count} held-out instances ± standard errors, greedy decoding. Tie-aware "
        "metrics take equal items for interchangeable, the others do not. Minutes are those that training took, "
        "updates as many as were expected to fit into the budget.\n"
    )


def write(table: str, about: Mapping[str, object], args: argparse.Namespace) -> list[list[str]]:
    """Write the table as Markdown and JSON."""
    results = results_of(table, args)
    lines = lines_of(table, results)
    args.output.mkdir(parents=True, exist_ok=True)
    rules = ["---" if column < 2 else "---:" for column in range(len(lines[0]))]
    rows = ["| " + " | ".join(line) + " |" for line in (lines[0], rules, *lines[1:])]
    note = note_of(table, about, args)
    (args.output / f"table_{table}.md").write_text(f"# {table}\n\n{note}\n" + "\n".join(rows) + "\n")
    record = {"table": table, "note": note, "machine": about, "results": results}
    (args.output / f"table_{table}.json").write_text(json.dumps(record, indent=2) + "\n")
    return lines


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
    parser.add_argument("--runs", type=Path, default=Path("runs/tables"), help="folder of the runs, for going on")
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
                print("interrupted; the same command goes on", file=sys.stderr)
                return 130
            write(args.table, about, args)
    lines = write(args.table, about, args)
    print(json.dumps(results_of(args.table, args)) if args.json else report.table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
