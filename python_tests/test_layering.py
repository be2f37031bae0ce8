"""Which room may import which: the arrows of CONTRIBUTING, read off the source files."""

import ast
import re
from pathlib import Path

import pytest

import softrank_ext

PACKAGE = Path(softrank_ext.__file__).parent
CSRC = Path(__file__).parents[1] / "csrc"
# The rooms of the package, floor by floor from the ground up. A room may import those before it, and itself.
FLOORS: dict[str, tuple[str, ...]] = {
    "ground": ("_C", "_libraries", "checks", "text_files", "atomic_files", "permutations", "ops", "noise"),
    "first": ("processes", "constraints", "choices", "laws", "metrics", "costs", "batch"),
    "second": ("model", "model_folder", "baselines"),
    "third": ("sampling", "likelihood", "answers", "certify"),
    "fourth": ("tasks", "evaluation", "training"),
    "roof": (
        "distributions",
        "methods",
        "hub",
        "pretrained",
        "tables",
        "ranking",
        "schedule_search",
        "schedules",
        "tours",
        "show",
        "cli",
        "__main__",
        "__init__",
    ),
}
ROOMS = [room for floor in FLOORS.values() for room in floor]
# Upwards, inside a function or as a name for import_module only: methods that hand over to what is built on them.
LATE = {
    "model": {"model_folder", "pretrained", "baselines"},
    "sampling": {"show"},
    "schedules": {"show"},
    "ranking": {"show"},
    "tours": {"show"},
}
# Only these rooms may import the libraries named.
LIBRARIES = {
    "matplotlib": {"show", "cli"},
    "torchvision": {"tasks"},
    "huggingface_hub": {"hub"},
    "safetensors": {"model_folder", "training"},
    "tyro": {"cli", "methods"},
    "pandas": {"tables"},
    "polars": {"tables"},
}
MODULE_NAME = re.compile(r"softrank_ext(\.\w+)+")


def imported_names(tree: ast.AST) -> set[str]:
    """Full names of the modules that a source imports, wherever in it; `from a import b` gives a and a.b."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def named_modules(tree: ast.AST) -> set[str]:
    """Names of the package's modules that a source has as strings: for import_module."""
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {string for string in strings if MODULE_NAME.fullmatch(string)}


def forbidden_imports(room: str, source: str) -> set[str]:
    """What a module of `room` imports although it may not."""
    tree = ast.parse(source)
    at_once = ast.Module([node for node in tree.body if not _is_late(node)], [])
    lower = set(ROOMS[: ROOMS.index(room) + 1])
    wrong = (_rooms_of(imported_names(at_once)) & set(ROOMS)) - lower
    anywhere = _rooms_of(imported_names(tree) | named_modules(tree)) & set(ROOMS)
    wrong |= anywhere - lower - LATE.get(room, set())
    libraries = {name for name in imported_names(tree) if room not in LIBRARIES.get(name.split(".")[0], {room})}
    return wrong | libraries


def _rooms_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("softrank_ext.")}


def _is_late(node: ast.stmt) -> bool:
    """Definitions, and imports for type checkers."""
    is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.ClassDef) or is_for_types


def _sources() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize(
    ("room", "path"), _sources(), ids=lambda value: value if isinstance(value, str) else value.stem
)
def test_modules_import_only_what_they_may(room, path):
    assert room in ROOMS, f"{room} needs a place in the table of floors"
    assert forbidden_imports(room, path.read_text()) == set()


def test_every_room_exists():
    rooms = {room for room, _ in _sources()}
    planned = {"_C", "pretrained"}  # built from C++; the bundled models by name
    assert set(ROOMS) - planned <= rooms


def test_forbidden_imports_are_seen():
    assert forbidden_imports("processes", "from softrank_ext import model") == {"model"}
    assert forbidden_imports("ops", "import softrank_ext.noise") == {"noise"}
    assert forbidden_imports("ops", "def f():\n    from softrank_ext.processes.bridge import Bridge") == {"processes"}
    assert forbidden_imports("model_folder", "from softrank_ext.sampling import sample") == {"sampling"}
    assert forbidden_imports("metrics", "import matplotlib.pyplot as plt") == {"matplotlib.pyplot"}
    assert forbidden_imports("checks", "from importlib import import_module\nimport_module('softrank_ext.ops')") == {
        "ops"
    }
    assert forbidden_imports("model", "from softrank_ext import model_folder") == {"model_folder"}
    assert forbidden_imports("model", "def f():\n    from softrank_ext import model_folder") == set()
    assert forbidden_imports("model", "from softrank_ext.baselines import diffsort") == {"baselines"}
    assert forbidden_imports("model", "OWN = {'diffsort': 'softrank_ext.baselines.diffsort'}") == set()
    assert forbidden_imports("processes", "from softrank_ext import ops\nimport torch") == set()
    assert forbidden_imports("sampling", "from softrank_ext.sampling.samples import Samples") == set()
    assert forbidden_imports("evaluation", "from softrank_ext.training import train") == {"training"}
    assert forbidden_imports("training", "from softrank_ext.evaluation import evaluate") == set()


INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def forbidden_includes(folder: str, source: str) -> set[str]:
    """What a C++ file in `folder` of csrc includes although it may not."""
    includes = INCLUDE.findall(source)
    if folder == "kernels":  # own headers and the standard library, whose names have no slash and no ending
        return {name for kind, name in includes if "/" in name or (kind == "<" and "." in name)}
    if folder == "host":
        return {name for _, name in includes if re.search(r"torch|ATen|c10|/ops/", name)}
    # Torch ops: the stable ABI only.
    stable = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/c/")
    return {
        name
        for _, name in includes
        if (re.match(r"torch/|ATen/|c10/|pybind11/", name) and not name.startswith(stable)) or "host/" in name
    }


def _cpp_sources() -> list[tuple[str, Path]]:
    endings = {".h", ".cpp", ".cu", ".cuh"}
    return [(path.relative_to(CSRC).parts[0], path) for path in sorted(CSRC.rglob("*")) if path.suffix in endings]


@pytest.mark.skipif(not CSRC.exists(), reason="needs the C++ sources")
def test_cpp_files_include_only_what_they_may():
    sources = _cpp_sources()
    assert {folder for folder, _ in sources} == {"kernels", "ops", "host"}
    wrong = {path.name: forbidden_includes(folder, path.read_text()) for folder, path in sources}
    assert {name: includes for name, includes in wrong.items() if includes} == {}


def test_forbidden_includes_are_seen():
    assert forbidden_includes("kernels", '#include "../ops/cpu/vector.h"') == {"../ops/cpu/vector.h"}
    assert forbidden_includes("kernels", "#include <torch/extension.h>") == {"torch/extension.h"}
    assert forbidden_includes("kernels", '#include <cmath>\n#include "host_device.h"') == set()
    assert forbidden_includes("host", "#include <torch/torch.h>") == {"torch/torch.h"}
    assert forbidden_includes("host", "#include <pybind11/numpy.h>") == set()
    assert forbidden_includes("ops", "#include <ATen/ATen.h>") == {"ATen/ATen.h"}
    assert forbidden_includes("ops", "#include <torch/csrc/stable/tensor.h>") == set()


def test_every_module_has_a_test_file():
    """Its own, or that of its room; `__init__` and `__main__` only hand on."""
    tests = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    missing = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1].startswith("__") or "__pycache__" in parts:
            continue
        words = [part.strip("_") for part in parts]
        names = {f"test_{'_'.join(words)}", f"test_{words[0]}"}
        if not names & tests:
            missing.append("/".join(parts))
    assert missing == []
