"""The demo: bundled models put bundled items in order, are scored against the truth, and leave pictures and pages.

The items are test items of MNIST (LeCun, Bottou, Bengio, Haffner 1998), CIFAR-10 (Krizhevsky 2009) and uniform TSP
instances with optimal tours (20 nodes: Kool, van Hoof, Welling 2019; 50 nodes: solved with Concorde, Li et al. 2023).
`bench/making/demo_items.py` chose them at random. The flow shop is the first of Taillard's (1993) of 20 jobs and
5 machines. No model was trained on any of them.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import metrics, model_folder, pretrained
from softrank_ext.batch import Batch
from softrank_ext.model import SoftRankModel
from softrank_ext.sampling import Drawing, Samples, improve, pins_of, sample
from softrank_ext.schedules import schedule
from softrank_ext.show.improvement import improvement_page
from softrank_ext.show.instances import plot_jigsaw, plot_sorting, plot_tour
from softrank_ext.show.style import save_figure
from softrank_ext.tasks import Task
from softrank_ext.tasks.draws import generator_of, random_orders
from softrank_ext.tasks.flowshop import taillard_times
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import DIGITS, Sorting, list_batch
from softrank_ext.tasks.tsp import TSP, tour_batch

ITEMS_FILE = Path(__file__).with_name("demo_items.npz")
TASKS = ("sorting", "tsp", "jigsaw", "flowshop")
# What is shown by default: task, number of items.
CASES = (("sorting", 9), ("sorting", 32), ("tsp", 20), ("tsp", 50), ("jigsaw", 9), ("jigsaw", 16),
         ("flowshop", 20))  # fmt: skip
LISTS = 64  # of numbers to be sorted
MOST_NUMBERS = 100
STEPS = 5
FLOW_SHOP_SEED, FLOW_SHOP_BEST = 873654221, 1278  # by which the instance is made; its best makespan
FLOW_SHOP_SECONDS = 1.0
DRAWS = 16  # of which a tour's shortest counts, in a separate row; `improve` begins with as many


class Row(NamedTuple):
    """A line of the table: scores are means over the instances, None where the task has no such score."""

    task: str
    items: int
    instances: int
    draws: int
    all_right: float | None
    places_right: float | None
    gap: float | None
    seconds: float


@dataclass(frozen=True)
class Demo:
    """What a demo has done: its rows, the files it wrote, the names of the models that were not found."""

    rows: list[Row]
    files: list[Path]
    missing: list[str]


def run(
    task: str = "all",
    n: int | None = None,
    *,
    seed: int = 0,
    output: str | Path = "outputs/demo",
    weights: str | Path | None = None,
    progress: bool = False,
) -> Demo:
    """Order the bundled items of a task, or of all tasks, and write a picture and a page of each case's first instance.

    n: number of items, for one task. seed: another seed, other lists, shuffles and draws. weights: folder of models by
    name, by default the bundled ones. progress: show a bar if it takes more than two seconds. Pictures need matplotlib
    and are left out without it. Raises FileNotFoundError if no model is there.
    """
    cases = _cases_of(task, n)
    folder = pretrained.BUNDLED if weights is None else Path(weights)
    names = {case: model_name(*case) for case in cases}
    missing = [
        name for name in dict.fromkeys(names.values()) if not (folder / name / model_folder.CONFIG_FILE).exists()
    ]
    if len(missing) == len(set(names.values())):
        raise FileNotFoundError(f"the demo needs {' or '.join(missing)}, a folder with a model, in {folder}")
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    files: list[Path] = []
    for case, name in tqdm(names.items(), unit="case", delay=2, disable=not progress):
        if name not in missing:
            if case[0] == "flowshop":
                row, page = _scheduled(str(folder / name), seed, output)
                rows, files = [*rows, row], [*files, page]
                continue
            model = SoftRankModel.from_pretrained(folder / name)
            case_rows, case_files = _run_case(case[0], case[1], model, seed, output)
            rows += case_rows
            files += case_files
    return Demo(rows, files, missing)


def model_name(task: str, n: int) -> str:
    """The bundled model that orders n items of a task."""
    side = round(n**0.5)
    return f"jigsaw-{side}x{side}" if task == "jigsaw" else task


def table_of(rows: Sequence[Row]) -> str:
    """The rows as aligned lines of text."""

    def percent(share: float | None, digits: int) -> str:
        return "-" if share is None else f"{100 * share:.{digits}f} %"

    lines = [("task", "items", "instances", "draws", "all right", "places right", "gap", "ms each")]
    for row in rows:
        scores = (percent(row.all_right, 1), percent(row.places_right, 1), percent(row.gap, 2))
        milliseconds = f"{1000 * row.seconds / row.instances:.1f}"
        lines.append((row.task, str(row.items), str(row.instances), str(row.draws), *scores, milliseconds))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines
    )


@lru_cache(maxsize=1)
def items_of_file() -> dict[str, Tensor]:
    """The bundled items, by name.

    digits (count, 28, 28) uint8 and digit_labels (count,) int64; images (count, 3, 32, 32) uint8; for N = 20 and 50,
    points_N (count, N, 2) float64 and their best tours_N (count, N) int64.
    """
    with np.load(ITEMS_FILE) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def batch_of(task: str, n: int, seed: int) -> tuple[Task, Batch]:
    """The bundled instances of a task with n items; digits and shuffles are drawn by the seed."""
    items = items_of_file()
    if task == "tsp":
        return TSP(), tour_batch(items[f"points_{n}"], items[f"tours_{n}"])
    if task == "jigsaw":
        images = items["images"]
        jigsaw = Jigsaw(round(n**0.5))
        return jigsaw, jigsaw.batch_of(images, random_orders(len(images), n, generator_of(seed, n, "demo shuffle")))
    digits = torch.randint(len(items["digits"]), (LISTS, n, DIGITS), generator=generator_of(seed, n, "demo digits"))
    ties = random_orders(LISTS, n, generator_of(seed, n, "demo ties"))
    return Sorting(n), list_batch(items["digits"], items["digit_labels"], digits, ties)


def _cases_of(task: str, n: int | None) -> list[tuple[str, int]]:
    if task not in ("all", *TASKS):
        raise ValueError(f"task must be one of all, {', '.join(TASKS)}, got {task!r}")
    if n is None:
        return [case for case in CASES if task in ("all", case[0])]
    if task == "all":
        raise ValueError(f"n is the number of items of one task: choose that task, one of {', '.join(TASKS)}")
    if task == "sorting":
        if not 2 <= n <= MOST_NUMBERS:
            raise ValueError(f"n must be from 2 to {MOST_NUMBERS} for sorting, got {n}")
    elif (task, n) not in CASES:
        known = " or ".join(str(size) for name, size in CASES if name == task)
        raise ValueError(f"n must be {known} for {task}, got {n}")
    return [(task, n)]


def _run_case(task: str, n: int, model: SoftRankModel, seed: int, output: Path) -> tuple[list[Row], list[Path]]:
    made_by, batch = batch_of(task, n, seed)

    def timed(decode: str, draws: int) -> tuple[Samples, float]:
        begin = time.perf_counter()
        samples = sample(
            model, batch.items, constraints=pins_of(batch.first), num_samples=draws, steps=STEPS, decode=decode,
            seed=seed, record=draws == 1,
        )  # fmt: skip
        return samples, time.perf_counter() - begin

    sample(model, batch.items[:1], steps=1, seed=seed)  # warm-up
    samples, seconds = timed("greedy", 1)
    rows = [_row_of(task, made_by, batch, samples.order[:, 0], 1, seconds)]
    if task == "tsp":
        many, seconds = timed("sample", DRAWS)
        shortest = many.best(metrics.tour_length, batch.extras["points"])
        rows.append(_row_of(task, made_by, batch, shortest.order, DRAWS, seconds))
        row, page = _improved_tours(n, made_by, model, batch, seed, output)
        return [*rows, row], [*_write_files(task, n, batch, samples, output), page]
    return rows, _write_files(task, n, batch, samples, output)


def _improved_tours(
    n: int, made_by: Task, model: SoftRankModel, batch: Batch, seed: int, output: Path
) -> tuple[Row, Path]:
    """The row of `improve`, and the page of its rounds for the instance whose tour gets shorter most."""
    begin = time.perf_counter()
    found = improve(
        model, batch.items, metrics.tour_length, constraints=pins_of(batch.first), initial=DRAWS, seed=seed,
        drawing=Drawing(record=True),
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    page = output / f"tsp-{n}-improve.html"
    shown = int((found.history[:, 0] / found.history[:, -1]).argmax())
    best = float(batch.extras["best_length"][shown])
    title = f"A tour of {n} nodes: of {len(batch.items)} the one that gets shorter most"
    text = improvement_page(found, batch.items[shown], row=shown, best=best, title=title)
    page.write_text(text, encoding="utf-8")
    return _row_of("tsp-improve", made_by, batch, found.order, found.draws, seconds), page


def _scheduled(model: str, seed: int, output: Path) -> tuple[Row, Path]:
    """The row of `schedule` on a flow shop, and the page of a schedule getting shorter."""
    times = taillard_times(FLOW_SHOP_SEED, 20, 5).numpy()
    plan = schedule(times, seconds=FLOW_SHOP_SECONDS, model=model, seed=seed)
    page = output / "flowshop-20.html"
    plan.save_html(page, "Twenty jobs on five machines, a schedule getting shorter")
    gap = plan.cost / FLOW_SHOP_BEST - 1
    return Row("flowshop", len(times), 1, 1, None, None, gap, FLOW_SHOP_SECONDS), page


def _row_of(task: str, made_by: Task, batch: Batch, order: Tensor, draws: int, seconds: float) -> Row:
    scores = {name: float(score.double().mean()) for name, score in made_by.score(batch, order).items()}
    return Row(
        task, order.shape[1], len(order), draws, scores.get("tie_aware_accuracy"), scores.get("tie_aware_correctness"),
        scores.get("gap"), seconds,
    )  # fmt: skip


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def _write_files(task: str, n: int, batch: Batch, samples: Samples, output: Path) -> list[Path]:
    """The picture and the page of the first instance."""
    trajectory = samples[0][0].trajectory
    assert trajectory is not None
    items, true_order = batch.items[0], batch.order[0]
    labels = [f"{number:04d}" for number in batch.extras["labels"][0].tolist()] if task == "sorting" else None
    title = {
        "sorting": f"Sorting {n} numbers",
        "tsp": f"A tour of {n} nodes",
        "jigsaw": f"A jigsaw of {n} patches",
    }[task]
    page = output / f"{task}-{n}.html"
    layout = {"sorting": "row", "tsp": "tour", "jigsaw": "grid"}[task]
    trajectory.save_html(page, items, layout=layout, labels=labels, true_order=true_order, title=title)
    if not has_matplotlib():
        return [page]
    picture = output / f"{task}-{n}.png"
    if task == "sorting":
        assert labels is not None
        figure = plot_sorting(trajectory, items, labels, true_order, title)
    else:
        figure = (plot_tour if task == "tsp" else plot_jigsaw)(trajectory, items, true_order, title)
    save_figure(figure, picture)
    return [picture, page]
