"""Drives CMake and Ninja; everything else is in pyproject.toml and CMakeLists.txt."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

PLAIN_MARK = "_plain_install"  # the file that tells the package to do without compiled libraries, on purpose


def asked(name: str) -> str:
    """The variable `name` of the environment: "", "0" or "1"."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"{name} must be 0 or 1, got {value!r}")
    return value


def is_plain() -> bool:
    """SOFTRANK_PLAIN=1: a pure-Python install, slow, for where there is no compiler."""
    return asked("SOFTRANK_PLAIN") == "1"


def wants_cuda() -> bool:
    """CUDA is built where nvcc is found, or as SOFTRANK_CUDA=0/1 says; a visible GPU is never asked for."""
    value = asked("SOFTRANK_CUDA")
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
            "SOFTRANK_STRICT": "ON" if asked("SOFTRANK_STRICT") == "1" else "OFF",  # CI: warnings are errors
        }
        if wants_cuda():
            options["CMAKE_CUDA_COMPILER"] = nvcc()
        arguments = [f"-D{name}={value}" for name, value in options.items()]
        try:
            # Fresh: a cache of an earlier build names tools in a build environment that is gone.
            configure = [cmake_command, "--fresh", "-S", ".", "-B", str(build), "-G", "Ninja", *arguments]
            subprocess.run(configure, check=True)
            subprocess.run([cmake_command, "--build", str(build)], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                "softrank_ext was not compiled, see above. It needs a C++20 compiler (GCC 11 or clang 14, or later). "
                "Without one, SOFTRANK_PLAIN=1 in the environment of pip installs it in pure Python: slow but right."
            ) from error
        # What an earlier build with CUDA has left must not get into one without.
        (into / "softrank_ext" / "_ops_cuda.so").unlink(missing_ok=True)
        subprocess.run([cmake_command, "--install", str(build)], check=True)


class BuildWithMark(build_py):
    def run(self) -> None:
        super().run()
        into = (Path.cwd() if self.editable_mode else Path(self.build_lib)) / "softrank_ext"
        mark = into / PLAIN_MARK
        if is_plain():
            for library in into.glob("*.so"):
                library.unlink()  # of an earlier build
            mark.write_text("Installed with SOFTRANK_PLAIN=1: no compiled libraries.\n")
        else:
            mark.unlink(missing_ok=True)


setup(
    ext_modules=[] if is_plain() else [Extension("softrank_ext._ops", sources=[])],
    cmdclass={"build_ext": BuildWithCMake, "build_py": BuildWithMark},
)
