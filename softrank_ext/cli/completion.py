"""`softrank completion SHELL`."""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from typing import Annotated, Any, Literal, Union

import tyro

from softrank_ext.cli.options import AsJson, tell


def completion(
    shell: tyro.conf.Positional[Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")]],
    as_json: AsJson = False,
) -> None:
    """Print the shell's completion of all commands and options.

    Args:
        shell: bash, zsh or fish. For bash, write it to ~/.local/share/bash-completion/completions/softrank
    """
    from softrank_ext.cli.main import COMMANDS

    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        tyro.cli(_one_of(_kinds_of(COMMANDS)), prog="softrank", args=["--tyro-print-completion", shell])
    tell(as_json, {"shell": shell, "script": printed.getvalue()}, printed.getvalue().rstrip("\n"))


def _kinds_of(commands: Mapping[str, Any], group: str = "") -> tuple[Any, ...]:
    """The commands as alternatives for one parser of them all, groups of commands nested."""
    kinds = []
    for name, command in commands.items():
        if isinstance(command, Mapping):
            kinds.append(_subcommand(name, _group_of(_kinds_of(command, name))))
        else:
            kinds.append(_subcommand(name, command([]) if group in ("train", "evaluate") else command))
    return tuple(kinds)


def _subcommand(name: str, constructor: Any) -> Any:
    return Annotated[Any, tyro.conf.subcommand(name, constructor=constructor)]


def _one_of(kinds: tuple[Any, ...]) -> Any:
    """The type of one of them, whose options have no prefix."""
    union: Any = Union
    without_prefix: Any = tyro.conf.OmitSubcommandPrefixes
    return without_prefix[union[kinds]]


def _group_of(kinds: tuple[Any, ...]) -> Any:
    def group(command: Any) -> None: ...

    if len(kinds) == 1:  # a union needs two
        kinds = (*kinds, Annotated[None, tyro.conf.subcommand("none"), tyro.conf.Suppress])
    group.__annotations__ = {"command": _one_of(kinds), "return": None}
    return group
