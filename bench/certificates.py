"""Certificates of the package's samplers, in one table: `python bench/certificates.py`.

Each sampler draws as many orders of N = 4 items as are needed to find every law that is 2 % away in total variation,
and is compared with the exact probabilities of all 24 orders; and once more as a negative control, with 2 % of the
orders changed in one pick, which must fail. `sample` with one diffusion step has a law that can be summed up; with
three, an exact denoiser (bench/bayes.py) must give the law that it knows. The decoder is also compared beyond
enumeration, at N = 15 and 20, with the picks that plain torch in float64 gives for the same random numbers, and so is
the source of the CUDA decoder, compiled for the host, where there is a C++ compiler.

`log_likelihood` is compared with draws, its own error counted in. Three are calibrated by ranks: an order's
`log_likelihood` and its places under law="conditioned" among those of orders of the law, and the place of a truth among
those of 9 draws, of which the answers' intervals are made. As Geweke does, pairs of clean order and noisy soft ranks
are drawn forward and in reverse. All have the same negative control, a bias of 2 % in one pick, and so many draws that
it is found with the stated chance: how far the control is off, in the test's own measure, is computed and must be at
least the distance from which on the test finds everything.

Writes bench/results/certificates.json, from which bench/making/readme.py fills docs/safety.md.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from bayes import ExactDenoiser, all_orders, number_of, two_camps
from scipy.stats import binom
from timing import machine
from torch import Tensor

from softrank_ext import Bridge, Constraints, SoftRankConfig, SoftRankModel, distributions, log_likelihood, noise, ops
from softrank_ext.certify import (
    Certificate,
    certify_agreement,
    certify_estimates,
    certify_law,
    certify_ranks,
    certify_same,
    draws_needed,
)
from softrank_ext.choices import Engine
from softrank_ext.permutations import compose, ranks_of
from softrank_ext.processes.bridge import lift_to_grid
from softrank_ext.sampling import sample

RESULTS = Path(__file__).parent / "results" / "certificates.json"
DISTANCE, FALSE_ALARM, MISSED = 0.02, 1e-6, 1e-3
CHANCES = {"false_alarm": FALSE_ALARM, "missed": MISSED}
N = 4
Draw = Callable[[int], Tensor]


class Tested(NamedTuple):
    """A certificate, that of its negative control, and how far that one is off in the test's own measure."""

    certificate: Certificate
    control: Certificate
    control_distance: float = DISTANCE


def counts_of(orders: Tensor) -> Tensor:
    """How often each of `all_orders` occurs among orders (R, size)."""
    return torch.bincount(number_of(orders), minlength=math.factorial(orders.shape[1]))


def tampered(orders: Tensor, seed: int = 5) -> Tensor:
    """Orders (R, size) with one pick biased: in 2 % of all, with one item first, the first two change places.

    The item is the one that comes first most often. No order is changed into one that begins with it, so that the law
    is exactly 2 % away in total variation.
    """
    first = orders[:, 0]
    item = int(first.bincount().argmax())
    share = float((first == item).double().mean())
    drawn = torch.rand(len(orders), generator=torch.Generator().manual_seed(seed))
    is_moved = (first == item) & (drawn < DISTANCE / share)
    changed = orders.clone()
    changed[is_moved, 0], changed[is_moved, 1] = orders[is_moved, 1], orders[is_moved, 0]
    return changed


def tampered_law(law: Tensor) -> Tensor:
    """What `tampered` makes of probabilities (size!,) of all orders."""
    size = next(size for size in range(1, 9) if math.factorial(size) == len(law))
    orders = all_orders(size)
    shares = torch.zeros(size, dtype=law.dtype).index_add_(0, orders[:, 0], law)
    item = int(shares.argmax())
    moved = torch.where(orders[:, 0] == item, law * DISTANCE / shares[item], 0)
    exchanged = torch.cat((orders[:, 1:2], orders[:, :1], orders[:, 2:]), 1)
    return (law - moved).index_add(0, number_of(exchanged), moved)


def decoder_model(size: int) -> SoftRankModel:
    """A small model with random weights, whose law is far from uniform."""
    torch.manual_seed(4)
    config = SoftRankConfig(16, 32, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0,
                            embedder={"kind": "linear", "features": 1})  # fmt: skip
    model = SoftRankModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def law_samplers() -> dict[str, tuple[Draw, Tensor]]:
    """The laws' samplers and their exact probabilities of all orders."""
    torch.manual_seed(1)
    laws = {
        "Plackett-Luce": distributions.PlackettLuce(torch.randn(N)),
        "generalised Plackett-Luce": distributions.GeneralizedPlackettLuce(torch.randn(N, N)),
        "Mallows": distributions.Mallows(torch.tensor([2, 0, 3, 1]), torch.tensor(0.6)),
        "riffle": distributions.Riffle(N, 2),
    }

    def sampler(law: distributions.OrderDistribution) -> Draw:
        return lambda count: law.sample((count,))

    return {name: (sampler(law), law.log_prob(all_orders(N)).exp().double()) for name, law in laws.items()}


def decoder_samplers() -> dict[str, tuple[Draw, Tensor]]:
    """The decoder's ways to draw, with the probabilities of a teacher-forced pass in float64 over all orders."""
    model = decoder_model(N)
    items = torch.tensor([[0.3], [-1.2], [2.0], [0.7]])
    orders = all_orders(N)
    exact = decoder_model(N).double()
    every = items.double().expand(len(orders), N, 1)
    with torch.no_grad():
        law = exact.log_prob(every, 0.4, orders).total.exp()
        ruled = Constraints(before=[(1, 2)], forbidden=[(0, 0)])
        ruled_law = exact.log_prob(every, 0.4, orders, constraints=ruled).total.exp()

    def draw(engine: Engine, constraints: Constraints | None = None, draft: bool = False) -> Draw:
        def drawn(count: int) -> Tensor:
            parts = []
            for numbers in torch.arange(count).split(8192):
                uniform = noise.uniform(9, numbers, 0, N, stream=noise.PICK_STREAM)
                guess = orders[numbers % len(orders)] if draft else None
                batch = items.expand(len(numbers), N, 1)
                parts.append(
                    model.decode(batch, 0.4, uniform=uniform, draft=guess, constraints=constraints, engine=engine).order
                )
            return torch.cat(parts)

        return drawn

    plain = Engine(compiled=False)
    return {
        "decoder, compiled": (draw(Engine()), law),
        "decoder, plain torch": (draw(plain), law),
        "decoder, speculative": (draw(Engine(), draft=True), law),
        "decoder, constrained": (draw(Engine(), ruled), ruled_law),
        "decoder, constrained, plain torch": (draw(plain, ruled), ruled_law),
    }


def agreement(size: int, draws: int) -> Tested:
    """Compiled picks in float32 against those of float64 and plain torch, at N = size; and with 2 % of them changed."""
    model, exact = decoder_model(size), decoder_model(size).double()
    items = torch.randn(1, size, 1, generator=torch.Generator().manual_seed(2))
    found, wanted = [], []
    for numbers in torch.arange(draws).split(4096):
        uniform = noise.uniform(3, numbers, 0, size, stream=noise.PICK_STREAM, dtype=torch.float64)
        batch = items.expand(len(numbers), size, 1)
        found.append(model.decode(batch, 0.4, uniform=uniform.float()).order)
        wanted.append(exact.decode(batch.double(), 0.4, uniform=uniform, engine=Engine(compiled=False)).order)
    return _agreement_of(torch.cat(found), torch.cat(wanted), 0.005)


def _agreement_of(found: Tensor, wanted: Tensor, most: float) -> Tested:
    """rounding: float32 and float64 choose differently where a random number is within a rounding of a bound."""
    options = {"most": most, "rounding": 1e-4, "missed": MISSED}
    right, control = (
        certify_agreement((orders == wanted).all(1), **options) for orders in (found, tampered(found, seed=6))
    )
    return Tested(right, control)


def diffusion_samplers() -> dict[str, tuple[Draw, Tensor]]:
    """Whole calls of `sample`, with their exact laws."""
    model, items, orders = decoder_model(N), torch.tensor([[0.3], [-1.2], [2.0], [0.7]]), all_orders(N)
    # One step: the prior's order of the slots is uniform, and the prediction's law at time 1 is known for each.
    slots = orders.repeat_interleave(len(orders), 0)  # (576, N): every order of the slots with every prediction
    every = items.double()[slots]
    with torch.no_grad():
        chances = decoder_model(N).double().log_prob(every, 1.0, orders.repeat(len(orders), 1)).total.exp()
    law = torch.zeros(len(orders), dtype=torch.float64)
    law.index_add_(0, number_of(compose(slots, orders.repeat(len(orders), 1))), chances / len(orders))
    rules = Constraints(before=[(1, 2)], law="conditioned", particles=16)
    is_kept = ranks_of(orders)[:, 1] < ranks_of(orders)[:, 2]
    denoiser = ExactDenoiser(two_camps(N), Bridge(sampling_steps=3), "soft-ranks")

    def draw(constraints: Constraints | None) -> Draw:
        return lambda count: sample(model, items, constraints=constraints, num_samples=count, steps=1, seed=3).order

    def exact(count: int) -> Tensor:
        return sample(denoiser, torch.zeros(1, N, 1, dtype=torch.float64), num_samples=count, seed=5).order[0]

    return {
        "sample, one step": (draw(None), law),
        'sample, law="conditioned"': (draw(rules), law * is_kept / (law * is_kept).sum()),
        "sample, three steps, exact denoiser": (exact, two_camps(N)),
    }


def calibration(values: Tensor, law: Tensor, truths: Draw, others: Draw, draws: int, *, of_truths: bool) -> Tested:
    """Ranks of truths among `draws` others, by the values (size!,) of their orders; law (size!,): of both.

    of_truths: the truths' sampler is the one that is tested, so that its orders are `tampered` for the control, else
    that of the others.
    """
    wrong = tampered_law(law)
    is_off = rank_gap(values, wrong, law, draws) if of_truths else rank_gap(values, law, wrong, draws)
    # As many as `certify_ranks` needs to find the control.
    chances = math.sqrt(math.log(2 / FALSE_ALARM) / 2) + math.sqrt(math.log(1 / MISSED) / 2)
    count = math.ceil((chances / is_off) ** 2)
    right = truths(count), others(count * draws)
    wrong_one = (tampered(right[0]), right[1]) if of_truths else (right[0], tampered(right[1]))
    generator = torch.Generator().manual_seed(13)
    found = []
    for own, among in (right, wrong_one):
        compared = values[number_of(among)].unflatten(0, (count, draws))
        ranks = ranks_with_ties(values[number_of(own)], compared, generator)
        found.append(certify_ranks(ranks, draws + 1, **CHANCES))
    return Tested(found[0], found[1], is_off)


def rank_gap(values: Tensor, law: Tensor, others: Tensor, draws: int) -> float:
    """How far the ranks' distribution function is from that of uniform ranks, for a truth and others of these laws.

    Spread a truth evenly over its value's part of the others' distribution function, as ties at random do: given the
    point u in [0, 1] where it lies, its rank is binomial.
    """
    _, group = values.unique(return_inverse=True)
    own, among = (torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, p) for p in (law, others))
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    part = torch.searchsorted(among.cumsum(0), u).clamp(max=len(among) - 1)
    density = own[part] / among[part]
    ranks = torch.arange(draws)[:, None]
    below = torch.from_numpy(binom.cdf(ranks.numpy(), draws, u.numpy()))  # (ranks, points)
    return float(((density - 1) * below).mean(1).abs().max())


def ranks_with_ties(truth: Tensor, draws: Tensor, generator: torch.Generator) -> Tensor:
    """How many of the draws (R, S) are below the truth (R,), equal ones at random."""
    below, same = (draws < truth[:, None]).sum(1), (draws == truth[:, None]).sum(1)
    return below + (torch.rand(len(truth), generator=generator) * (same + 1)).long().clamp(max=same)


def drawn_from(law: Tensor, size: int, seed: int) -> Draw:
    """Draws orders by their exact probabilities (size!,), without any sampler of the package."""
    generator = torch.Generator().manual_seed(seed)
    return lambda count: all_orders(size)[torch.multinomial(law, count, replacement=True, generator=generator)]


def likelihoods(samples: int, draws: int) -> tuple[Tested, Tested]:
    """`log_likelihood` of all orders of 3 items against draws of `sample`: as a law, and by its orders' ranks.

    Its weights are at most 1 / (1 - guidance), as its file's head says.
    """
    model, items, orders = decoder_model(3), torch.tensor([[[0.3], [-1.2], [2.0]]]), all_orders(3)
    estimate = log_likelihood(model, items.expand(6, 3, 1), orders, num_samples=samples, guidance=0.3, steps=2, seed=1)
    drawn = sample(model, items, num_samples=draws, steps=2, seed=2).order[0]
    options = {"most_weight": 1 / 0.7, **CHANCES}
    weights = estimate.log_weights.double().exp()
    right, control = (certify_estimates(counts_of(own), weights, **options) for own in (drawn, tampered(drawn)))
    law = weights.mean(1) / weights.mean() / 6
    by_rank = calibration(
        estimate.log_prob.double(), law, lambda count: _first(drawn, count), drawn_from(law, 3, 14), 99, of_truths=True
    )
    return Tested(right, control), by_rank


def _first(orders: Tensor, count: int) -> Tensor:
    assert count <= len(orders), f"{count} draws are needed"
    return orders[:count]


def calibrations(samplers: dict[str, tuple[Draw, Tensor]], drawn: dict[str, Tensor]) -> dict[str, Tested]:
    """Places of an item: of truths among draws, and of `drawn` orders under constraints among exact ones.

    The item is the one whose places show the control best.
    """
    tested = {}
    for name, sampler, draws, of_truths in (
        ("places among draws, ranks", "sample, one step", 9, False),
        ('law="conditioned", ranks', 'sample, law="conditioned"', 99, True),
    ):
        draw, law = samplers[sampler]
        wrong, places = tampered_law(law), ranks_of(all_orders(N)).T  # (item, order)
        item = max(range(N), key=lambda item: rank_gap(places[item], wrong, law, draws))
        exact = drawn_from(law, N, 15)
        truths = (lambda count, own=drawn[sampler]: _first(own, count)) if of_truths else exact
        tested[name] = calibration(places[item], law, truths, exact if of_truths else draw, draws, of_truths=of_truths)
    return tested


def forward_and_reverse(draws: int = 150_000) -> Tested:
    """Geweke: the pair (clean order, soft ranks at the last time before it), forward and by `sample` in reverse.

    The denoiser is exact. Forward draws are four times as many: they cost little.
    """
    bridge, forward_draws = Bridge(sampling_steps=3), 4 * draws
    denoiser = ExactDenoiser(two_camps(N), bridge, "soft-ranks")
    back = sample(denoiser, torch.zeros(1, N, 1, dtype=torch.float64), num_samples=draws, seed=4, record=True)[0]
    assert back.trajectory is not None
    last = back.trajectory[-1]
    order = drawn_from(two_camps(N), N, 12)(forward_draws)
    generator = torch.Generator().manual_seed(12)
    clean = lift_to_grid(ranks_of(order), dtype=torch.float64)
    prior = torch.rand(forward_draws, N, generator=generator, dtype=torch.float64)
    normal = torch.randn(forward_draws, N, generator=generator, dtype=torch.float64)
    forward = statistics(order, bridge.noised(clean, prior, last.t, normal))
    right, control = (
        certify_same(forward, statistics(orders, last.soft_ranks.double()), **CHANCES)
        for orders in (back.order, tampered(back.order))
    )
    return Tested(right, control)


def statistics(order: Tensor, soft_ranks: Tensor) -> Tensor:
    """Numbers of pairs (order, soft ranks), (R, 9): of each alone, and of how they go together.

    The places of all items are among them: of the one that the control moves, 2 % more are beyond the first place.
    """
    ranks = ranks_of(order).double()
    fit = (ranks * soft_ranks).sum(1)
    of_first = soft_ranks.gather(1, order[:, :1])[:, 0]
    return torch.stack((*soft_ranks[:, :2].T, *ranks.T, fit, of_first, soft_ranks.amax(1)), 1)


def cuda_agreement(size: int, draws: int) -> Tested | None:
    """Picks of the CUDA decoder's source on the host against plain torch in float64; None without a compiler."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "python_tests"))
    from testing.decoder_on_host import COMPILER, HostDecoder, Plan, compiled_for_host

    if shutil.which(COMPILER) is None:
        return None
    model, exact = decoder_model(size), decoder_model(size).double()
    items = torch.randn(1, size, 1, generator=torch.Generator().manual_seed(2))
    weights = model.packed_weights().decoder
    found, wanted = [], []
    with tempfile.TemporaryDirectory() as work:
        host = HostDecoder(compiled_for_host("decoder_on_host.cpp", Path(work)))
        for numbers in torch.arange(draws).split(500):
            uniform = noise.uniform(3, numbers, 0, size, stream=noise.PICK_STREAM, dtype=torch.float64)
            batch = items.expand(len(numbers), size, 1)
            inputs = model.decoder_inputs(batch, 0.4)
            found.append(host.decode_order(weights, inputs, ops.Choices(uniform=uniform.float()), Plan(16)).order)
            wanted.append(exact.decode(batch.double(), 0.4, uniform=uniform, engine=Engine(compiled=False)).order)
    return _agreement_of(torch.cat(found), torch.cat(wanted), DISTANCE)


def row_of(name: str, size: int, tested: Tested) -> dict[str, object]:
    """A row of the table; control_promised: the control is so far off that it is found with the stated chance."""
    right, control = tested.certificate, tested.control
    is_promised = right.distance <= tested.control_distance * (1 + 1e-9)
    row = {"sampler": name, "N": size, **right._asdict(), "control_distance": tested.control_distance}
    row |= {
        "control_statistic": control.statistic,
        "control_found": not control.passes,
        "control_promised": is_promised,
    }
    print(row, flush=True)
    return row


def main() -> int:
    """Make the table; returns 1 if a sampler fails, or a negative control passes or could pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--large-draws", type=int, default=20_000, help="draws beyond enumeration")
    options = parser.parse_args()
    about = machine() | {"kernels": torch.ops.softrank_ext.cpu_capability()}
    rows = []
    samplers, drawn = {**law_samplers(), **decoder_samplers(), **diffusion_samplers()}, {}
    for name, (draw, law) in samplers.items():
        drawn[name] = orders = draw(draws_needed(law, DISTANCE, **CHANCES))
        right, control = (certify_law(counts_of(own), law, **CHANCES) for own in (orders, tampered(orders)))
        rows.append(row_of(name, N, Tested(right, control)))
    for size in (15, 20):
        rows.append(row_of("decoder, compiled, beyond enumeration", size, agreement(size, options.large_draws)))
    if (on_host := cuda_agreement(10, 3000)) is not None:
        rows.append(row_of("decoder, CUDA source on the host", 10, on_host))
    of_law, by_rank = likelihoods(400_000, 200_000)
    rows += [row_of("log_likelihood", 3, of_law), row_of("log_likelihood, ranks", 3, by_rank)]
    rows += [row_of(name, N, tested) for name, tested in calibrations(samplers, drawn).items()]
    rows.append(row_of("forward and reverse, joint (Geweke)", N, forward_and_reverse()))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    wanted = ("passes", "control_found", "control_promised")
    return 0 if all(row[name] for row in rows for name in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
