"""Arguments that do not fit, made from arguments that do."""

import dataclasses
import math
import random
from typing import Any

import torch
from torch import Tensor

_NUMBERS = (0, -1, 1, 2, 7, 10**9, -(10**9), 2**31, 2**63 - 1, -(2**63), 2**70, True, 0.5, -0.0, 1e-300, 1e-40, 1e38,
            1e308, math.nan, math.inf, -math.inf)  # fmt: skip
_OTHERS = (None, "", "word", "cpu", b"bytes", (), [], {}, {"a": 1}, [1, 2], [[1], [1, 2]], object(), slice(None), 3j,
           torch.float16, torch.int64, torch.device("cpu"), [torch.zeros(2)], lambda: None)  # fmt: skip
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8,
           torch.bool, torch.complex64)  # fmt: skip


def spoiled(value: Any, chance: random.Random, meta: bool) -> Any:
    """Another value in place of this one; most often of the same kind, so that a call gets beyond its first check.

    meta: also tensors of torch's meta device.
    """
    if chance.random() < 0.08:
        return chance.choice(_OTHERS)
    if isinstance(value, Tensor):
        return _spoiled_tensor(value, chance, meta)
    if isinstance(value, bool) or value is None:
        return chance.choice((not value, *_NUMBERS, torch.zeros(2, 3), torch.zeros(3, 4, dtype=torch.bool)))
    if isinstance(value, int | float):
        return chance.choice((value + 1, value - 1, -value, *_NUMBERS))
    if isinstance(value, str):
        return chance.choice((value + "x", value.upper(), "", *_NUMBERS[:4]))
    if isinstance(value, list | tuple) and value:
        at = chance.randrange(len(value))
        changed = [*value[:at], spoiled(value[at], chance, meta), *value[at + 1 :]]
        changed = chance.choice((changed, changed, list(value[:at]), [*value, value[at]]))
        is_named = hasattr(value, "_fields") and len(changed) == len(value)
        return type(value)(*changed) if is_named else type(value)(changed) if type(value) in (list, tuple) else changed
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value, key=str))
        return {**value, key: spoiled(value[key], chance, meta)}
    if dataclasses.is_dataclass(value) and dataclasses.fields(value):
        name = chance.choice(dataclasses.fields(value)).name
        try:
            return dataclasses.replace(value, **{name: spoiled(getattr(value, name), chance, meta)})  # type: ignore[type-var]
        except (ValueError, TypeError):  # its own checks refuse it
            return value
    return chance.choice((*_NUMBERS, *_OTHERS))


def _spoiled_tensor(value: Tensor, chance: random.Random, meta: bool) -> Any:
    """Another shape, dtype, stride, device or content."""
    shape = list(value.shape)
    ways = ["dtype", "flat", "more", "values", "values", "index", "strided", "expanded", "meta", "numpy", "scalar"]
    if shape:
        ways += ["shorter", "longer", "empty", "less", "swapped", "shape"]
    way = chance.choice(ways)
    dim = chance.randrange(len(shape)) if shape else 0
    if way == "dtype":
        return value.to(chance.choice(_DTYPES))
    if way == "flat":
        return value.reshape(-1)
    if way == "more":
        return value[None]
    if way == "less":
        return value.select(dim, 0) if shape[dim] else value.new_zeros(())
    if way == "shorter":
        return value.narrow(dim, 0, max(shape[dim] - 1, 0))
    if way == "longer":
        return torch.cat((value, value.narrow(dim, 0, min(1, shape[dim]))), dim)
    if way == "empty":
        return value.narrow(dim, 0, 0)
    if way == "swapped":
        return value.transpose(dim, -1)
    if way == "shape":
        return torch.ones([chance.choice((0, 1, 2, 3, 5)) for _ in range(chance.randrange(5))]).to(value.dtype)
    if way == "strided":
        return value.repeat_interleave(2, -1)[..., ::2] if shape else value
    if way == "expanded":
        return value.flatten()[:1].expand(value.numel()).view(shape) if value.numel() else value
    if way == "meta":
        return value.to("meta") if meta else value.to_sparse()
    if way == "numpy":
        return value.detach().numpy() if value.dtype != torch.bfloat16 else value.tolist()
    if way == "scalar":
        return chance.choice(_NUMBERS)
    changed = value.clone()
    flat = changed.view(-1)
    if flat.numel() == 0:
        return changed
    for _ in range(chance.choice((1, 2, flat.numel()))):
        at = chance.randrange(flat.numel())
        if changed.is_floating_point():
            flat[at] = chance.choice((math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, 2.0, -1.0))
        elif changed.dtype == torch.bool:
            flat[at] = not bool(flat[at])
        else:
            flat[at] = chance.choice((-1, 0, 1, 10**9, -(10**9), 2**62, -(2**63), 5, 100))
    return changed


def described(value: Any) -> str:
    """A value, short."""
    if isinstance(value, Tensor):
        is_plain = value.layout == torch.strided
        is_short = is_plain and 0 < value.numel() <= 6 and value.device.type == "cpu"
        numbers = f" {value.flatten().tolist()}" if is_short else ""
        layout = "" if is_plain and value.is_contiguous() else f" strides {value.stride()}" if is_plain else " sparse"
        return f"<{tuple(value.shape)} {str(value.dtype)[6:]} {value.device}{layout}{numbers}>"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(described, value[:4])) + (", ..." if len(value) > 4 else "")
        return f"{type(value).__name__}({inside})"
    text = " ".join(repr(value).split())
    return text if len(text) < 80 else f"{text[:77]}..."
