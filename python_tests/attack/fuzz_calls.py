"""Calls of every op and every public function with arguments that do not fit, in a child process that may die.

    python python_tests/attack/fuzz_calls.py                      # 10,000 calls
    python python_tests/attack/fuzz_calls.py --calls 100000       # the long form
    python python_tests/attack/fuzz_calls.py --first 4711 --calls 1 --show     # one call again

Each call starts from one that works (`attack.calls`) and has one to three of its arguments spoiled: other shapes,
dtypes, strides, values (NaN, infinities, huge and negative numbers) or types. It must return, or raise ValueError,
TypeError, NotImplementedError, or, of a `torch.ops` schema, RuntimeError with a message of ours or of the dispatcher.
A crash, a hang or another error is a defect. Prints one line of JSON with the counts; exits 1 if there is a defect.
"""

import argparse
import json
import mmap
import os
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from attack.spoiling import described, spoiled

PATIENCE = 60.0  # seconds that a call may take
MEMORY = 2**33  # bytes that a process may ask for
# What torch itself says to arguments that do not fit a schema or that cannot be held in memory.
_TORCH_SAYS = (
    "Expected a value of type", "Unable to cast", "Could not run", "expected at", "missing value for argument",
    "DefaultCPUAllocator", "can't allocate memory", "Storage size calculation overflowed", "Overflow when unpacking",
    "Expected at most", "is missing value", "numel: integer multiplication overflow", "Cannot access data pointer",
    "There were no tensor arguments", "Expected one of cpu", "Tensor on device", "Expected all tensors",
    "Unhandled FakeTensor Device Propagation", "value cannot be converted to type", "invalid dtype",
    "Dimension out of range", "Trying to create tensor with negative dimension", "API call failed at",
    "You're trying to run this operator with meta Tensors", "cannot be called on meta tensors",
    "Not yet supported ScalarType",
)  # fmt: skip


def main() -> int:
    """Run as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="how many calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--show", action="store_true", help="print each call")
    parser.add_argument("--processes", type=int, default=2, help="children at a time")
    options = parser.parse_args()
    import attack.calls  # once, for all children

    if attack.calls.MISSING:
        print(f"not called: {', '.join(attack.calls.MISSING)}", file=sys.stderr)
    end = options.first + options.calls
    with tempfile.TemporaryDirectory() as work:
        watched = [
            _Child(Path(work) / str(part), range(options.first + part, end, options.processes), options.show)
            for part in range(min(options.processes, options.calls))
        ]
        while any(not child.is_done for child in watched):
            time.sleep(0.05)
            for child in watched:
                child.watch()
    defects = [line for child in watched for line in child.defects]
    for line in defects:
        print(line, file=sys.stderr)
    returned = sum(child.returned for child in watched)
    print(json.dumps({"job": "fuzzed calls", "tried": options.calls, "returned": returned, "defects": len(defects)}))
    return 1 if defects else 0


class _Child:
    """A process that makes the calls of a range, and another one for those after a call that ended it."""

    def __init__(self, path: Path, numbers: range, show: bool) -> None:
        self.path, self.numbers, self.show = path, numbers, show
        path.write_bytes(bytes(24))
        self._file = path.open("r+b")
        self._memory = mmap.mmap(self._file.fileno(), 24)
        self.defects: list[str] = []
        self.is_done = False
        self._at, self._since = -1, time.monotonic()
        self._start(0)

    @property
    def returned(self) -> int:
        number: int = struct.unpack_from("q", self._memory, 8)[0]
        return number

    def _start(self, begin: int) -> None:
        sys.stderr.flush()
        struct.pack_into("q", self._memory, 0, begin)
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                _make_calls(self.numbers, begin, self._memory, self.path.with_suffix(".defects"), self.show)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def watch(self) -> None:
        """See whether the child has ended or hangs."""
        if self.is_done:
            return
        at: int = struct.unpack_from("q", self._memory, 0)[0]
        if at != self._at:
            self._at, self._since = at, time.monotonic()
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0 and time.monotonic() - self._since < PATIENCE:
            return
        if pid == 0:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
            ended = f"hung for more than {PATIENCE:.0f} s"
        else:
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                self.is_done = True
                found = self.path.with_suffix(".defects")
                self.defects += found.read_text().splitlines() if found.exists() else []
                return
            ended = f"ended the process with {code}"
        number = self.numbers[at]
        self.defects.append(f"call {number} {ended}: {_described_call(number)}")
        if at + 1 < len(self.numbers):
            self._start(at + 1)
        else:
            self.is_done = True


def _described_call(number: int) -> str:
    name, _, arguments = call_of(number)
    return f"{name}({', '.join(f'{key}={described(value)}' for key, value in arguments.items())})"


def call_of(number: int) -> tuple[str, Any, dict[str, Any]]:
    """Name, function and arguments of a call: a function of its number."""
    from attack.calls import CALLS

    chance = random.Random(number)
    name, function, make = CALLS[number % len(CALLS)]
    arguments = make()
    for key in chance.sample(sorted(arguments), min(chance.choice((1, 1, 2, 3)), len(arguments))):
        arguments[key] = spoiled(arguments[key], chance, name.startswith("torch.ops"))
    return name, function, arguments


def _make_calls(numbers: range, begin: int, memory: mmap.mmap, defects: Path, show: bool) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for at in range(begin, len(numbers)):
        struct.pack_into("q", memory, 0, at)
        name, function, arguments = call_of(numbers[at])
        if show:
            print(_described_call(numbers[at]), file=sys.stderr)
        torch.manual_seed(numbers[at])
        try:
            function(**arguments)
            struct.pack_into("q", memory, 8, struct.unpack_from("q", memory, 8)[0] + 1)
        except (ValueError, TypeError, NotImplementedError) as error:
            if show:
                print(f"  {type(error).__name__}: {error}", file=sys.stderr)
        except Exception as error:
            if show:
                traceback.print_exc()
            if not (name.startswith("torch.ops") and isinstance(error, RuntimeError) and _is_ours(str(error))):
                said = str(error).splitlines()[0] if str(error) else ""
                with defects.open("a") as file:
                    file.write(
                        f"call {numbers[at]} raised {type(error).__name__}: {said}: {_described_call(numbers[at])}\n"
                    )


def _is_ours(message: str) -> bool:
    """Whether a RuntimeError has a sentence of ours ("NAME must be WANTED") or one of the dispatcher's."""
    is_sentence = " must " in message or " has the wrong dtype" in message or "too hard to check" in message
    return is_sentence or any(said in message for said in _TORCH_SAYS)


if __name__ == "__main__":
    sys.exit(main())
