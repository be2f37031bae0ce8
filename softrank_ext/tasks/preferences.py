"""Rankings as data: ballots over items that are only names. The model learns the distribution of the ballots.

Reads PrefLib's strict orders, complete (.soc) and incomplete (.soi), in the present and in the older layout, and CSV:
a ballot a row, names from first to last place, fewer or empty cells where a ballot is partial; if the first cell of the
file is `count` (in any letters), that row is a header and the first column says how many voters cast the ballot.

Random, by (seed, step): which voter's ballot comes next in a pass over the voters, and the order of the items that a
partial ballot does not name. Which voters are held out for testing depends on the file and on test_share alone.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_share
from softrank_ext.model import DataFacts
from softrank_ext.tasks.draws import generator_of, random_orders, rows_of_passes
from softrank_ext.text_files import read_text

ENDINGS = (".soc", ".soi", ".csv")
# What a file may ask for: a number per voter, and one per ballot and item, are kept.
MOST_VOTERS = 10**8
MOST_CELLS = 10**8
_TOTALS = ("NUMBER VOTERS", "NUMBER UNIQUE ORDERS")
_COUNT = re.compile("[0-9]{1,18}")


class _Ballot(NamedTuple):
    """line: of the file, from 1. voters: how many cast it. items: from the first place on, counted from 0."""

    line: int
    voters: int
    items: list[int]


class Ballots(NamedTuple):
    """names: of the N items. order: (ballots, N) int64, -1 after the known places. known, counts: (ballots,) int64."""

    names: tuple[str, ...]
    order: Tensor
    known: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Preferences:
    """The ballots of a file; each voter counts once.

    items (B, N) int64: the item's number, 0 to N - 1, in the order of `read_ballots(file).names`. known (B,): how many
    leading places of `order` the ballot gives; after them the other items stand in random order.
    """

    file: str
    """Ballots: a .soc, .soi or .csv file."""
    test_share: float = 0.2
    """Share of voters that are held out for testing; 0 tests on all of them."""

    name = "preferences"

    def __post_init__(self) -> None:
        check_share("test_share", self.test_share)

    def embedder(self) -> Mapping[str, object]:
        """A learned vector for each item of the file."""
        return {"kind": "learned", "num_items": self.max_items()}

    def max_items(self) -> int:
        """The number of items in the file."""
        return len(_read(self.file).names)

    def data_facts(self) -> DataFacts:
        """All alternatives of the file."""
        return DataFacts(num_items=(self.max_items(), self.max_items()))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` ballots of voters that are not held out."""
        voters, _ = self._voters()
        rows = voters[rows_of_passes(len(voters), seed, step * size, size, "training ballots")]
        return self._batch(rows, random_orders(size, self.max_items(), generator_of(seed, step, "training rest")))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """`count` ballots of held-out voters, repeated if there are fewer. Instance i does not depend on `size`."""
        _, voters = self._voters()
        for start in range(0, count, size):
            instances = range(start, min(start + size, count))
            rows = voters[rows_of_passes(len(voters), seed, start, len(instances), "test ballots")]
            rests = [random_orders(1, self.max_items(), generator_of(seed, i, "test rest")) for i in instances]
            yield self._batch(rows, torch.cat(rests))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """How well an order agrees with one voter's ballot, over the places that the ballot gives."""
        return {
            "kendall_tau_of_ranks": metrics.kendall_tau_of_ranks(order, batch.order, known=batch.known),
            "accuracy": metrics.accuracy(order, batch.order, known=batch.known),
            "correctness": metrics.correctness(order, batch.order, known=batch.known),
        }

    def _voters(self) -> tuple[Tensor, Tensor]:
        """The ballot's row of each voter, for training and for testing."""
        return _split(self.file, self.test_share)

    def _batch(self, rows: Tensor, rest: Tensor) -> Batch:
        """rows: (B,) int64, ballots. rest: (B, N) int64, random orders that partial ballots are completed from."""
        ballots = _read(self.file)
        order, known = ballots.order[rows], ballots.known[rows]
        N = order.shape[1]
        places = torch.arange(N)
        # Items that are named get their place, the others a place after all of these, in the order of `rest`.
        named = torch.where(order >= 0, order, N)  # column N takes what is not named
        ranks = torch.empty(len(rows), N + 1, dtype=torch.int64)
        ranks[:, :N] = N + rest
        ranks.scatter_(1, named, places.expand_as(named))
        order = ranks[:, :N].argsort(1)
        return Batch(places.expand(len(rows), N).contiguous(), order, known=known)


def read_ballots(path: str | Path) -> Ballots:
    """Read a .soc, .soi or .csv file of ballots."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise ValueError(f"a file of ballots must end in {', '.join(ENDINGS)}, got {path.name}")
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: PrefLib files are at preflib.org, CSV needs a ballot a row")
    text = read_text(path)
    names, ballots = _parse_csv(path, text) if path.suffix == ".csv" else _parse_preflib(path, text)
    if not ballots:
        raise ValueError(f"{path} has no ballots")
    if len(ballots) * len(names) > MOST_CELLS:
        raise ValueError(f"{path} must have at most {MOST_CELLS} ballots times items, got {len(ballots) * len(names)}")
    voters = sum(ballot.voters for ballot in ballots)
    if voters > MOST_VOTERS:
        raise ValueError(f"{path} must have at most {MOST_VOTERS} voters, its counts sum to {voters}")
    order = torch.full((len(ballots), len(names)), -1)
    for row, (line, _, items) in enumerate(ballots):
        if len(set(items)) != len(items):
            twice = ", ".join(names[item] for item in items)
            raise ValueError(f"{path}, line {line}: a ballot names an item twice: {twice}")
        if path.suffix == ".soc" and len(items) != len(names):
            raise ValueError(
                f"{path}, line {line}: a .soc ballot must name all {len(names)} items, this one names {len(items)}"
            )
        order[row, : len(items)] = torch.tensor(items)
    counts = torch.tensor([ballot.voters for ballot in ballots])
    known = torch.tensor([len(ballot.items) for ballot in ballots])
    return Ballots(tuple(names), order, known, counts)


def _parse_preflib(path: Path, text: str) -> tuple[list[str], list[_Ballot]]:
    """Names and ballots of either layout."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    totals: dict[str, tuple[int, int]] = {}  # what the file promises, and the place of what it is compared with
    try:
        if lines and lines[0][1].startswith("#"):
            fields = [line[1:].strip().split(":", 1) for _, line in lines if line.startswith("#")]
            names = _by_number(
                [(key.split()[-1], *name) for key, *name in fields if key.startswith("ALTERNATIVE NAME")]
            )
            promised = {key: int(value[0]) for key, *value in fields if key.startswith("NUMBER ") and value}
            if promised.get("NUMBER ALTERNATIVES", len(names)) != len(names):
                got = promised["NUMBER ALTERNATIVES"]
                raise ValueError(f"NUMBER ALTERNATIVES must be that of the names, {len(names)}, got {got}")
            rows, sign = [(number, line) for number, line in lines if not line.startswith("#")], ":"
            totals = {key: (promised[key], i) for i, key in enumerate(_TOTALS) if key in promised}
        else:
            # Older layout: the number of items, `number,name` of each, a line of totals, `count,first,second,...`.
            size = int(lines[0][1])
            if size < 1 or len(lines) < size + 2:
                raise ValueError(f"the first line promises {size} items, the file has {len(lines)} lines")
            names = _by_number([tuple(line.split(",", 1)) for _, line in lines[1 : size + 1]])
            number, line = lines[size + 1]
            sums = line.split(",")
            if len(sums) != 3:
                raise ValueError(f"line {number} must be the totals, three numbers, got {line!r}")
            totals = {key: (int(word), i) for i, (key, word) in enumerate(zip(_TOTALS, sums[1:], strict=True))}
            rows, sign = lines[size + 2 :], ","
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} is not a PrefLib file of strict orders: {error}") from error
    ballots = []
    for number, line in rows:
        if "{" in line:
            raise ValueError(f"{path}, line {number} has ties; .soc and .soi files hold strict orders")
        count, _, listed = line.partition(sign)
        try:
            if "_" in line:  # Python's 1_000
                raise ValueError(line)
            ballots.append(_Ballot(number, int(count), [int(word) - 1 for word in listed.split(",")]))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} must be a count and item numbers, got {line!r}") from error
    _checked(path, len(names), ballots)
    found = sum(ballot.voters for ballot in ballots), len(ballots)
    for key, (wanted, at) in totals.items():
        if wanted != found[at]:
            raise ValueError(f"{path} is not whole: its {key} is {wanted}, the ballots have {found[at]}")
    return names, ballots


def _by_number(named: list[tuple[str, ...]]) -> list[str]:
    """Names (number, name) in the order of their numbers, which must be 1, 2, ..."""
    numbers = [int(number) for number, *_ in named]
    if sorted(numbers) != list(range(1, len(named) + 1)):
        got = ", ".join(map(str, sorted(numbers)))
        raise ValueError(f"names must be numbered 1 to {len(named)}, each once, got {got}")
    return [name.strip() for _, name in sorted(zip(numbers, (pair[1] for pair in named), strict=True))]


def _parse_csv(path: Path, text: str) -> tuple[list[str], list[_Ballot]]:
    if text.startswith("# FILE NAME:"):
        raise ValueError(f"{path} is a PrefLib file: name it .soc, or .soi if ballots may leave items out")
    try:
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    has_counts = bool(rows) and rows[0][1][0:1] != [] and rows[0][1][0].lower() == "count"
    numbers: dict[str, int] = {}
    looks: dict[str, str] = {}
    ballots = []
    for line, row in rows[1:] if has_counts else rows:
        if not any(row):
            continue
        if has_counts and not _COUNT.fullmatch(row[0]):
            raise ValueError(f"{path}, line {line}, column 1 must be a count, got {row[0][:40]!r}")
        cells = row[1:] if has_counts else row
        ballot = [name for name in cells if name]
        if len(cells) == 1 and (";" in cells[0] or "\t" in cells[0]):
            raise ValueError(
                f"{path}, line {line}, column 1 must be a name, with commas between names, got {row[-1]!r}"
            )
        if "" in cells[: len(ballot)]:
            column = cells.index("") + 1 + has_counts
            raise ValueError(f"{path}, line {line}, column {column}: empty cells may stand at the end of a ballot only")
        for column, name in enumerate(ballot, 1 + has_counts):
            other = looks.setdefault(_look_of(name), name)
            if other != name:
                raise ValueError(
                    f"{path}, line {line}, column {column} must be a name that can be told from {other!r}, got {name!a}"
                )
        items = [numbers.setdefault(name, len(numbers)) for name in ballot]
        if not items:
            raise ValueError(f"{path}, line {line} must name at least one item, got a count alone")
        ballots.append(_Ballot(line, int(row[0]) if has_counts else 1, items))
    return list(numbers), _checked(path, len(numbers), ballots)


def _look_of(name: str) -> str:
    """The name without what is not seen: characters of no width, and the two ways to write an accent."""
    return "".join(c for c in unicodedata.normalize("NFC", name) if unicodedata.category(c) != "Cf")


def _checked(path: Path, size: int, ballots: list[_Ballot]) -> list[_Ballot]:
    for line, count, items in ballots:
        if count < 1:
            raise ValueError(f"{path}, line {line}: a ballot's count must be at least 1, got {count}")
        if not all(0 <= item < size for item in items):
            numbers = [item + 1 for item in items]
            raise ValueError(f"{path}, line {line}: items are numbered 1 to {size}, the ballot has {numbers}")
    return ballots


def _version_of(file: str) -> tuple[Path, int]:
    """Where a file is and when it was written: what is kept in memory is of this file and no other."""
    path = Path(file).resolve()
    return path, path.stat().st_mtime_ns if path.exists() else 0


def _read(file: str) -> Ballots:
    return _read_version(file, _version_of(file))


@lru_cache(maxsize=4)
def _read_version(file: str, version: tuple[Path, int]) -> Ballots:
    return read_ballots(file)


def _split(file: str, test_share: float) -> tuple[Tensor, Tensor]:
    return _split_version(file, test_share, _version_of(file))


@lru_cache(maxsize=4)
def _split_version(file: str, test_share: float, version: tuple[Path, int]) -> tuple[Tensor, Tensor]:
    ballots = _read(file)
    voters = torch.arange(len(ballots.counts)).repeat_interleave(ballots.counts)
    if test_share == 0:
        return voters, voters
    shuffled = voters[torch.randperm(len(voters), generator=generator_of(0, 0, "held-out voters"))]
    held_out = max(1, round(test_share * len(voters)))
    if held_out == len(voters):
        raise ValueError(f"{file} has {len(voters)} voters, too few to hold out a share of {test_share}: use 0")
    return shuffled[held_out:], shuffled[:held_out]
