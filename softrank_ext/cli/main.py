"""Command line: `softrank COMMAND`, or `python -m softrank_ext COMMAND` outside the source tree.

A command is a function or a dataclass whose arguments are its options (tyro makes the parser), in a file of its own;
COMMANDS lists them by name. Options nest as the objects that they stand for do: `--process.noise-scale 0.2`. They may
also come from a YAML file, `--config FILE`, which those on the command line override. What a command needs is imported
when it runs, so that `info` stays quick. `docs/command_line.md` has the exit codes.
"""

import difflib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tyro

from softrank_ext import __version__
from softrank_ext.cli.completion import completion
from softrank_ext.cli.config_file import with_config_file
from softrank_ext.cli.demo import demo
from softrank_ext.cli.download import download_command
from softrank_ext.cli.evaluate import evaluate_command
from softrank_ext.cli.generate import generate_tsp
from softrank_ext.cli.info import info
from softrank_ext.cli.merge import merge
from softrank_ext.cli.options import TASKS, tell
from softrank_ext.cli.rank import RankCommand
from softrank_ext.cli.sample import SampleCommand
from softrank_ext.cli.schedule import schedule_command
from softrank_ext.cli.selftest import SelfTest
from softrank_ext.cli.tour import tour_command
from softrank_ext.cli.train import train_command
from softrank_ext.cli.walk import walk

COMMANDS: dict[str, Any] = {
    "demo": demo,
    "train": {name: train_command(name) for name in TASKS},
    "evaluate": {name: evaluate_command(name) for name in TASKS},
    "sample": SampleCommand,
    "rank": RankCommand,
    "schedule": schedule_command,
    "merge": merge,
    "tour": tour_command,
    "generate": {"tsp": generate_tsp},
    "download": {"mnist": download_command("mnist"), "cifar10": download_command("cifar10")},
    "info": info,
    "selftest": SelfTest,
    "walk": walk,
    "completion": completion,
}
# Exit codes beside 0; tyro ends with 2 for options that it does not know.
FAILED, MISUSED, INTERRUPTED, UNREAD = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 2 for options or files that do not fit, 1 for what failed otherwise."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--version"] and set(words[1:]) <= {"--json"}:
        tell(len(words) > 1, {"name": "softrank_ext", "version": __version__}, f"softrank_ext {__version__}")
        return 0
    command: Any = COMMANDS
    path = ["softrank"]
    while isinstance(command, dict):
        command = _next_command(command, path, words.pop(0) if words else None)
    try:
        options = with_config_file(words)
        run = command(options) if path[1] in ("train", "evaluate") else command
        chosen = tyro.cli(run, args=options, prog=" ".join(path))
        if chosen is not None:
            code: int = chosen.run(shlex.join(["softrank", *path[1:], *words]))
            sys.stdout.flush()
            return code
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads the output has left, as `head` does; flushing the rest of it at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (ValueError, TypeError, ImportError, OSError, FloatingPointError) as error:
        print(f"softrank: error: {error}", file=sys.stderr)
        return MISUSED if isinstance(error, ValueError | TypeError | FileNotFoundError) else FAILED
    except KeyboardInterrupt:
        print("softrank: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _next_command(commands: Mapping[str, Any], path: list[str], word: str | None) -> Any:
    """The command that `word` names, added to the path; help or an error ends the program."""
    lines = [f"  {name:<12} {_summary_of(command)}" for name, command in commands.items()]
    usage = "\n".join((f"usage: {' '.join(path)} {{{','.join(commands)}}} ...", "", *lines))
    if len(path) == 1:
        usage += "\n\n  --version    print the version"
    if word in ("-h", "--help"):
        print(usage)
        raise SystemExit(0)
    if word is None or word not in commands:
        near = difflib.get_close_matches(word or "", commands, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        said = "missing command" if word is None else f"unknown command {word!r}{hint}"
        print(f"{usage}\n\n{' '.join(path)}: error: {said}", file=sys.stderr)
        raise SystemExit(MISUSED)
    path.append(word)
    return commands[word]


def _summary_of(command: Any) -> str:
    if isinstance(command, dict):
        return f"... {' | '.join(command)}"
    return (command.__doc__ or "").splitlines()[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
