"""torch's own transformer layers with the weights of ours, in float64."""

import torch
from torch import nn

from softrank_ext.model import DecoderLayer, EncoderLayer


def torch_encoder_layer(layer: EncoderLayer, norm_first: bool) -> nn.TransformerEncoderLayer:
    """torch's own layer with the same weights."""
    width, heads = layer.self_out.in_features, layer.heads
    theirs = nn.TransformerEncoderLayer(
        width,
        heads,
        layer.feed_in.out_features,
        dropout=0.0,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    names = {
        "self_attn.in_proj_": layer.self_qkv,
        "self_attn.out_proj.": layer.self_out,
        "linear1.": layer.feed_in,
        "linear2.": layer.feed_out,
        "norm1.": layer.self_norm,
        "norm2.": layer.feed_norm,
    }
    theirs.load_state_dict(
        {f"{name}{kind}": getattr(ours, kind) for name, ours in names.items() for kind in ("weight", "bias")}
    )
    return theirs


def torch_decoder_layer(layer: DecoderLayer, norm_first: bool) -> nn.TransformerDecoderLayer:
    """torch's own layer with the same weights."""
    width, heads = layer.self_out.in_features, layer.heads
    theirs = nn.TransformerDecoderLayer(
        width,
        heads,
        layer.feed_in.out_features,
        dropout=0.0,
        batch_first=True,
        norm_first=norm_first,
        dtype=torch.float64,
    )
    names = {
        "self_attn.in_proj_": layer.self_qkv,
        "self_attn.out_proj.": layer.self_out,
        "multihead_attn.out_proj.": layer.memory_out,
        "linear1.": layer.feed_in,
        "linear2.": layer.feed_out,
        "norm1.": layer.self_norm,
        "norm2.": layer.memory_norm,
        "norm3.": layer.feed_norm,
    }
    weights = {f"{name}{kind}": getattr(ours, kind) for name, ours in names.items() for kind in ("weight", "bias")}
    for kind in ("weight", "bias"):
        joined = torch.cat((getattr(layer.memory_query, kind), getattr(layer.memory_key_value, kind)))
        weights[f"multihead_attn.in_proj_{kind}"] = joined
    theirs.load_state_dict(weights)
    return theirs
