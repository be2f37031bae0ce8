"""Sorting networks: they sort, soft matrices are doubly stochastic, swaps and gradients are what they should be."""

import math
from itertools import pairwise, product

import pytest
import torch
from scipy import special, stats

from softrank_ext.baselines.sorting_networks import NETWORKS, SWAPS, keep_probability, make_network, soft_sort

both_networks = pytest.mark.parametrize("network", NETWORKS)
every_swap = pytest.mark.parametrize("swap", SWAPS)


def sort_by_network(values: list[list[float]], partners: list[list[int]]) -> list[list[float]]:
    """Rows put through the comparisons one by one, in plain Python."""
    rows = [list(row) for row in values]
    for layer in partners:
        for wire, partner in enumerate(layer):
            if partner > wire:
                for row in rows:
                    row[wire], row[partner] = min(row[wire], row[partner]), max(row[wire], row[partner])
    return rows


@both_networks
@pytest.mark.parametrize("N", range(1, 13))
def test_networks_sort_every_row_of_zeros_and_ones(network, N):
    rows = torch.tensor(list(product((0.0, 1.0), repeat=N)))
    sorted_rows, matrix = soft_sort(rows, network, error_free=True)
    assert torch.equal(sorted_rows, rows.sort(1).values)
    assert torch.equal((rows[:, None] @ matrix)[:, 0], sorted_rows)


@both_networks
@pytest.mark.parametrize("N", [22, 75, 150, 200])
def test_networks_sort_random_rows(network, N):
    rows = torch.rand(20, N, dtype=torch.float64, generator=torch.Generator().manual_seed(N))
    partners = make_network(network, N)
    assert sort_by_network(rows.tolist(), partners.tolist()) == rows.sort(1).values.tolist()
    sorted_rows, matrix = soft_sort(rows, network, error_free=True)
    assert torch.equal(sorted_rows, rows.sort(1).values)
    assert torch.equal(matrix.argmax(1), rows.argsort(1))  # the item at each place


def test_layers():
    # As published: N layers, and 21, 28, 28, 36, 36 for 52, 75, 100, 150, 200 wires.
    assert make_network("odd-even", 7).shape == (7, 7)
    assert [len(make_network("bitonic", N)) for N in (1, 2, 9, 52, 75, 100, 150, 200)] == [0, 1, 10, 21, 28, 28, 36, 36]
    assert make_network("odd-even", 5)[:2].tolist() == [[1, 0, 3, 2, 4], [0, 2, 1, 4, 3]]
    assert make_network("bitonic", 4).tolist() == [[1, 0, 3, 2], [3, 2, 1, 0], [1, 0, 3, 2]]
    for network in NETWORKS:
        for partner in make_network(network, 11):
            assert torch.equal(partner[partner], torch.arange(11))


SCIPY = {
    "logistic": lambda d, v: special.expit(v),
    "logistic-phi": lambda d, v: stats.logistic.cdf(v * abs(d) ** -0.25) if d != 0 else 0.5,
    "gaussian": lambda d, v: stats.norm.cdf(v),
    "reciprocal": lambda d, v: 1 - 1 / (2 + v) if v > 0 else 1 / (2 - v),
    "cauchy": lambda d, v: stats.cauchy.cdf(v),
    "optimal": lambda d, v: 0.5 + v if abs(v) <= 0.25 else (1 - 0.0625 / v if v > 0 else -0.0625 / v),
}
# Of f(v) at v = 0.
SLOPES = {"logistic": 0.25, "gaussian": 0.398942280401, "reciprocal": 0.25, "cauchy": 0.318309886184, "optimal": 1.0}


@every_swap
def test_swaps_are_their_formulas(swap):
    differences = [-7.0, -1.0, -0.26, -0.1, -0.02, 0.0, 0.01, 0.05, 0.0625, 0.24, 0.3, 2.0]
    steepness = 4.0
    wanted = [SCIPY[swap](d, steepness * d) for d in differences]
    found = keep_probability(torch.tensor(differences, dtype=torch.float64), swap, steepness)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-8, atol=1e-12)
    assert all(a < b for a, b in pairwise(found.tolist()))
    torch.testing.assert_close(found, 1 - keep_probability(-torch.tensor(differences).double(), swap, steepness))


@pytest.mark.parametrize(("swap", "slope"), SLOPES.items())
def test_slopes_at_zero(swap, slope):
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(keep_probability(zero, swap, 3.0), zero)
    assert abs(float(found) - 3 * slope) < 1e-9


@both_networks
@every_swap
def test_matrices_are_doubly_stochastic_and_sort_the_values(network, swap):
    scores = torch.randn(6, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    values, matrix = soft_sort(scores, network, swap=swap, steepness=2.0)
    assert float(matrix.min()) >= 0
    torch.testing.assert_close(matrix.sum(1), torch.ones(6, 13, dtype=torch.float64))
    torch.testing.assert_close(matrix.sum(2), torch.ones(6, 13, dtype=torch.float64))
    torch.testing.assert_close((scores[:, None] @ matrix)[:, 0], values)


@both_networks
@every_swap
def test_steep_swaps_approach_the_sort(network, swap):
    scores = torch.tensor([[0.9, 0.1, 0.5, 0.3]], dtype=torch.float64)
    matrix = soft_sort(scores, network, swap=swap, steepness=1e5).matrix
    truth = torch.zeros(1, 4, 4, dtype=torch.float64)
    truth[0, [1, 3, 2, 0], [0, 1, 2, 3]] = 1.0  # P[item, place] of the order 1, 3, 2, 0
    torch.testing.assert_close(matrix, truth, rtol=0, atol=1e-3)


def soft_sort_in_plain_torch(scores, partners, swap, steepness, error_free):
    """The matrix by whole matrices of mixing, one for each layer, and torch's own gradients."""
    B, N = scores.shape
    x, matrix = scores, torch.eye(N, dtype=scores.dtype).expand(B, N, N)
    for partner in partners.tolist():
        mixing, hard = (torch.zeros(B, N, N, dtype=scores.dtype) for _ in range(2))
        for wire, other in enumerate(partner):
            if other == wire:
                mixing[:, wire, wire] = hard[:, wire, wire] = 1.0
            elif other > wire:
                keep = keep_probability(x[:, other] - x[:, wire], swap, steepness)
                is_kept = (x[:, wire] <= x[:, other]).to(x.dtype)
                for tensor, share in ((mixing, keep), (hard, is_kept)):
                    tensor[:, wire, wire] = tensor[:, other, other] = share
                    tensor[:, wire, other] = tensor[:, other, wire] = 1 - share
        soft_x, soft_matrix = (x[:, None] @ mixing)[:, 0], matrix @ mixing
        if error_free:
            x = soft_x + ((x[:, None] @ hard)[:, 0] - soft_x).detach()
            matrix = soft_matrix + (matrix @ hard - soft_matrix).detach()
        else:
            x, matrix = soft_x, soft_matrix
    return x, matrix


@both_networks
@pytest.mark.parametrize("error_free", [False, True])
@pytest.mark.parametrize("swap", ["cauchy", "logistic-phi", "optimal"])
def test_values_and_gradients_are_those_of_plain_torch(network, error_free, swap):
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(3, 11, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(3, 11, 12, dtype=torch.float64, generator=generator)
    partners = make_network(network, 11)
    results = []
    for values, matrix in (
        soft_sort(scores, network, swap=swap, steepness=3.0, error_free=error_free),
        soft_sort_in_plain_torch(scores, partners, swap, 3.0, error_free),
    ):
        loss = (values * weights[..., 0]).sum() + (matrix * weights[..., 1:]).sum()
        results.append((values, matrix, torch.autograd.grad(loss, scores)[0]))
    torch.testing.assert_close(results[0], results[1])


@both_networks
@every_swap
def test_gradcheck(network, swap):
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(2, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    counts = torch.tensor([6, 4])
    assert torch.autograd.gradcheck(lambda x: soft_sort(x, network, swap=swap, steepness=2.0, counts=counts), (scores,))


@both_networks
def test_one_error_free_swap_has_the_soft_gradient(network):
    # Two wires: sorted = (k a + (1 - k) b, (1 - k) a + k b) with k = f(b - a), here cauchy of steepness s.
    a, b, s = 0.7, 0.2, 3.0
    scores = torch.tensor([[a, b]], dtype=torch.float64, requires_grad=True)
    values, matrix = soft_sort(scores, network, swap="cauchy", steepness=s, error_free=True)
    assert values.tolist() == [[b, a]] and matrix.tolist() == [[[0.0, 1.0], [1.0, 0.0]]]
    k = math.atan(s * (b - a)) / math.pi + 0.5
    slope = s / (math.pi * (1 + (s * (b - a)) ** 2))  # of k in b
    (of_smallest,) = torch.autograd.grad(values[0, 0], scores, retain_graph=True)
    assert of_smallest.tolist() == [[pytest.approx(k - slope * (a - b)), pytest.approx(1 - k + slope * (a - b))]]
    (of_entry,) = torch.autograd.grad(matrix[0, 0, 0], scores)
    assert of_entry.tolist() == [[pytest.approx(-slope), pytest.approx(slope)]]


@both_networks
@pytest.mark.parametrize("error_free", [False, True])
def test_what_is_not_real_stays(network, error_free):
    scores = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([9, 5, 1])
    padded = soft_sort(scores, network, counts=counts, error_free=error_free)
    for row, count in enumerate(counts.tolist()):
        values = padded.values[row]
        alone = soft_sort(scores[row : row + 1, :count], network, error_free=error_free)
        assert torch.equal(values[:count], alone.values[0])
        assert torch.equal(padded.matrix[row, :count, :count], alone.matrix[0])
        assert torch.equal(values[count:], scores[row, count:])
        assert torch.equal(padded.matrix[row, count:], torch.eye(9, dtype=torch.float64)[count:])
        assert torch.equal(padded.matrix[row, :, count:], torch.eye(9, dtype=torch.float64)[:, count:])
        if error_free:
            assert torch.equal(values[:count], scores[row, :count].sort().values)


def test_matrices_made_in_parts_are_those_made_at_once(monkeypatch):
    scores = torch.randn(7, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weights = torch.randn(7, 8, 8, generator=torch.Generator().manual_seed(2))
    results = []
    for numbers in (2**20, 2 * 64):
        monkeypatch.setattr("softrank_ext.baselines.sorting_networks._CACHED_NUMBERS", numbers)
        matrix = soft_sort(scores, "odd-even").matrix
        results.append((matrix, torch.autograd.grad((matrix * weights).sum(), scores)[0]))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


@both_networks
def test_empty_batches_and_single_items(network):
    assert soft_sort(torch.empty(0, 4), network).matrix.shape == (0, 4, 4)
    one = soft_sort(torch.tensor([[3.0]], requires_grad=True), network)
    assert one.values.tolist() == [[3.0]] and one.matrix.tolist() == [[[1.0]]]


def test_errors():
    with pytest.raises(ValueError, match="network must be one of 'odd-even', 'bitonic', got 'shell'"):
        make_network("shell", 3)
    with pytest.raises(ValueError, match="N must be an integer of at least 1, got 0"):
        make_network("bitonic", 0)
    with pytest.raises(ValueError, match=r"swap must be one of .*'optimal', got 'step'"):
        keep_probability(torch.zeros(2), "step", 1.0)
    with pytest.raises(ValueError, match=r"scores must be a \(B, N\) tensor of .* float64, got \(2, 3\) int64"):
        soft_sort(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="steepness must be positive and finite, got 0"):
        soft_sort(torch.zeros(2, 3), steepness=0.0)
    with pytest.raises(ValueError, match=r"counts must be a \(2,\) tensor of int64, got \(3,\) int64"):
        soft_sort(torch.zeros(2, 3), counts=torch.ones(3, dtype=torch.int64))
