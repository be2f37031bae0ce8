"""The ops: schemas, checked wrappers, fake kernels and gradients.

`reference` is every op's default kernel; the libraries `_ops` and `_ops_cuda` add faster ones for CPU and CUDA.
Random numbers are arguments, never drawn inside an op that uses them.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from softrank_ext.ops import reference
from softrank_ext.permutations import check_slots

_library = torch.library.Library("softrank_ext", "DEF")
_library.define("reflect(Tensor x) -> Tensor")
_library.define("decode_chamber(Tensor soft_ranks, Tensor? mask) -> (Tensor order, Tensor ranks)")
_library.define("read_order(Tensor z, Tensor? mask) -> (Tensor soft_ranks, Tensor order, Tensor ranks)")
_library.define(
    "lift_order(Tensor order, Tensor slots, Tensor? mask, ScalarType dtype) "
    "-> (Tensor order, Tensor ranks, Tensor soft_ranks)"
)
_library.define("pick(Tensor scores, Tensor remaining, Tensor? uniform) -> (Tensor choice, Tensor log_prob)")
for _name in ("random_uniform", "random_normal"):
    _library.define(f"{_name}(Tensor samples, int seed, int step, int stream, int count, ScalarType dtype) -> Tensor")
_library.define(
    "decode_order(Tensor[] weights, Tensor? packed, int heads, bool norm_first, Tensor memory, Tensor tokens, "
    "Tensor start, Tensor places, Tensor head_keys, Tensor head_bias, Tensor mask, Tensor? uniform, "
    "Tensor? forced_order, float temperature, int? forced_places=None, Tensor? draft=None, Tensor? before=None, "
    "Tensor? allowed=None, Tensor? group=None) -> (Tensor order, Tensor log_probs, Tensor work)"
)
_library.define(
    "predict_order(Tensor[] encoder, Tensor? packed_encoder, Tensor[] decoder, Tensor? packed_decoder, int heads, "
    "bool norm_first, Tensor embedded, Tensor? order, Tensor time, Tensor start, Tensor places, Tensor head, "
    "Tensor? head_bias, Tensor? packed_head, Tensor mask, Tensor? uniform, Tensor? forced_order, float temperature, "
    "int? forced_places=None, Tensor? draft=None, Tensor? before=None, Tensor? allowed=None, Tensor? group=None) "
    "-> (Tensor order, Tensor log_probs, Tensor work)"
)
_library.define(
    "decode_scores(Tensor scores, Tensor mask, Tensor? uniform, Tensor? forced_order, float temperature, "
    "int? forced_places=None, Tensor? before=None, Tensor? allowed=None, Tensor? group=None) "
    "-> (Tensor order, Tensor log_probs)"
)
_library.define("allowed_picks(Tensor prefix, Tensor mask, Tensor? before, Tensor? allowed, Tensor? group) -> Tensor")
_library.define("pack_encoder(Tensor[] weights) -> Tensor")
_library.define(
    "encode(Tensor[] weights, Tensor? packed, int heads, bool norm_first, Tensor x, Tensor mask) -> Tensor memory"
)
_library.define("pack_projection(Tensor weight) -> Tensor")
_library.define("project(Tensor x, Tensor weight, Tensor? packed) -> Tensor")
_library.define("pack_decoder(Tensor[] weights) -> Tensor")
_library.define("open_decoder(Tensor[] weights, Tensor? packed, int heads, Tensor memory, Tensor mask) -> Tensor cache")
_library.define(
    "advance_decoder(Tensor[] weights, Tensor? packed, int heads, bool norm_first, Tensor(a!) cache, Tensor inputs, "
    "Tensor lengths, Tensor mask) -> Tensor states"
)

_library.define("checksum(Tensor[] tensors) -> int")
_library.define("cpu_capability() -> str")

_default_kernels = {
    "reflect": reference.reflect,
    "decode_chamber": reference.decode_chamber,
    "read_order": reference.read_order,
    "lift_order": reference.lift_order,
    "pick": reference.pick,
    "random_uniform": reference.random_uniform,
    "random_normal": reference.random_normal,
    "decode_order": reference.decode_order,
    "predict_order": reference.predict_order,
    "decode_scores": reference.decode_scores,
    "allowed_picks": reference.allowed_picks,
    "pack_encoder": reference.pack_weights,
    "encode": reference.encode,
    "pack_projection": reference.pack_projection,
    "project": reference.project,
    "pack_decoder": reference.pack_weights,
    "open_decoder": reference.open_decoder,
    "advance_decoder": reference.advance_decoder,
    "checksum": reference.checksum,
    "cpu_capability": lambda: "plain torch",
}
for _name, _kernel in _default_kernels.items():
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")

_FLOAT_DTYPES = (torch.float32, torch.float64)


def _described(value: object) -> str:
    """What came, for an error message: shape and dtype of a tensor, type of anything else."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def _check_float_tensor(name: str, value: object, wanted_shape: str, ndim: int | None) -> None:
    wanted = f"{name} must be a {wanted_shape} tensor of float32 or float64"
    if not isinstance(value, Tensor):
        raise TypeError(f"{wanted}, got {_described(value)}")
    if value.dtype not in _FLOAT_DTYPES or (ndim is not None and value.ndim != ndim):
        raise ValueError(f"{wanted}, got {_described(value)}")


def _check_bool_mask(name: str, value: object, like_name: str, like: Tensor) -> None:
    if not isinstance(value, Tensor) or value.dtype != torch.bool or value.shape != like.shape:
        raise ValueError(
            f"{name} must be a bool tensor of the shape of {like_name} {tuple(like.shape)}, got {_described(value)}"
        )
    if value.device != like.device:
        raise ValueError(f"{name} must be on the device of {like_name}, {like.device}, got {value.device}")


def reflect(x: Tensor) -> Tensor:
    """Fold x of any shape onto [0, 1] with period 2: `m > 1 ? 2 - m : m`, `m = |x| mod 2`.

    Exact for every finite float32 or float64; NaN stays NaN and an infinity gives NaN. Differentiable: the slope
    is 1 or -1, and 1 where x is in [0, 1], its ends included.
    """
    _check_float_tensor("x", x, "float", None)
    return torch.ops.softrank_ext.reflect(x)


def decode_chamber(soft_ranks: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read the order off soft ranks: stable argsort, ties to the lower item.

    soft_ranks: (B, N) or (N,) float32 or float64, one number per item. mask: bool of the same shape, True = real item.
    Returns order and ranks, int64 of the same shape: `order[place] = item`, `ranks[item] = place`. Items whose mask
    is False stand behind all real ones, in index order, whatever their soft ranks.
    Raises ValueError if a real item's soft rank is NaN (skipped while compiling, where data cannot be read).
    """
    is_one_row = isinstance(soft_ranks, Tensor) and soft_ranks.ndim == 1
    _check_float_tensor("soft_ranks", soft_ranks, "(B, N) or (N,)", 1 if is_one_row else 2)
    if mask is not None:
        _check_bool_mask("mask", mask, "soft_ranks", soft_ranks)
    if is_one_row:
        order, ranks = decode_chamber(soft_ranks[None], None if mask is None else mask[None])
        return order[0], ranks[0]
    if not torch.compiler.is_compiling():
        _check_no_nan(soft_ranks, mask)
    return torch.ops.softrank_ext.decode_chamber(soft_ranks, mask)


def read_order(z: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """`reflect`, then `decode_chamber`: soft ranks, order and ranks of z (B, N), without gradients.

    Raises ValueError if z of a real item is NaN or infinite (skipped while compiling, where data cannot be read).
    """
    _check_float_tensor("z", z, "(B, N)", 2)
    if mask is not None:
        _check_bool_mask("mask", mask, "z", z)
    soft_ranks, order, ranks = torch.ops.softrank_ext.read_order(z, mask)
    if not torch.compiler.is_compiling():
        _check_no_nan(soft_ranks, mask)
    return soft_ranks, order, ranks


def lift_order(
    order: Tensor, slots: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """`permutations.compose`, `permutations.ranks_of` and `bridge.lift_to_grid` in one: from slots back to soft ranks.

    order: (B, N) int64, the items of the slots. slots: (B, N) int64, an order over them. mask: (B, N) bool, by item.
    Returns the order over items, its ranks, and soft ranks of dtype on the paper's grid.
    """
    for name, value in (("order", order), ("slots", slots)):
        if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.ndim != 2:
            raise ValueError(f"{name} must be a (B, N) tensor of int64, got {_described(value)}")
    if order.shape != slots.shape:
        raise ValueError(f"slots must have the shape of order {tuple(order.shape)}, got {tuple(slots.shape)}")
    if dtype not in _FLOAT_DTYPES:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if mask is not None:
        _check_bool_mask("mask", mask, "order", order)
    return torch.ops.softrank_ext.lift_order(order, slots, mask, dtype)


def _check_no_nan(soft_ranks: Tensor, mask: Tensor | None) -> None:
    # A sum is NaN if a term is (or if infinities cancel): one cheap pass clears the common case.
    if not bool(soft_ranks.sum().isnan()):
        return
    is_nan = soft_ranks.isnan() if mask is None else soft_ranks.isnan() & mask
    if bool(is_nan.any()):
        row, item = is_nan.nonzero()[0].tolist()
        raise ValueError(f"soft_ranks must not hold NaN, got NaN at row {row}, item {item}")


def pick(
    scores: Tensor, remaining: Tensor, uniform: Tensor | None = None, *, greedy: bool = False
) -> tuple[Tensor, Tensor]:
    """Choose one item per row from the softmax of scores over the remaining set.

    scores: (B, N) float32 or float64. remaining: (B, N) bool, True = may be chosen. uniform: (B,) in [0, 1), the
    random number that each row's inverse CDF is read at; or greedy=True for the highest score (ties to the lower item).
    Returns choice (B,) int64 and log_prob (B,), the log-probability of the choice in the softmax.
    A score of -inf is never chosen beside a larger one; scores of +inf share all the probability; if all that remain
    are -inf they are equally likely. Raises RuntimeError on a row with nothing remaining or with a NaN score.
    """
    _check_float_tensor("scores", scores, "(B, N)", 2)
    _check_bool_mask("remaining", remaining, "scores", scores)
    if greedy == (uniform is not None):
        raise ValueError("pick takes either uniform or greedy=True, got " + ("both" if greedy else "neither"))
    if uniform is not None:
        _check_float_tensor("uniform", uniform, "(B,)", 1)
        if uniform.shape[0] != scores.shape[0]:
            raise ValueError(f"uniform must be ({scores.shape[0]},), one number per row, got {_described(uniform)}")
        uniform = uniform.to(scores.dtype)
    return torch.ops.softrank_ext.pick(scores, remaining, uniform)


def encode(
    weights: list[Tensor],
    *,
    heads: int,
    norm_first: bool,
    x: Tensor,
    mask: Tensor,
    packed: Tensor | None = None,
) -> Tensor:
    """Run a transformer encoder on x (B, N, D): memory (B, N, D), 0 at padding. No gradient is recorded.

    Layer norms, activation and attention are as in `decode_order`. weights: per layer the tensors of
    `reference.EncoderLayerWeights`, then weight and bias of the final norm. mask (B, N) bool: True = real slot; what
    padded slots hold has no effect. packed: `pack_encoder(weights)`, to share the packing between calls.
    """
    _check_float_tensor("x", x, "(B, N, D)", 3)
    _check_weights(weights, reference.EncoderLayerWeights._fields, heads, x, "x")
    _check_bool_mask("mask", mask, "x's slots", x[..., 0])
    return torch.ops.softrank_ext.encode(weights, packed, heads, norm_first, x, mask)


def pack_encoder(weights: list[Tensor]) -> Tensor:
    """The weights of `encode` laid out for the kernel of their device; empty where it takes them as they are."""
    return torch.ops.softrank_ext.pack_encoder(weights)


def project(x: Tensor, weight: Tensor, *, packed: Tensor | None = None) -> Tensor:
    """x (B, N, D) times the transpose of weight (outputs, D): (B, N, outputs). No gradient is recorded.

    A row has the same bits in any batch. packed: `pack_projection(weight)`, to share the packing between calls.
    """
    _check_float_tensor("x", x, "(B, N, D)", 3)
    if weight.ndim != 2 or weight.shape[1] != x.shape[2] or weight.dtype != x.dtype or weight.device != x.device:
        raise ValueError(
            f"weight must be (outputs, {x.shape[2]}) {x.dtype} on {x.device} to fit x, "
            f"got {_described(weight)} on {weight.device}"
        )
    return torch.ops.softrank_ext.project(x, weight, packed)


def pack_projection(weight: Tensor) -> Tensor:
    """The weight of `project` laid out for the kernel of its device; empty where it takes it as it is."""
    return torch.ops.softrank_ext.pack_projection(weight)


class Choices(NamedTuple):
    """What a prediction may choose from, and how."""

    uniform: Tensor | None = None
    forced_order: Tensor | None = None
    temperature: float = 1.0
    forced_places: int | None = None
    draft: Tensor | None = None
    before: Tensor | None = None
    allowed: Tensor | None = None
    group: Tensor | None = None

    def has_rules(self) -> bool:
        """Whether there are constraints."""
        return self.before is not None or self.allowed is not None or self.group is not None


class DecodedOrder(NamedTuple):
    """What `decode_order` returns."""

    order: Tensor
    log_probs: Tensor
    work: Tensor


def decode_order(
    weights: list[Tensor],
    *,
    heads: int,
    norm_first: bool,
    memory: Tensor,
    tokens: Tensor,
    start: Tensor,
    places: Tensor,
    head_keys: Tensor,
    head_bias: Tensor,
    mask: Tensor,
    uniform: Tensor | None = None,
    forced_order: Tensor | None = None,
    forced_places: int | None = None,
    draft: Tensor | None = None,
    temperature: float = 1.0,
    packed: Tensor | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> DecodedOrder:
    """Run a cached transformer decoder place by place: score the slots, pick one of those left (paper Algorithm 2).

    The decoder's input is `start + places[0]`, then `tokens[b, last pick] + places[i]`; the scores at a place are
    `state . head_keys + head_bias`. Layer norms have eps 1e-5, the feed-forward activation is ReLU, attention is scaled
    by 1/sqrt(D/heads). A norm stands before each sublayer if norm_first, else after each sum; a final norm ends both.

    weights: per layer the tensors of `reference.DecoderLayerWeights`, then weight and bias of the final norm.
    memory (B, N, D): encoder output. tokens (B, N, D), start (B, D), places (N, D): decoder inputs, as above.
    head_keys (B or 1, N, D), head_bias (B or 1, N). All of one dtype, float32 or float64.
    mask (B, N) bool: True = real slot, in any pattern; what padded slots hold has no effect.
    uniform (B, N) in [0, 1): the number that place i's inverse CDF is read at; None = the highest score.
    forced_order (B, N) int64: score this order (real slots first) instead of choosing, or only its first forced_places.
    draft (B, N) int64: a guess of the order (real slots first). The kernel checks several of its places in one pass,
    with the same numbers, and keeps the picks up to the first that differs: the result does not depend on the draft.
    temperature: scores are divided by it. packed: `pack_decoder(weights)`, to share the packing between calls.
    before, allowed, group: constraints, as in `allowed_picks`; each pick is among what they allow.
    Returns order (B, N) int64, real slots as chosen, then padded ones by index; log_probs (B, N) of the picks, 0 at
    padded places; and work (B, 2) int64: decoder passes that the row took part in, and places that it ran in them. The
    last pick of a row has one candidate and log-probability 0. No gradient is recorded.
    """
    _check_decoder(weights, heads, memory)
    B, N, D = memory.shape
    for name, value, shapes in (
        ("tokens", tokens, ((B, N, D),)),
        ("start", start, ((B, D),)),
        ("places", places, ((N, D),)),
        ("head_keys", head_keys, ((B, N, D), (1, N, D))),
        ("head_bias", head_bias, ((B, N), (1, N))),
    ):
        if value is not None and (value.shape not in shapes or value.dtype != memory.dtype):
            wanted = " or ".join(map(str, shapes))
            raise ValueError(f"{name} must be {wanted} of memory's {memory.dtype}, got {_described(value)}")
    if head_keys.shape[0] != head_bias.shape[0]:
        raise ValueError(f"head_keys and head_bias must have as many rows, got {len(head_keys)} and {len(head_bias)}")
    _check_bool_mask("mask", mask, "memory's slots", memory[..., 0])
    check_choices(uniform, forced_order, forced_places, temperature, mask, memory.dtype)
    check_forced(forced_order, forced_places, mask, before, allowed, group)
    if draft is not None:
        check_slots(draft, mask, "draft")
    decoded = torch.ops.softrank_ext.decode_order(
        weights, packed, heads, norm_first, memory, tokens, start, places, head_keys, head_bias, mask, uniform,
        forced_order, temperature, forced_places, draft, before, allowed, group,
    )  # fmt: skip
    return DecodedOrder(*decoded)


def check_choices(
    uniform: Tensor | None,
    forced_order: Tensor | None,
    forced_places: int | None,
    temperature: float,
    mask: Tensor,
    dtype: torch.dtype,
) -> None:
    """What `decode_order` and `decode_scores` choose by."""
    if uniform is not None and (uniform.shape != mask.shape or uniform.dtype != dtype):
        raise ValueError(f"uniform must be {tuple(mask.shape)} of {dtype}, got {_described(uniform)}")
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature must be positive and finite, got {temperature}; for greedy picks pass no uniform"
        )
    if forced_order is not None:
        check_slots(forced_order, mask, "forced_order")
        if uniform is not None and forced_places is None:
            raise ValueError("uniform and a whole forced_order exclude each other, got both; give forced_places")
    if forced_places is not None and (forced_order is None or not 0 <= forced_places <= mask.shape[1]):
        raise ValueError(
            f"forced_places must be from 0 to {mask.shape[1]} and go with a forced_order, got {forced_places}"
        )


def decode_scores(
    scores: Tensor,
    mask: Tensor,
    *,
    uniform: Tensor | None = None,
    forced_order: Tensor | None = None,
    forced_places: int | None = None,
    temperature: float = 1.0,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`decode_order` for scores (B, place, slot) that do not depend on earlier picks, as those of GPL and PL.

    Returns order and log_probs.
    """
    _check_float_tensor("scores", scores, "(B, N, N)", 3)
    N = scores.shape[1]
    if scores.shape[2] != N:
        raise ValueError(f"scores must be (B, N, N), place by slot, got {_described(scores)}")
    _check_bool_mask("mask", mask, "scores' slots", scores[:, 0] if N > 0 else scores[..., 0])
    check_choices(uniform, forced_order, forced_places, temperature, mask, scores.dtype)
    check_forced(forced_order, forced_places, mask, before, allowed, group)
    return torch.ops.softrank_ext.decode_scores(
        scores, mask, uniform, forced_order, temperature, forced_places, before, allowed, group
    )


def allowed_picks(
    prefix: Tensor,
    mask: Tensor,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> Tensor:
    """Which slots may come next under constraints, after each part of a prefix: bool (B, P + 1, N).

    A slot may if some order that begins so keeps every rule. prefix: (B, P) int64, slots picked so far. mask: (B, N)
    bool, True = real slot. before: (B, N, N) bool, [a, b] = a stands before b; where slots are in groups it must hold
    for whole groups. allowed: (B, N, N) bool, [slot, place], tightened along `before` and groups. group: (B, N) int64,
    slots of one number (not -1) stand next to each other. `constraints.rules_of` makes all three, and sees to it that
    some order keeps them. After a pick that is not allowed nothing is. Raises RuntimeError if the search for a
    completion, needed where kinds of rules meet, visits more than `reference.MOST_STATES` states in a row.
    """
    if prefix.ndim != 2 or prefix.dtype != torch.int64 or prefix.shape[1] > mask.shape[1]:
        raise ValueError(f"prefix must be (B, up to {mask.shape[1]}) int64, got {_described(prefix)}")
    _check_bool_mask("mask", mask, "prefix's rows", prefix.new_empty(len(prefix), mask.shape[-1]))
    if prefix.numel() > 0 and not bool(((prefix >= 0) & (prefix < mask.shape[1])).all()):
        raise ValueError(f"prefix must hold slots from 0 to {mask.shape[1] - 1}")
    _check_rules(mask, before, allowed, group)
    return torch.ops.softrank_ext.allowed_picks(prefix, mask, before, allowed, group)


def _check_rules(mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None) -> None:
    B, N = mask.shape
    for name, rule, shape, dtype in (
        ("before", before, (B, N, N), torch.bool),
        ("allowed", allowed, (B, N, N), torch.bool),
        ("group", group, (B, N), torch.int64),
    ):
        if rule is not None and (rule.shape != shape or rule.dtype != dtype):
            raise ValueError(f"{name} must be {shape} {str(dtype).removeprefix('torch.')}, got {_described(rule)}")


def check_forced(
    forced_order: Tensor | None,
    forced_places: int | None,
    mask: Tensor,
    before: Tensor | None,
    allowed: Tensor | None,
    group: Tensor | None,
) -> None:
    """Raise ValueError unless the forced places of `decode_order` keep the constraints."""
    _check_rules(mask, before, allowed, group)
    if forced_order is None or (before is None and allowed is None and group is None):
        return
    forced = forced_order if forced_places is None else forced_order[:, :forced_places]
    is_kept = allowed_picks(forced[:, :-1], mask, before, allowed, group).gather(2, forced[..., None])[..., 0]
    is_broken = ~is_kept & (torch.arange(forced.shape[1], device=mask.device) < mask.sum(1, keepdim=True))
    if bool(is_broken.any()):
        row, place = is_broken.nonzero()[0].tolist()
        raise ValueError(
            f"forced_order must keep the constraints, row {row} has {int(forced[row, place])} at place {place}"
        )


def pack_decoder(weights: list[Tensor]) -> Tensor:
    """The weights of `decode_order` laid out for the kernel of their device; empty where it takes them as they are."""
    return torch.ops.softrank_ext.pack_decoder(weights)


def checksum(tensors: list[Tensor]) -> int:
    """A 64-bit checksum of the bytes of float32 or float64 tensors, one after another.

    A change in a single 32-bit word always changes a tensor's own checksum. It is no guard against intent.
    """
    return torch.ops.softrank_ext.checksum(tensors)


def open_decoder(
    weights: list[Tensor], *, heads: int, memory: Tensor, mask: Tensor, packed: Tensor | None = None
) -> Tensor:
    """Caches for `advance_decoder`, (B, R): keys and values of the memory's real slots, and room for N positions.

    weights, memory, mask, packed: as in `decode_order`. What the R numbers of a row mean is the kernel's own affair.
    """
    _check_decoder(weights, heads, memory)
    _check_bool_mask("mask", mask, "memory's slots", memory[..., 0])
    return torch.ops.softrank_ext.open_decoder(weights, packed, heads, memory, mask)


def advance_decoder(
    weights: list[Tensor],
    *,
    heads: int,
    norm_first: bool,
    cache: Tensor,
    inputs: Tensor,
    lengths: Tensor,
    mask: Tensor,
    packed: Tensor | None = None,
) -> Tensor:
    """Take further positions through the decoder, appending to the caches; returns states (B, P, D), normed.

    cache: from `open_decoder`, changed in place. inputs (B, P, D): decoder inputs at positions lengths[b] + 0 ... P-1.
    lengths (B,) int64: positions of each row that count so far; what the cache holds beyond them is overwritten, so a
    shorter length goes back to a shorter prefix. Rows without a real slot give zeros.
    """
    _check_decoder(weights, heads, inputs)
    B, positions, _ = inputs.shape
    if lengths.shape != (B,) or lengths.dtype != torch.int64:
        raise ValueError(f"lengths must be ({B},) int64, got {_described(lengths)}")
    if mask.ndim != 2 or mask.shape[0] != B or mask.dtype != torch.bool:
        raise ValueError(f"mask must be ({B}, N) bool, got {_described(mask)}")
    wanted = (B, reference.cache_numbers(weights, heads, mask.shape[1]))
    if cache.shape != wanted or cache.dtype != inputs.dtype or not cache.is_contiguous():
        raise ValueError(f"cache must be the {wanted} {inputs.dtype} of open_decoder, got {_described(cache)}")
    if not torch.compiler.is_compiling():
        is_wrong = (lengths < 0) | (lengths + positions > mask.shape[1])
        if bool(is_wrong.any()):
            row = int(is_wrong.nonzero()[0])
            raise ValueError(
                f"lengths must leave room for {positions} positions of {mask.shape[1]}, "
                f"got {int(lengths[row])} in row {row}"
            )
    return torch.ops.softrank_ext.advance_decoder(weights, packed, heads, norm_first, cache, inputs, lengths, mask)


def _check_decoder(weights: list[Tensor], heads: int, memory: Tensor) -> None:
    _check_float_tensor("memory", memory, "(B, N, D)", 3)
    _check_weights(weights, reference.DecoderLayerWeights._fields, heads, memory, "memory")


def _check_weights(weights: list[Tensor], names: tuple[str, ...], heads: int, memory: Tensor, like: str) -> None:
    """Weights of layers with tensors of these names must fit `memory` (B, N, D), the argument called `like`."""
    layers = (len(weights) - 2) // len(names)
    if layers < 1 or len(weights) != layers * len(names) + 2:
        raise ValueError(f"weights must be {len(names)} tensors per layer and 2 of the final norm, got {len(weights)}")
    D = memory.shape[2]
    if heads < 1 or D % heads != 0:
        raise ValueError(f"heads must divide D = {D}, got {heads}")
    hidden = weights[names.index("feed_in_bias")].shape[0]
    rows = {"self_qkv": 3 * D, "memory_key_value": 2 * D, "feed_in": hidden}
    expected = []
    for name in names:
        sublayer, kind = name.rsplit("_", 1)
        columns = hidden if sublayer == "feed_out" else D
        is_matrix = kind == "weight" and not sublayer.endswith("norm")
        expected.append((rows.get(sublayer, D), columns) if is_matrix else (rows.get(sublayer, D),))
    for i, (weight, shape) in enumerate(zip(weights, expected * layers + [(D,), (D,)], strict=True)):
        if weight.shape != shape or weight.dtype != memory.dtype or weight.device != memory.device:
            name = f"layer {i // len(names)} {names[i % len(names)]}" if i < len(weights) - 2 else "the final norm"
            raise ValueError(
                f"weights of {name} must be {shape} {memory.dtype} on {memory.device} to fit {like}, "
                f"got {_described(weight)} on {weight.device}"
            )


@torch.library.register_fake("softrank_ext::reflect")
def _fake_reflect(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("softrank_ext::decode_chamber")
def _fake_decode_chamber(soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(soft_ranks.ndim == 2, lambda: f"soft_ranks must be (B, N), got {tuple(soft_ranks.shape)}")
    order = soft_ranks.new_empty(soft_ranks.shape, dtype=torch.int64)
    return order, torch.empty_like(order)


@torch.library.register_fake("softrank_ext::pick")
def _fake_pick(scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    torch._check(scores.ndim == 2, lambda: f"scores must be (B, N), got {tuple(scores.shape)}")
    torch._check(remaining.shape == scores.shape, lambda: "remaining must have the shape of scores")
    return scores.new_empty(scores.shape[0], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _fake_random(samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    return samples.new_empty((samples.shape[0], count), dtype=dtype)


torch.library.register_fake("softrank_ext::random_uniform", _fake_random)
torch.library.register_fake("softrank_ext::random_normal", _fake_random)


@torch.library.register_fake("softrank_ext::read_order")
def _fake_read_order(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _fake_reflect(z), *_fake_decode_chamber(z, mask)


@torch.library.register_fake("softrank_ext::lift_order")
def _fake_lift_order(
    order: Tensor, slots: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(order), torch.empty_like(order), torch.empty_like(order, dtype=dtype)


@torch.library.register_fake("softrank_ext::decode_order")
def _fake_decode_order(
    weights: list[Tensor],
    packed: Tensor | None,
    heads: int,
    norm_first: bool,
    memory: Tensor,
    tokens: Tensor,
    start: Tensor,
    places: Tensor,
    head_keys: Tensor,
    head_bias: Tensor,
    mask: Tensor,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None = None,
    draft: Tensor | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    torch._check(memory.ndim == 3, lambda: f"memory must be (B, N, D), got {tuple(memory.shape)}")
    torch._check(tokens.shape == memory.shape, lambda: "tokens must have the shape of memory")
    torch._check(mask.shape == memory.shape[:2], lambda: "mask must be (B, N) as memory is (B, N, D)")
    order = memory.new_empty(mask.shape, dtype=torch.int64)
    return order, memory.new_empty(mask.shape), order.new_empty(mask.shape[0], 2)


@torch.library.register_fake("softrank_ext::predict_order")
def _fake_predict_order(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    embedded: Tensor = arguments[6]
    B, N, _ = embedded.shape
    order = embedded.new_empty((B, N), dtype=torch.int64)
    return order, embedded.new_empty((B, N)), order.new_empty((B, 2))


def _fake_pack(weights: list[Tensor]) -> Tensor:
    return weights[0].new_empty(torch.library.get_ctx().new_dynamic_size())


torch.library.register_fake("softrank_ext::pack_encoder", _fake_pack)
torch.library.register_fake("softrank_ext::pack_decoder", _fake_pack)
torch.library.register_fake("softrank_ext::pack_projection", lambda weight: _fake_pack([weight]))


@torch.library.register_fake("softrank_ext::project")
def _fake_project(x: Tensor, weight: Tensor, packed: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[0])


def _save_reflect_input(ctx: Any, inputs: tuple, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _reflect_gradient(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * reference.reflect_slope(x)


torch.library.register_autograd("softrank_ext::reflect", _reflect_gradient, setup_context=_save_reflect_input)


def _save_pick_inputs(ctx: Any, inputs: tuple, output: Any) -> None:
    scores, remaining, _ = inputs
    choice, _ = output
    ctx.mark_non_differentiable(choice)
    ctx.save_for_backward(scores, remaining, choice)


def _pick_gradient(ctx: Any, _: Any, grad_log_prob: Tensor) -> tuple[Tensor, None, None]:
    """d log_prob / d scores = one_hot(choice) - softmax over the remaining set (the score function)."""
    scores, remaining, choice = ctx.saved_tensors
    _, weight = reference.pick_weights(scores, remaining)
    probabilities = weight / weight.sum(1, keepdim=True)
    is_choice = torch.zeros_like(scores).scatter_(1, choice[:, None], 1.0)
    return (is_choice - probabilities) * grad_log_prob[:, None], None, None


torch.library.register_autograd("softrank_ext::pick", _pick_gradient, setup_context=_save_pick_inputs)


@torch.library.register_fake("softrank_ext::encode")
def _fake_encode(
    weights: list[Tensor], packed: Tensor | None, heads: int, norm_first: bool, x: Tensor, mask: Tensor
) -> Tensor:
    torch._check(x.ndim == 3, lambda: f"x must be (B, N, D), got {tuple(x.shape)}")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("softrank_ext::open_decoder")
def _fake_open_decoder(
    weights: list[Tensor], packed: Tensor | None, heads: int, memory: Tensor, mask: Tensor
) -> Tensor:
    return memory.new_empty(memory.shape[0], reference.cache_numbers(weights, heads, memory.shape[1]))


@torch.library.register_fake("softrank_ext::advance_decoder")
def _fake_advance_decoder(
    weights: list[Tensor],
    packed: Tensor | None,
    heads: int,
    norm_first: bool,
    cache: Tensor,
    inputs: Tensor,
    lengths: Tensor,
    mask: Tensor,
) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


@torch.library.register_fake("softrank_ext::decode_scores")
def _fake_decode_scores(
    scores: Tensor,
    mask: Tensor,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[:2], dtype=torch.int64), scores.new_empty(scores.shape[:2])


@torch.library.register_fake("softrank_ext::allowed_picks")
def _fake_allowed_picks(
    prefix: Tensor, mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> Tensor:
    return mask.new_empty((mask.shape[0], prefix.shape[1] + 1, mask.shape[1]))
