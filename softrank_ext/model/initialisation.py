"""Weights that a model starts from: those that learn soonest, over the published ones that the layers make."""

import math

import torch
from torch import nn

from softrank_ext.model.heads import LinearHead
from softrank_ext.model.layers import DecoderLayer, EncoderLayer, sine_cosine


@torch.no_grad()
def initialize_quickly(model: nn.Module) -> None:
    """Change a model's fresh weights from the published form, Xavier everywhere, to what leaves chance sooner.

    Layers begin as torch's own attention and linear layers do. With a linear head, row k of the head is the position
    table's row k times `sqrt(2 / D)`, and attention to the memory hands it on unchanged: what the decoder attends to is
    then what it points at from the start. Otherwise that head stays at chance for thousands of updates.
    """
    head = getattr(model, "head", None)
    for layer in model.modules():
        if isinstance(layer, EncoderLayer | DecoderLayer):
            for part in (layer.feed_in, layer.feed_out, layer.self_out):
                part.reset_parameters()
            nn.init.zeros_(layer.self_out.bias)
        if isinstance(layer, DecoderLayer):
            D = layer.memory_out.in_features
            bound = math.sqrt(6 / (4 * D))  # Xavier's for queries, keys and values in one matrix
            nn.init.uniform_(layer.memory_query.weight, -bound, bound)
            nn.init.uniform_(layer.memory_key_value.weight, -bound, bound)
            layer.memory_out.reset_parameters()
            nn.init.zeros_(layer.memory_out.bias)
            if isinstance(head, LinearHead):
                nn.init.eye_(layer.memory_key_value.weight[D:])
                nn.init.eye_(layer.memory_out.weight)
    if isinstance(head, LinearHead):
        max_items, D = head.weight.shape
        head.weight.copy_(sine_cosine(max_items, D, head.weight) * math.sqrt(2 / D))
