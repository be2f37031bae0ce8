"""What training minimises: the masked cross-entropy of an order given a noisy one (paper eq. 10).

Orders are `order[place] = item`, and the network sees slots. Noise is keyed by (seed, sample). Times are those of the
model's config: the K-grid `1/K, ..., 1`, continuous on (0, 1], or the visited numbers of riffles.
"""

import torch
from torch import Tensor, nn

from softrank_ext import bridge, noise, ops, riffle
from softrank_ext.model import SoftRankModel
from softrank_ext.permutations import arrange, compose, ranks_of
from softrank_ext.tasks import Batch

TIMES = ("drawn", "all")


class DenoisingLoss(nn.Module):
    """Cross-entropy of the model's target order given the noisy one; a module, so that DistributedDataParallel can wrap
    it.

    noise_scale, reference, draws, times: as in `train.TrainConfig`.
    """

    def __init__(
        self,
        model: SoftRankModel,
        *,
        noise_scale: float = 0.5,
        reference: str = "uniform",
        draws: int = 1,
        times: str = "drawn",
    ) -> None:
        super().__init__()
        bridge.check_choice("reference", reference, bridge.REFERENCES)
        bridge.check_choice("times", times, TIMES)
        if times == "all" and model.config.time != "grid":
            raise ValueError('times "all" are those of a grid: the model must have time="grid"')
        self.model = model
        self.noise_scale, self.reference, self.draws, self.times = noise_scale, reference, draws, times

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of a batch (a scalar, summed over places, averaged over instances), and the same per place.

        seed, samples: the key of the noise, samples (B,) int64 being the instances' numbers in the run.
        """
        config = self.model.config
        if batch.known is not None and config.target == "previous":
            raise ValueError('target "previous" needs whole orders, and this batch knows only leading places')
        embedded = self.model.embed(batch.items, batch.mask)
        if self.draws > 1:
            samples = (samples[:, None] * self.draws + torch.arange(self.draws, device=samples.device)).flatten()
        if self.times == "drawn":
            t = self._times(noise.uniform(seed, samples, 0, 1, stream=noise.TRAINING_STREAM)[:, 0])
        else:
            grid = torch.tensor(config.reverse_times()[:-1], device=samples.device)
            t, samples = grid.repeat(len(samples)), samples.repeat_interleave(len(grid))  # one noise for all times
        repeats = len(samples) // len(batch.order)
        embedded, batch = embedded.repeat_interleave(repeats, 0), _repeated(batch, repeats)
        N, mask = batch.order.shape[1], batch.mask

        # 1. to 3. Noisy orders at time t, the items arranged by them, and the target: where its items now stand.
        noisy = self._soft_rank_orders if config.process == "soft-rank" else self._riffled_orders
        order_t, order = noisy(batch, t, seed, samples)
        embedded_t = arrange(embedded, order_t)
        mask_t = None if mask is None else arrange(mask, order_t)
        slots = ranks_of(order_t).gather(1, order)

        # 4. One teacher-forced pass.
        per_place = self.model.log_prob(embedded_t, t, slots, mask_t, is_embedded=True).per_place

        # 5. Count the places that the model has to know.
        places = torch.arange(N, device=order.device)
        is_counted = torch.ones_like(order, dtype=torch.bool) if mask is None else places < mask.sum(1, keepdim=True)
        if batch.known is not None:
            is_counted = is_counted & (places < batch.known[:, None])
        if batch.first is not None:
            is_counted = is_counted & (places > 0)
        total = -per_place.masked_fill(~is_counted, 0.0).sum()
        return total / len(order), (total / is_counted.sum().clamp(min=1)).detach()

    def _times(self, uniform: Tensor) -> Tensor:
        """Times (B,) from uniform numbers in [0, 1): one of the model's own, or in (0, 1]."""
        if self.model.config.time == "continuous":
            return 1 - uniform
        ascending = uniform.new_tensor(self.model.config.reverse_times()[-2::-1])
        return ascending[(uniform * len(ascending)).long().clamp(max=len(ascending) - 1)]

    def _soft_rank_orders(self, batch: Batch, t: Tensor, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The order at time t of the bridge, and the target order."""
        N, mask, order = batch.order.shape[1], batch.mask, batch.order

        # 1. Lift the clean order to the grid; draw z_ref and noise. What stands first by decree stays at 0.
        z_clean = bridge.lift_to_grid(ranks_of(order), mask)
        make = noise.uniform if self.reference == "uniform" else noise.normal
        z_ref = bridge.reference_sample(make(seed, samples, 1, N, stream=noise.TRAINING_STREAM), self.reference)
        bridge_noise, step_noise = (
            noise.normal(seed, samples, step, N, stream=noise.TRAINING_STREAM) for step in (2, 3)
        )
        if batch.first is not None:
            first = batch.first[:, None]
            z_ref, bridge_noise, step_noise = (x.scatter(1, first, 0.0) for x in (z_ref, bridge_noise, step_noise))

        # 2. Go to time t along the bridge and read the order there.
        z_t = bridge.forward_sample(z_clean, z_ref, t, bridge_noise, noise_scale=self.noise_scale)
        order_t, _ = ops.decode_chamber(z_t, mask)
        if self.model.config.target == "clean":
            return order_t, order

        # 3. The order one grid step before t: z_s drawn given z_t and the true z_clean.
        s = (t - 1 / self.model.config.steps).clamp(min=0)
        s = torch.where(s < 1e-6, 0.0, s)
        z_s = bridge.reverse_step(z_t, z_clean, t, s, step_noise, noise_scale=self.noise_scale, carry="reflected")
        return order_t, ops.decode_chamber(z_s, mask)[0]

    def _riffled_orders(self, batch: Batch, t: Tensor, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The order after the riffles of time t, and the target order: both of one trajectory of riffles."""
        N, order = batch.order.shape[1], batch.order
        visited = torch.tensor(self.model.config.visited, device=order.device)
        most = int(visited[-1])
        uniform = noise.uniform(seed, samples, 2, N, stream=noise.TRAINING_STREAM, dtype=torch.float64)
        labels = riffle.draw_labels(uniform, most, batch.mask, is_first_pinned=batch.first is not None)
        last = riffle.shuffle(order, labels, most)
        riffles = (t * most).round().long()
        order_t = compose(last, riffle.undo(labels, most - riffles))
        if self.model.config.target == "clean":
            return order_t, order
        before = visited[torch.searchsorted(visited, riffles) - 1]
        return order_t, compose(last, riffle.undo(labels, most - before))


def _repeated(batch: Batch, times: int) -> Batch:
    """Each instance `times` times, without its items, which are embedded by then."""

    def repeat(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.repeat_interleave(times, 0)

    order = batch.order.repeat_interleave(times, 0)
    return Batch(order, order, repeat(batch.mask), repeat(batch.first), repeat(batch.known))
