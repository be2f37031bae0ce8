"""Layers of the encoder and of the decoder, position table and time embedding."""

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TIME_FEATURES = 256
_MAXIMAL_PERIOD = 10000.0
_SOFT_RANK_PERIODS = tuple(2.0**power for power in range(4, -6, -1))


def sine_cosine(length: int, d_model: int, like: Tensor) -> Tensor:
    """Position table (length, D): sine on even channels, cosine on odd ones, base 10000; dtype and device of `like`."""
    return _cached(_sine_cosine)(length, d_model, like.dtype, like.device)


def _cached(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function under lru_cache; without the cache while compiling, where a graph cannot use it."""
    return make.__wrapped__ if torch.compiler.is_compiling() else make  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _frequencies(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Geometric frequencies (count,) from 1 down to one step above 1 / 10000."""
    return _MAXIMAL_PERIOD ** -(torch.arange(count, device=device, dtype=dtype) / count)


@lru_cache(maxsize=64)
def _sine_cosine(length: int, d_model: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    positions = torch.arange(length, device=device, dtype=dtype)
    angle = positions[:, None] * _cached(_frequencies)(d_model // 2, dtype, device)  # (length, D / 2)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)  # (length, D)


class TimeEmbedder(nn.Module):
    """Step index (B,), or a number -> (B or 1, D): 128 cosines and 128 sines of maximal period 10000, then a network.

    The network is linear, SiLU, linear.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(TIME_FEATURES, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, index: float | Tensor) -> Tensor:
        """The vectors (B or 1, D)."""
        like = self.out.bias
        if isinstance(index, Tensor):
            waves = _waves(index)  # (B, 256)
        elif torch.compiler.is_compiling():
            waves = _waves(torch.tensor([index], dtype=like.dtype, device=like.device))  # (1, 256)
        else:
            waves = _waves_of_number(index, like.dtype, like.device)  # (1, 256)
        vector: Tensor = self.out(F.silu(self.hidden(waves)))
        return vector


class SoftRankEmbedder(nn.Module):
    """Soft ranks (B, N), folded or not -> (B, N, D): linear in z itself and in sines and cosines of periods 16 to 1/32.

    Images of the fold, z, -z, 2 - z, ..., get different vectors: waves of period 2 alone would not tell z from 2 + z.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.projection = nn.Linear(1 + 2 * len(_SOFT_RANK_PERIODS), d_model)

    def forward(self, z_t: Tensor) -> Tensor:
        """The vectors (B, N, D)."""
        weight = self.projection.weight
        z = z_t.to(weight.dtype)[..., None]  # (B, N, 1)
        angle = z * (2 * torch.pi / torch.tensor(_SOFT_RANK_PERIODS, dtype=weight.dtype, device=weight.device))
        vectors: Tensor = self.projection(torch.cat((z, angle.sin(), angle.cos()), 2))
        return vectors


def _waves(index: Tensor) -> Tensor:
    """128 cosines, then 128 sines of step indices (B,): (B, 256)."""
    angle = index[:, None] * _cached(_frequencies)(TIME_FEATURES // 2, index.dtype, index.device)  # (B, 128)
    return torch.cat((angle.cos(), angle.sin()), 1)


@lru_cache(maxsize=256)
def _waves_of_number(index: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what is kept must serve training too
        return _waves(torch.full((1,), index, dtype=dtype, device=device))


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    dropout: float,
    *,
    attended: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Multi-head attention on (B, length, D); attended: bool, broadcast to (B, H, queries, keys), None for all."""
    query, key, value = (
        x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value)
    )  # (B, H, length, D/H)
    attention = F.scaled_dot_product_attention(query, key, value, attended, dropout, is_causal)
    return attention.transpose(1, 2).flatten(2)  # (B, length, D)


def _applied(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)`, whose type nn.Module does not tell."""
    y: Tensor = module(x)
    return y


def _initialize(layer: nn.Module) -> None:
    for child in layer.children():
        if isinstance(child, nn.Linear):
            nn.init.xavier_uniform_(child.weight)
            nn.init.zeros_(child.bias)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input.

    Its submodules are the parts of `ops.LAYER_PARTS["encoder"]`.
    """

    def __init__(self, d_model: int, feed_forward: int, heads: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.norm_first = heads, dropout, norm_first
        self.self_norm = nn.LayerNorm(d_model)
        self.self_qkv = nn.Linear(d_model, 3 * d_model)
        self.self_out = nn.Linear(d_model, d_model)
        self.feed_norm = nn.LayerNorm(d_model)
        self.feed_in = nn.Linear(d_model, feed_forward)
        self.feed_out = nn.Linear(feed_forward, d_model)
        _initialize(self)

    def forward(self, x: Tensor, attended: Tensor | None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        dropout = self.dropout if self.training else 0.0

        def self_attention(y: Tensor) -> Tensor:
            query, key, value = self.self_qkv(y).chunk(3, -1)
            attention = _attend(query, key, value, self.heads, dropout, attended=attended)
            return _applied(self.self_out, attention)

        def feed_forward(y: Tensor) -> Tensor:
            return _applied(self.feed_out, F.dropout(F.relu(self.feed_in(y)), dropout))

        return _add_sublayers(
            x, ((self.self_norm, self_attention), (self.feed_norm, feed_forward)), dropout, self.norm_first
        )


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output and feed-forward, each added to its input.

    Its submodules are the parts of `ops.LAYER_PARTS["decoder"]`.
    """

    def __init__(self, d_model: int, feed_forward: int, heads: int, dropout: float, norm_first: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.norm_first = heads, dropout, norm_first
        self.self_norm = nn.LayerNorm(d_model)
        self.self_qkv = nn.Linear(d_model, 3 * d_model)
        self.self_out = nn.Linear(d_model, d_model)
        self.memory_norm = nn.LayerNorm(d_model)
        self.memory_query = nn.Linear(d_model, d_model)
        self.memory_key_value = nn.Linear(d_model, 2 * d_model)
        self.memory_out = nn.Linear(d_model, d_model)
        self.feed_norm = nn.LayerNorm(d_model)
        self.feed_in = nn.Linear(d_model, feed_forward)
        self.feed_out = nn.Linear(feed_forward, d_model)
        _initialize(self)

    def forward(self, x: Tensor, memory: Tensor, attended: Tensor | None) -> Tensor:
        """x (B, N, D) -> (B, N, D); memory: the encoder's output."""
        dropout = self.dropout if self.training else 0.0

        def self_attention(y: Tensor) -> Tensor:
            query, key, value = self.self_qkv(y).chunk(3, -1)
            return _applied(self.self_out, _attend(query, key, value, self.heads, dropout, is_causal=True))

        def memory_attention(y: Tensor) -> Tensor:
            key, value = self.memory_key_value(memory).chunk(2, -1)
            attention = _attend(self.memory_query(y), key, value, self.heads, dropout, attended=attended)
            return _applied(self.memory_out, attention)

        def feed_forward(y: Tensor) -> Tensor:
            return _applied(self.feed_out, F.dropout(F.relu(self.feed_in(y)), dropout))

        sublayers = (
            (self.self_norm, self_attention),
            (self.memory_norm, memory_attention),
            (self.feed_norm, feed_forward),
        )
        return _add_sublayers(x, sublayers, dropout, self.norm_first)


def _add_sublayers(
    x: Tensor,
    sublayers: Iterable[tuple[nn.Module, Callable[[Tensor], Tensor]]],
    dropout: float,
    norm_first: bool,
) -> Tensor:
    """Add (norm, sublayer) after (norm, sublayer) to x, normed before the sublayer (norm_first) or after the sum."""
    for norm, sublayer in sublayers:
        x = x + F.dropout(sublayer(norm(x)), dropout) if norm_first else norm(x + F.dropout(sublayer(x), dropout))
    return x


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B, N, D) with zeros where the mask (B, N) is False."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0.0)


def attended_slots(mask: Tensor | None) -> Tensor | None:
    """Slots that are attended to, bool (B, 1, 1, N)."""
    # A row of padding alone attends to its zeros: a softmax over nothing would be NaN.
    return None if mask is None else (mask | ~mask.any(1, keepdim=True))[:, None, None]
