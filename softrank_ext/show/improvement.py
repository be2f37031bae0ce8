"""The page that plays a search for a short tour: `improvement.html` with the recorded rounds written into it as JSON.

One file, without network or other scripts.
"""

from itertools import pairwise

import torch
from torch import Tensor

from softrank_ext.sampling import Improved
from softrank_ext.show.templates import filled_page

ROUNDING = 1e-6  # of lengths in float32: the same tour from another start may be so much shorter


def improvement_page(found: Improved, points: Tensor, *, row: int = 0, best: float | None = None, title: str) -> str:
    """One self-contained HTML page of the rounds of `improve`, recorded by `Drawing(record=True)`, with one chain.

    points: (N, 2), those of row `row`. best: the length of the best known tour, None if there is none.
    """
    if found.draws_of_rounds is None:
        raise ValueError("found must be recorded, by improve(..., drawing=Drawing(record=True))")
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"points must be (N, 2), got {tuple(points.shape)}")
    history = torch.as_tensor(found.history).reshape(-1, found.rounds + 1)[row].tolist()
    rounds = [
        {
            "order": drawn.order[row].tolist(),
            "drawn": drawn.noised[row].nonzero()[:, 0].tolist(),
            "cost": float(drawn.cost[row]),
            "lowest": lowest,
        }
        for drawn, lowest in zip(found.draws_of_rounds, history, strict=True)
    ]
    shorter = sum(after < (1 - ROUNDING) * before for before, after in pairwise(history))
    if shorter > 0:
        many = f"{shorter} of {found.rounds} rounds found a shorter tour: from {history[0]:.4f} to {history[-1]:.4f}"
        summary = f"{many}, {100 * (1 - history[-1] / history[0]):.2f} % less."
    else:
        summary = (
            f"The shortest of the initial draws is already the answer: none of the {found.rounds} rounds is shorter."
        )
    data: dict[str, object] = {
        "title": title, "summary": summary, "points": points.double().tolist(), "rounds": rounds,
    }  # fmt: skip
    if best is not None:
        data["best"] = best
    return filled_page("improvement.html", data)
