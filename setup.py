"""Drives CMake and Ninja; everything else is in pyproject.toml and CMakeLists.txt."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def wants_cuda() -> bool:
    """CUDA is built where nvcc is found, or as SOFTRANK_CUDA=0/1 says; a visible GPU is never asked for."""
    value = os.environ.get("SOFTRANK_CUDA", "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"SOFTRANK_CUDA must be 0 or 1, got {value!r}")
    if value == "1" and nvcc() is None:
        raise SystemExit("SOFTRANK_CUDA=1 asks for CUDA, but nvcc is not on the PATH (nor in CUDA_HOME/bin)")
    return value != "0" and nvcc() is not None


def nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None)


class BuildWithCMake(build_ext):
    def run(self) -> None:
        # Imported here: metadata commands must work without the build requirements.
        import cmake
        import ninja
        import pybind11
        import torch

        build = Path(self.build_temp).resolve()
        into = Path.cwd() if self.editable_mode else Path(self.build_lib).resolve()
        cmake_command = str(Path(cmake.CMAKE_BIN_DIR) / "cmake")
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": str(Path(ninja.BIN_DIR) / "ninja"),
            "CMAKE_INSTALL_PREFIX": str(into),
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
            "TORCH_FOLDER": str(Path(torch.__file__).parent),
            "TORCH_VERSION": torch.__version__,
            "SOFTRANK_CUDA": "ON" if wants_cuda() else "OFF",
        }
        if wants_cuda():
            options["CMAKE_CUDA_COMPILER"] = nvcc()
        arguments = [f"-D{name}={value}" for name, value in options.items()]
        # Fresh: a cache of an earlier build names tools in a build environment that is gone.
        subprocess.run([cmake_command, "--fresh", "-S", ".", "-B", str(build), "-G", "Ninja", *arguments], check=True)
        subprocess.run([cmake_command, "--build", str(build)], check=True)
        # What an earlier build with CUDA has left must not get into one without.
        (into / "softrank_ext" / "_ops_cuda.so").unlink(missing_ok=True)
        subprocess.run([cmake_command, "--install", str(build)], check=True)


setup(
    ext_modules=[Extension("softrank_ext._ops", sources=[])],
    cmdclass={"build_ext": BuildWithCMake},
)
