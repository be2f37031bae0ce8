"""Faults at chosen points of a process's file operations: killed, killed amid a write, or told that the disk is full.

A point is one call of open, write, fsync, rename, unlink, mkdir, truncate or rmdir on a path below a folder. Points are
counted from 0 in the order in which they are reached, so that a deterministic program has the same points each time.
"""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["kill", "torn", "full"]
KINDS: tuple[Kind, ...] = ("kill", "torn", "full")


class IoFaults:
    """Counts the file operations below `folder` and strikes at operation number `at` (never, if None).

    kind: "kill" ends the process by SIGKILL before the operation, "torn" amid it (half of what is written, otherwise
    after it), "full" lets it and all later writes fail with ENOSPC. `names` lists what each point was.
    """

    def __init__(self, folder: Path, at: int | None, kind: Kind) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.names: list[str] = []
        self.is_full = False
        self._paths: dict[int, str] = {}

    def install(self) -> "IoFaults":
        """Replace the functions of this process, for good: it is meant for processes that end here."""
        for name in ("replace", "unlink", "mkdir", "rmdir", "truncate"):
            setattr(os, name, self._by_path(name, getattr(os, name)))
        os.open = self._open_number(os.open)  # type: ignore[assignment]
        os.fsync = self._by_number("fsync", os.fsync)
        os.pwrite = self._by_number("pwrite", os.pwrite)
        builtins.open = io.open = self._open_file(builtins.open)  # type: ignore[assignment]
        return self

    def strike(self, name: str, finish_half: Callable[[], object]) -> None:
        """Count a point; if it is the one, let the fault happen."""
        number = len(self.names)
        self.names.append(name)
        if self.kind == "full" and (self.is_full or number == self.at):
            self.is_full = True
            if not name.startswith(("unlink", "rmdir")):  # a full disk lets go of files
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif number == self.at:
            if self.kind == "torn":
                finish_half()
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self._paths
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.folder)

    def _by_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *rest: Any, **options: Any) -> Any:
            if self._is_below(path):
                shown = self._paths.get(path, "") if isinstance(path, int) else os.path.basename(path)
                self.strike(f"{name} {shown}", lambda: call(path, *rest, **options))
            return call(path, *rest, **options)

        return wrapped

    def _by_number(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(number: int, *rest: Any) -> Any:
            if number in self._paths:
                self.strike(f"{name} {self._paths[number]}", lambda: call(number, *rest))
            return call(number, *rest)

        return wrapped

    def _open_number(self, call: Callable[..., int]) -> Callable[..., int]:
        def wrapped(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if not self._is_below(path):
                return call(path, flags, *rest, **options)
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.strike(f"open {os.path.basename(path)}", lambda: call(path, flags, *rest, **options))
            number = call(path, flags, *rest, **options)
            self._paths[number] = os.path.basename(path)
            return number

        return wrapped

    def _open_file(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if not self._is_below(path):
                return call(path, mode, *rest, **options)
            if set(mode) & set("wax+"):
                self.strike(f"open {os.path.basename(path)}", lambda: call(path, mode, *rest, **options))
            file = call(path, mode, *rest, **options)
            self._paths[file.fileno()] = os.path.basename(path)
            return _File(file, self, os.path.basename(path)) if set(mode) & set("wax+") else file

        return wrapped


class _File:
    """An open file whose writes are points."""

    def __init__(self, file: Any, faults: IoFaults, name: str) -> None:
        self._file, self._faults, self._name = file, faults, name

    def write(self, data: Any) -> int:
        def write_half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._faults.strike(f"write {self._name}", write_half)
        written: int = self._file.write(data)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
