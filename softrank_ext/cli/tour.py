"""`softrank tour`: places of a CSV file in the order of a short tour, as a table and as a page with a map."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from softrank_ext.cli.options import AsJson, check_outputs, tell
from softrank_ext.cli.time_bar import time_bar

ENDINGS = (".html", ".csv", ".geojson", ".png", ".svg", ".pdf")


def tour_command(
    places: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="PLACES.csv")]],
    metric: Literal["latlon", "plane", "matrix"] | None = None,
    start: str | None = None,
    end: str | None = None,
    open: bool = False,
    pairs: Path | None = None,
    group: tuple[str, ...] = (),
    k: int = 1,
    seconds: float = 1.0,
    output: tuple[Path, ...] = (),
    model: str = "tsp",
    seed: int = 0,
    as_json: AsJson = False,
) -> None:
    """Plan a short tour through the places of a table.

    Args:
        places: CSV file with a line of column names and a row per place: columns lat and lon, or x and y, and name.
        metric: What the columns are; by default lat and lon are degrees, x and y a plane. A table of distances must be
            asked for.
        start: Name of the place where the tour begins.
        end: Name of the place where it ends; with --open.
        open: Do not come back to the start.
        pairs: CSV file of pairs, pickup and delivery: each pickup comes before its delivery.
        group: Names of places that are visited one right after another, with commas between them; one word per group.
        k: So many different tours.
        seconds: Time to think. Ctrl-C ends it with the best tour so far.
        output: Files to write, by their ending: .html (a page with the map), .csv, .geojson, .png, .svg, .pdf; by
            default the stops are printed as CSV.
        model: A bundled model or the folder of one; none for search alone.
        seed: Another seed, another search.
    """
    from softrank_ext.tables import columns_of
    from softrank_ext.tours import plan_tour

    for path in output:
        if path.suffix not in ENDINGS:
            raise ValueError(f"output must end in {', '.join(ENDINGS)}, got {path}")
    check_outputs(output, (places, pairs))
    if end is not None and not open:
        raise ValueError("--end needs --open: a closed tour ends where it starts")
    columns = columns_of(places)
    with time_bar(seconds):
        tour = plan_tour(
            columns, metric=metric or _metric_of(places, list(columns)), start=start, end=end, closed=not open,
            pairs=() if pairs is None else pairs, groups=[[name.strip() for name in one.split(",")] for one in group],
            k=k, seconds=seconds, model=None if model == "none" else model, seed=seed,
        )  # fmt: skip
    for line in (repr(tour), tour.certainty, tour.answered_by):
        print(line, file=sys.stderr)
    if tour.is_interrupted:
        print("Interrupted: this is the best tour so far.", file=sys.stderr)
    if not output and not as_json:
        tour.to_csv(sys.stdout)
    for path in output:
        if path.suffix == ".html":
            tour.save_html(path, title=f"Tour of {places.stem}")
        elif path.suffix == ".csv":
            tour.to_csv(path)
        elif path.suffix == ".geojson":
            tour.to_geojson(path)
        else:
            from softrank_ext.show.style import save_figure

            save_figure(tour.plot(), path)
    if as_json or output:
        record = {
            "length": tour.length, "unit": tour.unit, "bound": tour.bound, "order": tour.order.tolist(),
            "stops": tour.stops, "legs": tour.legs.tolist(), "answered_by": tour.answered_by,
            "others": [other.order.tolist() for other in tour.others], "output": list(map(str, output)),
        }  # fmt: skip
        tell(as_json, record, f"Written to {', '.join(map(str, output))}")


def _metric_of(places: Path, names: list[str]) -> str:
    """What the columns of these names are; raises ValueError where that cannot be told."""
    from softrank_ext.tours.places import COORDINATES

    known = {name.lower() for name in names}
    fitting = [kind for kind, columns in COORDINATES.items() if all(known & set(words) for words in columns)]
    if len(fitting) != 1:
        raise ValueError(
            f"--metric must be given: {places} has the columns {', '.join(map(repr, names))}, "
            "not lat and lon, nor x and y alone"
        )
    return fitting[0]
