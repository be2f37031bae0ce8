"""Models on disk: a folder with `config.json` and `model.safetensors`, the file names of the Hugging Face hub.

Nothing is pickled and nothing is downloaded; bundled models are found by name in `pretrained`. A training run keeps all
that it continues from in one more file, `training.safetensors`: tensors, and a JSON object in the file's header. The
files of a folder are saved in one step and checked when they are read (`atomic_files`).
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from softrank_ext.atomic_files import has_file, read_files, save_files, temporary_name
from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.model.registry import model_class

_Model = TypeVar("_Model", bound=OrderModel)
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"


def save_pretrained(model: OrderModel, folder: str | Path, *, half: bool = False) -> None:
    """Write the model's config.json and model.safetensors into the folder, which is made if need be, and a manifest.

    half: write matrices as float16, for half the size; they are read back as float32. Both files change in one step:
    a crash leaves the old model or the new one.
    """
    save_files(folder, _model_files(model, half))


def save_checkpoint(
    model: OrderModel, folder: str | Path, tensors: Mapping[str, Tensor], state: Mapping[str, object]
) -> None:
    """Write a model and the training state that it belongs to in one step."""
    save_files(folder, {**_training_files(tensors, state), **_model_files(model)})


def _model_files(model: OrderModel, half: bool = False) -> dict[str, bytes]:
    tensors = _on_cpu(model.state_dict())
    if half:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    config = json.dumps({"model_type": model.model_type, **config_to_json(model.config)}, indent=2) + "\n"
    return {WEIGHTS_FILE: safetensors.save(tensors, metadata={"format": "pt"}), CONFIG_FILE: config.encode()}


def _training_files(tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> dict[str, bytes]:
    metadata = {"format": "pt", "state": json.dumps(state)}
    return {TRAINING_FILE: safetensors.save(_on_cpu(tensors), metadata=metadata)}


@overload
def load_model(folder: str | Path, *, embedder: nn.Module | None = None) -> OrderModel: ...


@overload
def load_model(folder: str | Path, *, embedder: nn.Module | None = None, kind: type[_Model]) -> _Model: ...


def load_model(
    folder: str | Path, *, embedder: nn.Module | None = None, kind: type[OrderModel] = OrderModel
) -> OrderModel:
    """Read a model of any type from its folder; in eval mode, on the CPU, in its own dtype.

    Matrices saved as float16 (`save_pretrained` with half) become float32. embedder: the module for a model that was
    saved with an embedder of the user's own; its weights are read as well. kind: the class that is wanted; a subclass
    of the one that was saved is made instead of it.
    """
    folder = Path(folder)
    files = _read_model_files(folder)
    make, config = _parsed_config(folder / CONFIG_FILE, files[CONFIG_FILE])
    if issubclass(kind, make):
        make = kind
    elif not issubclass(make, kind):
        raise ValueError(f"{folder} holds a {make.model_type} model: use softrank_ext.from_pretrained")
    if config.embedder is None and embedder is None:
        raise ValueError(f"{folder} was saved with an embedder of its own: pass from_pretrained(..., embedder=module)")
    tensors = _parsed_tensors(folder / WEIGHTS_FILE, files[WEIGHTS_FILE])
    _check_tensors(folder / WEIGHTS_FILE, tensors, _blueprint(folder / CONFIG_FILE, make, config, embedder))
    model = make(config, embedder)
    model.to(next(tensor.dtype for tensor in tensors.values() if tensor.dtype in (torch.float32, torch.float64)))
    model.load_state_dict(tensors)
    return model.eval()


def _blueprint(
    path: Path, make: Callable[..., OrderModel], config: Any, embedder: nn.Module | None
) -> dict[str, Tensor]:
    """The model's tensors without memory behind them: sizes are compared with the file's before they are taken."""
    try:
        with torch.device("meta"):
            return make(config, embedder).state_dict()
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: no model can be made of it: {error}") from error
    except RuntimeError:  # a type of the user's own that computes while it is made
        return make(config, embedder).state_dict()


def hash_of(folder: str | Path) -> str:
    """SHA-256 of a saved model's weights file, in hexadecimal."""
    return hashlib.sha256(read_files(folder, (WEIGHTS_FILE,))[WEIGHTS_FILE]).hexdigest()


def is_saved(model: OrderModel, folder: str | Path) -> bool:
    """Whether the folder holds a config and this model's weights, bit for bit."""
    try:
        files = read_files(folder, (WEIGHTS_FILE, CONFIG_FILE))
        saved = _parsed_tensors(Path(folder) / WEIGHTS_FILE, files[WEIGHTS_FILE])
    except (FileNotFoundError, ValueError):
        return False
    own = _on_cpu(model.state_dict())
    return saved.keys() == own.keys() and all(_have_same_bits(saved[name], own[name]) for name in own)


def _have_same_bits(tensor: Tensor, other: Tensor) -> bool:
    if tensor.dtype != other.dtype or tensor.shape != other.shape:
        return False
    return torch.equal(tensor.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def save_training(folder: str | Path, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
    """Write training.safetensors into the folder: tensors, and `state`, which must be what JSON can hold."""
    save_files(folder, _training_files(tensors, state))


def load_training(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_training` wrote: tensors on the CPU, and the state."""
    path = Path(folder) / TRAINING_FILE
    try:
        data = read_files(folder, (TRAINING_FILE,))[TRAINING_FILE]
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no run to resume in {Path(folder).parent}: {path} is missing") from error
    tensors = _parsed_tensors(path, data)
    metadata = _header_of(data).get("__metadata__") or {}
    if "state" not in metadata:
        raise ValueError(f"{path} is not a training state: its header has no state")
    state: dict[str, Any] = json.loads(metadata["state"])
    return tensors, state


def _header_of(data: bytes) -> dict[str, Any]:
    """The JSON object that a safetensors file begins with."""
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def check_space(folder: str | Path, size: int) -> None:
    """Raise OSError, naming the folder, unless a file of `size` bytes can be written into it. Makes the folder."""
    folder = Path(folder)
    probe = folder / temporary_name("space")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(probe, "wb") as file:
            for start in range(0, size, 2**20):
                file.write(bytes(min(2**20, size - start)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(
            error.errno, f"cannot write {size / 1e6:.1f} MB of checkpoints into {folder}: {error.strerror or error}"
        ) from error
    finally:
        if probe.is_file():
            probe.unlink()


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def _halved(name: str, tensor: Tensor) -> Tensor:
    """A matrix as float16; vectors (norms, biases) stay: they are small, and they tell the model's dtype."""
    if tensor.dtype != torch.float32 or tensor.ndim < 2:
        return tensor
    halved = tensor.half()
    if not bool(halved.isfinite().all()):
        raise ValueError(f"{name} has numbers that float16 cannot hold, up to {float(tensor.abs().max()):g}")
    return halved


def config_to_json(config: Any) -> dict[str, Any]:
    """A model's config as JSON can hold it: by its own `to_json`, or field by field."""
    made: dict[str, Any] = config.to_json() if hasattr(config, "to_json") else dataclasses.asdict(config)
    return made


def config_from_json(config_type: Any, fields: Mapping[str, Any]) -> Any:
    """The config that `config_to_json` wrote, also in a former version; raises ValueError, naming what is wrong."""
    if hasattr(config_type, "from_json"):
        return config_type.from_json(fields)
    known = [field.name for field in dataclasses.fields(config_type)]
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise ValueError(f"config has unknown field {', '.join(unknown)}; known are {', '.join(known)}")
    return config_type(**fields)


def _read_model_files(folder: Path) -> dict[str, bytes]:
    """The bytes of config.json and model.safetensors, of one save."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not has_file(folder, name):
            raise FileNotFoundError(
                f"{folder / name} is missing: a saved model is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}"
            )
    return read_files(folder, (CONFIG_FILE, WEIGHTS_FILE))


def _parsed_config(path: Path, data: bytes) -> tuple[type[OrderModel], Any]:
    """The model's class and its config."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(fields).__name__}")
    try:
        make = model_class(fields.pop("model_type", SoftRankModel.model_type))
        return make, config_from_json(make.config_type, fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed_tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.load(data)
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
    for name, own in wanted.items():
        tensor = tensors[name]
        if tensor.shape != own.shape:
            raise ValueError(
                f"{path} does not fit its {CONFIG_FILE}: {name} must be {tuple(own.shape)}, got {tuple(tensor.shape)}"
            )
        allowed = (torch.float32, torch.float64) if own.is_floating_point() else (own.dtype,)
        is_half_matrix = tensor.dtype == torch.float16 and tensor.ndim > 1
        if tensor.dtype not in allowed and not is_half_matrix:
            raise ValueError(f"{path}: {name} must be {' or '.join(map(str, allowed))}, got {tensor.dtype}")
