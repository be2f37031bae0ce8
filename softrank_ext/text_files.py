"""Text from files: UTF-8, nothing silently left out, and errors that name file, line and column."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def read_text(path: str | Path) -> str:
    """The text of a file in UTF-8, without the byte order mark that it may begin with.

    Raises ValueError, with line and column, for other bytes, and for NUL and further byte order marks, which are not
    seen in an editor and would become parts of words.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark.
        at = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        line, column = _line_and_column(data[:at].decode("latin-1"))
        raise ValueError(
            f"{path}, line {line}, byte {column} must be text in UTF-8, got 0x{data[at]:02x}; save the file as UTF-8"
        ) from error
    for character, name in (("\0", "a NUL"), ("\ufeff", "a byte order mark inside")):
        if character in text:
            line, column = _line_and_column(text[: text.index(character)])
            raise ValueError(f"{path}, line {line}, column {column} must be text in UTF-8, got {name}")
    return text


def without_blank_lines(path: str | Path, lines: Iterable[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Numbered lines of cells without those that have no cell, and without lines of empty cells at the end, which
    spreadsheets write; raises ValueError for one amid the others, which could be a row that is missing. In a file of
    one column an empty cell is a missing value, and stays.
    """
    kept: list[tuple[int, list[str]]] = []
    blank: int | None = None
    for number, line in lines:
        if len(line) == 0:
            continue
        is_column = len(line) == 1 and bool(kept) and len(kept[0][1]) == 1
        if not is_column and not any(map(str.strip, line)):
            blank = number if blank is None else blank
            continue
        if blank is not None:
            raise ValueError(f"{path}, line {blank} must have a value, got empty cells only; delete it")
        kept.append((number, line))
    return kept


def parse_json(path: str | Path, text: str) -> Any:
    """What a JSON text says; raises ValueError, naming the file it is from, for NaN, which JSON has not, and for an
    object with two values of one name, of which a reader would forget the first."""
    try:
        return json.loads(text, object_pairs_hook=_as_object, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def _as_object(pairs: Sequence[tuple[str, Any]]) -> Mapping[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice in one object")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _line_and_column(before: str) -> tuple[int, int]:
    """Where the text ends that comes before, both from 1."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")
