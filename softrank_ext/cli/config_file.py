"""Options from a YAML file: `--config FILE`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


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
        options = yaml.safe_load(path.read_text(encoding="utf-8-sig")) or {}
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
