"""A training run: what changes while training, and the folder that it is kept in and resumed from.

The folder: `last/` and `best/` are saved models, with averaged weights if config.ema is not 0;
`last/training.safetensors` is what a run resumes from, saved in one step with the model; `run.json` says what was
asked; `metrics.jsonl` has a line per report; `run.lock` says which process writes here.
"""

import copy
import dataclasses
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from softrank_ext import model_folder
from softrank_ext._libraries import build_info
from softrank_ext.atomic_files import delete_files, finish_save, has_file, read_files, write_file
from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.tasks import Task
from softrank_ext.training.config import TrainConfig
from softrank_ext.training.cost_objectives import COST_OBJECTIVES
from softrank_ext.training.optimizer import Optimizers
from softrank_ext.training.torchrun import Processes

Model = OrderModel
Resume = bool | Literal["auto", "restart"]
RESUMES: tuple[Resume, ...] = (False, True, "auto", "restart")
METRICS_FILE = "metrics.jsonl"
RUN_FILE = "run.json"
# A resumed run may change these: they do not touch the weights.
_MAY_CHANGE = (
    "log_every", "checkpoint_every", "evaluate_every", "evaluate_count", "evaluate_steps", "evaluate_decode",
    "best_metric", "best_is", "tensorboard", "prefetch", "keep_memory",
)  # fmt: skip


class Run:
    """What changes while training: weights, their average, the optimizer, the iteration, the last and best results."""

    def __init__(
        self, model: Model, task: Task, config: TrainConfig, device: torch.device, loss_module: nn.Module
    ) -> None:
        self.model, self.task, self.config = model, task, config
        self.device, self.loss_module = device, loss_module
        self.average = copy.deepcopy(model) if config.ema > 0 else model
        self.optimizers = Optimizers(model, config)
        self.iteration = 0
        self.loss = math.nan
        self.metrics: dict[str, float] = {}
        self.best: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether all iterations that were asked for are done."""
        return self.iteration >= self.config.iterations

    @property
    def best_metric(self) -> str:
        """What the model in best/ is best at."""
        default = "loss" if isinstance(self.config.objective, str) else "cost"
        return self.config.best_metric or default

    def update(self, loss: Tensor) -> Tensor:
        """One optimizer update; returns the norm of the gradient before clipping."""
        self.iteration += 1
        self.optimizers.zero_grad()
        loss.backward()
        limit = self.config.clip or math.inf
        gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizers.step(self.iteration)
        if self.average is not self.model:
            self._average_weights()
        return gradient_norm

    @torch.no_grad()
    def _average_weights(self) -> None:
        # Young averages follow quickly, or the first, random weights would linger in them.
        decay = min(self.config.ema, (1 + self.iteration) / (10 + self.iteration))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), 1 - decay)
        for averaged, buffer in zip(self.average.buffers(), self.model.buffers(), strict=True):
            averaged.copy_(buffer)

    def save(self, folder: Path, here: Processes) -> None:
        """Write the checkpoint, by the first process; the others wait, so that none runs ahead of what is saved."""
        if here.rank == 0:
            _sync_metrics(folder)
            model_folder.save_checkpoint(self.average, folder / "last", self.tensors(), self.state())
        here.wait()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs, by name."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not self.model:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        tensors |= {f"loss.{name}": tensor for name, tensor in self._loss_tensors().items()}
        return tensors | {f"optimizer.{name}": tensor for name, tensor in self.optimizers.tensors().items()}

    def _loss_tensors(self) -> dict[str, Tensor]:
        """What a loss keeps beside the model, such as running means."""
        return {name: tensor for name, tensor in self.loss_module.named_buffers() if not name.startswith("model.")}

    def state(self) -> dict[str, Any]:
        """The rest that a resumed run needs, as JSON can hold it."""
        return {
            "iteration": self.iteration,
            "best": self.best,
            "config": self.config.to_json(),
            "model": {"model_type": self.model.model_type, **model_folder.config_to_json(self.model.config)},
            "task": describe(self.task),
        }

    def load(self, folder: Path) -> None:
        """Take everything from the checkpoint, once it is seen to belong to the same run."""
        tensors, state = model_folder.load_training(folder / "last")
        _check_state(folder, state)
        self._check_same(folder, state)
        self.iteration, self.best = state["iteration"], state["best"]
        for line in read_metrics(folder, self.iteration):
            self.loss = line.get("loss", self.loss)
            self.metrics = {
                name.removeprefix("test_"): value for name, value in line.items() if name.startswith("test_")
            } or self.metrics
        try:
            self.model.load_state_dict(_with_prefix(tensors, "model."))
            if self.average is not self.model:
                self.average.load_state_dict(_with_prefix(tensors, "average."))
            for name, tensor in self._loss_tensors().items():
                tensor.copy_(tensors[f"loss.{name}"])
            self.optimizers.load(_with_prefix(tensors, "optimizer."))
        except (RuntimeError, KeyError) as error:  # torch's, for names or shapes that are not the model's
            path = folder / "last" / model_folder.TRAINING_FILE
            raise ValueError(f"{path} must have the tensors of this run: {error}") from error

    def _check_same(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Raise ValueError, naming the first difference, unless the saved state is of this model, task and config."""
        now, saved = json.loads(json.dumps(self.state())), _upgraded(state, self.model)
        # What came after the state was written has its default there; the model's config is read with them.
        defaults = {"config": _defaults_of(self.config), "model": {}, "task": _defaults_of(self.task)}
        for part in ("config", "model", "task"):
            old, new = _flat(saved[part]), _flat(now[part])
            for name in sorted(old.keys() | new.keys()):
                before, after = old.get(name, defaults[part].get(name)), new.get(name)
                if before != after and not (part == "config" and name in _MAY_CHANGE):
                    raise ValueError(
                        f"the run in {folder} has {name} = {before!r} ({part}), got {after!r}; resume with what it was "
                        'started with, or start anew with resume="restart" (--restart)'
                    )


def _check_state(folder: Path, state: Any) -> None:
    """Raise ValueError unless a saved state has the parts that `Run.state` writes, each of its kind."""
    kinds: dict[str, Any] = {"iteration": int, "best": float | int | None, "config": dict, "model": dict, "task": dict}
    for name, kind in kinds.items():
        is_there = isinstance(state, dict) and name in state
        if not is_there or not isinstance(state[name], kind) or (name == "iteration" and state[name] < 0):
            got = repr(state[name])[:60] if is_there else "none"
            raise ValueError(
                f"{folder / 'last' / model_folder.TRAINING_FILE} must be the state of a run, with its {name}, got {got}"
            )


def _upgraded(state: Mapping[str, Any], model: OrderModel) -> dict[str, Any]:
    """A saved state as this version would have written it for that model.

    Before 0.2, noise_scale and reference were options of training, and still earlier the target was; they belong to the
    process of the model's config now. Data facts that were not written are taken to be the model's. The optimizer was
    AdamW, and two options had other names.
    """
    config, fields = {"optimizer": "adamw", **state["config"]}, dict(state["model"])
    if "draws" in config:
        config["noisy_orders"] = config.pop("draws")
    if config.get("objective") == "reinforce":
        config["objective"] = "lookalike"
    if isinstance(config.get("objective"), dict):  # its options may have become more since
        kind = config["objective"]["kind"]
        config["objective"] = {"kind": kind, **dataclasses.asdict(COST_OBJECTIVES[kind]()), **config["objective"]}
    names = {"noise_scale": "noise_scale", "reference": "prior"}
    noise = {name: config.pop(old) for old, name in names.items() if old in config}
    if "model_type" not in fields:
        fields |= {"model_type": SoftRankModel.model_type, "target": config.pop("target", "clean")}
    if fields["model_type"] != model.model_type:
        return {**state, "config": config}
    model_type = fields.pop("model_type")
    known = model_folder.config_to_json(model_folder.config_from_json(model.config_type, fields))
    if isinstance(known.get("process"), dict) and known["process"]["kind"] == "bridge":
        known["process"] |= noise
    now = model_folder.config_to_json(model.config)
    if "data" in known:
        known["data"] = {**now["data"], **fields.get("data", {})}
    if "init" in known:
        known["init"] = now["init"]  # the run's weights are loaded, whatever the first ones were
    return {**state, "config": config, "model": json.loads(json.dumps({"model_type": model_type, **known}))}


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the process and of the data facts by their full names, as process.noise_scale."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("process", "data") and isinstance(value, dict):
            flat |= {f"{name}.{inner}": number for inner, number in value.items()}
        else:
            flat[name] = value
    return flat


def has_run(folder: str | Path) -> bool:
    """Whether the folder holds a run, to be resumed: its training state, or what says that there was one.

    A run of which files are missing is not taken for none: it is refused when it is resumed, and told when another one
    is started in its place.
    """
    folder = Path(folder)
    return has_file(folder / "last", model_folder.TRAINING_FILE, listed=True) or (folder / METRICS_FILE).exists()


def open_run(folder: Path, run: Run, resume: Resume, here: Processes, command: str | None) -> None:
    """Load the run to resume, or start its folder; trouble with the disk is found here, before training.

    resume: as in `train`. A finished run is loaded and nothing is written.
    """
    is_there = here.is_anywhere(here.rank == 0 and has_run(folder))  # as the first process sees it
    if is_there and resume is False:
        raise ValueError(
            f"{folder} already holds a run: resume=True (--resume) goes on with it, "
            'resume="auto" (--auto-resume) goes on with a run or starts one, '
            'resume="restart" (--restart) deletes it and starts anew; or choose another folder'
        )
    goes_on = resume is True or (resume == "auto" and is_there)
    if here.rank == 0:
        for part in (folder, folder / "last", folder / "best"):
            finish_save(part)
    if goes_on:
        run.load(folder)
        _mend_model(folder, run, here)
        _check_best(folder, run, here)
        if run.is_finished:
            return
    if here.rank == 0:
        weights = sum(tensor.numel() * tensor.element_size() for tensor in run.model.state_dict().values())
        # A checkpoint is weights, their average, two moments and the model; the one before is there while it is
        # written. The same for the model in best/; a little for headers and logs.
        checkpoint = 5 * weights
        size = checkpoint + weights if goes_on else 2 * (checkpoint + weights)
        model_folder.check_space(folder, size + 2**16)
        if goes_on:
            forget_later_lines(folder, run.iteration)
        else:
            if is_there:
                _delete_run(folder)
            record = {"command": command, **run.state(), "versions": build_info()}
            write_file(folder / RUN_FILE, (json.dumps(record, indent=2) + "\n").encode())
    if not goes_on:
        run.save(folder, here)


def _mend_model(folder: Path, run: Run, here: Processes) -> None:
    """Write the checkpoint again if the model in it is not that of the state that was loaded.

    A run of before 0.2 that was killed amid a checkpoint has left the model of the one before; a file may be damaged.
    """
    is_wrong = here.rank == 0 and not model_folder.is_saved(run.average, folder / "last")
    if here.is_anywhere(is_wrong):
        if here.rank == 0:
            print(f"the model in {folder / 'last'} was not that of its training state: written again", file=sys.stderr)
        run.save(folder, here)


def _check_best(folder: Path, run: Run, here: Processes) -> None:
    """Say so if the best model is not what was saved; a run that goes on then keeps the best of what follows."""
    reason = ""
    if here.rank == 0 and run.best is not None:
        try:
            read_files(folder / "best", (model_folder.WEIGHTS_FILE, model_folder.CONFIG_FILE))
        except (ValueError, OSError) as error:
            reason = str(error)
    if here.is_anywhere(bool(reason)):
        if here.rank == 0:
            print(f"the best model so far is lost: {reason}", file=sys.stderr)
        run.best = run.best if run.is_finished else None


def _delete_run(folder: Path) -> None:
    """Delete what a run wrote, and nothing else; what says that there is a run goes last."""
    for part in ("best", "tensorboard"):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / METRICS_FILE).unlink(missing_ok=True)
    delete_files(folder / "last", (model_folder.CONFIG_FILE, model_folder.WEIGHTS_FILE, model_folder.TRAINING_FILE))


def read_metrics(folder: Path, iteration: int) -> list[dict[str, float]]:
    """The lines of metrics.jsonl up to an iteration; half a line, which a killed run may leave, is left out."""
    path = folder / METRICS_FILE
    lines = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
            if line["iteration"] <= iteration:
                lines.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return lines


def forget_later_lines(folder: Path, iteration: int) -> None:
    """Drop what an interrupted run reported after the checkpoint that it resumes from."""
    kept = read_metrics(folder, iteration)
    write_file(folder / METRICS_FILE, "".join(json.dumps(line) + "\n" for line in kept).encode())


def _sync_metrics(folder: Path) -> None:
    """Force what was reported to disk, so that no checkpoint is newer than the lines before it."""
    path = folder / METRICS_FILE
    if path.exists():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def describe(task: Task) -> dict[str, Any]:
    """A task's name and, if it is a dataclass, those of its fields that JSON can hold."""
    described: dict[str, Any] = {"name": task.name}
    names: list[str] = [field.name for field in dataclasses.fields(task)] if dataclasses.is_dataclass(task) else []
    for name in names:
        value = getattr(task, name)
        value = str(value) if isinstance(value, Path) else value
        if _is_plain(value):
            described[name] = value
    return described


def _defaults_of(settings: Any) -> dict[str, Any]:
    """Defaults of a dataclass's fields, those that JSON can hold, as it reads them."""
    if not dataclasses.is_dataclass(settings):
        return {}
    defaults = {field.name: field.default for field in dataclasses.fields(settings) if _is_plain(field.default)}
    read: dict[str, Any] = json.loads(json.dumps(defaults))
    return read


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
