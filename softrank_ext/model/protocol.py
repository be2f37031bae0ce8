"""What `sample`, `train`, `evaluate` and `model_folder` ask of a model."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class OnePassModel(nn.Module, ABC):
    """What `sample`, `train`, `evaluate` and `checkpoint` ask of a model that is no diffusion.

    A class of its own sets model_type, its name in config.json and in `model_folder.MODEL_TYPES`, and config_type, a
    dataclass that JSON can hold and whose field `embedder` is as in `SoftRankConfig`. Made by
    `type(model)(config, embedder)`, it has the attributes config and embedder.
    """

    model_type: str
    config_type: type
    config: Any
    embedder: nn.Module

    @abstractmethod
    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is computed once for all samples of an instance: (B, N, ...) from items (B, N, ...)."""

    @abstractmethod
    def choose(
        self, embedded: Tensor, mask: Tensor | None, first: Tensor | None, uniform: Tensor | None, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Orders (B, N) int64, real items first, and their log-probabilities (B,), NaN if the model has none.

        embedded: of `embed`. mask: (B, N) bool, True = real item. first: (B,) int64, the items that stand first by
        decree. uniform: (B, N) in [0, 1), what the draws at each place are read off; None for the best order. Raises
        ValueError, saying so, where the model cannot.
        """

    @abstractmethod
    def loss_module(self) -> nn.Module:
        """A module with the model in it and a forward as that of `losses.DenoisingLoss`."""

    @abstractmethod
    def bytes_per_sample(self, N: int) -> int:
        """An estimate of the memory that `choose` takes for one instance of N items."""
