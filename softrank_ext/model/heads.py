"""What turns decoder states and encoder outputs into scores: `state . head_keys + head_bias`, for both heads."""

import math

import torch
from torch import Tensor, nn


class PointerHead(nn.Module):
    """Biaffine scores `d_i . W e_k + v . e_k` of decoder states d_i and encoder outputs e_k (paper eq. 12), for any N.

    The paper's `u . d_i + b` is the same for every slot, so it cancels in the softmax and is left out.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        # States and encoder outputs are normed to length sqrt(D), so first scores have a deviation of about 1.
        self.weight = nn.Parameter(torch.randn(d_model, d_model) / d_model)
        self.slot_weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B, N, D) and bias (B, N) of the slots."""
        return memory @ self.weight.T, memory @ self.slot_weight

    def projection(self) -> Tensor:
        """The matrix (D + 1, D) that takes a slot's encoder output to its keys and its bias."""
        return torch.cat((self.weight, self.slot_weight[None])).detach()


class LinearHead(nn.Module):
    """Scores `w_k . d_i + b_k` with learned w_k, b_k per slot k < max_items; N real slots use the first N of them."""

    def __init__(self, d_model: int, max_items: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_items, d_model) / math.sqrt(d_model))
        self.bias = nn.Parameter(torch.zeros(max_items))

    def forward(self, memory: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (B or 1, N, D) and bias (B or 1, N) of the slots; padded slots carry some real slot's."""
        return self.weight[positions], self.bias[positions]
