"""What a call may choose beside its data: how picks are made, and how they are computed. Small frozen classes.

They are made at the door (`sample`, `evaluate`, `model.decode`, the command line), handed on as they are, and read
where they matter.
"""

from dataclasses import dataclass

from softrank_ext.checks import check_integer, check_positive


@dataclass(frozen=True)
class Draw:
    """Draw each pick from the model's softmax. temperature: divides the scores; below 1 favours likely items."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)


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
        check_integer("width", self.width, 1)
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


@dataclass(frozen=True)
class Engine:
    """How predictions are computed; no choice here changes a sample beyond rounding.

    compiled: by the compiled kernels, else in plain torch. cache: keep keys and values of earlier picks; cache=False is
    plain torch. speculative: the order predicted at one diffusion step is the draft of the next, which saves time.
    max_memory: bytes that a batch of the network may take, by an estimate; inputs are cut into batches that fit.
    """

    compiled: bool = True
    cache: bool = True
    speculative: bool = True
    max_memory: int = 2**30

    def __post_init__(self) -> None:
        check_positive("max_memory", self.max_memory)
