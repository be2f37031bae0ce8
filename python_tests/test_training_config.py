"""Options of training: what is wrong is said, and learning rates follow the schedules."""

import dataclasses
import math

import pytest

from softrank_ext.training import SelfLabel, TrainConfig, rate_at


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("iterations", 0, "iterations must be an integer of at least 1, got 0"),
        ("batch_size", 2.5, "batch_size must be an integer of at least 1, got 2.5"),
        ("evaluate_every", -1, "evaluate_every must be an integer of at least 0, got -1"),
        ("seed", 0.5, "seed must be a 64-bit integer, got 0.5"),
        ("learning_rate", math.inf, "learning_rate must be at least 0 and finite, got inf"),
        ("clip", -1.0, "clip must be at least 0 and finite, got -1.0"),
        ("ema", 1.0, "ema must be at least 0 and below 1, got 1.0"),
        ("final_rate", 2.0, "final_rate must be from 0 to 1, got 2.0"),
        ("schedule", "linear", "schedule must be one of 'cosine', 'transformer', 'constant', got 'linear'"),
        ("optimizer", "sgd", "optimizer must be one of 'muon', 'adamw', got 'sgd'"),
        ("matrix_rate", -1.0, "matrix_rate must be at least 0 and finite, got -1.0"),
        ("prior_share", 1.0, "prior_share must be at least 0 and below 1, got 1.0"),
        ("best_is", "good", "best_is must be one of 'lowest', 'highest', got 'good'"),
    ],
)
def test_says_what_is_wrong(field, value, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{field: value})


@pytest.mark.parametrize("other", [{"times": "all"}, {"objective": "lookalike"}])
def test_a_share_at_time_one_needs_drawn_times(other):
    with pytest.raises(ValueError, match='prior_share needs times="drawn" and another objective than "lookalike"'):
        TrainConfig(prior_share=0.5, **other)


def test_the_drawer_of_labels_is_one_of_two():
    with pytest.raises(ValueError, match="drawn_by must be one of 'average', 'model', got 'teacher'"):
        SelfLabel(drawn_by="teacher")


def test_rates():
    config = TrainConfig(iterations=110, warmup=10, learning_rate=2.0, final_rate=0.1)
    cosine = [rate_at(iteration, config) for iteration in (1, 5, 10, 60, 110)]
    assert cosine == pytest.approx([0.2, 1.0, 2.0, 1.1, 0.2])
    constant = dataclasses.replace(config, schedule="constant")
    assert [rate_at(iteration, constant) for iteration in (5, 10, 110)] == pytest.approx([1.0, 2.0, 2.0])
    # SymmetricDiffusers: d_model^-0.5 min(step^-0.5, step warmup^-1.5), its peak 3.891e-4 at 128 and 51,600.
    peak = (128 * 51_600) ** -0.5
    transformer = TrainConfig(iterations=10**6, warmup=51_600, learning_rate=peak, schedule="transformer")
    assert peak == pytest.approx(3.891e-4, rel=1e-3)
    for step in (1, 1000, 51_600, 100_000, 10**6):
        assert rate_at(step, transformer) == pytest.approx(128**-0.5 * min(step**-0.5, step * 51_600**-1.5))
