"""Processes as config.json has them, the process of a call, and the one of models that are no diffusion."""

import json
from dataclasses import replace

import pytest
import torch

from softrank_ext import Bridge, Riffle
from softrank_ext.noise import RowNoise
from softrank_ext.processes import OnePass, Prediction, process_from_json, process_of_call, process_to_json

PREVIOUS = Bridge(target="previous", sampling_steps=3)
RIFFLE = Riffle((0, 2, 7), "previous")


class TestJson:
    def test_a_bridge_by_hand(self):
        written = {
            "kind": "bridge", "noise_scale": 0.1, "prior": "gaussian", "carry": "reflected", "target": "clean",
            "sampling_steps": 7,
        }  # fmt: skip
        process = Bridge(0.1, "gaussian", "reflected", sampling_steps=7)
        assert process_to_json(process) == written
        assert process_from_json(written) == process

    @pytest.mark.parametrize("process", [Bridge(), PREVIOUS, RIFFLE, Riffle((0, 1))], ids=str)
    def test_through_a_file(self, process):
        assert process_from_json(json.loads(json.dumps(process_to_json(process)))) == process

    def test_what_is_left_out_is_the_default(self):
        assert process_from_json({"kind": "bridge", "noise_scale": 0.2}) == Bridge(noise_scale=0.2)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("riffle", "process must be an object whose kind is one of bridge, riffle, got 'riffle'"),
            ({"noise_scale": 0.5}, "process must be an object whose kind is one of bridge, riffle"),
            ({"kind": "one-pass"}, "process must be an object whose kind is one of bridge, riffle"),
            ({"kind": "bridge", "eta": 1}, "process has unknown field eta; known are noise_scale, prior, carry"),
            ({"kind": "bridge", "visited": [0, 2]}, "process has unknown field visited"),
            ({"kind": "bridge", "noise_scale": -1}, "noise_scale must be at least 0 and finite, got -1"),
            ({"kind": "riffle", "visited": [1, 2]}, r"visited must be ascending numbers .* got \[1, 2\]"),
        ],
    )
    def test_says_what_is_wrong(self, value, message):
        with pytest.raises(ValueError, match=message):
            process_from_json(value)


class TestOfACall:
    def test_is_the_model_s_own(self):
        for own in (Bridge(0.1), PREVIOUS, RIFFLE, OnePass()):
            assert process_of_call(own) is own
            assert process_of_call(own, steps=own.sampling_steps) is own

    def test_steps_change_that_one_field(self):
        own = Bridge(0.1, "gaussian", "reflected", sampling_steps=4)
        assert process_of_call(own, steps=9) == replace(own, sampling_steps=9)

    def test_another_process(self):
        other = Bridge(0.2, "gaussian", sampling_steps=7)
        assert process_of_call(Bridge(), other) == other
        assert process_of_call(Bridge(), other, 7) == other
        assert process_of_call(PREVIOUS, replace(PREVIOUS, noise_scale=0.2)).noise_scale == 0.2
        assert process_of_call(RIFFLE, Riffle((0, 2, 7), "previous")) == RIFFLE

    @pytest.mark.parametrize(
        ("own", "process", "steps", "message"),
        [
            (Bridge(), Bridge(0.2), 7, r"steps must be left out or agree with process\.sampling_steps = 5, got 7"),
            (Bridge(), None, 0, "sampling_steps must be an integer of at least 1, got 0"),
            (Bridge(), None, 2.5, "sampling_steps must be an integer of at least 1, got 2.5"),
            (Bridge(), PREVIOUS, None, "process must be of the model's own kind and target"),
            (Bridge(), RIFFLE, None, "process must be of the model's own kind and target"),
            (PREVIOUS, None, 7, "steps of this model must be its own 3, or None, got 7"),
            (PREVIOUS, replace(PREVIOUS, sampling_steps=7), None, "sampling_steps of this model must be its own 3"),
            (RIFFLE, None, 7, "steps of this model must be its own 2, or None, got 7"),
            (RIFFLE, Riffle((0, 2, 8), "previous"), None, r"process must visit .* \(0, 2, 7\), got \(0, 2, 8\)"),
            (OnePass(), None, 5, "steps of this model must be its own 1, or None, got 5"),
            (OnePass(), Bridge(), None, "process must be of the model's own kind and target"),
        ],
    )
    def test_says_what_is_wrong(self, own, process, steps, message):
        with pytest.raises(ValueError, match=message):
            process_of_call(own, process, steps)


class TestOnePass:
    def test_items_stand_as_given_with_the_first_in_front(self):
        assert OnePass().times() == [1.0, 0.0] and OnePass().sampling_steps == 1
        state = OnePass().draw_prior(RowNoise(0, torch.arange(2), 4))
        assert state.argsort(1).tolist() == [[0, 1, 2, 3]] * 2
        assert bool((state > 0).all()) and bool((state <= 1).all())
        state = OnePass().draw_prior(RowNoise(0, torch.arange(2), 4, torch.float64, first=torch.tensor([2, 0])))
        assert state.dtype == torch.float64
        assert state.argsort(1).tolist() == [[2, 0, 1, 3], [0, 1, 2, 3]]

    def test_goes_back_to_the_prediction(self):
        z_clean = torch.tensor([[1.0, 0.0, 0.5]])
        prediction = Prediction(torch.zeros(1, 3), torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 0]]), z_clean)
        assert torch.equal(OnePass().draw_back(prediction, 1.0, 0.0, RowNoise(0, torch.arange(1), 3), 0), z_clean)
