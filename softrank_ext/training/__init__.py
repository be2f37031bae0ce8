"""Training: what is minimised, the loop, the run's folder."""

from softrank_ext.training.config import TrainConfig, rate_at
from softrank_ext.training.loop import TrainResult, loss_of, train
from softrank_ext.training.run_folder import describe, has_run
from softrank_ext.training.torchrun import processes

__all__ = ["TrainConfig", "TrainResult", "describe", "has_run", "loss_of", "processes", "rate_at", "train"]
