"""Files that change in one step: one file, or the files of a folder together under a manifest.

A set of files is saved so: each is written beside its place and forced to disk; `manifest.json`, which names them with
their sizes, SHA-256 hashes and temporary names, is moved to its place, and from that moment the new set counts; then
each file is moved to its place. A process that dies before the manifest is there leaves the old set, later the new
one: a reader takes a file from its temporary place as long as it is there, and `finish_save` moves it. Every file that
is read is compared with its hash. Folders without a manifest are read as they are.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MANIFEST_FILE = "manifest.json"
_TEMPORARY = re.compile(r".+\.\d+-[0-9a-f]{8}\.new")


class _Entry(NamedTuple):
    """What a manifest says of a file: its size, its hash and its temporary name."""

    size: int
    sha256: str
    temporary: str


def temporary_name(name: str) -> str:
    """A name of its own for a file that is being written and may take the place of `name`."""
    return f"{name}.{os.getpid()}-{secrets.token_hex(4)}.new"


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file beside its place, force it to disk and move it there: a crash leaves the old or the new one."""
    path = Path(path)
    new = path.with_name(temporary_name(path.name))
    try:
        _write_to_disk(new, data)
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A path beside `path`, with its ending, for a file that takes its place when it is whole."""
    new = path.with_name(f"{temporary_name(path.stem)}{path.suffix}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def save_files(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Replace files of a folder, which is made if need be, in one step; its manifest then names them.

    Files that the manifest named before and that are not in `files` stay. If anything fails before the new files
    count, the old ones are left as they were.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        _finish(folder)
        temporary = {name: temporary_name(name) for name in files}
        entries = {name: entry for name, entry in _read_manifest(folder).items() if (folder / name).exists()}
        manifest = folder / temporary_name(MANIFEST_FILE)
        try:
            for name, data in files.items():
                _write_to_disk(folder / temporary[name], data)
                entries[name] = _Entry(len(data), hashlib.sha256(data).hexdigest(), temporary[name])
            listed = {name: entry._asdict() for name, entry in entries.items()}
            _write_to_disk(manifest, (json.dumps({"files": listed}, indent=2) + "\n").encode())
            _sync_folder(folder)
            os.replace(manifest, folder / MANIFEST_FILE)
        except BaseException:
            for name in (*temporary.values(), manifest.name):
                _remove(folder / name)
            raise
        _sync_folder(folder)
        for name in files:
            os.replace(folder / temporary[name], folder / name)
        _sync_folder(folder)


def read_files(folder: str | Path, names: Sequence[str]) -> dict[str, bytes]:
    """Files of a folder, all of one save.

    Raises FileNotFoundError if one is missing, ValueError, naming the file, if one is not what the manifest says.
    """
    folder = Path(folder)
    while True:
        before = _manifest_bytes(folder)
        entries = _parsed(folder, before)
        try:
            return {name: _read(folder, name, entries) for name in names}
        except (FileNotFoundError, ValueError):
            # The folder may have been saved again in the meantime; then its new files are read.
            if _manifest_bytes(folder) == before:
                raise


def has_file(folder: str | Path, name: str, *, listed: bool = False) -> bool:
    """Whether the folder holds this file, or a save of it that only needs to be finished.

    listed: or a manifest that names it; then the file itself may be missing.
    """
    folder = Path(folder)
    if (folder / name).exists():
        return True
    entries = _read_manifest(folder)
    return name in entries and (listed or (folder / entries[name].temporary).exists())


def finish_save(folder: str | Path) -> None:
    """Move files of an interrupted save to their places and delete temporary files of a save that never counted."""
    folder = Path(folder)
    if folder.is_dir():
        with _alone_in(folder):
            _finish(folder)


def delete_files(folder: str | Path, names: Sequence[str]) -> None:
    """Delete files of a folder in the given order, then its manifest."""
    folder = Path(folder)
    if folder.is_dir():
        with _alone_in(folder):
            for name in (*names, MANIFEST_FILE):
                _remove(folder / name)
                for path in _temporary_files(folder):
                    if path.name.startswith(f"{name}."):
                        _remove(path)


def _finish(folder: Path) -> None:
    """`finish_save` in a folder that is held."""
    for name, entry in _read_manifest(folder).items():
        if (folder / entry.temporary).exists():
            os.replace(folder / entry.temporary, folder / name)
    for path in _temporary_files(folder):
        _remove(path)


def _temporary_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]


def _write_to_disk(path: Path, data: bytes) -> None:
    with naming(path), open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give errors of the operating system the name of the file, which only those of opening it have."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process saves into the folder; where the file system has no locks, do not wait."""
    number = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _read(folder: Path, name: str, entries: Mapping[str, _Entry] | None) -> bytes:
    """A file's bytes, compared with the manifest if there is one."""
    path = folder / name
    if entries is None:
        return path.read_bytes()
    if name not in entries:
        if path.exists():
            raise ValueError(f"{folder / MANIFEST_FILE} must name every file of the folder, got none called {name}")
        raise FileNotFoundError(f"{path} is missing")
    size, sha256, temporary = entries[name]
    try:
        data = (folder / temporary).read_bytes()
    except FileNotFoundError:
        data = path.read_bytes()
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        got = f"{len(data)} bytes" if len(data) != size else "other contents"
        raise ValueError(
            f"{path} must be the {size} bytes with the SHA-256 {sha256[:16]}... that were saved, got {got}: the file "
            f"is damaged, or was changed by hand (if that is meant, delete {MANIFEST_FILE} beside it)"
        )
    return data


def _manifest_bytes(folder: Path) -> bytes | None:
    try:
        return (folder / MANIFEST_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_manifest(folder: Path) -> dict[str, _Entry]:
    """The entries of the folder's manifest, none if there is no manifest."""
    return _parsed(folder, _manifest_bytes(folder)) or {}


def _parsed(folder: Path, data: bytes | None) -> dict[str, _Entry] | None:
    """The entries of a manifest by file name; raises ValueError if it is none."""
    if data is None:
        return None
    try:
        entries = {
            name: _Entry(int(entry["size"]), str(entry["sha256"]), str(entry["temporary"]))
            for name, entry in json.loads(data)["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{folder / MANIFEST_FILE} must be a list of files as saved with them, got {error!r}"
        ) from error
    for name, entry in entries.items():
        is_plain = _TEMPORARY.fullmatch(entry.temporary) and entry.temporary.startswith(f"{name}.")
        if not is_plain or "/" in entry.temporary or "\0" in entry.temporary:
            raise ValueError(
                f"{folder / MANIFEST_FILE} must give {name!r} a temporary name beside it, got {entry.temporary!r}"
            )
    return entries
