"""Runs in folders that are full, cannot be written to or are in use, and a torchrun whose process is killed.

    python python_tests/attack/run_folders.py

Each case must end with one sentence, and a run that can be resumed must end with the files of an undisturbed one.
Prints one line of JSON; exits 1 if there is a defect.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.crash_points import contents

TRAIN = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from attack.crash_points import CONFIG
from synthetic_runs import tiny_model
from synthetic_tasks import SortNumbers
from softrank_ext.training import train

if "--small" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

class Slow(SortNumbers):
    def training_batch(self, seed, step, size):
        time.sleep(0.3 if "--slow" in sys.argv else 0)
        return super().training_batch(seed, step, size)

try:
    train(tiny_model(), Slow(3, name="numbers"), CONFIG, sys.argv[2], resume="auto", quiet=True, device="cpu")
except (ValueError, OSError) as error:
    sys.exit(f"refused: {error}")
"""
TESTS = str(Path(__file__).parents[1])
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def start(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    script = next(path for path in folder.parents if path.is_dir()) / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, *launcher, str(script), TESTS, str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a run."""
    child = start(folder, *words)
    _, said = child.communicate(timeout=300)
    return child.returncode, said


def _defects(root: Path) -> Iterator[tuple[str, str]]:
    """Name of each case, and what is wrong with it, "" for nothing."""
    whole = root / "whole"
    code, said = finished(whole)
    yield "undisturbed", "" if code == 0 else said
    wanted = contents(whole)

    # 1. Files may not grow: as a full disk, before training and amid it.
    code, said = finished(root / "full", "--small")
    yield "full disk", "" if code == 1 and "refused: " in said and "cannot write" in said else said
    code, said = finished(root / "full")
    yield "full disk, resumed", "" if code == 0 and contents(root / "full") == wanted else said

    # 2. A second run in the folder, while the first one lives.
    first = start(root / "shared", "--slow")
    while not (root / "shared" / "run.lock").exists() and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGSTOP)  # it must not be done before the second one has started
    code, said = finished(root / "shared")
    first.send_signal(signal.SIGCONT)
    yield "second run", "" if code == 1 and f"process {first.pid}" in said else said or "the second run was let in"
    _, said = first.communicate(timeout=300)
    yield "first run", "" if first.returncode == 0 and contents(root / "shared") == wanted else said

    # 3. Killed at a random time, three times, then resumed.
    for wait in (0.2, 0.7, 1.2):
        child = start(root / "killed", "--slow")
        while not (root / "killed" / "run.lock").exists() and child.poll() is None:
            time.sleep(0.02)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    code, said = finished(root / "killed")
    yield "killed, resumed", "" if code == 0 and contents(root / "killed") == wanted else said or "files differ"

    # 4. A folder that cannot be written to; root may write anywhere, so there it is a file in the way.
    (root / "file").write_text("")
    code, said = finished(root / "file" / "run")
    yield "no folder", "" if code == 1 and "refused: " in said else said

    # 5. One process of torchrun is killed; the others end with it, and a restart goes on.
    child = start(root / "two", "--slow", launcher=tuple(TORCHRUN))
    while not (root / "two" / "last" / "manifest.json").exists() and child.poll() is None:
        time.sleep(0.05)
    ranks = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True).stdout.split()
    if ranks:
        os.kill(int(ranks[-1]), signal.SIGKILL)
    child.communicate(timeout=300)
    again = start(root / "two", launcher=tuple(TORCHRUN))
    _, said = again.communicate(timeout=300)
    is_whole = again.returncode == 0 and contents(root / "two").keys() == wanted.keys()
    yield "killed rank of torchrun, restarted", "" if is_whole and child.returncode != 0 else said or "it went on"


def main() -> int:
    """Try all cases; returns the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as work:
        found = list(_defects(Path(work)))
    for name, wrong in found:
        if wrong:
            print(f"{name}: {wrong}", file=sys.stderr)
    print(json.dumps({"job": "run folders", "tried": len(found), "defects": sum(bool(wrong) for _, wrong in found)}))
    return 1 if any(wrong for _, wrong in found) else 0


if __name__ == "__main__":
    sys.exit(main())
