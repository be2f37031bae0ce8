"""Models on disk: a folder with `config.json` and `model.safetensors`, the file names of the Hugging Face hub.

Nothing is pickled and nothing is downloaded. Models that come with the package are found by name.
"""

import dataclasses
import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from softrank_ext.model import SoftRankConfig, SoftRankModel

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_BUNDLED = Path(__file__).parent / "weights"


def bundled_names() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in _BUNDLED.glob(f"*/{CONFIG_FILE}"))


def save_pretrained(model: SoftRankModel, folder: str | Path) -> None:
    """Write the model's config.json and model.safetensors into the folder, which is made if need be.

    Each file is written beside its place and then moved there, so that a crash leaves no half a file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    config = dataclasses.asdict(model.config)
    new_weights, new_config = folder / f"{WEIGHTS_FILE}.new", folder / f"{CONFIG_FILE}.new"
    save_file(tensors, str(new_weights), metadata={"format": "pt"})
    new_config.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(new_weights, folder / WEIGHTS_FILE)
    os.replace(new_config, folder / CONFIG_FILE)


def from_pretrained(name_or_folder: str | Path, *, embedder: nn.Module | None = None) -> SoftRankModel:
    """Read a model from a folder, or a bundled one by name; in eval mode, on the CPU, in the dtype it was saved in.

    embedder: the module for a model that was saved with an embedder of the user's own; its weights are read as well.
    """
    folder = _folder_of(name_or_folder)
    config = _read_config(folder / CONFIG_FILE)
    if config.embedder is None and embedder is None:
        raise ValueError(f"{folder} was saved with an embedder of its own: pass from_pretrained(..., embedder=module)")
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    model = SoftRankModel(config, embedder)
    _check_tensors(folder / WEIGHTS_FILE, tensors, model.state_dict())
    model.to(tensors["encoder_norm.weight"].dtype)
    model.load_state_dict(tensors)
    return model.eval()


def _folder_of(name_or_folder: str | Path) -> Path:
    folder = Path(name_or_folder)
    if folder.is_dir():
        return folder
    if str(name_or_folder) in bundled_names():
        return _BUNDLED / name_or_folder
    names = ", ".join(bundled_names()) or "none"
    raise FileNotFoundError(f"{name_or_folder} is neither a folder nor a bundled model (bundled: {names})")


def _read_config(path: Path) -> SoftRankConfig:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: a saved model is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        fields = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(fields).__name__}")
    known = [field.name for field in dataclasses.fields(SoftRankConfig)]
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"{path} has unknown field {', '.join(unknown)}; known are {', '.join(known)}")
    try:
        return SoftRankConfig(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: a saved model is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        return load_file(str(path))
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or not a safetensors file: {error}") from error


def _check_tensors(path: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    missing = [name for name in wanted if name not in tensors]
    unexpected = [name for name in tensors if name not in wanted]
    if missing or unexpected:
        raise ValueError(
            f"{path} does not fit its {CONFIG_FILE}: missing {', '.join(missing) or 'nothing'}, "
            f"unexpected {', '.join(unexpected) or 'nothing'}"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise ValueError(
                f"{path} does not fit its {CONFIG_FILE}: {name} must be {tuple(wanted[name].shape)}, "
                f"got {tuple(tensor.shape)}"
            )
        allowed = (torch.float32, torch.float64) if wanted[name].is_floating_point() else (wanted[name].dtype,)
        if tensor.dtype not in allowed:
            raise ValueError(f"{path}: {name} must be {' or '.join(map(str, allowed))}, got {tensor.dtype}")
