"""Whole `sample` calls on this machine: the paper's runtime table, speed-ups, growth with N, distance to the limit.

    python bench/runtime.py --grid 8                8x8 only (default: 3x3, 4x4 and 8x8)
    python bench/runtime.py --parts speed --json
    python bench/runtime.py --checkpoint FOLDER     a model of numbers trained elsewhere, as `--models` holds them
    python bench/runtime.py --plot runtime.png

- table: SymmetricDiffusers (GPL, 7 layers, riffles, its own visited times), in eager PyTorch and on our compiled
  encoder, against cGPL (linear head) and pointer-cGPL (3 + 4 layers, the paper's 5 diffusion steps whatever the
  model's own number), each without KV cache and with it in eager PyTorch, and compiled. Greedy.
- speed: pointer-cGPL compiled with drafts against the eager KV-cached loop, greedy and sampled, by batch size; beside
  it the quality with and without drafts, the arithmetic done per second, and what the ratio would be at the speed of a
  4096 x 4096 matrix product.
- growth: time per sample over N (random weights, no drafts), and memory at N = 1000.

All have width 128, 8 heads, feed-forward 512. pointer-cGPL is trained: the bundled jigsaw model of the size where there
is one and CIFAR-10 is at hand, else a model that this script trains for a minute or two to sort numbers, each
seen as a vector of waves as long as a patch has pixels. It is kept in `--models`; a training that was stopped is
resumed. The other models are random: their time does not depend on their weights.
"""

import argparse
import math
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import report
import roofline
import torch
from one_pass import CompiledOnePass
from timing import fix_threads, launches_of, measured_peaks, resident, timed, timed_once, timed_together
from tqdm import tqdm
from waves import GRIDS, STEPS, SortWaves, config_of, trained_model

from softrank_ext import Engine, Riffle, Samples, SoftRankConfig, SoftRankModel, sample
from softrank_ext.baselines.symmetric_diffusers import PUBLISHED, model_settings, visited_times
from softrank_ext.tasks.jigsaw import Jigsaw

PARTS = ("table", "speed", "growth")
BASELINE = "SymmetricDiffusers (GPL)"
POINTER = "pointer-cGPL"
EAGER = Engine(compiled=False, speculative=False)
ONE_PASS, COMPILED_ONE_PASS = "one pass", "compiled one-pass"
DECODER_MODES = {"no cache": replace(EAGER, cache=False), "cache": EAGER, "compiled": Engine()}
SEQUENTIAL = Engine(speculative=False)
# The paper's seconds for 10,000 samples on one H100 (its table of wall-clock inference time).
PAPER = {
    (BASELINE, ONE_PASS): {3: 28.0, 4: 21.6, 8: 36.3},
    ("cGPL", "no cache"): {3: 31.4, 4: 41.5, 8: 216.6},
    ("cGPL", "cache"): {3: 26.3, 4: 31.4, 8: 131.7},
    (POINTER, "no cache"): {3: 31.6, 4: 51.6, 8: 242.3},
    (POINTER, "cache"): {3: 26.7, 4: 36.7, 8: 156.7},
}
BASELINE_ALLOWED = 1.0  # time of a compiled call over the baseline's
NO_CACHE_REQUIRED = 10.0  # speed-up of a compiled call at 8x8 over no cache
SPEED_REQUIRED = {1: 10.0, 64: 6.0, 256: 4.0}  # batch: speed-up over the eager cached loop
GROWTH_PLACES, GROWTH_BATCH, GROWTH_ALLOWED = (50, 100, 200, 400), 4, 2.1
LARGE_PLACES = 1000


def baseline_model(grid: int, task: SortWaves | Jigsaw, kind: type[SoftRankModel] = SoftRankModel) -> SoftRankModel:
    """The one-pass network of SymmetricDiffusers, with random weights."""
    torch.manual_seed(0)
    settings = {**model_settings("jigsaw"), **PUBLISHED}
    network: dict[str, Any] = {
        name: settings[name] for name in ("head", "encoder_layers", "decoder_layers", "norm_first")
    }
    process = Riffle(visited_times(grid * grid), target="previous")
    return kind(replace(config_of(task), **network, process=process))


def table_rows(grid: int, args: argparse.Namespace) -> list[report.Row]:
    """The runtime table of a grid."""
    pointer, task, source = trained_model(grid, args)
    torch.manual_seed(0)
    linear = SoftRankModel(replace(config_of(task), head="linear", max_items=grid * grid))
    items = next(task.test_batches(args.samples, args.samples)).items
    models: dict[tuple[str, str], SoftRankModel] = {
        (BASELINE, ONE_PASS): baseline_model(grid, task),
        (BASELINE, COMPILED_ONE_PASS): baseline_model(grid, task, CompiledOnePass),
        **{("cGPL", mode): linear for mode in DECODER_MODES},
        **{(POINTER, mode): pointer for mode in DECODER_MODES},
    }
    modes = list(models)
    calls = {}
    for (name, mode), model in models.items():
        model.to(args.device, getattr(torch, args.dtype))
        engine = DECODER_MODES.get(mode, Engine())
        calls[name, mode] = partial(sample, model, items, decode="greedy", seed=0, engine=engine)
    seconds = {}
    for name, mode in tqdm([key for key in modes if key[1] == "no cache"], desc=f"{grid}x{grid}", disable=args.json):
        seconds[name, mode] = timed_once(calls[name, mode])
    rest = {key: call for key, call in calls.items() if key not in seconds}
    for key, timing in timed_together(rest, repeats=args.repeats, seconds=1e9).items():
        seconds[key] = timing.best
    rows = []
    for name, mode in modes:
        own, paper = seconds[name, mode], PAPER.get((name, mode), {}).get(grid)
        is_ours = mode == "compiled"
        rows.append(
            {
                "name": f"{grid}x{grid} {name}, {mode}",
                "part": "table",
                "grid": grid,
                "method": name,
                "mode": mode,
                "weights": source if name == POINTER else "random",
                "samples": args.samples,
                "seconds": own,
                "samples_per_second": args.samples / own,
                "speed_up_over_no_cache": seconds.get((name, "no cache"), own) / own,
                "speed_up_over_cache": seconds.get((name, "cache"), own) / own,
                "paper_time_over_baseline": None if paper is None else paper / PAPER[BASELINE, ONE_PASS][grid],
                "ratio": own / seconds[BASELINE, ONE_PASS],
                "ratio_to_compiled": own / seconds[BASELINE, COMPILED_ONE_PASS],
                "allowed": BASELINE_ALLOWED if is_ours else None,
                "no_cache_required": NO_CACHE_REQUIRED if is_ours and grid == 8 else None,
            }
        )
    return rows


def gpu_line(grid: int, args: argparse.Namespace) -> str:
    """What compiled pointer-cGPL reaches on a GPU, beside the roofline of that GPU by its properties."""
    model, task, _ = trained_model(grid, args)
    model.to(args.device, getattr(torch, args.dtype))
    call = partial(sample, model, next(task.test_batches(args.samples, args.samples)).items, decode="greedy", seed=0)
    seconds = timed(call, repeats=args.repeats, seconds=1e9).best
    flops, read = (work / seconds / 1e9 for work in work_of(model.config, grid * grid, call()))
    bound = roofline.whole(roofline.gpu_of(args.device), grid * grid, args.samples, STEPS, args.samples)
    did = f"{seconds:.4f} s, {launches_of(call)} launches, {flops:.0f} GFLOPS, {read:.1f} GB/s of weights"
    return f"{grid}x{grid}: {did}; by the roofline {bound:.4f} s"


def work_of(config: SoftRankConfig, N: int, drawn: Samples) -> tuple[float, float]:
    """Floating-point operations of a call without its embedder, and bytes of weights that one row's passes read."""
    D, F = config.d_model, config.feed_forward
    B, K = drawn.order.shape[0] * drawn.order.shape[1], config.process.sampling_steps
    places = float((K * (N - 1) / drawn.accepted).sum())
    encoder = B * K * N * config.encoder_layers * (2 * (4 * D * D + 2 * D * F) + 4 * N * D)
    per_place = config.decoder_layers * (2 * (6 * D * D + 2 * D * F) + 4 * D * (N + N / 2)) + 2 * N * D
    memory = B * K * N * (config.decoder_layers * 4 * D * D + 2 * D * D)
    weights = 4 * (
        config.encoder_layers * (4 * D * D + 2 * D * F) * K
        + config.decoder_layers * ((6 * D * D + 2 * D * F) * float(drawn.passes.double().mean()) + 2 * D * D * K)
    )
    return encoder + per_place * places + memory, weights


def speed_rows(grid: int, args: argparse.Namespace, peaks: dict[str, float]) -> list[report.Row]:
    """Whole calls of a grid against the eager loop, by batch and decoding."""
    model, task, source = trained_model(grid, args)
    settings = [(batch, decode) for batch in args.batches for decode in ("greedy", "sample")]
    bar = tqdm(settings, desc=f"N {grid * grid}", disable=args.json)
    return [speed_row(model, task, batch, decode, args.repeats, peaks) | {"weights": source} for batch, decode in bar]


def speed_row(
    model: SoftRankModel, task: SortWaves | Jigsaw, batch: int, decode: str, repeats: int, peaks: dict[str, float]
) -> report.Row:
    """One line: times, work and quality of a call, compiled with drafts, without them, and eager."""
    instances = next(task.test_batches(batch, batch))
    N = instances.order.shape[1]
    # The item encoder is the same on both sides and not part of the loop: the network is given embedded items.
    embedded = model.eval().embed(instances.items)
    bare = SoftRankModel(replace(model.config, embedder=None), Ready())
    bare.load_state_dict({key: value for key, value in model.state_dict().items() if not key.startswith("embedder.")})
    calls = {
        name: partial(sample, bare, embedded, decode=decode, seed=0, engine=engine)
        for name, engine in (("drafts", Engine()), ("sequential", SEQUENTIAL), ("eager", EAGER))
    }
    if batch * N > 5000:  # seconds for a single call
        eager = timed_once(calls.pop("eager"))
        times = timed_together(calls, repeats=repeats, seconds=1e9)
    else:
        times = timed_together(calls, repeats=7 * repeats if batch == 1 else repeats, seconds=1e9)
        eager = times["eager"].best
    drawn, plain = calls["drafts"](), calls["sequential"]()
    flops, weight_bytes = work_of(model.config, N, drawn)
    least_flops, _ = work_of(model.config, N, plain)
    ours = times["drafts"].best

    def accuracy(samples: Samples) -> float:
        return float(task.score(instances, samples.order[:, 0])["accuracy"].double().mean())

    return {
        "name": f"N {N}, batch {batch}, {decode}: compiled with drafts, eager cached",
        "part": "speed",
        "ours_ms": ours * 1e3,
        "sequential_ms": times["sequential"].best * 1e3,
        "eager_ms": eager * 1e3,
        "ratio": eager / ours,
        "required": SPEED_REQUIRED.get(batch),
        "ratio_at_peak": eager * peaks["matmul_gflops"] * 1e9 / least_flops,
        "gflops": flops / ours / 1e9,
        "share_of_matmul": flops / ours / 1e9 / peaks["matmul_gflops"],
        "weight_gbytes": weight_bytes / ours / 1e9 if batch == 1 else None,
        "passes_per_step": float(drawn.passes.double().mean()) / STEPS,
        "accepted": float(drawn.accepted.mean()),
        "is_same": bool(torch.equal(drawn.order, plain.order) and torch.equal(drawn.log_prob, plain.log_prob)),
        "accuracy": accuracy(drawn),
        "accuracy_without_drafts": accuracy(plain),
        "log_prob": float(drawn.log_prob.mean()),
        "log_prob_without_drafts": float(plain.log_prob.mean()),
    }


class Ready(torch.nn.Module):
    """An embedder for items that are already embedded."""

    item_ndim = 1

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        """The items as they are."""
        return items


def growth_rows(args: argparse.Namespace) -> list[report.Row]:
    """Time per sample over N, and one large sample."""
    torch.manual_seed(0)
    model = SoftRankModel(SoftRankConfig(embedder={"kind": "linear", "features": 2}))
    seconds = {}
    for N in tqdm(GROWTH_PLACES, desc="growth", disable=args.json):
        items = torch.rand(GROWTH_BATCH, N, 2)
        call = partial(sample, model, items, seed=0, engine=SEQUENTIAL)
        seconds[N] = timed(call, repeats=3, seconds=1e9).best / GROWTH_BATCH
    first, last = GROWTH_PLACES[0], GROWTH_PLACES[-1]
    exponent = math.log(seconds[last] / seconds[first]) / math.log(last / first)
    # In its own process: memory that earlier calls left allocated would hide what this one takes.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        large, memory = process.submit(large_sample, torch.get_num_threads()).result()
    return [
        {
            "name": f"growth from N {first} to {last}: exponent",
            "part": "growth",
            "seconds_per_sample": {str(N): value for N, value in seconds.items()},
            "ratio": exponent,
            "allowed": GROWTH_ALLOWED,
        },
        {
            "name": f"N {LARGE_PLACES}: seconds and memory of one sample",
            "part": "growth",
            "seconds": large,
            "memory_mb": memory / 2**20,
        },
    ]


def large_sample(threads: int) -> tuple[float, int]:
    """Seconds of one sample of LARGE_PLACES items, and by how many bytes it raised the peak of this process."""
    fix_threads(threads)
    torch.manual_seed(0)
    model = SoftRankModel(SoftRankConfig(embedder={"kind": "linear", "features": 2}))
    sample(model, torch.rand(1, GROWTH_PLACES[0], 2), seed=0, engine=SEQUENTIAL)  # a warm-up, small
    items = torch.rand(1, LARGE_PLACES, 2)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = resident("VmRSS")
    seconds = timed_once(lambda: sample(model, items, seed=0, engine=SEQUENTIAL))
    return seconds, resident("VmHWM") - before


def text_of(rows: list[report.Row], peaks: dict[str, float] | None) -> str:
    """All parts that were measured, as text."""
    of = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    parts = [table_text(of["table"])] if of["table"] else []
    if of["speed"] and peaks is not None:
        parts.append(speed_text(of["speed"], peaks))
    return "\n\n".join([*parts, *map(growth_text, of["growth"])])


def table_text(rows: list[report.Row]) -> str:
    """The runtime table, and what its columns are."""
    lines = [
        ("grid, method", "mode", "seconds", "samples/s", "no cache", "cache", "baseline", "compiled", "paper's", "")
    ]
    for row in rows:
        paper = row["paper_time_over_baseline"]
        cells = (f"{row['grid']}x{row['grid']} {row['method']}", row["mode"], f"{row['seconds']:.3f}")
        ratios = (f"{row['speed_up_over_no_cache']:.2f}x", f"{row['speed_up_over_cache']:.2f}x")
        rate = f"{row['samples_per_second']:.1f}"
        shares = (f"{row['ratio']:.2f}", f"{row['ratio_to_compiled']:.2f}", "-" if paper is None else f"{paper:.2f}")
        lines.append((*cells, rate, *ratios, *shares, report.verdict(row)))
    return (
        f"{report.table(lines)}\n"
        "no cache, cache: speed-up over that mode of the same model (wanted at 8x8: 10x over no cache).\n"
        "baseline: time over the one-pass baseline's (wanted: at most 1.0); compiled: over the same network on our\n"
        "compiled encoder (wanted from --samples 64 on: at most 1.0); paper's: that over the baseline in its table\n"
        f"(one H100, its own models). pointer-cGPL's weights: {rows[-1]['weights']}; random elsewhere."
    )


def speed_text(rows: list[report.Row], peaks: dict[str, float]) -> str:
    """The table of whole calls against the eager loop, and what its columns are."""
    lines = [("N, batch, picks", "ours", "no drafts", "eager", "ratio", "wanted", "at peak", "GFLOPS", "of matmul",
              "passes", "accepted", "accuracy", "log-prob", "same", "")]  # fmt: skip
    for row in rows:
        wanted = "-" if row["required"] is None else f">= {row['required']:.0f}"
        ours, sequential, eager = (f"{row[key]:.1f} ms" for key in ("ours_ms", "sequential_ms", "eager_ms"))
        limits = (f"{row['ratio_at_peak']:.1f}x", f"{row['gflops']:.0f}", f"{row['share_of_matmul']:.0%}")
        work = (f"{row['passes_per_step']:.1f}", f"{row['accepted']:.0%}")
        quality = (f"{row['accuracy']:.3f}", f"{row['log_prob']:.3f}", "yes" if row["is_same"] else "NO")
        name, ratio = row["name"].split(":")[0], f"{row['ratio']:.1f}x"
        lines.append((name, ours, sequential, eager, ratio, wanted, *limits, *work, *quality, report.verdict(row)))
    single = [row["weight_gbytes"] for row in rows if row["weight_gbytes"] is not None]
    bandwidth = f"; at batch 1 passes read weights at {min(single):.0f} to {max(single):.0f} GB/s" if single else ""
    return (
        f"{report.table(lines)}\n"
        f"4096 matmul {peaks['matmul_gflops']:.0f} GFLOPS, copy {peaks['copy_gbytes']:.0f} GB/s (read + written)"
        f"{bandwidth}.\nat peak: the ratio if our arithmetic, without drafts, ran as fast as that matmul.\n"
        "same: orders and log-probabilities are equal, bit for bit, with and without drafts."
    )


def growth_text(row: report.Row) -> str:
    """A line about growth with N, or about one large sample."""
    if "ratio" not in row:
        return f"{row['name']}: {row['seconds']:.2f} s, {row['memory_mb']:.0f} MB beyond weights and items"
    times = ", ".join(f"N {N} {value * 1e3:.1f} ms" for N, value in row["seconds_per_sample"].items())
    return f"{row['name']} {row['ratio']:.2f} (wanted <= {row['allowed']}) {report.verdict(row)}: {times}"


def plot(rows: list[report.Row], path: str) -> None:
    """Draw the runtime table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    grids = sorted({row["grid"] for row in rows})
    figure, axes = plt.subplots(1, len(grids), figsize=(1 + 4 * len(grids), 3.5), sharey=True, layout="constrained")
    colors = {
        ONE_PASS: "#999999",
        COMPILED_ONE_PASS: "#666666",
        "no cache": "#D55E00",
        "cache": "#E69F00",
        "compiled": "#0072B2",
    }
    for axis, grid in zip([axes] if len(grids) == 1 else axes, grids, strict=True):
        own = [row for row in rows if row["grid"] == grid][::-1]
        bars = axis.barh(
            [f"{row['method']}, {row['mode']}" for row in own],
            [row["samples_per_second"] for row in own],
            color=[colors[row["mode"]] for row in own],
        )
        axis.bar_label(bars, fmt="%.3g", padding=3)
        axis.margins(x=0.2)
        axis.set_title(f"{grid}x{grid}")
        axis.set_xlabel("samples per second")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    parser = report.options("Runtime of whole sample() calls.")
    parser.add_argument("--grid", type=int, choices=sorted(GRIDS), help="one size: patches per side (default: all)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--samples", type=int, default=32, help="instances per call of the table")
    parser.add_argument("--batches", type=int, nargs="+", default=list(SPEED_REQUIRED), help="batch sizes of speed")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--checkpoint", metavar="FOLDER", help="this pointer-cGPL instead of the models described above"
    )
    default = Path.home() / ".cache" / "softrank_ext" / "bench"
    parser.add_argument("--models", type=Path, metavar="FOLDER", default=default, help=f"trained models ({default})")
    parser.add_argument("--updates", type=int, default=400, help="of such a model's training")
    parser.add_argument("--plot", metavar="FILE", help="draw the table")
    report.device_options(parser)
    args = parser.parse_args()
    if args.device.type != "cpu":
        args.parts = [part for part in args.parts if part == "table"]  # the others are about CPUs
    if args.samples < 1:
        parser.error(f"--samples must be at least 1, got {args.samples}")
    if args.plot and "table" not in args.parts:
        parser.error("--plot draws the table, which --parts leaves out")
    about = report.begin(args)
    torch.set_grad_enabled(False)
    grids = [args.grid] if args.grid else list(GRIDS)
    for grid in grids:
        if set(args.parts) & {"table", "speed"}:
            trained_model(grid, args)
    rows = [row for grid in grids for row in (table_rows(grid, args) if "table" in args.parts else [])]
    peaks = measured_peaks() if "speed" in args.parts else None
    if peaks is not None:
        about |= peaks
        rows += [row for grid in grids for row in speed_rows(grid, args, peaks)]
    if "growth" in args.parts:
        rows += growth_rows(args)
    about |= {"roofline": [gpu_line(grid, args) for grid in grids]} if args.device.type == "cuda" else {}
    if args.plot:
        plot([row for row in rows if row["part"] == "table"], args.plot)
    return report.finish(args, about, rows, text_of(rows, peaks))


if __name__ == "__main__":
    sys.exit(main())
