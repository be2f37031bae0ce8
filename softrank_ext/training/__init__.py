"""Training: what is minimised, the loop, the run's folder."""

from softrank_ext.training.loop import TrainConfig, TrainResult, describe, loss_of, processes, rate_at, train

__all__ = ["TrainConfig", "TrainResult", "describe", "loss_of", "processes", "rate_at", "train"]
