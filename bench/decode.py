"""Speed of the compiled decoder, measured in turns in one run (random weights: d 128, ff 512, 8 heads, 4 layers).

    python bench/decode.py [--json] [--compare FILE]

- compiled against the same decoder in eager PyTorch with preallocated KV caches and scaled_dot_product_attention;
- compiled against one teacher-forced pass of the same shape, which does the same arithmetic with large matrices;
- with caches against without, both in eager PyTorch;
- memory: how far the process grows beyond weights and inputs, in units of the caches of the whole batch.
"""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import report
import roofline
import torch
from timing import launches_of, resident, timed_together

from softrank_ext import SoftRankConfig, SoftRankModel, ops

PARTS = ("speed", "cache", "memory")
PLACES = 64
SPEED = {1: 5.0, 16: 3.5, 64: 3.0, 256: 2.5}  # batch: ratio to the eager cached loop that is required
TEACHER_FORCED = {64: 1.5, 256: 1.5}  # batch: ratio to a teacher-forced pass that is allowed
CACHE = {9: None, 16: None, 64: 6.0}  # N: ratio of eager without caches to eager with, that is required
CACHE_BATCH = 64
MEMORY_BATCH, MEMORY_PLACES, MEMORY_ALLOWED = 256, 200, 1.3


def make_model() -> SoftRankModel:
    """A model of the default size with random weights."""
    torch.manual_seed(0)
    return SoftRankModel(SoftRankConfig(embedder={"kind": "linear", "features": 2})).eval()


def compiled(decoder: ops.Transformer, inputs: ops.DecoderInputs, choices: ops.Choices) -> object:
    """`ops.decode_order` without its checks, which read the data."""
    return torch.ops.softrank_ext.decode_order(*decoder, *inputs, *choices)


class Decoding:
    """One batch at one diffusion time: everything that `decode_order` takes, encoded beforehand."""

    def __init__(self, model: SoftRankModel, batch: int, places: int) -> None:
        generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        self.model = model
        self.embedded = model.embed(torch.rand(batch, places, 2, generator=generator))
        self.inputs = model.decoder_inputs(self.embedded, 0.6, is_embedded=True)
        self.uniform = torch.rand(batch, places, generator=generator)
        self.order = torch.rand(batch, places, generator=generator).argsort(1)

    def run(self, decode: Callable[..., object]) -> Callable[[], object]:
        """A call of `compiled` or of a reference on this batch."""
        decoder, choices = self.model.packed_weights().decoder, ops.Choices(uniform=self.uniform)
        return lambda: decode(decoder, self.inputs, choices)

    def teacher_forced(self) -> object:
        """The decoder's and the head's part of `SoftRankModel.scores`, and its log-softmax."""
        inputs = self.inputs
        last_picks = inputs.tokens.gather(1, self.order[:, :-1, None].expand(-1, -1, inputs.tokens.shape[2]))
        x = torch.cat((inputs.start[:, None], last_picks), 1) + inputs.places
        for layer in self.model.decoder_layers:
            x = layer(x, inputs.memory, None)
        scores = self.model.decoder_norm(x) @ inputs.head_keys.transpose(1, 2) + inputs.head_bias[:, None]
        return scores.log_softmax(2)


def speed_rows(model: SoftRankModel, rounds: int, batches: list[int]) -> list[report.Row]:
    """Compiled against eager with caches, and against a teacher-forced pass."""
    rows: list[report.Row] = []
    for batch in batches:
        required = SPEED[batch]
        decoding = Decoding(model, batch, PLACES)
        times = timed_together(
            {
                "compiled": decoding.run(compiled),
                "eager": decoding.run(ops.decode_order_reference),
                "teacher-forced": decoding.teacher_forced,
            },
            repeats=rounds,
            seconds=1e9,
        )
        ours = times["compiled"].best
        for other, limits in (
            ("eager", {"required": required}),
            ("teacher-forced", {"allowed": TEACHER_FORCED.get(batch)}),
        ):
            theirs = times[other].best
            rows.append(
                {
                    "name": f"batch {batch}, N {PLACES}: compiled, {other}",
                    "ours_ms": ours * 1e3,
                    "ours_median_ms": times["compiled"].median * 1e3,
                    "other_ms": theirs * 1e3,
                    "ratio": theirs / ours if other == "eager" else ours / theirs,
                    **limits,
                }
            )
        if torch.get_default_device().type == "cuda":
            rows[-2]["launches"] = launches_of(decoding.run(compiled))
    return rows


def roofline_lines(rows: list[report.Row], device: torch.device) -> list[str]:
    """What the compiled decoder reached, beside what the GPU's properties allow (bench/roofline.py)."""
    gpu, decoder, lines = roofline.gpu_of(device), roofline.Decoder(), []
    for row in rows:
        if not row["name"].endswith("eager"):
            continue
        batch, seconds = int(row["name"].split(",")[0].split()[1]), row["ours_ms"] / 1e3 / (PLACES - 1)
        bound = roofline.place(gpu, decoder, PLACES, batch)
        reached = 2 * batch * decoder.products(PLACES) / seconds / 1e12
        moved = (4 * decoder.weights() + batch * decoder.cache_bytes(PLACES)) / seconds / 1e12
        lines.append(
            f"batch {batch}: {row['launches']} launches, {seconds * 1e6:.0f} us per place, {reached:.2f} TFLOPS, "
            f"{moved:.2f} TB/s of weights (once) and caches; bound {bound.bound * 1e6:.0f} us by {bound.limit}, "
            f"estimate {bound.estimate * 1e6:.0f} us"
        )
    return lines


def cache_rows(model: SoftRankModel, rounds: int) -> list[report.Row]:
    """Eager PyTorch with caches against without."""
    rows: list[report.Row] = []
    for places, required in CACHE.items():
        decoding = Decoding(model, CACHE_BATCH, places)
        times = timed_together(
            {
                "cached": decoding.run(ops.decode_order_reference),
                "uncached": decoding.run(ops.decode_order_uncached),
            },
            repeats=rounds,
            seconds=1e9,
        )
        rows.append(
            {
                "name": f"batch {CACHE_BATCH}, N {places}: eager with caches, without",
                "ours_ms": times["cached"].best * 1e3,
                "ours_median_ms": times["cached"].median * 1e3,
                "other_ms": times["uncached"].best * 1e3,
                "ratio": times["uncached"].best / times["cached"].best,
                "required": required,
            }
        )
    return rows


def _growth_of_decoding(threads: int, connection: Connection) -> None:
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = make_model()
    Decoding(model, 2, 8).run(compiled)()
    decoding = Decoding(model, MEMORY_BATCH, MEMORY_PLACES)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = resident("VmRSS")
    decoding.run(compiled)()
    connection.send(resident("VmHWM") - before)


def memory_row(model: SoftRankModel, threads: int) -> report.Row:
    """Growth of the peak of a fresh process, over the bytes of keys and values of prefix and memory of all rows."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_growth_of_decoding, args=(threads, sender))
    process.start()
    growth = receiver.recv()
    process.join()
    config = model.config
    caches = 4 * config.decoder_layers * MEMORY_BATCH * MEMORY_PLACES * config.d_model * 4
    return {
        "name": f"batch {MEMORY_BATCH}, N {MEMORY_PLACES}: peak memory, caches of the batch",
        "ours_mb": growth / 2**20,
        "other_mb": caches / 2**20,
        "ratio": growth / caches,
        "allowed": MEMORY_ALLOWED,
    }


def table(rows: list[report.Row]) -> str:
    """Rows as aligned text."""
    lines = [("what: ours, other", "ours", "other", "ratio", "wanted", "")]
    for row in rows:
        unit = "mb" if "ours_mb" in row else "ms"
        required, allowed = row.get("required"), row.get("allowed")
        wanted = f">= {required:.1f}" if required else f"<= {allowed:.1f}" if allowed else "-"
        cells = [f"{row[f'{side}_{unit}']:.1f} {unit}" for side in ("ours", "other")]
        lines.append((row["name"], *cells, f"{row['ratio']:.2f}", wanted, report.verdict(row)))
    return report.table(lines)


def main() -> int:
    parser = report.options("Speed of the compiled decoder.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the sides take turns")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    report.device_options(parser)
    parser.add_argument("--batches", nargs="+", type=int, choices=SPEED, default=list(SPEED), help="for the speed part")
    args = parser.parse_args()
    about = report.begin(args)
    torch.set_grad_enabled(False)
    report.make_tensors_on(args)
    model = make_model()
    rows: list[report.Row] = []
    if "speed" in args.parts:
        rows += speed_rows(model, args.rounds, args.batches)
        if args.device.type == "cuda":
            about["roofline"] = roofline_lines(rows, args.device)
    if "cache" in args.parts:
        rows += cache_rows(model, min(args.rounds, 3))
    if "memory" in args.parts and args.device.type == "cpu":
        rows.append(memory_row(model, args.threads))
    return report.finish(args, about, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
