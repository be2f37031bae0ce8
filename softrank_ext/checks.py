"""Every check of an argument and its sentence, once: "NAME must be WHAT WAS WANTED, got WHAT CAME".

A wrong type is a TypeError, a wrong value a ValueError. Nothing here reads the data of a tensor: checks that do
(is this a permutation?) are in `permutations`.
"""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.float64)
ANY_FLOAT = (torch.float16, torch.bfloat16, *FLOAT_DTYPES)


def described(value: object) -> str:
    """What came, for an error message: shape and dtype of a tensor, type of anything else."""
    if isinstance(value, Tensor):
        kind = "" if value.layout == torch.strided else " sparse"
        return f"{tuple(value.shape)} {dtype_name(value.dtype)}{kind}"
    return type(value).__name__


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def check_choice(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raise ValueError, listing what is allowed, unless `value` is one of `allowed`."""
    allowed = tuple(allowed)
    if isinstance(value, Tensor) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value, if it is an integer (not a bool) from `least` to `most`; else raise ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {wanted}, got {value!r}")
    return value


def check_limited(name: str, value: object, least: int, most: int) -> int:
    """The value, if it is an integer of at least `least` and within a limit of ours; else raise ValueError."""
    checked = check_integer(name, value, least)
    if checked > most:
        raise ValueError(f"{name} must be an integer of at most {most}, got {checked}")
    return checked


def check_seed(seed: object) -> int:
    """The seed, if it is a 64-bit integer; else raise ValueError."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a 64-bit integer, got {seed!r}")
    return seed


def check_number(name: str, value: object, wanted: str, is_right: Callable[[float], bool] = lambda _: True) -> None:
    """Raise ValueError, saying what is wanted, unless `value` is a number that a float can be, and is right.

    is_right: asked of numbers alone.
    """
    is_number = isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    )
    if not is_number or not is_right(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} must be {wanted}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number above 0."""
    check_number(name, value, "positive and finite", lambda x: 0 < x < math.inf)


def check_not_negative(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a finite number of at least 0."""
    check_number(name, value, "at least 0 and finite", lambda x: 0 <= x < math.inf)


def check_share(name: str, value: Any) -> None:
    """Raise ValueError unless the value is at least 0 and below 1."""
    check_number(name, value, "at least 0 and below 1", lambda x: 0 <= x < 1)


def check_tensor(
    name: str, value: object, shape: Sequence[int | str], dtypes: torch.dtype | Sequence[torch.dtype], hint: str = ""
) -> Tensor:
    """The value, if it is a tensor of this shape and of one of the dtypes; else raise TypeError or ValueError.

    shape: a number must match, a word stands for any size, as (B, "N", 3), and "..." in front for any leading
    dimensions. hint: what to say behind the sentence.
    """
    allowed = (dtypes,) if isinstance(dtypes, torch.dtype) else tuple(dtypes)
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    if isinstance(value, Tensor) and is_dense and value.dtype in allowed and has_shape(value, shape):
        return value
    sizes = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    kind = ValueError if isinstance(value, Tensor) else TypeError
    raise kind(
        f"{name} must be a ({sizes}) tensor of {' or '.join(map(dtype_name, allowed))}, got {described(value)}{hint}"
    )


def has_shape(value: Tensor, shape: Sequence[int | str]) -> bool:
    """Whether the tensor has this shape, written as for `check_tensor`."""
    actual = tuple(value.shape)
    if shape and shape[0] == "...":
        shape = shape[1:]
        actual = actual[max(len(actual) - len(shape), 0) :]
    return len(actual) == len(shape) and all(
        isinstance(size, str) or size == got for size, got in zip(shape, actual, strict=True)
    )


def check_instance(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Raise TypeError unless the value is an instance of the class, or of one of the classes."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise TypeError(f"{name} must be {' or '.join(one.__name__ for one in kinds)}, got {type(value).__name__}")


def check_has(name: str, value: object, *methods: str) -> None:
    """Raise TypeError unless the value has these methods."""
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing:
        raise TypeError(f"{name} must have {' and '.join(methods)}, got {type(value).__name__} without {missing[0]}")


def check_device(device: object) -> torch.device:
    """The device, if it is one that is here; else raise ValueError or TypeError."""
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device must be a string or a torch.device, got {type(device).__name__}")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device must be one that is here, such as cpu, got {str(device)!r}") from error
    return found


def check_bool(name: str, value: object) -> None:
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_mask(name: str, value: object, like_name: str, like: Tensor) -> None:
    """Raise ValueError unless the value is a bool tensor of the shape and on the device of `like`."""
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    if not isinstance(value, Tensor) or not is_dense or value.dtype != torch.bool or value.shape != like.shape:
        raise ValueError(
            f"{name} must be a bool tensor of the shape of {like_name} {tuple(like.shape)}, got {described(value)}"
        )
    if value.device != like.device:
        raise ValueError(f"{name} must be on the device of {like_name}, {like.device}, got {value.device}")
