"""Members of a ranker: small networks that score the rows of a group, each stopped early on groups that it leaves out.

A member is a `SoftRankModel` with the head "pl": it reads a whole group at once and gives one score per row; the law of
the order is Plackett-Luce while it learns. Its process has one step, from rows in random order to the ranking.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import noise
from softrank_ext.model import SoftRankConfig, SoftRankModel
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.processes import Bridge
from softrank_ext.ranking.groups import GroupBatch, Groups, RankingData, batches_by_size, drawn_orders
from softrank_ext.ranking.law import TIE_BREAKS, score_log_probs
from softrank_ext.ranking.preprocessing import Preprocessing

BATCH = 16  # groups of an update
FEWEST_UPDATES, MOST_UPDATES = 300, 4000
MOST_ITEMS_AT_ONCE = 2**15  # that members score
CHECKS = 40  # of the validation loss in a fit
PATIENCE = 12  # checks without a better one


@dataclass(frozen=True)
class Learning:
    """How members learn; the fields are those of `Ranker`."""

    width: int
    layers: int
    dropout: float
    weight_decay: float
    learning_rate: float
    epochs: int


def new_member(preprocessing: Preprocessing, learning: Learning) -> SoftRankModel:
    """A member with first weights from torch's generator."""
    heads = max(count for count in (4, 2, 1) if learning.width % count == 0)
    return SoftRankModel(
        SoftRankConfig(
            d_model=learning.width,
            feed_forward=2 * learning.width,
            heads=heads,
            encoder_layers=learning.layers,
            decoder_layers=0,
            dropout=learning.dropout,
            head="pl",
            time_steps=1,
            embedder=preprocessing.embedder(learning.dropout),
            process=Bridge(sampling_steps=1),
        )
    )


def fit_member(
    model: SoftRankModel,
    data: RankingData,
    training: Sequence[int],
    validation: tuple[RankingData, Sequence[int]] | None,
    learning: Learning,
    seed: int,
    each_update: Callable[[int, int, float], None],
) -> float:
    """Train on the groups of these numbers; the model ends with its best weights. Returns the best validation loss.

    validation: other groups, on which the loss is watched; None trains to the end. each_update(done, all, loss) is
    called after every update. KeyboardInterrupt passes through, after the best weights so far are put back.
    """
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = -(-len(training) // BATCH)
    updates = min(max(learning.epochs * per_epoch, FEWEST_UPDATES), MOST_UPDATES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning.learning_rate, weight_decay=learning.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning.learning_rate, total_steps=updates, pct_start=0.15
    )
    best_loss, best, waited = float("inf"), None, 0
    queue: list[int] = []
    try:
        for done in range(1, updates + 1):
            if not queue:
                queue = rng.permutation(list(training)).tolist()
            numbers, queue = queue[:BATCH], queue[BATCH:]
            model.train()
            loss = losses(model, data.batch(numbers, rng), generator).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            each_update(done, updates, best_loss)
            if validation is not None and (done % max(updates // CHECKS, 1) == 0 or done == updates):
                found = validation_loss(model, *validation)
                waited += 1
                if found < best_loss:
                    best_loss, best, waited = found, deepcopy(model.state_dict()), 0
                if waited >= PATIENCE:
                    break
    finally:
        if best is not None:
            model.load_state_dict(best)
        model.eval()
    return best_loss


def losses(model: SoftRankModel, batch: GroupBatch, generator: torch.Generator) -> Tensor:
    """Negative log-likelihood per place (B,), early places weighted as in NDCG, for one tie-break of the labels."""
    order, known = drawn_orders(batch, generator)
    shuffled = torch.rand(batch.mask.shape, generator=generator).argsort(1)  # (B, slot)
    embedded = arrange(model.embed(batch.items, batch.mask), shuffled)
    mask = arrange(batch.mask, shuffled)
    slots = ranks_of(shuffled).gather(1, order)
    per_place = model.log_prob(embedded, 1.0, slots, mask, is_embedded=True).per_place  # (B, N)
    return _weighted(-per_place, known)


def _weighted(per_place: Tensor, known: Tensor) -> Tensor:
    places = torch.arange(per_place.shape[1])
    weight = 1 / torch.log2(places + 2.0) * (places < known[:, None])
    return (per_place * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


@torch.no_grad()
def validation_loss(model: SoftRankModel, data: RankingData, numbers: Sequence[int]) -> float:
    """The mean loss over groups, for the same tie-breaks and shuffles at every call."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _, batch in data.batches(numbers):
        scores = member_scores(model, batch.items, batch.mask)
        for _ in range(TIE_BREAKS):
            order, known = drawn_orders(batch, generator)
            total += float(_weighted(-score_log_probs(scores, order, batch.mask), known).sum()) / TIE_BREAKS
    return total / max(len(numbers), 1)


@torch.no_grad()
def member_scores(model: SoftRankModel, items: Tensor, mask: Tensor) -> Tensor:
    """Scores (B, N) of the items, mean 0 over the real ones of a group, 0 at padding.

    The network sees slots; it should not care which row stands in which, and hardly does: the mean over two shuffles.
    """
    model.eval()
    embedded = model.embed(items, mask)
    total = torch.zeros(mask.shape)
    # The same for every group, and for a group whatever stands beside it: the first numbers of one row.
    keys = noise.uniform(0, torch.zeros(1, dtype=torch.int64), 0, mask.shape[1], dtype=torch.float64)
    for forwards in (keys, -keys):
        shuffled = forwards.argsort(1).expand(mask.shape)  # (B, slot)
        scores = model.scores(arrange(embedded, shuffled), 1.0, shuffled, arrange(mask, shuffled))[:, 0]  # (B, slot)
        total += scores.gather(1, ranks_of(shuffled))
    total = total.masked_fill(~mask, 0.0) / 2
    mean = total.sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    return (total - mean).masked_fill(~mask, 0.0)


def mean_scores(members: Sequence[SoftRankModel], items: np.ndarray, groups: Groups, bar: tqdm) -> np.ndarray:
    """The mean over members of the scores of all rows, (rows,) float64. bar: moved by half a row for each row."""
    data = RankingData(items, np.full(len(items), np.nan), groups)
    scores = np.zeros(len(items))
    for numbers in batches_by_size(groups, range(len(groups.rows)), MOST_ITEMS_AT_ONCE):
        batch = data.batch(numbers)
        found = torch.stack([member_scores(member, batch.items, batch.mask) for member in members]).mean(0)
        for row, number in enumerate(numbers):
            rows = groups.rows[number]
            scores[rows] = found[row, : len(rows)].numpy()
            bar.update(len(rows) / 2)
    return scores
