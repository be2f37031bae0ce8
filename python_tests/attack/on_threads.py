"""Every op, and whole calls that go through the kernels, for .ci/sanitize-ops, which runs this on 4 threads.

    python python_tests/attack/on_threads.py

Each op is called with the arguments of `attack.op_calls` and again with their rows repeated, so that every thread has
rows; then models are drawn from, scored and searched, last by two threads of Python at once. Prints how many calls.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from synthetic_runs import tiny_model
from torch import Tensor

from attack.op_calls import B, op_calls
from softrank_ext import Beam, Constraints, Rebuild, log_likelihood, sample
from softrank_ext.sampling import IncrementalDecoder

TIMES = 5  # times that rows are repeated: 10 of them on 4 threads


def main() -> None:
    """Make all calls; a race ends the process with ThreadSanitizer's report."""
    calls = 0
    for name, makes in op_calls().items():
        for make in makes:
            for arguments in (make(), _repeated(make())):
                getattr(torch.ops.softrank_ext, name)(**arguments)
                calls += 1
    model, partial = tiny_model().eval(), tiny_model(partial=True).eval()
    items = torch.rand(9, 6, 1)
    rules = Constraints(before=[(1, 2)], forbidden=[(0, 0)])
    orders = torch.rand(9, 6).argsort(1)
    whole: list[Callable[[], Any]] = [
        lambda: sample(model, items, num_samples=2, seed=1),
        lambda: sample(model, items, num_samples=2, steps=3, constraints=rules, seed=1),
        lambda: sample(partial, items, start=Rebuild(orders, items[..., 0] < 0.6, 0.5), seed=1),
        lambda: log_likelihood(model, items, orders, num_samples=8, steps=2, seed=1),
        lambda: sample(model, items, decode=Beam(4), seed=1),
        lambda: _pick_by_pick(model, items),
    ]
    for call in whole:
        call()
    # The model's packed weights are made anew, by whichever thread comes first.
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    at_once = [threading.Thread(target=call) for call in (*whole[:2], *whole[3:5])]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    print(f"{calls + len(whole) + len(at_once)} passed")


def _repeated(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with `TIMES` as many rows, where rows can be told: tensors whose first size is B."""
    return {name: value.repeat(TIMES, *[1] * (value.ndim - 1)) if _has_rows(value) else value
            for name, value in arguments.items()}  # fmt: skip


def _has_rows(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == B


def _pick_by_pick(model: Any, items: Tensor) -> None:
    decoder = IncrementalDecoder(model, items, 0.5)
    for _ in range(items.shape[1]):
        decoder.step(decoder.scores.masked_fill(~decoder.remaining, -torch.inf).argmax(1))


if __name__ == "__main__":
    main()
