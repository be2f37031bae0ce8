"""Certificates of the package's samplers, in one table: `python bench/certificates.py`.

Each sampler draws as many orders of N = 4 items as are needed to find every law that is 2 % away in total variation,
and is compared with the exact probabilities of all 24 orders; and once more as a negative control, with 2 % of the
orders changed in one pick, which must fail. `sample` with one diffusion step has a law that can be summed up; with
three, an exact denoiser (bench/bayes.py) must give the law that it knows. The decoder is also compared beyond
enumeration, at N = 15, with the picks that plain torch in float64 gives for the same random numbers, and so is the
source of the CUDA decoder, compiled for the host, where there is a C++ compiler.

What is no sampler of orders is calibrated: `log_likelihood` as the likelihood of hypotheses about the items, the places
of items among draws (the answers' intervals), and, as Geweke does, the pair of clean order and noisy soft ranks drawn
forward and in reverse. Their negative controls are said in the table.

Writes bench/results/certificates.json, from which bench/making/readme.py fills docs/safety.md.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from bayes import ExactDenoiser, two_camps
from torch import Tensor

from softrank_ext import Bridge, Constraints, SoftRankConfig, SoftRankModel, distributions, log_likelihood, noise, ops
from softrank_ext.certify import Certificate, certify_agreement, certify_law, certify_ranks, certify_same, draws_needed
from softrank_ext.choices import Draw as DrawEach
from softrank_ext.choices import Engine
from softrank_ext.permutations import compose, ranks_of
from softrank_ext.processes.bridge import lift_to_grid
from softrank_ext.sampling import sample

RESULTS = Path(__file__).parent / "results" / "certificates.json"
DISTANCE, FALSE_ALARM, MISSED = 0.02, 1e-6, 1e-3
N = 4
Draw = Callable[[int], Tensor]


def all_orders(size: int) -> Tensor:
    """All orders of `size` items, (size!, size)."""
    return torch.tensor([[]], dtype=torch.int64) if size == 0 else _extended(all_orders(size - 1))


def _extended(orders: Tensor) -> Tensor:
    size = orders.shape[1] + 1
    parts = [
        torch.cat((orders[:, :at], torch.full((len(orders), 1), size - 1), orders[:, at:]), 1) for at in range(size)
    ]
    return torch.cat(parts)


def number_of(orders: Tensor) -> Tensor:
    """The number (R,) of each of the orders (R, N) in `all_orders(N)`."""
    weights = N ** torch.arange(N)
    codes = (all_orders(N) * weights).sum(1)
    place = torch.full((int(N**N),), -1)
    place[codes] = torch.arange(len(codes))
    return place[(orders * weights).sum(1)]


def counts_of(orders: Tensor) -> Tensor:
    """How often each of `all_orders(N)` occurs among orders (R, N)."""
    return torch.bincount(number_of(orders), minlength=len(all_orders(N)))


def tampered(orders: Tensor, probabilities: Tensor) -> Tensor:
    """The orders with one pick biased: in 2 % of all, with the likeliest item first, the first two change places."""
    first = all_orders(N)[:, 0]
    shares = torch.stack([probabilities[first == item].sum() for item in range(N)])
    item = int(shares.argmax())
    drawn = torch.rand(len(orders), generator=torch.Generator().manual_seed(5))
    is_moved = (orders[:, 0] == item) & (drawn < DISTANCE / float(shares[item]))
    changed = orders.clone()
    changed[is_moved] = changed[is_moved][:, [1, 0, 2, 3]]
    return changed


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
    }


def agreement(size: int, draws: int) -> tuple[Certificate, Certificate]:
    """Compiled picks in float32 against those of float64 and plain torch, at N = size; and with 2 % of them changed."""
    model, exact = decoder_model(size), decoder_model(size).double()
    items = torch.randn(1, size, 1, generator=torch.Generator().manual_seed(2))
    agrees = []
    for numbers in torch.arange(draws).split(4096):
        uniform = noise.uniform(3, numbers, 0, size, stream=noise.PICK_STREAM, dtype=torch.float64)
        batch = items.expand(len(numbers), size, 1)
        found = model.decode(batch, 0.4, uniform=uniform.float()).order
        wanted = exact.decode(batch.double(), 0.4, uniform=uniform, engine=Engine(compiled=False)).order
        agrees.append((found == wanted).all(1))
    return _with_control(torch.cat(agrees))


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
    rules = Constraints(before=[(1, 2)], law="conditioned", particles=64)
    is_kept = ranks_of(orders)[:, 1] < ranks_of(orders)[:, 2]
    denoiser = ExactDenoiser(two_camps(N), Bridge(sampling_steps=3), "soft-ranks")
    known = torch.zeros(len(orders), dtype=torch.float64)
    known[number_of(denoiser.orders)] = two_camps(N)

    def draw(constraints: Constraints | None) -> Draw:
        return lambda count: sample(model, items, constraints=constraints, num_samples=count, steps=1, seed=3).order

    def exact(count: int) -> Tensor:
        return sample(denoiser, torch.zeros(1, N, 1, dtype=torch.float64), num_samples=count, seed=5).order[0]

    return {
        "sample, one step": (draw(None), law),
        'sample, law="conditioned"': (draw(rules), law * is_kept / (law * is_kept).sum()),
        "sample, three steps, exact denoiser": (exact, known),
    }


def likelihood_calibration() -> tuple[Certificate, Certificate]:
    """Which of five sets of items an order was drawn for, by `log_likelihood`: ranks of the truth in its posterior.

    The control takes likelihoods to the power 3: posteriors that are too sure.
    """
    model, orders, truths, others = decoder_model(N), all_orders(N), 6000, 19
    sets = torch.randn(5, N, 1, generator=torch.Generator().manual_seed(8))
    estimated = torch.stack([
        log_likelihood(model, one.expand(len(orders), N, 1), orders, num_samples=1024, steps=2, seed=1).log_prob
        for one in sets
    ])  # (5, 24)  # fmt: skip
    generator = torch.Generator().manual_seed(9)
    truth = torch.randint(5, (truths,), generator=generator)
    drawn = sample(model, sets[truth], steps=2, seed=2).order[:, 0]
    scores = estimated[:, number_of(drawn)].T.double()  # (truths, 5)

    def ranks(power: float) -> Tensor:
        guesses = torch.multinomial((power * scores).softmax(1), others, replacement=True, generator=generator)
        return ranks_with_ties(truth, guesses, generator)

    return certify_ranks(ranks(1.0), others + 1), certify_ranks(ranks(3.0), others + 1)


def interval_calibration() -> tuple[Certificate, Certificate]:
    """Places of an item among those of 19 draws, from which intervals are made; the control's draws are too sure."""
    model, truths, others = decoder_model(8), 8000, 19
    items = torch.randn(truths, 8, 1, generator=torch.Generator().manual_seed(10))
    generator = torch.Generator().manual_seed(11)

    def places(count: int, temperature: float, seed: int) -> Tensor:
        drawn = sample(model, items, num_samples=count, steps=2, seed=seed, decode=DrawEach(temperature))
        return drawn.ranks[..., 0]  # (truths, count)

    truth = places(1, 1.0, 1)[:, 0]
    right, sure = (ranks_with_ties(truth, places(others, heat, 2), generator) for heat in (1.0, 0.2))
    return certify_ranks(right, others + 1), certify_ranks(sure, others + 1)


def ranks_with_ties(truth: Tensor, draws: Tensor, generator: torch.Generator) -> Tensor:
    """How many of the draws (R, S) are below the truth (R,), equal ones at random."""
    below, same = (draws < truth[:, None]).sum(1), (draws == truth[:, None]).sum(1)
    return below + (torch.rand(len(truth), generator=generator) * (same + 1)).long().clamp(max=same)


def forward_and_reverse(draws: int = 40_000) -> tuple[Certificate, Certificate]:
    """Geweke: the pair (clean order, soft ranks at the last time before it), forward and by `sample` in reverse.

    The denoiser is exact. In the control its forward draws have 20 % more noise.
    """
    bridge = Bridge(sampling_steps=3)
    denoiser = ExactDenoiser(two_camps(N), bridge, "soft-ranks")
    back = sample(denoiser, torch.zeros(1, N, 1, dtype=torch.float64), num_samples=draws, seed=4, record=True)[0]
    assert back.trajectory is not None
    last = back.trajectory[-1]
    generator = torch.Generator().manual_seed(12)
    order = denoiser.orders[torch.multinomial(two_camps(N), draws, replacement=True, generator=generator)]
    clean = lift_to_grid(ranks_of(order), dtype=torch.float64)
    prior = torch.rand(draws, N, generator=generator, dtype=torch.float64)
    normal = torch.randn(draws, N, generator=generator, dtype=torch.float64)

    def forward(process: Bridge) -> Tensor:
        return statistics(order, process.noised(clean, prior, last.t, normal))

    found = statistics(back.order, last.soft_ranks.double())
    return certify_same(forward(bridge), found), certify_same(forward(Bridge(0.6, sampling_steps=3)), found)


def statistics(order: Tensor, soft_ranks: Tensor) -> Tensor:
    """Numbers of pairs (order, soft ranks), (R, 6): of each alone, and of how they go together."""
    ranks = ranks_of(order).double()
    fit = (ranks * soft_ranks).sum(1)
    of_first = soft_ranks.gather(1, order[:, :1])[:, 0]
    return torch.stack((*soft_ranks[:, :2].T, ranks[:, 0], fit, of_first, soft_ranks.amax(1)), 1)


def cuda_agreement(size: int, draws: int) -> tuple[Certificate, Certificate] | None:
    """Picks of the CUDA decoder's source on the host against plain torch in float64; None without a compiler."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "python_tests"))
    from testing.decoder_on_host import COMPILER, HostDecoder, Plan, compiled_for_host

    if shutil.which(COMPILER) is None:
        return None
    model, exact = decoder_model(size), decoder_model(size).double()
    items = torch.randn(1, size, 1, generator=torch.Generator().manual_seed(2))
    weights = model.packed_weights().decoder
    agrees = []
    with tempfile.TemporaryDirectory() as work:
        host = HostDecoder(compiled_for_host("decoder_on_host.cpp", Path(work)))
        for numbers in torch.arange(draws).split(500):
            uniform = noise.uniform(3, numbers, 0, size, stream=noise.PICK_STREAM, dtype=torch.float64)
            batch = items.expand(len(numbers), size, 1)
            inputs = model.decoder_inputs(batch, 0.4)
            found = host.decode_order(weights, inputs, ops.Choices(uniform=uniform.float()), Plan(16)).order
            wanted = exact.decode(batch.double(), 0.4, uniform=uniform, engine=Engine(compiled=False)).order
            agrees.append((found == wanted).all(1))
    return _with_control(torch.cat(agrees))


def _with_control(same: Tensor) -> tuple[Certificate, Certificate]:
    changed = same & (torch.rand(len(same), generator=torch.Generator().manual_seed(6)) >= DISTANCE)
    return certify_agreement(same, most=0.005), certify_agreement(changed, most=0.005)


def row_of(
    name: str, size: int, certificates: tuple[Certificate, Certificate], wrong: str = "2 % in one pick"
) -> dict[str, object]:
    """A row of the table: a certificate and that of its negative control, in which `wrong` is wrong."""
    right, control = certificates
    found = {"control": wrong, "control_statistic": control.statistic, "control_found": not control.passes}
    return {"sampler": name, "N": size, **right._asdict(), **found}


def main() -> int:
    """Make the table; returns 1 if a sampler fails or a negative control passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--large-draws", type=int, default=20_000, help="draws beyond enumeration")
    options = parser.parse_args()
    rows = []
    chances = {"false_alarm": FALSE_ALARM, "missed": MISSED}
    for name, (draw, law) in {**law_samplers(), **decoder_samplers(), **diffusion_samplers()}.items():
        orders = draw(draws_needed(law, DISTANCE, **chances))
        right = certify_law(counts_of(orders), law, **chances)
        control = certify_law(counts_of(tampered(orders, law)), law, **chances)
        rows.append(row_of(name, N, (right, control)))
        print(rows[-1])
    rows.append(row_of("decoder, compiled, beyond enumeration", 15, agreement(15, options.large_draws)))
    if (on_host := cuda_agreement(10, 3000)) is not None:
        rows.append(row_of("decoder, CUDA source on the host", 10, on_host))
    rows.append(row_of("log_likelihood, calibration", N, likelihood_calibration(), "too sure: power 3"))
    rows.append(row_of("places among draws, calibration", 8, interval_calibration(), "too sure: temperature 0.2"))
    rows.append(row_of("forward and reverse, joint (Geweke)", N, forward_and_reverse(), "20 % more noise"))
    record = {"kernels": torch.ops.softrank_ext.cpu_capability(), "most_states": ops.MOST_STATES, "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows[-5:]:
        print(row)
    return 0 if all(row["passes"] and row["control_found"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
