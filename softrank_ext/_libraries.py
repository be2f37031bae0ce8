"""Loads the compiled libraries once and says what they are.

`_ops` holds the CPU kernels, `_ops_cuda` the CUDA kernels (where they were compiled), `_C` the numpy algorithms, which
have plain twins for a Python that it was not built for. A plain install has none of them, on purpose.
"""

import ctypes
import json
import os
import platform
import warnings
from functools import cache
from importlib import import_module, metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_FOLDER = Path(__file__).parent
_REFERENCE_VARIABLE = "SOFTRANK_EXT_REFERENCE"
_PLAIN_MARK = "_plain_install"  # the file that SOFTRANK_PLAIN=1 leaves in the package
_MINIMUM_TORCH = (2, 10)
_REINSTALL = "Install it again: `pip install --force-reinstall --no-deps softrank_ext`, or `.` in the source tree"


def uses_reference() -> bool:
    """True if plain torch runs instead of the kernels: asked for by SOFTRANK_EXT_REFERENCE=1, or by a plain install."""
    value = os.environ.get(_REFERENCE_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ImportError(f"{_REFERENCE_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1" or (value == "" and is_plain_install())


def is_plain_install() -> bool:
    """Whether the package was installed by SOFTRANK_PLAIN=1, without a compiler."""
    return (_FOLDER / _PLAIN_MARK).exists()


def load_libraries() -> None:
    """Register the compiled kernels; raise ImportError with the remedy if they are missing or do not fit this torch."""
    if uses_reference():
        return
    running = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if running < _MINIMUM_TORCH:
        raise ImportError(f"softrank_ext needs torch 2.10 or later, you have {torch.__version__}: upgrade torch.")
    _load("_ops", is_required=True)
    _load("_ops_cuda", is_required=False)


def _load(name: str, is_required: bool) -> None:
    path = _FOLDER / f"{name}.so"
    if not path.exists():
        if is_required:
            raise ImportError(
                f"softrank_ext is not compiled: {name}.so is missing from {_FOLDER}. Run `pip install -e .` in the "
                f"source tree, or set {_REFERENCE_VARIABLE}=1 to run on the slow plain-torch reference."
            )
        return
    if name == "_ops_cuda":
        if not _runs_cuda_library():
            return
        problem = cuda_problem()
        if problem is not None:
            warnings.warn(f"softrank_ext runs in plain torch on GPUs: {problem}", RuntimeWarning, stacklevel=2)
            return
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        here = f"torch {torch.__version__} on {platform.system()} {platform.machine()}"
        raise ImportError(
            f"softrank_ext's {name}.so does not load beside {here}: it is damaged or was built for another machine or "
            f"another torch. {_REINSTALL}. ({error})"
        ) from error


def _runs_cuda_library() -> bool:
    """The CUDA library needs the stream shim that torch has since 2.13; older torch uses the reference on CUDA."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)


@cache
def cuda_problem() -> str | None:
    """Why the CUDA library cannot run on this machine's GPUs; None if it can, or if there is none.

    The driver is asked itself, as torch would make a context for each GPU.
    """
    if torch.version.cuda is None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuInit(0) != 0:
        return None
    return _problem_of(driver, _build_facts())


def _problem_of(driver: Any, compiled: dict[str, str]) -> str | None:
    """`cuda_problem`, by a driver with the functions of libcuda and what the build says of itself."""
    if not compiled["cuda_version"]:
        return "its libraries are of different builds"
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    if number.value // 1000 < int(compiled["cuda_version"].split(".")[0]):
        knows = f"{number.value // 1000}.{number.value % 1000 // 10}"
        return f"the driver knows CUDA {knows}, the library was compiled with {compiled['cuda_version']}"
    driver.cuDeviceGetCount(ctypes.byref(number))
    for device in range(number.value):
        capability = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(number.value)
        major, minor = capability
        if not _is_covered(major, minor, compiled["cuda_architectures"]):
            return (
                f"GPU {device} has compute capability {major}.{minor}, the library was compiled for "
                f"{compiled['cuda_architectures']}"
            )
    return None


def _is_covered(major: int, minor: int, architectures: str) -> bool:
    """Whether there is code that runs on a GPU: its major version and no later minor one, or PTX of an earlier GPU."""
    for architecture in architectures.split():
        built, _, kind = architecture.partition("-")
        built_major, built_minor = divmod(int(built), 10)
        if kind != "virtual" and built_major == major and built_minor <= minor:
            return True
        if kind != "real" and (built_major, built_minor) <= (major, minor):
            return True
    return False


def has_compiled_module() -> bool:
    """Whether there is a `_C` for this Python; without it plain twins run."""
    return not uses_reference() and _finds_module()


@cache
def _finds_module() -> bool:
    return any((_FOLDER / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def compiled_module() -> ModuleType:
    """The pybind11 module `_C`; raises ImportError with the remedy if it does not load."""
    try:
        return import_module("softrank_ext._C")
    except ImportError as error:
        raise ImportError(
            f"softrank_ext's _C does not load: it is damaged or was built for another machine. {_REINSTALL}. ({error})"
        ) from error


def _build_facts() -> dict[str, str]:
    """What the build says of itself: torch_built_against, compiler, cuda_version, cuda_architectures."""
    facts = dict.fromkeys(("torch_built_against", "compiler", "cuda_version", "cuda_architectures"), "")
    facts.update(json.loads(torch.ops.softrank_ext.build_facts()))
    return facts


def installed_version() -> str:
    """Version of the installed package, or "not installed" when it runs from a source tree on the reference."""
    try:
        return metadata.version("softrank_ext")
    except metadata.PackageNotFoundError:
        return "not installed"


def build_info() -> dict[str, object]:
    """Version, torch built against and running, CUDA compiled or not, CPU capability in use, threads."""
    info: dict[str, object] = {
        "version": installed_version(),
        "torch_running": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if uses_reference():
        reason = "a plain install" if is_plain_install() else f"{_REFERENCE_VARIABLE}=1"
        kernels = f"plain-torch reference, slow: {reason}"
        return info | {"kernels": kernels, "torch_built_against": None, "cuda_compiled": False}
    facts = _build_facts()
    has_cuda_library = (_FOLDER / "_ops_cuda.so").exists()
    return info | {
        "kernels": "compiled",
        "numpy_algorithms": "compiled" if has_compiled_module() else "plain, slow: there is no _C for this Python",
        "torch_built_against": facts["torch_built_against"],
        "compiler": facts["compiler"],
        "cpu_capability": torch.ops.softrank_ext.cpu_capability(),
        "cuda_compiled": has_cuda_library,
        "cuda_loaded": has_cuda_library and _runs_cuda_library() and cuda_problem() is None,
        "cuda_architectures": facts["cuda_architectures"],
    }
