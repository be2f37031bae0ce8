"""Files of every format that the package reads, cut short, with flipped bits and with changed words.

    python python_tests/attack/fuzz_files.py                   # 2,000 files
    python python_tests/attack/fuzz_files.py --files 20000     # the long form

A reader must return, or raise ValueError, TypeError, NotImplementedError or OSError. A saved model with its manifest
must raise for every change of its files. Prints one line of JSON; exits 1 if there is a defect.
"""

import argparse
import gzip
import json
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from synthetic_data import write_cifar10, write_mnist
from synthetic_runs import BALLOTS, tiny_model

from softrank_ext import model_folder
from softrank_ext.cli.config_file import with_config_file
from softrank_ext.cli.item_files import read_items
from softrank_ext.constraints import read_constraints
from softrank_ext.tasks import data
from softrank_ext.tasks.preferences import read_ballots
from softrank_ext.tasks.tsplib import read_tsplib

ALLOWED = (ValueError, TypeError, NotImplementedError, OSError)
PATIENCE = 30
TSPLIB = (
    "NAME : a\nTYPE : TSP\nDIMENSION : 3\nEDGE_WEIGHT_TYPE : EUC_2D\nNODE_COORD_SECTION\n1 0 0\n2 3 4\n3 1 5\nEOF\n"
)
TABLE = "DIMENSION : 3\nEDGE_WEIGHT_TYPE : EXPLICIT\nEDGE_WEIGHT_FORMAT : UPPER_ROW\nEDGE_WEIGHT_SECTION\n1 2 3\nEOF\n"
WORDS = ("-1", "0", "1e999", "nan", "99999999999999999999", "", '"', "{", "]", "\x00", "é", ":", ",", "&a *a", "null")
Reader = Callable[[Path], object]


def _formats(folder: Path) -> dict[str, tuple[Path, Reader, bool]]:
    """By name: a file that can be read, its reader, and whether every change of it must be told."""
    texts = {"a.tsp": TSPLIB, "b.tsp": TABLE, "a.csv": "x,y\n1,2\n3,4\n", "a.soc": "\n".join(BALLOTS) + "\n",
             "b.csv": "count,first,second\n3,a,b\n2,b,a\n", "a.yaml": "learning_rate: 1e-3\nmodel: {d_model: 64}\n",
             "c.json": json.dumps({"before": [[0, 1]], "pins": {"2": 0}, "together": [[0, 1]]})}  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    np.savez(folder / "a.npz", items=np.arange(24.0).reshape(2, 4, 3), mask=np.ones((2, 4), bool))
    model_folder.save_checkpoint(tiny_model(), folder / "model", {"a": torch.rand(3)}, {"iteration": 1})
    tiny_model().save_pretrained(folder / "bare")
    (folder / "bare" / "manifest.json").unlink()
    write_mnist(folder)
    write_cifar10(folder)
    raw = folder / "MNIST" / "raw"
    plain = next(path for path in raw.iterdir() if path.name.startswith("t10k-images"))
    packed = raw / "t10k-images-idx3-ubyte.gz"
    if plain != packed:
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()

    def mnist(path: Path) -> object:
        data._mnist.cache_clear()
        return data.mnist(False, folder)

    def cifar(path: Path) -> object:
        data._cifar10.cache_clear()
        return data.cifar10(False, folder)

    def yaml(path: Path) -> object:
        return with_config_file(["--config", str(path)])

    def model(path: Path) -> object:
        return model_folder.load_model(path.parent)

    return {
        "tsplib points": (folder / "a.tsp", read_tsplib, False),
        "tsplib table": (folder / "b.tsp", read_tsplib, False),
        "items csv": (folder / "a.csv", read_items, False),
        "items npz": (folder / "a.npz", read_items, False),
        "preflib": (folder / "a.soc", read_ballots, False),
        "ballots csv": (folder / "b.csv", read_ballots, False),
        "yaml": (folder / "a.yaml", yaml, False),
        "constraints": (folder / "c.json", read_constraints, False),
        "mnist": (packed, mnist, False),
        "cifar": (folder / "cifar-10-batches-py" / "test_batch", cifar, False),
        "bare config": (folder / "bare" / "config.json", model, False),
        "bare weights": (folder / "bare" / "model.safetensors", model, False),
        "config": (folder / "model" / "config.json", model, True),
        "weights": (folder / "model" / "model.safetensors", model, True),
        "manifest": (folder / "model" / "manifest.json", model, False),
        "training": (
            folder / "model" / "training.safetensors", lambda path: model_folder.load_training(path.parent), True,
        ),
    }  # fmt: skip


def mutated(whole: bytes, chance: random.Random) -> bytes:
    """The file cut short, with flipped bits, with a word in place of another, or with a part twice."""
    way = chance.choice(("cut", "bit", "bits", "word", "twice"))
    at = chance.randrange(len(whole))
    if way == "cut":
        return whole[:at]
    if way in ("bit", "bits"):
        changed = bytearray(whole)
        for _ in range(1 if way == "bit" else chance.randrange(1, 9)):
            changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        return bytes(changed)
    if way == "twice":
        return whole[:at] + whole[max(at - chance.randrange(1, 60), 0) :]
    end = min(at + chance.randrange(1, 12), len(whole))
    return whole[:at] + chance.choice(WORDS).encode() + whole[end:]


def main() -> int:
    """Run as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="how many files")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    defects: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        formats = _formats(Path(work))
        for name, (path, reader, _) in formats.items():
            reader(path)
            assert path.stat().st_size > 0, name
        for number in range(options.files):
            name = list(formats)[number % len(formats)]
            path, reader, is_guarded = formats[name]
            whole = path.read_bytes()
            changed = mutated(whole, random.Random(number))
            path.write_bytes(changed)
            told = _in_child(lambda reader=reader, path=path: reader(path))
            path.write_bytes(whole)
            if told not in ("returned", "refused"):
                defects.append(f"file {number} ({name}): {told}")
            elif told == "returned" and is_guarded and changed != whole:
                defects.append(f"file {number} ({name}): a change was not seen")
    for line in defects:
        print(line, file=sys.stderr)
    print(json.dumps({"job": "fuzzed files", "tried": options.files, "defects": len(defects)}))
    return 1 if defects else 0


def _in_child(call: Callable[[], Any]) -> str:
    """What became of a call in a child process with 8 GB: "returned", "refused", or what went wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "ended"
        try:
            resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
            call()
            said = "returned"
        except ALLOWED:
            said = "refused"
        except BaseException as error:
            said = f"raised {type(error).__name__}: {error} at {traceback.format_exc().splitlines()[-3].strip()}"
        finally:
            os.write(writing, said.encode()[:4000])
            os._exit(0)
    os.close(writing)
    until = time.monotonic() + PATIENCE
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid or time.monotonic() > until:
            break
        time.sleep(0.0005)
    if not pid:
        os.kill(child, 9)
        os.waitpid(child, 0)
        said = f"hung for more than {PATIENCE} s"
    else:
        said = os.read(reading, 4000).decode(errors="replace") or f"ended with {os.waitstatus_to_exitcode(status)}"
    os.close(reading)
    return said


if __name__ == "__main__":
    sys.exit(main())
