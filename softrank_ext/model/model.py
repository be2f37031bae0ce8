"""The network that predicts a clean order from a shuffled instance: paper section 3.3.

An instance is seen slot by slot: `items` (B, N, ...) stand in the order of the noisy soft ranks, and orders here are
over those slots, `order[place] = slot`. `mask` (B, N) is True for real slots; padding may stand anywhere and hold
anything.
An order's probability is stagewise (paper eq. 7): at each place a softmax of scores over the slots that remain.
Four heads give the scores. `pointer` and `linear` (cGPL, eqs. 9 and 12) read them off a causal decoder, so that they
depend on the picks so far. `gpl` and `pl` use the encoder alone: scores per place and slot (eq. 8), or per slot only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.choices import Draw, Engine, Greedy
from softrank_ext.constraints import Constraining, rules_of
from softrank_ext.laws import stagewise_log_probs
from softrank_ext.model.config import DECODER_HEADS, SoftRankConfig
from softrank_ext.model.distribution import ModelDistribution
from softrank_ext.model.embedders import embed_items, embedder_of
from softrank_ext.model.heads import LinearHead, PointerHead
from softrank_ext.model.layers import (
    DecoderLayer,
    EncoderLayer,
    TimeEmbedder,
    attended_slots,
    sine_cosine,
    zero_padding,
)
from softrank_ext.model.packing import PACKINGS, DecoderInputs, PackedWeights, parameters_of
from softrank_ext.model.protocol import OrderModel
from softrank_ext.ops import reference
from softrank_ext.permutations import arrange, check_slots
from softrank_ext.processes import Process

_MOST_TIME_VECTORS = 256  # that are kept


class LogProb(NamedTuple):
    """Log-probabilities of orders: `per_place` (B, N), 0 at padded places, and their sum `total` (B,)."""

    per_place: Tensor
    total: Tensor


class SoftRankModel(OrderModel):
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

    @property
    def process(self) -> Process:
        """The noise process that the model was trained for."""
        return self.config.process

    @property
    def fixed_start(self) -> bool:
        """Whether the model was trained with the first item held at soft rank 0: a pin at place 0 is that item."""
        return self.config.data.fixed_start

    @property
    def decodes_by_pick(self) -> bool:
        """Whether a decoder runs pick by pick, so that drafts save time."""
        return self.config.head in DECODER_HEADS

    def own_loss(self) -> None:
        """None: the model is trained by `training.objectives`."""

    def bytes_per_sample(self, N: int) -> int:
        """An estimate of what one sample takes: per decoder layer four caches, and the activations of one layer.

        Activations are about 12 D + 2 F per token. gpl runs on 2N tokens and holds a mask and scores over their pairs.
        """
        config, element_size = self.config, next(self.parameters()).element_size()
        tokens = 2 * N if config.head == "gpl" else N
        per_token = (4 * config.decoder_layers + 12) * config.d_model + 2 * config.feed_forward
        return element_size * tokens * (per_token + (tokens if config.head == "gpl" else 0))

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
        attended = attended_slots(mask)
        for layer in self.encoder_layers:
            x = layer(x, attended)
        return zero_padding(self.encoder_norm(x), mask)

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
        attended = attended_slots(mask)
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
        decode: Draw | Greedy | None = None,
        forced_order: Tensor | None = None,
        forced_places: int | None = None,
        draft: Tensor | None = None,
        constraints: Constraining = None,
        engine: Engine = Engine(),
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecodedOrder:
        embedded = self._embedded(items, mask, is_embedded)
        B, N, _ = embedded.shape
        if uniform is not None and (uniform.shape != (B, N) or not uniform.is_floating_point()):
            raise ValueError(f"uniform must be {(B, N)} float, got {tuple(uniform.shape)} {uniform.dtype}")
        uniform = None if uniform is None else uniform.to(embedded.dtype)
        temperature = decode.temperature if isinstance(decode, Draw) else 1.0
        for name, order in (("forced_order", forced_order), ("draft", draft)):
            if order is not None:
                _check_order_shape(name, order, embedded)
        ops.check_choices(uniform, forced_order, forced_places, temperature, _every(embedded, mask), embedded.dtype)
        if draft is not None:
            check_slots(draft, mask, "draft")
        rules = rules_of(constraints, B, N, mask, device=embedded.device)
        if rules is not None:
            ops.check_forced(forced_order, forced_places, _every(embedded, mask), *rules)
        choices = ops.Choices(uniform, forced_order, temperature, forced_places, draft, *(rules or ()))
        return self.decode_embedded(embedded, t, mask, choices, engine=engine, packed_weights=packed_weights)

    @torch.no_grad()
    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        choices: ops.Choices = ops.Choices(),
        *,
        order: Tensor | None = None,
        engine: Engine = Engine(),
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecodedOrder:
        compiled, cache = engine.compiled, engine.cache
        uniform, forced_order, temperature, forced_places, draft, *rules = choices
        B, N, D = embedded.shape
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
            [parameter for module in modules for parameter in parameters_of(module)]
            for modules in (
                (self.encoder_layers, self.encoder_norm), (self.decoder_layers, self.decoder_norm),
                (self.time_embedder, self.head),
            )
        )  # fmt: skip
        is_kept = encoder[0].is_cpu and not torch.compiler.is_compiling()
        checksum = ops.checksum(encoder + decoder + rest) if is_kept and self in PACKINGS else None
        if checksum is not None and checksum == PACKINGS[self][0]:
            return PACKINGS[self][1]._replace(encoder=encoder, decoder=decoder)
        with torch.inference_mode(False):  # what is kept must serve in any mode
            head = self.head.projection() if isinstance(self.head, PointerHead) else None
            packed_head = None if head is None else ops.pack_projection(head)
            packed = PackedWeights(
                encoder, ops.pack_encoder(encoder), decoder, ops.pack_decoder(decoder), head, packed_head, {}
            )
        if is_kept and packed.packed_decoder.numel() > 0:
            checksum = ops.checksum(encoder + decoder + rest) if checksum is None else checksum
            PACKINGS[self] = checksum, packed._replace(encoder=[], decoder=[])
        return packed

    def distribution(self, items: Tensor, t: float | Tensor, mask: Tensor | None = None) -> "ModelDistribution":
        """The law of orders at diffusion time t, with the torch.distributions interface; arguments as in `log_prob`.

        Items are embedded here, once; the rest of the network runs when the law is asked, in the mode that it is in
        then (draws never drop out).
        """
        return ModelDistribution(self, self.embed(items, mask), t, mask)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors into the folder: `model_folder.save_pretrained`."""
        from softrank_ext import model_folder

        model_folder.save_pretrained(self, folder)

    @staticmethod
    def from_pretrained(name_or_folder: str | Path, *, embedder: nn.Module | None = None) -> "SoftRankModel":
        """Read a saved or bundled model, in eval mode: `softrank_ext.from_pretrained`."""
        from softrank_ext.pretrained import from_pretrained

        model = from_pretrained(name_or_folder, embedder=embedder)
        if not isinstance(model, SoftRankModel):
            raise ValueError(f"{name_or_folder} holds a {model.model_type} model: use softrank_ext.from_pretrained")
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
        items_attended = attended_slots(mask)
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
        return zero_padding(items, mask)

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
        scale = self.config.time_scale
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


def _every(embedded: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or one that calls every slot real."""
    return torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device) if mask is None else mask


def _check_order_shape(name: str, order: Tensor, embedded: Tensor) -> None:
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.shape != embedded.shape[:2]:
        got = f"{tuple(order.shape)} {order.dtype}" if isinstance(order, Tensor) else type(order).__name__
        raise ValueError(f"{name} must be {tuple(embedded.shape[:2])} int64, an order over slots, got {got}")
