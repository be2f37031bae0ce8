"""Command line: `softrank COMMAND`, or `python -m softrank_ext COMMAND` outside the source tree.

A command is a function or a dataclass whose arguments are its options (tyro makes the parser); COMMANDS lists them by
their words. Options may also come from a YAML file, `--config FILE`, which those on the command line override. What a
command needs is imported when it runs, so that `info` stays quick.
"""

import dataclasses
import difflib
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from softrank_ext import build_info, model_folder
from softrank_ext.constraints import Constraining, Constraints, read_constraints
from softrank_ext.methods import METHODS, method_of
from softrank_ext.processes import Bridge
from softrank_ext.sampling import sample

# What a task's best model is best at.
TASKS = {
    "sorting": {"best_metric": "accuracy", "best_is": "highest"},
    "jigsaw": {"best_metric": "accuracy", "best_is": "highest"},
    "tsp": {"best_metric": "gap", "best_is": "lowest"},
    "preferences": {"best_metric": "loss", "best_is": "lowest"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command: Any = COMMANDS
    path = ["softrank"]
    while isinstance(command, dict):
        command = _next_command(command, path, words.pop(0) if words else None)
    try:
        options = with_config_file(words)
        run = command(options) if path[1] in ("train", "evaluate") else command
        chosen = tyro.cli(run, args=options, prog=" ".join(path))
        if chosen is not None:
            return chosen.run(shlex.join(["softrank", *path[1:], *words]))
    except (ValueError, TypeError, ImportError, OSError, FloatingPointError) as error:
        print(f"softrank: error: {error}", file=sys.stderr)
        return 1
    return 0


def _next_command(commands: Mapping[str, Any], path: list[str], word: str | None) -> Any:
    """The command that `word` names, added to the path; help or an error ends the program."""
    lines = [f"  {name:<12} {_summary_of(command)}" for name, command in commands.items()]
    usage = "\n".join((f"usage: {' '.join(path)} {{{','.join(commands)}}} ...", "", *lines))
    if word in ("-h", "--help"):
        print(usage)
        raise SystemExit(0)
    if word is None or word not in commands:
        near = difflib.get_close_matches(word or "", commands, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        said = "a word is missing" if word is None else f"unknown word {word!r}{hint}"
        print(f"{usage}\n\n{' '.join(path)}: error: {said}", file=sys.stderr)
        raise SystemExit(2)
    path.append(word)
    return commands[word]


def _summary_of(command: Any) -> str:
    if isinstance(command, dict):
        return f"... {' | '.join(command)}"
    return (command.__doc__ or "").splitlines()[0].rstrip(".")


def with_config_file(words: Sequence[str]) -> list[str]:
    """The words with the options of the YAML file that `--config FILE` names put before the other options.

    A file `{learning_rate: 1e-3, model: {d_model: 64}}` stands for `--learning-rate 1e-3 --model.d-model 64`.
    """
    words = list(words)
    names = [index for index, word in enumerate(words) if word.split("=")[0] == "--config"]
    if not names:
        return words
    given = words[names[-1]]
    if "=" not in given and names[-1] + 1 == len(words):
        raise ValueError("--config needs the name of a YAML file")
    path = Path(given.split("=", 1)[1] if "=" in given else words[names[-1] + 1])
    import yaml

    try:
        options = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"{path} must hold options by name, got {type(options).__name__}")
    first_option = next(index for index, word in enumerate(words) if word.startswith("-"))
    return [*words[:first_option], *_options_of(options, ""), *words[first_option:]]


def _options_of(options: Mapping[str, Any], prefix: str) -> list[str]:
    words = []
    for name, value in options.items():
        option = f"{prefix}{str(name).replace('_', '-')}"
        if isinstance(value, dict):
            words += _options_of(value, f"{option}.")
        elif isinstance(value, bool):
            words.append(
                f"--{option}" if value else f"--{'.'.join([*option.split('.')[:-1], 'no-' + option.split('.')[-1]])}"
            )
        elif isinstance(value, list):
            words += [f"--{option}", *map(str, value)]
        else:
            words += [f"--{option}", str(value)]
    return words


ConfigFile = Annotated[Path | None, tyro.conf.arg(help="YAML file of options; the command line overrides it.")]
Model = tyro.conf.Positional[
    Annotated[str, tyro.conf.arg(metavar="MODEL", help="Saved model: a folder, or a bundled model's name.")]
]
Device = Annotated[str | None, tyro.conf.arg(help="cpu, cuda or cuda:1; by default a GPU if there is one.")]


def _task_class(name: str) -> Any:
    if name == "sorting":
        from softrank_ext.tasks.sorting import Sorting

        return Sorting
    if name == "jigsaw":
        from softrank_ext.tasks.jigsaw import Jigsaw

        return Jigsaw
    if name == "tsp":
        from softrank_ext.tasks.tsp import TSP

        return TSP
    from softrank_ext.tasks.preferences import Preferences

    return Preferences


def _train(name: str) -> Callable[[Sequence[str]], Any]:
    """The command `train NAME`: makes the dataclass of its options."""

    def make(words: Sequence[str]) -> Any:
        from softrank_ext.training import TrainConfig

        method_name = _value_of("--method", words) or "softrank"
        method = method_of(method_name)
        model = method.options(name)
        config = TrainConfig(**{**TASKS[name], **method.training(name)})
        allowed: Any = Literal[tuple(METHODS)]
        methods = Annotated[allowed, tyro.conf.arg(help="What to train; decides the defaults of the rest.")]
        resume = Annotated[bool, tyro.conf.arg(help="Go on with the run in the output folder.")]
        output = Annotated[Path, tyro.conf.arg(help="Folder of the run.")]
        start = Annotated[Path | None, tyro.conf.arg(help="Saved model whose weights to start from.")]
        return dataclasses.make_dataclass(
            "Train",
            [
                ("task", _task_class(name)),
                ("train", Annotated[TrainConfig, tyro.conf.arg(name="")], config),
                ("model", type(model), model),
                ("method", methods, method_name),
                ("output", output, Path("runs") / name),
                ("resume", resume, False),
                ("start_from", start, None),
                ("device", Device, None),
                ("config", ConfigFile, None),
            ],
            namespace={"run": _run_train, "__doc__": f"Train a model on {name}."},
        )

    make.__doc__ = f"train on {name}"
    return make


def _run_train(options: Any, command: str) -> int:
    from softrank_ext.training import train

    torch.manual_seed(options.train.seed)
    model = method_of(options.method).make(options.task, options.model)
    if options.start_from is not None and not options.resume:
        start = model_folder.from_pretrained(folder_to_load(options.start_from))
        if type(start) is not type(model) or start.config != model.config:
            raise ValueError(f"the model in {options.start_from} is another: it has {start.config}, not {model.config}")
        model.load_state_dict(start.state_dict())
    result = train(
        model,
        options.task,
        options.train,
        options.output,
        resume=options.resume,
        device=options.device,
        command=command,
    )
    return 0 if result.is_finished else 130


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The value that the last `option VALUE` or `option=VALUE` among the words has."""
    value = None
    for index, word in enumerate(words):
        if word == option:
            value = words[index + 1] if index + 1 < len(words) else None
        elif word.startswith(f"{option}="):
            value = word.split("=", 1)[1]
    return value


def folder_to_load(name_or_folder: str | Path) -> str | Path:
    """The folder of a saved model: as given, or the best or last one of a run's folder."""
    for part in ("best", "last"):
        if (Path(name_or_folder) / part / model_folder.CONFIG_FILE).exists():
            return Path(name_or_folder) / part
    return name_or_folder


def _evaluate(name: str) -> Callable[[Sequence[str]], Any]:
    """The command `evaluate NAME`: makes the dataclass of its options."""

    def make(words: Sequence[str]) -> Any:
        def option(kind: Any, text: str) -> Any:
            return Annotated[kind, tyro.conf.arg(help=text)]

        kind = _task_class(name)
        folder = words[0] if words and not words[0].startswith("-") else None
        trained_on = _task_of_run(name, folder)
        copies = [("symmetries", option(tuple[Literal[1, 8], ...], "Copies of an instance, turned and mirrored, that "
                   "are solved too; a row for each."), (1,))] if name == "tsp" else []  # fmt: skip
        return dataclasses.make_dataclass(
            "Evaluate",
            [
                ("saved", Model),
                ("task", kind) if trained_on is None else ("task", kind, trained_on),
                ("count", option(int, "Held-out instances."), 1000),
                ("batch_size", option(int, "Instances at once."), 64),
                ("steps", option(tuple[int, ...], "Diffusion steps, by default the model's own; a row for each."), ()),
                ("noise_scale", option(tuple[float, ...], "Paper eta; a row for each."), (0.5,)),
                ("reference", option(tuple[Literal["uniform", "gaussian"], ...], "Of time 1."), ("uniform",)),
                ("decode", option(tuple[Literal["greedy", "sample", "beam"], ...], "How to pick items."), ("greedy",)),
                ("temperature", option(float, "Of sampled picks."), 1.0),
                ("beam", option(int, "Width of the beam of --decode beam."), 16),
                ("beam_kept", option(int, "Hypotheses that a beam carries from step to step."), 1),
                ("beam_returned", option(int, "Hypotheses of which the best counts, as of draws."), 1),
                ("best_of", option(tuple[int, ...], "Draws per instance, the best of which counts."), (1,)),
                ("best_by", option(str, "The best draw has the lowest of this metric, or the highest log_prob."),
                 "length" if name == "tsp" else "log_prob"),
                *copies,
                ("seed", option(int, "Another seed, other instances and draws."), 0),
                ("output", option(Path, "JSON file to write."), Path("evaluation.json")),
                ("device", Device, None),
                ("config", ConfigFile, None),
            ],
            namespace={"run": _run_evaluate, "__doc__": f"Evaluate a model on {name}."},
        )  # fmt: skip

    make.__doc__ = f"evaluate on {name}"
    return make


def _task_of_run(name: str, folder: str | None) -> Any:
    """The task that the run of this model was trained on, if its folder tells, else None."""
    for parent in (Path(folder), Path(folder).parent) if folder else ():
        if (parent / "run.json").exists():
            fields = json.loads((parent / "run.json").read_text())["task"]
            if fields.pop("name") == name:
                return _task_class(name)(**fields)
    return None


def _run_evaluate(options: Any, command: str) -> int:
    from softrank_ext.evaluation import evaluate, record_of, table_of
    from softrank_ext.training import describe, processes

    folder = folder_to_load(options.saved)
    with processes(options.device) as (rank, _, device):
        model = model_folder.from_pretrained(folder).to(device)
        rows = []
        for steps, noise_scale, reference, decode, best_of, symmetries in product(
            options.steps or (None,), options.noise_scale, options.reference, options.decode, options.best_of,
            getattr(options, "symmetries", (1,)),
        ):  # fmt: skip
            rows.append(
                evaluate(
                    model, options.task, count=options.count, batch_size=options.batch_size, steps=steps,
                    noise_scale=noise_scale, reference=reference, decode=decode, temperature=options.temperature,
                    beam=options.beam if decode == "beam" else None,
                    beam_kept=options.beam_kept if decode == "beam" else 1,
                    beam_returned=options.beam_returned if decode == "beam" else 1,
                    best_of=best_of, best_by=options.best_by, symmetries=symmetries, seed=options.seed,
                )
            )  # fmt: skip
        if rank == 0:
            print(f"{folder} on {describe(options.task)}")
            print(table_of(rows))
            record = record_of(
                rows, command=command, checkpoint=str(folder), checkpoint_hash=model_folder.hash_of(folder)
            )
            options.output.write_text(json.dumps({**record, "task": describe(options.task)}, indent=2) + "\n")
            print(f"written to {options.output}")
    return 0


def _sample(
    model: Model,
    items: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="ITEMS")]],
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]],
    num_samples: int = 1,
    steps: int | None = None,
    noise_scale: float = 0.5,
    reference: Literal["uniform", "gaussian"] = "uniform",
    decode: Literal["sample", "greedy", "beam"] = "sample",
    temperature: float = 1.0,
    beam: int | None = None,
    beam_kept: int = 1,
    first: int | None = None,
    constraints: Path | None = None,
    before: tuple[str, ...] = (),
    pin: tuple[str, ...] = (),
    forbid: tuple[str, ...] = (),
    together: tuple[str, ...] = (),
    law: Literal["prefix", "conditioned"] = "prefix",
    particles: int = 16,
    reflect_noise: bool = False,
    seed: int = 0,
    device: Device = None,
    config: ConfigFile = None,
) -> None:
    """Draw orders of the items in a file.

    Args:
        items: A .npz, .csv or .tsp file or a folder of images.
        output: A .csv, .json or .npz file to write.
        num_samples: Draws per instance.
        steps: Diffusion steps, by default the model's own.
        noise_scale: Paper eta.
        reference: Soft ranks at time 1.
        decode: How items are picked.
        temperature: Of sampled picks.
        beam: Width of the beam of --decode beam.
        beam_kept: Hypotheses that a beam carries from step to step.
        first: The item that stands first, for a model of tours; 0 for .tsp files.
        constraints: JSON file of rules: before, pins, forbidden, together; a list of such for one per instance.
        before: Pairs 3:5, item 3 stands before item 5; this and the next three hold for all instances.
        pin: Pairs 3:0, item 3 stands at place 0; -1 is the last place.
        forbid: Pairs 3:0, item 3 does not stand at place 0.
        together: Groups 1,2,3 of items that stand next to each other.
        law: Of draws under constraints: pick by pick (fast), or the model's law given them.
        particles: Weighted draws per sample, for --law conditioned.
        reflect_noise: Noise keeps the order pairs too.
        seed: Another seed, other draws.
    """
    from softrank_ext.cli.item_files import check_writable, read_items, write_orders

    check_writable(output)
    network = model_folder.from_pretrained(folder_to_load(model))
    network.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = str((network.config.embedder or {}).get("kind"))
    source = read_items(
        items, channels={"number-cnn": 1, "light-number-cnn": 1, "patch-cnn": 3, "patch-mlp": 3}.get(kind)
    )
    first = 0 if first is None and items.suffix == ".tsp" else first
    samples = sample(
        network,
        source.items,
        mask=source.mask,
        first=first,
        constraints=_constraints(constraints, before, pin, forbid, together),
        law=law,
        particles=particles,
        reflect_noise=reflect_noise,
        num_samples=num_samples,
        steps=steps,
        noise_scale=noise_scale,
        reference=reference,
        decode=decode,
        temperature=temperature,
        beam=beam,
        beam_kept=beam_kept,
        seed=seed,
        progress=sys.stderr.isatty(),
    )
    write_orders(output, samples, source)
    if samples.effective_size is not None:
        least = float(samples.effective_size.min())
        print(f"effective sample size {least:.1f} of {num_samples * particles} draws, in the worst instance")
    print(f"{samples.order.shape[0] * samples.order.shape[1]} orders written to {output}")


def _constraints(
    path: Path | None, before: Sequence[str], pin: Sequence[str], forbid: Sequence[str], together: Sequence[str]
) -> Constraining:
    """The rules that the options of `sample` give."""
    if path is not None:
        if before or pin or forbid or together:
            raise ValueError("--constraints FILE excludes --before, --pin, --forbid and --together, got both")
        return read_constraints(path)
    if not (before or pin or forbid or together):
        return None

    def numbers(option: str, word: str, separator: str, count: int | None = None) -> list[int]:
        parts = word.split(separator)
        try:
            found = [int(part) for part in parts]
        except ValueError:
            found = []
        if not found or count not in (None, len(found)):
            wanted = separator.join(("3", "5", "7")[:count])
            raise ValueError(f"--{option} must be written like {wanted}, got {word!r}")
        return found

    pins: dict[int, int] = {}
    for word in pin:
        item, place = numbers("pin", word, ":", 2)
        if pins.setdefault(item, place) != place:
            raise ValueError(f"--pin must name an item once, {item} is pinned to {pins[item]} and {place}")
    return Constraints(
        before=[(a, b) for a, b in (numbers("before", word, ":", 2) for word in before)],
        pins=pins,
        forbidden=[(item, place) for item, place in (numbers("forbid", word, ":", 2) for word in forbid)],
        together=[numbers("together", word, ",") for word in together],
    )


def _generate_tsp(
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]],
    count: int = 1000,
    num_nodes: int = 20,
    seed: int = 0,
    seconds: float | None = None,
    workers: int | None = None,
) -> None:
    """Make a file of uniform TSP instances with near-optimal tours.

    Args:
        output: Text file to write; a killed run goes on where it stopped.
        count: Instances.
        num_nodes: Nodes per instance.
        seed: Another seed, other instances.
        seconds: Solver time per instance, by default 0.2 ms a node.
        workers: Threads, by default one per core.
    """
    from softrank_ext.tasks.tsp import generate

    print(generate(output, count, num_nodes, seed=seed, seconds=seconds, workers=workers))


def _download(name: str) -> Callable[..., None]:
    def command(root: str | None = None) -> None:
        from softrank_ext.tasks.data import download

        print(download(name, root))

    command.__doc__ = f"""Download {name} through torchvision.

    Args:
        root: Folder for it; by default SOFTRANK_DATA, else ~/.cache/softrank_ext.
    """
    return command


def _info(as_json: Annotated[bool, tyro.conf.arg(name="json", help="Print one JSON object.")] = False) -> None:
    """Say what this build is and what it runs on."""
    info = build_info()
    if as_json:
        print(json.dumps(info))
        return
    width = max(map(len, info))
    for name, value in info.items():
        print(f"{name:<{width}}  {'none' if value == '' else value}")


def _demo(
    task: Literal["all", "sorting", "tsp", "jigsaw"] = "all",
    n: int | None = None,
    seed: int = 0,
    output: Path = Path("outputs/demo"),
    weights: Path | None = None,
) -> None:
    """Sort digits, find tours and solve jigsaws with the bundled models.

    Args:
        task: What to do.
        n: Number of items, for one task: up to 100 numbers, 20 or 50 nodes, 9 or 16 patches.
        seed: Another seed, other lists, shuffles and draws.
        output: Folder for the pictures and pages.
        weights: Folder of models by name instead of the bundled ones.
    """
    from softrank_ext.show import demo

    done = demo.run(task, n, seed=seed, output=output, weights=weights)
    print(demo.table_of(done.rows))
    print("all right: whole instances; equal items are interchangeable. gap: length above the best tour's.")
    for name in done.missing:
        print(f"Skipped: no model {name}.")
    if not any(path.suffix == ".png" for path in done.files):
        print('No pictures, which need matplotlib: pip install "softrank_ext[plots]"')
    print(f"Written to {output}: {', '.join(path.name for path in done.files)}")


def _walk(
    output: Path = Path("walk.png"), items: int = 8, steps: int = 200, noise_scale: float = 0.5, seed: int = 0
) -> None:
    """Draw items walking from a clean order to noise along the bridge.

    Args:
        output: Picture to write.
        items: Number of items.
        steps: Steps of the walk.
        noise_scale: Paper's eta.
        seed: Another seed, another walk.
    """
    try:
        import matplotlib  # noqa: F401

        from softrank_ext import show
    except ImportError as error:
        raise ImportError('walk draws with matplotlib: pip install "softrank_ext[plots]"') from error
    if items < 1:
        raise ValueError(f"--items must be at least 1, got {items}")
    walk = show.draw_walk(items, steps, process=Bridge(noise_scale=noise_scale), seed=seed)
    orders = walk.order
    changes = int((orders[1:] != orders[:-1]).any(1).sum())
    swapped = int(show.swapped_pairs(walk.ranks)[-1])

    title = f"{items} items from a clean order to noise (noise scale {noise_scale:g})"
    show.save_figure(show.plot_walk(walk, title), output)
    pairs = items * (items - 1) // 2
    print(f"order at t = 0 (clean): {orders[0].tolist()}")
    print(f"order at t = 1 (noise): {orders[-1].tolist()}")
    print(f"The order changed in {changes} of {steps} steps; {swapped} of {pairs} pairs ended up swapped.")
    print(f"Picture: {output}")



COMMANDS: dict[str, Any] = {
    "demo": _demo,
    "train": {name: _train(name) for name in TASKS},
    "evaluate": {name: _evaluate(name) for name in TASKS},
    "sample": _sample,
    "generate": {"tsp": _generate_tsp},
    "download": {"mnist": _download("mnist"), "cifar10": _download("cifar10")},
    "info": _info,
    "walk": _walk,
}


if __name__ == "__main__":
    sys.exit(main())
