"""What a run tells: a progress bar or lines on stderr, metrics.jsonl, TensorBoard."""

import json
import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from softrank_ext import model_folder
from softrank_ext.atomic_files import naming
from softrank_ext.batch import Batch
from softrank_ext.training.config import TrainConfig, rate_at
from softrank_ext.training.draws import Drawer, Tally
from softrank_ext.training.objectives import KINDS, DenoisingLoss
from softrank_ext.training.run_folder import METRICS_FILE, Run
from softrank_ext.training.torchrun import Processes

Writer = Callable[[str], Any]


def tensorboard_writer(config: TrainConfig, folder: Path | None) -> Writer | None:
    """TensorBoard's class of writers, or None if it is not asked for; raises ImportError if it is not installed."""
    if not config.tensorboard:
        return None
    if folder is None:
        raise ValueError("tensorboard needs an output folder")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('tensorboard is not installed: pip install "softrank_ext[tensorboard]"') from error
    writer: Writer = SummaryWriter
    return writer


class Report:
    """Means of the loss, the gradient's norm and the speed since the last report, and evaluations.

    The first process writes. folder: the run's, or None. writer: as `tensorboard_writer` gives it. quiet: nothing on
    stderr.
    """

    def __init__(self, run: Run, folder: Path | None, writer: Writer | None, here: Processes, quiet: bool) -> None:
        self.run, self.folder, self.here = run, folder, here
        self.quiet = quiet or here.rank != 0
        self._writer = writer if here.rank == 0 else None
        self._tensorboard: Any = None
        self.drawer: Drawer | None = None  # whose draws are reported
        self.denoising: DenoisingLoss | None = None  # whose losses of each kind of row are reported

    def __enter__(self) -> "Report":
        total, is_bar = self.run.config.iterations, sys.stderr.isatty() and not self.quiet
        self._bar = tqdm(total=total, initial=self.run.iteration, unit="it", disable=not is_bar)
        if self._writer is not None and self.folder is not None:
            self._tensorboard = self._writer(str(self.folder / "tensorboard"))
        self._started, self._first = time.perf_counter(), self.run.iteration
        self._clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

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
        """Report the means since the last report; raises FloatingPointError if the loss is not a finite number."""
        assert self._sums is not None
        means = self._sums / self._number
        if self.here.world > 1:
            dist.all_reduce(means)
            means = means / self.here.world
        self.run.loss, per_place, gradient_norm = means.tolist()
        if not math.isfinite(self.run.loss):
            raise FloatingPointError(
                f"the loss is {self.run.loss} at iteration {self.run.iteration}; the last checkpoint is from before. "
                "Try a lower learning_rate, a longer warmup or a smaller clip"
            )
        now, iteration, total = time.perf_counter(), self.run.iteration, self.run.config.iterations
        speed = self._items / (now - self._since)
        rate = rate_at(iteration, self.run.config)
        left = (now - self._started) / max(iteration - self._first, 1) * (total - iteration)
        drawn: dict[str, float] = {}
        if self.drawer is not None:
            drawn = self.drawer.tally.numbers(now - self._since, self.here.world, self.run.device)
            self.drawer.tally = Tally()
        self._write_line(
            {
                "iteration": iteration,
                "loss": self.run.loss,
                "loss_per_place": per_place,
                "learning_rate": rate,
                "gradient_norm": gradient_norm,
                "items_per_second": speed,
                "seconds": now - self._started,
                **self._losses_by_kind(),
                **drawn,
            }
        )
        costs = f"cost {drawn['draw_cost']:.5g}  best {drawn['best_draw_cost']:.5g}  " if drawn else ""
        if self._bar.disable:
            self.say(
                f"iteration {iteration}/{total}  loss {self.run.loss:.4f}  {costs}rate {rate:.2e}  "
                f"{speed:,.0f} items/s  {timedelta(seconds=round(left))} left"
            )
        else:
            self._bar.set_postfix_str(f"loss {self.run.loss:.4f}, {costs}rate {rate:.2e}, {speed:,.0f} items/s")
        self._clear()

    def _losses_by_kind(self) -> dict[str, float]:
        """The loss per place of rows of each kind, if parts are noised; kinds without a row are left out."""
        if self.denoising is None or self.denoising.by_kind is None:
            return {}
        sums, self.denoising.by_kind = self.denoising.by_kind, None
        if self.here.world > 1:
            dist.all_reduce(sums)
        kinds = zip(KINDS, sums.tolist(), strict=True)
        return {f"loss_{kind}": loss / places for kind, (loss, places) in kinds if places > 0}

    def write_evaluation(self, metrics: dict[str, float]) -> None:
        """Report an evaluation; keep the model if it is the best so far."""
        run, config = self.run, self.run.config
        run.metrics = metrics
        value = metrics[run.best_metric]
        is_best = run.best is None or (value < run.best if config.best_is == "lowest" else value > run.best)
        self._write_line({"iteration": run.iteration, **{f"test_{name}": number for name, number in metrics.items()}})
        numbers = "  ".join(f"{name} {number:.4f}" for name, number in metrics.items())
        self.say(f"iteration {run.iteration}  held out: {numbers}{'  (best so far)' if is_best else ''}")
        if is_best:
            run.best = value
            if self.folder is not None and self.here.rank == 0:
                model_folder.save_pretrained(run.average, self.folder / "best")

    def say(self, line: str) -> None:
        """A line for the user, above the bar if there is one."""
        if not self.quiet:
            self._bar.write(line, file=sys.stderr)

    def _write_line(self, numbers: dict[str, float]) -> None:
        if self.here.rank == 0 and self.folder is not None:
            path = self.folder / METRICS_FILE
            with naming(path), open(path, "a") as file:
                file.write(json.dumps(numbers) + "\n")
        if self._tensorboard is not None:
            for name, number in numbers.items():
                if name != "iteration":
                    self._tensorboard.add_scalar(name, number, self.run.iteration)
