"""Pickles that hold arrays of bytes, as CIFAR-10's files do, read without Python's unpickler.

Of a pickle's instructions only those that such files are made of are carried out, here and not by `pickle`: values,
tuples, lists, dictionaries with texts for names, and numpy arrays of uint8 in the two forms that numpy writes. So
nothing in a file can call anything, and no number in it is believed: texts and arrays are as long as the file says and
holds, and places in the memory of instructions are names, whatever their size.
"""

import math
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

MOST_BYTES = 2**28
_NUMPY = ("_reconstruct", "_frombuffer", "ndarray", "dtype")
_VALUES = frozenset((
    "BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "SHORT_BINBYTES",
    "BINBYTES", "BINBYTES8", "BYTEARRAY8",
))  # fmt: skip
_MARK = object()  # where a list of values on the stack begins
_CONSTANTS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name:
    """Something of numpy that a file names."""

    def __init__(self, module: object, name: object) -> None:
        if not isinstance(module, str) or module.split(".")[0] != "numpy" or name not in _NUMPY:
            raise ValueError(f"it must hold arrays only, it asks for {f'{module}.{name}'[:80]!r}")
        self.name = name


class _ByteType:
    """numpy's type of bytes, the only one that is read."""

    def __init__(self, name: object) -> None:
        if not isinstance(name, str) or name not in ("u1", "|u1", "uint8", "B"):
            raise ValueError(f"arrays must be of uint8, got dtype {_short(name)}")

    def build(self, state: object) -> None:
        # Version, byte order, and what only types with fields or of Python objects have.
        if not isinstance(state, tuple) or len(state) < 5 or any(isinstance(part, tuple) for part in state):
            raise ValueError(f"arrays must be of plain uint8, got a {type(state).__name__}")
        if state[1:5] != ("|", None, None, None):
            raise ValueError(f"arrays must be of plain uint8, got {', '.join(map(_short, state))}")


class _ByteArray:
    """A numpy array, once its shape and its content are seen to agree."""

    array = np.zeros(0, np.uint8)

    def build(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError(f"an array must have five parts, got a {type(state).__name__}")
        _, shape, dtype, is_fortran, content = state
        content = content.encode("latin1") if isinstance(content, str) else content
        is_shape = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not is_shape or not isinstance(dtype, _ByteType) or is_fortran is not False:
            raise ValueError("an array must be rows of uint8")
        if not isinstance(content, bytes | bytearray) or math.prod(shape) != len(content):
            raise ValueError(f"an array of shape {shape} must have {math.prod(shape)} bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


def read_byte_pickle(data: bytes) -> object:
    """What the pickle says, with its arrays as numpy arrays of uint8; raises ValueError if it is not of that kind."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it must have at most {MOST_BYTES} bytes, got {len(data)}")
    stack: list[Any] = []
    memory: dict[object, Any] = {}
    try:
        for instruction, value, _ in pickletools.genops(data):
            name = instruction.name
            if name in _VALUES:
                stack.append(value)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                memory[value] = stack[-1]
            elif name == "MEMOIZE":
                memory[len(memory)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memory[value])
            elif name == "STOP":
                return _array_or_value(stack.pop())
            elif name not in ("PROTO", "FRAME"):
                _carry_out(name, value, stack)
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"its instructions do not fit each other: {error!r}") from error
    raise ValueError("it ends before its last instruction")


def _carry_out(name: str, value: Any, stack: list[Any]) -> None:
    """An instruction that makes one value of others."""
    if name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        values = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        _checked(stack[-1], list).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        values = _since_mark(stack) if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
        target = _checked(stack[-1], dict)
        for key, content in zip(values[::2], values[1::2], strict=True):
            target[_checked(key, str)] = _array_or_value(content)
    elif name == "GLOBAL":
        stack.append(_Name(*value.split(" ", 1)))
    elif name == "STACK_GLOBAL":
        inner = stack.pop()
        stack.append(_Name(stack.pop(), inner))
    elif name == "REDUCE":
        arguments = _checked(stack.pop(), tuple)
        stack.append(_made(_checked(stack.pop(), _Name).name, arguments))
    elif name == "BUILD":
        state = stack.pop()
        _checked(stack[-1], _ByteArray | _ByteType).build(state)
    else:
        raise ValueError(f"it must hold plain values and arrays only, it has the instruction {name}")


def _made(name: object, arguments: tuple[Any, ...]) -> _ByteArray | _ByteType:
    """What numpy would make of a name and its arguments."""
    if name == "dtype":
        return _ByteType(arguments[0])
    made = _ByteArray()
    if name == "_frombuffer":  # of protocol 5
        content, dtype, shape, order = arguments
        made.build((1, shape, dtype, order != "C", content))
    elif name != "_reconstruct":
        raise ValueError(f"arrays must be made as numpy writes them, got {name}")
    return made


def _since_mark(stack: list[Any]) -> list[Any]:
    values = []
    while stack[-1] is not _MARK:  # an IndexError where there is none
        values.append(stack.pop())
    stack.pop()
    return values[::-1]


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"its instructions do not fit each other: a {type(value).__name__} is not what is asked for")
    return value


def _array_or_value(value: Any) -> object:
    return value.array if isinstance(value, _ByteArray) else value


def _short(value: object) -> str:
    return repr(value)[:40] if value is None or isinstance(value, str | int) else f"a {type(value).__name__}"
