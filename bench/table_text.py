"""A measured table of the paper as Markdown and JSON: its cells, the note above it, and its two files."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from paper import JIGSAW_TABLES, SORTING_TABLES, TABLES
from report import markdown_table


def papers_cell(evaluation: Mapping[str, Any], metric: str, size: int, digits: int = 4) -> str:
    """The paper's number for a metric of a line, with its size if that is another."""
    number = (evaluation["paper"] or {}).get(metric)
    if number is None:
        return "-"
    return f"{number:.{digits}f}" + (f" at {evaluation['paper_size']}" if evaluation["paper_size"] != size else "")


def lines_of(table: str, results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's cells: each metric with its standard error and, where the paper has it, the paper's number."""
    shown = TABLES[table]
    in_paper = [
        name for name in shown.metrics if any(name in (e["paper"] or {}) for r in results for e in r["evaluations"])
    ]
    header = [shown.size_name, "method"]
    for name in shown.metrics:
        header += [name.replace("_", " "), *(["paper"] if name in in_paper else [])]
    lines = [[*header, "updates", "minutes", "parameters"]]
    for result in results:
        for evaluation in result["evaluations"]:
            cells = [str(result["size"]), ", ".join(filter(None, (result["name"], evaluation["line"])))]
            for name in shown.metrics:
                score = evaluation["metrics"].get(name)
                cells.append("-" if score is None else f"{score['mean']:.4f} ± {score['standard_error']:.4f}")
                if name in in_paper:
                    cells.append(papers_cell(evaluation, name, result["size"]))
            millions = f"{result['parameters'] / 1e6:.2f} M"
            lines.append([*cells, str(result["updates"]), f"{result['seconds'] / 60:.2f}", millions])
    return lines


def note_of(table: str, about: Mapping[str, object], args: argparse.Namespace) -> str:
    """What the numbers are, and that they are not the paper's."""
    images = f"{args.cnn} CNN, " if table in SORTING_TABLES else ""
    images += f"patches read by --task.reader {args.patch_reader}, " if table in JIGSAW_TABLES else ""
    if args.reader is not None:
        images += f"weights of the reader taken from {args.reader} and not trained here, "
    instances = f"{args.instances} training instances, " if table == "tsp" else ""
    batch = "the method's own batch size" if args.batch_size is None else f"batches of {args.batch_size}"
    if args.width is not None:
        batch += f", networks over lists {args.width} wide"
    if args.draws is not None:
        batch += f", noisy orders per instance for every diffusion: {args.draws}"
    machine = ", ".join(f"{name} {value}" for name, value in about.items())
    source = TABLES[table].source
    paper = (
        f' Columns "paper" are from its table {source}, arXiv 2603.17353; where it has another size only, with that '
        f"{TABLES[table].size_name}."
        if source
        else ""
    )
    return (
        f"Budget and hardware differ from the paper's. Here: {args.budget:g} minutes of training per row on this "
        f"machine ({machine}); {images}{instances}{batch}, cosine decay to the end of the budget for every method. The "
        f"paper: 120 epochs (50 of TSP) on one H100.{paper}\n\n"
        f"Means over {args.count} held-out instances ± standard errors, greedy decoding. Tie-aware "
        "metrics take equal items for interchangeable, the others do not. Minutes are those that training took, "
        "updates as many as were expected to fit into the budget.\n"
    )


def write(
    table: str, about: Mapping[str, object], results: Sequence[dict[str, Any]], args: argparse.Namespace
) -> list[list[str]]:
    """Write the table as Markdown and JSON into --output; returns its cells."""
    lines = lines_of(table, results)
    args.output.mkdir(parents=True, exist_ok=True)
    rows = markdown_table(lines[0], lines[1:], numbers_from=2)
    note = note_of(table, about, args)
    (args.output / f"table_{table}.md").write_text(f"# {table}\n\n{note}\n" + "\n".join(rows) + "\n")
    record = {"table": table, "note": note, "machine": about, "results": results}
    (args.output / f"table_{table}.json").write_text(json.dumps(record, indent=2) + "\n")
    return lines
