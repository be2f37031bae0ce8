"""The only clock of the benchmarks: warm-up, fixed threads, repeats, best and median and spread; memory."""

import os
import platform
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

_clock = torch.device("cpu")  # whose clock is read

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the best, the median and the spread (the middle half's width over the median) of repeats."""

    best: float
    median: float
    spread: float


def timed(call: Callable[[], object], *, repeats: int = 30, seconds: float = 0.2) -> Timing:
    """Time a call after a warm-up, `repeats` times; a call shorter than a tick is repeated within a repeat.

    seconds: about how long all repeats together may take; calls too long for that are repeated at least three times.
    """
    return timed_together({"call": call}, repeats=repeats, seconds=seconds)["call"]


def timed_once(call: Callable[[], object]) -> float:
    """Seconds of a single call, for calls that last many seconds; warm up with a smaller one."""
    return _seconds_of(call, 1)


def processor_seconds(call: Callable[[], object]) -> float:
    """Seconds of all threads of this process in a single call: what others do on the machine hardly changes them."""
    start = time.process_time()
    call()
    return time.process_time() - start


class Deadline:
    """A moment `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def has_passed(self) -> bool:
        """Whether it is over."""
        return time.perf_counter() >= self._end


def timed_together(
    calls: Mapping[Name, Callable[[], object]], *, repeats: int = 30, seconds: float = 0.2
) -> dict[Name, Timing]:
    """Time calls in turns, so that all of them see the same slow spells of the machine and ratios stay fair.

    A turn begins with a call that is not timed, as the others have filled the processor's caches with their data. Calls
    longer than a tenth of a second do without: it makes no difference to them.
    """
    inner, is_short = {}, {}
    for name, call in calls.items():
        call()
        first = _seconds_of(call, 1)
        is_short[name] = first < 0.1
        # A repeat lasts at least 200 microseconds, far above the clock's resolution.
        inner[name] = max(1, min(1000, round(200e-6 / max(first, 1e-9))))
        repeats = max(3, min(repeats, int(seconds / max(first * inner[name], 1e-9))))
    measured: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            if is_short[name]:
                call()
            measured[name].append(_seconds_of(call, inner[name]))
    return {name: _summary(values) for name, values in measured.items()}


def use_clock_of(device: torch.device) -> None:
    """Time by the host's clock, or by the events of a GPU."""
    global _clock
    _clock = device


def _seconds_of(call: Callable[[], object], times: int) -> float:
    if _clock.type == "cuda":
        return _gpu_seconds_of(call, times)
    _synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    _synchronize()
    return (time.perf_counter() - start) / times


def _gpu_seconds_of(call: Callable[[], object], times: int) -> float:
    """By the GPU's own clock: from before the first launch until the last one is done."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


def measured_peaks() -> dict[str, float]:
    """Floating-point operations per second of a large matrix product, bytes per second of a large copy."""
    matrix = torch.rand(4096, 4096)
    numbers = torch.rand(2**26)
    target = torch.empty_like(numbers)
    return {
        "matmul_gflops": 2 * 4096**3 / timed(lambda: matrix @ matrix, repeats=3, seconds=3).best / 1e9,
        "copy_gbytes": 8 * len(numbers) / timed(lambda: target.copy_(numbers), repeats=5, seconds=2).best / 1e9,
    }


def launches_of(call: Callable[[], object]) -> int:
    """Kernels and copies that a call starts on a GPU, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        _synchronize()
    return sum(event.count for event in profile.key_averages() if event.device_type.name == "CUDA")


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _summary(values: list[float]) -> Timing:
    ascending = sorted(values)
    quarter = len(ascending) // 4
    middle = median(ascending)
    return Timing(ascending[0], middle, (ascending[-1 - quarter] - ascending[quarter]) / middle)


def seconds_over_starts(clocks: Iterable[float]) -> float:
    """Seconds that a run took in all, from what its clock showed line by line; it starts from 0 at every start."""
    total = last = 0.0
    for seconds in clocks:
        total += last if seconds < last else 0.0
        last = seconds
    return total + last


def resident(what: str) -> int:
    """Bytes of this process: resident now (VmRSS), or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def fix_threads(threads: int) -> None:
    """Let torch, and the kernels that use its threads, run on so many threads."""
    torch.set_num_threads(threads)


def machine() -> dict[str, object]:
    """What the times were measured on."""
    info: dict[str, object] = {
        "processor": _processor(),
        "cores": len(_cores()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
