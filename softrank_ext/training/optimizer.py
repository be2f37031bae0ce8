"""Optimizers of training: AdamW, and Muon for the matrices inside transformer layers with AdamW for the rest.

Muon steps along the orthogonal matrix `U V^T` of the momentum `U S V^T`, found by Newton-Schulz iterations (Jordan et
al. 2024). They run in float32 (float64 for such weights) on every device: `torch.optim.Muon` works in bfloat16, which
most CPUs are slow at.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from softrank_ext.model.layers import DecoderLayer, EncoderLayer
from softrank_ext.training.config import TrainConfig, rate_at

# x -> a x + (b A + c A A) x with A = x x^T takes singular values from (0, 1] to about 1 in five steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_LAYERS = (EncoderLayer, DecoderLayer, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def orthogonalized(matrices: Tensor) -> Tensor:
    """About `U V^T` of each matrix `U S V^T` (count, rows, columns), in float32 or float64: singular values about 1.

    A matrix of zeros stays one.
    """
    x = matrices if matrices.dtype == torch.float64 else matrices.float()
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices: Nesterov momentum, orthogonalized, times `rate * 0.2 * sqrt(longer side)`.

    The factor gives the entries of an update the size that AdamW's have. parameters: matrices, all of them. Weight
    decay is decoupled, as AdamW's. State of a matrix: "momentum", of its shape.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.ndim != 2:
                raise ValueError(f"parameters of Muon must be matrices, got {tuple(parameter.shape)}")
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; matrices of one shape are worked on together."""
        for group in self.param_groups:
            by_shape: dict[tuple[torch.Size, torch.device], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault((parameter.shape, parameter.device), []).append(parameter)
            for (shape, _), parameters in by_shape.items():
                size = group["lr"] * 0.2 * math.sqrt(max(shape))
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                updates = orthogonalized(self._directions(parameters, group["momentum"]))
                torch._foreach_add_(parameters, [part.to(parameters[0].dtype) for part in updates], alpha=-size)

    def _directions(self, parameters: Sequence[Tensor], momentum: float) -> Tensor:
        """Gradients seen ahead along their momentum, which is brought up to date: (count, rows, columns)."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        kept = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_mul_(kept, momentum)
        torch._foreach_add_(kept, gradients)
        return torch.stack(torch._foreach_add(gradients, kept, alpha=momentum))


def matrices_inside_layers(model: nn.Module) -> list[str]:
    """Names of the parameters that are matrices of a transformer layer, this package's or torch's."""
    layers = [name for name, module in model.named_modules() if isinstance(module, _LAYERS)]
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and any(name.startswith(f"{layer}." if layer else "") for layer in layers)
    ]


class Optimizers:
    """What updates a model's weights, as `config.optimizer` says: AdamW alone, or Muon beside it."""

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        self.model, self.config = model, config
        parameters = dict(model.named_parameters())
        inside = matrices_inside_layers(model) if config.optimizer == "muon" else []
        by_muon = [parameters.pop(name) for name in inside]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []  # with their peak rates
        if parameters:
            adamw = torch.optim.AdamW(
                parameters.values(), lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=1e-9,
                weight_decay=config.weight_decay, fused=True,
            )  # fmt: skip
            self._parts.append((adamw, config.learning_rate))
        if by_muon:
            muon = Muon(by_muon, config.matrix_rate, weight_decay=config.weight_decay)
            self._parts.append((muon, config.matrix_rate))

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for optimizer, _ in self._parts:
            optimizer.zero_grad(set_to_none=True)

    def step(self, iteration: int) -> None:
        """Update all weights, at the rates of this iteration, counted from 1."""
        for optimizer, peak in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = rate_at(iteration, self.config, peak)
            optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The state, as KEY.PARAMETER -> tensor."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for optimizer, _ in self._parts:
            states |= optimizer.state
        return {
            f"{key}.{name}": tensor
            for name, parameter in self.model.named_parameters()
            for key, tensor in states.get(parameter, {}).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the state that `tensors` gave."""
        entries: dict[str, dict[str, Tensor]] = {}
        for full_name, tensor in tensors.items():
            key, name = full_name.split(".", 1)
            entries.setdefault(name, {})[key] = tensor
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer, _ in self._parts:
            own = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
            state = {index: entries[name] for index, name in enumerate(own) if name in entries}
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
