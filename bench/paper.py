"""The paper's tables: their rows, sizes and metrics, and the numbers that the paper has for them (arXiv 2603.17353).

`tables.py` trains and evaluates the rows, `table_text.py` and `making/readme.py` write them beside these numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Row:
    """A method with its settings, and the paper's numbers for it by size.

    model, process, training: changes of the method's options, of the noise process in them and of its training, the
    latter by size. evaluation: changes of the process in `evaluate`, by the name of the table's line; several lines
    share one trained model.
    """

    name: str
    method: str
    model: Mapping[str, Any] = field(default_factory=dict)
    process: Mapping[str, str] = field(default_factory=dict)
    training: Callable[[int], Mapping[str, Any]] = lambda size: {}
    evaluation: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"": {}})
    paper: Mapping[str, Mapping[int, Metrics]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """Rows, the sizes that the paper has, the name of a size, the metrics shown and the paper's table they are in."""

    rows: tuple[Row, ...]
    sizes: tuple[int, ...]
    size_name: str
    metrics: tuple[str, ...]
    source: str


PapersLine = dict[str, dict[int, Metrics]]


def _orders(
    sizes: Sequence[int], kendall_tau: Sequence[float], accuracy: Sequence[float], correctness: Sequence[float]
) -> PapersLine:
    """The paper's numbers of a row with one line, one of each metric for each size."""
    numbers = zip(sizes, kendall_tau, accuracy, correctness, strict=True)
    return {"": {size: {"kendall_tau": tau, "accuracy": all_right, "correctness": places}
                 for size, tau, all_right, places in numbers}}  # fmt: skip


def _tours(length: Sequence[float], gap: Sequence[float]) -> PapersLine:
    """The paper's numbers of a row for its two numbers of nodes."""
    return {"": {size: {"length": length[i], "gap": gap[i]} for i, size in enumerate((20, 50))}}


_SORTING_SIZES = (9, 15, 32, 52, 75, 100, 150, 200)
_JIGSAW_SIZES = (3, 4, 8)
_ORDER_METRICS = ("kendall_tau", "accuracy", "correctness", "tie_aware_accuracy", "tie_aware_correctness")
_CGPL = {"head": "linear"}
# Of Error-free DiffSort the paper gives a rate by size.
_ERROR_FREE_RATES = {9: 1e-4, 15: 1e-4, 32: 1e-4, 52: 10**-3.5, 75: 10**-3.5, 100: 10**-3.5, 150: 10**-3.5, 200: 1e-4}
_TOUR_RATE = {"learning_rate": 2e-4}


def _error_free_rate(size: int) -> Mapping[str, Any]:
    return {"learning_rate": _ERROR_FREE_RATES.get(size, 1e-4)}


_SORTING = Table(
    rows=(
        Row(
            "DiffSort", "diffsort",
            paper=_orders(
                _SORTING_SIZES,
                kendall_tau=(0.8163, 0.7386, 0.4423, 0.3037, 0.2227, 0.1617, 0.0891, 0.0636),
                accuracy=(0.5555, 0.2350, 0.0003, 0.0, 0.0, 0.0, 0.0, 0.0),
                correctness=(0.8643, 0.7975, 0.5335, 0.3897, 0.2987, 0.2251, 0.1307, 0.0953),
            ),
        ),
        Row(
            "Error-free DiffSort", "error-free-diffsort", training=_error_free_rate,
            paper=_orders(
                _SORTING_SIZES,
                kendall_tau=(0.9151, 0.9160, 0.8798, 0.0042, 0.0005, 0.0029, 0.0006, 0.0002),
                accuracy=(0.7953, 0.7492, 0.5186, 0.0, 0.0, 0.0, 0.0, 0.0),
                correctness=(0.9365, 0.9334, 0.9019, 0.0258, 0.0132, 0.0112, 0.0072, 0.0030),
            ),
        ),
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_orders(
                _SORTING_SIZES,
                kendall_tau=(0.9483, 0.9320, 0.8610, 0.7890, 0.7304, 0.1114, 0.0641, 0.0022),
                accuracy=(0.8955, 0.8260, 0.5896, 0.3009, 0.1379, 0.0, 0.0, 0.0),
                correctness=(0.9605, 0.9450, 0.8846, 0.8232, 0.7733, 0.1620, 0.0975, 0.0061),
            ),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL,
            paper=_orders(
                _SORTING_SIZES,
                kendall_tau=(0.9668, 0.9384, 0.8765, 0.8092, 0.6925, 0.6279, 0.4821, 0.3982),
                accuracy=(0.9397, 0.8601, 0.6555, 0.4239, 0.1908, 0.0863, 0.0080, 0.0004),
                correctness=(0.9742, 0.9505, 0.8967, 0.8393, 0.7347, 0.6773, 0.5468, 0.4644),
            ),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank",
            paper=_orders(
                _SORTING_SIZES,
                kendall_tau=(0.9645, 0.9455, 0.8944, 0.8459, 0.7727, 0.7454, 0.6198, 0.6048),
                accuracy=(0.9329, 0.8710, 0.6854, 0.4909, 0.2742, 0.1922, 0.0421, 0.0137),
                correctness=(0.9719, 0.9559, 0.9119, 0.8724, 0.8082, 0.7849, 0.6704, 0.6607),
            ),
        ),
        Row("Lehmer code", "lehmer"),
        Row("Insertion code", "lehmer", {"code": "insertion"}),
    ),
    sizes=_SORTING_SIZES,
    size_name="N",
    metrics=_ORDER_METRICS,
    source='"MNIST sorting benchmark"',
)  # fmt: skip

_TSP = Table(
    rows=(
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_tours(length=(5.4342, 12.8525), gap=(0.4169, 1.2618)),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL, training=lambda size: _TOUR_RATE,
            paper=_tours(length=(3.8732, 5.7336), gap=(0.0079, 0.0078)),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank", training=lambda size: _TOUR_RATE,
            paper=_tours(length=(3.8557, 5.7157), gap=(0.0034, 0.0047)),
        ),
        Row("Lehmer code", "lehmer", training=lambda size: _TOUR_RATE),
        Row("Insertion code", "lehmer", {"code": "insertion"}, training=lambda size: _TOUR_RATE),
    ),
    sizes=(20, 50),
    size_name="nodes",
    metrics=("length", "gap", "gap_after_2opt"),
    source='"TSP performance on TSP-20 and TSP-50"',
)  # fmt: skip

_JIGSAW = Table(
    rows=(
        Row(
            "SymmetricDiffusers, GPL", "symmetric-diffusers",
            paper=_orders(
                _JIGSAW_SIZES, kendall_tau=(0.8312, 0.6101, 0.0250), accuracy=(0.7002, 0.2172, 0.0),
                correctness=(0.8662, 0.6753, 0.0501),
            ),
        ),
        Row(
            "Soft-Rank, cGPL", "softrank", _CGPL,
            paper=_orders(
                _JIGSAW_SIZES, kendall_tau=(0.9494, 0.9320, 0.2521), accuracy=(0.9221, 0.8752, 0.0924),
                correctness=(0.9564, 0.9413, 0.2854),
            ),
        ),
        Row(
            "Soft-Rank, pointer-cGPL", "softrank",
            paper=_orders(
                _JIGSAW_SIZES, kendall_tau=(0.9542, 0.9345, 0.4962), accuracy=(0.9258, 0.8681, 0.2700),
                correctness=(0.9601, 0.9448, 0.5256),
            ),
        ),
        Row("Lehmer code", "lehmer"),
        Row("Insertion code", "lehmer", {"code": "insertion"}),
    ),
    sizes=_JIGSAW_SIZES,
    size_name="grid",
    metrics=_ORDER_METRICS,
    source='"CIFAR-10 jigsaw benchmark"',
)  # fmt: skip

# Sorting 32 numbers. Soft-rank with target clean is the main table's row; soft-rank with GPL is not in the paper.
_ABLATION_PAPER = {
    ("riffle", "GPL", "previous"): (0.8610, 0.5896, 0.8846),
    ("riffle", "GPL", "clean"): (-0.0013, 0.0, 0.0312),
    ("riffle", "cGPL", "previous"): (0.8527, 0.5833, 0.8758),
    ("riffle", "cGPL", "clean"): (-0.0011, 0.0, 0.0313),
    ("riffle", "pointer-cGPL", "previous"): (0.8742, 0.6404, 0.8950),
    ("riffle", "pointer-cGPL", "clean"): (0.0001, 0.0, 0.0314),
    ("soft-rank", "GPL", "previous"): None,
    ("soft-rank", "GPL", "clean"): None,
    ("soft-rank", "cGPL", "previous"): (0.8764, 0.6425, 0.8958),
    ("soft-rank", "cGPL", "clean"): (0.8765, 0.6555, 0.8967),
    ("soft-rank", "pointer-cGPL", "previous"): (0.9074, 0.7152, 0.9232),
    ("soft-rank", "pointer-cGPL", "clean"): (0.8944, 0.6854, 0.9119),
}
_REVERSE_MODELS: dict[str, Mapping[str, Any]] = {
    "GPL": {"head": "gpl", "encoder_layers": 7, "decoder_layers": 0},
    "cGPL": {"head": "linear", "encoder_layers": 3, "decoder_layers": 4},
    "pointer-cGPL": {"head": "pointer", "encoder_layers": 3, "decoder_layers": 4},
}


def _ablation_row(process: str, reverse: str, target: str, paper: Sequence[float] | None) -> Row:
    """Riffles are trained as SymmetricDiffusers is (three trajectories, all visited times), soft ranks as Soft-Rank.

    All by the likelihood: what SymmetricDiffusers adds to it for jigsaws needs a GPL network.
    """
    method = "symmetric-diffusers" if process == "riffle" else "softrank"
    numbers = {} if paper is None else {"": {32: dict(zip(_ORDER_METRICS, paper, strict=False))}}
    return Row(
        f"{process}, {reverse}, {target}", method, _REVERSE_MODELS[reverse], {"target": target},
        lambda size: {"objective": "likelihood"}, paper=numbers,
    )  # fmt: skip


_ABLATION = Table(
    rows=tuple(_ablation_row(*key, paper) for key, paper in _ABLATION_PAPER.items()),
    sizes=(32,),
    size_name="N",
    metrics=_ORDER_METRICS,
    source='"Ablation study" (soft-rank with target clean: "MNIST sorting benchmark")',
)

# The same rows on jigsaws, which the paper does not have: patches are read fast, so minutes of training are enough.
_JIGSAW_ABLATION = Table(
    rows=tuple(_ablation_row(*key, None) for key in _ABLATION_PAPER),
    sizes=(3,),
    size_name="grid",
    metrics=_ORDER_METRICS,
    source="",
)

# Of the 4 x 4 jigsaw, by the priors of training and of evaluation: accuracy and correctness in per cent, tau.
_PRIOR_PAPER = {
    ("cGPL", "uniform", "uniform"): (86.67, 93.93, 0.9303),
    ("cGPL", "uniform", "gaussian"): (87.09, 94.08, 0.931),
    ("cGPL", "gaussian", "uniform"): (86.71, 94.01, 0.932),
    ("cGPL", "gaussian", "gaussian"): (86.96, 94.08, 0.9317),
    ("pointer-cGPL", "uniform", "uniform"): (87.35, 94.43, 0.9365),
    ("pointer-cGPL", "uniform", "gaussian"): (87.33, 94.51, 0.937),
    ("pointer-cGPL", "gaussian", "uniform"): (87.17, 94.31, 0.935),
    ("pointer-cGPL", "gaussian", "gaussian"): (86.94, 94.38, 0.9347),
}


def _prior_row(reverse: str, prior: str) -> Row:
    evaluation, paper = {}, {}
    for other in ("uniform", "gaussian"):
        accuracy, correctness, tau = _PRIOR_PAPER[reverse, prior, other]
        line = f"evaluated {other}"
        evaluation[line] = {"prior": other}
        paper[line] = {4: {"kendall_tau": tau, "accuracy": accuracy / 100, "correctness": correctness / 100}}
    return Row(
        f"{reverse}, trained {prior}", "softrank", _CGPL if reverse == "cGPL" else {}, {"prior": prior},
        evaluation=evaluation, paper=paper,
    )  # fmt: skip


_PRIOR = Table(
    rows=tuple(_prior_row(reverse, prior) for reverse in ("cGPL", "pointer-cGPL") for prior in ("uniform", "gaussian")),
    sizes=(4,),
    size_name="grid",
    metrics=_ORDER_METRICS,
    source='"Matched" and "Mismatched train/eval p_ref on CIFAR10 jigsaw"',
)

TABLES = {
    "sorting": _SORTING, "tsp": _TSP, "jigsaw": _JIGSAW, "ablation": _ABLATION, "ablation-jigsaw": _JIGSAW_ABLATION,
    "prior": _PRIOR,
}  # fmt: skip
SORTING_TABLES, JIGSAW_TABLES = ("sorting", "ablation"), ("jigsaw", "ablation-jigsaw", "prior")


def papers_numbers(row: Row, line: str, size: int) -> dict[str, Any]:
    """The paper's numbers for a line of a row, and their size: this one, or the only one that the paper has."""
    by_size = row.paper.get(line, {})
    if size not in by_size and len(by_size) == 1:
        size = next(iter(by_size))
    return {"paper": by_size.get(size), "paper_size": size if size in by_size else None}
