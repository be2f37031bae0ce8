"""`softrank train TASK`: the options are those of the task, the training, the method's model and the run."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from softrank_ext import model_folder
from softrank_ext.cli.options import (
    TASKS,
    AsJson,
    ConfigFile,
    Device,
    checked_device,
    folder_to_load,
    option,
    task_class,
    tell,
    value_of,
)
from softrank_ext.methods import METHODS, method_of
from softrank_ext.model import OrderModel
from softrank_ext.training.config import TrainConfig
from softrank_ext.training.cost_objectives import COST_OBJECTIVES

_COST_OPTIONS: dict[str, Any] = {name.replace("-", "_"): kind for name, kind in COST_OBJECTIVES.items()}
_Objective = Literal["likelihood", "lookalike", "self-label", "reinforce", "preference"]


@dataclasses.dataclass(frozen=True)
class TrainOptions(TrainConfig):
    """How to train, with the objective by its name."""

    objective: _Objective = "likelihood"  # type: ignore[assignment]
    """Cross-entropy of the right order, SymmetricDiffusers' objective for jigsaws, or one that learns from the task's
    cost, whose options have its name."""

    def __post_init__(self) -> None:
        """Nothing: the options are checked when the config is made."""

    def config_of(self, options: Any) -> TrainConfig:
        """The config; options: the command's, with those of each objective that learns from a cost."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, kind in _COST_OPTIONS.items():
            if self.objective.replace("-", "_") == name:
                fields["objective"] = getattr(options, name)
            elif getattr(options, name) != kind():
                option_name = name.replace("_", "-")
                raise ValueError(
                    f"--{option_name}.* is for --objective {option_name}, got --objective {self.objective}"
                )
        return TrainConfig(**fields)


def train_command(name: str) -> Callable[[Sequence[str]], Any]:
    """The command `train NAME`: makes the dataclass of its options from the words of the command line."""

    def make(words: Sequence[str]) -> Any:
        method_name = value_of("--method", words) or "softrank"
        method = method_of(method_name)
        model = method.options(name)
        config = TrainOptions(**{"keep_memory": True, **TASKS[name], **method.training(name)})
        methods: Any = Literal[tuple(METHODS)]
        return dataclasses.make_dataclass(
            "Train",
            [
                ("task", task_class(name)),
                ("train", Annotated[TrainOptions, tyro.conf.arg(name="")], config),
                *((name, kind, kind()) for name, kind in _COST_OPTIONS.items()),
                ("model", type(model), model),
                ("method", option(methods, "What to train; decides the defaults of the rest."), method_name),
                ("output", option(Path, "Folder of the run."), Path("runs") / name),
                ("resume", option(bool, "Go on with the run in the output folder."), False),
                ("auto_resume", option(bool, "Go on with the run in the output folder, or start one."), False),
                ("restart", option(bool, "Delete the run in the output folder and start anew."), False),
                ("start_from", option(Path | None, "Saved model whose weights to start from."), None),
                ("device", Device, None),
                ("as_json", AsJson, False),
                ("config", ConfigFile, None),
            ],
            namespace={"run": run_train, "__doc__": f"Train a model on {name}."},
        )

    make.__doc__ = f"train on {name}"
    return make


def run_train(options: Any, command: str) -> int:
    """Train as the options say; returns the exit code."""
    from softrank_ext.training import has_run, train

    chosen = {True: options.resume, "auto": options.auto_resume, "restart": options.restart}
    if sum(chosen.values()) > 1:
        raise ValueError("--resume, --auto-resume and --restart exclude each other, got more than one")
    resume: Any = next((way for way, is_chosen in chosen.items() if is_chosen), False)
    config = options.train.config_of(options)
    torch.manual_seed(config.seed)
    model = method_of(options.method).make(options.task, options.model)
    goes_on = resume is True or (resume == "auto" and has_run(options.output))
    if options.start_from is not None and not goes_on:
        start = model_folder.load_model(folder_to_load(options.start_from))
        _take_weights(model, start, str(options.start_from))
    device = checked_device(options.device)
    result = train(model, options.task, config, options.output, resume=resume, device=device, command=command)
    if options.as_json and int(os.environ.get("RANK", "0")) == 0:
        record = {field: getattr(result, field) for field in ("iteration", "is_finished", "loss", "metrics")}
        tell(True, {"output": str(options.output), **record}, "")
    return 0 if result.is_finished else 130


def _take_weights(model: OrderModel, start: OrderModel, name: str) -> None:
    """Give a model the weights of another; one to be trained for parts may come from one that was not."""
    if _network_of(start) != _network_of(model) or (start.takes_parts and not model.takes_parts):
        raise ValueError(f"the model in {name} is another: it has {start.config}, not {model.config}")
    model.load_state_dict({**model.state_dict(), **start.state_dict()})


def _network_of(model: OrderModel) -> dict[str, Any]:
    """What models that share weights have in common: type and config, but for data facts, first weights, noise, parts
    and the times of training."""
    fields = model_folder.config_to_json(model.config)
    for name in ("data", "init", "partial", "time", "time_steps"):
        fields.pop(name, None)
    if "process" in fields:
        fields["process"] = {name: fields["process"].get(name) for name in ("kind", "target", "visited")}
    return {"model_type": model.model_type, **fields}
