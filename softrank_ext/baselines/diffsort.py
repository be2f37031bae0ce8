"""DiffSort and Error-free DiffSort: a score per item, trained through a sorting network with soft swaps.

DiffSort (Petersen et al. 2022): the scores go through `sorting_networks.soft_sort`, and its matrix is compared with the
true one entry by entry. Error-free DiffSort (Kim et al. 2024): scorers with attention, and a second term that compares
items put in order by hard swaps, whose gradient is that of soft ones. Both sort by the scores; the network is a loss.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.baselines.sorting_networks import NETWORKS, SWAPS, soft_sort
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_integer, check_not_negative, check_positive
from softrank_ext.choices import Engine
from softrank_ext.model import EncoderLayer, OnePassModel, SoftRankConfig, embed_items, embedder_of
from softrank_ext.permutations import arrange, ranks_of

_GROUP = 4  # items that the hard term compares at a time
# The paper's settings of Error-free DiffSort by the number of items: network, steepness, hard_weight.
PUBLISHED = {
    9: ("odd-even", 34.0, 1.0), 15: ("odd-even", 25.0, 0.1), 32: ("odd-even", 124.0, 0.1), 52: ("bitonic", 130.0, 0.1),
    75: ("bitonic", 135.0, 0.1), 100: ("bitonic", 140.0, 0.1), 150: ("bitonic", 170.0, 0.1),
    200: ("bitonic", 200.0, 0.1),
}  # fmt: skip
# The published training of DiffSort: Adam at a constant rate, which Error-free DiffSort halves every 50,000 updates.
TRAINING = {
    "batch_size": 100, "optimizer": "adamw", "learning_rate": 10**-3.5, "schedule": "constant", "warmup": 0,
    "weight_decay": 0.0, "beta2": 0.999, "clip": 0.0, "ema": 0.0,
}  # fmt: skip


def published_settings(num_items: int) -> dict[str, object]:
    """The paper's network, steepness and hard_weight of Error-free DiffSort for so many items, or for the next fewer
    that it has."""
    settings = PUBLISHED[max((count for count in PUBLISHED if count <= num_items), default=min(PUBLISHED))]
    return dict(zip(("network", "steepness", "hard_weight"), settings, strict=True))


@dataclass(frozen=True)
class DiffSortConfig:
    """Sizes and choices of a `DiffSortModel`.

    d_model: width of an item's embedding, which ReLU and a linear layer make a score. encoder_layers: post-norm
    transformer layers between embedding and ReLU, without positions; 0 scores each item by itself. feed_forward, heads,
    dropout: of these layers. attend_to_batch: let them attend to all items of a batch instead of one list's, as the
    published Error-free DiffSort code does; a list's order then depends on its batch. network, swap: one of
    sorting_networks.NETWORKS and SWAPS. steepness: of the swaps. hard_weight: weight of the hard term, 0 for none.
    embedder: as in `SoftRankConfig`.
    """

    d_model: int = 64
    encoder_layers: int = 0
    feed_forward: int = 2048
    heads: int = 8
    dropout: float = 0.1
    attend_to_batch: bool = False
    network: str = "odd-even"
    swap: str = "cauchy"
    steepness: float = 10.0
    hard_weight: float = 0.0
    embedder: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        check_integer("encoder_layers", self.encoder_layers, 0)
        SoftRankConfig(  # raises ValueError if a size is wrong
            d_model=self.d_model, feed_forward=self.feed_forward, heads=self.heads, dropout=self.dropout
        )
        check_choice("network", self.network, NETWORKS)
        check_choice("swap", self.swap, SWAPS)
        check_positive("steepness", self.steepness)
        check_not_negative("hard_weight", self.hard_weight)


class DiffSortModel(OnePassModel):
    """A score per item; the order is that of ascending scores. config: `DiffSortConfig`."""

    model_type = "diffsort"
    config_type = DiffSortConfig

    def __init__(self, config: DiffSortConfig, embedder: nn.Module | None = None) -> None:
        super().__init__()
        self.config: DiffSortConfig = config
        self.embedder = embedder_of(config, embedder)
        self.encoder_layers = nn.ModuleList(
            EncoderLayer(config.d_model, config.feed_forward, config.heads, config.dropout, norm_first=False)
            for _ in range(config.encoder_layers)
        )
        self.head = nn.Linear(config.d_model, 1)

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (B, N) of items (B, N, ...), 0 at padding."""
        x = embed_items(self.embedder, items, mask, self.config.d_model, self.head.weight.dtype)
        if self.config.attend_to_batch:
            x = x.flatten(0, 1)[None]
        attended = None if mask is None else mask.reshape(x.shape[:2])[:, None, None]
        for layer in self.encoder_layers:
            x = layer(x, attended)
        scores: Tensor = self.head(x.relu()).reshape(items.shape[:2])
        return scores if mask is None else scores.masked_fill(~mask, 0.0)

    @torch.no_grad()
    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        choices: ops.Choices = ops.Choices(),
        *,
        order: Tensor | None = None,
        engine: Engine = Engine(),
        packed_weights: None = None,
    ) -> ops.DecodedOrder:
        """Slots by ascending scores (`embedded`), the lower slot first where they are equal; see `OrderModel`."""
        if choices.uniform is not None:
            raise ValueError('a diffsort model gives one order and no distribution: it needs decode="greedy"')
        if choices.forced_order is not None or choices.has_rules():
            raise ValueError("a diffsort model sorts by scores: it takes no constraints")
        scores = embedded if order is None else arrange(embedded, order)
        key = scores if mask is None else scores.masked_fill(~mask, torch.inf)
        work = torch.ones(len(key), 2, dtype=torch.int64, device=key.device)
        return ops.DecodedOrder(key.argsort(dim=1, stable=True), torch.full_like(scores, torch.nan), work)

    def own_loss(self) -> nn.Module:
        """The loss through the sorting network."""
        return SortingLoss(self)

    def bytes_per_sample(self, N: int) -> int:
        """Memory that one instance of N items takes while it is read, roughly."""
        return self.head.weight.element_size() * N * (12 * self.config.d_model + 2 * self.config.feed_forward)


class SortingLoss(nn.Module):
    """Cross-entropy of the soft matrix and, if weighted, the hard term; a module, so that DistributedDataParallel can
    wrap it."""

    def __init__(self, model: DiffSortModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of a batch, and the same without its graph. Nothing is random."""
        config = self.model.config
        if batch.first is not None:
            raise ValueError("a diffsort model sorts by scores: it takes no fixed first item")
        if config.hard_weight > 0 and not batch.is_whole():
            raise ValueError("the hard term needs whole orders, and this batch knows only leading places")
        scores, order, items = self.model.embed(batch.items, batch.mask), batch.order, batch.items
        N, counts, is_counted = order.shape[1], None, None
        places = torch.arange(N, device=order.device)
        if batch.mask is not None:
            # Real items first: a network leaves what stands behind them alone.
            to_front = (~batch.mask).int().argsort(dim=1, stable=True)
            scores, items = scores.gather(1, to_front), arrange(items, to_front)
            counts = batch.mask.sum(1)
            is_real = places < counts[:, None]  # (B, N)
            order = torch.where(is_real, ranks_of(to_front).gather(1, order), places)
            is_counted = is_real[:, :, None] & is_real[:, None]
            items = items.masked_fill(~is_real.reshape(is_real.shape + (1,) * (items.ndim - 2)), 0)
        if batch.known is not None:
            is_known = (places < batch.known[:, None])[:, None].expand(-1, N, -1)
            is_counted = is_known if is_counted is None else is_counted & is_known
        soft = soft_sort(scores, config.network, swap=config.swap, steepness=config.steepness, counts=counts)
        loss = matrix_loss(soft.matrix, order, is_counted)
        if config.hard_weight > 0:
            hard = soft_sort(
                scores, config.network, swap=config.swap, steepness=config.steepness, counts=counts, error_free=True
            )
            loss = loss + config.hard_weight * group_loss(hard.matrix, order, _features_of(items, scores.dtype))
        return loss, loss.detach()


def _features_of(items: Tensor, dtype: torch.dtype) -> Tensor:
    """Items as vectors (B, N, F) to measure distances by; pixels from 0 to 1."""
    if items.dtype == torch.uint8:
        return items.flatten(2).to(dtype) / 255
    if not items.is_floating_point() or items.ndim < 3:
        raise ValueError(
            f"the hard term compares items by distance: they must be images or vectors, got {tuple(items.shape)} "
            f"{items.dtype}; set hard_weight to 0"
        )
    return items.flatten(2).to(dtype)


def matrix_loss(matrix: Tensor, order: Tensor, is_counted: Tensor | None = None) -> Tensor:
    """Mean binary cross-entropy of a soft matrix (B, item, place) against the true order (B, N).

    is_counted: (B, item, place) bool, the entries to average over, None for all.
    """
    truth = torch.zeros_like(matrix).scatter_(1, order[:, None], 1.0)
    margin = torch.finfo(matrix.dtype).eps  # rounding may leave [0, 1], and a logarithm of 0 has no gradient
    entries = F.binary_cross_entropy(matrix.clamp(margin, 1 - margin), truth, reduction="none")
    return entries.mean() if is_counted is None else entries[is_counted].sum() / is_counted.sum().clamp(min=1)


def group_loss(matrix: Tensor, order: Tensor, items: Tensor) -> Tensor:
    """Mean squared difference between items in the predicted and in the true order, within groups, summed over groups.

    matrix: (B, item, place), a permutation matrix with soft gradients. order: (B, N), the true one. items: (B, N, F).
    Groups are four items that follow each other as given; a single one left over joins the last group. A group is put
    in order by itself: of the matrix only its own rows count, at the places where it stands.
    """
    N = order.shape[1]
    places, true_places = matrix.detach().argmax(2), ranks_of(order)  # (B, item)
    split = N - N % _GROUP if N % _GROUP != 1 else max(N - 1 - _GROUP, 0)
    total = matrix.new_zeros(())
    for part, size in ((slice(0, split), _GROUP), (slice(split, N), N - split)):
        groups = (part.stop - part.start) // max(size, 1)
        if groups == 0:
            continue
        rows, own_places, own_true, own_items = (
            tensor[:, part].unflatten(1, (groups, size)).flatten(0, 1)
            for tensor in (matrix, places, true_places, items)
        )  # (B * groups, size, ...)
        columns = own_places.sort(1).values[:, None].expand(-1, size, -1)
        predicted = rows.gather(2, columns).transpose(1, 2) @ own_items  # (B * groups, place in the group, F)
        total = total + groups * F.mse_loss(predicted, arrange(own_items, own_true.argsort(1)))
    return total
