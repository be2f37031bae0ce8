"""Models on disk: a folder with `config.json` and `model.safetensors`, the file names of the Hugging Face hub.

Nothing is pickled and nothing is downloaded; bundled models are found by name in `pretrained`. A training run keeps all
that it continues from in one more file, `training.safetensors`: tensors, and a JSON object in the file's header, so
that one rename replaces the whole state.
"""

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.model.registry import model_class

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"


def save_pretrained(model: OrderModel, folder: str | Path, *, half: bool = False) -> None:
    """Write the model's config.json and model.safetensors into the folder, which is made if need be.

    half: write matrices as float16, for half the size; they are read back as float32. Each file is written beside its
    place and then moved there, so that a crash leaves no half a file.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _on_cpu(model.state_dict())
    if half:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    config = json.dumps({"model_type": model.model_type, **config_to_json(model.config)}, indent=2) + "\n"
    _write_atomically(folder / WEIGHTS_FILE, lambda path: save_file(tensors, str(path), metadata={"format": "pt"}))
    _write_atomically(folder / CONFIG_FILE, lambda path: path.write_text(config))


def load_model(folder: str | Path, *, embedder: nn.Module | None = None) -> OrderModel:
    """Read a model of any type from its folder; in eval mode, on the CPU, in its own dtype.

    Matrices saved as float16 (`save_pretrained` with half) become float32. embedder: the module for a model that was
    saved with an embedder of the user's own; its weights are read as well.
    """
    folder = Path(folder)
    make, config = _read_config(folder / CONFIG_FILE)
    if config.embedder is None and embedder is None:
        raise ValueError(f"{folder} was saved with an embedder of its own: pass from_pretrained(..., embedder=module)")
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    model = make(config, embedder)
    _check_tensors(folder / WEIGHTS_FILE, tensors, model.state_dict())
    model.to(next(tensor.dtype for tensor in tensors.values() if tensor.dtype in (torch.float32, torch.float64)))
    model.load_state_dict(tensors)
    return model.eval()


def hash_of(folder: str | Path) -> str:
    """SHA-256 of a saved model's weights file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(Path(folder) / WEIGHTS_FILE, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def save_training(folder: str | Path, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
    """Write training.safetensors into the folder: tensors, and `state`, which must be what JSON can hold."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt", "state": json.dumps(state)}
    on_cpu = _on_cpu(tensors)
    _write_atomically(folder / TRAINING_FILE, lambda path: save_file(on_cpu, str(path), metadata=metadata))


def load_training(folder: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_training` wrote: tensors on the CPU, and the state."""
    path = Path(folder) / TRAINING_FILE
    if not path.exists():
        raise FileNotFoundError(f"there is no run to resume in {Path(folder).parent}: {path} is missing")
    tensors = _read_tensors(path)
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
    if "state" not in metadata:
        raise ValueError(f"{path} is not a training state: its header has no state")
    return tensors, json.loads(metadata["state"])


def check_space(folder: str | Path, size: int) -> None:
    """Raise OSError, naming the folder, unless a file of `size` bytes can be written into it. Makes the folder."""
    folder = Path(folder)
    probe = folder / f".space-{os.getpid()}"
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


def _write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, force it to disk and move it there: a crash leaves the old or the new.

    The file has the permissions that the umask gives, also if `write` (as safetensors does) makes it private.
    """
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    new.touch()
    mode = stat.S_IMODE(new.stat().st_mode)
    write(new)
    new.chmod(mode)
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    os.replace(new, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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


def _read_config(path: Path) -> tuple[Callable[..., OrderModel], Any]:
    """The model's class and its config."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: a saved model is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        fields = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(fields).__name__}")
    try:
        make = model_class(fields.pop("model_type", SoftRankModel.model_type))
        return make, config_from_json(make.config_type, fields)
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
        is_half_matrix = tensor.dtype == torch.float16 and tensor.ndim > 1
        if tensor.dtype not in allowed and not is_half_matrix:
            raise ValueError(f"{path}: {name} must be {' or '.join(map(str, allowed))}, got {tensor.dtype}")
