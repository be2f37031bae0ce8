"""A training run struck at every file operation, then resumed: every file must be that of an undisturbed run.

    python python_tests/attack/crash_points.py              # every point of a run and of a restart
    python python_tests/attack/crash_points.py --twice      # also struck again while it is resumed
    python python_tests/attack/crash_points.py --stride 9   # every ninth point

Runs are children of this process, made by fork. After each strike the models in the folder must load, or not be there
yet. Prints one line of JSON with the counts; exits 1 if anything was lost.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch._dynamo  # as the optimizer does, which takes seconds: once here, not in every child
from synthetic_runs import QUICK, tiny_model
from synthetic_tasks import SortNumbers

from attack.io_faults import KINDS, IoFaults, Kind
from softrank_ext import model_folder
from softrank_ext.atomic_files import read_files
from softrank_ext.training import has_run, train

# Two evaluations, of which the first writes best/, and three checkpoints: at the start, halfway and at the end.
CONFIG = dataclasses.replace(QUICK, evaluate_every=4, evaluate_count=6, prefetch=False)
_TIMES = ("seconds", "items_per_second")
FINISHED, FAILED, BROKEN = 0, 3, 4


class Strike(NamedTuple):
    """What happens to a run: a fault of a kind at a point, and perhaps a second one while it is resumed."""

    resume: Literal["auto", "restart"]
    at: int
    kind: Kind
    name: str
    again: int | None = None

    def __str__(self) -> str:
        then = "" if self.again is None else f", then at point {self.again} of the resumed run"
        return f"{self.kind} at point {self.at} ({self.name}, resume={self.resume}){then}"


def main() -> int:
    """Run as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1, help="take every so many-th point")
    parser.add_argument("--twice", action="store_true", help="strike the resumed run as well")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        whole = Path(work) / "whole"
        points = _points(Path(work), lambda: _train(whole, False))
        restart = _points(Path(work), lambda: _train(_copy(whole, Path(work) / "counted"), "restart"))
        # A restarted run is like any other from its first checkpoint on.
        restart = restart[: next(at for at, name in enumerate(restart) if name.startswith("open metrics"))]
        strikes = list(_strikes(points, restart, options.twice))[:: options.stride]
        with multiprocessing.get_context("fork").Pool(options.processes) as pool:
            tasks = [(strike, whole, Path(work) / str(number)) for number, strike in enumerate(strikes)]
            lost = [line for lines in pool.starmap(_defects_of, tasks, chunksize=1) for line in lines]
    for line in lost:
        print(line, file=sys.stderr)
    print(json.dumps({"job": "crash points", "tried": len(strikes), "defects": len(lost)}))
    return 1 if lost else 0


def _strikes(points: list[str], restart: list[str], twice: bool) -> Iterator[Strike]:
    resumes: tuple[tuple[Literal["auto", "restart"], list[str]], ...] = (("auto", points), ("restart", restart))
    for resume, names in resumes:
        for at, name in enumerate(names):
            for kind in KINDS:
                if kind != "torn" or "write" in name:
                    yield Strike(resume, at, kind, name)
                if twice and kind == "kill" and resume == "auto":
                    yield from (Strike(resume, at, kind, name, again) for again in range(0, 20, 2))


def _defects_of(strike: Strike, whole: Path, root: Path) -> list[str]:
    """Everything that a strike has lost."""
    root.mkdir()
    run = root / "run"
    if strike.resume == "restart":
        _copy(whole, run)
    lost = list(_struck(run, strike, strike.at))
    if strike.again is not None:
        lost += _struck(run, strike, strike.again)
    lost += _resumed(run, strike, contents(whole))
    shutil.rmtree(root)
    return [f"{strike}: {line}" for line in lost]


def contents(folder: Path) -> dict[str, object]:
    """All files of a run, without what differs from run to run: times, temporary names, order in headers."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name, data = str(path.relative_to(folder)), path.read_bytes()
            if name == "metrics.jsonl":
                lines = [json.loads(line) for line in data.splitlines()]
                found[name] = [{key: line[key] for key in line if key not in _TIMES} for line in lines]
            elif path.name == "manifest.json":
                found[name] = {file: entry["size"] for file, entry in json.loads(data)["files"].items()}
            elif path.suffix == ".safetensors":
                # The entries of the header come in any order; that the hash is right is seen by loading the file.
                size = int.from_bytes(data[:8], "little")
                found[name] = json.loads(data[8 : 8 + size]), data[8 + size :]
            else:
                found[name] = data
    return found


def _train(folder: Path, resume: Any, at: int | None = None, kind: Kind = "kill") -> list[str]:
    """A whole run, struck at a point; returns the names of the points."""
    model = tiny_model()
    faults = IoFaults(folder, at, kind).install()
    train(model, SortNumbers(3), CONFIG, folder, resume=resume, device="cpu", quiet=True)
    return faults.names


def _in_child(call: Callable[[], object], root: Path) -> int:
    """Call in a child process; FINISHED, FAILED (an OSError), BROKEN (another error), or the negative signal."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            sys.stderr = open(root / "errors", "w")  # noqa: SIM115 (the child's, until it ends)
            (root / "answer").write_text(json.dumps(call()))
            code = FINISHED
        except OSError:
            code = FAILED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _points(root: Path, call: Callable[[], list[str]]) -> list[str]:
    """Names of the points of an undisturbed run."""
    code = _in_child(call, root)
    if code != FINISHED:
        raise RuntimeError(f"an undisturbed run ended with {code}: {(root / 'errors').read_text()}")
    names: list[str] = json.loads((root / "answer").read_text())
    return names


def _struck(run: Path, strike: Strike, at: int) -> Iterator[str]:
    """Let a run be struck; yields what is wrong with the folder it leaves."""
    code = _in_child(lambda: _train(run, strike.resume, at, strike.kind), run.parent)
    allowed = (FAILED, FINISHED) if strike.kind == "full" else (-signal.SIGKILL,)
    if code not in allowed and not (code == FINISHED and strike.again is not None):
        yield f"the run ended with {code}: {(run.parent / 'errors').read_text()}"
    for part in ("last", "best"):
        try:
            model_folder.load_model(run / part)
        except FileNotFoundError:
            # A restart deletes the run; before the first checkpoint there is none.
            if strike.resume != "restart" and part == "last" and has_run(run):
                yield f"there is a run but no model in {part}"
        except ValueError as error:
            yield str(error)


def _resumed(run: Path, strike: Strike, wanted: dict[str, object]) -> Iterator[str]:
    """Let a run be resumed without faults; yields what differs from the wanted files."""
    code = _in_child(lambda: _train(run, strike.resume), run.parent)
    if code != FINISHED:
        yield f"the resumed run ended with {code}: {(run.parent / 'errors').read_text()}"
        return
    got = contents(run)
    for name in sorted(got.keys() | wanted.keys()):
        if got.get(name) != wanted.get(name):
            yield f"{name} {'is missing' if name not in got else 'is left over' if name not in wanted else 'differs'}"
    for name in ("last/training.safetensors", "last/model.safetensors", "best/model.safetensors"):
        folder, file = name.split("/")
        read_files(run / folder, (file,))


def _copy(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to


if __name__ == "__main__":
    sys.exit(main())
