"""SymmetricDiffusers (Zhang et al., 2025): noise of riffle shuffles, undone jump by jump by a one-pass network.

It is made of parts that Soft-Rank Diffusion has as well: the process is `riffle`, the networks are the heads `gpl` and
`pl` of SoftRankModel, the losses `DenoisingLoss` and, for jigsaws, `LookalikeLoss` of `training.objectives`; `sample`
goes back in time, greedily, by draws, or with a beam carried over the jumps. Here are the settings of the published
experiments. Their schedule is `--schedule transformer --warmup 51600 --learning-rate 3.891e-4 --iterations 112560`; for
200 items they took `--model.head pl --times drawn --noisy-orders 1`.
"""

from collections.abc import Mapping

# Visited numbers of riffles by the number of items, of the published sorting and jigsaw (4, 16) experiments.
VISITED = {
    3: (0, 2, 7), 4: (0, 2, 7), 5: (0, 2, 8), 7: (0, 3, 8), 9: (0, 3, 5, 9), 15: (0, 4, 7, 10), 16: (0, 4, 6, 10),
    32: (0, 5, 7, 12), 52: (0, 5, 6, 7, 10, 13), 100: (0, 8, 10, 15), 200: (0, 9, 10, 12),
}  # fmt: skip
PUBLISHED = {"norm_first": False, "init": "published"}  # norms after the sums, Xavier's weights
VISITED_OF_TOURS = {20: (0, 4, 5, 7)}


def visited_times(num_items: int, *, is_tour: bool = False) -> tuple[int, ...]:
    """The visited numbers of riffles for so many items: those published for it, else for the next smaller number.

    That is how the paper takes the settings of 52 items for 75, and of 100 for 150.
    """
    if num_items < 1:
        raise ValueError(f"num_items must be at least 1, got {num_items}")
    if is_tour and num_items in VISITED_OF_TOURS:
        return VISITED_OF_TOURS[num_items]
    return VISITED[max((count for count in VISITED if count <= num_items), default=3)]


def model_settings(task: str) -> Mapping[str, object]:
    """How the network differs from Soft-Rank Diffusion's on a task: GPL, all layers in one stack.

    Norms stand before the sublayers and weights begin as torch's do: as published (PUBLISHED), sorting from images
    stays at chance for thousands of updates.
    """
    return {
        "head": "gpl", "encoder_layers": 16 if task == "tsp" else 7, "decoder_layers": 0,
        "process": {"kind": "riffle", "target": "previous"},
    }  # fmt: skip


def training_settings(task: str) -> Mapping[str, object]:
    """How training differs: all visited times of three trajectories per instance, of one for tours; an objective of its
    own for jigsaws.
    """
    if task == "tsp":
        return {"optimizer": "adamw", "times": "all", "learning_rate": 2e-4, "weight_decay": 1e-4}
    objective = "lookalike" if task == "jigsaw" else "likelihood"
    return {"optimizer": "adamw", "times": "all", "noisy_orders": 3, "objective": objective}
