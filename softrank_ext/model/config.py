"""Sizes and choices of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from softrank_ext.processes import bridge, riffle

HEADS = ("pointer", "linear", "gpl", "pl")
DECODER_HEADS = ("pointer", "linear")
TIMES = ("grid", "continuous")
PROCESSES = ("soft-rank", "riffle")
TARGETS = ("clean", "previous")


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
