"""The library of ops, and how an op gets into it: schema, plain-torch reference as default kernel, fake kernel.

The reference is registered under the dispatcher's CompositeExplicitAutograd key, so it serves every device; the
compiled libraries `_ops` and `_ops_cuda` add faster kernels for CPU and CUDA. Random numbers are arguments, never drawn
inside an op that uses them.
Arguments that belong together are a NamedTuple in Python, a group, whose fields follow one another in the schema. A
call is `torch.ops.softrank_ext.NAME(*group, x, *other_group)`.
"""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, get_type_hints

import torch
from torch import Tensor

LIBRARY = torch.library.Library("softrank_ext", "DEF")
DEFAULT_KERNELS: dict[
    str, Callable[..., Any]
] = {}  # by op, as the dispatcher calls them: for devices without their own

Group = type[tuple[Any, ...]]  # a NamedTuple
# A schema's argument as it is written there ("Tensor x"), or a group, or a group with a prefix for its names.
Argument = str | Group | tuple[str, Group]


class OpError(ValueError, RuntimeError):
    """What an op says of arguments that do not fit: a ValueError for callers, a RuntimeError as it left the op."""


# "NAME must be WANTED": a sentence of ours, not one of torch.
_OWN_SENTENCE = re.compile(r"\w+ (must|has the wrong dtype)|constraints are too hard")


_WHERE = re.compile(r"^[\w()]+, \S+:\d+, ")  # function, file and line of a compiled kernel


def call_op(op: Callable[..., Any], *arguments: Any) -> Any:
    """Call an op of this library; raises OpError with its own sentence, or TypeError, where arguments do not fit."""
    try:
        return op(*arguments)
    except RuntimeError as error:
        said = _WHERE.sub("", str(error).splitlines()[0] if str(error) else "")
        if "Expected a value of type" in said:
            raise TypeError(said) from error
        if not isinstance(error, NotImplementedError) and _OWN_SENTENCE.search(said):
            raise OpError(said) from error
        raise


_SCHEMA_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    list[Tensor]: "Tensor[]",
    int: "int",
    int | None: "int?",
    float: "float",
    bool: "bool",
}


def schema_of(group: Group, prefix: str = "") -> str:
    """The fields of a NamedTuple as arguments of a schema, with their defaults, as in `Tensor? uniform=None, int n`."""
    defaults: dict[str, Any] = group._field_defaults  # type: ignore[attr-defined]
    return ", ".join(
        f"{_SCHEMA_TYPES[hint]} {prefix}{name}" + (f"={defaults[name]}" if name in defaults else "")
        for name, hint in get_type_hints(group).items()
    )


def define(
    name: str,
    arguments: Sequence[Argument],
    returns: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any] | None,
) -> None:
    """Add an op to the library.

    reference and fake take the arguments in the same groups; fake is None for an op that returns no tensor.
    """
    written = []
    for argument in arguments:
        if isinstance(argument, str):
            written.append(argument)
        elif isinstance(argument, tuple):
            written.append(schema_of(argument[1], f"{argument[0]}_"))
        else:
            written.append(schema_of(argument))
    LIBRARY.define(f"{name}({', '.join(written)}) -> {returns}")
    DEFAULT_KERNELS[name] = _taking_tensors(_taking_flat(reference, arguments), written)
    LIBRARY.impl(name, DEFAULT_KERNELS[name], "CompositeExplicitAutograd")
    if fake is not None:
        kernel = _on_one_device(_taking_flat(fake, arguments), written)
        torch.library.register_fake(f"softrank_ext::{name}", kernel, lib=LIBRARY)


def _taking_tensors(kernel: Callable[..., Any], written: Sequence[str]) -> Callable[..., Any]:
    """The kernel, which raises TypeError where the dispatcher lets None pass for a tensor."""
    wanted = [(at, name) for at, (kind, name) in enumerate(_kinds_and_names(written)) if kind.split("(")[0] == "Tensor"]

    @wraps(kernel)
    def checked(*values: Any) -> Any:
        for at, name in wanted:
            if at < len(values) and not isinstance(values[at], Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(values[at]).__name__}")
        return kernel(*values)

    if hasattr(checked, "__wrapped__"):
        del checked.__wrapped__  # its signature is not that of the op
    return checked


def _on_one_device(kernel: Callable[..., Any], written: Sequence[str]) -> Callable[..., Any]:
    """A fake kernel, which is also called where some tensors are on the meta device: those must be all of them, or it
    would return numbers that nothing was written to."""
    names = [name for _, name in _kinds_and_names(written)]

    @wraps(kernel)
    def checked(*values: Any) -> Any:
        first: tuple[str, torch.device] | None = None
        for name, value in zip(names, values, strict=False):
            for tensor in value if isinstance(value, list | tuple) else [value]:
                if not isinstance(tensor, Tensor):
                    continue
                first = first or (name, tensor.device)
                if tensor.device != first[1]:
                    raise RuntimeError(f"{name} must be on the device of {first[0]}, {first[1]}, got {tensor.device}")
        return kernel(*values)

    del checked.__wrapped__  # its signature is not that of the op
    return checked


def _kinds_and_names(written: Sequence[str]) -> list[tuple[str, str]]:
    """The arguments of a schema, each with its type."""
    arguments = [argument.split("=")[0].split() for part in written for argument in part.split(", ")]
    return [(words[0], words[-1]) for words in arguments if words]


def _taking_flat(kernel: Callable[..., Any], arguments: Sequence[Argument]) -> Callable[..., Any]:
    """The kernel as the dispatcher calls it: all fields in a row, less those at the end that have their defaults."""
    groups = [argument[1] if isinstance(argument, tuple) else argument for argument in arguments]
    if all(isinstance(group, str) for group in groups):
        return kernel

    @wraps(kernel)
    def flat(*values: Any) -> Any:
        given, at = [], 0
        for group in groups:
            if isinstance(group, str):
                given.append(values[at])
                at += 1
            else:
                count = len(group._fields)  # type: ignore[attr-defined]
                given.append(group(*values[at : at + count]))
                at += count
        return kernel(*given)

    del flat.__wrapped__  # its signature is not that of the op
    return flat


define("cpu_capability", (), "str", lambda: "plain torch", None)
define("build_facts", (), "str", lambda: "{}", None)
