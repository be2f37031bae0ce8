"""Muon against singular values worked out in float64, which parameters it takes, and its state."""

import math
from dataclasses import replace

import pytest
import torch
from synthetic_runs import QUICK, assert_same_weights, tiny_model, weights_of
from synthetic_tasks import SortNumbers
from torch import nn

from softrank_ext.baselines.factorised import FactorisedConfig, FactorisedModel
from softrank_ext.training import Muon, TrainConfig, rate_at, train
from softrank_ext.training.optimizer import Optimizers, matrices_inside_layers, orthogonalized

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = ((5, 3), (3, 5), (4, 4))


def orthogonal_reference(matrix: torch.Tensor) -> torch.Tensor:
    """Muon's polynomial, five times, on the singular values of a matrix divided by its norm."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ values.diag() @ right


def gradients(shape: tuple[int, ...], number: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * number + shape[0]))


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalized(shape):
    matrices = torch.stack([gradients(shape, number) for number in range(3)])
    made = orthogonalized(matrices)
    assert made.dtype == torch.float32
    for matrix, given in zip(made, matrices, strict=True):
        torch.testing.assert_close(matrix.double(), orthogonal_reference(given), rtol=1e-4, atol=1e-5)
        values = torch.linalg.svdvals(matrix)
        assert 0.5 < float(values.min()) <= float(values.max()) < 1.3
    assert orthogonalized(torch.zeros(2, *shape)).eq(0).all()
    assert orthogonalized(matrices.double()).dtype == torch.float64
    assert orthogonalized(matrices.bfloat16()).dtype == torch.float32


def test_steps_are_nesterov_s_with_decoupled_decay():
    """Several matrices of a shape, worked on together, move as each would alone."""
    rate, decay = 0.1, 0.2
    weights = [nn.Parameter(gradients(shape, 9)) for shape in SHAPES + SHAPES]
    expected = [weight.detach().double().clone() for weight in weights]
    momenta = [torch.zeros_like(weight) for weight in expected]
    optimizer = Muon(weights, rate, weight_decay=decay)
    for step in range(3):
        for number, weight in enumerate(weights):
            gradient = gradients(tuple(weight.shape), 10 * step + number)
            weight.grad = gradient
            momenta[number] = 0.95 * momenta[number] + gradient.double()
            update = orthogonal_reference(gradient.double() + 0.95 * momenta[number])
            scale = rate * 0.2 * math.sqrt(max(weight.shape))
            expected[number] = (1 - rate * decay) * expected[number] - scale * update
        optimizer.step()
    for weight, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach().double(), wanted, rtol=1e-4, atol=1e-5)


def test_a_matrix_without_gradient_stays():
    weights = [nn.Parameter(gradients((3, 3), number)) for number in (1, 2)]
    before = weights[1].detach().clone()
    weights[0].grad = gradients((3, 3), 3)
    optimizer = Muon(weights, 0.1, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(weights[1], before) and weights[1] not in optimizer.state
    with pytest.raises(ValueError, match=r"parameters of Muon must be matrices, got \(3,\)"):
        Muon([nn.Parameter(torch.zeros(3))], 0.1)


def test_muon_takes_the_matrices_inside_layers_and_no_others():
    parts = {"self_qkv", "self_out", "feed_in", "feed_out"}
    decoder = parts | {"memory_query", "memory_key_value", "memory_out"}
    assert set(matrices_inside_layers(tiny_model())) == {f"encoder_layers.0.{part}.weight" for part in parts} | {
        f"decoder_layers.0.{part}.weight" for part in decoder
    }
    embedder = {"kind": "linear", "features": 1}
    lehmer = FactorisedModel(FactorisedConfig(5, "lehmer", 16, 24, 2, 1, embedder=embedder))
    assert set(matrices_inside_layers(lehmer)) == {f"encoder.encoder_layers.0.{part}.weight" for part in parts}
    theirs = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 16))
    names = {"1.self_attn.in_proj_weight", "1.self_attn.out_proj.weight", "1.linear1.weight", "1.linear2.weight"}
    assert set(matrices_inside_layers(theirs)) == names
    assert len(matrices_inside_layers(theirs[1])) == 4 and matrices_inside_layers(theirs[0]) == []


@pytest.mark.parametrize("optimizer", ("muon", "adamw"))
def test_each_part_has_its_rate_and_its_state(optimizer):
    model = tiny_model()
    config = TrainConfig(optimizer=optimizer, learning_rate=1e-3, matrix_rate=0.0, warmup=0, weight_decay=0.0)
    optimizers = Optimizers(model, config)
    before = weights_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1)
    moved = {name for name, tensor in weights_of(model).items() if not torch.equal(tensor, before[name])}
    inside = set(matrices_inside_layers(model))
    assert moved == set(before) - (inside if optimizer == "muon" else set())
    keys = {name: {key.split(".")[0] for key in optimizers.tensors() if key.endswith(f".{name}")} for name in before}
    for name, found in keys.items():
        is_muon = optimizer == "muon" and name in inside
        assert found == ({"momentum"} if is_muon else {"exp_avg", "exp_avg_sq", "step"})
    optimizers.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_peak_of_a_schedule_may_be_given():
    config = TrainConfig(iterations=110, warmup=10, learning_rate=2.0, final_rate=0.1)
    assert [rate_at(iteration, config, 4.0) for iteration in (5, 10, 110)] == pytest.approx([2.0, 4.0, 0.4])
    assert rate_at(5, config, 0.0) == 0.0


@pytest.mark.parametrize("optimizer", ("muon", "adamw"))
def test_a_resumed_run_is_bit_exact(optimizer, tmp_path):
    config = replace(QUICK, optimizer=optimizer)
    whole = train(tiny_model(), SortNumbers(3), config, tmp_path / "whole", quiet=True)

    class Interrupted(SortNumbers):
        def training_batch(self, seed, step, size):
            if step == 6:
                raise KeyboardInterrupt
            return super().training_batch(seed, step, size)

    with pytest.raises(KeyboardInterrupt):
        train(tiny_model(), Interrupted(3), replace(config, prefetch=False), tmp_path / "run", quiet=True)
    resumed = train(tiny_model(), SortNumbers(3), config, tmp_path / "run", resume=True, quiet=True)
    assert_same_weights(weights_of(resumed.model), weights_of(whole.model))
    other = {"muon": "adamw", "adamw": "muon"}[optimizer]
    with pytest.raises(ValueError, match=f"has optimizer = '{optimizer}' .config., got '{other}'"):
        train(tiny_model(), SortNumbers(3), replace(config, optimizer=other), tmp_path / "run", resume=True)
