"""Runs in folders that are full, cannot be written to or are in use, and a torchrun whose process is killed.

    python python_tests/attack/run_folders.py

Each case must end with one sentence, and a run that can be resumed must end with the files of an undisturbed one. Full
disks and read-only ones are file systems in memory, mounted in a namespace of their own (util-linux' unshare): where
that is not permitted these cases are left out, which is said.
Prints one line of JSON; exits 1 if there is a defect.
"""

import contextlib
import json
import os
import resource
import shutil
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
NAMESPACE = ["unshare", "--map-root-user", "--mount"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", sys.executable]


def start(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    command = [sys.executable, *launcher, "-c", TRAIN, TESTS, str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(folder: Path, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a run."""
    child = start(folder, *words)
    _, said = child.communicate(timeout=300)
    return child.returncode, said


def refuses(outcome: tuple[int, str], sentence: str) -> str:
    """What is wrong with a run that should have ended with a sentence, "" for nothing."""
    code, said = outcome
    is_told = code == 1 and said.count("\n") == 1 and said.startswith("refused: ") and sentence in said
    return "" if is_told else f"exit code {code}: {said}"


def equals(outcome: tuple[int, str], folder: Path, wanted: dict[str, bytes]) -> str:
    """What is wrong with a run that should have ended with these files, "" for nothing."""
    code, said = outcome
    if code != 0:
        return f"exit code {code}: {said}"
    return "" if contents(folder) == wanted else "its files are not those of an undisturbed run"


def mount(folder: Path, options: str) -> None:
    """A file system in memory at the folder, or new options of the one there."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def _defects_of_disks(root: Path, wanted: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    """The cases that need file systems of their own."""
    # A run needs about 270 kB, and a checkpoint's 210 kB twice while it is replaced.
    for size in (32, 160, 384):
        disk = root / f"disk of {size} kB"
        mount(disk, f"size={size}k")
        run = disk / "run"
        yield f"full at {size} kB", refuses(finished(run), "No space left on device")
        mount(disk, "remount,size=4m")
        yield f"full at {size} kB, resumed", equals(finished(run), run, wanted)

    disk = root / "filled"
    mount(disk, "size=2m")
    child = start(disk / "run", "--slow")
    while not (disk / "run" / "last" / "manifest.json").exists() and child.poll() is None:
        time.sleep(0.02)
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    _, said = child.communicate(timeout=300)
    yield "filled amid a run", refuses((child.returncode, said), f"No space left on device: '{disk}")
    (disk / "filler").unlink()
    yield "filled amid a run, resumed", equals(finished(disk / "run"), disk / "run", wanted)

    disk = root / "read-only"
    mount(disk, "size=4m")
    child = start(disk / "run", "--slow")
    while not (disk / "run" / "last" / "manifest.json").exists() and child.poll() is None:
        time.sleep(0.02)
    child.kill()
    child.communicate()
    mount(disk, "remount,ro")  # for root too
    yield "read-only", refuses(finished(disk / "run"), "Read-only file system")
    yield "read-only, a new run", refuses(finished(disk / "other"), "Read-only file system")
    load = [sys.executable, "-c", f"import softrank_ext; softrank_ext.from_pretrained({str(disk / 'run' / 'last')!r})"]
    loaded = subprocess.run(load, capture_output=True, text=True)
    yield "read-only, a model in it", loaded.stderr
    mount(disk, "remount,rw")
    yield "read-only, then resumed", equals(finished(disk / "run"), disk / "run", wanted)


def _defects(root: Path, may_mount: bool) -> Iterator[tuple[str, str]]:
    """Name of each case, and what is wrong with it, "" for nothing."""
    whole = root / "whole"
    code, said = finished(whole)
    yield "undisturbed", "" if code == 0 else said
    wanted = contents(whole)

    # 1. Files may not grow, which needs no mount.
    yield "limited files", refuses(finished(root / "full", "--small"), "cannot write")
    yield "limited files, resumed", equals(finished(root / "full"), root / "full", wanted)
    if may_mount:
        yield from _defects_of_disks(root, wanted)

    # 2. A second run in the folder, while the first one lives.
    first = start(root / "shared", "--slow")
    while not (root / "shared" / "run.lock").exists() and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGSTOP)  # it must not be done before the second one has started
    code, said = finished(root / "shared")
    first.send_signal(signal.SIGCONT)
    yield "second run", "" if code == 1 and f"process {first.pid}" in said else said or "the second run was let in"
    _, said = first.communicate(timeout=300)
    yield "first run", equals((first.returncode, said), root / "shared", wanted)

    # 3. Killed at a random time, three times, then resumed.
    for wait in (0.2, 0.7, 1.2):
        child = start(root / "killed", "--slow")
        while not (root / "killed" / "run.lock").exists() and child.poll() is None:
            time.sleep(0.02)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.communicate()
    yield "killed, resumed", equals(finished(root / "killed"), root / "killed", wanted)

    # 4. A file in the way.
    (root / "file").write_text("")
    yield "no folder", refuses(finished(root / "file" / "run"), "")

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


def why_no_mounts() -> str:
    """Why this process may not mount file systems where no other one sees them; "" if it may."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, text=True)
    return tried.stderr.strip()


def main() -> int:
    """Try all cases; returns the exit code."""
    may_mount = "--mounts" in sys.argv
    if not may_mount:
        reason = why_no_mounts()
        if not reason:
            return subprocess.run([*NAMESPACE, sys.executable, __file__, "--mounts"]).returncode
        print(f"no full and no read-only disk is tried, as nothing may be mounted here: {reason}", file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as work:
        try:
            found = list(_defects(Path(work), may_mount))
        finally:
            for path in Path(work).iterdir():
                if path.is_mount():
                    subprocess.run(["umount", str(path)], check=True)
    for name, wrong in found:
        if wrong:
            print(f"{name}: {wrong}", file=sys.stderr)
    print(json.dumps({"job": "run folders", "tried": len(found), "defects": sum(bool(wrong) for _, wrong in found)}))
    return 1 if any(wrong for _, wrong in found) else 0


if __name__ == "__main__":
    sys.exit(main())
