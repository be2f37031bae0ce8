"""Weights in the order that the ops take them, packed anew when one has changed."""

import copy

import pytest
import torch

from softrank_ext import ops
from softrank_ext.model.packing import packed_weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("head", ("pointer", "linear"))
def test_lists_are_in_the_order_of_the_ops(make_model, head):
    model = make_model(head)
    weights = packed_weights(model)
    for kind, transformer, layers, norm in (
        ("encoder", weights.encoder, model.encoder_layers, model.encoder_norm),
        ("decoder", weights.decoder, model.decoder_layers, model.decoder_norm),
    ):
        names = ops.layer_weight_names(kind)
        by_name = [{name.replace(".", "_"): weight for name, weight in layer.named_parameters()} for layer in layers]
        wanted = [layer[name] for layer in by_name for name in names] + [norm.weight, norm.bias]
        assert len(transformer.weights) == len(wanted)
        pairs = zip(transformer.weights, wanted, strict=True)
        assert all(weight.data_ptr() == own.data_ptr() and weight.shape == own.shape for weight, own in pairs)
    assert (weights.head is None) == (head == "linear")


def test_packing_follows_the_weights(make_model):
    model = make_model("pointer")
    first = packed_weights(model)
    again = packed_weights(model)
    assert again.decoder.packed is first.decoder.packed and again.time_vectors is first.time_vectors
    for parameter in (model.decoder_layers[1].feed_in.weight, model.head.slot_weight, model.time_embedder.out.bias):
        parameter.data[..., 0] += 1.0  # no version of a tensor tells of this
        changed = packed_weights(model)
        assert changed.time_vectors is not again.time_vectors
        again = changed
    fresh = ops.pack_decoder([weight.detach() for weight in again.decoder.weights])
    assert again.decoder.packed is not None and torch.equal(fresh, again.decoder.packed)


def test_heads_without_a_decoder_have_nothing_to_pack(make_model):
    weights = packed_weights(make_model("gpl"))
    assert weights.encoder.weights == weights.decoder.weights == [] and weights.head is None


def test_swapping_weights_and_back_leaves_no_trace(make_model):
    """A time vector that was made while other weights were there stayed with the packed ones."""
    model = make_model("pointer")
    items, order = torch.randn(2, 4, 2), torch.tensor([[1, 3, 2, 0], [2, 0, 1, 3]])
    kept, other = model.packed_weights(), copy.deepcopy(model.state_dict())
    for tensor in other.values():
        tensor += 0.3
    own = copy.deepcopy(model.state_dict())
    model.load_state_dict(other)
    model.decode(items, 0.37, forced_order=order, packed_weights=kept)
    model.load_state_dict(own)
    with torch.no_grad():
        wanted = model.log_prob(items, 0.37, order).per_place
    torch.testing.assert_close(model.decode(items, 0.37, forced_order=order).log_probs, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", ("pointer", "linear"))
def test_no_gradient_leads_back_to_the_model(make_model, head):
    model, items = make_model(head), torch.randn(2, 4, 2)
    packed = model.packed_weights()
    model.decode(items, 0.4, packed_weights=packed)  # makes a vector of the time
    tensors = [*packed.encoder.weights, *packed.decoder.weights, packed.encoder.packed, packed.decoder.packed]
    tensors += [packed.head, packed.packed_head, *packed.time_embedder.parameters(), *packed.time_vectors.values()]
    assert len(packed.time_vectors) == 1
    assert not any(tensor.requires_grad for tensor in tensors if tensor is not None)
    assert all(parameter.requires_grad for parameter in model.parameters())
