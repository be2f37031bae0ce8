"""`decode_order` by the CUDA kernels' own source, compiled for the host."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from softrank_ext import ops

FOLDER = Path(__file__).resolve().parent.parent / "cuda_on_host"
KERNELS = FOLDER.parent.parent / "csrc" / "ops" / "cuda"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ("-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


def require_compiler(source: str) -> None:
    """Skip the test without a file of cuda_on_host, the kernels or a compiler."""
    if not KERNELS.exists() or not (FOLDER / source).exists():
        pytest.skip("the source tree (csrc/ops/cuda) is not beside the tests")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no C++ compiler: {COMPILER} is not on the PATH")


def compiled_for_host(source: str, folder: Path, *flags: str) -> Path:
    """The library made of a file of cuda_on_host; see `require_compiler`."""
    require_compiler(source)
    library = folder / f"{Path(source).stem}.so"
    subprocess.run([COMPILER, *FLAGS, *flags, "-shared", "-fPIC", str(FOLDER / source), "-o", str(library)], check=True)
    return library


class Plan(NamedTuple):
    """How rows are laid on blocks: tokens of a block, how many of them each row has, warps that attend at once."""

    tokens: int
    places_per_pass: int = 1
    attention_warps: int = 8


_POINTERS = (
    "weights", "memory", "tokens", "start", "places", "head_keys", "head_bias", "mask", "uniform", "forced", "draft",
    "before", "allowed", "group", "order", "log_probs", "work", "reads",
)  # fmt: skip
_INTEGERS = (
    "rows", "layers", "width", "feed_width", "heads", "slots", "forced_places", "block_tokens", "places_per_pass",
    "attention_warps",
)  # fmt: skip


class _HostCall(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("temperature", ctypes.c_double),
        ("norm_first", ctypes.c_int64),
        ("is_head_shared", ctypes.c_int64),
    )


class HostDecoder:
    """The library of decoder_on_host.cpp. `reads` counts how often the host waited for picks, in all calls."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.reads = 0

    def decode_order(
        self, decoder: ops.Transformer, inputs: ops.DecoderInputs, choices: ops.Choices, plan: Plan, kind: str = ""
    ) -> ops.DecodedOrder:
        """As `ops.decode_order`, without its checks; a pick that failed has log-probability NaN."""
        weights = [weight.detach().contiguous() for weight in decoder.weights]
        kept = {name: value.detach().contiguous() for name, value in inputs._asdict().items()}
        chosen = {
            "uniform": choices.uniform, "forced": choices.forced_order, "draft": choices.draft,
            "before": choices.before, "allowed": choices.allowed, "group": choices.group,
        }  # fmt: skip
        kept |= {name: value.contiguous() for name, value in chosen.items() if value is not None}
        B, N, D = inputs.memory.shape
        dtype = inputs.memory.dtype
        made = {
            "order": torch.full((B, N), -7),
            "log_probs": torch.full((B, N), torch.nan, dtype=dtype),
            "work": torch.full((B, 2), -7),
            "reads": torch.zeros(1, dtype=torch.int64),
        }
        pointers = (ctypes.c_void_p * len(weights))(*(weight.data_ptr() for weight in weights))
        call = _HostCall(weights=ctypes.cast(pointers, ctypes.c_void_p))
        for name, value in (kept | made).items():
            setattr(call, name, value.data_ptr())
        forced = N if choices.forced_places is None else choices.forced_places
        numbers = {
            "rows": B, "slots": N, "width": D, "heads": decoder.heads, "norm_first": decoder.norm_first,
            "layers": (len(weights) - 2) // len(ops.layer_weight_names("decoder")),
            "feed_width": len(weights[ops.layer_weight_names("decoder").index("feed_in_bias")]),
            "forced_places": 0 if choices.forced_order is None else forced,
            "block_tokens": plan.tokens, "places_per_pass": plan.places_per_pass,
            "attention_warps": plan.attention_warps, "temperature": choices.temperature,
            "is_head_shared": inputs.head_keys.shape[0] == 1,
        }  # fmt: skip
        for name, number in numbers.items():
            setattr(call, name, number)
        outcome = getattr(self.library, f"decode_order_{str(dtype).removeprefix('torch.')}{kind}")(ctypes.byref(call))
        self.reads += int(made["reads"])
        if outcome != 0:
            raise RuntimeError({1: "trapped", 2: "diverged", 3: "constraints leave no order"}[outcome])
        return ops.DecodedOrder(made["order"], made["log_probs"], made["work"])
