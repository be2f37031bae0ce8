"""Options that several commands have, and the objects that they stand for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from softrank_ext import model_folder
from softrank_ext.choices import Beam, Decode, Draw, Greedy
from softrank_ext.model import OrderModel
from softrank_ext.pretrained import folder_of
from softrank_ext.processes import Bridge, Process

# What a task's best model is best at, and what it learns from if there are no right orders.
TASKS = {
    "sorting": {"best_metric": "accuracy", "best_is": "highest"},
    "jigsaw": {"best_metric": "accuracy", "best_is": "highest"},
    "tsp": {"best_metric": "gap", "best_is": "lowest"},
    "preferences": {"best_metric": "loss", "best_is": "lowest"},
    "flowshop": {"best_metric": "cost", "best_is": "lowest", "objective": "self-label"},
    "tardiness": {"best_metric": "cost", "best_is": "lowest", "objective": "self-label"},
}


def option(kind: Any, text: str) -> Any:
    """The type of an option with its help text."""
    return Annotated[kind, tyro.conf.arg(help=text)]


AsJson = Annotated[bool, tyro.conf.arg(name="json", help="Print one JSON object instead of text.")]
ConfigFile = Annotated[Path | None, tyro.conf.arg(help="YAML file of options; the command line overrides it.")]
Model = tyro.conf.Positional[
    Annotated[str, tyro.conf.arg(metavar="MODEL", help="Saved model: a folder, or a bundled model's name.")]
]
Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda or cuda:1; by default a GPU if there is one.")]
DecodeName = Literal["sample", "greedy", "beam"]
Prior = Literal["uniform", "gaussian"]
Carry = Literal["exact", "reflected"]


@dataclass(frozen=True)
class ProcessOptions:
    """Another noise process than the model's own, for this call; what is not given stays the model's."""

    noise_scale: float | None = None
    """Noise of the bridge, paper eta."""
    prior: Prior | None = None
    """Soft ranks at time 1."""
    carry: Carry | None = None
    """What is carried from step to step: the unfolded value, or the folded one as in the paper's Algorithm 1."""

    def process_of(self, model: OrderModel, steps: int | None) -> Process | None:
        """The model's process with these changes and so many steps; None if it is the model's own."""
        given = {"noise_scale": self.noise_scale, "prior": self.prior, "carry": self.carry, "sampling_steps": steps}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not changes or changes == {"sampling_steps": model.process.sampling_steps}:
            return None
        if not isinstance(model.process, Bridge):
            names = ", ".join("--steps" if name == "sampling_steps" else f"--process.{name}" for name in changes)
            raise ValueError(f"{names.replace('_', '-')} cannot change the process of this model: {model.process}")
        return replace(model.process, **changes)


def tell(as_json: bool, record: Mapping[str, Any], text: str) -> None:
    """Print what a command has found: the record as one line of JSON, or the text."""
    print(json.dumps(record, default=str) if as_json else text)


def check_outputs(paths: Sequence[Path | None], read: Sequence[Path | None]) -> None:
    """Raise FileNotFoundError or ValueError if a file to write has no folder or is one that is read."""
    for path in paths:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} is not a folder: make it first")
        if any(one is not None and path.exists() and one.exists() and path.samefile(one) for one in read):
            raise ValueError(f"{path} is read here: write to another file")


def decode_of(name: str, draw: Draw, beam: Beam) -> Decode:
    """How picks are made, by the name of `--decode`."""
    ways: dict[str, Decode] = {"sample": draw, "greedy": Greedy(), "beam": beam}
    return ways[name]


def check_decode_options(names: Sequence[str], draw: Draw, beam: Beam) -> None:
    """Raise ValueError if options are given for a way to pick items that is not asked for."""
    if draw != Draw() and "sample" not in names:
        raise ValueError(f"--draw.temperature is for --decode sample, got --decode {' '.join(names)}")
    if beam != Beam() and "beam" not in names:
        raise ValueError(f"--beam.width, .kept and .returned are for --decode beam, got --decode {' '.join(names)}")


def task_class(name: str) -> Any:
    """The class of the task of that name in TASKS, imported when it is asked for."""
    if name == "sorting":
        from softrank_ext.tasks.sorting import Sorting

        return Sorting
    if name == "jigsaw":
        from softrank_ext.tasks.jigsaw import Jigsaw

        return Jigsaw
    if name == "tsp":
        from softrank_ext.tasks.tsp import TSP

        return TSP
    if name == "flowshop":
        from softrank_ext.tasks.flowshop import FlowShop

        return FlowShop
    if name == "tardiness":
        from softrank_ext.tasks.tardiness import Tardiness

        return Tardiness
    from softrank_ext.tasks.preferences import Preferences

    return Preferences


def folder_to_load(name_or_folder: str | Path) -> Path:
    """The folder of a saved or bundled model: as given, or the best or last one of a run's folder."""
    for part in ("best", "last"):
        if (Path(name_or_folder) / part / model_folder.CONFIG_FILE).exists():
            return Path(name_or_folder) / part
    return folder_of(name_or_folder)


def checked_device(name: str | None) -> str | None:
    """The name of a device, if torch knows it and it is here; raises ValueError otherwise."""
    if name is None:
        return None
    try:
        device = torch.device(name)
        is_here = device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < torch.cuda.device_count())
    except RuntimeError:
        is_here = False
    if not is_here:
        raise ValueError(f"--device must be cpu, or cuda or cuda:1 where there is such a GPU, got {name}")
    return name


def value_of(option: str, words: Sequence[str]) -> str | None:
    """The value that the last `option VALUE` or `option=VALUE` among the words has."""
    value = None
    for index, word in enumerate(words):
        if word == option:
            value = words[index + 1] if index + 1 < len(words) else None
        elif word.startswith(f"{option}="):
            value = word.split("=", 1)[1]
    return value
