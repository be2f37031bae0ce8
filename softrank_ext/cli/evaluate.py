"""`softrank evaluate TASK MODEL`: a row of scores for each combination of the options that take several values."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from softrank_ext import model_folder
from softrank_ext.batch import Batch
from softrank_ext.checks import check_integer
from softrank_ext.choices import Beam, Draw, Engine
from softrank_ext.cli.options import (
    AsJson,
    Carry,
    ConfigFile,
    DecodeName,
    Device,
    Model,
    Prior,
    ProcessOptions,
    check_decode_options,
    checked_device,
    decode_of,
    folder_to_load,
    option,
    task_class,
    tell,
)
from softrank_ext.model import OrderModel
from softrank_ext.tasks import Task

_BEST_BY = {"tsp": "length", "flowshop": "cost", "tardiness": "cost"}


@dataclass(frozen=True)
class ProcessRows:
    """Other noise processes than the model's own; what is not given stays the model's."""

    noise_scale: tuple[float, ...] = ()
    """Noise of the bridge, paper eta; a row for each."""
    prior: tuple[Prior, ...] = ()
    """Soft ranks at time 1; a row for each."""
    carry: tuple[Carry, ...] = ()
    """What is carried from step to step, the unfolded or the folded value; a row for each."""


def evaluate_command(name: str) -> Callable[[Sequence[str]], Any]:
    """The command `evaluate NAME`: makes the dataclass of its options from the words of the command line."""

    def make(words: Sequence[str]) -> Any:
        kind = task_class(name)
        folder = words[0] if words and not words[0].startswith("-") else None
        trained_on = _task_of_run(name, folder)
        copies = [("symmetries", option(tuple[Literal[1, 8], ...], "Copies of an instance, turned and mirrored, that "
                   "are solved too; a row for each."), (1,))] if name == "tsp" else []  # fmt: skip
        return dataclasses.make_dataclass(
            "Evaluate",
            [
                ("saved", Model),
                ("task", kind) if trained_on is None else ("task", kind, trained_on),
                ("count", option(int, "Held-out instances, the first so many."), 1000),
                ("instances", option(str | None, "A range of them instead, 200:300 from number 200 to 299."), None),
                ("batch_size", option(int, "Instances at once."), 64),
                ("steps", option(tuple[int, ...], "Diffusion steps, by default the model's own; a row for each."), ()),
                ("process", ProcessRows, ProcessRows()),
                ("decode", option(tuple[DecodeName, ...], "How to pick items; a row for each."), ("greedy",)),
                ("draw", Draw, Draw()),
                ("beam", Beam, Beam()),
                ("best_of", option(tuple[int, ...], "Draws per instance, the best of which counts."), (1,)),
                ("best_by", option(str, "The best draw has the lowest of this metric, or the highest log_prob."),
                 _BEST_BY.get(name, "log_prob")),
                *copies,
                ("improve", option(tuple[int, ...], "Rounds of improve after --initial draws; a row for each."), ()),
                ("initial", option(int, "Independent draws that improve begins with."), 16),
                ("engine", Engine, Engine()),
                ("seed", option(int, "Of the draws, and of instances that the task draws or shuffles."), 0),
                ("output", option(Path, "JSON file to write."), Path("evaluation.json")),
                ("device", Device, None),
                ("as_json", AsJson, False),
                ("config", ConfigFile, None),
            ],
            namespace={"run": run_evaluate, "__doc__": f"Evaluate a model on {name}."},
        )  # fmt: skip

    make.__doc__ = f"evaluate on {name}"
    return make


def _task_of_run(name: str, folder: str | None) -> Any:
    """The task that the run of this model was trained on, if its folder tells, else None."""
    for parent in (Path(folder), Path(folder).parent) if folder else ():
        if (parent / "run.json").exists():
            fields = json.loads((parent / "run.json").read_text())["task"]
            if fields.pop("name") == name:
                return task_class(name)(**fields)
    return None


def run_evaluate(options: Any, command: str) -> int:
    """Evaluate as the options say, print the table and write the JSON file; returns the exit code."""
    from softrank_ext.evaluation import record_of, table_of
    from softrank_ext.training import describe, processes

    check_decode_options(options.decode, options.draw, options.beam)
    folder = folder_to_load(options.saved)
    instances = _instances_of(options)
    with processes(checked_device(options.device)) as here:
        model = model_folder.load_model(folder).to(here.device)
        rows = _rows_of(model, options, instances, is_shown=here.rank == 0 and sys.stderr.isatty())
        if here.rank == 0:
            record = record_of(
                rows, command=command, checkpoint=str(folder), checkpoint_hash=model_folder.hash_of(folder)
            )
            record = {**record, "task": describe(options.task)}
            options.output.write_text(json.dumps(record, indent=2) + "\n")
            text = f"{folder} on {describe(options.task)}\n{table_of(rows)}\nwritten to {options.output}"
            tell(options.as_json, record, text)
    return 0


def _instances_of(options: Any) -> range:
    """The instances that --count or --instances FIRST:END asks for."""
    if options.instances is None:
        return range(check_integer("--count", options.count, 1))
    first, _, end = options.instances.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(f"--instances must be FIRST:END like 200:300, got {options.instances!r}")
    return range(int(first), int(end))


class _WithBar:
    """A task whose test batches move a bar."""

    def __init__(self, task: Task, bar: tqdm) -> None:
        self._task, self._bar = task, bar

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The task's own, each counted when the next one is asked for."""
        for batch in self._task.test_batches(count, size, seed):
            yield batch
            self._bar.update(len(batch.order))


def _rows_of(model: OrderModel, options: Any, instances: range, is_shown: bool) -> list[dict[str, object]]:
    """The rows of the table, one evaluation each."""
    given = options.process
    combinations = list(product(
        options.steps or (None,), given.noise_scale or (None,), given.prior or (None,), given.carry or (None,),
        options.decode, options.best_of, getattr(options, "symmetries", (1,)),
    ))  # fmt: skip
    total = instances.stop * (len(combinations) + len(options.improve))
    with tqdm(total=total, unit="instance", delay=2, disable=not is_shown) as bar:
        return _evaluated(model, options, instances, combinations, _WithBar(options.task, bar))


def _evaluated(
    model: OrderModel, options: Any, instances: range, combinations: Sequence[tuple[Any, ...]], task: Any
) -> list[dict[str, object]]:
    from softrank_ext.evaluation import evaluate

    rows = []
    for steps, noise_scale, prior, carry, decode, best_of, symmetries in combinations:
        rows.append(
            evaluate(
                model, task, count=instances, batch_size=options.batch_size,
                process=ProcessOptions(noise_scale, prior, carry).process_of(model, steps),
                decode=decode_of(decode, options.draw, options.beam), best_of=best_of, best_by=options.best_by,
                symmetries=symmetries, seed=options.seed, engine=options.engine,
            )
        )  # fmt: skip
    for rounds in options.improve:
        rows.append(
            evaluate(
                model, task, count=instances, batch_size=options.batch_size, decode="sample",
                improve=rounds, initial=options.initial, seed=options.seed, engine=options.engine,
            )
        )  # fmt: skip
    return rows
