"""The paper's runtime table on this machine: whole `sample` calls on jigsaw-sized instances.

    python bench/runtime.py --grid 8                the 8x8 column (default: 3x3, 4x4 and 8x8)
    python bench/runtime.py --samples 256 --json
    python bench/runtime.py --checkpoint FOLDER     a trained model's decoder instead of random weights
    python bench/runtime.py --plot runtime.png

Rows: the one-pass baseline (a GPL model of 7 encoder layers, with SymmetricDiffusers' number of reverse jumps), then
cGPL (linear head) and pointer-cGPL (3 + 4 layers, 5 diffusion steps), each without KV cache and with it in eager
PyTorch, and compiled. All have width 128, 8 heads, feed-forward 512 and decode greedily. Items are random numbers, as
many as the pixels of a patch, embedded linearly: the network and the loop are timed, not a task's image encoder.
"""

import argparse
import sys
from dataclasses import replace

import report
import torch
from timing import timed, timed_once
from tqdm import tqdm

from softrank_ext import SoftRankConfig, SoftRankModel, sample

GRIDS = {3: 10, 4: 8, 8: 4}  # patches per side: pixels per patch side
BASELINE_JUMPS = {3: 3, 4: 3, 8: 5}  # visited times {0 3 5 9}, {0 4 6 10}, {0 5 6 7 10 13}
STEPS = 5
BASELINE = "SymmetricDiffusers (GPL)"
# The paper's seconds for 10,000 samples on one H100 (its table of wall-clock inference time).
PAPER = {
    (BASELINE, "one pass"): {3: 28.0, 4: 21.6, 8: 36.3},
    ("cGPL", "no cache"): {3: 31.4, 4: 41.5, 8: 216.6},
    ("cGPL", "cache"): {3: 26.3, 4: 31.4, 8: 131.7},
    ("pointer-cGPL", "no cache"): {3: 31.6, 4: 51.6, 8: 242.3},
    ("pointer-cGPL", "cache"): {3: 26.7, 4: 36.7, 8: 156.7},
}
DECODER_MODES = {
    "no cache": {"compiled": False, "cache": False},
    "cache": {"compiled": False},
    "compiled": {"compiled": True},
}


def make_models(grid: int, checkpoint: str | None) -> dict[str, SoftRankModel]:
    features = 3 * GRIDS[grid] ** 2
    torch.manual_seed(0)
    config = SoftRankConfig(embedder={"kind": "linear", "features": features})
    gpl = replace(config, head="gpl", encoder_layers=7, decoder_layers=0)
    models = {BASELINE: SoftRankModel(gpl)}
    if checkpoint is None:
        models["cGPL"] = SoftRankModel(replace(config, head="linear", max_items=grid * grid))
        models["pointer-cGPL"] = SoftRankModel(config)
    else:
        models[checkpoint] = SoftRankModel.from_pretrained(checkpoint)
    return models


def items_for(model: SoftRankModel, samples: int, places: int) -> torch.Tensor:
    embedder = model.config.embedder
    if embedder is None or embedder["kind"] != "linear":
        raise SystemExit(f"--checkpoint must be a model with a linear embedder, got {embedder}")
    return torch.rand(samples, places, embedder["features"], generator=torch.Generator().manual_seed(1))


def measure(grid: int, args: argparse.Namespace) -> list[dict]:
    rows = []
    models = make_models(grid, args.checkpoint)
    modes = [(name, mode) for name in models for mode in (["one pass"] if name == BASELINE else DECODER_MODES)]
    seconds: dict[tuple[str, str], float] = {}
    with tqdm(modes, desc=f"{grid}x{grid}", disable=args.json, file=sys.stderr) as bar:
        for name, mode in bar:
            bar.set_postfix_str(f"{name}, {mode}")
            model = models[name]
            items = items_for(model, args.samples, grid * grid)
            options = DECODER_MODES.get(mode, {"compiled": True})
            steps = BASELINE_JUMPS[grid] if name == BASELINE else STEPS

            def run(model=model, items=items, steps=steps, options=options):
                return sample(model, items, steps=steps, decode="greedy", **options)

            if mode == "no cache":
                run(items=items[: max(1, args.samples // 16)])
                seconds[name, mode] = timed_once(run)
            else:
                seconds[name, mode] = timed(run, repeats=args.repeats, seconds=1e9).best
            rows.append(
                {
                    "name": f"{grid}x{grid} {name}, {mode}",
                    "grid": grid,
                    "method": name,
                    "mode": mode,
                    "samples": args.samples,
                    "seconds": seconds[name, mode],
                    "samples_per_second": args.samples / seconds[name, mode],
                    "paper_seconds_of_10000": PAPER.get((name, mode), {}).get(grid),
                }
            )
    for row in rows:
        method, own = row["method"], row["seconds"]
        row["speed_up_over_no_cache"] = seconds.get((method, "no cache"), own) / own
        row["speed_up_over_cache"] = seconds.get((method, "cache"), own) / own
        row["time_over_baseline"] = own / seconds[BASELINE, "one pass"]
        paper, paper_baseline = row["paper_seconds_of_10000"], PAPER[BASELINE, "one pass"][grid]
        row["paper_time_over_baseline"] = None if paper is None else paper / paper_baseline
    return rows


def table(rows: list[dict]) -> str:
    lines = [("grid, method", "mode", "seconds", "samples/s", "no cache", "cache", "baseline", "paper's", "")]
    for row in rows:
        paper = row["paper_time_over_baseline"]
        lines.append(
            (
                f"{row['grid']}x{row['grid']} {row['method']}",
                row["mode"],
                f"{row['seconds']:.3f}",
                f"{row['samples_per_second']:.1f}",
                f"{row['speed_up_over_no_cache']:.2f}x",
                f"{row['speed_up_over_cache']:.2f}x",
                f"{row['time_over_baseline']:.2f}",
                "-" if paper is None else f"{paper:.2f}",
                "",
            )
        )
    explanation = (
        "no cache, cache: speed-up over that mode of the same model. baseline: time over the one-pass baseline's;\n"
        "paper's: the same in the paper's table (one H100, 10,000 samples, its own models)."
    )
    return f"{report.table(lines)}\n{explanation}"


def plot(rows: list[dict], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    grids = sorted({row["grid"] for row in rows})
    figure, axes = plt.subplots(1, len(grids), figsize=(1 + 4 * len(grids), 3.5), sharey=True, layout="constrained")
    colors = {"one pass": "#999999", "no cache": "#D55E00", "cache": "#E69F00", "compiled": "#0072B2"}
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
    parser.add_argument("--grid", type=int, choices=sorted(GRIDS), help="one column: patches per side (default: all)")
    parser.add_argument("--samples", type=int, default=32, help="instances per call")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--checkpoint", metavar="FOLDER", help="time this model instead of random weights")
    parser.add_argument("--plot", metavar="FILE", help="draw the table")
    args = parser.parse_args()
    if args.samples < 1:
        parser.error(f"--samples must be at least 1, got {args.samples}")
    about = report.begin(args)
    rows = [row for grid in ([args.grid] if args.grid else GRIDS) for row in measure(grid, args)]
    if args.plot:
        plot(rows, args.plot)
    return report.finish(args, about, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
