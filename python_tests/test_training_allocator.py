"""Freed memory is kept: a large tensor made again touches no fresh pages."""

import platform
import subprocess
import sys

import pytest
from synthetic_runs import tiny_model
from synthetic_tasks import SortNumbers

from softrank_ext import TrainConfig
from softrank_ext.training import allocator, keep_freed_memory, loop, train

FAULTS = """
import resource, sys
import torch
from softrank_ext.training import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):  # what Python allocates on the way may take a piece of the first block
    torch.ones(2**25)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_memory_is_kept_for_the_next_allocation(tmp_path):
    """Three times 128 MiB are 98,304 pages of 4 KiB, or 192 of 2 MiB."""

    def faults(way: str) -> int:
        command = [sys.executable, "-c", FAULTS, way]
        return int(subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout)

    # Of three processes: where the heap happens to end at a mapping it goes on elsewhere, once in many.
    kept, default = (min(faults(way) for _ in range(3)) for way in ("keep", "default"))
    assert kept < 100 < default


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


def test_training_sets_it_only_if_asked(monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: calls.append(1))
    for keep_memory, number in ((False, 0), (True, 1)):
        train(tiny_model(), SortNumbers(3), TrainConfig(1, 4, keep_memory=keep_memory), quiet=True)
        assert len(calls) == number
