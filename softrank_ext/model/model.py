"""The network that predicts a clean order from a shuffled instance: paper section 3.3.

An instance is seen slot by slot: `items` (B, N, ...) stand in the order of the noisy soft ranks, and orders here are
over those slots, `order[place] = slot`. `mask` (B, N) is True for real slots; padding may stand anywhere and hold
anything.
An order's probability is stagewise (paper eq. 7): at each place a softmax of scores over the slots that remain.
Four heads give the scores. `pointer` and `linear` (cGPL, eqs. 9 and 12) read them off a causal decoder, so that they
depend on the picks so far. `gpl` and `pl` use the encoder alone: scores per place and slot (eq. 8), or per slot only.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.checks import check_tensor, described
from softrank_ext.choices import Decode, Engine
from softrank_ext.constraints import Constraining, rules_of
from softrank_ext.laws import stagewise_log_probs
from softrank_ext.model import inference, packing
from softrank_ext.model.config import DECODER_HEADS, SoftRankConfig
from softrank_ext.model.distribution import ModelDistribution
from softrank_ext.model.embedders import embed_items, embedder_of
from softrank_ext.model.heads import LinearHead, PointerHead
from softrank_ext.model.initialisation import initialize_quickly
from softrank_ext.model.layers import (
    DecoderLayer,
    EncoderLayer,
    SoftRankEmbedder,
    TimeEmbedder,
    attended_slots,
    sine_cosine,
    zero_padding,
)
from softrank_ext.model.packing import PackedWeights
from softrank_ext.model.protocol import OrderModel
from softrank_ext.permutations import check_slots
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
        self.config: SoftRankConfig = config
        D = config.d_model
        sizes = (D, config.feed_forward, config.heads, config.dropout, config.norm_first)
        self.embedder = embedder_of(config, embedder)
        self.time_embedder = TimeEmbedder(D)
        if config.partial:
            self.kept_mark = nn.Parameter(torch.randn(D) * 0.02)
            self.draft_mark = nn.Parameter(torch.zeros(D))
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
        if config.init == "quick":
            initialize_quickly(self)
        if config.reads == "soft-ranks":
            self.soft_rank_embedder = SoftRankEmbedder(D)

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

    @property
    def takes_parts(self) -> bool:
        """Whether the model was trained with a part of an order noised and the rest kept."""
        return self.config.partial

    def marked(self, embedded: Tensor, kept: Tensor, is_draft: Tensor | None = None) -> Tensor:
        """Embedded items (B, N, D) with those that are kept, (B, N) bool, marked for the network.

        is_draft: (B,) bool, True where what is kept comes from a draft, False where it is known to be right; None for
        drafts in all rows.
        """
        if not self.config.partial:
            return super().marked(embedded, kept)
        drafts = kept if is_draft is None else kept & is_draft[:, None]
        return embedded + kept[..., None] * self.kept_mark + drafts[..., None] * self.draft_mark

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

    def at_soft_ranks(self, embedded: Tensor, z_t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embedded items (B, N, D) with what the model reads of their soft ranks z_t (B, N) added; padding stays as is.

        z_t: as the process carries it, by slot or item as embedded is. A model that reads orders gives embedded back.
        """
        if self.config.reads == "order":
            return embedded
        return embedded + zero_padding(self.soft_rank_embedder(z_t), mask)

    def check_reads_order(self) -> None:
        """Raise ValueError if the model reads soft ranks: items alone do not tell what it predicts."""
        if self.config.reads != "order":
            raise ValueError(
                "items must be embedded and given their soft ranks for a model that reads them, "
                "at_soft_ranks(embed(items), z_t) with is_embedded=True, got items alone"
            )

    def encode(self, embedded: Tensor, t: float | Tensor, mask: Tensor | None = None) -> Tensor:
        """Encoder output `memory` (B, N, D), 0 at padded slots. embedded: (B, N, D), slot by slot."""
        positions = sine_cosine(embedded.shape[1], embedded.shape[2], embedded)[self._positions(embedded, mask)]
        x = self._drop(embedded + positions) + self._time(t, embedded)
        attended = attended_slots(mask)
        for layer in self.encoder_layers:
            x = layer(x, attended)
        return zero_padding(self.encoder_norm(x), mask)

    def scores(self, embedded: Tensor, t: float | Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, place, slot), those at a place given the order's picks before it: one teacher-forced pass.

        embedded: (B, N, D), slot by slot. order: (B, N) int64 over slots, real ones first (gpl and pl ignore it). Slots
        that are already picked, and padding, are not masked here.
        """
        if self.config.head == "gpl":
            return self._gpl_scores(embedded, t, mask)
        memory = self.encode(embedded, t, mask)
        if self.config.head == "pl":
            scores: Tensor = self.head(memory)[..., 0][:, None].expand(-1, embedded.shape[1], -1)  # (B, place, slot)
            return scores
        return self.decoder_scores(embedded, t, memory, order[:, :-1], mask)

    def decoder_scores(
        self, embedded: Tensor, t: float | Tensor, memory: Tensor, picks: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Scores (B, P + 1, slot) of the places up to the one that follows the picks (B, P) int64, by the decoder.

        memory: of `encode`; all else as in `scores`.
        """
        (B, N, D), P = embedded.shape, picks.shape[1]
        last_picks = embedded.gather(1, picks[..., None].expand(B, P, D))
        inputs = torch.cat((self.start.expand(B, 1, D), last_picks), 1)  # (B, place, D)
        x = self._drop(inputs + sine_cosine(N, D, embedded)[: P + 1]) + self._time(t, embedded)
        attended = attended_slots(mask)
        for layer in self.decoder_layers:
            x = layer(x, memory, attended)
        head_keys, head_bias = self.head(memory, self._positions(embedded, mask))
        scores: Tensor = self.decoder_norm(x) @ head_keys.transpose(1, 2) + head_bias[:, None]  # (B, place, slot)
        return scores

    def forward(self, items: Tensor, t: float | Tensor, order: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability (B,) of orders, `log_prob(...).total`: what wrappers of modules call, as DDP and FSDP."""
        return self.log_prob(items, t, order, mask).total

    def log_prob(
        self,
        items: Tensor,
        t: float | Tensor,
        order: Tensor,
        mask: Tensor | None = None,
        *,
        constraints: Constraining = None,
        kept: Tensor | None = None,
        is_embedded: bool = False,
    ) -> LogProb:
        """Log-probability of orders in one teacher-forced pass, differentiable (paper eq. 13 is its negative).

        items: (B, N, ...) slot by slot, or what `embed` made of them if is_embedded. order: (B, N) int64 over slots,
        real ones first. constraints: on slots, `Constraints` for all rows or a list of one per row; each place is then
        renormalised over the slots that they allow, and from the first place that breaks them it is -inf. kept: (B, N)
        bool, slots whose item stays at the place of the slot's number: other places choose among the other slots.
        """
        embedded = self._embedded(items, mask, is_embedded)
        _check_order_shape("order", order, embedded)
        if not torch.compiler.is_compiling():
            check_slots(order, mask)
        scores = self.scores(embedded, t, order, mask)
        if scores.dtype in (torch.float16, torch.bfloat16):
            scores = scores.float()  # a softmax over all slots follows
        if kept is not None:
            scores = scores.masked_fill(kept[:, None] & ~kept[:, :, None], -torch.inf)
        rules = rules_of(constraints, order.shape[0], order.shape[1], mask, device=order.device)
        if rules is None:
            per_place = stagewise_log_probs(scores, order, mask)
        else:
            every = inference.every_slot(embedded, mask)
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
        decode: str | Decode | None = None,
        forced_order: Tensor | None = None,
        forced_places: int | None = None,
        draft: Tensor | None = None,
        constraints: Constraining = None,
        engine: Engine = Engine(),
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecodedOrder:
        """Choose an order place by place: order (B, N) int64 over slots, real ones first, log_probs (B, N), and work.

        items: (B, N, ...) slot by slot, or what `embed` made of them if is_embedded. uniform: (B, N) in [0, 1), the
        number each place's inverse CDF is read at. decode: `Draw(temperature)`, which divides the scores of forced
        orders too, or `Greedy()`; by default Draw() with uniform and Greedy() without. forced_order: (B, N) int64,
        scored instead of choosing, or only its first forced_places. draft: (B, N) int64, a guess of the order that
        saves time where it is right and changes nothing else. constraints: on slots, `Constraints` for all rows or a
        list of one per row; every pick is drawn from what they allow. packed_weights: `self.packed_weights()`, to share
        it between calls. Work and more on the arguments: `ops.Choices`, `ops.DecodedOrder`. No gradient is recorded.
        """
        embedded = self._embedded(items, mask, is_embedded)
        choices = inference.checked_choices(
            embedded, mask, uniform=uniform, decode=decode, forced_order=forced_order, forced_places=forced_places,
            draft=draft, constraints=constraints,
        )  # fmt: skip
        decoded = self.decode_embedded(embedded, t, mask, choices, engine=engine, packed_weights=packed_weights)
        ops.check_picks(decoded.log_probs)
        return decoded

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
        """`decode` for embedded items (B, N, D) with padding zeroed, without a look at the data: for use in a loop.

        choices: over slots; the rules are what `constraints.rules_of` made of constraints. order: (B, N) int64, the
        items of the slots, if embedded is item by item; all else is over slots.
        """
        return inference.decode_embedded(self, embedded, t, mask, choices, order, engine, packed_weights)

    def decoder_inputs(
        self,
        items: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        *,
        engine: Engine = Engine(),
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> ops.DecoderInputs:
        """Encode the items and make all that the decoder works from, without gradients; arguments as in `decode`."""
        embedded = self._embedded(items, mask, is_embedded)
        return inference.decoder_inputs(self, embedded, t, mask, engine, packed_weights)

    def packed_weights(self) -> PackedWeights:
        """The weights packed for the kernels as they are now, to be shared between calls: `packing.packed_weights`."""
        return packing.packed_weights(self)

    def distribution(self, items: Tensor, t: float | Tensor, mask: Tensor | None = None) -> "ModelDistribution":
        """The law of orders at diffusion time t, with the torch.distributions interface; arguments as in `log_prob`.

        Items are embedded here, once; the rest of the network runs when the law is asked, in the mode that it is in
        then (draws never drop out).
        """
        self.check_reads_order()
        return ModelDistribution(self, self.embed(items, mask), t, mask)

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
        scores: Tensor = stages @ slots.transpose(1, 2)  # (B, place, slot)
        return scores

    def _embedded(self, items: Tensor, mask: Tensor | None, is_embedded: bool) -> Tensor:
        if not is_embedded:
            self.check_reads_order()
            return self.embed(items, mask)
        self._check_items(items, mask, is_embedded=True)
        return zero_padding(items, mask)

    def _check_items(self, items: Tensor, mask: Tensor | None, is_embedded: bool = False) -> None:
        item_ndim = 1 if is_embedded else getattr(self.embedder, "item_ndim", None)
        wanted = f"items must be (B, N, {self.config.d_model})" if is_embedded else "items must be (B, N, ...)"
        if not isinstance(items, Tensor) or items.layout != torch.strided:
            kind = ValueError if isinstance(items, Tensor) else TypeError
            raise kind(f"{wanted}, a dense tensor, got {described(items)}")
        is_wrong = items.ndim < 2 if item_ndim is None else items.ndim != 2 + item_ndim
        if is_wrong or (is_embedded and items.shape[2] != self.config.d_model):
            of_item = "" if item_ndim is None else f" with {item_ndim} dimensions per item"
            raise ValueError(f"{wanted}{of_item}, got {tuple(items.shape)}")
        if items.shape[1] == 0:
            raise ValueError(f"{wanted} with N at least 1, got {tuple(items.shape)}")
        if self.config.max_items is not None and items.shape[1] > self.config.max_items:
            raise ValueError(
                f"this linear head takes up to {self.config.max_items} items, got {items.shape[1]}; "
                "a pointer head takes any number"
            )
        if mask is not None:
            check_tensor("mask", mask, tuple(items.shape[:2]), torch.bool, "; True = real item")

    def _dtype(self) -> torch.dtype:
        return next(self.time_embedder.parameters()).dtype

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def _time(self, t: float | Tensor, like: Tensor, packed: PackedWeights | None = None) -> Tensor:
        """Time vector (B or 1, 1, D), of packed weights if there are any, which keep those of numbers."""
        scale = self.config.time_scale
        embedder = self.time_embedder if packed is None else packed.time_embedder
        kept = None if packed is None or torch.compiler.is_compiling() else packed.time_vectors
        if isinstance(t, (int, float)):
            if not 0 <= t <= 1:
                raise ValueError(f"t must be in [0, 1], got {t}")
            index = t * scale
            vector = kept.get(index) if kept is not None else None
            if vector is None:
                vector = embedder(index)[:, None]
                if kept is not None and not vector.is_inference() and len(kept) < _MOST_TIME_VECTORS:
                    kept[index] = vector
            return vector
        time = torch.as_tensor(t, dtype=like.dtype, device=like.device).reshape(-1)
        if time.shape[0] not in (1, like.shape[0]):
            raise ValueError(f"t must be a number or ({like.shape[0]},), got {time.shape[0]} numbers")
        if not torch.compiler.is_compiling() and not bool(((time >= 0) & (time <= 1)).all()):
            raise ValueError(f"t must be in [0, 1], got {t}")
        vectors: Tensor = embedder(time * scale)[:, None]
        return vectors

    def _positions(self, embedded: Tensor, mask: Tensor | None) -> Tensor:
        """Position of each slot among its row's real slots, (B, N), or (1, N) without a mask."""
        if mask is None:
            return torch.arange(embedded.shape[1], device=embedded.device)[None]
        return (mask.cumsum(1) - 1).clamp(min=0)


def _check_order_shape(name: str, order: Tensor, embedded: Tensor) -> None:
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.shape != embedded.shape[:2]:
        got = f"{tuple(order.shape)} {order.dtype}" if isinstance(order, Tensor) else type(order).__name__
        raise ValueError(f"{name} must be {tuple(embedded.shape[:2])} int64, an order over slots, got {got}")
