"""All calls that the fuzzing starts from: name, function and a maker of keyword arguments that work."""

from collections.abc import Callable
from typing import Any

import torch

from attack.op_calls import Make, op_calls
from attack.public_calls import missing, public_calls

CALLS: list[tuple[str, Callable[..., Any], Make]] = [
    *(
        (f"torch.ops.{name}", getattr(torch.ops.softrank_ext, name), make)
        for name, makes in op_calls().items()
        for make in makes
    ),
    *((name, call, lambda given=given: dict(given)) for name, call, given in public_calls()),
]
_SCHEMAS = {
    name.removeprefix("softrank_ext::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("softrank_ext::")
}
MISSING = sorted(_SCHEMAS - set(op_calls())) + missing()  # a new op or public function without a line is not fuzzed
