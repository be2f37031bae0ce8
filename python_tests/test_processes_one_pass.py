"""No noise: items as given, the fixed first item in front, padding behind."""

import torch

from softrank_ext import noise, ops
from softrank_ext.processes import OnePass, Prediction

MASK = torch.tensor([[True, False, True, True], [True, True, True, True]])


def test_items_stand_as_given():
    process, samples = OnePass(), torch.tensor([5, 9])
    assert process.times() == [1.0, 0.0] and process.sampling_steps == 1
    for mask, first, wanted in (
        (None, None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (MASK, None, [[0, 2, 3, 1], [0, 1, 2, 3]]),
        (MASK, torch.tensor([3, 1]), [[3, 0, 2, 1], [1, 0, 2, 3]]),
    ):
        z = process.draw_prior(noise.RowNoise(7, samples, 4, torch.float64, mask, first))
        assert ops.decode_chamber(z, mask)[0].tolist() == wanted
        assert torch.equal(z, process.draw_prior(noise.RowNoise(8, samples + 1, 4, torch.float64, mask, first)))
    z_clean = torch.rand(2, 4)
    prediction = Prediction(torch.rand(2, 4), torch.zeros(2, 4).long(), torch.zeros(2, 4).long(), z_clean)
    assert process.draw_back(prediction, 1.0, 0.0, noise.RowNoise(7, samples, 4), 0) is z_clean
