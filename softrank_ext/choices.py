"""What a call may choose beside its data: how picks are made, and how they are computed. Small frozen classes.

They are made at the door (`sample`, `evaluate`, `model.decode`, the command line), handed on as they are, and read
where they matter.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softrank_ext.checks import (
    check_bool,
    check_choice,
    check_integer,
    check_limited,
    check_mask,
    check_number,
    check_positive,
    described,
)

MOST_WIDTH = 10**6  # of a beam


@dataclass(frozen=True)
class Draw:
    """Draw each pick from the model's softmax. temperature: divides the scores; below 1 favours likely items."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        # Scores divided by less leave the range of float32.
        check_number("temperature", self.temperature, "at least 1e-30", lambda x: x >= 1e-30)


@dataclass(frozen=True)
class Greedy:
    """Take the item of the highest score at each place. The noise on the soft ranks stays random."""


@dataclass(frozen=True)
class Beam:
    """Take the most likely order that a beam search finds.

    width: prefixes kept at each place. kept: how many orders go on from one diffusion step to the next, under the same
    noise; they share the beam, are ranked by the summed log-probability of their predictions, and those with the same
    order are merged. returned: how many of them count as draws in the result, the most likely first.
    """

    width: int = 16
    kept: int = 1
    returned: int = 1

    def __post_init__(self) -> None:
        check_limited("width", self.width, 1, MOST_WIDTH)
        check_integer("kept", self.kept, 1, self.width)
        check_integer("returned", self.returned, 1, self.kept)


Decode = Draw | Greedy | Beam
DECODES: dict[str, Decode] = {"sample": Draw(), "greedy": Greedy()}


def decode_of(decode: str | Decode) -> Decode:
    """The choice that a name stands for, or the choice as given; raises ValueError for anything else."""
    if isinstance(decode, Draw | Greedy | Beam):
        return decode
    if not isinstance(decode, str) or decode not in DECODES:
        names = ", ".join(map(repr, DECODES))
        raise ValueError(f"decode must be {names}, Draw(...), Greedy() or Beam(...), got {decode!r}")
    return DECODES[decode]


@dataclass(frozen=True, eq=False)
class Rebuild:
    """Begin with given orders and draw a part of each again, the rest kept as it is.

    order: (B, N) int64, `order[place] = item`, real items first, or (B, num_samples, N) with an order for each draw.
    noised: bool of the same shape, by item, True = drawn again; None = all. t: in (0, 1], the time that the noised
    items go back to; at 1 they forget where they stood.

    A model that was trained for it (`SoftRankConfig.partial`) takes any part: noise moves the noised items over the
    places that they hold, and each of these places chooses among the noised items that remain. Other models draw tails
    only: the last places of the order, at t = 1, given those before.
    """

    order: Tensor
    noised: Tensor | None = None
    t: float = 1.0

    def __post_init__(self) -> None:
        for name in ("order", "noised"):
            if isinstance(getattr(self, name), np.ndarray):
                object.__setattr__(self, name, torch.from_numpy(getattr(self, name)))
        is_dense = isinstance(self.order, Tensor) and self.order.layout == torch.strided
        if not is_dense or self.order.ndim not in (1, 2, 3) or self.order.dtype != torch.int64:
            kind = ValueError if isinstance(self.order, Tensor) else TypeError
            raise kind(f"order must be a (B, N) or (B, num_samples, N) tensor of int64, got {described(self.order)}")
        if self.noised is not None:
            check_mask("noised", self.noised, "order", self.order)
        check_number("t", self.t, "above 0 and at most 1", lambda x: 0 < x <= 1)


@dataclass(frozen=True)
class Engine:
    """How predictions are computed; no choice here changes a sample beyond rounding.

    compiled: by the compiled kernels (True), in plain torch (False), or by the kernels if they compute the model
    (None). They compute a `SoftRankModel` whose layers are as they were made. One with other layers, hooks, overridden
    methods or pruned weights decodes by its modules' own forward, prefix by prefix: None warns of it once, True raises
    ValueError. cache: keep keys and values of earlier picks; cache=False is plain torch. speculative: the order
    predicted at one diffusion step is the draft of the next, which saves time. max_memory: bytes that a batch of the
    network may take, by an estimate; inputs are cut into batches that fit. None is 1 GiB, and on a GPU half of what is
    free there, with what torch holds in reserve.
    """

    compiled: bool | None = None
    cache: bool = True
    speculative: bool = True
    max_memory: int | None = None

    def __post_init__(self) -> None:
        check_choice("compiled", self.compiled, (True, False, None))
        for name in ("cache", "speculative"):
            check_bool(name, getattr(self, name))
        if self.compiled and not self.cache:
            raise ValueError("cache must be True with compiled=True: the kernels keep caches, got False")
        if self.max_memory is not None:
            check_positive("max_memory", self.max_memory)

    @property
    def uses_kernels(self) -> bool:
        """Whether predictions are computed by the compiled kernels, if they compute the model."""
        return self.compiled is not False and self.cache

    def memory_on(self, device: torch.device) -> int:
        """`max_memory` in bytes on a device."""
        if self.max_memory is not None:
            return self.max_memory
        if device.type != "cuda":
            return 2**30
        in_reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (torch.cuda.mem_get_info(device)[0] + in_reserve) // 2
