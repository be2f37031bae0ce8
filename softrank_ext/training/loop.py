"""Training: the loop around a model's loss (`objectives`).

An update is a function of (weights, seed, iteration): batches, times, noise and dropout are keyed by them, so a
resumed run repeats the uninterrupted one bit for bit, and several processes (torchrun) train on the batch that one
would. Orders are `order[place] = item`. The run's folder is described in `run_folder`.
"""

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from softrank_ext.batch import Batch
from softrank_ext.checks import check_bool, check_choice, check_has, check_instance
from softrank_ext.evaluation import evaluate
from softrank_ext.model import SoftRankModel
from softrank_ext.processes import Bridge
from softrank_ext.tasks import Task
from softrank_ext.training import objectives
from softrank_ext.training.allocator import keep_freed_memory
from softrank_ext.training.config import TrainConfig
from softrank_ext.training.cost_objectives import Preference, Reinforce, SelfLabel
from softrank_ext.training.drafts import Drafter
from softrank_ext.training.draws import Drawer, Drawn, RankingLoss
from softrank_ext.training.reader_pool import ReaderPool
from softrank_ext.training.report import Report, tensorboard_writer
from softrank_ext.training.run_folder import RESUMES, Model, Resume, Run, open_run
from softrank_ext.training.run_lock import run_lock
from softrank_ext.training.torchrun import Processes, Stop, processes


@dataclass(frozen=True, eq=False, repr=False)
class TrainResult:
    """What a run ended with: the model to use (in eval mode), the last iteration, whether it was the last one asked
    for, the loss of the last report and the metrics of the last evaluation."""

    model: Model
    iteration: int
    is_finished: bool
    loss: float
    metrics: dict[str, float]

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items()) or "none"
        ending = "finished" if self.is_finished else "stopped"
        return f"TrainResult({ending} at iteration {self.iteration}, loss {self.loss:.4g}, metrics: {metrics})"


def train(
    model: Model,
    task: Task,
    config: TrainConfig = TrainConfig(),
    output: str | Path | None = None,
    *,
    resume: Resume = False,
    device: str | torch.device | None = None,
    command: str | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train the model on the task's batches.

    output: the run's folder, None to write nothing. resume: what to do if that folder already holds a run. False:
    raise ValueError. True: go on from its last checkpoint, and raise FileNotFoundError if there is none. "auto": go on
    if there is a run, else start one. "restart": delete the run and start anew. A finished run that is resumed returns
    its result at once. device: where to train, by default a GPU if there is one. command: the command line, for the
    records and for the advice how to go on. quiet: nothing on stderr. Started by torchrun, the processes share each
    batch and the evaluations, and the first of them writes. SIGINT (Ctrl-C) or SIGTERM ends the run after the update at
    hand and its checkpoint; a second one ends it at once.
    """
    check_instance("model", model, nn.Module)
    check_has("task", task, "training_batch", "test_batches", "score")
    check_instance("config", config, TrainConfig)
    check_bool("quiet", quiet)
    check_choice("resume", resume, RESUMES)
    if resume is not False and output is None:
        raise ValueError("resume needs the output folder of the run")
    folder = None if output is None else Path(output)
    writer = tensorboard_writer(config, folder)
    with (
        processes(device) as here,
        torch.random.fork_rng(devices=[here.device] if here.device.type == "cuda" else []),
        run_lock(folder, here, make=resume is not True),
    ):
        if config.batch_size % here.world != 0:
            raise ValueError(f"batch_size must be a multiple of the {here.world} processes, got {config.batch_size}")
        if config.keep_memory:
            keep_freed_memory()
        model.to(here.device).train()
        pool = ReaderPool(model, task, config) if config.pool > 0 else None
        loss_module = loss_of(model, config)
        drawer = None
        if not isinstance(config.objective, str):
            drawer = Drawer(model, task, config.objective, config.seed)
            if drawer.kept is not None:
                loss_module.add_module("kept", drawer.kept)
        loss_module = loss_module.to(here.device).train()
        run = Run(model, task, config, here.device, loss_module)
        if folder is not None:
            open_run(folder, run, resume, here, command)
        if run.is_finished:
            if not quiet and here.rank == 0:
                print(f"the run in {folder} is finished: nothing to do", file=sys.stderr)
            return _result_of(run)
        if drawer is not None and isinstance(config.objective, SelfLabel) and config.objective.drawn_by == "average":
            drawer.model = run.average
        drafter = None
        if config.drafts > 0:
            average = cast(SoftRankModel, run.average)  # others have no parts
            drafter = Drafter(average, task, config.partial, config.drafts, config.seed)
        denoising = loss_module if isinstance(loss_module, objectives.DenoisingLoss) else None
        if here.world > 1:
            loss_module = DistributedDataParallel(loss_module, find_unused_parameters=pool is not None)
        own = slice(here.rank * config.batch_size // here.world, (here.rank + 1) * config.batch_size // here.world)
        with Stop() as stop, Report(run, folder, writer, here, quiet) as report:
            report.drawer, report.denoising = drawer, denoising
            for batch in _batches(task, config, run.iteration + 1, pool):
                iteration = run.iteration + 1
                # 1. Data; dropout's random numbers belong to this iteration alone.
                part = _part_of(batch, own, here.device)
                if pool is not None:
                    part = pool.read(part, iteration)
                samples = torch.arange(config.batch_size, device=here.device)[own] + (iteration - 1) * config.batch_size
                torch.manual_seed(_seed_of(config.seed, iteration, here.rank))
                given: Batch | Drawn = part
                if drawer is not None:  # Ctrl-C inside a cost ends the run with the update before
                    try:
                        given = drawer.of(part, samples, iteration, nullcontext if here.world > 1 else stop.at_once)
                    except KeyboardInterrupt:
                        if not stop.is_asked(here):
                            raise
                        if folder is not None:
                            run.save(folder, here)
                        break
                if drafter is not None and isinstance(given, Batch):
                    given = drafter.of(given, samples)
                # 2. to 4. The noisy orders and the log-probability of their targets: DenoisingLoss.forward.
                loss, loss_per_place = loss_module(given, config.seed, samples)
                # 5. Optimizer step.
                gradient_norm = run.update(loss)
                report.add(loss, loss_per_place, gradient_norm, batch)
                is_last = run.is_finished or stop.is_asked(here)
                if iteration % config.log_every == 0 or is_last:
                    report.write()
                if config.evaluate_every and (iteration % config.evaluate_every == 0 or run.is_finished):
                    report.write_evaluation(_evaluate(run, here))
                if folder is not None and (iteration % config.checkpoint_every == 0 or is_last):
                    run.save(folder, here)
                report.restart_clock()
                if is_last:
                    break
            if not run.is_finished:
                kept = "nothing was written" if folder is None else f"saved in {folder}; go on with: {_advice(command)}"
                report.say(f"stopped after iteration {run.iteration} of {config.iterations}, {kept}")
        return _result_of(run)


def _result_of(run: Run) -> TrainResult:
    return TrainResult(run.average.eval(), run.iteration, run.is_finished, run.loss, dict(run.metrics))


def _advice(command: str | None) -> str:
    """How to go on with an interrupted run."""
    if command is None:
        return "resume=True"
    words = [word for word in shlex.split(command) if word not in ("--resume", "--auto-resume", "--restart")]
    return shlex.join([*words, "--resume"])


def _seed_of(seed: int, iteration: int, rank: int) -> int:
    """A 63-bit seed that differs between iterations and processes."""
    return ((seed * 1_000_003 + iteration) * 65_537 + rank) % 2**63


def _batches(task: Task, config: TrainConfig, first: int, pool: ReaderPool | None) -> Iterator[Batch]:
    """The batches of iterations `first` to the last, each made while the one before is trained on."""
    iterations = range(first, config.iterations + 1)

    def made(iteration: int) -> Batch:
        if pool is not None:
            return pool.batch(iteration)
        return task.training_batch(config.seed, iteration, config.batch_size)

    if not config.prefetch:
        for iteration in iterations:
            yield _checked(made(iteration), config)
        return
    with ThreadPoolExecutor(1, "softrank-batches") as maker:
        upcoming = [maker.submit(made, iteration) for iteration in iterations[:1]]
        for iteration in iterations:
            batch = upcoming.pop().result()
            if iteration < config.iterations:
                upcoming.append(maker.submit(made, iteration + 1))
            yield _checked(batch, config)


def _checked(batch: Batch, config: TrainConfig) -> Batch:
    """The batch, if it has the size asked for, right orders unless costs stand in, and its first items at place 0."""
    size = config.batch_size
    if isinstance(config.objective, str) and not batch.has_labels():
        raise ValueError(
            f"the task has no right orders: objective must be SelfLabel(...), Reinforce(...) or Preference(...), "
            f"got {config.objective!r}"
        )
    if len(batch.order) != size or len(batch.items) != size:
        raise ValueError(f"the task must make batches of {size} instances, got {len(batch.order)}")
    if batch.first is not None and not torch.equal(batch.first, batch.order[:, 0]):
        raise ValueError("batch.first must be the items at place 0 of batch.order")
    return batch


def _part_of(batch: Batch, rows: slice, device: torch.device) -> Batch:
    """Some instances of a batch, on the device, without the extras but for their numbers in the data."""

    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[rows].to(device, non_blocking=True)

    return Batch(
        batch.items[rows].to(device, non_blocking=True), batch.order[rows].to(device, non_blocking=True),
        part(batch.mask), part(batch.first), part(batch.known),
        {"instance": batch.extras["instance"][rows].to(device)} if "instance" in batch.extras else {},
    )  # fmt: skip


def loss_of(model: Model, config: TrainConfig) -> nn.Module:
    """The module that a model is trained with: batch, seed and sample numbers -> its loss, and the loss per place."""
    if isinstance(config.objective, Reinforce | Preference):
        return RankingLoss(model, config.objective)
    own = model.own_loss()
    if own is not None:
        return own
    model = cast(SoftRankModel, model)
    if config.objective == "lookalike":
        return objectives.LookalikeLoss(model, noisy_orders=config.noisy_orders, times=config.times)
    return objectives.DenoisingLoss(
        model, noisy_orders=config.noisy_orders, times=config.times, partial=config.partial,
        prior_share=config.prior_share,
    )  # fmt: skip


@torch.no_grad()
def held_out_loss(model: Model, task: Task, config: TrainConfig) -> tuple[Tensor, int]:
    """Sum of the loss per place over this process's share of the held-out batches, and their number.

    The noise is the same at every call, so that two models are compared on the same noisy orders.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    device = next(model.parameters()).device
    loss_module = loss_of(
        model,
        dataclasses.replace(
            config, objective="likelihood", noisy_orders=1, times="drawn", prior_share=0.0, partial=0.0, drafts=0.0
        ),
    )
    was_training = model.training
    model.eval()
    total, number, first = torch.zeros((), dtype=torch.float64), 0, 0
    for index, batch in enumerate(task.test_batches(held_out_count(task, config), config.batch_size, 0)):
        size = len(batch.order)
        if index % world == rank:
            samples = torch.arange(first, first + size, device=device)
            _, per_place = loss_module(_part_of(batch, slice(None), device), config.seed, samples)
            total, number = total + size * per_place.double().cpu(), number + size
        first += size
    model.train(was_training)
    return total, number


def held_out_count(task: Task, config: TrainConfig) -> int:
    """How many held-out instances an evaluation takes: as many as wanted, or as there are."""
    known: int | None = getattr(task, "test_count", None)
    return config.evaluate_count if known is None else min(config.evaluate_count, known)


def _evaluate(run: Run, here: Processes) -> dict[str, float]:
    """Means of the task's metrics and the held-out loss per place, over all processes."""
    config, metrics = run.config, {}
    if isinstance(config.objective, str):
        sums = torch.tensor([float(sum_) for sum_ in held_out_loss(run.average, run.task, config)], dtype=torch.float64)
        metrics["loss"] = _mean(sums.to(run.device), here)
    steps = config.evaluate_steps
    if steps is None and isinstance(config.objective, Reinforce | Preference):
        steps = 1 if isinstance(run.average.process, Bridge) else None  # what they train
    row = evaluate(
        run.average, run.task, count=held_out_count(run.task, config), batch_size=config.batch_size,
        steps=steps, decode=config.evaluate_decode,
    )  # fmt: skip
    scores = row["metrics"]
    assert isinstance(scores, dict)
    metrics |= {name: score["mean"] for name, score in scores.items()}
    if not isinstance(config.objective, str):
        for name, sums in held_out_costs(run.average, run.task, config).items():
            metrics[name] = _mean(sums.to(run.device), here)
    best_metric = run.best_metric
    if best_metric not in metrics:
        raise ValueError(f"best_metric must be one of {', '.join(metrics)}, got {best_metric!r}")
    return metrics


def _mean(sums: Tensor, here: Processes) -> float:
    """The mean over all processes; sums (2,): of this process's values, and their number."""
    if here.world > 1:
        dist.all_reduce(sums)
    return float(sums[0] / sums[1])


@torch.no_grad()
def held_out_costs(model: Model, task: Task, config: TrainConfig) -> dict[str, Tensor]:
    """Sums (2,) over this process's share of the held-out instances: of the mean and the lowest cost of the objective's
    number of draws, and how many instances there were. The draws are the same at every call."""
    assert not isinstance(config.objective, str)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    drawer = Drawer(model, task, config.objective, config.seed)
    sums = torch.zeros(3, dtype=torch.float64)
    first = 0
    for index, batch in enumerate(task.test_batches(held_out_count(task, config), config.batch_size, 0)):
        if index % world == rank:
            drawn = drawer.drawn(_part_of(batch, slice(None), next(model.parameters()).device), first)
            sums += torch.stack(
                (drawn.cost.mean(1).sum().cpu(), drawn.cost.amin(1).sum().cpu(), torch.tensor(len(drawn.cost)))
            )
        first += len(batch.order)
    return {"mean_cost": sums[[0, 2]], "best_cost": sums[[1, 2]]}
