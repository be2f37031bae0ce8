"""The network that predicts a clean order from a shuffled instance: paper section 3.3.

An instance is seen slot by slot: `items` (B, N, ...) stand in the order of the noisy soft ranks, and orders here are
over those slots, `order[place] = slot`. `mask` (B, N) is True for real slots; padding may stand anywhere and hold
anything.
An order's probability is stagewise (paper eq. 7): at each place a softmax of scores over the slots that remain.
Four heads give the scores. `pointer` and `linear` (cGPL, eqs. 9 and 12) read them off a causal decoder, so that they
depend on the picks so far. `gpl` and `pl` use the encoder alone: scores per place and slot (eq. 8), or per slot only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import constraints

from softrank_ext import bridge, ops, reference, riffle
from softrank_ext.constraints import Constraining, Rules, rules_of
from softrank_ext.distributions import OrderDistribution, Shape, stagewise_log_probs
from softrank_ext.permutations import arrange, check_slots

HEADS = ("pointer", "linear", "gpl", "pl")
DECODER_HEADS = ("pointer", "linear")
TIMES = ("grid", "continuous")
PROCESSES = ("soft-rank", "riffle")
TARGETS = ("clean", "previous")
_TIME_FEATURES = 256
_MAXIMAL_PERIOD = 10000.0
_ROWS_AT_ONCE = 1024  # of a distribution's draws
_MOST_TIME_VECTORS = 256  # that are kept


@dataclass(frozen=True)
class SoftRankConfig:
    """Sizes and choices of a `SoftRankModel`.

    d_model, feed_forward: widths. heads: attention heads. encoder_layers, decoder_layers: the latter 0 for gpl and pl.
    dropout: in training only. head: one of HEADS. max_items: the largest N of a linear head, None for the others.
    norm_first: layer norm before each sublayer (True) or after each sum. time, steps: the time embedding reads the step
    index `t * steps` ("grid") or `1000 t` ("continuous"). embedder: {"kind": a name in EMBEDDERS, and its arguments},
    or None if the model is given an embedder module. process: what orders are noised by, soft ranks on a bridge or
    riffle shuffles. target: the order that is predicted, the clean one or that at the time before. visited: the numbers
    of riffles that the reverse process goes through, from 0 up, as (0, 3, 5, 9), the last of which stands for `steps`
    in the time embedding; None for soft ranks.
    """

    d_model: int = 128
    feed_forward: int = 512
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 4
    dropout: float = 0.1
    head: str = "pointer"
    max_items: int | None = None
    norm_first: bool = True
    time: str = "grid"
    steps: int = 5
    embedder: Mapping[str, object] | None = None
    process: str = "soft-rank"
    target: str = "clean"
    visited: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("d_model", "feed_forward", "heads", "encoder_layers", "steps"):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("decoder_layers", self.decoder_layers, 0)
        if self.d_model % 2 != 0 or self.d_model % self.heads != 0:
            raise ValueError(f"d_model must be even and a multiple of heads = {self.heads}, got {self.d_model}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if not isinstance(self.norm_first, bool):
            raise ValueError(f"norm_first must be True or False, got {self.norm_first!r}")
        for name, allowed in (("head", HEADS), ("time", TIMES), ("process", PROCESSES), ("target", TARGETS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if (self.decoder_layers > 0) != (self.head in DECODER_HEADS):
            wanted = "at least 1" if self.head in DECODER_HEADS else "0: it reads the encoder alone"
            raise ValueError(f"decoder_layers of a {self.head} head must be {wanted}, got {self.decoder_layers}")
        if self.head == "linear":
            if self.max_items is None:
                raise ValueError("max_items must be given for a linear head: the largest N that it will see")
            _check_integer("max_items", self.max_items, 1)
        elif self.max_items is not None:
            raise ValueError(f"max_items is for a linear head, a {self.head} head takes any N; got {self.max_items}")
        if self.time != "grid" and (self.process == "riffle" or self.target == "previous"):
            raise ValueError(f'time must be "grid" for {self.process} and target {self.target!r}, got {self.time!r}')
        if self.process == "riffle":
            object.__setattr__(self, "visited", _checked_visited(self.visited))
        elif self.visited is not None:
            raise ValueError(f'visited is for process "riffle", the grid of soft ranks has steps; got {self.visited}')

    def reverse_times(self, steps: int | None = None) -> list[float]:
        """Times of the reverse process, from 1 down to 0: by default the model's own, else the grid of so many steps.

        Only a model of soft ranks that predicts the clean order can take another number of steps than its own.
        """
        if self.process == "soft-rank" and self.target == "clean":
            return bridge.time_grid(self.steps if steps is None else steps)
        times = bridge.time_grid(self.steps)
        if self.visited is not None:
            times = [count / self.visited[-1] for count in reversed(self.visited)]
        if steps not in (None, len(times) - 1):
            raise ValueError(f"steps of this model must be its own {len(times) - 1}, or None, got {steps}")
        return times


def _checked_visited(visited: Iterable[int] | None) -> tuple[int, ...]:
    times, most = tuple(visited or ()), riffle.MOST_RIFFLES
    is_integer = all(isinstance(time, int) and not isinstance(time, bool) for time in times)
    if len(times) < 2 or not is_integer or times[0] != 0 or any(a >= b for a, b in pairwise(times)) or times[-1] > most:
        raise ValueError(
            f"visited must be ascending numbers of riffles from 0 to {most} at most, as (0, 3, 5, 9), got {visited}"
        )
    return times


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


# Layers as in the paper, widths as in the published SymmetricDiffusers files. The paper prints the two widths the other
# way round; the "-as-printed" presets follow it. Vary one with dataclasses.replace.
PRESETS = {
    "mnist": SoftRankConfig(),
    "jigsaw": SoftRankConfig(),
    "tsp": SoftRankConfig(d_model=256, feed_forward=1024, encoder_layers=8, decoder_layers=8),
    "mnist-as-printed": SoftRankConfig(d_model=512, feed_forward=128),
    "jigsaw-as-printed": SoftRankConfig(d_model=512, feed_forward=128),
    "tsp-as-printed": SoftRankConfig(d_model=1024, feed_forward=256, encoder_layers=8, decoder_layers=8),
}


class LinearEmbedder(nn.Module):
    """Items that are feature vectors, (B, N, features) float -> (B, N, D)."""

    item_ndim = 1

    def __init__(self, d_model: int, features: int) -> None:
        super().__init__()
        self.projection = nn.Linear(features, d_model)

    def forward(self, items: Tensor) -> Tensor:
        features = self.projection.in_features
        if not items.is_floating_point() or items.shape[-1] != features:
            raise ValueError(f"items must be (B, N, {features}) float, got {tuple(items.shape)} {items.dtype}")
        return self.projection(items)


class LearnedEmbedder(nn.Module):
    """Items that are ids from 0 to num_items - 1, (B, N) int64 -> (B, N, D)."""

    item_ndim = 0

    def __init__(self, d_model: int, num_items: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_items, d_model)

    def forward(self, items: Tensor) -> Tensor:
        if items.dtype != torch.int64:
            raise ValueError(f"items must be (B, N) int64, got {tuple(items.shape)} {items.dtype}")
        if items.numel() > 0 and not 0 <= int(items.min()) <= int(items.max()) < self.vectors.num_embeddings:
            raise ValueError(
                f"items must be ids from 0 to {self.vectors.num_embeddings - 1}, "
                f"got {int(items.min())} to {int(items.max())}"
            )
        return self.vectors(items)


# An embedder maps items (B, N, ...) to (B, N, D). If it says its item_ndim, the number of dimensions of one item,
# `sample` also takes a single instance (N, ...).
EMBEDDERS: dict[str, Callable[..., nn.Module]] = {"linear": LinearEmbedder, "learned": LearnedEmbedder}


def make_embedder(d_model: int, embedder: Mapping[str, object]) -> nn.Module:
    """The registered embedder that a config's `embedder` names."""
    arguments = dict(embedder)
    kind = arguments.pop("kind", None)
    if kind not in EMBEDDERS:
        raise ValueError(f"embedder kind must be one of {', '.join(EMBEDDERS)}, got {kind!r}")
    try:
        return EMBEDDERS[str(kind)](d_model, **arguments)
    except TypeError as error:
        raise ValueError(f"embedder of kind {kind!r} does not take {arguments}: {error}") from error


def embedder_of(config: Any, embedder: nn.Module | None) -> nn.Module:
    """The embedder that a model's config names, or the module given; raises ValueError unless it is one of the two."""
    if embedder is not None:
        if config.embedder is not None:
            raise ValueError("embedder must be left out where config.embedder names one, got both")
        return embedder
    if config.embedder is None:
        raise ValueError("embedder must be a module, or config.embedder must name one, got neither")
    return make_embedder(config.d_model, config.embedder)


def embed_items(embedder: nn.Module, items: Tensor, mask: Tensor | None, d_model: int, dtype: torch.dtype) -> Tensor:
    """Item embeddings (B, N, D) of items (B, N, ...), floats cast to dtype, padding zeroed before and after."""
    if items.is_floating_point():
        items = items.to(dtype)
    if mask is not None:
        items = items.masked_fill(~mask.reshape(mask.shape + (1,) * (items.ndim - 2)), 0)
    embedded = embedder(items)
    wanted = (*items.shape[:2], d_model)
    if embedded.shape != wanted:
        raise ValueError(f"the embedder must return {wanted}, got {tuple(embedded.shape)}")
    return _zero_padding(embedded, mask)


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
        self.hidden = nn.Linear(_TIME_FEATURES, d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, index: float | Tensor) -> Tensor:
        like = self.out.bias
        if isinstance(index, Tensor):
            waves = _waves(index)  # (B, 256)
        elif torch.compiler.is_compiling():
            waves = _waves(torch.tensor([index], dtype=like.dtype, device=like.device))  # (1, 256)
        else:
            waves = _waves_of_number(index, like.dtype, like.device)  # (1, 256)
        return self.out(F.silu(self.hidden(waves)))


def _waves(index: Tensor) -> Tensor:
    """128 cosines, then 128 sines of step indices (B,): (B, 256)."""
    angle = index[:, None] * _cached(_frequencies)(_TIME_FEATURES // 2, index.dtype, index.device)  # (B, 128)
    return torch.cat((angle.cos(), angle.sin()), 1)


@lru_cache(maxsize=256)
def _waves_of_number(index: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # what is kept must serve training too
        return _waves(torch.tensor([index], dtype=dtype, device=device))


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


def _initialize(layer: nn.Module) -> None:
    for child in layer.children():
        if isinstance(child, nn.Linear):
            nn.init.xavier_uniform_(child.weight)
            nn.init.zeros_(child.bias)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input.

    Its parameters, in the order they are made here, are those of `reference.EncoderLayerWeights`.
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
        dropout = self.dropout if self.training else 0.0

        def self_attention(y: Tensor) -> Tensor:
            query, key, value = self.self_qkv(y).chunk(3, -1)
            return self.self_out(_attend(query, key, value, self.heads, dropout, attended=attended))

        def feed_forward(y: Tensor) -> Tensor:
            return self.feed_out(F.dropout(F.relu(self.feed_in(y)), dropout))

        return _add_sublayers(
            x, ((self.self_norm, self_attention), (self.feed_norm, feed_forward)), dropout, self.norm_first
        )


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output and feed-forward, each added to its input.

    Its parameters, in the order they are made here, are those of `reference.DecoderLayerWeights`.
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
        dropout = self.dropout if self.training else 0.0

        def self_attention(y: Tensor) -> Tensor:
            query, key, value = self.self_qkv(y).chunk(3, -1)
            return self.self_out(_attend(query, key, value, self.heads, dropout, is_causal=True))

        def memory_attention(y: Tensor) -> Tensor:
            key, value = self.memory_key_value(memory).chunk(2, -1)
            return self.memory_out(_attend(self.memory_query(y), key, value, self.heads, dropout, attended=attended))

        def feed_forward(y: Tensor) -> Tensor:
            return self.feed_out(F.dropout(F.relu(self.feed_in(y)), dropout))

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


class PointerHead(nn.Module):
    """Biaffine scores `d_i . W e_k + v . e_k` of decoder states d_i and encoder outputs e_k (paper eq. 12), for any N.

    The paper's `u . d_i + b` is the same for every slot, so it cancels in the softmax and is left out.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        # States and encoder outputs are normed to length sqrt(D), so first scores have a deviation of about 1.
        self.weight = nn.Parameter(torch.randn(d_model, d_model) / d_model)
        self.slot_weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B, N, D) and bias (B, N) of the slots."""
        return memory @ self.weight.T, memory @ self.slot_weight

    def projection(self) -> Tensor:
        """The matrix (D + 1, D) that takes a slot's encoder output to its keys and its bias."""
        return torch.cat((self.weight, self.slot_weight[None])).detach()


class LinearHead(nn.Module):
    """Scores `w_k . d_i + b_k` with learned w_k, b_k per slot k < max_items; N real slots use the first N of them."""

    def __init__(self, d_model: int, max_items: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_items, d_model) / math.sqrt(d_model))
        self.bias = nn.Parameter(torch.zeros(max_items))

    def forward(self, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B or 1, N, D) and bias (B or 1, N) of the slots; padded slots carry some real slot's."""
        return self.weight[positions], self.bias[positions]


class LogProb(NamedTuple):
    """Log-probabilities of orders: `per_place` (B, N), 0 at padded places, and their sum `total` (B,)."""

    per_place: Tensor
    total: Tensor


class PackedWeights(NamedTuple):
    """What `ops.encode` and `ops.decode_order` want of a model: its tensors, and their packing for the kernels.

    head, packed_head: of a pointer head, for `ops.project`. time_vectors: those (1, 1, D) of the step indices met so
    far.
    """

    encoder: list[Tensor]
    packed_encoder: Tensor
    decoder: list[Tensor]
    packed_decoder: Tensor
    head: Tensor | None
    packed_head: Tensor | None
    time_vectors: dict[float, Tensor]


# What models packed last, with the checksum of the weights. Not an attribute: it must be neither saved nor copied.
_packings: WeakKeyDictionary["SoftRankModel", tuple[int, PackedWeights]] = WeakKeyDictionary()


class DecoderInputs(NamedTuple):
    """What the decoder works from at one diffusion time; the tensors are described at `ops.decode_order`."""

    weights: list[Tensor]
    packed: Tensor
    memory: Tensor
    tokens: Tensor
    start: Tensor
    places: Tensor
    head_keys: Tensor
    head_bias: Tensor
    mask: Tensor


class SoftRankModel(nn.Module):
    """Distribution over the orders of an instance given at diffusion time t.

    config: `SoftRankConfig`. embedder: a module from items (B, N, ...) to (B, N, D), unless config.embedder names one.
    Everywhere: mask (B, N) bool, True = real slot, None = all. t: a number or (B,), in [0, 1]. Floats are float32 or
    float64, as the parameters are. A padded batch gives what its rows give one by one.
    """

    model_type = "soft-rank"
    config_type = SoftRankConfig

    def __init__(self, config: SoftRankConfig, embedder: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        D = config.d_model
        sizes = (D, config.feed_forward, config.heads, config.dropout, config.norm_first)
        self.embedder = embedder_of(config, embedder)
        self.time_embedder = TimeEmbedder(D)
        self.encoder_layers = nn.ModuleList(EncoderLayer(*sizes) for _ in range(config.encoder_layers))
        has_decoder = config.head in DECODER_HEADS
        # Without a decoder, as published for SymmetricDiffusers: the outputs are read by their inner products.
        self.encoder_norm = nn.LayerNorm(D) if has_decoder else nn.LayerNorm(D, eps=1e-6, elementwise_affine=False)
        if has_decoder:
            self.start = nn.Parameter(torch.randn(D) * 0.02)
            self.decoder_layers = nn.ModuleList(DecoderLayer(*sizes) for _ in range(config.decoder_layers))
            self.decoder_norm = nn.LayerNorm(D)
        if config.head == "linear":
            self.head: nn.Module = LinearHead(D, config.max_items or 0)
        elif config.head == "pointer":
            self.head = PointerHead(D)
        elif config.head == "pl":
            self.head = nn.Sequential(nn.Linear(D, config.feed_forward), nn.ReLU(), nn.Linear(config.feed_forward, 1))

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """Item embeddings (B, N, D), to be computed once and arranged; padding is zeroed before and after the embedder.

        items: (B, N, ...) as the embedder takes them; floats are cast to the model's dtype.
        """
        self._check_items(items, mask)
        return embed_items(self.embedder, items, mask, self.config.d_model, self._dtype())

    def encode(self, embedded: Tensor, t: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """Encoder output `memory` (B, N, D), 0 at padded slots. embedded: (B, N, D), slot by slot."""
        return self._encode(embedded, self._time(t, embedded), mask)

    def _encode(self, embedded: Tensor, time: Tensor, mask: Tensor | None) -> Tensor:
        positions = sine_cosine(embedded.shape[1], embedded.shape[2], embedded)[self._positions(embedded, mask)]
        x = self._drop(embedded + positions) + time
        attended = _attended(mask)
        for layer in self.encoder_layers:
            x = layer(x, attended)
        return _zero_padding(self.encoder_norm(x), mask)

    def scores(self, embedded: Tensor, t: float | Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, place, slot), those at a place given the order's picks before it: one teacher-forced pass.

        embedded: (B, N, D), slot by slot. order: (B, N) int64 over slots, real ones first (gpl and pl ignore it). Slots
        that are no longer to be had, and padding, are not masked here.
        """
        if self.config.head == "gpl":
            return self._gpl_scores(embedded, t, mask)
        memory = self.encode(embedded, t, mask)
        if self.config.head == "pl":
            return self.head(memory)[..., 0][:, None].expand(-1, embedded.shape[1], -1)  # (B, place, slot)
        B, N, D = embedded.shape
        last_picks = arrange(embedded, order)[:, :-1]
        inputs = torch.cat((self.start.expand(B, 1, D), last_picks), 1)  # (B, place, D)
        x = self._drop(inputs + sine_cosine(N, D, embedded)) + self._time(t, embedded)
        attended = _attended(mask)
        for layer in self.decoder_layers:
            x = layer(x, memory, attended)
        head_keys, head_bias = self.head(memory, self._positions(embedded, mask))
        return self.decoder_norm(x) @ head_keys.transpose(1, 2) + head_bias[:, None]  # (B, place, slot)

    def log_prob(
        self,
        items: Tensor,
        t: float | Tensor,
        order: Tensor,
        mask: Tensor | None = None,
        *,
        constraints: Constraining = None,
        is_embedded: bool = False,
    ) -> LogProb:
        """Log-probability of orders in one teacher-forced pass, differentiable (paper eq. 13 is its negative).

        items: (B, N, ...) slot by slot, or what `embed` made of them if is_embedded. order: (B, N) int64 over slots,
        real ones first. constraints: on slots, `Constraints` for all rows or a list of one per row; each place is then
        renormalised over the slots that they allow, and from the first place that breaks them it is -inf.
        """
        embedded = self._embedded(items, mask, is_embedded)
        _check_order_shape("order", order, embedded)
        if not torch.compiler.is_compiling():
            check_slots(order, mask)
        scores = self.scores(embedded, t, order, mask)
        rules = rules_of(constraints, order.shape[0], order.shape[1], mask, device=order.device)
        if rules is None:
            per_place = stagewise_log_probs(scores, order, mask)
        else:
            every = _every(embedded, mask)
            is_allowed = ops.allowed_picks(order[:, :-1], every, *rules)  # (B, place, slot)
            is_kept = is_allowed.gather(2, order[..., None])
            # A broken or padded place is left open: its softmax is finite, and so is its gradient, which is 0.
            per_place = stagewise_log_probs(scores.masked_fill(~is_allowed & is_kept, -torch.inf), order, mask)
            is_broken = ~is_kept[..., 0] & every.gather(1, order)
            per_place = per_place.masked_fill(is_broken, -torch.inf)
        return LogProb(per_place, per_place.sum(1))

    @torch.no_grad()
    def decode(
        self,
        items: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        *,
        uniform: Tensor | None = None,
        temperature: float = 1.0,
        forced_order: Tensor | None = None,
        forced_places: int | None = None,
        draft: Tensor | None = None,
        constraints: Constraining = None,
        compiled: bool = True,
        cache: bool = True,
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecodedOrder:
        """Choose an order place by place: order (B, N) int64 over slots, real ones first, log_probs (B, N), and work.

        items: (B, N, ...) slot by slot, or what `embed` made of them if is_embedded. uniform: (B, N) in [0, 1), the
        number each place's inverse CDF is read at; None for greedy. temperature: divides the scores. forced_order:
        (B, N) int64, scored instead of choosing, or only its first forced_places. draft: (B, N) int64, a guess of the
        order that saves time where it is right and changes nothing else. constraints: on slots, `Constraints` for all
        rows or a list of one per row; every pick is drawn from what they allow. compiled=False runs plain torch,
        cache=False plain torch without caches. packed_weights: `self.packed_weights()`, to share it between calls. Work
        and more on the arguments: `ops.decode_order`. No gradient is recorded.
        """
        embedded = self._embedded(items, mask, is_embedded)
        B, N, _ = embedded.shape
        if uniform is not None and (uniform.shape != (B, N) or not uniform.is_floating_point()):
            raise ValueError(f"uniform must be {(B, N)} float, got {tuple(uniform.shape)} {uniform.dtype}")
        uniform = None if uniform is None else uniform.to(embedded.dtype)
        for name, order in (("forced_order", forced_order), ("draft", draft)):
            if order is not None:
                _check_order_shape(name, order, embedded)
        ops.check_choices(uniform, forced_order, forced_places, temperature, _every(embedded, mask), embedded.dtype)
        if draft is not None:
            check_slots(draft, mask, "draft")
        rules = rules_of(constraints, B, N, mask, device=embedded.device)
        if rules is not None:
            ops.check_forced(forced_order, forced_places, _every(embedded, mask), *rules)
        return self.decode_embedded(
            embedded, t, mask, uniform=uniform, temperature=temperature, forced_order=forced_order,
            forced_places=forced_places, draft=draft, rules=rules, compiled=compiled, cache=cache,
            packed_weights=packed_weights,
        )  # fmt: skip

    @torch.no_grad()
    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        *,
        uniform: Tensor | None = None,
        temperature: float = 1.0,
        forced_order: Tensor | None = None,
        forced_places: int | None = None,
        draft: Tensor | None = None,
        rules: Rules | None = None,
        order: Tensor | None = None,
        compiled: bool = True,
        cache: bool = True,
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecodedOrder:
        """`decode` for embedded items (B, N, D) with padding zeroed, without a look at the data: for use in a loop.

        rules: what `constraints.rules_of` made of the constraints, over slots. order: (B, N) int64, the items of the
        slots, if embedded is item by item; all else is over slots.
        """
        B, N, D = embedded.shape
        rules = Rules(None, None, None) if rules is None else rules
        if compiled and cache and self.config.head in DECODER_HEADS:
            weights = self.packed_weights() if packed_weights is None else packed_weights
            head, head_bias = weights.head, None
            if head is None:
                head, head_bias = self.head(embedded, self._positions(embedded, mask))
            is_packed = weights.packed_decoder.numel() > 0  # then the lists need not be handed over
            predicted = torch.ops.softrank_ext.predict_order(
                [] if is_packed else weights.encoder, weights.packed_encoder, [] if is_packed else weights.decoder,
                weights.packed_decoder, self.config.heads, self.config.norm_first, embedded, order,
                self._time(t, embedded, weights.time_vectors), self.start, sine_cosine(N, D, embedded), head, head_bias,
                weights.packed_head, _every(embedded, mask), uniform, forced_order, temperature, forced_places, draft,
                *rules,
            )  # fmt: skip
            return ops.DecodedOrder(*predicted)
        if order is not None:
            embedded = arrange(embedded, order)
        if self.config.head not in DECODER_HEADS:
            slots = torch.arange(N, device=embedded.device).expand(B, N)
            scores = self.scores(embedded, t, slots, mask)
            choose = torch.ops.softrank_ext.decode_scores if compiled else reference.decode_scores
            order, log_probs = choose(
                scores, _every(embedded, mask), uniform, forced_order, temperature, forced_places, *rules
            )
            one_pass = torch.tensor([1, N], device=embedded.device).expand(B, 2)
            return ops.DecodedOrder(order, log_probs, one_pass)

        inputs = self.decoder_inputs(embedded, t, mask, compiled=False, is_embedded=True, packed_weights=packed_weights)
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = reference.decode_order
        if not cache:
            run = reference.decode_order_uncached
        decoder, packed, *tensors = inputs
        decoded = run(
            decoder, packed, self.config.heads, self.config.norm_first, *tensors, uniform, forced_order, temperature,
            forced_places, draft, *rules,
        )  # fmt: skip
        return ops.DecodedOrder(*decoded)

    @torch.no_grad()
    def decoder_inputs(
        self,
        items: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        *,
        compiled: bool = True,
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> DecoderInputs:
        """Encode the items and make all that the decoder works from, without gradients; arguments as in `decode`."""
        if self.config.head not in DECODER_HEADS:
            raise ValueError(f"a {self.config.head} head has no decoder: use {' or '.join(DECODER_HEADS)}")
        embedded = self._embedded(items, mask, is_embedded)
        B, N, D = embedded.shape
        weights = self.packed_weights() if packed_weights is None else packed_weights
        time = self._time(t, embedded, weights.time_vectors)  # (B or 1, 1, D)
        every = _every(embedded, mask)
        places, tokens = sine_cosine(N, D, embedded), embedded + time
        if compiled:
            x = tokens + (places if mask is None else places[self._positions(embedded, mask)])
            memory = torch.ops.softrank_ext.encode(
                weights.encoder, weights.packed_encoder, self.config.heads, self.config.norm_first, x, every
            )
        else:
            memory = self._encode(embedded, time, mask)
        if compiled and weights.head is not None:
            projected = torch.ops.softrank_ext.project(memory, weights.head, weights.packed_head)
            head_keys, head_bias = projected[..., :D], projected[..., D]
        else:
            head_keys, head_bias = self.head(memory, self._positions(embedded, mask))
        start = (self.start + time[:, 0]).expand(B, D)
        decoder = [weight.detach() for weight in weights.decoder]
        return DecoderInputs(
            decoder, weights.packed_decoder, memory, tokens, start, places, head_keys, head_bias, every
        )

    @torch.no_grad()
    def packed_weights(self) -> PackedWeights:
        """The weights of encoder and decoder, packed for the kernels as they are now; empty without a decoder.

        On CPUs the packing is kept for the next call, which takes it if a checksum says that no weight has changed:
        versions of tensors would not tell of changes through `.data` or numpy.
        """
        if self.config.head not in DECODER_HEADS:
            return PackedWeights([], torch.empty(0), [], torch.empty(0), None, None, {})
        encoder, decoder, rest = (
            [parameter for module in modules for parameter in _parameters_of(module)]
            for modules in (
                (self.encoder_layers, self.encoder_norm), (self.decoder_layers, self.decoder_norm),
                (self.time_embedder, self.head),
            )
        )  # fmt: skip
        is_kept = encoder[0].is_cpu and not torch.compiler.is_compiling()
        checksum = ops.checksum(encoder + decoder + rest) if is_kept and self in _packings else None
        if checksum is not None and checksum == _packings[self][0]:
            return _packings[self][1]._replace(encoder=encoder, decoder=decoder)
        with torch.inference_mode(False):  # what is kept must serve in any mode
            head = self.head.projection() if isinstance(self.head, PointerHead) else None
            packed_head = None if head is None else ops.pack_projection(head)
            packed = PackedWeights(
                encoder, ops.pack_encoder(encoder), decoder, ops.pack_decoder(decoder), head, packed_head, {}
            )
        if is_kept and packed.packed_decoder.numel() > 0:
            checksum = ops.checksum(encoder + decoder + rest) if checksum is None else checksum
            _packings[self] = checksum, packed._replace(encoder=[], decoder=[])
        return packed

    def distribution(self, items: Tensor, t: float | Tensor, mask: Tensor | None = None) -> "ModelDistribution":
        """The law of orders at diffusion time t, with the face of torch.distributions; arguments as in `log_prob`.

        Items are embedded here, once; the rest of the network runs when the law is asked, in the mode that it is in
        then (draws never drop out).
        """
        return ModelDistribution(self, self.embed(items, mask), t, mask)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors into the folder: `checkpoint.save_pretrained`."""
        from softrank_ext import checkpoint

        checkpoint.save_pretrained(self, folder)

    @staticmethod
    def from_pretrained(name_or_folder: str | Path, *, embedder: nn.Module | None = None) -> "SoftRankModel":
        """Read a saved or bundled model, in eval mode: `checkpoint.from_pretrained`."""
        from softrank_ext import checkpoint

        model = checkpoint.from_pretrained(name_or_folder, embedder=embedder)
        if not isinstance(model, SoftRankModel):
            raise ValueError(f"{name_or_folder} holds a {model.model_type} model: use checkpoint.from_pretrained")
        return model

    def _gpl_scores(self, embedded: Tensor, t: float | Tensor, mask: Tensor | None) -> Tensor:
        """All stagewise scores in one pass, as SymmetricDiffusers does: N zero tokens, one per place, follow the items.

        Items attend to items; the token of a place attends to items and to tokens of earlier places. A score is the
        inner product of a place's output and a slot's. (The published code lets the tokens stand for slots and the
        items' outputs for places; a network that is learned can have it either way.)
        """
        _, N, D = embedded.shape
        positions = self._positions(embedded, mask)  # (B or 1, N)
        places = torch.arange(N, device=embedded.device)
        first_place = N if mask is None else mask.sum(1, keepdim=True)
        positions = torch.cat((positions, (first_place + places).expand(positions.shape[0], N)), 1)  # (B or 1, 2N)
        tokens = torch.cat((embedded, torch.zeros_like(embedded)), 1)  # (B, 2N, D)
        x = self._drop(tokens + sine_cosine(2 * N, D, embedded)[positions]) + self._time(t, embedded)
        items_attended = _attended(mask)
        if items_attended is None:
            items_attended = torch.ones(1, 1, 1, N, dtype=torch.bool, device=embedded.device)
        items_attended = items_attended.expand(-1, 1, 2 * N, N)
        earlier = torch.cat((torch.zeros_like(places[:, None] > places), places[:, None] > places))  # (2N, N)
        attended = torch.cat((items_attended, earlier.expand(items_attended.shape)), 3)  # (B or 1, 1, 2N, 2N)
        for layer in self.encoder_layers:
            x = layer(x, attended)
        slots, stages = self.encoder_norm(x).chunk(2, 1)
        return stages @ slots.transpose(1, 2)  # (B, place, slot)

    def _embedded(self, items: Tensor, mask: Tensor | None, is_embedded: bool) -> Tensor:
        if not is_embedded:
            return self.embed(items, mask)
        self._check_items(items, mask, is_embedded=True)
        return _zero_padding(items, mask)

    def _check_items(self, items: Tensor, mask: Tensor | None, is_embedded: bool = False) -> None:
        item_ndim = 1 if is_embedded else getattr(self.embedder, "item_ndim", None)
        wanted = f"items must be (B, N, {self.config.d_model})" if is_embedded else "items must be (B, N, ...)"
        if not isinstance(items, Tensor):
            raise TypeError(f"{wanted}, a tensor, got {type(items).__name__}")
        is_wrong = items.ndim < 2 if item_ndim is None else items.ndim != 2 + item_ndim
        if is_wrong or (is_embedded and items.shape[2] != self.config.d_model):
            of_item = "" if item_ndim is None else f" with {item_ndim} dimensions per item"
            raise ValueError(f"{wanted}{of_item}, got {tuple(items.shape)}")
        if self.config.max_items is not None and items.shape[1] > self.config.max_items:
            raise ValueError(
                f"this linear head takes up to {self.config.max_items} items, got {items.shape[1]}; "
                "a pointer head takes any number"
            )
        if mask is not None and (
            not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != items.shape[:2]
        ):
            got = f"{tuple(mask.shape)} {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"mask must be a bool tensor {tuple(items.shape[:2])}, True = real item, got {got}")

    def _dtype(self) -> torch.dtype:
        return next(self.time_embedder.parameters()).dtype

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def _time(self, t: float | Tensor, like: Tensor, kept: dict[float, Tensor] | None = None) -> Tensor:
        """Time vector (B or 1, 1, D); those of numbers are taken from `kept` and put there."""
        last = self.config.visited[-1] if self.config.visited else self.config.steps
        scale = last if self.config.time == "grid" else 1000
        if isinstance(t, (int, float)):
            if not 0 <= t <= 1:
                raise ValueError(f"t must be in [0, 1], got {t}")
            index = t * scale
            vector = kept.get(index) if kept is not None else None
            if vector is None:
                vector = self.time_embedder(index)[:, None]
                if kept is not None and not vector.is_inference() and len(kept) < _MOST_TIME_VECTORS:
                    kept[index] = vector
            return vector
        time = torch.as_tensor(t, dtype=like.dtype, device=like.device).reshape(-1)
        if time.shape[0] not in (1, like.shape[0]):
            raise ValueError(f"t must be a number or ({like.shape[0]},), got {time.shape[0]} numbers")
        if not torch.compiler.is_compiling() and not bool(((time >= 0) & (time <= 1)).all()):
            raise ValueError(f"t must be in [0, 1], got {t}")
        return self.time_embedder(time * scale)[:, None]

    def _positions(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """Position of each slot among its row's real slots, (B, N), or (1, N) without a mask."""
        if mask is None:
            return torch.arange(embedded.shape[1], device=embedded.device)[None]
        return (mask.cumsum(1) - 1).clamp(min=0)


class ModelDistribution(OrderDistribution):
    """The law of orders over slots that a model predicts at one diffusion time; see `SoftRankModel.distribution`.

    batch_shape is (B,). Values, masks and `log_prob_top` are as in `distributions`; log_prob has gradients. Entropy and
    mode are not known in closed form: both raise NotImplementedError.
    """

    arg_constraints = {  # noqa: RUF012
        "embedded": constraints.independent(constraints.real, 2),
        "t": constraints.unit_interval,
    }

    def __init__(
        self,
        model: SoftRankModel,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        B, N, _ = embedded.shape
        self.model = model
        self.embedded = embedded
        self.t = torch.as_tensor(t, dtype=embedded.dtype, device=embedded.device).expand(B)
        super().__init__(torch.Size((B,)), mask, N, embedded.device, validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "ModelDistribution":
        new = super().expand(batch_shape, _instance)
        new.model = self.model
        return new

    def entropy(self) -> Tensor:
        raise NotImplementedError("the entropy of a model's law has no closed form: average -log_prob over its samples")

    @torch.no_grad()
    def from_uniform(self, uniform: Tensor) -> Tensor:
        uniform = self._checked_uniform(uniform)
        # Cut off, as `noise` does, not rounded: a uniform number must stay below 1.
        digits = 2.0 ** (24 if self.embedded.dtype == torch.float32 else 53)
        numbers = ((uniform * digits).floor() / digits).to(self.embedded.dtype)
        rows = zip(*(part.split(_ROWS_AT_ONCE) for part in self._rows_of(numbers)), strict=True)
        packed_weights = self.model.packed_weights()
        orders = [
            self.model.decode_embedded(embedded, t, mask, uniform=numbers, packed_weights=packed_weights).order
            for embedded, t, mask, numbers in rows
        ]
        return torch.cat(orders).reshape(uniform.shape)

    def _log_probs(self, order: Tensor) -> Tensor:
        embedded, t, mask, rows = self._rows_of(order)
        return self.model.log_prob(embedded, t, rows, mask, is_embedded=True).per_place.reshape(order.shape)

    def _rows_of(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embedded items, times, masks and values, all row by row; values: (..., *batch_shape, N)."""
        N, D = self.embedded.shape[-2:]
        return (
            self.embedded.expand(*values.shape, D).reshape(-1, N, D),
            self.t.expand(values.shape[:-1]).reshape(-1),
            self.mask.expand(values.shape).reshape(-1, N),
            values.reshape(-1, N),
        )


class OnePassModel(nn.Module, ABC):
    """What `sample`, `train`, `evaluate` and `checkpoint` ask of a model that is no diffusion.

    A class of its own sets model_type, its name in config.json and in `checkpoint.MODEL_TYPES`, and config_type, a
    dataclass that JSON can hold and whose field `embedder` is as in `SoftRankConfig`. Made by
    `type(model)(config, embedder)`, it has the attributes config and embedder.
    """

    model_type: str
    config_type: type
    config: Any
    embedder: nn.Module

    @abstractmethod
    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is computed once for all samples of an instance: (B, N, ...) from items (B, N, ...)."""

    @abstractmethod
    def choose(
        self, embedded: Tensor, mask: Tensor | None, first: Tensor | None, uniform: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Orders (B, N) int64, real items first, and their log-probabilities (B,), NaN if the model has none.

        embedded: of `embed`. mask: (B, N) bool, True = real item. first: (B,) int64, the items that stand first by
        decree. uniform: (B, N) in [0, 1), what the draws at each place are read off; None for the best order. Raises
        ValueError, saying so, where the model cannot.
        """

    @abstractmethod
    def loss_module(self) -> nn.Module:
        """A module with the model in it and a forward as that of `losses.DenoisingLoss`."""

    @abstractmethod
    def bytes_per_sample(self, N: int) -> int:
        """An estimate of the memory that `choose` takes for one instance of N items."""


def _parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """`module.parameters()` without its names and its search for shared ones, which take longer than packing."""
    for parameter in module._parameters.values():
        if parameter is not None:
            yield parameter
    for child in module._modules.values():
        if child is not None:
            yield from _parameters_of(child)


def _every(embedded: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or one that calls every slot real."""
    return torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device) if mask is None else mask


def _zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.masked_fill(~mask[..., None], 0.0)


def _attended(mask: Tensor | None) -> Tensor | None:
    """Slots that are attended to, bool (B, 1, 1, N)."""
    # A row of padding alone attends to its zeros: a softmax over nothing would be NaN.
    return None if mask is None else (mask | ~mask.any(1, keepdim=True))[:, None, None]


def _check_order_shape(name: str, order: Tensor, embedded: Tensor) -> None:
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.shape != embedded.shape[:2]:
        got = f"{tuple(order.shape)} {order.dtype}" if isinstance(order, Tensor) else type(order).__name__
        raise ValueError(f"{name} must be {tuple(embedded.shape[:2])} int64, an order over slots, got {got}")
