"""The methods by name: what their models' options are, how a model is made for a task, how its training differs.

`softrank train TASK --method NAME` is made from this table. A model that any of them makes is trained by `train`, saved
and read by `checkpoint`, sampled by `sample` and scored by `evaluate`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from softrank_ext.baselines import diffsort, symmetric_diffusers
from softrank_ext.baselines.diffsort import DiffSortConfig, DiffSortModel, published_settings
from softrank_ext.baselines.factorised import CODES, FactorisedConfig, FactorisedModel
from softrank_ext.baselines.sorting_networks import NETWORKS, SWAPS
from softrank_ext.model import HEADS, PRESETS, TIMES, OrderModel, SoftRankConfig, SoftRankModel
from softrank_ext.tasks import Task

_PRESET_OF_TASK = {"sorting": "mnist", "jigsaw": "jigsaw", "tsp": "tsp", "preferences": "mnist"}
_CHOICES = {"head": HEADS, "time": TIMES}


class Method(NamedTuple):
    """A way to learn orders.

    options: from a task's name to a frozen dataclass, the options of the model with the defaults for that task. make:
    a model with random weights from a task and such options. training: from a task's name to the fields of
    `train.TrainConfig` that have other defaults with this method.
    """

    options: Callable[[str], Any]
    make: Callable[[Task, Any], OrderModel]
    training: Callable[[str], Mapping[str, Any]]


def _options_type(
    name: str,
    config_type: type,
    choices: Mapping[str, tuple[str, ...]],
    *,
    left_out: Sequence[str],
    undecided: Sequence[str] = (),
) -> Any:
    """A frozen dataclass of a config's fields, without those that the task decides.

    choices: the values that a field may have. undecided: fields that are None by default, for what fits the task.
    """
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(config_type):
        kind: Any = Literal[choices[field.name]] if field.name in choices else field.type
        if field.name in undecided:
            fields.append((field.name, kind | None, None))
        elif field.name not in left_out:
            fields.append((field.name, kind, field.default))
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace={"__doc__": config_type.__doc__})


_SORTING_CHOICES = {"network": NETWORKS, "swap": SWAPS}
ModelOptions = _options_type("ModelOptions", SoftRankConfig, _CHOICES, left_out=("embedder", "max_items"))
DiffSortOptions = _options_type("DiffSortOptions", DiffSortConfig, _SORTING_CHOICES, left_out=("embedder",))
ErrorFreeOptions = _options_type(
    "ErrorFreeOptions", DiffSortConfig, _SORTING_CHOICES, left_out=("embedder",),
    undecided=("network", "steepness", "hard_weight"),
)  # fmt: skip
FactorisedOptions = _options_type(
    "FactorisedOptions", FactorisedConfig, {"code": CODES}, left_out=("embedder", "max_items")
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


def sorting_network_model(task: Task, options: Any) -> DiffSortModel:
    """A model with random weights: the task's embedder without batch norm, published settings where none are given."""
    fields = {name: value for name, value in dataclasses.asdict(options).items() if value is not None}
    embedder = task.embedder()
    if embedder is not None and embedder["kind"] == "number-cnn":
        embedder = {**embedder, "batch_norm": False}
    return DiffSortModel(DiffSortConfig(**{**published_settings(task.max_items()), **fields, "embedder": embedder}))


def factorised_options(task: str) -> Any:
    """The widths of the task's preset, and as many layers as its encoder and decoder have together."""
    preset = PRESETS[_PRESET_OF_TASK[task]]
    layers = preset.encoder_layers + preset.decoder_layers
    return FactorisedOptions(d_model=preset.d_model, feed_forward=preset.feed_forward, encoder_layers=layers)


def factorised_model(task: Task, options: Any) -> FactorisedModel:
    """A model with random weights: the task's embedder and its number of items."""
    fields = dataclasses.asdict(options)
    return FactorisedModel(FactorisedConfig(**fields, max_items=task.max_items(), embedder=task.embedder()))


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
    "diffsort": Method(lambda task: DiffSortOptions(), sorting_network_model, lambda task: diffsort.TRAINING),
    "error-free-diffsort": Method(
        lambda task: ErrorFreeOptions(encoder_layers=8),
        sorting_network_model,
        lambda task: {**diffsort.TRAINING, "learning_rate": 1e-4, "weight_decay": 0.01},
    ),
    "lehmer": Method(factorised_options, factorised_model, lambda task: {}),
}
