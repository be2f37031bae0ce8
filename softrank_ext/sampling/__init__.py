"""Orders drawn from a model: the reverse process, its result, beam search, the decoder a pick at a time."""

from softrank_ext.sampling.reverse import Samples, evaluating, sample, steps_of

__all__ = ["Samples", "evaluating", "sample", "steps_of"]
