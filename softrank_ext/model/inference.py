"""Predictions of a model without gradients: what the ops are given, and which engine runs them.

The compiled kernels and plain torch get the same inputs, made here once; `SoftRankModel` has the methods. A model that
is not what the kernels compute (`changes`) decodes by its modules' own forward, in eval mode.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.checks import ANY_FLOAT, check_tensor
from softrank_ext.choices import Beam, Decode, Draw, Engine, Greedy, decode_of
from softrank_ext.constraints import Constraining, Rules, rules_of
from softrank_ext.model.config import DECODER_HEADS
from softrank_ext.model.layers import sine_cosine
from softrank_ext.model.packing import PackedWeights
from softrank_ext.ops.library import call_op
from softrank_ext.permutations import arrange

if TYPE_CHECKING:
    from softrank_ext.model.model import SoftRankModel


@torch.no_grad()
def decode_embedded(
    model: "SoftRankModel",
    embedded: Tensor,
    t: float | Tensor,
    mask: Tensor | None,
    choices: ops.Choices,
    order: Tensor | None,
    engine: Engine,
    packed_weights: PackedWeights | None,
) -> ops.DecodedOrder:
    """See `SoftRankModel.decode_embedded`."""
    if model.config.head not in DECODER_HEADS:
        return _decode_scores(model, embedded if order is None else arrange(embedded, order), t, mask, choices, engine)
    weights = model.packed_weights() if packed_weights is None else packed_weights
    if goes_by_modules(model, weights, engine):
        return _decode_by_modules(model, embedded if order is None else arrange(embedded, order), t, mask, choices)
    inputs = _prediction_inputs(model, embedded, t, mask, order, weights)
    if engine.uses_kernels:
        encoder, decoder = _as_short_as_can_be(weights.encoder), _as_short_as_can_be(weights.decoder)
        return ops.DecodedOrder(*call_op(torch.ops.softrank_ext.predict_order, *encoder, *decoder, *inputs, *choices))
    if engine.cache:
        return ops.predict_order_reference(weights.encoder, weights.decoder, inputs, choices)
    return ops.decode_order_uncached(weights.decoder, ops.prepare_decoder_reference(weights.encoder, inputs), choices)


@torch.no_grad()
def decoder_inputs(
    model: "SoftRankModel",
    embedded: Tensor,
    t: float | Tensor,
    mask: Tensor | None,
    engine: Engine,
    packed_weights: PackedWeights | None,
) -> ops.DecoderInputs:
    """See `SoftRankModel.decoder_inputs`."""
    if model.config.head not in DECODER_HEADS:
        raise ValueError(f"a {model.config.head} head has no decoder: use {' or '.join(DECODER_HEADS)}")
    weights = model.packed_weights() if packed_weights is None else packed_weights
    if weights.changed is not None:
        raise ValueError(f"decoder_inputs are for the kernels, {_reason(weights)}")
    inputs = _prediction_inputs(model, embedded, t, mask, None, weights)
    if not engine.uses_kernels:
        return ops.prepare_decoder_reference(weights.encoder, inputs)
    prepared = call_op(torch.ops.softrank_ext.prepare_decoder, *_as_short_as_can_be(weights.encoder), *inputs)
    return ops.decoder_inputs_of(inputs, *prepared)


_WARNED: WeakKeyDictionary["SoftRankModel", str] = WeakKeyDictionary()  # of what, last


def goes_by_modules(model: "SoftRankModel", weights: PackedWeights, engine: Engine) -> bool:
    """Whether the model's own modules are called, as it is not what the kernels compute: see `Engine`."""
    if weights.changed is None:
        return False
    if engine.compiled:
        raise ValueError(f"Engine(compiled=True) asks for the kernels, but {_reason(weights)}")
    if engine.compiled is None and _WARNED.get(model) != weights.changed:
        _WARNED[model] = weights.changed
        warnings.warn(
            f"{_reason(weights)}. It decodes by its modules' own forward, prefix by prefix, which is slow.",
            RuntimeWarning,
            stacklevel=2,
        )
    return True


def _reason(weights: PackedWeights) -> str:
    return f"the kernels do not compute this model: {weights.changed}"


class ModuleScores:
    """The scores of a model after given picks by its modules' own forward; embedded (B, N, D) and mask are by slot."""

    @torch.no_grad()
    def __init__(self, model: "SoftRankModel", embedded: Tensor, t: float | Tensor, mask: Tensor | None) -> None:
        from softrank_ext.model.model import SoftRankModel

        self.model, self.embedded, self.t, self.mask = model, embedded, t, mask
        is_own = type(model).scores is not SoftRankModel.scores or "scores" in model.__dict__
        with evaluating(model):
            self.memory = None if is_own else model.encode(embedded, t, mask)

    @torch.no_grad()
    def after(self, picks: Tensor) -> Tensor:
        """Scores (B, P + 1, N) of the slots for the places up to the one that follows picks (B, P) int64."""
        with evaluating(self.model):
            if self.memory is not None:
                return self.model.decoder_scores(self.embedded, self.t, self.memory, picks, self.mask)
            (B, N), P = self.embedded.shape[:2], picks.shape[1]
            every = every_slot(self.embedded, self.mask)
            places = torch.arange(P, device=picks.device).expand(B, P)
            order = torch.where(every, N, N + 1).scatter(1, picks, places).argsort(dim=1, stable=True)
            return self.model.scores(self.embedded, self.t, order, self.mask)[:, : P + 1]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, (R,) int64; a row may come several times."""
        self.embedded = self.embedded[rows]
        if isinstance(self.t, Tensor) and self.t.numel() > 1:
            self.t = self.t[rows]
        self.mask = None if self.mask is None else self.mask[rows]
        self.memory = None if self.memory is None else self.memory[rows]


def _decode_by_modules(
    model: "SoftRankModel", embedded: Tensor, t: float | Tensor, mask: Tensor | None, choices: ops.Choices
) -> ops.DecodedOrder:
    """A prediction of a changed model. embedded: in slots."""
    scores, every = ModuleScores(model, embedded, t, mask), every_slot(embedded, mask)
    picks: list[Tensor] = []

    def scores_at(step: int, last_choice: Tensor | None) -> Tensor:
        if last_choice is not None:
            picks.append(last_choice)
        made = torch.stack(picks, 1) if picks else every.new_empty((len(every), 0), dtype=torch.int64)
        return scores.after(made)[:, step]

    order, log_probs = ops.pick_each_place(scores_at, every, embedded.dtype, choices)
    passes = (every.sum(1) - 1).clamp(min=0)
    return ops.DecodedOrder(order, log_probs, torch.stack((passes, passes), 1))


def _prediction_inputs(
    model: "SoftRankModel",
    embedded: Tensor,
    t: float | Tensor,
    mask: Tensor | None,
    order: Tensor | None,
    weights: PackedWeights,
) -> ops.PredictionInputs:
    _, N, D = embedded.shape
    head, head_bias = weights.head, None
    if head is None:
        head, head_bias = model.head(embedded, model._positions(embedded, mask))
    return ops.PredictionInputs(
        embedded, order, model._time(t, embedded, weights), model.start, sine_cosine(N, D, embedded), head,
        head_bias, weights.packed_head, every_slot(embedded, mask),
    )  # fmt: skip


def _as_short_as_can_be(transformer: ops.Transformer) -> ops.Transformer:
    """Without the list of weights where they come packed; on a GPU their sizes are read off the list."""
    is_packed = transformer.packed is not None and transformer.packed.is_cpu and transformer.packed.numel() > 0
    return transformer._replace(weights=[]) if is_packed else transformer


def _decode_scores(
    model: "SoftRankModel",
    embedded: Tensor,
    t: float | Tensor,
    mask: Tensor | None,
    choices: ops.Choices,
    engine: Engine,
) -> ops.DecodedOrder:
    """A prediction of a head without a decoder: one pass gives all scores. embedded: in slots."""
    B, N, _ = embedded.shape
    slots = torch.arange(N, device=embedded.device).expand(B, N)
    scores, every = model.scores(embedded, t, slots, mask), every_slot(embedded, mask)
    if engine.compiled is not False:
        order, log_probs = call_op(torch.ops.softrank_ext.decode_scores, scores, every, *choices)
    else:
        order, log_probs = ops.decode_scores_reference(scores, every, choices)
    work = torch.ones(B, 2, dtype=torch.int64, device=embedded.device)
    work[:, 1] = N
    return ops.DecodedOrder(order, log_probs, work)


def checked_choices(
    embedded: Tensor,
    mask: Tensor | None,
    *,
    uniform: Tensor | None,
    decode: str | Decode | None,
    forced_order: Tensor | None,
    forced_places: int | None,
    draft: Tensor | None,
    constraints: Constraining,
) -> ops.Choices:
    """The choices of `SoftRankModel.decode` as the ops take them; raises ValueError, saying what is wrong with them."""
    B, N, _ = embedded.shape
    if uniform is not None:
        check_tensor("uniform", uniform, (B, N), ANY_FLOAT)
    if decode is None:
        chosen: Decode = Greedy() if uniform is None and forced_order is None else Draw()
    else:
        chosen = decode_of(decode)
    if isinstance(chosen, Beam):
        raise ValueError("decode must be Draw(...) or Greedy() here, got Beam(...): use sampling.beam_decode")
    is_whole = forced_order is not None and forced_places is None
    if isinstance(chosen, Greedy) and uniform is not None:
        raise ValueError("Greedy() takes the highest scores and no uniform, got both")
    if decode is not None and isinstance(chosen, Draw) and uniform is None and not is_whole:
        raise ValueError("Draw(...) needs uniform, the numbers that picks are read at, or a whole forced_order")
    for name, order in (("forced_order", forced_order), ("draft", draft)):
        if order is not None:
            check_tensor(name, order, (B, N), torch.int64, "; an order over slots is wanted")
    rules = rules_of(constraints, B, N, mask, device=embedded.device) or Rules(None, None, None)
    choices = ops.Choices(
        None if uniform is None else uniform.to(embedded.dtype),
        forced_order,
        forced_places,
        chosen.temperature if isinstance(chosen, Draw) else 1.0,
        draft,
        *rules,
    )
    ops.check_choices(choices, every_slot(embedded, mask), embedded.dtype)
    return choices


def every_slot(embedded: Tensor, mask: Tensor | None) -> Tensor:
    """The mask, or one that calls every slot real: (B, N) bool."""
    return torch.ones(embedded.shape[:2], dtype=torch.bool, device=embedded.device) if mask is None else mask


# Models that threads have in eval mode: how many, and the submodules to put back when the last one leaves.
_EVALUATING: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()
_EVALUATING_LOCK = Lock()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every submodule's own mode after; of several threads, after the last one."""
    with _EVALUATING_LOCK:
        inside, in_training = _EVALUATING.get(model, (0, []))
        if inside == 0:
            in_training = [module for module in _modules_of(model) if module.training]
            if in_training:
                model.eval()
        _EVALUATING[model] = inside + 1, in_training
    try:
        yield
    finally:
        with _EVALUATING_LOCK:
            inside, in_training = _EVALUATING.pop(model)
            if inside > 1:
                _EVALUATING[model] = inside - 1, in_training
            else:
                for module in in_training:
                    module.training = True


def _modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """`module.modules()` without its names and its search for shared ones, which take a third of a millisecond."""
    yield module
    for child in module._modules.values():
        if child is not None:
            yield from _modules_of(child)
