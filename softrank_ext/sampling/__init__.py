"""Orders drawn from a model: `sample`, the reverse process, its result, beam search, the decoder a pick at a time."""

from softrank_ext.sampling.beam import Hypotheses, beam_decode, beam_search
from softrank_ext.sampling.conditioning import Conditions, conditions_of, pins_of
from softrank_ext.sampling.improve import Improved, improve
from softrank_ext.sampling.incremental import IncrementalDecoder
from softrank_ext.sampling.parts import Near, Part, Tail, Unsure, Whole
from softrank_ext.sampling.sample import fresh_seed, sample
from softrank_ext.sampling.samples import Samples
from softrank_ext.sampling.settings import Annealed, Drawing, Search
from softrank_ext.sampling.trajectory import Frames, Trajectory, TrajectoryPoint

__all__ = [
    "Annealed",
    "Conditions",
    "Drawing",
    "Frames",
    "Hypotheses",
    "Improved",
    "IncrementalDecoder",
    "Near",
    "Part",
    "Samples",
    "Search",
    "Tail",
    "Trajectory",
    "TrajectoryPoint",
    "Unsure",
    "Whole",
    "beam_decode",
    "beam_search",
    "conditions_of",
    "fresh_seed",
    "improve",
    "pins_of",
    "sample",
]
