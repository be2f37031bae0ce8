"""Certificates of the package's samplers, in one table: `python bench/certificates.py`.

Each sampler draws as many orders of N = 4 items as are needed to find every law that is 2 % away in total variation,
and is compared with the exact probabilities of all 24 orders; and once more as a negative control, with 2 % of the
orders changed in one pick, which must fail. The decoder is also compared beyond enumeration, at N = 15, with the picks
that plain torch in float64 gives for the same random numbers. Writes bench/results/certificates.json, from which
bench/making/readme.py fills docs/safety.md.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from softrank_ext import Constraints, SoftRankConfig, SoftRankModel, distributions, noise, ops
from softrank_ext.certify import Certificate, certify_agreement, certify_law, draws_needed
from softrank_ext.choices import Engine
from softrank_ext.permutations import ranks_of

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


def counts_of(orders: Tensor) -> Tensor:
    """How often each of `all_orders(N)` occurs among orders (R, N)."""
    weights = N ** torch.arange(N)
    codes = (all_orders(N) * weights).sum(1)
    place = torch.full((int(N**N),), -1)
    place[codes] = torch.arange(len(codes))
    return torch.bincount(place[(orders * weights).sum(1)], minlength=len(codes))


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
    same = torch.cat(agrees)
    changed = same & (torch.rand(draws, generator=torch.Generator().manual_seed(6)) >= DISTANCE)
    return certify_agreement(same, most=0.005), certify_agreement(changed, most=0.005)


def row_of(name: str, size: int, right: Certificate, control: Certificate) -> dict[str, object]:
    """A row of the table."""
    own = right._asdict()
    found = {"control_statistic": control.statistic, "control_found": not control.passes}
    return {"sampler": name, "N": size, **own, **found}


def main() -> int:
    """Make the table; returns 1 if a sampler fails or a negative control passes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--large-draws", type=int, default=20_000, help="draws beyond enumeration")
    options = parser.parse_args()
    rows = []
    chances = {"false_alarm": FALSE_ALARM, "missed": MISSED}
    for name, (draw, law) in {**law_samplers(), **decoder_samplers()}.items():
        assert torch.equal(ranks_of(all_orders(N)).sort(1).values, torch.arange(N).expand(24, N))
        orders = draw(draws_needed(law, DISTANCE, **chances))
        right = certify_law(counts_of(orders), law, **chances)
        control = certify_law(counts_of(tampered(orders, law)), law, **chances)
        rows.append(row_of(name, N, right, control))
    rows.append(row_of("decoder, compiled, beyond enumeration", 15, *agreement(15, options.large_draws)))
    record = {"kernels": torch.ops.softrank_ext.cpu_capability(), "most_states": ops.MOST_STATES, "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(row)
    return 0 if all(row["passes"] and row["control_found"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
