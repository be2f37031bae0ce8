"""Orders of which a part is noised: its places, its grid, its noise."""

import torch

from softrank_ext.noise import RowNoise
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import Bridge, PartialOrder

ORDER = torch.tensor([[1, 3, 2, 0, 4], [4, 0, 1, 2, 3]])
NOISED = torch.tensor([[True, True, False, False, True], [False, False, False, True, True]])
PART = PartialOrder(ORDER, NOISED)


def test_places_by_hand():
    # Row 0: items 1, 0, 4 are noised, at places 0, 3, 4. Row 1: items 4 and 3, at places 0 and 4.
    assert PART.is_free().int().tolist() == [[1, 0, 0, 1, 1], [1, 0, 0, 0, 1]]
    chamber = torch.tensor([[4, 1, 0, 2, 3], [3, 4, 0, 1, 2]])  # the noised items first
    assert PART.filled(chamber).tolist() == [[4, 3, 2, 1, 0], [3, 0, 1, 2, 4]]


def test_the_part_has_a_grid_of_its_own():
    assert PART.lift(ORDER).tolist() == [[0.5, 0, 0, 0, 1], [0, 0, 0, 1, 0]]
    assert PART.lift(torch.tensor([[4, 3, 2, 1, 0], [3, 0, 1, 2, 4]])).tolist() == [[1, 0.5, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_lifting_and_reading_undo_each_other():
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(50, 9, generator=generator).argsort(1)
    noised = torch.rand(50, 9, generator=generator) < 0.6
    part = PartialOrder(order, noised)
    _, chamber, _ = torch.ops.softrank_ext.read_order(part.lift(order), noised)
    assert torch.equal(part.filled(chamber), order)


def test_noise_of_a_part_is_that_of_the_bridge():
    """At time t the noised items are on the bridge from their own grid: mean and deviation by the paper's formula."""
    samples = torch.arange(40000)
    order = torch.tensor([[2, 0, 3, 1]]).expand(len(samples), 4)
    noised = torch.tensor([[True, True, False, True]]).expand_as(order)  # at places 1, 3 and 2 comes item 3
    part = PartialOrder(order, noised)
    rows = RowNoise(0, samples, 4, mask=noised)
    process = Bridge(noise_scale=0.1)
    z_prior = torch.full((len(samples), 4), 0.5)
    z_t = part.noised_to(0.3, z_prior, process, rows, 5)
    clean = torch.tensor([0.0, 1.0, 0.5])  # items 0, 1, 3 at free places 1, 3, 2
    for item, end in zip((0, 1, 3), clean, strict=True):
        assert abs(float(z_t[:, item].mean()) - float(0.7 * end + 0.3 * 0.5)) < 0.002
        assert abs(float(z_t[:, item].std()) - 0.1 * (0.3 * 0.7) ** 0.5) < 0.002
    assert part.noised_to(1, z_prior, process, rows, 5) is z_prior


def test_filled_keeps_what_is_kept():
    generator = torch.Generator().manual_seed(1)
    order, chamber = (torch.rand(2, 30, 7, generator=generator)).argsort(2)
    noised = torch.rand(30, 7, generator=generator) < 0.5
    chamber = torch.stack(
        [torch.cat((row[free[row]], row[~free[row]])) for row, free in zip(chamber, noised, strict=True)]
    )
    filled = PartialOrder(order, noised).filled(chamber)
    assert torch.equal(ranks_of(filled)[~noised], ranks_of(order)[~noised])
    assert torch.equal(filled.sort(1).values, torch.arange(7).expand(30, 7))
