"""The ops of the CUDA library refuse what is not as it should be, before they ask for a device: no GPU is needed.

The dispatcher is told to take the kernels of CUDA for CPU tensors.
"""

from typing import Any

import pytest
import torch
from test_ops_decoder import op_arguments

import softrank_ext
from softrank_ext import ops

pytestmark = pytest.mark.skipif(
    not softrank_ext.build_info().get("cuda_loaded"),
    reason="this build has no CUDA library, or torch is older than 2.13",
)
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
SCORES, MASK, IDS = torch.rand(3, 4), torch.ones(3, 4, dtype=torch.bool), torch.arange(3)


def call(name: str, *arguments: Any) -> Any:
    return getattr(torch.ops.softrank_ext, name).default.redispatch(CUDA, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("decode_chamber", (SCORES[0], None), r"soft_ranks must be \(B, N\), got 1 dimensions"),
        ("decode_chamber", (SCORES, MASK.T), r"mask must be \(3, 4\), got \(4, 3\)"),
        ("decode_chamber", (SCORES, SCORES), "mask has the wrong dtype"),
        ("decode_chamber", (SCORES, MASK), "soft_ranks must be on a CUDA device"),
        ("pick", (SCORES, MASK.flatten(), None), r"remaining must be \(3, 4\), got \(12\)"),
        ("pick", (SCORES, MASK, torch.rand(1, 3)), r"uniform must be \(3\), got \(1, 3\)"),
        ("pick", (SCORES, MASK, torch.rand(3).double()), "uniform has the wrong dtype"),
        ("pick", (SCORES, MASK, torch.rand(3)), "scores must be on a CUDA device"),
        ("random_uniform", (IDS, 1, 0, 0, -5, torch.float32), r"count must be from 0 to 2\^31 - 1, got -5"),
        ("random_normal", (IDS, 1, 2**24, 0, 5, torch.float32), r"step must be from 0 to 2\^24 - 1, got 16777216"),
        ("random_normal", (IDS, 1, 0, 256, 5, torch.float32), "stream must be from 0 to 255, got 256"),
        ("random_normal", (IDS, 1, 0, 0, 5, torch.float16), "dtype must be float32 or float64"),
        ("random_normal", (IDS.int(), 1, 0, 0, 5, torch.float32), "samples has the wrong dtype"),
        ("random_normal", (IDS, 1, 0, 0, 5, torch.float32), "samples must be on a CUDA device"),
        ("reflect", (SCORES,), "x must be on a CUDA device"),
        ("pack_decoder", ([],), "weights must be 20 tensors per layer and 2 of the final norm, got 0"),
    ],
)  # fmt: skip
def test_bad_calls(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(name, *arguments)


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("memory", torch.rand(2, 80), "memory must have 3 dimensions, got 2"),
        ("memory", torch.rand(2, 5, 8), r"tokens must be \(2, 5, 8\), got \(2, 5, 16\)"),
        ("tokens", torch.rand(5, 2, 16), r"tokens must be \(2, 5, 16\), got \(5, 2, 16\)"),
        ("start", torch.rand(16, 2), r"start must be \(2, 16\), got \(16, 2\)"),
        ("places", torch.rand(80), r"places must be \(5, 16\), got \(80\)"),
        ("head_keys", torch.rand(2, 16, 5), r"head_keys must be \(2, 5, 16\), got \(2, 16, 5\)"),
        ("head_bias", torch.rand(10), r"head_bias must be \(2, 5\), got \(10\)"),
        ("mask", torch.ones(5, 2, dtype=torch.bool), r"mask must be \(2, 5\), got \(5, 2\)"),
        ("mask", torch.ones(2, 5), "mask has the wrong dtype"),
        ("uniform", torch.rand(10), r"uniform must be \(2, 5\), got \(10\)"),
        ("forced_order", torch.arange(5).expand(2, 5).int(), "forced_order has the wrong dtype"),
        ("forced_order", torch.zeros(5, 2).long(), r"forced_order must be \(2, 5\), got \(5, 2\)"),
        ("draft", torch.zeros(10).long(), r"draft must be \(2, 5\), got \(10\)"),
        ("before", torch.zeros(50, dtype=torch.bool), r"before must be \(2, 5, 5\), got \(50\)"),
        ("allowed", torch.ones(2, 25, dtype=torch.bool), r"allowed must be \(2, 5, 5\), got \(2, 25\)"),
        ("group", torch.ones(5, 2).long(), r"group must be \(2, 5\), got \(5, 2\)"),
        ("temperature", 1e-40, "temperature must be positive and finite in the dtype of the scores, got 1e-40"),
        ("forced_places", 6, "forced_places must be from 0 to 5, got 6"),
        ("heads", 3, "heads must divide D = 16, got 3"),
        ("packed", torch.zeros(1).expand(64), "packed must be packed weights, a contiguous vector"),
        ("packed", torch.zeros(64).double(), "packed must have the dtype of memory"),
        ("weights", (2, (16, 48)), r"weights\[2\] must be \(48, 16\), got \(16, 48\)"),
        ("weights", (3, (1, 48)), r"weights\[3\] must be \(48\), got \(1, 48\)"),
        ("nothing", None, "memory must be on a CUDA device"),
    ],
)  # fmt: skip
def test_bad_calls_of_the_decoder(make_model: Any, field: str, wrong: Any, message: str) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 5, dtype=torch.bool)
    decoder, inputs = op_arguments(make_model("pointer"), torch.rand(2, 5, 2), mask)
    choices = ops.Choices(forced_order=torch.arange(5).expand(2, 5))
    if field == "weights":
        number, shape = wrong
        decoder.weights[number] = torch.zeros(shape)
    parts = [
        part._replace(**{field: wrong}) if field in part._fields and field != "weights" else part
        for part in (decoder, inputs, choices)
    ]
    with pytest.raises(RuntimeError, match=message):
        call("decode_order", *(value for part in parts for value in part))
