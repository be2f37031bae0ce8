"""Tests of _libraries.py and of the module `_C`: what happens without binaries, and what a build says of itself."""

import importlib
import itertools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import softrank_ext
from softrank_ext import _libraries

PACKAGE = Path(softrank_ext.__file__).parent
needs_compiled = pytest.mark.skipif(_libraries.uses_reference(), reason="runs on the reference")


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the package without its compiled libraries."""
    folder = tmp_path_factory.mktemp("uncompiled")
    shutil.copytree(PACKAGE, folder / "softrank_ext", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def _run(folder: Path, code: str, reference: str | None = None) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "SOFTRANK_EXT_REFERENCE"}
    environment["PYTHONPATH"] = str(folder)
    if reference is not None:
        environment["SOFTRANK_EXT_REFERENCE"] = reference
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=folder)


def test_import_without_libraries_says_what_to_do(uncompiled):
    run = _run(uncompiled, "import softrank_ext")
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: softrank_ext is not compiled: _ops.so is missing from ")
    assert "Run `pip install -e .` in the source tree" in last
    assert last.endswith("or set SOFTRANK_EXT_REFERENCE=1 to run on the slow plain-torch reference.")


def test_reference_runs_without_libraries_on_purpose(uncompiled):
    code = """
import torch, softrank_ext
from softrank_ext import noise
info = softrank_ext.build_info()
assert info["kernels"] == "plain-torch reference, slow: SOFTRANK_EXT_REFERENCE=1", info
assert info["cuda_compiled"] is False, info
assert torch.ops.softrank_ext.cpu_capability() == "plain torch"
keys = torch._C._dispatch_dump("softrank_ext::reflect")
assert "CPU: registered" not in keys and "CompositeExplicitAutograd" in keys, keys
order, ranks = softrank_ext.decode_chamber(torch.tensor([0.9, 0.1, 0.5, 0.3]))
print(order.tolist(), ranks.tolist(), softrank_ext.reflect(torch.tensor([-1.25])).tolist())
print(noise.uniform(0, torch.tensor([0]), 0, 1, dtype=torch.float64).item() == (0x6627E8D5E169C58D >> 11) * 2.0**-53)
"""
    run = _run(uncompiled, code, reference="1")
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["[1, 3, 2, 0] [3, 0, 2, 1] [0.75]", "True"]


def test_a_wrong_value_of_the_reference_variable_is_refused(uncompiled):
    run = _run(uncompiled, "import softrank_ext", reference="yes")
    assert run.returncode != 0
    assert "ImportError: SOFTRANK_EXT_REFERENCE must be 0 or 1, got 'yes'" in run.stderr


def test_a_plain_install_runs_and_says_so(uncompiled):
    """What SOFTRANK_PLAIN=1 leaves: a mark, and no library."""
    mark = uncompiled / "softrank_ext" / "_plain_install"
    mark.write_text("")
    try:
        code = """
import torch, softrank_ext
from softrank_ext import Engine, SoftRankModel, from_pretrained, metrics, sample
print(softrank_ext.build_info()["kernels"])
items = torch.arange(12).repeat(2, 1)
order = sample(from_pretrained("preferences-dublin-north"), items, seed=0, steps=1).order
print(order.flatten(0, -2).sort(1).values.equal(items))
print(metrics.kendall_tau(torch.tensor([[1, 3, 2, 0]]), torch.tensor([[0, 1, 2, 3]])).tolist())
"""
        run = _run(uncompiled, code)
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines()[:2] == ["plain-torch reference, slow: a plain install", "True"]
        run = _run(uncompiled, "import softrank_ext", reference="0")
        assert "softrank_ext is not compiled: _ops.so is missing" in run.stderr  # the variable goes before the mark
    finally:
        mark.unlink()


@needs_compiled
def test_a_python_without_its_module_runs_on_plain_twins(uncompiled, tmp_path):
    """A wheel's `_ops` serves every Python, its `_C` one."""
    shutil.copytree(uncompiled, tmp_path, dirs_exist_ok=True)
    shutil.copy(PACKAGE / "_ops.so", tmp_path / "softrank_ext")
    shutil.copy(next(PACKAGE.glob("_C.*.so")), tmp_path / "softrank_ext" / "_C.cpython-27-x86_64-linux-gnu.so")
    code = """
import torch, softrank_ext
from softrank_ext import metrics
from softrank_ext.costs import LinearOrdering, local_search
info = softrank_ext.build_info()
print(info["kernels"], info["numpy_algorithms"], sep=", ")
order, weights = torch.tensor([[1, 3, 2, 0]]), torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0))
cheaper = local_search(weights, order, LinearOrdering())
assert (LinearOrdering()(weights, cheaper) <= LinearOrdering()(weights, order)).all()
print(metrics.kendall_tau(order, torch.tensor([[0, 1, 2, 3]])).tolist())
"""
    run = _run(tmp_path, code)
    assert run.returncode == 0, run.stderr
    here = _run(PACKAGE.parent, code)
    assert run.stdout.splitlines()[0] == "compiled, plain, slow: there is no _C for this Python"
    assert here.stdout.splitlines()[0] == "compiled, compiled"
    assert run.stdout.splitlines()[1] == here.stdout.splitlines()[1]


@needs_compiled
def test_a_damaged_module_is_explained(uncompiled, tmp_path):
    shutil.copytree(uncompiled, tmp_path, dirs_exist_ok=True)
    shutil.copy(PACKAGE / "_ops.so", tmp_path / "softrank_ext")
    (tmp_path / "softrank_ext" / next(PACKAGE.glob("_C.*.so")).name).write_bytes(b"not a library")
    code = "from softrank_ext import metrics; import torch; o = torch.tensor([[1, 0]]); metrics.kendall_tau(o, o)"
    last = _run(tmp_path, code).stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: softrank_ext's _C does not load: it is damaged or was built for another machine."
    )
    assert "pip install --force-reinstall" in last


def test_every_module_can_be_imported():
    """What documentation tools and type checkers do; the libraries of ops are empty modules."""
    optional = {"tensorboard", "torchvision", "matplotlib", "huggingface_hub", "polars"}
    names = [module.name for module in pkgutil.walk_packages(softrank_ext.__path__, "softrank_ext.")]
    assert len(names) > 100
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name in optional, name


def test_reference_variable(monkeypatch):
    for value, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("SOFTRANK_EXT_REFERENCE", value)
        assert _libraries.uses_reference() is expected
    monkeypatch.setenv("SOFTRANK_EXT_REFERENCE", "true")
    with pytest.raises(ImportError, match=r"^SOFTRANK_EXT_REFERENCE must be 0 or 1, got 'true'$"):
        _libraries.uses_reference()


def test_old_torch_is_named(monkeypatch):
    monkeypatch.delenv("SOFTRANK_EXT_REFERENCE", raising=False)
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(ImportError, match=r"^softrank_ext needs torch 2.10 or later, you have 2.9.1\+cpu: upgrade"):
        _libraries.load_libraries()


@needs_compiled
def test_a_library_that_does_not_load_is_explained(monkeypatch, tmp_path):
    (tmp_path / "_ops.so").write_bytes(b"not a library")
    monkeypatch.setattr(_libraries, "_FOLDER", tmp_path)
    wanted = (
        rf"^softrank_ext's _ops.so does not load beside torch {re.escape(torch.__version__)} on \w+ \w+: it is damaged "
        r"or was built for another machine or another torch. Install it again: `pip install --force-reinstall"
    )
    with pytest.raises(ImportError, match=wanted):
        _libraries.load_libraries()


@needs_compiled
def test_build_info():
    info = softrank_ext.build_info()
    assert set(info) == {
        "version", "torch_running", "threads", "kernels", "numpy_algorithms", "torch_built_against", "compiler",
        "cpu_capability",
        "cuda_compiled", "cuda_loaded", "cuda_architectures",
    }  # fmt: skip
    assert info["kernels"] == info["numpy_algorithms"] == "compiled"
    assert re.match(r"\d+\.\d+", str(info["torch_built_against"])) and re.match(r"\w+ \d+", str(info["compiler"]))
    assert info["torch_running"] == torch.__version__
    assert info["threads"] == torch.get_num_threads()
    assert info["cpu_capability"] in ("baseline", "avx2", "avx512")
    assert info["version"] == softrank_ext.__version__


class Driver:
    """libcuda of a machine with GPUs of these compute capabilities."""

    def __init__(self, version: int, *capabilities: tuple[int, int]) -> None:
        self.version, self.capabilities = version, capabilities

    def cuDriverGetVersion(self, number):
        number._obj.value = self.version

    def cuDeviceGetCount(self, number):
        number._obj.value = len(self.capabilities)

    def cuDeviceGetAttribute(self, number, attribute, device):
        number._obj.value = self.capabilities[device][attribute - 75]


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (Driver(13000, (7, 5), (8, 0), (8, 9), (9, 0), (12, 1)), None),
        (Driver(13010, (13, 0)), None),  # later than all: its driver compiles the PTX of the last
        (Driver(13000), None),
        (Driver(12080, (8, 0)), "the driver knows CUDA 12.8, the library was compiled with 13.0.88"),
        (
            Driver(13000, (8, 0), (7, 0)),
            "GPU 1 has compute capability 7.0, the library was compiled for 75-real 80-real 90-real 120",
        ),
        (
            Driver(13000, (10, 0)),
            "GPU 0 has compute capability 10.0, the library was compiled for 75-real 80-real 90-real 120",
        ),
    ],
)
def test_gpus_that_the_cuda_library_cannot_use(driver, problem):
    compiled = {"cuda_version": "13.0.88", "cuda_architectures": "75-real 80-real 90-real 120"}
    assert _libraries._problem_of(driver, compiled) == problem


def test_libraries_of_different_builds_are_told():
    compiled = {"cuda_version": "", "cuda_architectures": ""}
    assert _libraries._problem_of(Driver(13000, (8, 0)), compiled) == "its libraries are of different builds"


@needs_compiled
@pytest.mark.skipif(not (PACKAGE / "_ops_cuda.so").exists(), reason="built without CUDA")
def test_a_gpu_that_is_not_covered_is_one_warning(monkeypatch):
    monkeypatch.setattr(_libraries, "cuda_problem", lambda: "it is too old")
    with pytest.warns(RuntimeWarning, match=r"^softrank_ext runs in plain torch on GPUs: it is too old$") as caught:
        _libraries._load("_ops_cuda", is_required=False)
    assert len(caught) == 1
    assert not softrank_ext.build_info()["cuda_loaded"]


@needs_compiled
@pytest.mark.parametrize("op", ["reflect", "decode_chamber", "pick", "random_uniform", "random_normal"])
def test_cpu_kernels_are_registered(op):
    registrations = torch._C._dispatch_dump(f"softrank_ext::{op}")
    assert "CPU: registered" in registrations and "CompositeExplicitAutograd" in registrations


def _brute_force_pairs(row: list[int]) -> int:
    return sum(first > second for first, second in itertools.combinations(row, 2))


@needs_compiled
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (4, 1), (5, 2), (6, 9), (3, 100), (2, 257)])
def test_discordant_pairs(shape):
    B, N = shape
    generator = np.random.default_rng(0)
    ranks = np.stack([generator.permutation(N) for _ in range(B)]) if B else np.zeros((0, N), dtype=np.int64)
    counts = _libraries.compiled_module().discordant_pairs(ranks.astype(np.int64))
    assert counts.dtype == np.int64
    assert counts.tolist() == [_brute_force_pairs(row) for row in ranks.tolist()]


@needs_compiled
def test_discordant_pairs_of_hand_written_rows():
    count = _libraries.compiled_module().discordant_pairs
    rows = np.array([[3, 0, 2, 1], [0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 0, 0]])
    assert count(rows).tolist() == [4, 0, 6, 4]
    assert count(np.asfortranarray(rows)).tolist() == [4, 0, 6, 4]
    assert count(np.repeat(rows, 2, axis=1)[:, ::2]).tolist() == [4, 0, 6, 4]
    assert rows.tolist()[0] == [3, 0, 2, 1]
    with pytest.raises(ValueError, match=r"^ranks must be a \(B, N\) int64 array, got 1 dimensions$"):
        count(np.arange(4))
