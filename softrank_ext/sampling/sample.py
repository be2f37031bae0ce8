"""`sample`: the door to the reverse process. It checks its arguments, cuts the input into batches and runs them."""

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from softrank_ext import ops
from softrank_ext.checks import (
    check_instance,
    check_integer,
    check_limited,
    check_seed,
    check_tensor,
    described,
    dtype_name,
)
from softrank_ext.choices import Beam, Decode, Draw, Engine, Rebuild, decode_of
from softrank_ext.constraints import Constraining, Constraints, ConstraintSettings, Rules, settings_of
from softrank_ext.model import OrderModel, evaluating
from softrank_ext.noise import seed_of
from softrank_ext.processes import OnePass, Process, process_of_call
from softrank_ext.sampling.conditioning import Conditions, conditions_from, conditions_of, resampled
from softrank_ext.sampling.reverse import Call, Rows, reverse
from softrank_ext.sampling.samples import Samples, map_fields

MOST_SAMPLES = 2**53  # that noise numbers
MOST_NUMBERS = 2**28  # of the orders that one call may return: 2 GB of them, and as much of ranks


@torch.no_grad()
def sample(
    model: OrderModel,
    items: Tensor | np.ndarray,
    *,
    start: Rebuild | None = None,
    mask: Tensor | np.ndarray | None = None,
    constraints: Constraining = None,
    num_samples: int = 1,
    steps: int | None = None,
    process: Process | None = None,
    decode: str | Decode = "sample",
    seed: int | torch.Generator | None = None,
    first_sample: int = 0,
    record: bool = False,
    progress: bool = False,
    engine: Engine = Engine(),
) -> Samples:
    """Draw orders of the items from the model by reverse diffusion.

    items: (B, N, ...) as the model's embedder takes them, tensor or numpy; or one instance (N, ...) if the embedder
    says its item_ndim. start: orders to begin with, a part of which is drawn again, see `Rebuild`; None = from noise.
    mask: (B, N) or (N,) bool, True = real item, in any pattern; padding's content has no effect.
    constraints: rules that every order keeps, `Constraints` for all instances or a list of one per instance. For a
    model trained with a fixed start (tours), a pin at place 0 is that start.
    num_samples: draws per instance. steps: diffusion steps, short for `process.sampling_steps`. process: another noise
    process than the model's own, as `replace(model.config.process, noise_scale=0.2)`; neither changes what the network
    reads of time. decode: "sample", "greedy", `Draw(temperature)`, `Greedy()` or `Beam(width, kept, returned)`.
    seed: any 64-bit integer; a torch.Generator draws one, None draws it from torch's own generator (under torchrun the
    first process does, for all), and `Samples.seed` returns it. Draw j of instance b is sample number
    `first_sample + b * num_samples + j`; the same seed and number give the same sample (`sampling.reverse` says how
    exactly). record: keep the trajectory. progress: show a bar. engine: how predictions are computed, see `Engine`.

    Returns `Samples` with leading dimensions (B, num_samples), or (num_samples,) for one instance; numpy if items are.
    The model runs in eval mode and is left in the mode it was in. Half-precision models, and those under autocast, run
    in float32: soft ranks of fewer digits would tie. Raises ValueError or TypeError, saying what it wants.

    >>> samples = sample(model, items, num_samples=16, seed=0)
    >>> samples.order.shape  # (B, 16, N)
    """
    check_instance("model", model, OrderModel)
    check_instance("engine", engine, Engine)
    choice, settings = decode_of(decode), settings_of(constraints)
    check_integer("num_samples", num_samples, 1)
    check_limited("first_sample", first_sample, 0, MOST_SAMPLES)
    seed = shared_seed(seed)
    model = _in_full_precision(model)
    chosen = process_of_call(model.process, process, steps)
    if settings.law == "conditioned" and (not isinstance(choice, Draw) or settings.reflect_noise):
        raise ValueError(
            'law="conditioned" needs decode="sample" and reflect_noise=False: it weighs the model\'s own draws'
        )
    if isinstance(choice, Beam) and isinstance(chosen, OnePass):
        raise ValueError(f"decode must not be Beam(...) for a {model.model_type} model: it has no stagewise scores")
    is_numpy = isinstance(items, np.ndarray)
    given = inputs_of(model, items, mask)
    B, N = given.items.shape[:2]
    check_limited("num_samples", num_samples, 1, MOST_NUMBERS // max(B * N, 1))
    if start is None:
        conditions = conditions_of(constraints, model.fixed_start, (B, N), given.mask, given.items.device)
    else:
        _check_start(start, model, choice, settings)
        conditions = _conditions_of_start(start, model, given, num_samples, constraints)
    if isinstance(choice, Beam) and conditions.rules is not None:
        raise ValueError('constraints need decode="sample" or "greedy": a beam keeps none but a fixed start')
    is_resampled = settings.law == "conditioned" and conditions.rules is not None
    draws = num_samples * settings.particles if is_resampled else num_samples
    first_draw = first_sample * settings.particles if is_resampled else first_sample
    kept, returned, width = (choice.kept, choice.returned, 2 * choice.width) if isinstance(choice, Beam) else (1, 1, 1)
    rows_at_once = max(1, int(engine.memory_on(given.items.device) // (model.bytes_per_sample(N) * width)))
    instances_at_once = max(1, rows_at_once // draws)
    parts = []
    total = B * draws * chosen.sampling_steps
    without_autocast = torch.autocast(given.items.device.type, enabled=False)
    with without_autocast, evaluating(model), tqdm(total=total, unit="step", disable=not progress) as bar:
        call = Call(model, chosen, choice, settings, engine, seed, record, model.packed_weights(), bar)
        for begin in range(0, max(B, 1), instances_at_once):
            chunk = slice(begin, begin + instances_at_once)
            chunk_mask = None if given.mask is None else given.mask[chunk]
            embedded = model.embed(given.items[chunk], chunk_mask)
            numbers = torch.arange(embedded.shape[0] * draws, device=embedded.device)
            for rows in numbers.split(rows_at_once):
                rows = rows.repeat_interleave(kept)
                instance = rows // draws
                batch = Rows(
                    embedded[instance],
                    None if chunk_mask is None else chunk_mask[instance],
                    conditions.rows(begin + instance if start is None else begin * draws + rows),
                    first_draw + begin * draws + rows,
                )
                parts.append(reverse(call, batch))
    samples = parts[0] if len(parts) == 1 else map_fields(lambda *tensors: torch.cat(tensors), *parts)
    if not isinstance(choice, Beam):
        ops.check_picks(samples.log_prob)
    samples = map_fields(lambda field: field.unflatten(0, (B, draws * returned)), samples)
    if is_resampled:
        numbers = first_sample + torch.arange(B * num_samples, device=given.items.device).view(B, num_samples)
        samples = resampled(samples, numbers)
    elif settings.law == "conditioned":
        # Nothing but the start is asked for: the draws follow the law as they are.
        every = torch.full_like(samples.log_prob, num_samples, dtype=torch.float64)
        samples = replace(samples, effective_size=every, log_prob_allowed=torch.zeros_like(every))
    if given.is_single:
        samples = samples[0]
    return samples.numpy() if is_numpy else samples


def _check_start(start: Rebuild, model: OrderModel, choice: Decode, settings: ConstraintSettings) -> None:
    """Raise ValueError unless draws may begin with orders at all."""
    if not isinstance(start, Rebuild):
        raise TypeError(f"start must be Rebuild(...) or None, got {described(start)}")
    if isinstance(model.process, OnePass) or model.process.target != "clean":
        raise ValueError(f"start must be None for this {model.model_type} model: it does not predict clean orders")
    if isinstance(choice, Beam):
        raise ValueError("start must be None for decode=Beam(...): a beam keeps nothing but a fixed start")
    if settings.law == "conditioned" or settings.reflect_noise:
        raise ValueError('start needs constraints with law="prefix" and reflect_noise=False')


def _conditions_of_start(
    start: Rebuild, model: OrderModel, given: "Inputs", num_samples: int, constraints: Constraining
) -> Conditions:
    """The conditions of every draw, B * num_samples rows."""
    B, N = given.items.shape[:2]
    order, noised = start.order, start.noised
    if given.is_single:
        order, noised = order[None], None if noised is None else noised[None]
    if order.shape not in ((B, N), (B, num_samples, N)):
        wanted = f"{(B, N)} or {(B, num_samples, N)}"[1 if given.is_single else 0 :]
        raise ValueError(f"start.order must be {wanted}, one order per instance or per draw, got {tuple(order.shape)}")

    def per_draw(value: Tensor) -> Tensor:
        return value.flatten(0, 1) if value.ndim == 3 else value.repeat_interleave(num_samples, 0)

    rows = replace(start, order=per_draw(order), noised=None if noised is None else per_draw(noised))
    if isinstance(constraints, Rules):
        raise ValueError("constraints of draws with a start must be Constraints, or a list of them")
    if constraints is not None and not isinstance(constraints, Constraints):
        constraints = [row for row in constraints for _ in range(num_samples)]
    mask = None if given.mask is None else per_draw(given.mask)
    return conditions_from(rows, model, constraints, mask, given.items.device)


def shared_seed(seed: int | torch.Generator | None) -> int:
    """The seed, checked, or a fresh one from the generator, from torch's own if None."""
    return fresh_seed(seed) if seed is None or isinstance(seed, torch.Generator) else check_seed(seed)


def fresh_seed(generator: torch.Generator | None = None) -> int:
    """A seed from a generator, torch's own if None; under torchrun the first process draws it, and all get it."""
    seed = int(torch.randint(2**63 - 1, ())) if generator is None else seed_of(generator)
    if dist.is_available() and dist.is_initialized():
        shared = [seed]
        dist.broadcast_object_list(shared, src=0)
        (seed,) = shared
    return seed


def _in_full_precision(model: OrderModel) -> OrderModel:
    """The model, or a float32 copy of one in half precision."""
    if next(model.parameters()).dtype in (torch.float16, torch.bfloat16):
        return deepcopy(model).float()
    return model


class Inputs(NamedTuple):
    """Checked items (B, N, ...) and mask (B, N), and whether they came as one instance."""

    items: Tensor
    mask: Tensor | None
    is_single: bool


def inputs_of(model: OrderModel, items: Tensor | np.ndarray, mask: Tensor | np.ndarray | None) -> Inputs:
    """Checked items and mask of a call, on the model's device; raises ValueError or TypeError."""
    like = next(model.parameters())
    if like.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"the model must be float32 or float64, got {dtype_name(like.dtype)}; convert it with model.float()"
        )
    items = _as_tensor("items", items)
    mask = None if mask is None else _as_tensor("mask", mask).to(items.device)
    is_single = items.ndim == 1 + getattr(model.embedder, "item_ndim", -1)
    if is_single:
        items, mask = items[None], None if mask is None else mask[None]
    _check_items(items, mask)  # where they are: a GPU would have to be waited for
    return Inputs(items.to(like.device), None if mask is None else mask.to(like.device), is_single)


def _as_tensor(name: str, value: Tensor | np.ndarray) -> Tensor:
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(value)
        except TypeError as error:
            raise TypeError(f"{name} must hold numbers, got a numpy array of {value.dtype}") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or a numpy array, got {described(value)}")
    if value.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got {described(value)}")
    return value


def _check_items(items: Tensor, mask: Tensor | None) -> None:
    """Raise ValueError unless items are (B, N, ...), N > 0, finite where real; mask (B, N) bool, some True per row."""
    if items.ndim < 2 or items.shape[1] == 0:
        raise ValueError(f"items must be (B, N, ...) with N at least 1, got {tuple(items.shape)}")
    if items.dtype == torch.bool or items.is_complex():
        raise ValueError(f"items must hold real numbers, got {dtype_name(items.dtype)}")
    if mask is not None:
        check_tensor("mask", mask, items.shape[:2], torch.bool, "; True = real item")
    # One question for both, since a GPU's answer has to be waited for.
    is_finite = items.isfinite()
    is_right = is_finite.all()
    if bool(is_right if mask is None else is_right & mask.any(1).all()):
        return
    if mask is not None and not bool(mask.any(1).all()):
        row = int((~mask.any(1)).nonzero()[0])
        raise ValueError(f"mask must leave at least one real item per row, row {row} has none")
    is_wrong = ~is_finite.flatten(2).all(2) if items.ndim > 2 else ~is_finite  # (B, N)
    if mask is not None:
        is_wrong &= mask
    if bool(is_wrong.any()):
        row, item = is_wrong.nonzero()[0].tolist()
        raise ValueError(f"items must be finite, got NaN or infinity at row {row}, item {item}")
