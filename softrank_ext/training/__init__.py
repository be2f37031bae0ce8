"""Training: what is minimised, the loop, the run's folder."""

from softrank_ext.training.allocator import keep_freed_memory
from softrank_ext.training.config import TrainConfig, rate_at
from softrank_ext.training.cost_objectives import Preference, Reinforce, SelfLabel
from softrank_ext.training.loop import TrainResult, loss_of, train
from softrank_ext.training.optimizer import Muon
from softrank_ext.training.run_folder import describe, has_run
from softrank_ext.training.torchrun import processes

__all__ = [
    "Muon", "Preference", "Reinforce", "SelfLabel", "TrainConfig", "TrainResult", "describe", "has_run",
    "keep_freed_memory", "loss_of", "processes", "rate_at", "train",
]  # fmt: skip
