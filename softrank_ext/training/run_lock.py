"""One run per folder: `run.lock`, held while a run may write, with its owner in it.

The operating system gives the lock up when its owner ends, however it ends, so a file that a killed run left behind
holds nobody up.
"""

import contextlib
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from softrank_ext.training.torchrun import Processes

LOCK_FILE = "run.lock"


@contextlib.contextmanager
def run_lock(folder: Path | None, here: Processes, *, make: bool) -> Iterator[None]:
    """Hold the run's folder inside, by the first process; raises ValueError, naming the owner, if another run does.

    make: make the folder if need be. A folder that cannot be written to is not locked: a run that must write says so
    itself.
    """
    number = _locked_file(folder, make) if folder is not None and here.rank == 0 else None
    if folder is None or number is None:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / LOCK_FILE)
        os.close(number)


def _locked_file(folder: Path, make: bool) -> int | None:
    """The number of the open and locked file, None if the folder cannot be written to."""
    path = folder / LOCK_FILE
    while True:
        try:
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        try:
            _lock(number, folder)
            if _is_at(path, number):  # else its last owner has just removed it
                owner = {
                    "process": os.getpid(),
                    "host": socket.gethostname(),
                    "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                }
                os.truncate(number, 0)
                os.pwrite(number, (json.dumps(owner) + "\n").encode(), 0)
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _lock(number: int, folder: Path) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"output must be a folder that no other run writes into, got {folder}: {_owner(number)} does; "
            "wait for it, stop it, or choose another folder"
        ) from error
    except OSError as error:
        warnings.warn(f"{folder} cannot be locked ({error.strerror}): start no second run in it", stacklevel=6)


def _owner(number: int) -> str:
    try:
        owner = json.loads(os.pread(number, 4096, 0))
        return f"process {owner['process']} on {owner['host']} (since {owner['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _is_at(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except FileNotFoundError:
        return False
