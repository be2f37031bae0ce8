"""Models by name: those that come with the package, in its folder `weights`, any other by its folder, or on the hub."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch import nn

from softrank_ext import model_folder
from softrank_ext.model import OrderModel

BUNDLED = Path(__file__).parent / "weights"
# Of each bundled model: what it is for, and the items that it reads.
_ABOUT = {
    "flowshop": (
        "puts the jobs of a flow shop in order",
        "(B, N, 20) float: FlowShop.items_of(times), the time of each job on each machine",
    ),
    "jigsaw-3x3": ("puts 9 patches of a photo in order", "(B, 9, 3, 10, 10) uint8: patches of CIFAR-10 images"),
    "jigsaw-4x4": ("puts 16 patches of a photo in order", "(B, 16, 3, 8, 8) uint8: patches of CIFAR-10 images"),
    "preferences-dublin-north": (
        "draws ballots of the Dublin North election of 2002",
        "(B, 12) int64: candidates 0 to 11",
    ),
    "sorting": ("sorts handwritten four-digit numbers", "(B, N, 1, 28, 112) uint8: four MNIST digits side by side"),
    "tsp": ("finds short round trips", "(B, N, 2) float: points in the unit square"),
}


class PretrainedModel(NamedTuple):
    """A bundled model: its name, what it is for, and the items that it reads."""

    name: str
    purpose: str
    items: str


class PretrainedModels(tuple[PretrainedModel, ...]):
    """Bundled models, shown as a table."""

    def __new__(cls, models: Iterable[PretrainedModel] = ()) -> "PretrainedModels":
        """A tuple of the models given."""
        return super().__new__(cls, models)

    def __repr__(self) -> str:
        rows = [PretrainedModel("name", "what it does", "items"), *self]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def list_pretrained(author: str | None = None) -> PretrainedModels:
    """The models that come with the package: their names for `from_pretrained`, purposes and items, as a table.

    It is a tuple of `PretrainedModel(name, purpose, items)`. author: those of this author on the Hugging Face hub
    instead; needs a network, and `pip install "softrank_ext[hub]"`.
    """
    unknown = ("not described", "not described")
    if author is not None:
        from softrank_ext import hub

        return PretrainedModels(PretrainedModel(model.name, *unknown) for model in hub.list_models(author))
    return PretrainedModels(PretrainedModel(name, *_ABOUT.get(name, unknown)) for name in bundled_names())


def trained_for(name_or_folder: str | Path) -> dict[str, object]:
    """What a model was trained for, by its config: "items" that it reads, if it is bundled, and a sentence."""
    folder = folder_of(name_or_folder)
    fields = json.loads((folder / model_folder.CONFIG_FILE).read_text(encoding="utf-8")).get("data") or {}
    said = []
    if fields.get("num_items"):
        least, most = fields["num_items"]
        said.append(f"{most} items" if least == most else f"{least} to {most} items")
    if fields.get("num_machines"):
        least, most = fields["num_machines"]
        said.append(f"{most} machines" if least == most else f"{least} to {most} machines")
    if fields.get("symmetry") == "tour":
        said.append("closed tours")
    if fields.get("fixed_start"):
        said.append("the start given (pin an item at place 0)")
    if fields.get("value_range"):
        said.append("numbers from {:g} to {:g}".format(*fields["value_range"]))
    sentence = f"trained for {', '.join(said)}" if said else "its config does not say what it was trained for"
    return {"items": _ABOUT.get(str(name_or_folder), ("", "not described"))[1], "trained_for": sentence, "data": fields}


def bundled_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob(f"*/{model_folder.CONFIG_FILE}"))


def folder_of(name_or_folder: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a saved or bundled model, or of one that is fetched from the hub, by name.

    A folder goes before a bundled model of its name. revision: of a model of the hub.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        return folder
    if str(name_or_folder) in bundled_names():
        return BUNDLED / name_or_folder
    from softrank_ext import hub

    if isinstance(name_or_folder, str) and hub.is_repository(name_or_folder) and not folder.parent.is_dir():
        return hub.fetch(name_or_folder, revision=revision)
    names = ", ".join(bundled_names()) or "none"
    raise FileNotFoundError(
        f"{name_or_folder} is neither a folder nor a bundled model (bundled: {names}), nor user/name of the hub"
    )


def from_pretrained(
    name_or_folder: str | Path, *, embedder: nn.Module | None = None, revision: str | None = None
) -> OrderModel:
    """Read a model of any type in eval mode: bundled (by name, see `list_pretrained`), saved (by folder), on the hub.

    It is on the CPU and in the dtype that it was saved in. A folder goes before a bundled model of its name. embedder:
    the module for a model that was saved with an embedder of the user's own; its weights are read as well.
    "user/name" is fetched from the Hugging Face hub and kept (`pip install "softrank_ext[hub]"`), unless there is a
    folder `user` here. revision: its branch, tag or commit.
    """
    return model_folder.load_model(folder_of(name_or_folder, revision=revision), embedder=embedder)


# Of bundled models: the data that they learned from, by its name on the hub.
_DATASETS = {"sorting": ("ylecun/mnist",), "jigsaw-3x3": ("uoft-cs/cifar10",), "jigsaw-4x4": ("uoft-cs/cifar10",)}


def push_to_hub(
    model: OrderModel | str | Path, repository: str, *, private: bool | None = None, token: str | None = None
) -> str:
    """Push a model, or a saved or bundled one by folder or name, to "user/name" on the Hugging Face hub.

    A saved model is pushed as it is, with its card; a bundled one also with its metrics, data and licence as metadata.
    `hub.push_to_hub` has all options. Returns the commit's address.
    """
    from softrank_ext import hub

    if isinstance(model, OrderModel):
        return hub.push_to_hub(model, repository, private=private, token=token)
    folder = folder_of(model)
    if folder.parent != BUNDLED:
        return hub.push_to_hub(folder, repository, private=private, token=token)
    metrics = hub.metrics_of_card((folder / "README.md").read_text(encoding="utf-8"))
    datasets = _DATASETS.get(folder.name, ())
    return hub.push_to_hub(
        folder, repository, metrics=metrics, datasets=datasets, license="mit", private=private, token=token
    )
