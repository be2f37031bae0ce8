"""Draws the README's example of constraints: a tour that comes to every pickup before its delivery.

    python bench/making/deliveries.py [--model tsp] [--output bench/results/deliveries.png]

--model is a bundled model's name or a folder. Best of 128 draws each: without rules, with rules pick by pick, and by
the model's law given the rules.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from plots import plot_deliveries

from softrank_ext import Constraints, SoftRankModel, sample
from softrank_ext.metrics import tour_length
from softrank_ext.show import save_figure

RESULTS = Path(__file__).parents[1] / "results"
DRAWS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the README's example of constraints.")
    parser.add_argument("--model", default="tsp", help="a bundled model's name, or a folder")
    parser.add_argument("--output", type=Path, default=RESULTS / "deliveries.png")
    args = parser.parse_args()
    model = SoftRankModel.from_pretrained(args.model)
    points = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    deliveries = [(pickup, pickup + 6) for pickup in range(1, 7)]  # what is fetched at 1 goes to 7, and so on
    start = Constraints(pins={0: 0})
    rules = replace(start, before=deliveries)

    def length(order: torch.Tensor) -> torch.Tensor:
        return tour_length(points.expand(*order.shape, 2), order)

    tours = {}
    for name, constraints in (
        ("no rules", start),
        ("rules, law prefix", rules),
        ("rules, law conditioned", replace(rules, law="conditioned")),
    ):
        drawn = sample(model, points, constraints=constraints, num_samples=DRAWS, seed=0)
        tours[name] = drawn.best(length).order
        lengths = length(drawn.order)
        print(f"{name}: mean length {float(lengths.mean()):.3f}, best {float(lengths.min()):.3f}")
        if drawn.effective_size is not None and drawn.log_prob_allowed is not None:
            print(
                f"  effective sample size {float(drawn.effective_size[0]):.1f} of {rules.particles * DRAWS}; "
                f"the model keeps the rules by itself with probability {float(drawn.log_prob_allowed[0].exp()):.1e}"
            )
    figure = plot_deliveries(points, tours, deliveries, f"Best of {DRAWS} tours")
    save_figure(figure, args.output)
    print(f"written to {args.output}")


if __name__ == "__main__":
    main()
