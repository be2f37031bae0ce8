"""Sizes and choices of a model: its network, its noise process, and what it knows of its data."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from softrank_ext.checks import check_choice, check_limited, check_share
from softrank_ext.model.data import DataFacts
from softrank_ext.processes import Bridge, Process, Riffle, process_from_json, process_to_json
from softrank_ext.processes.bridge import MOST_STEPS

HEADS = ("pointer", "linear", "gpl", "pl")
DECODER_HEADS = ("pointer", "linear")
TIMES = ("grid", "continuous")
INITS = ("quick", "published")
READS = ("order", "soft-ranks")
# A config may come from a file: nothing is allocated by sizes beyond these.
MOST_WIDTH = 2**16
MOST_LAYERS = 1000
MOST_ITEMS = 2**20


@dataclass(frozen=True)
class SoftRankConfig:
    """Sizes and choices of a `SoftRankModel`.

    d_model, feed_forward: widths. heads: attention heads. encoder_layers, decoder_layers: the latter 0 for gpl and pl.
    dropout: in training only. head: what gives the scores, one of HEADS. max_items: the largest N of a linear head,
    None for the others. norm_first: layer norm before each sublayer (True) or after each sum. time: what the network
    reads of a time t, the step `t * time_steps` of a grid ("grid"; for riffles, their number) or `1000 t`
    ("continuous"); training draws its times accordingly. reads: what it reads of the noisy state, the order alone or
    also the soft ranks ("soft-ranks", for a bridge to the clean order), unfolded, or folded where carry="reflected".
    partial: trained also with a part of an order noised and the rest kept, which the network is told by marks
    (`training.TrainConfig.partial`). init: the first weights, those that leave chance soonest or the published ones
    (`initialisation`). embedder: {"kind": a name in EMBEDDERS, and its arguments}, or None if the model is given an
    embedder module. process: the noise process, `Bridge` or `Riffle`, with the number of steps that a sample takes.
    data: what the model knows of its data.
    """

    d_model: int = 128
    feed_forward: int = 512
    heads: int = 8
    encoder_layers: int = 3
    decoder_layers: int = 4
    dropout: float = 0.1
    head: Literal["pointer", "linear", "gpl", "pl"] = "pointer"
    max_items: int | None = None
    norm_first: bool = True
    time: Literal["grid", "continuous"] = "grid"
    time_steps: int = 5
    reads: Literal["order", "soft-ranks"] = "order"
    partial: bool = False
    init: Literal["quick", "published"] = "quick"
    embedder: Mapping[str, object] | None = None
    process: Process = field(default_factory=Bridge)
    data: DataFacts = field(default_factory=DataFacts)

    def __post_init__(self) -> None:
        for name in ("d_model", "feed_forward", "heads"):
            check_limited(name, getattr(self, name), 1, MOST_WIDTH)
        check_limited("encoder_layers", self.encoder_layers, 1, MOST_LAYERS)
        check_limited("decoder_layers", self.decoder_layers, 0, MOST_LAYERS)
        check_limited("time_steps", self.time_steps, 1, MOST_STEPS)
        if self.d_model % 2 != 0 or self.d_model % self.heads != 0:
            raise ValueError(f"d_model must be even and a multiple of heads = {self.heads}, got {self.d_model}")
        check_share("dropout", self.dropout)
        for name in ("norm_first", "partial"):
            check_choice(name, getattr(self, name), (True, False))
        check_choice("head", self.head, HEADS)
        check_choice("time", self.time, TIMES)
        check_choice("reads", self.reads, READS)
        check_choice("init", self.init, INITS)
        if not isinstance(self.process, Bridge | Riffle):
            raise ValueError(f"process must be a Bridge or a Riffle, got {self.process!r}")
        if self.partial and not (isinstance(self.process, Bridge) and self.process.target == "clean"):
            raise ValueError(f'partial needs a Bridge of target "clean" as process, got {self.process}')
        if self.embedder is not None and not isinstance(self.embedder, Mapping):
            raise ValueError(f"embedder must be an object with a kind, or None, got {self.embedder!r}")
        if not isinstance(self.data, DataFacts):
            raise ValueError(f"data must be DataFacts, got {self.data!r}")
        self._check_head()
        self._check_time()

    def _check_head(self) -> None:
        if (self.decoder_layers > 0) != (self.head in DECODER_HEADS):
            wanted = "at least 1" if self.head in DECODER_HEADS else "0: it reads the encoder alone"
            raise ValueError(f"decoder_layers of a {self.head} head must be {wanted}, got {self.decoder_layers}")
        if self.head == "linear":
            if self.max_items is None:
                raise ValueError("max_items must be given for a linear head: the largest N that it will see")
            check_limited("max_items", self.max_items, 1, MOST_ITEMS)
        elif self.max_items is not None:
            raise ValueError(f"max_items is for a linear head, a {self.head} head takes any N; got {self.max_items}")

    def _check_time(self) -> None:
        is_stepwise = isinstance(self.process, Riffle) or self.process.target == "previous"
        if self.reads != "order" and is_stepwise:
            raise ValueError(f'reads must be "order" for the process {self.process}, got {self.reads!r}')
        if self.time != "grid" and is_stepwise:
            raise ValueError(f'time must be "grid" for the process {self.process}, got {self.time!r}')
        if isinstance(self.process, Bridge) and self.process.target == "previous":
            steps = self.process.sampling_steps
            if steps != self.time_steps:
                raise ValueError(f'sampling_steps of target "previous" must be time_steps = {self.time_steps}: {steps}')

    @property
    def time_scale(self) -> int:
        """The network reads a time t as `t * time_scale`."""
        if self.time == "continuous":
            return 1000
        return self.process.visited[-1] if isinstance(self.process, Riffle) else self.time_steps

    def to_json(self) -> dict[str, Any]:
        """The config as JSON can hold it."""
        return {**dataclasses.asdict(self), "process": process_to_json(self.process)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SoftRankConfig":
        """The config that `to_json` gave, or that a version before 0.2 wrote; raises ValueError for unknown fields."""
        fields = dict(fields)
        if not isinstance(fields.get("process"), Mapping):
            fields = _upgraded(fields)
        fields.setdefault("init", "published")  # there was no other
        data = fields.pop("data", {})
        if not isinstance(data, Mapping):
            raise ValueError(f"data must be an object, got {data!r}")
        _check_names(fields, cls, "config has ")
        _check_names(data, DataFacts, "data has ")
        return cls(**{**fields, "process": process_from_json(fields["process"]), "data": DataFacts(**data)})


def _check_names(fields: Mapping[str, Any], kind: type, where: str) -> None:
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{where}unknown field {', '.join(unknown)}; known are {', '.join(known)}")


def _upgraded(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a version before 0.2, where `steps` was the grid and the number of steps, and noise had no settings."""
    steps = fields.pop("steps", 5)
    name, target, visited = (
        fields.pop("process", "soft-rank"),
        fields.pop("target", "clean"),
        fields.pop("visited", None),
    )
    check_choice("process", name, ("soft-rank", "riffle"))
    if name == "riffle":
        process: dict[str, Any] = {"kind": "riffle", "visited": visited, "target": target}
    else:
        if visited is not None:
            raise ValueError(f'visited is for process "riffle", got {visited}')
        process = {"kind": "bridge", "target": target, "sampling_steps": steps}
    # Tours were the one task whose first item was fixed in training, and the one that read points.
    embedder = fields.get("embedder")
    is_tour = isinstance(embedder, Mapping) and embedder.get("kind") == "points"
    facts = {"symmetry": "tour", "fixed_start": True, "value_range": (0.0, 1.0), "scaling": "unit square"}
    return {**fields, "time_steps": steps, "process": process, "data": facts if is_tour else {}}


#: Layers as in the paper, widths as in the published SymmetricDiffusers files. The paper prints the two widths the
#: other way round; the "-as-printed" presets follow it. Vary one with dataclasses.replace.
PRESETS = {
    "mnist": SoftRankConfig(),
    "jigsaw": SoftRankConfig(),
    "tsp": SoftRankConfig(d_model=256, feed_forward=1024, encoder_layers=8, decoder_layers=8),
    "mnist-as-printed": SoftRankConfig(d_model=512, feed_forward=128),
    "jigsaw-as-printed": SoftRankConfig(d_model=512, feed_forward=128),
    "tsp-as-printed": SoftRankConfig(d_model=1024, feed_forward=256, encoder_layers=8, decoder_layers=8),
}
