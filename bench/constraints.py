"""What constraints cost, and whether any is ever broken.

    python bench/constraints.py [--parts speed violations] [--samples 100000] [--json] [--compare FILE]

- speed: `sample` with 50 random order pairs against without, at N 50 and batch 64, in turns in one run (random weights:
  d 128, ff 512, 8 heads, 3 + 4 layers), for one set of pairs and for a set per instance; also windows, forbidden
  places and groups.
- violations: samples of a small random model under random pairs, pins, forbidden places and groups, a set of rules per
  instance, N 5 to 50; every rule is checked on every sample. The ratio of that row is the number broken.
"""

import random
import sys
from functools import partial
from typing import Any

import report
import torch
from timing import timed_together

from softrank_ext import Constraints, SoftRankConfig, SoftRankModel, sample
from softrank_ext.constraints import Constraining

PARTS = ("speed", "violations")
ITEMS, BATCH, PAIRS, ALLOWED_RATIO = 50, 64, 50, 1.5
SIZES = (5, 8, 13, 20, 32, 50)


def random_constraints(
    N: int, generator: random.Random, *, pairs: int = 0, pins: int = 0, forbidden: int = 0, groups: int = 0
) -> Constraints:
    """Random rules that a random hidden order keeps, so that they do not contradict each other."""
    order = generator.sample(range(N), N)
    ends = [sorted(generator.sample(range(N), 2)) for _ in range(pairs)]
    places = [generator.sample(range(N), 2) for _ in range(forbidden)]
    starts = generator.sample(range(0, N - 1, 4), min(groups, (N + 2) // 4))
    return Constraints(
        before=[(order[a], order[b]) for a, b in ends],
        pins={order[place]: place for place in generator.sample(range(N), min(pins, N))},
        forbidden=[(order[own], other) for own, other in places],
        together=[order[start : start + generator.randint(2, 4)] for start in starts],
    )


def broken_rules(constraints: Constraints, order: list[int]) -> int:
    """How many rules an order of all items breaks."""
    place = {item: place for place, item in enumerate(order)}
    pairs: Any = constraints.before  # a tuple of pairs, however they were given
    spans = [[place[item] for item in group] for group in constraints.together]
    return (
        sum(place[a] >= place[b] for a, b in pairs)
        + sum(place[item] != pinned for item, pinned in constraints.pins.items())
        + sum(place[item] == banned for item, banned in constraints.forbidden)
        + sum(max(span) - min(span) != len(span) - 1 for span in spans)
    )


def speed_rows(rounds: int) -> list[report.Row]:
    """What sets of rules cost, each against the same call without."""
    torch.manual_seed(0)
    model = SoftRankModel(SoftRankConfig(embedder={"kind": "linear", "features": 2})).eval()
    items = torch.rand(BATCH, ITEMS, 2)
    generator = random.Random(0)
    sets: dict[str, Constraining] = {
        f"{PAIRS} pairs": random_constraints(ITEMS, generator, pairs=PAIRS),
        f"{PAIRS} pairs, a set per instance": [random_constraints(ITEMS, generator, pairs=PAIRS) for _ in range(BATCH)],
        f"{PAIRS} pairs and 5 pins": random_constraints(ITEMS, generator, pairs=PAIRS, pins=5),
        "500 forbidden places": random_constraints(ITEMS, generator, forbidden=500),
        f"{PAIRS} pairs and 5 groups": random_constraints(ITEMS, generator, pairs=PAIRS, groups=5),
        f"{PAIRS} pairs and 100 forbidden places": random_constraints(ITEMS, generator, pairs=PAIRS, forbidden=100),
    }
    calls = {name: partial(sample, model, items, constraints=rules, seed=0) for name, rules in sets.items()}
    calls["without"] = partial(sample, model, items, seed=0)
    times = timed_together(calls, repeats=rounds, seconds=1e9)
    return [
        {
            "name": f"batch {BATCH}, N {ITEMS}: {name}, without",
            "ours_ms": times[name].best * 1e3,
            "ours_median_ms": times[name].median * 1e3,
            "other_ms": times["without"].best * 1e3,
            "ratio": times[name].best / times["without"].best,
            "allowed": ALLOWED_RATIO if name.startswith(f"{PAIRS} pairs") and "and" not in name else None,
        }
        for name in sets
    ]


def violation_row(samples: int) -> report.Row:
    """How many rules that many samples break."""
    torch.manual_seed(1)
    model = SoftRankModel(
        SoftRankConfig(
            d_model=16, feed_forward=16, heads=2, encoder_layers=1, decoder_layers=1,
            embedder={"kind": "linear", "features": 2},
        )
    ).eval()  # fmt: skip
    generator = random.Random(1)
    instances, draws = 200, 5
    done = broken = 0
    while done < samples:
        N = SIZES[done // (instances * draws) % len(SIZES)]
        constraints = [
            random_constraints(
                N, generator, pairs=generator.randrange(N + 1), pins=generator.choice((0, 1, N // 4)),
                forbidden=generator.choice((0, N, 2 * N)), groups=generator.choice((0, 0, 1)),
            )
            for _ in range(instances)
        ]  # fmt: skip
        steps = 2 if N <= 20 else 1  # from the second on the order before is a draft
        items = torch.rand(instances, N, 2)
        drawn = sample(model, items, constraints=constraints, num_samples=draws, steps=steps, seed=done)
        for own, orders in zip(constraints, drawn.order.tolist(), strict=True):
            broken += sum(broken_rules(own, order) for order in orders)
        done += instances * draws
    return {"name": f"{done} samples, N {SIZES[0]} to {SIZES[-1]}: rules broken", "ratio": broken, "allowed": 0.0}


def table(rows: list[report.Row]) -> str:
    """Rows as aligned text."""
    lines = [("what: ours, other", "ours", "other", "ratio", "wanted", "")]
    for row in rows:
        cells = [f"{row[side]:.1f} ms" if side in row else "-" for side in ("ours_ms", "other_ms")]
        wanted = "-" if row["allowed"] is None else f"<= {row['allowed']:.1f}"
        lines.append((row["name"], *cells, f"{row['ratio']:.2f}", wanted, report.verdict(row)))
    return report.table(lines)


def main() -> int:
    parser = report.options("What constraints cost, and whether any is ever broken.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the sides take turns")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--samples", type=int, default=100_000, help="for the violations part")
    args = parser.parse_args()
    about = report.begin(args)
    rows = speed_rows(args.rounds) if "speed" in args.parts else []
    if "violations" in args.parts:
        rows.append(violation_row(args.samples))
    return report.finish(args, about, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
