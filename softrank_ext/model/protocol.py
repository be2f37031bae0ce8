"""What `sample`, `evaluate`, `train` and `model_folder` ask of a model: one protocol for diffusions and for others."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.choices import Engine
from softrank_ext.processes import OnePass, Process

_Model = TypeVar("_Model", bound="OrderModel")


class OrderModel(nn.Module, ABC):
    """A module that predicts orders. A type of your own is a subclass that registers by `register_model`.

    model_type: its name in config.json. config_type: a dataclass that JSON can hold (or that has `to_json` and
    `from_json`), with a field `embedder` as in `SoftRankConfig`; the model is made by `type(model)(config, embedder)`.
    process: what it is sampled with, `OnePass()` if it is no diffusion. fixed_start: a pin at place 0 is handed over as
    a forced start, else as a rule. decodes_by_pick: a decoder runs pick by pick and makes use of drafts.
    """

    model_type: str
    config_type: Any
    config: Any
    embedder: nn.Module

    @property
    @abstractmethod
    def process(self) -> Process | OnePass:
        """The noise process that the model was trained for."""

    @property
    @abstractmethod
    def fixed_start(self) -> bool:
        """Whether a pin at place 0 fixes the start of an order instead of being a rule."""

    @property
    @abstractmethod
    def decodes_by_pick(self) -> bool:
        """Whether a decoder runs pick by pick, so that drafts save time."""

    @property
    def takes_parts(self) -> bool:
        """Whether the model was trained with a part of an order noised and the rest kept; then `marked` marks it."""
        return False

    def marked(self, embedded: Tensor, kept: Tensor) -> Tensor:
        """Embedded items (B, N, ...) with those that are kept, (B, N) bool, marked for the network."""
        raise ValueError(f"a {self.model_type} model was not trained with a part of an order noised")

    @abstractmethod
    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is computed once for all samples of an instance: (B, N, ...) from items (B, N, ...)."""

    def at_soft_ranks(self, embedded: Tensor, z_t: Tensor, mask: Tensor | None = None) -> Tensor:
        """What `decode_embedded` takes at soft ranks z_t (B, N) by item: embedded as it is, unless they are read."""
        return embedded

    @abstractmethod
    def packed_weights(self) -> Any:
        """What predictions share beside the weights, made once per call; None if there is nothing."""

    @abstractmethod
    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        choices: ops.Choices = ops.Choices(),
        *,
        order: Tensor | None = None,
        engine: Engine = Engine(),
        packed_weights: Any = None,
    ) -> ops.DecodedOrder:
        """Predict an order over slots, (B, N) int64, real slots first, with log-probabilities (B, N), NaN if unknown.

        embedded: of `embed`, by item. order: (B, N) int64, the items of the slots. mask: (B, N) bool, by slot. choices:
        uniform numbers that draws are read off (None for the best order), a forced start (forced_order with
        forced_places 1), rules. Raises ValueError, saying so, where the model cannot do what is asked.
        """

    @abstractmethod
    def own_loss(self) -> nn.Module | None:
        """A module with the model in it and a forward as that of `training.objectives.DenoisingLoss`.

        None for a model that is trained by the objectives, which need `log_prob` at noisy orders.
        """

    @abstractmethod
    def bytes_per_sample(self, N: int) -> int:
        """An estimate of the memory that a prediction takes for one instance of N items."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors into the folder: `model_folder.save_pretrained`."""
        from softrank_ext import model_folder

        model_folder.save_pretrained(self, folder)

    def push_to_hub(self, repository: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Push the model and a card to "user/name" on the Hugging Face hub: `softrank_ext.push_to_hub`."""
        from softrank_ext.pretrained import push_to_hub

        return push_to_hub(self, repository, private=private, token=token)

    @classmethod
    def from_pretrained(cls: type[_Model], name_or_folder: str | Path, *, embedder: nn.Module | None = None) -> _Model:
        """Read a saved or bundled model of this class, in eval mode; of a subclass, a model of the subclass.

        `softrank_ext.from_pretrained` reads models of any type.
        """
        from softrank_ext import model_folder
        from softrank_ext.pretrained import folder_of

        return model_folder.load_model(folder_of(name_or_folder), embedder=embedder, kind=cls)


class OnePassModel(OrderModel):
    """A model that is no diffusion: one prediction from the items as given, with the start in front if one is fixed."""

    @property
    def process(self) -> OnePass:
        """No noise."""
        return OnePass()

    @property
    def fixed_start(self) -> bool:
        """True: a pin at place 0 is handed over as a forced start."""
        return True

    @property
    def decodes_by_pick(self) -> bool:
        """False: drafts would not save time."""
        return False

    def packed_weights(self) -> None:
        """None: predictions share nothing beside the weights."""
