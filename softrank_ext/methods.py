"""The methods by name: what their models' options are, how a model is made for a task, how its training differs.

`softrank train TASK --method NAME` is made from this table. A model that any of them makes is trained by `train`, saved
and read by `model_folder`, sampled by `sample` and scored by `evaluate`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from softrank_ext.baselines import diffsort, symmetric_diffusers
from softrank_ext.baselines.diffsort import DiffSortConfig, DiffSortModel, published_settings
from softrank_ext.baselines.factorised import CODES, FactorisedConfig, FactorisedModel
from softrank_ext.baselines.sorting_networks import NETWORKS, SWAPS
from softrank_ext.model import HEADS, INITS, PRESETS, READS, TIMES, DataFacts, OrderModel, SoftRankConfig, SoftRankModel
from softrank_ext.processes import Bridge, Process, Riffle
from softrank_ext.tasks import Task

_PRESET_OF_TASK = {
    "sorting": "mnist",
    "jigsaw": "jigsaw",
    "tsp": "tsp",
    "preferences": "mnist",
    "flowshop": "mnist",
    "tardiness": "mnist",
}
_CHOICES = {"head": HEADS, "time": TIMES, "reads": READS, "init": INITS}


class Method(NamedTuple):
    """A way to learn orders.

    options: from a task's name to a frozen dataclass, the options of the model with the defaults for that task. make:
    a model with random weights from a task and such options. training: from a task's name to the fields of
    `TrainConfig` that have other defaults with this method.
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
    replaced: Mapping[str, Any] | None = None,
) -> Any:
    """A frozen dataclass of a config's fields, without those that the task decides.

    choices: the values that a field may have. undecided: fields that are None by default, for what fits the task.
    replaced: options that stand for a field, with their defaults.
    """
    fields: list[tuple[str, Any, Any]] = []
    for field in dataclasses.fields(config_type):
        kind: Any = Literal[choices[field.name]] if field.name in choices else field.type
        if replaced is not None and field.name in replaced:
            fields.append((field.name, type(replaced[field.name]), replaced[field.name]))
        elif field.name in undecided:
            fields.append((field.name, kind | None, None))
        elif field.name not in left_out:
            fields.append((field.name, kind, field.default))
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace={"__doc__": config_type.__doc__})


@dataclass(frozen=True)
class ProcessOptions:
    """The noise process of a model: soft ranks on a bridge, or riffle shuffles."""

    kind: Literal["bridge", "riffle"] = "bridge"
    """What orders are noised by."""
    target: Literal["clean", "previous"] = "clean"
    """The order that the network predicts: the clean one, or that at the time before."""
    noise_scale: float = Bridge.noise_scale
    """Noise of the bridge, paper eta."""
    prior: Literal["uniform", "gaussian"] = "uniform"
    """Soft ranks at time 1 of the bridge."""
    carry: Literal["exact", "reflected"] = "exact"
    """What a sample carries from step to step of the bridge, the unfolded or the folded value."""
    sampling_steps: int | None = None
    """Steps of the bridge that a sample takes, by default as many as --model.time-steps."""
    visited: tuple[int, ...] | None = None
    """Numbers of riffles that the reverse process goes through, as 0 3 5 9; by default those published for the task."""

    def process_of(self, task: Task, time_steps: int) -> Process:
        """The process for a task and a network that reads a grid of so many steps."""
        if self.kind == "riffle":
            for name in ("noise_scale", "prior", "carry", "sampling_steps"):
                if getattr(self, name) != getattr(ProcessOptions, name):
                    raise ValueError(f"{name} is for the process bridge, got {getattr(self, name)} for riffle")
            published = symmetric_diffusers.visited_times(task.max_items(), is_tour=task.name == "tsp")
            return Riffle(published if self.visited is None else self.visited, self.target)
        if self.visited is not None:
            raise ValueError(f"visited is for the process riffle, a bridge has sampling_steps; got {self.visited}")
        steps = time_steps if self.sampling_steps is None else self.sampling_steps
        return Bridge(self.noise_scale, self.prior, self.carry, self.target, steps)


_SORTING_CHOICES = {"network": NETWORKS, "swap": SWAPS}
ModelOptions = _options_type(
    "ModelOptions", SoftRankConfig, _CHOICES, left_out=("embedder", "max_items", "data"),
    replaced={"process": ProcessOptions()},
)  # fmt: skip
DiffSortOptions = _options_type("DiffSortOptions", DiffSortConfig, _SORTING_CHOICES, left_out=("embedder",))
ErrorFreeOptions = _options_type(
    "ErrorFreeOptions", DiffSortConfig, _SORTING_CHOICES, left_out=("embedder",),
    undecided=("network", "steepness", "hard_weight"),
)  # fmt: skip
FactorisedOptions = _options_type(
    "FactorisedOptions", FactorisedConfig, {"code": CODES}, left_out=("embedder", "max_items")
)


def soft_rank_options(task: str, changes: Mapping[str, Any] | None = None) -> Any:
    """The options of the task's preset, with some changed; "process" among them holds changes of the process."""
    preset, changes = PRESETS[_PRESET_OF_TASK[task]], dict(changes or {})
    process = dataclasses.replace(ProcessOptions(), **changes.pop("process", {}))
    names = [field.name for field in dataclasses.fields(ModelOptions) if field.name != "process"]
    return ModelOptions(**{**{name: getattr(preset, name) for name in names}, **changes, "process": process})


def soft_rank_model(task: Task, options: Any) -> SoftRankModel:
    """A model with random weights, of `soft_rank_config`."""
    return SoftRankModel(soft_rank_config(task, options))


def soft_rank_config(task: Task, options: Any) -> SoftRankConfig:
    """The config of a model: the task's embedder and data facts, its number of items for a linear head."""
    num_items = task.max_items()
    fields = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    return SoftRankConfig(
        **{
            **fields,
            "process": options.process.process_of(task, options.time_steps),
            "data": task.data_facts() if hasattr(task, "data_facts") else DataFacts(),
            "embedder": task.embedder(),
            "max_items": num_items if options.head == "linear" else None,
        }
    )


def symmetric_diffusers_model(task: Task, options: Any) -> SoftRankModel:
    """A model with random weights; points are read by waves alone, without a learned layer, as published."""
    config = soft_rank_config(task, options)
    if config.embedder is not None and config.embedder["kind"] == "points":
        config = dataclasses.replace(config, embedder={**config.embedder, "learned": False})
    return SoftRankModel(config)


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
        symmetric_diffusers_model,
        symmetric_diffusers.training_settings,
    ),
    "symmetric-diffusers-as-published": Method(
        lambda task: soft_rank_options(
            task, {**symmetric_diffusers.model_settings(task), **symmetric_diffusers.PUBLISHED}
        ),
        symmetric_diffusers_model,
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
