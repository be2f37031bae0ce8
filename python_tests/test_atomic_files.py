"""Files that change in one step: what a reader sees at every moment, and that damage is told."""

import errno
import hashlib
import json
import os
import threading
import time

import pytest

from softrank_ext import atomic_files
from softrank_ext.atomic_files import delete_files, finish_save, has_file, read_files, save_files, write_file

OLD = {"a": b"old a", "b": b"old b"}
NEW = {"a": b"new a!", "b": b"new b!"}


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def folder(tmp_path):
    save_files(tmp_path / "set", OLD)
    return tmp_path / "set"


def die_at(monkeypatch, number):
    """Let the process die before the given replacement of a file, and clean nothing up."""
    calls = []
    replace = os.replace

    def replace_or_die(new, path):
        calls.append(path)
        if len(calls) == number + 1:
            raise Died
        replace(new, path)

    monkeypatch.setattr(atomic_files.os, "replace", replace_or_die)
    monkeypatch.setattr(atomic_files, "_remove", lambda path: None)


def test_what_is_saved_is_read(folder):
    assert read_files(folder, ("b", "a")) == OLD
    manifest = json.loads((folder / "manifest.json").read_text())["files"]
    for name, data in OLD.items():
        assert (folder / name).read_bytes() == data
        assert manifest[name]["sha256"] == hashlib.sha256(data).hexdigest() and manifest[name]["size"] == len(data)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "manifest.json"]


@pytest.mark.parametrize("number", range(3))
def test_a_set_is_old_or_new_wherever_the_process_dies(folder, monkeypatch, number):
    """Replacement 0 is that of the manifest; before it the old files count, from then on the new ones."""
    with monkeypatch.context() as patch:
        die_at(patch, number)
        with pytest.raises(Died):
            save_files(folder, NEW)
    wanted = OLD if number == 0 else NEW
    assert read_files(folder, ("a", "b")) == wanted
    finish_save(folder)
    assert {name: (folder / name).read_bytes() for name in OLD} == wanted == read_files(folder, ("a", "b"))
    assert len(list(folder.iterdir())) == 3
    save_files(folder, {"a": b"newer"})
    assert read_files(folder, ("a", "b")) == {**wanted, "a": b"newer"}


def test_the_first_save_is_there_as_soon_as_it_counts(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        die_at(patch, 1)
        with pytest.raises(Died):
            save_files(tmp_path, NEW)
    assert not (tmp_path / "a").exists() and has_file(tmp_path, "a") and not has_file(tmp_path, "c")
    assert read_files(tmp_path, ("a",)) == {"a": NEW["a"]}
    delete_files(tmp_path, ("b", "a"))
    assert list(tmp_path.iterdir()) == [] and not has_file(tmp_path, "a")


def test_a_save_that_fails_leaves_nothing(folder, monkeypatch):
    def fail(number):
        raise OSError("disk full")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(atomic_files.os, "fsync", fail)
    for save in (lambda: save_files(folder, NEW), lambda: write_file(folder / "a", b"half")):
        with pytest.raises(OSError, match="disk full"):
            save()
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_everything_is_on_disk_before_it_counts(folder, monkeypatch):
    done = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(atomic_files.os, "fsync", lambda number: (done.append("fsync"), fsync(number)))
    monkeypatch.setattr(
        atomic_files.os, "replace", lambda new, path: (done.append(f"replace {path.name}"), replace(new, path))
    )
    save_files(folder, NEW)
    files = ["fsync"] * 3 + ["fsync"]  # a, b, manifest; the folder that names them
    assert done == [*files, "replace manifest.json", "fsync", "replace a", "replace b", "fsync"]


@pytest.mark.parametrize("bit", [0, 7, 20, 39])
def test_a_flipped_bit_is_told_with_the_file_s_name(folder, bit):
    data = bytearray(OLD["b"])
    data[bit // 8] ^= 1 << bit % 8
    (folder / "b").write_bytes(data)
    with pytest.raises(ValueError, match=r"set/b must be the 5 bytes with the SHA-256 .* that were saved, got other"):
        read_files(folder, ("a", "b"))
    assert read_files(folder, ("a",)) == {"a": OLD["a"]}
    (folder / "manifest.json").unlink()
    assert read_files(folder, ("b",)) == {"b": bytes(data)}


def test_other_damage_is_told(folder):
    (folder / "b").write_bytes(b"old")
    with pytest.raises(
        ValueError, match=r"set/b must be the 5 bytes .* got 3 bytes: the file is damaged, or was changed"
    ):
        read_files(folder, ("b",))
    (folder / "b").unlink()
    with pytest.raises(FileNotFoundError, match="set/b"):
        read_files(folder, ("b",))
    (folder / "c").write_bytes(b"own")
    with pytest.raises(ValueError, match=r"manifest.json must name every file of the folder, got none called c"):
        read_files(folder, ("c",))
    with pytest.raises(FileNotFoundError, match="set/d is missing"):
        read_files(folder, ("d",))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"files": []}', '{"files": {"a": {}}}', '{"files": {"a": {"size": "x"}}}', "[" * 100_000],
)
def test_manifests_that_are_none_are_told(folder, text):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json must be a list of files as saved with them, got"):
        read_files(folder, ("a",))


@pytest.mark.parametrize(
    "temporary", ["../a.1-00000000.new", "b.1-00000000.new", "a", "a.1-0000000.new", "a./b.1-00000000.new"]
)
def test_manifests_cannot_name_other_files(folder, temporary):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["a"]["temporary"] = temporary
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest.json must give 'a' a temporary name beside it, got"):
        read_files(folder, ("a",))


def test_a_file_alone_is_replaced(tmp_path):
    write_file(tmp_path / "file", b"one")
    write_file(tmp_path / "file", b"two")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"two"]


def test_readers_and_savers_at_the_same_time_see_one_save(folder):
    """Four threads save, one reads: the files read are always of one save, and the last one stands whole."""
    stop = threading.Event()
    errors = []

    def save(letter):
        try:
            while not stop.is_set():
                save_files(folder, {"a": letter * 100, "b": letter * 200})
                time.sleep(0.002)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(letter,)) for letter in (b"1", b"2", b"3", b"4")]
    for thread in threads:
        thread.start()
    seen = set()
    for _ in range(200):
        files = read_files(folder, ("a", "b"))
        letters = set(files["a"]) | set(files["b"])
        seen |= letters
        assert len(letters) == 1 or files == OLD
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == [] and len(seen) > 1
    assert len(list(folder.iterdir())) == 3 and len(set(read_files(folder, ("a",))["a"])) == 1


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path / 'weights'}"):
        write_file(tmp_path / "weights", b"numbers")
