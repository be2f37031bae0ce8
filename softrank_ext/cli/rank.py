"""`softrank rank TABLE`: learn to rank the rows of a table, or rank new ones."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from softrank_ext.cli.options import AsJson, ConfigFile, check_outputs, tell

if TYPE_CHECKING:
    from softrank_ext.ranking import Quota


@dataclass(frozen=True)
class RankCommand:
    """Learn to rank the rows of a CSV file, or rank those of another.

    With --output a ranker is trained and saved; with --model the rows are written with their places, intervals and
    probabilities, to standard output or --ranked.
    """

    table: tyro.conf.Positional[
        Annotated[Path, tyro.conf.arg(metavar="TABLE", help="A CSV file whose first line names the columns.")]
    ]
    group: str | None = None
    """Training: the column that tells groups apart; without it all rows are one group."""
    label: str | None = None
    """Training: the column of grades, places or clicks."""
    features: tuple[str, ...] = ()
    """Training: the columns to rank by; all others by default."""
    labels: Literal["grades", "places", "clicks"] = "grades"
    """Training: grades (higher is better), places (1 is best, empty after all others), or clicks (0 or 1)."""
    validation: Path | None = None
    """Training: a CSV file of groups to stop early on; by default a part of the training groups."""
    output: Path | None = None
    """Training: the folder to save the ranker in."""
    report: Path | None = None
    """Training: an HTML file to write, a page with NDCG, calibration and sharpness."""
    model: Path | None = None
    """Ranking: the folder of a saved ranker."""
    ranked: Path | None = None
    """Ranking: the CSV file to write; standard output by default."""
    quota: str | None = None
    """Ranking: a rule such as seller:1:3, at most 1 of a seller among the first 3 places."""
    top: int | None = None
    """Ranking: only the first so many places, which is faster for long groups."""
    seed: int = 0
    """Training: of everything random."""
    config: ConfigFile = None
    as_json: AsJson = False

    def run(self, command: str) -> int:
        """Train or rank; returns the exit code."""
        if (self.output is None) == (self.model is None):
            raise ValueError("give --output FOLDER to train a ranker, or --model FOLDER to rank with one")
        return self._rank() if self.output is None else self._train(self.output)

    def _train(self, output: Path) -> int:
        from softrank_ext.ranking import Ranker
        from softrank_ext.ranking.ranker_folder import check_ranker_folder

        if self.label is None:
            raise ValueError("training needs --label, the column of grades, places or clicks")
        if any(given is not None for given in (self.quota, self.ranked, self.top)):
            raise ValueError("--quota, --ranked and --top are for ranking with --model")
        check_outputs((self.report,), (self.table, self.validation))
        check_ranker_folder(output)
        ranker = Ranker(list(self.features) or None, self.group, self.label, labels=self.labels, seed=self.seed)
        ranker.fit(self.table, validation=self.validation)
        ranker.save(output)
        if self.report is not None:
            ranker.report().save_html(self.report, f"Ranking of {self.table.name}")
        report = ranker.report_
        lines = [repr(ranker), *([] if report is None else [repr(report)])]
        lines.append(f"saved in {output}; rank new rows with: softrank rank NEW.csv --model {output} > ranked.csv")
        record = {"ranker": repr(ranker), "output": output, "report": None if report is None else report.to_json()}
        tell(self.as_json, record, "\n".join(lines))
        return 0

    def _rank(self) -> int:
        from softrank_ext.ranking import Ranker
        from softrank_ext.tables import write_csv

        given = [name for name in ("group", "label", "validation", "report") if getattr(self, name) is not None]
        if given or self.features:
            raise ValueError(f"--{(given or ['features'])[0]} is for training: the ranker knows its columns")
        assert self.model is not None
        check_outputs((self.ranked,), (self.table,))
        ranker = Ranker.load(self.model)
        print(ranker, file=sys.stderr)
        columns = ranker.predict(self.table, rules=None if self.quota is None else _quota_of(self.quota), top=self.top)
        if self.ranked is not None:
            write_csv(columns, self.ranked)
        if self.as_json:
            tell(
                True, {"ranker": repr(ranker), "rows": {name: column.tolist() for name, column in columns.items()}}, ""
            )
        elif self.ranked is None:
            write_csv(columns, sys.stdout)
        return 0


def _quota_of(word: str) -> "Quota":
    from softrank_ext.ranking import Quota

    parts = word.rsplit(":", 2)
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise ValueError(f"--quota must be written like seller:1:3, got {word!r}")
    return Quota(parts[0], int(parts[1]), int(parts[2]))
