"""One run per folder: a second one is refused as long as the first lives, and not longer."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import torch
from synthetic_runs import QUICK, sort_three_and_signal, tiny_model
from synthetic_tasks import SortNumbers

from softrank_ext.training import run_lock, train
from softrank_ext.training.torchrun import Processes

pytestmark = pytest.mark.usefixtures("one_thread")
HERE = Processes(0, 1, torch.device("cpu"))
HOLD = """
import sys, time
from pathlib import Path
import torch
from softrank_ext.training.run_lock import run_lock
from softrank_ext.training.torchrun import Processes
with run_lock(Path(sys.argv[1]), Processes(0, 1, torch.device("cpu")), make=True):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_refused_and_names_the_first(tmp_path):
    with run_lock.run_lock(tmp_path, HERE, make=True):
        owner = json.loads((tmp_path / "run.lock").read_text())
        assert (owner["process"], owner["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(
            ValueError,
            match=rf"output must be a folder that no other run writes into, got .*: process {os.getpid()} on",
        ):
            train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
    assert list(tmp_path.iterdir()) == []
    assert train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True).is_finished
    assert not (tmp_path / "run.lock").exists()


def test_a_killed_run_holds_nobody_up(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        with pytest.raises(
            ValueError, match=f"process {child.pid} on .* does; wait for it, stop it, or choose another"
        ):
            train(tiny_model(), SortNumbers(3), QUICK, tmp_path, resume="auto", quiet=True)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert (tmp_path / "run.lock").exists()
    assert train(tiny_model(), SortNumbers(3), QUICK, tmp_path, resume="auto", quiet=True).is_finished
    assert not (tmp_path / "run.lock").exists()


def test_the_lock_is_given_up_after_a_stop_and_after_an_error(tmp_path):
    train(tiny_model(), sort_three_and_signal(3), QUICK, tmp_path, quiet=True)
    assert not (tmp_path / "run.lock").exists()
    with pytest.raises(ValueError, match="already holds a run"):
        train(tiny_model(), SortNumbers(3), QUICK, tmp_path, quiet=True)
    assert not (tmp_path / "run.lock").exists()


def test_a_lock_that_its_owner_removes_just_then_is_taken_anew(tmp_path, monkeypatch):
    """Between opening and locking the file, its owner removes it: what is held then is nobody's file."""
    calls = []
    flock = fcntl.flock

    def remove_first(number, how):
        if not calls:
            (tmp_path / "run.lock").unlink()
        calls.append(number)
        flock(number, how)

    monkeypatch.setattr(run_lock.fcntl, "flock", remove_first)
    with run_lock.run_lock(tmp_path, HERE, make=True):
        assert len(calls) == 2 and (tmp_path / "run.lock").exists()


def test_no_locks_in_the_file_system_is_a_warning(tmp_path, monkeypatch):
    def fail(number, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_lock.fcntl, "flock", fail)
    message = r"cannot be locked \(Function not implemented\): start no second run in it"
    with pytest.warns(UserWarning, match=message), run_lock.run_lock(tmp_path, HERE, make=True):
        pass


def test_what_need_not_be_locked(tmp_path):
    with run_lock.run_lock(tmp_path, HERE._replace(rank=1), make=True), run_lock.run_lock(None, HERE, make=True):
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="there is no run to resume"):
        train(tiny_model(), SortNumbers(3), QUICK, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
