"""Answers from samples of a model trained here, beside the exact ones: a table, and a picture in bench/results.

    python bench/answers.py

A ballot ranks eight items whose qualities are known: it is drawn from a Plackett-Luce law of scores 6 * quality. A
small model sees qualities and one ballot of each of 4,000 instances, trains for about a minute, and is asked about new
ones. The law itself, which the model never saw, gives the exact answers.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from timing import fix_threads, machine
from torch import Tensor

from softrank_ext import SoftRankConfig, SoftRankModel, answers, log_likelihood, sample
from softrank_ext.laws import PlackettLuce
from softrank_ext.show import plot_calibration, plot_pairwise, plot_rank_interval, plot_top_k, save_figure
from softrank_ext.tasks.own import Own
from softrank_ext.training import TrainConfig, train

RESULTS = Path(__file__).parent / "results"
ITEMS, TRAINING, TESTS = 8, 4000, 96
TOP, LEVEL, SAMPLES = 3, 0.9, 500


def law_of(qualities: Tensor) -> PlackettLuce:
    """The law that ballots are drawn from."""
    return PlackettLuce(6 * qualities[..., 0])


def trained_model(iterations: int) -> tuple[SoftRankModel, Tensor, Tensor]:
    """A model, and qualities and ballots that it has not seen."""
    torch.manual_seed(0)
    qualities = torch.rand(TRAINING + TESTS, ITEMS, 1)
    ballots = law_of(qualities).sample()
    task = Own((qualities[:TRAINING], ballots[:TRAINING]), (qualities[TRAINING:], ballots[TRAINING:]))
    config = SoftRankConfig(d_model=32, heads=4, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
    model = SoftRankModel(config)
    options = TrainConfig(iterations=iterations, warmup=40, learning_rate=3e-3)
    with TemporaryDirectory() as folder:
        train(model, task, options, output=folder, quiet=True)
    return model, qualities[TRAINING:], ballots[TRAINING:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=800)
    parser.add_argument("--output", type=Path, default=RESULTS / "answers.png")
    arguments = parser.parse_args()
    fix_threads(2)
    model, qualities, ballots = trained_model(arguments.iterations)
    samples = sample(model, qualities, num_samples=SAMPLES, seed=0)
    law = law_of(qualities)
    exact = PlackettLuce(law.scores[0])
    orders = exact.enumerate_support()
    chances = exact.log_prob(orders).double().exp()
    ranks = orders.argsort(1)
    exact_before = ((ranks[:, :, None] < ranks[:, None]) * chances[:, None, None]).sum(0)
    exact_top = ((ranks < TOP) * chances[:, None]).sum(0)

    one = samples[0]
    before, top, interval = answers.pairwise(one), answers.top_k(one, TOP), answers.rank_interval(one, LEVEL)
    best, checked = answers.consensus(one), answers.calibration(samples, ballots)
    likely = log_likelihood(model, qualities, ballots, num_samples=256)

    print(machine())
    print(f"P(i before j), largest difference to the exact: {(before.value - exact_before).abs().max():.3f}")
    print(f"P(among the first {TOP}), largest difference:       {(top.value - exact_top).abs().max():.3f}")
    print(f"consensus: {best.order.tolist()}, by quality: {qualities[0, :, 0].argsort(descending=True).tolist()}")
    print(f"  {best.distance:.2f} +- {best.standard_error:.2f} pairs from a sample")
    print(f"calibration over {TESTS} instances: {checked.expected_error:.3f} +- {checked.expected_error_error:.3f}")
    error = likely.standard_error.square().sum().sqrt() / TESTS
    print(f"log-likelihood of a new ballot: {likely.log_prob.mean():.3f} +- {error:.3f} (estimate, whole diffusion)")
    print(f"                                {law.log_prob(ballots).mean():.3f} (the law that drew it)")

    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8.5), layout="constrained")
    (upper_left, upper_right), (lower_left, lower_right) = figure.subplots(2, 2)
    plot_pairwise(before, best, axes=upper_left)
    plot_top_k(top, best, exact=exact_top, axes=upper_right)
    plot_rank_interval(interval, best, level=LEVEL, axes=lower_left)
    plot_calibration(checked, axes=lower_right)
    save_figure(figure, arguments.output)


if __name__ == "__main__":
    main()
