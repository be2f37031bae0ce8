"""No noise: what a model that is no diffusion is sampled with. Its one prediction reads the items as they are given."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from softrank_ext.noise import RowNoise
from softrank_ext.processes.bridge import Prediction


@dataclass(frozen=True)
class OnePass:
    """One prediction from the items as given, `first` in front of them and padding behind."""

    target: Literal["clean"] = "clean"

    kind: ClassVar[str] = "one-pass"
    sampling_steps: ClassVar[int] = 1

    def times(self) -> list[float]:
        """From 1 to 0 at once."""
        return [1.0, 0.0]

    def draw_prior(self, noise: RowNoise) -> Tensor:
        """Soft ranks (B, N) that ascend with the items' numbers; nothing is random."""
        count = noise.count
        ascending = torch.arange(1, count + 1, device=noise.samples.device).to(noise.dtype) / max(count, 1)
        return noise.held(ascending.expand(len(noise.samples), count))

    def draw_back(self, prediction: Prediction, t: float, s: float, noise: RowNoise, step: int) -> Tensor:
        """The predicted order's soft ranks: time 0 comes next."""
        return prediction.z_clean
