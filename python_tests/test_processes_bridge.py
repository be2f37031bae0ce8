"""Tests of processes/bridge.py: the ends are exact, and the laws in between are those of folded Gaussians.

Laws are compared by the Kolmogorov distance of DRAWS draws. Two samples of one law stay below NOISE with all but 1e-6
probability; a law that is only slightly wrong (clipping, carrying folded values) must exceed it.
"""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from testing import chi_square
from torch import Tensor

from softrank_ext import Bridge, noise, ops
from softrank_ext.processes import Prediction, bridge

RANKS = [3, 0, 2, 1]
DRAWS = 200_000
# Kolmogorov: P(distance > c sqrt(2 / DRAWS)) is about 2 exp(-2 c^2), 1e-6 at c = 2.7.
NOISE = 2.7 * math.sqrt(2 / DRAWS)
DTYPES = (torch.float32, torch.float64)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=("float32", "float64"))


# lift_to_grid, time_grid, prior_sample


@each_dtype
def test_lift_to_grid_of_the_example(dtype):
    ranks = torch.tensor([RANKS])
    expected = torch.tensor([[1.0, 0.0, 2 / 3, 1 / 3]], dtype=dtype)
    torch.testing.assert_close(bridge.lift_to_grid(ranks, dtype=dtype), expected, atol=0, rtol=torch.finfo(dtype).eps)
    lifted = bridge.lift_to_grid(ranks, grid="midpoint", dtype=dtype)
    assert lifted.tolist() == [[0.875, 0.125, 0.625, 0.375]]
    assert bridge.lift_to_grid(ranks).dtype == torch.float32


def test_lift_to_grid_of_one_item_and_of_none():
    one, none = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 0, dtype=torch.int64)
    assert bridge.lift_to_grid(one).tolist() == [[0.0], [0.0]]
    assert bridge.lift_to_grid(one, grid="midpoint").tolist() == [[0.5], [0.5]]
    assert bridge.lift_to_grid(none).shape == bridge.lift_to_grid(none, grid="midpoint").shape == (2, 0)


def test_lift_to_grid_counts_real_items_by_row():
    ranks = torch.tensor([RANKS, [1, 3, 0, 2], [3, 0, 2, 1], [0, 1, 2, 3]])
    mask = torch.tensor([[True] * 4, [True, False, True, True], [False, True, False, False], [False] * 4])
    lifted = bridge.lift_to_grid(ranks, mask, dtype=torch.float64)
    expected = [[1.0, 0.0, 2 / 3, 1 / 3], [0.5, 0.0, 0.0, 1.0], [0.0] * 4, [0.0] * 4]
    torch.testing.assert_close(lifted, torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=0)
    lifted = bridge.lift_to_grid(ranks[1:2], mask[1:2], grid="midpoint", dtype=torch.float64)
    expected = torch.tensor([[0.5, 0.0, 1 / 6, 5 / 6]], dtype=torch.float64)
    torch.testing.assert_close(lifted, expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("grid", bridge.GRIDS)
@given(items=st.integers(1, 12).flatmap(lambda n: st.permutations(range(n))))
def test_decode_chamber_undoes_lift_to_grid(grid, items):
    ranks = torch.tensor([items], dtype=torch.int64)
    lifted = bridge.lift_to_grid(ranks, grid=grid)
    assert torch.equal(ops.decode_chamber(lifted)[1], ranks)
    assert lifted.min() >= 0 and lifted.max() <= 1


@pytest.mark.parametrize("grid", bridge.GRIDS)
def test_a_grid_of_a_thousand_has_no_ties(grid):
    ranks = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[None]
    assert torch.equal(ops.decode_chamber(bridge.lift_to_grid(ranks, grid=grid))[1], ranks)


def test_lift_to_grid_errors():
    with pytest.raises(
        ValueError, match=r"^ranks must be a \(B, N\) tensor of int64, got \(2, 3\) float32; did you pass soft_ranks\?$"
    ):
        bridge.lift_to_grid(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^ranks must be a \(B, N\) tensor of int64, got \(4,\) int64$"):
        bridge.lift_to_grid(torch.tensor(RANKS))
    with pytest.raises(ValueError, match=r"^grid must be one of 'paper', 'midpoint', got 'centroid'$"):
        bridge.lift_to_grid(torch.tensor([RANKS]), grid="centroid")


def test_time_grid():
    assert bridge.time_grid(1) == [1.0, 0.0]
    assert bridge.time_grid(4) == [1.0, 0.75, 0.5, 0.25, 0.0]
    for steps in (3, 7, 10, 49, 1000):
        times = bridge.time_grid(steps)
        assert times[0] == 1.0 and times[-1] == 0.0 and len(times) == steps + 1
        assert all(s < t for t, s in itertools.pairwise(times))
    for wrong in (0, -1, 2.0, "3"):
        with pytest.raises(ValueError, match=r"^steps must be an integer of at least 1, got "):
            bridge.time_grid(wrong)


def _folded_normal_density(x: Tensor) -> Tensor:
    """Density on [0, 1] of a folded standard normal: the sum over all its images."""
    images = torch.cat([2 * k + side * x[:, None] for k in range(-6, 7) for side in (1, -1)], 1)
    return (torch.exp(-(images**2) / 2) / math.sqrt(2 * math.pi)).sum(1)


def test_gaussian_prior_is_a_folded_normal_within_1_5_percent_of_uniform():
    density = _folded_normal_density(torch.linspace(0, 1, 1001, dtype=torch.float64))
    assert math.isclose(float(density.mean()), 1.0, abs_tol=1e-3)
    assert 0.010 < float((density - 1).abs().max()) < 0.015
    normal = noise.normal(1, torch.arange(DRAWS), 0, 1, dtype=torch.float64)
    drawn = Bridge(prior="gaussian").prior_sample(normal)
    assert drawn.min() >= 0 and drawn.max() <= 1
    counts = torch.histc(drawn, bins=20, min=0, max=1)
    expected = density[:-1].reshape(20, 50).mean(1)
    assert chi_square(counts, expected) > 1e-3
    clipped = torch.histc(normal.clamp(0, 1), bins=20, min=0, max=1)
    assert chi_square(clipped, expected) < 1e-12


def test_uniform_prior_is_the_noise_itself():
    uniform = noise.uniform(1, torch.arange(5), 0, 4)
    assert torch.equal(Bridge().prior_sample(uniform), uniform)
    with pytest.raises(ValueError, match=r"^prior must be one of 'uniform', 'gaussian', got 'normal'$"):
        Bridge(prior="normal")


# The ends


def _ends(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    z_clean = bridge.lift_to_grid(torch.tensor([RANKS, [1, 3, 0, 2]]), dtype=dtype)
    z_prior = noise.uniform(2, torch.arange(2), 0, 4, dtype=dtype)
    return z_clean, z_prior, 1e3 * noise.normal(3, torch.arange(2), 0, 4, dtype=dtype)


@each_dtype
def test_noised_is_exact_at_both_ends(dtype):
    z_clean, z_prior, draws = _ends(dtype)
    for t0, t1 in ((0.0, 1.0), (0, 1), (torch.zeros(2), torch.ones(2))):
        assert torch.equal(Bridge().noised(z_clean, z_prior, t0, draws), z_clean)
        assert torch.equal(Bridge().noised(z_clean, z_prior, t1, draws), z_prior)
    mixed = Bridge().noised(z_clean, z_prior, torch.tensor([0.0, 1.0]), draws)
    assert torch.equal(mixed, torch.stack((z_clean[0], z_prior[1])))
    assert mixed.dtype == dtype


def test_noised_by_hand():
    z_clean, z_prior = torch.tensor([[0.5, 0.0]], dtype=torch.float64), torch.tensor([[0.25, 1.0]], dtype=torch.float64)
    # t = 1/4: means 0.4375 and 0.25; deviation 0.5 sqrt(3/16) = 0.2165...
    deviation = 0.5 * math.sqrt(3 / 16)
    z_t = Bridge().noised(z_clean, z_prior, 0.25, torch.tensor([[1.0, -2.0]], dtype=torch.float64))
    expected = [[0.4375 + deviation, abs(0.25 - 2 * deviation)]]
    torch.testing.assert_close(z_t, torch.tensor(expected, dtype=torch.float64), atol=1e-15, rtol=0)


@each_dtype
@pytest.mark.parametrize("carry", bridge.CARRIES)
def test_step_back_is_exact_at_time_zero(carry, dtype):
    z_clean, z_t, draws = _ends(dtype)
    for t in (1.0, 0.3, torch.tensor([0.02, 1.0])):
        z_s = Bridge(3.0, carry=carry).step_back(z_t, z_clean, t, 0.0, draws)
        assert torch.equal(z_s, z_clean)


@given(
    z_t=st.floats(-3, 3), place=st.integers(0, 8), t=st.floats(1e-6, 1), number=st.floats(-1e30, 1e30),
    scale=st.floats(0, 10),
)  # fmt: skip
def test_step_back_at_time_zero_ignores_everything_else(z_t, place, t, number, scale):
    as_row = [torch.tensor([[value]], dtype=torch.float64) for value in (z_t, place / 8, number)]
    assert torch.equal(Bridge(scale).step_back(as_row[0], as_row[1], t, 0.0, as_row[2]), as_row[1])


def test_step_back_by_hand():
    z_t, z_clean, draws = (torch.tensor([[value, 0.25]], dtype=torch.float64) for value in (0.75, 0.5, 4.0))
    z_clean[0, 1], draws[0, 1] = 1.0, -1.0
    # s/t = 1/2: means 0.625 and 0.625; deviation sqrt(0.4 * 0.4 / 0.8) / 2.
    deviation = 0.5 * math.sqrt(0.2)
    unfolded = torch.tensor([[0.625 + 4 * deviation, 0.625 - deviation]], dtype=torch.float64)
    z_s = Bridge().step_back(z_t, z_clean, 0.8, 0.4, draws)
    torch.testing.assert_close(z_s, unfolded, atol=1e-15, rtol=0)
    folded = Bridge(carry="reflected").step_back(z_t, z_clean, torch.tensor([0.8]), torch.tensor([0.4]), draws)
    expected = torch.tensor([[2 - float(unfolded[0, 0]), float(unfolded[0, 1])]], dtype=torch.float64)
    torch.testing.assert_close(folded, expected, atol=1e-7, rtol=0)


def test_no_noise_gives_the_straight_line():
    z_clean, z_prior, draws = _ends(torch.float64)
    z_half = Bridge(0.0).noised(z_clean, z_prior, 0.5, draws)
    torch.testing.assert_close(z_half, (z_clean + z_prior) / 2, atol=1e-15, rtol=0)
    z_s = Bridge(0.0).step_back(z_prior, z_clean, 1.0, 0.25, draws)
    torch.testing.assert_close(z_s, Bridge(0.0).noised(z_clean, z_prior, 0.25, draws))


def test_bridge_in_a_compiled_graph():
    z_clean, z_prior, draws = _ends(torch.float32)
    t, s = torch.tensor([0.5, 0.75]), torch.tensor([0.25, 0.5])

    def there_and_back(z_clean: Tensor, z_prior: Tensor, draws: Tensor) -> Tensor:
        z_t = Bridge().noised(z_clean, z_prior, t, draws)
        return Bridge(carry="reflected").step_back(z_t, z_clean, t, s, draws)

    torch._dynamo.reset()
    graph = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(graph(z_clean, z_prior, draws), there_and_back(z_clean, z_prior, draws), atol=0, rtol=0)


def test_noised_errors():
    z = torch.zeros(2, 3)
    for t in (-0.1, 1.1, math.nan, torch.tensor([0.5, 2.0])):
        with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got "):
            Bridge().noised(z, z, t, z)
    with pytest.raises(ValueError, match=r"^t must be a number or \(2,\), got 3 numbers$"):
        Bridge().noised(z, z, torch.full((3,), 0.5), z)
    for noise_scale in (-0.5, math.nan, math.inf, True, "0.5"):
        with pytest.raises(ValueError, match=rf"^noise_scale must be at least 0 and finite, got {noise_scale!r}$"):
            Bridge(noise_scale)


def test_step_back_errors():
    z = torch.zeros(2, 3)
    for t, s in ((0.5, 0.5), (0.25, 0.5), (torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.5])), (0.0, 0.0)):
        with pytest.raises(ValueError, match=r"^s and t must satisfy 0 <= s < t, got s = .* and t = "):
            Bridge().step_back(z, z, t, s, z)
    with pytest.raises(ValueError, match=r"^s must be in \[0, 1\], got -0.5$"):
        Bridge().step_back(z, z, 0.5, -0.5, z)
    with pytest.raises(ValueError, match=r"^t must be in \[0, 1\], got 1.5$"):
        Bridge().step_back(z, z, 1.5, 0.5, z)
    with pytest.raises(ValueError, match=r"^s must be a number or \(2,\), got 3 numbers$"):
        Bridge().step_back(z, z, 0.5, torch.zeros(3), z)
    with pytest.raises(ValueError, match=r"^carry must be one of 'exact', 'reflected', got 'folded'$"):
        Bridge(carry="folded")
    with pytest.raises(ValueError, match=r"^noise_scale must be at least 0 and finite, got -1.0$"):
        Bridge(noise_scale=-1.0)
    with pytest.raises(ValueError, match=r"^target must be one of 'clean', 'previous', got 'next'$"):
        Bridge(target="next")
    for steps in (0, 2.5, True, None):
        with pytest.raises(ValueError, match=rf"^sampling_steps must be an integer of at least 1, got {steps}$"):
            Bridge(sampling_steps=steps)


# Marginals


def _distance_to_law(draws: Tensor, mean: float, deviation: float) -> float:
    """Kolmogorov distance of draws (DRAWS,) to a folded Gaussian: P(fold <= x) is the mass of all [2k - x, 2k + x]."""
    x = draws.sort().values[::10]
    ends = [torch.special.ndtr((2 * k + side * x - mean) / deviation) * side for k in range(-6, 7) for side in (1, -1)]
    empirical = torch.arange(0, len(draws), 10, dtype=torch.float64) / len(draws)
    return float((torch.stack(ends).sum(0) - empirical).abs().max())


@pytest.mark.parametrize(("place", "t", "noise_scale"), [(0.0, 0.5, 1.0), (1.0, 0.2, 0.5), (0.4, 0.8, 2.0)])
def test_noised_has_the_law_of_a_folded_gaussian(place, t, noise_scale):
    z_clean, z_prior = torch.full((DRAWS, 1), place).double(), torch.full((DRAWS, 1), 0.7).double()
    draws = noise.normal(4, torch.arange(DRAWS), 0, 1, dtype=torch.float64)
    mean, deviation = (1 - t) * place + t * 0.7, noise_scale * math.sqrt(t * (1 - t))
    z_t = Bridge(noise_scale).noised(z_clean, z_prior, t, draws)
    assert _distance_to_law(z_t[:, 0], mean, deviation) < NOISE
    # Clipping instead of folding piles mass up on the faces of the cube.
    clipped = (mean + deviation * draws).clamp(0, 1)
    assert _distance_to_law(clipped[:, 0], mean, deviation) > 5 * NOISE


def _distance(first: Tensor, second: Tensor) -> float:
    return float(stats.ks_2samp(first.flatten().numpy(), second.flatten().numpy(), method="asymp").statistic)


def _reverse_chain(steps: int, noise_scale: float, carry: str, clean: float) -> dict[float, Tensor]:
    """Folded values at each time of a reverse process whose denoiser knows the clean end."""
    samples = torch.arange(DRAWS)
    z_clean = torch.full((DRAWS, 1), clean).double()
    z_t = noise.uniform(6, samples, 0, 1, dtype=torch.float64)
    values = {}
    for step, (t, s) in enumerate(itertools.pairwise(bridge.time_grid(steps))):
        draws = noise.normal(6, samples, step, 1, stream=noise.BRIDGE_STREAM, dtype=torch.float64)
        z_t = Bridge(noise_scale, carry=carry).step_back(z_t, z_clean, t, s, draws)
        values[s] = ops.reflect(z_t)
    return values


def _forward(t: float, noise_scale: float, clean: float) -> Tensor:
    samples = torch.arange(DRAWS) + DRAWS
    z_prior = noise.uniform(7, samples, 0, 1, dtype=torch.float64)
    draws = noise.normal(7, samples, 0, 1, stream=noise.BRIDGE_STREAM, dtype=torch.float64)
    return Bridge(noise_scale).noised(torch.full_like(z_prior, clean), z_prior, t, draws)


@pytest.mark.parametrize(("steps", "noise_scale", "clean"), [(5, 0.5, 0.0), (5, 1.0, 1 / 3), (20, 1.0, 1.0)])
def test_exact_carry_keeps_the_marginals_of_noised(steps, noise_scale, clean):
    values = _reverse_chain(steps, noise_scale, "exact", clean)
    assert torch.equal(values[0.0], torch.full((DRAWS, 1), clean).double())
    for s in list(values)[:-1] if steps < 10 else (0.75, 0.5, 0.25, 0.05):
        assert _distance(values[s], _forward(s, noise_scale, clean)) < NOISE


def test_reflected_carry_drifts():
    """The paper's Algorithm 1 carries folded values: its marginals are not those of training (README, limits)."""
    values = _reverse_chain(20, 1.0, "reflected", 1 / 3)
    assert max(_distance(values[s], _forward(s, 1.0, 1 / 3)) for s in (0.5, 0.2, 0.1)) > 2 * NOISE
    assert torch.equal(values[0.0], torch.full((DRAWS, 1), 1 / 3).double())


# Drawn for a batch's rows, keyed by sample numbers


MASK = torch.tensor([[True, True, True, True], [True, False, True, True], [False, True, False, True]])
FIRST = torch.tensor([2, 3, 1])


def _rows(dtype: torch.dtype = torch.float64, *, is_padded: bool = True, is_fixed: bool = True) -> noise.RowNoise:
    return noise.RowNoise(
        9, torch.tensor([4, 0, 7]), 4, dtype, MASK if is_padded else None, FIRST if is_fixed else None
    )


def _along_real_items(drawn: Tensor) -> Tensor:
    """Numbers (3, 4) handed out to the real items of MASK one by one; what padding gets is of no account: 0."""
    handed = torch.zeros_like(drawn)
    for row, is_real in enumerate(MASK):
        handed[row, is_real] = drawn[row, : int(is_real.sum())]
    return handed


def _at_real_items(numbers: Tensor) -> Tensor:
    return numbers.masked_fill(~MASK, 0.0)


@each_dtype
def test_draw_prior_is_numbered_along_real_items_and_0_at_the_fixed_one(dtype):
    samples = torch.tensor([4, 0, 7])
    uniform = noise.uniform(9, samples, 0, 4, stream=noise.PRIOR_STREAM, dtype=dtype)
    normal = noise.normal(9, samples, 0, 4, stream=noise.PRIOR_STREAM, dtype=dtype)
    assert torch.equal(Bridge().draw_prior(_rows(dtype, is_padded=False, is_fixed=False)), uniform)
    drawn = Bridge().draw_prior(_rows(dtype))
    wanted = _along_real_items(uniform)
    wanted[range(3), FIRST] = 0.0
    assert torch.equal(_at_real_items(drawn), wanted)
    folded = Bridge(prior="gaussian").draw_prior(_rows(dtype, is_fixed=False))
    assert torch.equal(_at_real_items(folded), _along_real_items(ops.reflect(normal)))


def test_draw_back_is_step_back_with_the_rows_noise():
    rows, samples = _rows(), torch.tensor([4, 0, 7])
    z_t, z_clean = (noise.uniform(seed, samples, 0, 4, dtype=torch.float64) for seed in (1, 2))
    prediction = Prediction(z_t, z_t.argsort(1), z_clean.argsort(1), z_clean)
    normal = _along_real_items(noise.normal(9, samples, 3, 4, stream=noise.BRIDGE_STREAM, dtype=torch.float64))
    normal[range(3), FIRST] = 0.0
    for process in (Bridge(0.8), Bridge(0.8, carry="reflected")):
        z_s = process.draw_back(prediction, 0.75, 0.25, rows, 3)
        expected = process.step_back(z_t, z_clean, 0.75, 0.25, normal)
        assert torch.equal(_at_real_items(z_s), _at_real_items(expected))
        assert torch.equal(process.draw_back(prediction, 0.75, 0.0, rows, 3), z_clean)
    # Where the network predicts the order before, that order is the next state, and nothing is drawn.
    assert torch.equal(Bridge(target="previous").draw_back(prediction, 0.75, 0.25, rows, 3), z_clean)


@pytest.mark.parametrize("prior", bridge.PRIORS)
def test_draw_noisy_by_its_formula(prior):
    """Training's noise: streams and steps of its own, numbered by item; padding stands last."""
    order, t = torch.tensor([[2, 0, 3, 1], [3, 0, 2, 1], [1, 3, 0, 2]]), torch.tensor([1.0, 0.6, 0.2])
    samples = torch.tensor([4, 0, 7])
    rows = _rows(torch.float32)

    def held(numbers: Tensor) -> Tensor:
        numbers[range(3), FIRST] = 0.0
        return numbers

    z_clean = torch.tensor([[1 / 3, 1, 0, 2 / 3], [0.5, 0, 1, 0], [0, 0, 0, 1]])
    make = noise.uniform if prior == "uniform" else noise.normal
    z_prior = held(ops.reflect(make(9, samples, 1, 4, stream=noise.TRAINING_STREAM)))
    normal = held(noise.normal(9, samples, 2, 4, stream=noise.TRAINING_STREAM))
    column = t[:, None]
    unfolded = (1 - column) * z_clean + column * z_prior + 1.3 * (column * (1 - column)).sqrt() * normal
    folded = ops.reflect(unfolded)
    assert not torch.equal(folded[MASK], unfolded[MASK])
    z_t = folded.masked_fill(~MASK, 2.0)
    order_t, target, carried = Bridge(1.3, prior=prior).draw_noisy(order, t, rows, 5)
    torch.testing.assert_close(carried[MASK], unfolded[MASK], atol=1e-6, rtol=0)
    assert not carried[range(3), FIRST].any()
    _, _, carried = Bridge(1.3, prior=prior, carry="reflected").draw_noisy(order, t, rows, 5)
    torch.testing.assert_close(carried[MASK], folded[MASK], atol=1e-6, rtol=0)
    assert torch.equal(order_t, z_t.argsort(dim=1, stable=True))
    assert torch.equal(target, order)
    # The step of the grid before: from time 0.2 that is the clean order; else a draw between both.
    process = Bridge(1.3, prior=prior, target="previous", sampling_steps=5)
    order_t, target, _ = process.draw_noisy(order, t, rows, 5)
    assert torch.equal(order_t, z_t.argsort(dim=1, stable=True))
    assert target[2, :2].tolist() == [1, 3]
    assert torch.equal(target[:, 0], FIRST)


def test_times():
    assert Bridge(sampling_steps=2).times() == [1.0, 0.5, 0.0]
    assert Bridge(sampling_steps=2).training_times(4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_a_process_is_a_frozen_value():
    assert Bridge(0.2) == Bridge(noise_scale=0.2) != Bridge()
    assert {Bridge(), Bridge()} == {Bridge()}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Bridge().noise_scale = 0.3


def test_reflect_pairs_refuses_what_would_never_end():
    before = torch.zeros(2, 3, 3, dtype=torch.bool)
    before[:, 0, 1] = before[1, 1, 2] = True
    with pytest.raises(ValueError, match="soft_ranks must not hold NaN"):
        bridge.reflect_pairs(torch.tensor([[0.1, float("nan"), 0.3], [0.1, 0.2, 0.3]]), before)
    before[1, 2, 0] = True
    with pytest.raises(ValueError, match="before must hold pairs without cycles"):
        bridge.reflect_pairs(torch.tensor([[0.3, 0.2, 0.1], [0.3, 0.2, 0.1]]), before)
    with pytest.raises(ValueError, match="before must hold pairs without cycles"):
        bridge.reflect_pairs(torch.tensor([[0.3, 0.2, 0.1]]), torch.eye(3, dtype=torch.bool)[None])
    # It is not tried as often as the longest way could take: that would be 10^7 sweeps.
    ring, N = torch.zeros(1, 4000, 4000, dtype=torch.bool), 4000
    ring[0, torch.arange(3), torch.tensor([1, 2, 0])] = True
    with pytest.raises(ValueError, match="before must hold pairs without cycles"):
        bridge.reflect_pairs(torch.linspace(1, 0, N)[None], ring)
    # The longest way: a chain that stands the wrong way round.
    chain = torch.ones(1, 12, 12, dtype=torch.bool).triu(1)
    assert torch.equal(bridge.reflect_pairs(torch.arange(12.0, 0, -1)[None], chain)[0], torch.arange(1.0, 13))
