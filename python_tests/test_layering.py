"""Which room may import which: the arrows of CONTRIBUTING, read off the source files."""

import ast
import re
from pathlib import Path

import pytest

import softrank_ext

PACKAGE = Path(softrank_ext.__file__).parent
CSRC = Path(__file__).parents[1] / "csrc"
EVERYTHING = None

# Module -> the modules of the package that it may import.
ALLOWED: dict[str, set[str] | None] = {
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
    "_libraries": {"_C"},
    "reference": set(),
    "permutations": set(),
    "ops": {"reference", "permutations"},
    "noise": {"ops"},
    "distributions": {"ops", "permutations"},
    "bridge": {"ops", "permutations"},
    "riffle": {"permutations"},
    "model": {"ops", "bridge", "riffle", "constraints", "distributions", "permutations", "reference"},
    "incremental": {"ops", "model", "permutations", "reference"},
    "search": {"model", "incremental"},
    "constraints": {"ops", "permutations"},
    "trajectory": {"bridge", "permutations"},
    "sampler": {
        "ops", "bridge", "riffle", "model", "noise", "constraints", "permutations", "search", "trajectory",
    },
    "likelihood": {"ops", "bridge", "model", "noise", "permutations", "sampler"},
    "metrics": {"permutations", "_libraries", "_C"},
    "answers": {"metrics", "permutations", "sampler"},
    "checkpoint": {"model"},
    "tasks": {"permutations", "metrics", "tasks", "_libraries"},
    "baselines": {
        "ops", "bridge", "riffle", "model", "noise", "constraints", "permutations", "sampler", "search", "losses",
        "tasks", "metrics", "checkpoint", "baselines", "distributions",
    },
    "losses": {"ops", "bridge", "riffle", "distributions", "model", "noise", "permutations", "tasks"},
    "methods": {"baselines", "model", "tasks"},
    "evaluate": {"model", "sampler", "tasks", "_libraries"},
    "train": {
        "bridge", "losses", "model", "tasks", "metrics", "checkpoint", "evaluate", "_libraries",
    },
    "item_files": {"sampler", "tasks"},
    "plots": {"permutations", "metrics", "trajectory"},
    "demo": {"checkpoint", "metrics", "model", "plots", "sampler", "tasks"},
}  # fmt: skip
# Allowed inside a function only: methods of the model that hand over to `checkpoint`, which needs the model first.
ALLOWED_LATE = {"model": {"checkpoint"}}
# Only these may import the libraries named.
LIBRARIES = {
    "matplotlib": {"plots", "__main__"},
    "torchvision": {"tasks"},
    "fast_tsp": {"tasks"},
    "safetensors": {"checkpoint", "train"},
}


def imported_names(source: str) -> set[str]:
    """Full names of the modules that a source text imports, wherever in it; `from a import b` gives a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module" and node.args:
            names.add(str(ast.literal_eval(node.args[0])))
    return names


def forbidden_imports(room: str, source: str) -> set[str]:
    """What a module of `room` imports although it may not."""
    names = imported_names(source)
    allowed = ALLOWED[room]
    wrong = {name for name in names for library, users in LIBRARIES.items()
             if name.split(".")[0] == library and room not in users}  # fmt: skip
    if allowed is EVERYTHING:
        return wrong
    rooms = {path.stem for path in PACKAGE.glob("*.py")} | set(ALLOWED) | {"_C"}
    wrong |= _rooms_of(names) & rooms - allowed - ALLOWED_LATE.get(room, set())
    at_once = "\n".join(ast.unparse(node) for node in ast.parse(source).body if not _is_definition(node))
    return wrong | (_rooms_of(imported_names(at_once)) & rooms - allowed)


def _rooms_of(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("softrank_ext.")}


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def _sources() -> list[tuple[str, Path]]:
    return [
        (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize(("room", "path"), _sources(), ids=lambda value: value if isinstance(value, str) else "")
def test_modules_import_only_what_they_may(room, path):
    assert room in ALLOWED, f"{path.name} needs a line in the table of rooms"
    assert forbidden_imports(room, path.read_text()) == set()


def test_forbidden_imports_are_seen():
    assert forbidden_imports("bridge", "from softrank_ext import model") == {"model"}
    assert forbidden_imports("ops", "import softrank_ext.noise") == {"noise"}
    assert forbidden_imports("reference", "def f():\n    from softrank_ext.ops import reflect") == {"ops"}
    assert forbidden_imports("checkpoint", "from softrank_ext.sampling import sample") == {"sampler"}
    assert forbidden_imports("metrics", "import matplotlib.pyplot as plt") == {"matplotlib.pyplot"}
    assert forbidden_imports("noise", "from importlib import import_module\nimport_module('softrank_ext._C')") == {"_C"}
    assert forbidden_imports("model", "from softrank_ext import checkpoint") == {"checkpoint"}
    assert forbidden_imports("model", "def f():\n    from softrank_ext import checkpoint") == set()
    assert forbidden_imports("bridge", "from softrank_ext import ops\nimport torch") == set()


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
