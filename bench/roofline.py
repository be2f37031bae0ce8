"""What a GPU's memory and arithmetic allow a place of the decoder at most: an analysis, nothing here is measured.

    python bench/roofline.py                 the tables of docs/speed.md
    python bench/roofline.py --device cuda   the same for this machine's GPU, by its properties

For each place a block of rows reads all weights of the decoder, through its multiprocessor and from L2, and multiplies
them by 8 or 16 tokens on tensor cores, three times (3xTF32); each row reads its keys and values, from L2 while those of
all rows fit, else from memory. A layer passes 10 barriers. The bound is the slowest of these; the estimate adds what
cannot overlap: keys and values, and the barriers.
"""

import argparse
import math
import sys
from dataclasses import dataclass

import report
import torch

BARRIER = 0.3e-6  # seconds: of a barrier with the latency of what comes first behind it
LAUNCH = 6e-6  # seconds of the host per launch of torch
ENCODER_LAUNCHES = 95  # of a prediction with 3 encoder layers


@dataclass(frozen=True)
class Gpu:
    """What bounds a GPU: multiprocessors, GHz, TB/s of memory and of L2, MB of L2, tf32 products per clock and
    multiprocessor, TFLOPS of float32 matrix products in torch."""

    name: str
    processors: int
    clock: float
    memory: float
    l2: float
    l2_size: float
    tf32: float
    float32: float


# Data sheets; L2 bandwidths are what microbenchmarks report; of tensor cores, what mma.sync reaches.
GPUS = (
    Gpu("H100 SXM", 132, 1.755, 3.35, 5.5, 50, 650, 45),
    Gpu("A100 80GB", 108, 1.41, 2.04, 4.5, 40, 512, 14),
    Gpu("L4", 58, 2.04, 0.30, 1.8, 48, 256, 18),
)


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder: width, feed-forward, layers."""

    D: int = 128
    F: int = 512
    layers: int = 4

    def weights(self) -> int:
        """Numbers that a place reads, biases left out."""
        return self.layers * (6 * self.D**2 + 2 * self.D * self.F)

    def products(self, N: int) -> float:
        """Multiplications per row and place, over all places in the mean."""
        return self.weights() + self.layers * 2 * self.D * 1.5 * N + self.D * N

    def cache_bytes(self, N: int) -> float:
        """Bytes of keys, values and head keys that a row reads per place in the mean."""
        return 4 * (self.layers * 2 * self.D * 1.5 * N + self.D * N)

    def held_bytes(self, N: int) -> int:
        """Bytes of keys and values of a row."""
        return 4 * self.layers * 4 * self.D * N


@dataclass(frozen=True)
class Place:
    """Seconds of a place of a whole batch: no less than `bound`, about `estimate`; what the bound comes from."""

    bound: float
    estimate: float
    limit: str


def place(gpu: Gpu, decoder: Decoder, N: int, B: int) -> Place:
    """One place of B rows."""

    def rounds_of(rows: int) -> int:
        return math.ceil(math.ceil(B / rows) / gpu.processors)

    # Per block, as csrc/ops/cuda/decoder_plan.h has it.
    rows = min((1, 2, 4, 8, 16), key=lambda rows: rounds_of(rows) * (8 + max(rows, 8)))
    blocks, rounds = math.ceil(B / rows), rounds_of(rows)
    weight_bytes = 4 * decoder.weights()
    fits = B * decoder.held_bytes(N) < 0.6 * gpu.l2_size * 1e6
    parts = {
        "weights": max(
            rounds * weight_bytes / (64 * gpu.clock * 1e9),  # 64 bytes per clock into a multiprocessor
            blocks * weight_bytes / (gpu.l2 * 1e12),
        ),
        "tensor cores": 3 * rounds * max(rows, 8) * decoder.products(N) / (gpu.tf32 * gpu.clock * 1e9),
        "caches": B * decoder.cache_bytes(N) / ((gpu.l2 if fits else gpu.memory) * 1e12),
        "barriers": 10 * decoder.layers * BARRIER,
    }
    limit = max(parts, key=lambda name: parts[name])
    estimate = max(parts["weights"], parts["tensor cores"]) + parts["caches"] + parts["barriers"]
    return Place(parts[limit], estimate, limit)


def whole(gpu: Gpu, N: int, samples: int = 10_000, steps: int = 5, batch: int = 1024) -> float:
    """Seconds of so many samples: encoder (3 layers, in torch) and decoder of all steps, by the estimate."""
    decoder = Decoder()
    D, F = decoder.D, decoder.F
    products = batch * N * (3 * (4 * D * D + 2 * D * F) + decoder.layers * 2 * D * D + D * D)
    encoder = max(2 * products / (gpu.float32 * 1e12), ENCODER_LAUNCHES * LAUNCH)
    return samples / batch * steps * ((N - 1) * place(gpu, decoder, N, batch).estimate + encoder)


def tables(gpus: tuple[Gpu, ...] = GPUS) -> str:
    """Both tables as Markdown."""
    header = ["N, batch", *(f"{gpu.name}: bound, estimate" for gpu in gpus)]
    rows = []
    for N in (9, 16, 64):
        for B in (1, 64, 1024):
            found = [place(gpu, Decoder(), N, B) for gpu in gpus]
            rows.append([f"{N}, {B}", *(f"{p.bound * 1e6:.0f}, {p.estimate * 1e6:.0f} µs ({p.limit})" for p in found)])
    paper = {9: 26.3, 16: 31.4, 64: 131.7}
    totals = [
        [f"{int(math.sqrt(N))}x{int(math.sqrt(N))}", *(f"{whole(gpu, N):.1f} s" for gpu in gpus), f"{seconds} s"]
        for N, seconds in paper.items()
    ]
    lines = report.markdown_table(header, rows)
    lines += ["", *report.markdown_table(["10,000 samples, K = 5", *(gpu.name for gpu in gpus), "the paper"], totals)]
    return "\n".join(lines)


def gpu_of(device: torch.device) -> Gpu:
    """The GPU of this machine by its properties; what torch does not tell is taken for that of an A100."""
    found, like = torch.cuda.get_device_properties(device), GPUS[1]
    clock = getattr(found, "clock_rate", like.clock * 1e6) / 1e6  # kHz
    width, memory_clock = getattr(found, "memory_bus_width", 0), getattr(found, "memory_clock_rate", 0)
    memory = 2 * width / 8 * memory_clock * 1e3 / 1e12 or like.memory
    l2 = like.l2 * found.multi_processor_count * clock / (like.processors * like.clock)
    float32 = 2 * 128 * found.multi_processor_count * clock / 1e3 * 0.8
    return Gpu(
        found.name, found.multi_processor_count, clock, memory, l2, found.L2_cache_size / 1e6,
        1024 if found.major >= 9 else like.tf32, float32,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Bounds of the decoder on GPUs: an analysis, not a measurement.")
    parser.add_argument("--device", help="this machine's GPU instead of the three of docs/speed.md")
    args = parser.parse_args()
    print(tables((gpu_of(torch.device(args.device)),)) if args.device else tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())
