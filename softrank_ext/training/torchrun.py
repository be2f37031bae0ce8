"""The processes that train or evaluate together, as torchrun starts them, and the signals that ask them to stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from softrank_ext.checks import check_device


class Processes(NamedTuple):
    """This process's number, how many there are, and its device."""

    rank: int
    world: int
    device: torch.device

    def wait(self) -> None:
        """Return when all processes have come here."""
        if self.world > 1:
            dist.barrier()

    def is_anywhere(self, claim: bool) -> bool:
        """Whether the claim is true in any process; all of them get the same answer."""
        if self.world == 1:
            return claim
        claims = torch.tensor(float(claim), device=self.device)
        dist.all_reduce(claims, dist.ReduceOp.MAX)
        return bool(claims > 0)


# Groups that an error has ended are kept. The traceback holds DistributedDataParallel; if that were the last to let go
# of the group, it would wait, with Python's lock held, for threads that may be waiting for the lock to drop what the
# error left pending: a deadlock, seen after another process was killed.
_GROUPS_OF_ERRORS: list[object] = []


@contextmanager
def processes(device: str | torch.device | None) -> Iterator[Processes]:
    """Join torchrun's other processes if there are any; device: by default a GPU if there is one."""
    is_cuda = torch.cuda.is_available() if device is None else check_device(device).type == "cuda"
    is_started_here = "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized()
    if is_started_here:
        dist.init_process_group("nccl" if is_cuda else "gloo", timeout=timedelta(minutes=30))
    try:
        if not dist.is_initialized():
            yield Processes(0, 1, torch.device(device or ("cuda" if is_cuda else "cpu")))
            return
        local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        if is_cuda:
            torch.cuda.set_device(local)
        own = torch.device("cuda", local) if is_cuda else torch.device("cpu")
        yield Processes(dist.get_rank(), dist.get_world_size(), own)
    except BaseException:
        if is_started_here:
            _GROUPS_OF_ERRORS.append(dist.group.WORLD)
        raise
    finally:
        if is_started_here:
            dist.destroy_process_group()


class Stop:
    """Inside, SIGINT and SIGTERM ask to stop after the iteration at hand; a second SIGINT stops at once."""

    def __enter__(self) -> "Stop":
        self._asked = self._is_at_once = False
        self._before: dict[int, Callable[..., Any] | int | None] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: object) -> None:
        was_asked, self._asked = self._asked, True
        if (was_asked and number == signal.SIGINT) or self._is_at_once:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, the first signal raises KeyboardInterrupt too: for what may take long and is not kept."""
        self._is_at_once = True
        try:
            yield
        finally:
            self._is_at_once = False

    def is_asked(self, here: Processes) -> bool:
        """Whether any process was asked; all of them get the same answer."""
        return here.is_anywhere(self._asked)
