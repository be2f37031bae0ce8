"""Tables in and out, for the front doors: columns by name as numpy arrays, numbers with errors in the user's words.

A table is a pandas or polars DataFrame, a dict of columns, a numpy structured array, a 2-d numpy array with `names`, or
the path of a CSV file. A column is a 1-d array: numbers, bools, dates, or texts (dtype object, None where missing).
Rows count from 0. Neither pandas nor polars is needed, unless a DataFrame is asked for.
"""

import csv
import difflib
import io
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np

from softrank_ext.checks import described
from softrank_ext.text_files import read_text, without_blank_lines

Columns: TypeAlias = dict[str, np.ndarray]

MOST_FILE_BYTES = 2**32
MOST_CELL_CHARACTERS = 2**20
DELIMITERS = (",", ";", "\t")
MISSING_WORDS = frozenset(("", "na", "n/a", "nan", "null", "none"))
MOSTLY = 0.9  # of the cells; where more are numbers, a text among them is taken for a slip
TABLE_KINDS = (
    "a pandas or polars DataFrame, a dict of columns, a numpy structured array, a 2-d array with names, or the path of "
    "a CSV file"
)
_NUMBERS = (int, float, np.number, np.bool_)
_WHOLE_NUMBER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
# 007, and numbers of more digits than a float has, are names: as numbers they would lose what tells them apart.
_NAME_IN_DIGITS = re.compile(r"[+-]?(0\d+|\d{19,})")


def columns_of(table: Any, names: Sequence[str] | None = None) -> Columns:
    """The columns of a table, by name, in its order.

    names: of the columns of a 2-d array; other tables have their own. A CSV file is UTF-8 (a byte order mark is
    fine), its first line names the columns, and comma, semicolon or tab stands between cells; with semicolons, 3,5 is a
    number. Columns of a CSV file whose cells are all numbers, or missing (empty, NA, NaN, null), are numbers; others
    are texts.
    """
    if names is not None:
        return _columns_of_array(table, names)
    if isinstance(table, str | Path):
        columns = _read_csv(Path(table))
    elif _is_frame(table, "pandas"):
        columns = _unique([str(name) for name in table.columns], _arrays_of_pandas(table))
    elif _is_frame(table, "polars"):
        columns = _unique(table.columns, (_array_of_polars(column) for column in table.get_columns()))
    elif isinstance(table, Mapping):
        columns = _unique([str(name) for name in table], (_array_of(name, table[name]) for name in table))
    elif isinstance(table, np.ndarray) and table.dtype.names is not None and table.ndim == 1:
        columns = {name: _array_of(name, table[name]) for name in table.dtype.names}
    else:
        came = f"a {table.ndim}-d array without names" if isinstance(table, np.ndarray) else type(table).__name__
        hint = "; call collect() first" if type(table).__name__ == "LazyFrame" else ""
        if hasattr(table, "toarray"):
            hint = "; sparse tables are not read: give its toarray()"
        raise TypeError(f"a table must be {TABLE_KINDS}, got {came}{hint}")
    if not columns:
        raise ValueError("the table has no columns")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the columns of a table must have one length, got {lengths}")
    return columns


def unmasked(values: Any) -> Any:
    """A masked array of numpy with NaN, or None among texts, where it is masked; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    is_number = values.dtype.kind in "biuf"
    cells = values.data.astype(np.float64 if is_number else object)
    cells[np.ma.getmaskarray(values)] = np.nan if is_number else None
    return cells


def numbers_in(columns: Mapping[str, np.ndarray], name: str, missing: bool = False) -> np.ndarray:
    """The column as float64. missing: whether cells may be missing; they are NaN. Infinite numbers are refused."""
    column = column_in(columns, name)
    if column.dtype.kind in "mM":
        raise ValueError(f"column {name!r} must have numbers, it has {_kind_name(column)}; count days or seconds")
    numbers = _parsed(name, column) if column.dtype.kind not in "biuf" else column.astype(np.float64)
    if not missing and np.isnan(numbers).any():
        raise ValueError(f"column {name!r} has no number in row {_first(np.isnan(numbers))}; rows count from 0")
    if np.isinf(numbers).any():
        row = _first(np.isinf(numbers))
        raise ValueError(
            f"column {name!r} must have finite numbers, got {numbers[row]} in row {row}; rows count from 0"
        )
    return numbers


def texts_in(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The column as texts: an object array of str, None where missing. The number 3.0 is the text 3."""
    column = column_in(columns, name)
    texts = np.empty(len(column), dtype=object)
    for row, value in enumerate(column.tolist() if column.dtype.kind != "M" else column.astype(str).tolist()):
        texts[row] = _text_of(name, row, value)
    return texts


def is_number_column(column: np.ndarray) -> bool:
    """Whether the column holds numbers (or bools) by its type, or, of objects, all that are not missing are numbers."""
    if column.dtype != object:
        return column.dtype.kind in "biuf"
    found = [value for value in column.tolist() if not _is_missing_word(value)]
    return bool(found) and all(isinstance(value, _NUMBERS) for value in found)


def check_names(columns: Mapping[str, np.ndarray], name: str) -> None:
    """Raise ValueError if the column has numbers and a few texts: a slip would make names of all its numbers."""
    column = column_in(columns, name)
    if column.dtype != object:
        return
    cells = [(row, value) for row, value in enumerate(column.tolist()) if not _is_missing_word(value)]
    texts = [(row, value) for row, value in cells if not (isinstance(value, _NUMBERS) or _is_number_word(value))]
    has_numbers = any(isinstance(value, _NUMBERS) for _, value in cells)
    if texts and (has_numbers or len(texts) < (1 - MOSTLY) * len(cells)):
        row, value = texts[0]
        raise ValueError(
            f"column {name!r} has text in row {row} among numbers: {_short(value)}; leave that cell empty, or, if "
            "these are names, begin each with a letter; rows count from 0"
        )


def column_in(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The column of this name; else raise ValueError, with a name that is near."""
    if name not in columns:
        near = difflib.get_close_matches(str(name), columns, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"the table has no column {name!r}, it has {', '.join(map(repr, columns))}{hint}")
    return columns[name]


def frame_of(columns: Mapping[str, Any], like: Any = None) -> Any:
    """The columns as a DataFrame: of the kind of the table `like`, if that is one, else pandas, else polars.

    A pandas frame keeps the index of `like`. Raises ImportError where neither is installed.
    """
    if _is_frame(like, "polars"):
        return _polars_frame(columns)
    if _is_frame(like, "pandas"):
        import pandas

        has_rows = len(like) == len(next(iter(columns.values()), ()))
        return pandas.DataFrame(dict(columns), index=like.index if has_rows else None)
    try:
        import pandas
    except ImportError:
        try:
            return _polars_frame(columns)
        except ImportError:
            raise ImportError("a DataFrame needs pandas or polars: pip install softrank_ext[tables]") from None
    return pandas.DataFrame(dict(columns))


def write_csv(columns: Mapping[str, Any], output: str | Path | TextIO) -> None:
    """Write the columns as CSV with a line of names; a missing value is an empty cell.

    output: a path or an open text stream (open a file with newline="").
    """
    arrays = {name: _array_of(name, column) for name, column in columns.items()}
    lengths = {len(column) for column in arrays.values()}
    if len(lengths) > 1:
        raise ValueError(f"the columns of a table must have one length, got {sorted(lengths)}")
    cells = [[_written(value) for value in _values(column)] for column in arrays.values()]
    with _opened(output) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(arrays)
        writer.writerows(zip(*cells, strict=True))


@contextmanager
def _opened(output: str | Path | TextIO) -> Iterator[TextIO]:
    if isinstance(output, str | Path):
        with open(output, "w", newline="", encoding="utf-8") as file:
            yield file
    else:
        yield output


def _is_frame(table: Any, library: str) -> bool:
    """Whether the table is a DataFrame of the library, without importing it."""
    module = sys.modules.get(library)
    return module is not None and isinstance(table, module.DataFrame)


def _columns_of_array(table: Any, names: Sequence[str]) -> Columns:
    if not isinstance(table, np.ndarray) or table.ndim != 2:
        came = described(table) if not isinstance(table, np.ndarray) else f"{table.ndim}-d"
        raise TypeError(f"names are for a 2-d array, got {came}; other tables have names of their own")
    if len(names) != table.shape[1]:
        raise ValueError(f"names must be {table.shape[1]}, one per column of the array, got {len(names)}")
    return _unique([str(name) for name in names], (_array_of(name, table[:, i]) for i, name in enumerate(names)))


def _unique(names: Sequence[str], arrays: Any) -> Columns:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"the columns of a table must have different names, {sorted(twice)[0]!r} is there twice")
    return dict(zip(names, arrays, strict=True))


def _array_of(name: object, values: Any) -> np.ndarray:
    """A column as numbers, bools, dates or objects."""
    values = values.detach().cpu().numpy() if hasattr(values, "detach") else unmasked(values)  # a tensor, or an array
    if not isinstance(values, np.ndarray):
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise TypeError(f"column {name!r} must be a 1-d array or a list, got {type(values).__name__}")
        values = list(values)
        # numpy would turn a number among texts into a text, and None into an error or an object
        is_mixed = any(not isinstance(value, int | float | np.number | np.bool_) for value in values)
        is_dated = bool(values) and all(isinstance(value, np.datetime64) for value in values)
        found = np.asarray(values, dtype=None if is_dated or not is_mixed else object)
    else:
        found = values
    if found.ndim != 1:
        raise ValueError(f"column {name!r} must be 1-d, got an array of shape {found.shape}")
    if found.dtype.kind in "biufmM":
        return found
    if found.dtype.kind in "USO":
        return found.astype(object)
    raise TypeError(f"column {name!r} must have numbers, dates or texts, got {found.dtype}")


def _arrays_of_pandas(frame: Any) -> Iterator[np.ndarray]:
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        dtype = column.dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "biufmM":
            yield column.to_numpy()
            continue
        is_missing = column.isna().to_numpy()
        if getattr(dtype, "kind", "O") in "biuf" and not is_missing.any():  # pandas' own numbers, such as Int64
            yield column.to_numpy(dtype=dtype.numpy_dtype if hasattr(dtype, "numpy_dtype") else np.float64)
        elif getattr(dtype, "kind", "O") in "iuf":
            yield column.to_numpy(dtype=np.float64, na_value=np.nan)
        elif getattr(dtype, "kind", "O") == "M":
            yield column.to_numpy(dtype="datetime64[ns]")
        else:
            objects = column.to_numpy(dtype=object).copy()
            objects[is_missing] = None
            yield objects


def _array_of_polars(column: Any) -> np.ndarray:
    if column.dtype.is_numeric() and not column.dtype.is_decimal():
        return np.asarray((column.cast(float) if column.null_count() else column).to_numpy())
    if column.dtype.is_temporal() and str(column.dtype).startswith("Date"):
        return np.asarray(column.to_numpy())
    if str(column.dtype) == "Boolean" and not column.null_count():
        return np.asarray(column.to_numpy())
    found = np.empty(len(column), dtype=object)
    found[:] = column.to_list()
    return found


def _polars_frame(columns: Mapping[str, Any]) -> Any:
    import polars

    made = {}
    for name, column in columns.items():
        has_objects = isinstance(column, np.ndarray) and column.dtype == object
        made[name] = polars.Series(name, column.tolist() if has_objects else column, strict=False)
    return polars.DataFrame(made)


def _read_csv(path: Path) -> Columns:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is {'a folder' if path.is_dir() else 'missing'}; a table is read from a file")
    size = path.stat().st_size
    if size > MOST_FILE_BYTES:
        raise ValueError(f"{path} must have at most {MOST_FILE_BYTES} bytes, got {size}")
    file = io.StringIO(read_text(path), newline="")
    try:
        delimiter = _delimiter_of(file)
        file.seek(0)
        lines = _lines(path, file, delimiter)
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    if not lines:
        raise ValueError(f"{path} is empty; its first line must name the columns")
    names = [word.strip() for word in lines[0]]
    for place, word in enumerate(names):
        if not word or _number_of(word, delimiter) is not None:
            came = repr(word) if word else "an empty cell"
            raise ValueError(f"{path} must begin with a line that names the columns, got {came} in column {place + 1}")
    cells = zip(*lines[1:], strict=True) if len(lines) > 1 else [()] * len(names)
    return _unique(names, (_column_of_words(words, delimiter) for words in cells))


def _lines(path: Path, file: TextIO, delimiter: str) -> list[list[str]]:
    """The lines that have something in them, each with as many cells as the first."""
    before = csv.field_size_limit(MOST_CELL_CHARACTERS)
    try:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        lines = without_blank_lines(path, ((reader.line_num, line) for line in reader))
    finally:
        csv.field_size_limit(before)
    for number, line in lines:
        if len(line) != len(lines[0][1]):
            cells = f"{len(line)} cell{'s' * (len(line) != 1)}"
            raise ValueError(f"{path}, line {number} must have {len(lines[0][1])} cells, as the first has, got {cells}")
    return [line for _, line in lines]


def _delimiter_of(file: TextIO) -> str:
    """The delimiter that stands most often in the first line, outside of quotes; the comma if none does."""
    for line in file:
        if line.strip():
            bare = re.sub(r'"[^"]*"', "", line)
            return max(DELIMITERS, key=bare.count)
    return ","


def _column_of_words(words: Sequence[str], delimiter: str) -> np.ndarray:
    """A column of a CSV file: int64, float64, or texts."""
    if words and all(map(_WHOLE_NUMBER.fullmatch, words)):
        return np.array(list(map(int, words)), dtype=np.int64)
    numbers = np.full(len(words), np.nan)
    has_numbers = False
    for row, word in enumerate(words):
        if word.strip().lower() in MISSING_WORDS:
            continue
        number = _number_of(word, delimiter)
        if number is None or _NAME_IN_DIGITS.fullmatch(word.strip()):
            return np.array([None if not word.strip() else word for word in words], dtype=object)
        numbers[row] = number
        has_numbers = True
    if not has_numbers and words:
        return np.full(len(words), None, dtype=object)
    return numbers


def _number_of(word: str, delimiter: str = ",") -> float | None:
    if "_" in word:  # Python's 1_000
        return None
    if delimiter == ";" and word.count(",") == 1 and "." not in word:
        word = word.replace(",", ".")
    try:
        return float(word)
    except ValueError:
        return None


def _parsed(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers of a column of objects; NaN where missing."""
    numbers = np.full(len(column), np.nan)
    for row, value in enumerate(column.tolist()):
        if _is_missing_word(value):
            continue
        number = _number_of(value) if isinstance(value, str) else _float_of(value)
        if number is None:
            kind = "text" if isinstance(value, str) else type(value).__name__
            raise ValueError(f"column {name!r} has {kind} in row {row}: {_short(value)}; rows count from 0")
        numbers[row] = number
    return numbers


def _float_of(value: Any) -> float | None:
    if isinstance(value, list | tuple | dict | bytes | np.ndarray):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _text_of(name: str, row: int, value: Any) -> str | None:
    if _is_missing(value) or value == "NaT":
        return None
    if isinstance(value, list | dict | set | bytes | np.ndarray):
        raise ValueError(f"column {name!r} has {type(value).__name__} in row {row}: {_short(value)}; rows count from 0")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def _is_missing_word(value: Any) -> bool:
    return _is_missing(value) or (isinstance(value, str) and value.strip().lower() in MISSING_WORDS)


def _is_number_word(value: Any) -> bool:
    return isinstance(value, str) and _number_of(value) is not None and not _NAME_IN_DIGITS.fullmatch(value.strip())


def _values(column: np.ndarray) -> list[Any]:
    values: list[Any] = (column.astype(str) if column.dtype.kind in "mM" else column).tolist()
    return values


def _written(value: Any) -> Any:
    return "" if _is_missing(value) or value == "NaT" else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind_name(column: np.ndarray) -> str:
    return "dates" if column.dtype.kind == "M" else "durations"


def _first(flags: np.ndarray) -> int:
    return int(flags.argmax())
