"""The methods by name: what their models' options are, how a model is made for a task, how its training differs.

`softrank train TASK --method NAME` is made from this table. A model that any of them makes is trained by `train`, saved
and read by `checkpoint`, sampled by `sample` and scored by `evaluate`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from softrank_ext.baselines import symmetric_diffusers
from softrank_ext.model import HEADS, PRESETS, PROCESSES, TARGETS, TIMES, OnePassModel, SoftRankConfig, SoftRankModel
from softrank_ext.tasks import Task

_PRESET_OF_TASK = {"sorting": "mnist", "jigsaw": "jigsaw", "tsp": "tsp", "preferences": "mnist"}
_CHOICES = {"head": HEADS, "time": TIMES, "process": PROCESSES, "target": TARGETS}


class Method(NamedTuple):
    """A way to learn orders.

    options: from a task's name to a frozen dataclass, the options of the model with the defaults for that task. make:
    a model with random weights from a task and such options. training: from a task's name to the fields of
    `train.TrainConfig` that have other defaults with this method.
    """

    options: Callable[[str], Any]
    make: Callable[[Task, Any], SoftRankModel | OnePassModel]
    training: Callable[[str], Mapping[str, Any]]


# The options of a SoftRankModel that the task does not decide.
ModelOptions: Any = dataclasses.make_dataclass(
    "ModelOptions",
    [
        (field.name, Literal[_CHOICES[field.name]] if field.name in _CHOICES else field.type, field.default)
        for field in dataclasses.fields(SoftRankConfig)
        if field.name not in ("embedder", "max_items")
    ],
    frozen=True,
    namespace={"__doc__": SoftRankConfig.__doc__},
)


def soft_rank_options(task: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The options of the task's preset, with some changed."""
    preset = PRESETS[_PRESET_OF_TASK[task]]
    options = ModelOptions(**{field.name: getattr(preset, field.name) for field in dataclasses.fields(ModelOptions)})
    return dataclasses.replace(options, **(changes or {}))


def soft_rank_model(task: Task, options: Any) -> SoftRankModel:
    """A model with random weights: the task's embedder, its number of items for a linear head and for riffles."""
    num_items, visited = task.max_items(), options.visited
    if options.process == "riffle" and visited is None:
        visited = symmetric_diffusers.visited_times(num_items, is_tour=task.name == "tsp")
    fields = {**dataclasses.asdict(options), "visited": visited, "embedder": task.embedder()}
    return SoftRankModel(SoftRankConfig(**fields, max_items=num_items if options.head == "linear" else None))


def method_of(name: str) -> Method:
    """The method of that name; raises ValueError, listing the names, if there is none."""
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


METHODS = {
    "softrank": Method(soft_rank_options, soft_rank_model, lambda task: {}),
    "symmetric-diffusers": Method(
        lambda task: soft_rank_options(task, symmetric_diffusers.model_settings(task)),
        soft_rank_model,
        symmetric_diffusers.training_settings,
    ),
}
