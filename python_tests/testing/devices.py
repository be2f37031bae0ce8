"""A GPU for the tests: the real one, or the one of `fake_cuda`. Both move values and count what the host waits for."""

import contextlib
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from testing.decoder_on_host import COMPILER, FOLDER, require_compiler
from testing.fake_cuda import Counts, FakeCuda, counted, on_fake_cuda


class Device(Protocol):
    def put(self, value: Any) -> Any:
        """A tensor or module on the device; a module is moved itself."""

    def back(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU."""

    def counted(self) -> contextlib.AbstractContextManager[Counts]:
        """Counts of what happens inside: waits, and launches where they can be counted."""


class FakeDevice:
    def put(self, value: Any) -> Any:
        return on_fake_cuda(value)

    def back(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, FakeCuda), "the result is not on the device"
        return tensor.inner

    def counted(self) -> contextlib.AbstractContextManager[Counts]:
        return counted()


class GpuDevice:
    def put(self, value: Any) -> Any:
        return value.to("cuda")

    def back(self, tensor: Tensor) -> Tensor:
        assert tensor.is_cuda, "the result is not on the device"
        return tensor.cpu()

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counts]:
        """Waits as torch warns of them; launches stay uncounted."""
        counts = Counts()
        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield counts
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.waits = Counter(str(w.message) for w in caught if "synchroniz" in str(w.message))


def load_cuda_guard(folder: Path) -> None:
    """Compile and load cuda_guard.cpp."""
    require_compiler("cuda_guard.cpp")
    torch_folder = Path(torch.__file__).parent
    library = folder / "cuda_guard.so"
    include, link = f"-I{torch_folder / 'include'}", [f"-L{torch_folder / 'lib'}", "-lc10"]
    command = [COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", include, str(FOLDER / "cuda_guard.cpp"), *link]
    built = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"torch's headers do not compile here: {built.stderr[:300]}")
    torch.ops.load_library(str(library))
