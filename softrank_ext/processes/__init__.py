"""Noise processes, without a network: frozen settings with their times, prior draw, forward draw and step back.

`Bridge` noises soft ranks, `Riffle` shuffles orders, `OnePass` does nothing. A model's process is part of its config.
`PartialOrder` is an order of which only a part is noised.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

from softrank_ext.processes.bridge import Bridge, NoisyOrder, Prediction
from softrank_ext.processes.one_pass import OnePass
from softrank_ext.processes.partial import PartialOrder
from softrank_ext.processes.riffle import Riffle

Process = Bridge | Riffle
_KINDS: dict[str, type[Process]] = {Bridge.kind: Bridge, Riffle.kind: Riffle}


def process_to_json(process: Process) -> dict[str, object]:
    """The process as config.json has it: its kind and its fields."""
    return {"kind": process.kind, **{field.name: getattr(process, field.name) for field in fields(process)}}


def process_from_json(value: object) -> Process:
    """The process that `process_to_json` wrote; raises ValueError, naming the field, for anything else."""
    if not isinstance(value, Mapping) or value.get("kind") not in _KINDS:
        raise ValueError(f"process must be an object whose kind is one of {', '.join(_KINDS)}, got {value!r}")
    kind = _KINDS[str(value["kind"])]
    settings = {name: number for name, number in value.items() if name != "kind"}
    known = [field.name for field in fields(kind)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise ValueError(f"process has unknown field {', '.join(unknown)}; known are {', '.join(known)}")
    return kind(**settings)


def process_of_call(
    own: Process | OnePass, process: Process | None = None, steps: int | None = None
) -> Process | OnePass:
    """The process that a call runs: the model's own, or another one for this call, or with so many steps.

    What the network reads of time does not change with it. Raises ValueError if the model cannot run it, or if both are
    given and differ in their number of steps.
    """
    if process is None:
        chosen = own
        if steps is not None and steps != own.sampling_steps:
            if not isinstance(own, Bridge) or own.target != "clean":
                raise ValueError(f"steps of this model must be its own {own.sampling_steps}, or None, got {steps}")
            chosen = replace(own, sampling_steps=steps)
        return chosen
    if type(process) is not type(own) or process.target != own.target:
        raise ValueError(f"process must be of the model's own kind and target, {own}, got {process}")
    if isinstance(own, Riffle) and isinstance(process, Riffle) and process != own:
        raise ValueError(f"process must visit what the model was trained for, {own.visited}, got {process.visited}")
    if own.target == "previous" and process.sampling_steps != own.sampling_steps:
        raise ValueError(f"sampling_steps of this model must be its own {own.sampling_steps}, got {process}")
    if steps is not None and steps != process.sampling_steps:
        raise ValueError(
            f"steps must be left out or agree with process.sampling_steps = {process.sampling_steps}, got {steps}"
        )
    return process


__all__ = [
    "Bridge",
    "NoisyOrder",
    "OnePass",
    "PartialOrder",
    "Prediction",
    "Process",
    "Riffle",
    "process_from_json",
    "process_of_call",
    "process_to_json",
]
