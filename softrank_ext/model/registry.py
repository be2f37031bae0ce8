"""Model classes by the name that config.json has for them under "model_type".

Our own are imported when a folder asks for them. Others register by the decorator `register_model`, or their package
names them in the entry point group "softrank_ext.models" (name = model_type, value = "module:Class").
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

ENTRY_POINTS = "softrank_ext.models"
_OWN = {
    "soft-rank": ("softrank_ext.model", "SoftRankModel"),
    "diffsort": ("softrank_ext.baselines.diffsort", "DiffSortModel"),
    "factorised": ("softrank_ext.baselines.factorised", "FactorisedModel"),
}
_registered: dict[str, type] = {}
_Class = TypeVar("_Class", bound=type)


def register_model(cls: _Class) -> _Class:
    """Class decorator: `from_pretrained` reads folders whose model_type is this class's. See `protocol.OrderModel`."""
    name, config_type = getattr(cls, "model_type", None), getattr(cls, "config_type", None)
    if not isinstance(name, str) or not isinstance(config_type, type):
        raise TypeError(f"{cls.__name__} must have a model_type (a name) and a config_type (a dataclass)")
    known = _registered.get(name)
    if name in _OWN or (known is not None and known.__qualname__ != cls.__qualname__):
        raise ValueError(f"model_type {name!r} of {cls.__name__} must be new, another class has it")
    _registered[name] = cls
    return cls


def model_types() -> list[str]:
    """The names of all known model types."""
    return [*_OWN, *_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))]


def model_class(model_type: str) -> Any:
    """The class of that name; raises ValueError, listing the names, if there is none."""
    if model_type in _OWN:
        module, name = _OWN[model_type]
        return getattr(import_module(module), name)
    if model_type in _registered:
        return _registered[model_type]
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == model_type:
            return point.load()
    raise ValueError(f"model_type must be one of {', '.join(model_types())}, got {model_type!r}")
