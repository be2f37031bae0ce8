"""What `improve` may choose: how it goes on from its initial draws, and how draws are made. Small frozen classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from softrank_ext.checks import check_bool, check_instance, check_integer, check_not_negative, check_number, described
from softrank_ext.choices import Beam, Decode, Draw, Engine, decode_of
from softrank_ext.model import DataFacts
from softrank_ext.processes import Process
from softrank_ext.sampling.parts import Rebuilding

Polish = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Annealed:
    """Take costlier orders too, the more so the earlier: with probability `exp(-increase / temperature)`.

    The temperature is `start` times the mean cost of the initial draws, and `decay` of itself after every round.
    """

    start: float = 0.01
    decay: float = 0.95

    def __post_init__(self) -> None:
        check_not_negative("start", self.start)
        check_number("decay", self.decay, "above 0 and at most 1", lambda x: 0 < x <= 1)


@dataclass(frozen=True)
class Search:
    """How `improve` goes on from its initial draws.

    rebuild: which part is drawn again, one of `Part`, `Tail`, `Near`, `Unsure`, `Whole`, or a tuple of them, of which
    each round takes one at random. None for what the model can do: stretches of a tour, tails of other orders, or any
    stretch of these too if the model was trained for it. accept: "better", or `Annealed(...)`.
    polish: a function from (items, order) to orders that cost no more, as a local search; it is applied to every draw.
    fresh: share of fresh draws, kept at that; None lets it follow what has lately paid. pool: how many good orders a
    search remembers and goes on from: more are more ways to go, with fewer draws for each. None for 160 over the number
    of items, from 3 to 8: long orders take many draws to get right, short ones are soon stuck.
    """

    rebuild: Rebuilding | tuple[Rebuilding, ...] | None = None
    accept: Literal["better"] | Annealed = "better"
    polish: Polish | None = None
    fresh: float | None = None
    pool: int | None = None

    def __post_init__(self) -> None:
        kinds = self.rebuild if isinstance(self.rebuild, tuple) else (self.rebuild,)
        if not kinds or not all(kind is None or isinstance(kind, Rebuilding) for kind in kinds):
            raise ValueError(
                f"rebuild must be Part, Tail, Near, Unsure, Whole, a tuple of them, or None, got {self.rebuild!r}"
            )
        if self.accept != "better" and not isinstance(self.accept, Annealed):
            raise ValueError(f'accept must be "better" or Annealed(...), got {self.accept!r}')
        if self.polish is not None and not callable(self.polish):
            raise TypeError(f"polish must be a function polish(items, order) -> order, got {described(self.polish)}")
        if self.fresh is not None:
            check_number("fresh", self.fresh, "from 0 to 1", lambda x: 0 <= x <= 1)
        if self.pool is not None:
            check_integer("pool", self.pool, 1)

    def pool_size(self, N: int) -> int:
        """How many good orders of N items are remembered."""
        return max(3, min(8, 160 // max(N, 1))) if self.pool is None else self.pool


@dataclass(frozen=True)
class Drawing:
    """How the draws of `improve` are made: decode, process and engine as in `sample`.

    copies: make the draws from the copies of an instance in turn, if the model was trained with copies
    (`DataFacts.copies`: points turned and mirrored), else from the instance as it is. decode: None for draws at
    temperature 0.5 from copies, which keep them apart, and at 1 without. process: by default the model's own with one
    step, a prediction per draw. first_row: number of the first row, for
    input that is cut into calls: row i of a call is what row `first_row + i` is in one call for all. record: keep every
    round's draws in `Improved.draws_of_rounds`.
    """

    decode: str | Decode | None = None
    process: Process | None = None
    engine: Engine = Engine()
    first_row: int = 0
    record: bool = False
    copies: bool = True

    def __post_init__(self) -> None:
        if self.decode is not None and isinstance(decode_of(self.decode), Beam):
            raise ValueError("decode must be a draw or greedy here, got Beam(...)")
        check_instance("engine", self.engine, Engine)
        check_bool("record", self.record)
        check_bool("copies", self.copies)
        check_integer("first_row", self.first_row, 0)

    def num_copies(self, data: DataFacts) -> int:
        """How many copies of an instance the draws of a model with these facts are made from."""
        return data.num_copies if self.copies else 1

    def choice(self, data: DataFacts) -> Decode:
        """How a model with these facts picks items."""
        if self.decode is not None:
            return decode_of(self.decode)
        return Draw(0.5) if self.num_copies(data) > 1 else Draw()
