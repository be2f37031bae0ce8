"""Layers, position table and time embedding."""

import math

import torch
from testing.torch_twins import torch_decoder_layer, torch_encoder_layer

from softrank_ext.model import DecoderLayer, EncoderLayer, TimeEmbedder, sine_cosine
from softrank_ext.model.layers import SoftRankEmbedder, attended_slots, zero_padding


def test_position_and_time_tables():
    table = sine_cosine(300, 6, torch.zeros(1, dtype=torch.float64))
    for position, channel in ((0, 0), (1, 1), (7, 2), (7, 3), (299, 4), (299, 5)):
        angle = position / 10000 ** (2 * (channel // 2) / 6)
        assert math.isclose(
            float(table[position, channel]), (math.cos if channel % 2 else math.sin)(angle), abs_tol=1e-12
        )
    time = TimeEmbedder(8).double()
    features = []
    time.hidden.register_forward_hook(lambda module, inputs, output: features.append(inputs[0]))
    time(torch.tensor([3.0], dtype=torch.float64))
    for channel in (0, 5, 127):
        angle = 3.0 / 10000 ** (channel / 128)
        assert math.isclose(float(features[0][0, channel]), math.cos(angle), abs_tol=1e-12)
        assert math.isclose(float(features[0][0, 128 + channel]), math.sin(angle), abs_tol=1e-12)


def _shaken(layer):
    """The layer with no parameter at its first value, so that each one shows."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer.double().eval()


def test_an_encoder_layer_is_torch_s():
    mask = torch.tensor([[True, True, True, True], [True, False, True, False]])
    x = torch.randn(2, 4, 16, dtype=torch.float64)
    for norm_first in (True, False):
        layer = _shaken(EncoderLayer(16, 24, 2, 0.0, norm_first))
        theirs = torch_encoder_layer(layer, norm_first).train()
        wanted = theirs(x, src_key_padding_mask=~mask)
        torch.testing.assert_close(layer(x, attended_slots(mask)), wanted, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(layer(x, None), theirs(x), atol=1e-10, rtol=1e-10)


def test_a_decoder_layer_is_torch_s():
    """Causal among the places; all of them see the real slots of the memory."""
    mask = torch.tensor([[True, True, True, True, True], [True, False, True, False, True]])
    x, memory = torch.randn(2, 4, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
    is_hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    for norm_first in (True, False):
        layer = _shaken(DecoderLayer(16, 24, 2, 0.0, norm_first))
        theirs = torch_decoder_layer(layer, norm_first).train()
        wanted = theirs(x, memory, tgt_mask=is_hidden, memory_key_padding_mask=~mask)
        torch.testing.assert_close(layer(x, memory, attended_slots(mask)), wanted, atol=1e-10, rtol=1e-10)


def test_layers_drop_out_in_training_only():
    for layer, inputs in (
        (EncoderLayer(16, 24, 2, 0.5, True), (torch.randn(1, 3, 16), None)),
        (DecoderLayer(16, 24, 2, 0.5, True), (torch.randn(1, 3, 16), torch.randn(1, 4, 16), None)),
    ):
        assert not torch.equal(layer(*inputs), layer(*inputs))
        layer.eval()
        assert torch.equal(layer(*inputs), layer(*inputs))


def test_time_of_a_number_and_of_a_tensor():
    embedder = TimeEmbedder(8).double()
    both = embedder(torch.tensor([3.0, 0.5], dtype=torch.float64))
    assert both.shape == (2, 8)
    torch.testing.assert_close(embedder(3.0), both[:1])
    torch.testing.assert_close(embedder(0.5), both[1:])


def test_soft_ranks_are_read_by_their_value_and_waves():
    embedder = SoftRankEmbedder(3).double()
    weight, bias = embedder.projection.weight, embedder.projection.bias
    assert weight.shape == (3, 21)
    z_t = torch.tensor([[0.3, -1.7, 2.6]])
    waves = [2 ** (4 - k) for k in range(10)]  # periods 16, 8, ..., 1/32
    for item, z in enumerate(z_t[0].double().tolist()):
        angles = [2 * math.pi * z / period for period in waves]
        features = [z, *map(math.sin, angles), *map(math.cos, angles)]
        wanted = weight @ torch.tensor(features, dtype=torch.float64) + bias
        torch.testing.assert_close(embedder(z_t)[0, item], wanted, atol=1e-12, rtol=0)


def test_soft_ranks_that_fold_to_one_are_told_apart():
    images = torch.tensor([[0.3, -0.3, 1.7, 2.3, -1.7, 3.7]], dtype=torch.float64)
    vectors = SoftRankEmbedder(16).double()(images)[0]
    assert torch.pdist(vectors).min() > 0.05
    # Negative control: the waves of period 2 alone, even ones, are what a fold leaves.
    even = torch.stack([(math.pi * k * images[0]).cos() for k in (1, 2, 4)], 1)
    assert torch.pdist(even).max() < 1e-12


def test_tables_follow_dtype_and_are_kept():
    like = torch.zeros(1)
    assert sine_cosine(5, 4, like).dtype == torch.float32
    assert sine_cosine(5, 4, like) is sine_cosine(5, 4, like)
    assert sine_cosine(5, 4, like.double()).dtype == torch.float64


def test_padding():
    mask = torch.tensor([[True, False], [False, False]])
    x = torch.ones(2, 2, 3)
    assert zero_padding(x, None) is x and attended_slots(None) is None
    assert zero_padding(x, mask).sum(2).tolist() == [[3, 0], [0, 0]]
    # A row of padding alone attends to all of its zeros: a softmax over nothing would be NaN.
    assert attended_slots(mask)[:, 0, 0].tolist() == [[True, False], [True, True]]
