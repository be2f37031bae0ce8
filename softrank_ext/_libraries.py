"""Loads the compiled libraries once and says what they are.

`_ops` holds the CPU kernels, `_ops_cuda` the CUDA kernels (where they were compiled), `_C` the numpy algorithms.
"""

import os
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import torch

_FOLDER = Path(__file__).parent
_REFERENCE_VARIABLE = "SOFTRANK_EXT_REFERENCE"
_MINIMUM_TORCH = (2, 10)


def uses_reference() -> bool:
    """True if SOFTRANK_EXT_REFERENCE asks for the plain-torch reference instead of the compiled libraries."""
    value = os.environ.get(_REFERENCE_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ImportError(f"{_REFERENCE_VARIABLE} must be 0 or 1, got {value!r}")
    return value == "1"


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
    if name == "_ops_cuda" and not _runs_cuda_library():
        return
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"softrank_ext's {name}.so was built against torch {compiled_module().build_info()['torch_built_against']} "
            f"and does not load beside torch {torch.__version__}. Rebuild it with `pip install --force-reinstall "
            f"--no-deps .` in the source tree. ({error})"
        ) from error


def _runs_cuda_library() -> bool:
    """The CUDA library needs the stream shim that torch has since 2.13; older torch uses the reference on CUDA."""
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)


def compiled_module() -> ModuleType:
    """The pybind11 module `_C`."""
    return import_module("softrank_ext._C")


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
        return info | {"kernels": "plain-torch reference", "torch_built_against": None, "cuda_compiled": False}
    compiled = compiled_module().build_info()
    has_cuda_library = (_FOLDER / "_ops_cuda.so").exists()
    return info | {
        "kernels": "compiled",
        "torch_built_against": compiled["torch_built_against"],
        "compiler": compiled["compiler"],
        "cpu_capability": torch.ops.softrank_ext.cpu_capability(),
        "cuda_compiled": has_cuda_library,
        "cuda_loaded": has_cuda_library and _runs_cuda_library(),
        "cuda_architectures": compiled["cuda_architectures"],
    }
