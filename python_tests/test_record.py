"""What version 0.1.0 gave, in `record.json`: later versions give the same for the same calls.

Orders in float64 exactly, log-probabilities to 1e-9, so that the record holds on other processors and torch versions;
bits for noise and integer ops. A float64 draw could change only where its uniform number lies within rounding, about
1e-15, of the boundary between two items.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softrank_ext import Beam, Constraints, Draw, Engine, SoftRankModel, log_likelihood, noise, ops, sample

RECORD = json.loads(Path(__file__).with_name("record.json").read_text())
BRIDGE_FIELDS = {"noise_scale": "noise_scale", "reference": "prior", "carry": "carry"}  # old name -> field of Bridge
CONSTRAINT_FIELDS = ("law", "particles", "reflect_noise")


def items_of(name: str) -> torch.Tensor:
    """Three instances whose numbers are counter-based noise, the same everywhere."""
    if name == "tsp":
        return noise.uniform(11, torch.arange(3), 0, 4 * 12 * 28, stream=9, dtype=torch.float64)[:, :24].view(3, 12, 2)
    if name == "preferences-dublin-north":
        return torch.arange(12).expand(3, 12).contiguous()
    side = {"jigsaw-3x3": 10, "jigsaw-4x4": 8}[name]
    numbers = noise.uniform(11, torch.arange(3), 0, 9 * 3 * side**2, stream=9, dtype=torch.float64)
    return numbers.view(3, 9, 3, side, side)


def numbers_of(rows: list) -> torch.Tensor:
    return torch.tensor([[float.fromhex(word) for word in row] for row in rows], dtype=torch.float64)


def constraints_of(case: dict) -> Constraints | list[Constraints] | None:
    """The constraints of a recorded call; its `first` is a pin at place 0."""
    settings = {name: case.pop(name) for name in CONSTRAINT_FIELDS if name in case}
    rules, first = case.pop("constraints", None), case.pop("first", None)
    if rules is None and first is None:
        return None
    per_row = first if isinstance(first, list) else [first]
    made = []
    for item in per_row:
        pins = {} if item is None else {str(item): 0}
        made.append(
            Constraints.from_json({**(rules or {}), "pins": {**(rules or {}).get("pins", {}), **pins}, **settings})
        )
    return made if isinstance(first, list) else made[0]


@pytest.mark.parametrize("number", range(len(RECORD["samples"])))
def test_samples_are_those_of_the_record(number, one_thread):
    entry = RECORD["samples"][number]
    case = dict(entry["case"])
    name = case.pop("model")
    model, items = SoftRankModel.from_pretrained(name).double(), items_of(name)
    process = replace(model.config.process, **{new: case.pop(old) for old, new in BRIDGE_FIELDS.items() if old in case})
    mask = torch.arange(items.shape[1]) != torch.tensor([[1], [4], [-1]]) if case.pop("padded", False) else None
    if case.get("decode") == "beam":
        case["decode"] = Beam(case.pop("beam"), case.pop("beam_kept"), case.pop("beam_returned"))
    if "temperature" in case:
        case["decode"] = Draw(case.pop("temperature"))
    process = replace(process, sampling_steps=case.pop("steps", 5))  # the models' own number was five
    engine = Engine(compiled=case.pop("compiled", True))
    constraints = constraints_of(case)
    samples = sample(model, items, mask=mask, constraints=constraints, process=process, engine=engine, **case)
    assert samples.order.tolist() == entry["order"]
    torch.testing.assert_close(samples.log_prob, numbers_of(entry["log_prob"]), atol=1e-9, rtol=0)


def test_log_probs_are_those_of_the_record(one_thread):
    order = torch.tensor(RECORD["orders"])
    per_place = SoftRankModel.from_pretrained("tsp").double().log_prob(items_of("tsp"), 0.6, order).per_place
    torch.testing.assert_close(per_place, numbers_of(RECORD["log_probs"]), atol=1e-9, rtol=0)
    model = SoftRankModel.from_pretrained("preferences-dublin-north").double()
    items = items_of("preferences-dublin-north")
    estimate = log_likelihood(model, items, order, num_samples=8, steps=5, seed=3)  # its own number was five
    torch.testing.assert_close(estimate.log_prob[None], numbers_of([RECORD["likelihood"]]), atol=1e-9, rtol=0)


def test_noise_and_integer_ops_have_the_bits_of_the_record():
    samples = torch.tensor([0, 1, 2**40 + 3])
    assert torch.equal(noise.uniform(5, samples, 3, 5, stream=2).double(), numbers_of(RECORD["uniform32"]))
    for name, make, seed in (("uniform64", noise.uniform, -7), ("normal64", noise.normal, 5)):
        made = make(seed, samples, 3, 5, stream=2, dtype=torch.float64)
        assert torch.equal(made, numbers_of(RECORD[name]))
    _, order, ranks = ops.read_order(noise.normal(1, torch.arange(4), 0, 9, dtype=torch.float64))
    assert [order.tolist(), ranks.tolist()] == RECORD["read_order"]
