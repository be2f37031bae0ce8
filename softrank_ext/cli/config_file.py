"""Options from a YAML file: `--config FILE`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_BYTES = 2**20
MOST_DEPTH = 20  # of options inside options


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
    options = _read_yaml(path)
    if not isinstance(options, dict):
        raise ValueError(f"{path} must hold options by name, got {type(options).__name__}")
    first_option = next(index for index, word in enumerate(words) if word.startswith("-"))
    return [*words[:first_option], *_options_of(options, ""), *words[first_option:]]


def _read_yaml(path: Path) -> Any:
    """What a YAML file holds; raises ValueError for more than MOST_BYTES."""
    import yaml

    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} must be a file of options, of at most {MOST_BYTES} bytes, got more")
    try:
        text = data.decode("utf-8-sig")
        _check_tokens(path, text)
        _check_names(path, yaml.compose(text, yaml.SafeLoader))
        return yaml.safe_load(text) or {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error


def _check_tokens(path: Path, text: str) -> None:
    """Raise ValueError for aliases, of which few can stand for a lot, and for more than MOST_DEPTH levels."""
    import yaml

    begins = (yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken, yaml.FlowMappingStartToken,
              yaml.FlowSequenceStartToken)  # fmt: skip
    depth = 0
    for token in yaml.scan(text):
        if isinstance(token, yaml.AliasToken):
            raise ValueError(f"{path} must hold options as they are, got an alias (*name)")
        depth += isinstance(token, begins)
        depth -= isinstance(token, (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken))
        if depth > MOST_DEPTH:
            raise ValueError(f"{path} must hold options in at most {MOST_DEPTH} levels, got more")


def _check_names(path: Path, node: Any) -> None:
    """Raise ValueError for an option that is there twice, of which YAML's reader would forget the first."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            word = str(name.value).replace("-", "_")
            if word in seen:
                line = name.start_mark.line + 1
                raise ValueError(f"{path}, line {line} must name an option once, got {name.value!r} again")
            seen.add(word)
            _check_names(path, value)


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
