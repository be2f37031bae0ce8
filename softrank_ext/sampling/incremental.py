"""IncrementalDecoder: the cached decoder a pick, or several, at a time, for search, drafts and interactive use.

It runs on the engine of `model.decode`: the same inputs, and the code of `ops.decode_order` (`ops.open_decoder`,
`ops.advance_decoder`). A model that the kernels do not compute is asked by its modules' own forward, without caches.
Orders are over slots.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.choices import Engine
from softrank_ext.model import ModuleScores, PackedWeights, SoftRankModel, goes_by_modules


class IncrementalDecoder:
    """The state of a model's decoder after some picks, which can be extended, cut back and branched.

    items: (B, N, ...) slot by slot, or what `model.embed` made of them if is_embedded. t: a number or (B,). mask:
    (B, N) bool, True = real slot. engine: the compiled kernels, or plain torch if compiled or cache is False; caches
    are kept in any case. packed_weights: `model.packed_weights()`, to share it between decoders.
    `lengths` (B,) counts each row's picks.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: SoftRankModel,
        items: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        *,
        engine: Engine = Engine(),
        is_embedded: bool = False,
        packed_weights: PackedWeights | None = None,
    ) -> None:
        if not isinstance(model, SoftRankModel):
            raise TypeError(f"model must be a SoftRankModel, got {type(model).__name__}")
        weights = model.packed_weights() if packed_weights is None else packed_weights
        if goes_by_modules(model, weights, engine):
            embedded = items if is_embedded else model.embed(items, mask)
            self._network: _Kernels | _Modules = _Modules(ModuleScores(model, embedded, t, mask))
        else:
            inputs = model.decoder_inputs(
                items, t, mask, engine=engine, is_embedded=is_embedded, packed_weights=weights
            )
            self._network = _Kernels(weights.decoder, inputs, engine.uses_kernels)
        B, N = items.shape[:2]
        self._mask = torch.ones(B, N, dtype=torch.bool, device=items.device) if mask is None else mask
        self._counts = self._mask.sum(1)
        self._rows = torch.arange(B, device=items.device)
        self._picks = torch.zeros(B, N, dtype=torch.int64, device=items.device)
        self._place_of_slot = torch.full((B, N), N, device=items.device)  # N: not picked
        self.lengths = torch.zeros(B, dtype=torch.int64, device=items.device)
        self._network.advance(self._picks, self.lengths, 1)

    @property
    def remaining(self) -> Tensor:
        """Slots that may be picked next, (B, N) bool."""
        return self._mask & (self._place_of_slot == self._mask.shape[1])

    @property
    def scores(self) -> Tensor:
        """Scores (B, N) of the slots for the next place; those of slots that do not remain mean nothing."""
        return self._network.scores(self._picks, self.lengths.clamp(max=self._mask.shape[1] - 1))

    def step(self, choice: Tensor) -> Tensor:
        """Pick one slot per row, choice (B,) int64; returns the scores of the next place."""
        return self.prefill(choice[:, None])

    @torch.no_grad()
    def prefill(self, choices: Tensor) -> Tensor:
        """Pick several slots per row, choices (B, P) int64, in one pass; returns the scores of the next place.

        Choices beyond a row's last real slot are ignored. Raises ValueError if a slot does not remain.
        """
        B, N = self._mask.shape
        if choices.ndim != 2 or choices.shape[0] != B or choices.dtype != torch.int64 or choices.shape[1] > N:
            raise ValueError(f"choices must be ({B}, up to {N}) int64, got {tuple(choices.shape)} {choices.dtype}")
        count = choices.shape[1]
        place_of_slot, picks = self._place_of_slot.clone(), self._picks.clone()
        remaining = self.remaining
        for i in range(count):
            place = self.lengths + i
            choice = choices[:, i]
            is_used = place < self._counts
            is_wrong = is_used & ~((choice >= 0) & (choice < N) & remaining[self._rows, choice.clamp(0, N - 1)])
            if bool(is_wrong.any()):
                row = int(is_wrong.nonzero()[0])
                raise ValueError(f"choices must be slots that remain, got {int(choice[row])} in row {row}")
            rows, chosen = self._rows[is_used], choice[is_used]
            remaining[rows, chosen] = False
            place_of_slot[rows, chosen] = place[is_used]
            picks[rows, place[is_used]] = chosen
        self._place_of_slot, self._picks = place_of_slot, picks
        self.lengths = torch.minimum(self.lengths + count, self._counts)
        if count > 0 and N > 1:
            # The pass ends at the place that comes next, or at the last place in rows that are full.
            self._network.advance(self._picks, (self.lengths + 1 - count).clamp(min=0, max=N - count), count)
        return self.scores

    def truncate(self, lengths: int | Tensor) -> Tensor:
        """Go back to the first `lengths` picks, a number or (B,) int64; returns the scores of the next place."""
        N = self._mask.shape[1]
        shorter = torch.as_tensor(lengths, device=self.lengths.device).expand_as(self.lengths)
        is_wrong = (shorter < 0) | (shorter > self.lengths)
        if bool(is_wrong.any()):
            row = int(is_wrong.nonzero()[0])
            raise ValueError(
                f"lengths must be from 0 to the picks made, row {row} has {int(self.lengths[row])}, "
                f"got {int(shorter[row])}"
            )
        self.lengths = shorter.clone()
        self._place_of_slot = self._place_of_slot.masked_fill(self._place_of_slot >= shorter[:, None], N)
        return self.scores

    @torch.no_grad()
    def select(self, rows: Tensor) -> Tensor:
        """Go on with these rows, (R,) int64, and their picks; a row may come several times, to be continued apart.

        Returns the scores of the next place, (R, N): row r stands where row `rows[r]` stood.
        """
        B = self._mask.shape[0]
        if rows.ndim != 1 or rows.dtype != torch.int64:
            raise ValueError(f"rows must be (R,) int64, got {tuple(rows.shape)} {rows.dtype}")
        if bool(((rows < 0) | (rows >= B)).any()):
            raise ValueError(f"rows must be from 0 to {B - 1}, got {int(rows.min())} to {int(rows.max())}")
        self._network.select(rows)
        self._mask = self._mask[rows]
        self._rows = torch.arange(len(rows), device=rows.device)
        self._counts, self._picks, self._place_of_slot, self.lengths = (
            value[rows] for value in (self._counts, self._picks, self._place_of_slot, self.lengths)
        )
        return self.scores


class _Kernels:
    """The decoder's caches and its states, by the ops or their references."""

    def __init__(self, decoder: ops.Transformer, inputs: ops.DecoderInputs, is_compiled: bool) -> None:
        self._decoder, self._inputs = decoder, inputs
        self._run = ops.advance_decoder if is_compiled else ops.advance_decoder_reference
        open_decoder = ops.open_decoder if is_compiled else ops.open_decoder_reference
        self._cache = open_decoder(decoder, inputs.memory, inputs.mask)
        self._room, self._spare_room = self._cache, self._cache[:0]  # what the caches stand in, and will after a select
        self._states = torch.zeros_like(inputs.memory)  # by place, so that cutting back needs no new pass
        self._rows = torch.arange(len(inputs.memory), device=inputs.memory.device)[:, None]

    def scores(self, picks: Tensor, place: Tensor) -> Tensor:
        """Scores (B, N) at a place (B,) that a pass has reached."""
        state = self._states[self._rows[:, 0], place]  # (B, D)
        return (self._inputs.head_keys @ state[..., None])[..., 0] + self._inputs.head_bias

    def advance(self, picks: Tensor, first: Tensor, count: int) -> None:
        """Run the places first[b] ... first[b] + count - 1 of each row; what stands before them is in the cache."""
        places = first[:, None] + torch.arange(count, device=first.device)  # (B, count)
        last_pick = picks[self._rows, (places - 1).clamp(min=0)]
        tokens = self._inputs.tokens[self._rows, last_pick]  # (B, count, D)
        tokens = torch.where((places == 0)[..., None], self._inputs.start[:, None], tokens)
        inputs = tokens + self._inputs.places[places]
        self._states[self._rows, places] = self._run(self._decoder, self._cache, inputs, first, self._inputs.mask)

    def select(self, rows: Tensor) -> None:
        # The caches are large: two rooms take turns, as fresh memory would cost more than the copy.
        if len(self._spare_room) < len(rows):
            self._spare_room = self._cache.new_empty(len(rows), self._cache.shape[1])
        torch.index_select(self._cache, 0, rows, out=self._spare_room[: len(rows)])
        self._room, self._spare_room = self._spare_room, self._room
        self._cache = self._room[: len(rows)]
        memory, tokens, start, places, head_keys, head_bias, mask = self._inputs
        if len(head_keys) == len(mask):  # a linear head without a mask has one row of them for all
            head_keys, head_bias = head_keys[rows], head_bias[rows]
        self._inputs = ops.DecoderInputs(
            memory, tokens[rows], start[rows], places, head_keys, head_bias, mask[rows]
        )  # the memory is not read again: its keys and values are in the cache
        self._states = self._states[rows]
        self._rows = torch.arange(len(rows), device=rows.device)[:, None]


class _Modules(NamedTuple):
    """The decoder by a model's own modules, which are asked anew for every place."""

    modules: ModuleScores

    def scores(self, picks: Tensor, place: Tensor) -> Tensor:
        """Scores (B, N) at a place (B,), given the picks before it."""
        table = self.modules.after(picks[:, : int(place.max())])
        return table[torch.arange(len(place), device=place.device), place]

    def advance(self, picks: Tensor, first: Tensor, count: int) -> None:
        """Nothing is kept."""

    def select(self, rows: Tensor) -> None:
        self.modules.select(rows)
