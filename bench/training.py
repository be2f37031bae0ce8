"""How fast training is, and which share of the machine's rate of matrix products an update reaches, part by part.

    python bench/training.py                       an update of each bundled model's network
    python bench/training.py tsp --batch-size 64

Parts: data (making a batch; in training, a thread makes the next one meanwhile), reader (items to vectors), encoder,
decoder with its head, loss (noise, targets, log-probabilities: what is left of the passes), optimizer. Forward and
backward passes are counted together. A part's share is the operations of its matrix products, three times those of the
forward pass, over its time, over the rate of a 2048 x 2048 product on as many threads. The loss, the data and the
optimizer's own products (Muon's are counted) have few: what their time costs is in the share of the whole update.
Networks have the bundled sizes and new weights; the times do not depend on them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import report
import torch
from timing import timed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from softrank_ext import SoftRankModel, from_pretrained
from softrank_ext.batch import Batch
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP
from softrank_ext.training import TrainConfig
from softrank_ext.training.allocator import keep_freed_memory
from softrank_ext.training.objectives import DenoisingLoss, Noising, noisy_orders
from softrank_ext.training.optimizer import Optimizers

TASKS: dict[str, Any] = {
    "sorting": Sorting(32, cnn="light"),
    "tsp": TSP(num_points=50),
    "jigsaw-3x3": Jigsaw(3),
    "jigsaw-4x4": Jigsaw(4),
}
GOAL = {"tsp": 0.7}  # share of the matmul rate


def matmul_rate() -> float:
    """Floating-point operations per second of a large matrix product."""
    matrix = torch.rand(2048, 2048)
    return 2 * 2048**3 / timed(lambda: matrix @ matrix, repeats=5, seconds=2).best


def batch_of(name: str, size: int) -> Batch:
    """A training batch; tours of random points, whose orders do for the time."""
    batch: Batch = TASKS[name].training_batch(0, 1, size)
    return replace(batch, known=None)


def operations(call: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products and convolutions of a call."""
    counter = FlopCounterMode(display=False)
    with counter:
        call()
    return int(counter.get_total_flops())


def forward_and_back(call: Callable[[], Tensor]) -> None:
    """A forward pass and the backward pass of its sum."""
    call().sum().backward()


def parts_of(model: SoftRankModel, batch: Batch) -> dict[str, Callable[[], Tensor]]:
    """The differentiable parts of an update as calls of their own, on inputs that need gradients as in training."""
    embedded = model.embed(batch.items, batch.mask).detach().requires_grad_()
    samples = torch.arange(len(batch.order))
    noisy = noisy_orders(model.config, Noising(), batch, 0, samples)
    arranged, mask = noisy.arranged(model, embedded)
    arranged = arranged.detach().requires_grad_()
    slots = noisy.slots()
    memory = model.encode(arranged, noisy.t, mask).detach().requires_grad_()

    def decoded() -> Tensor:
        return model.decoder_scores(arranged, noisy.t, memory, slots[:, :-1], mask)

    return {
        "reader": partial(model.embed, batch.items, batch.mask),
        "encoder": partial(model.encode, arranged, noisy.t, mask),
        "decoder": decoded,
    }


def measured(name: str, size: int, rate: float) -> list[report.Row]:
    """A row for each part of an update of a bundled model's network, and one for the whole."""
    bundled = from_pretrained(name)
    assert isinstance(bundled, SoftRankModel)
    torch.manual_seed(0)
    model = SoftRankModel(bundled.config).train()
    config = TrainConfig(batch_size=size)
    batch, loss = batch_of(name, size), DenoisingLoss(model)
    optimizers = Optimizers(model, config)
    samples = torch.arange(size)

    def update() -> None:
        optimizers.zero_grad()
        loss(batch, 0, samples)[0].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(1)

    update()  # gradients and the optimizer's state exist from here on
    seconds = {"data": timed(partial(batch_of, name, size), repeats=5, seconds=2).best}
    work = {"data": 0}
    for part, call in parts_of(model, batch).items():
        seconds[part] = timed(partial(forward_and_back, call), repeats=7, seconds=4).best
        work[part] = 3 * operations(call)
    seconds["optimizer"] = timed(partial(optimizers.step, 1), repeats=7, seconds=3).best
    work["optimizer"] = operations(partial(optimizers.step, 1))
    whole = timed(update, repeats=7, seconds=8).best
    inside = sum(seconds[part] for part in ("reader", "encoder", "decoder", "optimizer"))
    seconds["loss"], work["loss"] = max(whole - inside, 0.0), 0
    items = size * batch.order.shape[1]
    rows: list[report.Row] = [
        {"name": f"{name}, {part}", "model": name, "part": part, "milliseconds": 1e3 * seconds[part],
         "of_update": seconds[part] / whole, "share_of_matmul": work[part] / max(seconds[part], 1e-9) / rate}
        for part in ("data", "reader", "encoder", "decoder", "loss", "optimizer")
    ]  # fmt: skip
    share = sum(work.values()) / whole / rate
    rows.append(
        {"name": f"{name}, update", "model": name, "part": "update", "milliseconds": 1e3 * whole, "of_update": 1.0,
         "share_of_matmul": share, "items_per_second": items / whole, "ratio": share, "goal": GOAL.get(name),
         "batch": size, "items": batch.order.shape[1]}
    )  # fmt: skip
    return rows


def text_of(rows: list[report.Row], rate: float) -> str:
    """Rows as aligned text."""
    lines: list[tuple[str, ...]] = [("model, part", "ms", "of the update", "of matmul", "items/s")]
    for row in rows:
        speed = f"{row['items_per_second']:.0f}" if "items_per_second" in row else ""
        time = f"{row['milliseconds']:.1f}"
        lines.append((row["name"], time, f"{row['of_update']:.0%}", f"{row['share_of_matmul']:.0%}", speed))
    return f"matrix product 2048 x 2048: {rate / 1e9:.0f} GFLOPS\n{report.table(lines)}"


def main() -> int:
    parser = report.options("Items per second of training, and the share of the matmul rate by part.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models, by default all")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in TASKS]
    if unknown:
        parser.error(f"models are {', '.join(TASKS)}, got {', '.join(unknown)}")
    keep_freed_memory()
    about = report.begin(args)
    rate = matmul_rate()
    rows = [row for name in args.names or list(TASKS) for row in measured(name, args.batch_size, rate)]
    return report.finish(args, {**about, "matmul_gflops": rate / 1e9}, rows, text_of(rows, rate))


if __name__ == "__main__":
    raise SystemExit(main())
