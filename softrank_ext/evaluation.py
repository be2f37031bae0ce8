"""Evaluation: sample orders of held-out instances by the whole reverse process, score them, average.

Instance i always gets the sample numbers i * symmetries * best_of and on, so a result does not depend on the batch size
or on how many processes share the work.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from softrank_ext._libraries import build_info
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_has, check_instance, check_integer, check_limited, check_seed
from softrank_ext.choices import DECODES, Decode, Engine, decode_of
from softrank_ext.costs import Cost
from softrank_ext.model import OrderModel
from softrank_ext.processes import OnePass, Process, process_of_call, process_to_json
from softrank_ext.sampling import Drawing, Samples, fresh_seed, pins_of, sample
from softrank_ext.sampling import improve as improve_orders
from softrank_ext.tasks import Task

MOST_AT_ONCE = 10**6  # instances of a batch, and draws of an instance
Row = dict[str, object]


def evaluate(
    model: OrderModel,
    task: Task,
    *,
    count: int | range = 1000,
    batch_size: int = 64,
    steps: int | None = None,
    process: Process | None = None,
    decode: str | Decode = "greedy",
    best_of: int = 1,
    best_by: str = "log_prob",
    symmetries: int = 1,
    improve: int | None = None,
    initial: int = 16,
    seed: int | torch.Generator = 0,
    engine: Engine = Engine(),
) -> Row:
    """One row of a table: the settings, the mean of each of the task's metrics, and its standard error.

    count: held-out instances, the first so many or those of a range, in batches of batch_size. Ranges that make up a
    longer one have its instances and draws. steps, process, decode, engine: as in `sample`. best_of: draws per
    instance, of which the best counts: the one with the lowest metric `best_by`, or the highest log_prob. symmetries: 8
    to draw so many for each turned and mirrored copy of an instance (of a task that has them, `tasks.tsp.TSP`) and
    count the best of all. improve: instead of these, `improve` by the task's cost for so many rounds after `initial`
    draws, one prediction a draw unless steps or process say otherwise. seed: of the draws, and of the instances where
    the task draws or shuffles them, or a torch.Generator that draws it; files of instances are read from their
    beginning. Under torchrun, processes share the batches and all get the same row.

    A task without right orders is scored by its cost, beside what its heuristics reach on the same instances.

    Returns the settings by name, "draws" and network "predictions" per instance, "instances", "seconds" and "metrics":
    name -> {"mean", "standard_error"}.
    """
    check_instance("model", model, OrderModel)
    check_has("task", task, "test_batches", "score")
    wanted = _instances_of(count)
    for name, value in (("batch_size", batch_size), ("best_of", best_of)):
        check_limited(name, value, 1, MOST_AT_ONCE)
    seed = fresh_seed(seed) if isinstance(seed, torch.Generator) else check_seed(seed)
    check_choice("symmetries", symmetries, (1, 8))
    if symmetries == 8 and not hasattr(task, "symmetric_copies"):
        raise ValueError(f"symmetries must be 1 for the task {task.name}: its instances have no copies")
    search = None if improve is None else _search_of(task, improve, initial, best_of, symmetries)
    if search is not None and steps is None and process is None:
        steps = 1
    choice, chosen = decode_of(decode), process_of_call(model.process, process, steps)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = next(model.parameters()).device
    scores: dict[str, list[Tensor]] = {}
    first_instance, number = wanted.start, 0
    started = time.perf_counter()
    for index, batch in enumerate(_batches_of(task, wanted, batch_size, seed)):
        if index % world == rank:
            given = None if isinstance(chosen, OnePass) else chosen
            if search is not None:
                drawing = Drawing(choice, given, engine, first_instance)
                order = _improved(model, batch, search, drawing, seed, device)
                found = {name: torch.as_tensor(values) for name, values in task.score(batch, order).items()}
            else:
                items = batch.items if symmetries == 1 else task.symmetric_copies(batch.items)  # type: ignore[attr-defined]
                mask, first = (
                    None if rows is None else rows.repeat_interleave(symmetries, 0)
                    for rows in (batch.mask, batch.first)
                )
                samples = sample(
                    model,
                    items.to(device),
                    mask=None if mask is None else mask.to(device),
                    constraints=getattr(task, "constraints", None) if first is None else pins_of(first),
                    num_samples=best_of,
                    process=given,
                    decode=choice,
                    seed=seed,
                    first_sample=first_instance * symmetries * best_of,
                    engine=engine,
                )
                found = _score(task, batch, samples, best_by)
            if hasattr(task, "heuristics"):
                found |= task.heuristics(batch)
            for name, numbers in found.items():
                scores.setdefault(name, []).append(numbers)
        first_instance, number = first_instance + len(batch.order), number + len(batch.order)
    totals = _totals(scores, world)
    draws = symmetries * best_of if improve is None else initial + improve
    return {
        "steps": chosen.sampling_steps,
        "process": {} if isinstance(chosen, OnePass) else process_to_json(chosen),
        "decode": _name_of(choice),
        "best_of": best_of,
        "best_by": best_by,
        "symmetries": symmetries,
        "improve": improve,
        "initial": None if improve is None else initial,
        "draws": draws,
        "predictions": draws * chosen.sampling_steps,
        "seed": seed,
        "instances": number,
        "first_instance": wanted.start,
        "seconds": time.perf_counter() - started,
        "metrics": {name: _mean_and_error(*total) for name, total in totals.items()},
    }


def _instances_of(count: int | range) -> range:
    """The numbers of the instances that are asked for; raises ValueError or TypeError."""
    if not isinstance(count, range):
        return range(check_integer("count", count, 1))
    if count.step != 1 or not 0 <= count.start < count.stop:
        raise ValueError(f"count must be a range of at least one instance from 0 on, without gaps, got {count}")
    return count


def _batches_of(task: Task, wanted: range, size: int, seed: int) -> Iterator[Batch]:
    """The task's test batches, cut to the instances that are asked for."""
    begin = 0
    for batch in task.test_batches(wanted.stop, size, seed):
        end = begin + len(batch.order)
        if end > wanted.start:
            yield batch if begin >= wanted.start else batch.of_rows(slice(wanted.start - begin, None))
        begin = end


class _Search(NamedTuple):
    """What `improve` is called with: the task's cost, rounds and initial draws."""

    cost: Cost
    rounds: int
    initial: int


def _search_of(task: Task, rounds: int, initial: int, best_of: int, symmetries: int) -> _Search:
    """The search that is asked for; raises ValueError if the task has no cost, or if other draws are asked for too."""
    check_integer("improve", rounds, 0)
    check_integer("initial", initial, 1)
    if best_of != 1 or symmetries != 1:
        raise ValueError(f"improve goes with best_of and symmetries 1, got {best_of} and {symmetries}")
    cost = getattr(task, "search_cost", None) or getattr(task, "cost", None)
    if cost is None:
        raise ValueError(f"improve must be None for the task {task.name}: it has no cost to look for low values of")
    return _Search(cost, rounds, initial)


def _improved(
    model: OrderModel, batch: Batch, search: _Search, drawing: Drawing, seed: int, device: torch.device
) -> Tensor:
    """The orders (B, N) that a search finds for the instances of a batch."""
    found = improve_orders(
        model, batch.items.to(device), search.cost, mask=None if batch.mask is None else batch.mask.to(device),
        constraints=pins_of(batch.first), initial=search.initial, rounds=search.rounds, drawing=drawing, seed=seed,
    )  # fmt: skip
    if found.rounds < search.rounds:  # by Ctrl-C, which `improve` takes for its end
        raise KeyboardInterrupt
    return found.order.cpu()


def _name_of(choice: Decode) -> str:
    """How a table names a choice: as the calls do, "sample" and "greedy" for the plain ones."""
    return next((name for name, plain in DECODES.items() if plain == choice), repr(choice))


def _score(task: Task, batch: Batch, samples: Samples, best_by: str) -> dict[str, Tensor]:
    """Metrics (B,) of each instance's draw, or of its best one; samples: (B * copies, best_of, ...)."""
    B = len(batch.order)
    orders, log_prob = (field.cpu().reshape(B, -1, *field.shape[2:]) for field in (samples.order, samples.log_prob))
    each = [task.score(batch, order) for order in orders.unbind(1)]  # a dictionary of metrics (B,) per draw
    scores = {name: torch.stack([torch.as_tensor(metrics[name]) for metrics in each]) for name in each[0]}  # (draw, B)
    if best_by != "log_prob" and best_by not in scores:
        raise ValueError(f"best_by must be log_prob or one of the metrics {', '.join(scores)}, got {best_by!r}")
    best = log_prob.argmax(1) if best_by == "log_prob" else scores[best_by].argmin(0)  # (B,)
    return {name: values[best, torch.arange(B)] for name, values in scores.items()}


def _totals(scores: Mapping[str, Sequence[Tensor]], world: int) -> dict[str, tuple[float, float, int]]:
    """Sum, sum of squares and number of each metric's values, over all processes."""
    own = {}
    for name, parts in scores.items():
        values = torch.cat([part.double().reshape(-1).cpu() for part in parts])
        own[name] = (float(values.sum()), float(values.square().sum()), len(values))
    if world == 1:
        return own
    gathered: list[dict[str, tuple[float, float, int]]] = [{} for _ in range(world)]
    dist.all_gather_object(gathered, own)
    totals: dict[str, tuple[float, float, int]] = {}
    for part in gathered:
        for name, (total, squares, number) in part.items():
            before = totals.get(name, (0.0, 0.0, 0))
            totals[name] = (before[0] + total, before[1] + squares, before[2] + number)
    return totals


def _mean_and_error(total: float, squares: float, number: int) -> dict[str, float]:
    mean = total / number
    variance = max(squares / number - mean**2, 0.0) * number / max(number - 1, 1)
    return {"mean": mean, "standard_error": (variance / number) ** 0.5}


def table_of(rows: Sequence[Row]) -> str:
    """Rows of `evaluate` as lines of text: the settings that differ (or the steps), each metric with its error."""
    rows = [{**row, **_process_of(row)} for row in rows]
    names = (
        "steps",
        "noise_scale",
        "prior",
        "carry",
        "decode",
        "best_of",
        "symmetries",
        "improve",
        "draws",
        "predictions",
    )
    settings = [name for name in names if name == "steps" or len({row.get(name) for row in rows}) > 1]
    metrics = list(_metrics_of(rows[0]))
    lines = [[*settings, *metrics, "instances", "seconds"]]
    for row in rows:
        numbers = [f"{score['mean']:.4f} ± {score['standard_error']:.4f}" for score in _metrics_of(row).values()]
        lines.append(
            [
                *("-" if row[name] is None else str(row[name]) for name in settings),
                *numbers,
                str(row["instances"]),
                f"{row['seconds']:.1f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _process_of(row: Row) -> dict[str, object]:
    process = row["process"]
    assert isinstance(process, dict)
    return process


def _metrics_of(row: Row) -> dict[str, dict[str, float]]:
    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    return metrics


def record_of(rows: Sequence[Row], *, command: str, checkpoint: str, checkpoint_hash: str) -> dict[str, object]:
    """What is written as JSON beside a table: where the numbers come from, and the rows."""
    return {
        "command": command,
        "checkpoint": checkpoint,
        "sha256": checkpoint_hash,
        "versions": build_info(),
        "rows": list(rows),
    }
