"""Training: the loop around a model's loss (`losses`).

A training step is a function of (weights, seed, iteration): batches, times, noise and dropout are keyed by them, so a
resumed run repeats the uninterrupted one bit for bit, and several processes (torchrun) train on the batch that one
would. Orders are `order[place] = item`.

A run's folder: `last/` and `best/` are saved models, with averaged weights if config.ema is not 0;
`last/training.safetensors` is what a run resumes from; `run.json` says what was asked; `metrics.jsonl` has a
line per report.
"""

import copy
import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from softrank_ext import model_folder
from softrank_ext._libraries import build_info
from softrank_ext.batch import Batch
from softrank_ext.evaluation import evaluate
from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.processes import bridge
from softrank_ext.tasks import Task
from softrank_ext.training import objectives

Model = OrderModel
SCHEDULES = ("cosine", "transformer", "constant")
# A resumed run may change these: they do not touch the weights.
_MAY_CHANGE = (
    "log_every", "checkpoint_every", "evaluate_every", "evaluate_count", "evaluate_steps", "evaluate_decode",
    "best_metric", "best_is", "tensorboard", "prefetch",
)  # fmt: skip


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    iterations: int = 10_000
    """Optimiser updates."""
    batch_size: int = 64
    """Instances per update, over all processes."""
    draws: int = 1
    """Noisy orders per instance and update; items are embedded once for all of them."""
    times: Literal["drawn", "all"] = "drawn"
    """Times that a noisy order is seen at: one drawn, or all times of the model's reverse process."""
    objective: Literal["likelihood", "reinforce"] = "likelihood"
    """Cross-entropy of the target order, or SymmetricDiffusers' objective for jigsaws."""
    learning_rate: float = 4e-4
    """Peak rate. SymmetricDiffusers' rate is (d_model * warmup)^-0.5 with the transformer schedule."""
    schedule: Literal["cosine", "transformer", "constant"] = "cosine"
    """After the warm-up: cosine decay, decay with the inverse square root, or no decay."""
    warmup: int = 500
    """Updates of linear warm-up."""
    final_rate: float = 0.01
    """Share of the peak rate that cosine decay ends at."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    beta1: float = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: float = 0.98
    """AdamW's decay of the mean squared gradient."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    ema: float = 0.999
    """Decay of the averaged weights that are saved and evaluated; 0 for the weights as they are."""
    noise_scale: float = 0.5
    """The bridge's noise, paper eta."""
    reference: Literal["uniform", "gaussian"] = "uniform"
    """Soft ranks at time 1."""
    seed: int = 0
    """Another seed, other data, noise and dropout."""
    log_every: int = 50
    """Updates between reports."""
    checkpoint_every: int = 1000
    """Updates between checkpoints."""
    evaluate_every: int = 0
    """Updates between evaluations on held-out instances; 0 for none."""
    evaluate_count: int = 256
    """Held-out instances of an evaluation."""
    evaluate_steps: int | None = None
    """Diffusion steps of an evaluation's samples, by default the model's own."""
    evaluate_decode: Literal["greedy", "sample"] = "greedy"
    """How an evaluation picks items."""
    best_metric: str = "loss"
    """The evaluated metric that the model in best/ is best at."""
    best_is: Literal["lowest", "highest"] = "lowest"
    """Which value of that metric is best."""
    tensorboard: bool = False
    """Write TensorBoard files as well."""
    prefetch: bool = True
    """Make the next batch in a thread while this one is trained on."""

    def __post_init__(self) -> None:
        for name, least in (
            ("iterations", 1), ("batch_size", 1), ("draws", 1), ("warmup", 0), ("log_every", 1),
            ("checkpoint_every", 1), ("evaluate_every", 0), ("evaluate_count", 1), ("evaluate_steps", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if name == "evaluate_steps" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        for name in ("learning_rate", "weight_decay", "clip", "noise_scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        for name in ("beta1", "beta2", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate must be from 0 to 1, got {self.final_rate}")
        for name, allowed in (
            ("schedule", SCHEDULES), ("times", objectives.TIMES), ("reference", bridge.REFERENCES),
            ("objective", tuple(objectives.OBJECTIVES)),
            ("evaluate_decode", ("greedy", "sample")), ("best_is", ("lowest", "highest")),
        ):  # fmt: skip
            bridge.check_choice(name, getattr(self, name), allowed)


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a run ended with: the model to use (in eval mode), the last iteration, whether it was the last one asked
    for, the loss of the last report and the metrics of the last evaluation."""

    model: Model
    iteration: int
    is_finished: bool
    loss: float
    metrics: dict[str, float]


def train(
    model: Model,
    task: Task,
    config: TrainConfig,
    output: str | Path | None = None,
    *,
    resume: bool = False,
    device: str | torch.device | None = None,
    command: str | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train the model on the task's batches.

    output: the run's folder, None to write nothing. resume: go on from its last checkpoint. device: where to train, by
    default a GPU if there is one. command: the command line, for the records and for the advice how to go on. Started
    by torchrun, the processes share each batch and the evaluations, and the first of them writes. SIGINT (Ctrl-C) or
    SIGTERM ends the run after the update at hand and its checkpoint; a second one ends it at once.
    """
    if resume and output is None:
        raise ValueError("resume needs the output folder of the run")
    with processes(device) as (rank, world, at), torch.random.fork_rng(devices=[at] if at.type == "cuda" else []):
        if config.batch_size % world != 0:
            raise ValueError(f"batch_size must be a multiple of the {world} processes, got {config.batch_size}")
        model.to(at).train()
        loss_module = loss_of(model, config).to(at).train()
        run = _Run(model, task, config, at, loss_module)
        folder = None if output is None else Path(output)
        tensorboard = _tensorboard(config, folder) if rank == 0 else None
        if folder is not None:
            _open_folder(folder, run, resume, rank, world, command)
        if world > 1:
            loss_module = DistributedDataParallel(loss_module)
        own = slice(rank * config.batch_size // world, (rank + 1) * config.batch_size // world)
        with _Stop() as stop, _Report(run, folder, tensorboard, world, rank != 0 or quiet) as report:
            for batch in _batches(task, config, run.iteration + 1):
                iteration = run.iteration + 1
                # 1. Data; dropout's random numbers belong to this iteration alone.
                part = _part_of(batch, own, at)
                samples = torch.arange(config.batch_size, device=at)[own] + (iteration - 1) * config.batch_size
                torch.manual_seed(_seed_of(config.seed, iteration, rank))
                # 2. to 4. The noisy orders and the log-probability of their targets: DenoisingLoss.forward.
                loss, loss_per_place = loss_module(part, config.seed, samples)
                # 5. Step downhill.
                gradient_norm = run.update(loss)
                report.add(loss, loss_per_place, gradient_norm, batch)
                is_last = iteration == config.iterations or stop.is_asked(world, at)
                if iteration % config.log_every == 0 or is_last:
                    report.write()
                if config.evaluate_every and (iteration % config.evaluate_every == 0 or iteration == config.iterations):
                    report.write_evaluation(_evaluate(run, world), folder)
                if folder is not None and (iteration % config.checkpoint_every == 0 or is_last):
                    run.save(folder, rank, world)
                report.restart_clock()
                if is_last:
                    break
            is_finished = run.iteration >= config.iterations
            if not is_finished and rank == 0:
                how = "resume=True" if command is None else f"{command.removesuffix(' --resume')} --resume"
                kept = "nothing was written" if folder is None else f"saved in {folder}; go on with: {how}"
                report.say(f"stopped after iteration {run.iteration} of {config.iterations}, {kept}")
        run.average.eval()
        return TrainResult(run.average, run.iteration, is_finished, report.loss, dict(run.metrics))


class _Run:
    """What changes while training: weights, their average, the optimiser, the iteration, the best evaluation."""

    def __init__(
        self, model: Model, task: Task, config: TrainConfig, device: torch.device, loss_module: nn.Module
    ) -> None:
        self.model, self.task, self.config, self.device = model, task, config, device
        self.loss_module = loss_module
        self.average = copy.deepcopy(model) if config.ema > 0 else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=1e-9,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.iteration = 0
        self.best: float | None = None
        self.metrics: dict[str, float] = {}

    def update(self, loss: Tensor) -> Tensor:
        """One optimiser update; returns the norm of the gradient before clipping."""
        self.iteration += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        limit = self.config.clip or math.inf
        gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(self.iteration, self.config)
        self.optimizer.step()
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

    def save(self, folder: Path, rank: int, world: int) -> None:
        """Write the checkpoint, by the first process; the others wait, so that none runs ahead of what is saved."""
        if rank == 0:
            model_folder.save_training(folder / "last", self.tensors(), self.state())
            model_folder.save_pretrained(self.average, folder / "last")
        if world > 1:
            dist.barrier()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a resumed run needs, by name."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average is not self.model:
            tensors |= {f"average.{name}": tensor for name, tensor in self.average.state_dict().items()}
        tensors |= {f"loss.{name}": tensor for name, tensor in self._loss_tensors().items()}
        for name, parameter in self.model.named_parameters():
            for key, tensor in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = tensor
        return tensors

    def _loss_tensors(self) -> dict[str, Tensor]:
        """What a loss keeps beside the model, such as running means."""
        return {name: tensor for name, tensor in self.loss_module.named_buffers() if not name.startswith("model.")}

    def state(self) -> dict[str, Any]:
        """The rest that a resumed run needs, as JSON can hold it."""
        return {
            "iteration": self.iteration,
            "best": self.best,
            "config": dataclasses.asdict(self.config),
            "model": {"model_type": self.model.model_type, **dataclasses.asdict(self.model.config)},
            "task": describe(self.task),
        }

    def load(self, folder: Path) -> None:
        """Take everything from the checkpoint, once it is seen to belong to the same run."""
        tensors, state = model_folder.load_training(folder / "last")
        now = json.loads(json.dumps(self.state()))
        # Runs of older versions: the target was an option of training, and what came later has its default.
        if "model_type" not in state["model"]:
            target = state["config"].pop("target", "clean")
            state["model"] |= {"model_type": SoftRankModel.model_type, "target": target}
        defaults = {
            "config": _defaults_of(self.config),
            "model": _defaults_of(self.model.config),
            "task": _defaults_of(self.task) if dataclasses.is_dataclass(self.task) else {},
        }
        for part in ("config", "model", "task"):
            for name in sorted(now[part].keys() | state[part].keys()):
                before, after = state[part].get(name, defaults[part].get(name)), now[part].get(name)
                if before != after and not (part == "config" and name in _MAY_CHANGE):
                    raise ValueError(f"the run in {folder} has {name} = {before!r} ({part}), got {after!r}; "
                                     "resume with what it was started with")  # fmt: skip
        self.iteration, self.best = state["iteration"], state["best"]
        self.model.load_state_dict(_with_prefix(tensors, "model."))
        if self.average is not self.model:
            self.average.load_state_dict(_with_prefix(tensors, "average."))
        for name, tensor in self._loss_tensors().items():
            tensor.copy_(tensors[f"loss.{name}"])
        keys = sorted({name.split(".")[1] for name in tensors if name.startswith("optimizer.")})
        entries = {
            index: {key: tensors[f"optimizer.{key}.{name}"] for key in keys}
            for index, (name, _) in enumerate(self.model.named_parameters())
            if keys and f"optimizer.{keys[0]}.{name}" in tensors
        }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": entries, "param_groups": groups})


def rate_at(iteration: int, config: TrainConfig) -> float:
    """Learning rate of the optimiser's update number `iteration`, counted from 1."""
    peak, warmup = config.learning_rate, config.warmup
    if iteration < warmup:
        return peak * iteration / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "transformer":
        return peak * math.sqrt(max(warmup, 1) / iteration)
    progress = (iteration - warmup) / max(config.iterations - warmup, 1)
    return peak * (config.final_rate + (1 - config.final_rate) * (1 + math.cos(math.pi * progress)) / 2)


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


def _defaults_of(config: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(config)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _seed_of(seed: int, iteration: int, rank: int) -> int:
    """A 63-bit seed that differs between iterations and processes."""
    return ((seed * 1_000_003 + iteration) * 65_537 + rank) % 2**63


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[tuple[int, int, torch.device]]:
    """This process's number, how many there are, and its device; joins torchrun's other processes if need be."""
    is_cuda = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    is_started_here = "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized()
    if is_started_here:
        dist.init_process_group("nccl" if is_cuda else "gloo", timeout=timedelta(minutes=30))
    try:
        if not dist.is_initialized():
            yield 0, 1, torch.device(device or ("cuda" if is_cuda else "cpu"))
            return
        local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        if is_cuda:
            torch.cuda.set_device(local)
        yield dist.get_rank(), dist.get_world_size(), torch.device("cuda", local) if is_cuda else torch.device("cpu")
    finally:
        if is_started_here:
            dist.destroy_process_group()


class _Stop:
    """Inside, SIGINT and SIGTERM ask to stop after the iteration at hand; a second SIGINT stops at once."""

    def __enter__(self) -> "_Stop":
        self._asked = False
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._asked = True

    def is_asked(self, world: int, device: torch.device) -> bool:
        """Whether any process was asked; all of them get the same answer."""
        if world == 1:
            return self._asked
        asked = torch.tensor(float(self._asked), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked > 0)


def _batches(task: Task, config: TrainConfig, first: int) -> Iterator[Batch]:
    """The batches of iterations `first` to the last, each made while the one before is trained on."""
    iterations = range(first, config.iterations + 1)
    if not config.prefetch:
        for iteration in iterations:
            yield _checked(task.training_batch(config.seed, iteration, config.batch_size), config.batch_size)
        return
    with ThreadPoolExecutor(1, "softrank-batches") as maker:
        upcoming = [
            maker.submit(task.training_batch, config.seed, iteration, config.batch_size) for iteration in iterations[:1]
        ]
        for iteration in iterations:
            batch = upcoming.pop().result()
            if iteration < config.iterations:
                upcoming.append(maker.submit(task.training_batch, config.seed, iteration + 1, config.batch_size))
            yield _checked(batch, config.batch_size)


def _checked(batch: Batch, size: int) -> Batch:
    """The batch, if it has the size asked for and its first items stand first."""
    if len(batch.order) != size or len(batch.items) != size:
        raise ValueError(f"the task must make batches of {size} instances, got {len(batch.order)}")
    if batch.first is not None and not torch.equal(batch.first, batch.order[:, 0]):
        raise ValueError("batch.first must be the items at place 0 of batch.order")
    return batch


def _part_of(batch: Batch, rows: slice, device: torch.device) -> Batch:
    """Some instances of a batch, on the device, without the extras."""

    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[rows].to(device, non_blocking=True)

    return Batch(
        batch.items[rows].to(device, non_blocking=True), batch.order[rows].to(device, non_blocking=True),
        part(batch.mask), part(batch.first), part(batch.known),
    )  # fmt: skip


def loss_of(model: Model, config: TrainConfig) -> nn.Module:
    """The module that a model is trained with: batch, seed and sample numbers -> its loss, and the loss per place."""
    if isinstance(model, OnePassModel):
        return model.loss_module()
    return objectives.OBJECTIVES[config.objective](
        model, noise_scale=config.noise_scale, reference=config.reference, draws=config.draws, times=config.times
    )


@torch.no_grad()
def held_out_loss(model: Model, task: Task, config: TrainConfig) -> tuple[Tensor, int]:
    """Sum of the loss per place over this process's share of the held-out batches, and their number.

    The noise is the same at every call, so that two models are compared on the same noisy orders.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = next(model.parameters()).device
    loss_module = loss_of(model, dataclasses.replace(config, objective="likelihood", draws=1, times="drawn"))
    was_training = model.training
    model.eval()
    total, number, first = torch.zeros((), dtype=torch.float64), 0, 0
    for index, batch in enumerate(task.test_batches(config.evaluate_count, config.batch_size, 0)):
        size = len(batch.order)
        if index % world == rank:
            samples = torch.arange(first, first + size, device=device)
            _, per_place = loss_module(_part_of(batch, slice(None), device), config.seed, samples)
            total, number = total + size * per_place.double().cpu(), number + size
        first += size
    model.train(was_training)
    return total, number


def _evaluate(run: _Run, world: int) -> dict[str, float]:
    """Means of the task's metrics and the held-out loss per place, over all processes."""
    config = run.config
    total, number = held_out_loss(run.average, run.task, config)
    sums = torch.tensor([float(total), float(number)], dtype=torch.float64, device=run.device)
    if world > 1:
        dist.all_reduce(sums)
    row = evaluate(
        run.average, run.task, count=config.evaluate_count, batch_size=config.batch_size, steps=config.evaluate_steps,
        noise_scale=config.noise_scale, reference=config.reference, decode=config.evaluate_decode,
    )  # fmt: skip
    scores = row["metrics"]
    assert isinstance(scores, dict)
    metrics = {"loss": float(sums[0] / sums[1]), **{name: score["mean"] for name, score in scores.items()}}
    if config.best_metric not in metrics:
        raise ValueError(f"best_metric must be one of {', '.join(metrics)}, got {config.best_metric!r}")
    return metrics


def _open_folder(folder: Path, run: _Run, resume: bool, rank: int, world: int, command: str | None) -> None:
    """Load the run to resume, or start its folder; trouble with the disk is found here, before training."""
    has_run = (folder / "last" / model_folder.TRAINING_FILE).exists()
    if resume:
        run.load(folder)
    elif has_run and rank == 0:
        raise FileExistsError(
            f"{folder} already holds a run: --resume (resume=True) goes on with it, or take another folder"
        )
    if rank == 0:
        weights = sum(tensor.numel() * tensor.element_size() for tensor in run.model.state_dict().values())
        # Weights, their average and two moments; the model in last/ and in best/; a little for headers and logs.
        model_folder.check_space(folder, 6 * weights + 2**16)
        if resume:
            _forget_later_lines(folder / "metrics.jsonl", run.iteration)
        else:
            record = {"command": command, **run.state(), "versions": build_info()}
            (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n")
    if not resume:
        run.save(folder, rank, world)


def _forget_later_lines(path: Path, iteration: int) -> None:
    """Drop what an interrupted run wrote after the checkpoint that it resumes from, and half a line at the end."""
    kept = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            if json.loads(line)["iteration"] <= iteration:
                kept.append(line + "\n")
        except (json.JSONDecodeError, KeyError):
            continue
    path.write_text("".join(kept))


def _tensorboard(config: TrainConfig, folder: Path | None) -> Any:
    """A TensorBoard writer, or None if it is not asked for."""
    if not config.tensorboard:
        return None
    if folder is None:
        raise ValueError("tensorboard needs an output folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('tensorboard is not installed: pip install "softrank_ext[tensorboard]"') from error
    return SummaryWriter(str(folder / "tensorboard"))


class _Report:
    """Loss, rate and speed: a progress bar or lines on stderr, metrics.jsonl, TensorBoard."""

    def __init__(self, run: _Run, folder: Path | None, tensorboard: Any, world: int, quiet: bool) -> None:
        self.run, self.folder, self.tensorboard, self.world, self.quiet = run, folder, tensorboard, world, quiet
        self.loss = math.nan
        self._is_first_process = not dist.is_initialized() or dist.get_rank() == 0

    def __enter__(self) -> "_Report":
        total, is_bar = self.run.config.iterations, sys.stderr.isatty() and not self.quiet
        self._bar = tqdm(total=total, initial=self.run.iteration, unit="it", disable=not is_bar)
        self._started, self._first = time.perf_counter(), self.run.iteration
        self._clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self.tensorboard is not None:
            self.tensorboard.close()

    def _clear(self) -> None:
        self._since, self._items, self._number = time.perf_counter(), 0, 0
        self._sums: Tensor | None = None

    def add(self, loss: Tensor, loss_per_place: Tensor, gradient_norm: Tensor, batch: Batch) -> None:
        """Take an iteration in; nothing is read back from the device."""
        sums = torch.stack((loss.detach(), loss_per_place, gradient_norm.detach().to(loss.dtype)))
        self._sums = sums if self._sums is None else self._sums + sums
        self._items += batch.order.numel() if batch.mask is None else int(batch.mask.sum())
        self._number += 1
        self._bar.update()

    def restart_clock(self) -> None:
        """After a report, do not count evaluating and saving as training time."""
        if self._number == 0:
            self._since = time.perf_counter()

    def write(self) -> None:
        """Report the means since the last report."""
        assert self._sums is not None
        means = self._sums / self._number
        if self.world > 1:
            dist.all_reduce(means)
            means = means / self.world
        self.loss, per_place, gradient_norm = means.tolist()
        if not math.isfinite(self.loss):
            raise FloatingPointError(
                f"the loss is {self.loss} at iteration {self.run.iteration}; the last checkpoint is from before. "
                "Try a lower learning_rate, a longer warmup or a smaller clip"
            )
        now, iteration, total = time.perf_counter(), self.run.iteration, self.run.config.iterations
        speed = self._items / (now - self._since)
        rate = rate_at(iteration, self.run.config)
        left = (now - self._started) / max(iteration - self._first, 1) * (total - iteration)
        self._write_line(
            {
                "iteration": iteration,
                "loss": self.loss,
                "loss_per_place": per_place,
                "learning_rate": rate,
                "gradient_norm": gradient_norm,
                "items_per_second": speed,
                "seconds": now - self._started,
            }
        )
        if self._bar.disable:
            self.say(
                f"iteration {iteration}/{total}  loss {self.loss:.4f}  rate {rate:.2e}  {speed:,.0f} items/s  "
                f"{timedelta(seconds=round(left))} left"
            )
        else:
            self._bar.set_postfix_str(f"loss {self.loss:.4f}, rate {rate:.2e}, {speed:,.0f} items/s")
        self._clear()

    def write_evaluation(self, metrics: dict[str, float], folder: Path | None) -> None:
        """Report an evaluation; keep the model if it is the best so far."""
        run, config = self.run, self.run.config
        run.metrics = metrics
        value = metrics[config.best_metric]
        is_best = run.best is None or (value < run.best if config.best_is == "lowest" else value > run.best)
        self._write_line({"iteration": run.iteration, **{f"test_{name}": number for name, number in metrics.items()}})
        numbers = "  ".join(f"{name} {number:.4f}" for name, number in metrics.items())
        self.say(f"iteration {run.iteration}  held out: {numbers}{'  (best so far)' if is_best else ''}")
        if is_best:
            run.best = value
            if folder is not None and self._is_first_process:
                model_folder.save_pretrained(run.average, folder / "best")

    def say(self, line: str) -> None:
        """A line for the user, above the bar if there is one."""
        if not self.quiet:
            self._bar.write(line, file=sys.stderr)

    def _write_line(self, numbers: dict[str, float]) -> None:
        if self._is_first_process and self.folder is not None:
            with open(self.folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(numbers) + "\n")
        if self.tensorboard is not None:
            for name, number in numbers.items():
                if name != "iteration":
                    self.tensorboard.add_scalar(name, number, self.run.iteration)
