"""What a call may choose: small values, checked where they are made."""

import dataclasses
import math

import pytest
import torch

from softrank_ext import Beam, Draw, Engine, Greedy
from softrank_ext.choices import decode_of


def test_names_stand_for_choices():
    assert decode_of("sample") == Draw(1.0)
    assert decode_of("greedy") == Greedy()
    for choice in (Draw(0.3), Greedy(), Beam(4, 2)):
        assert decode_of(choice) is choice


@pytest.mark.parametrize("wrong", ["best", "beam", None, 3, Draw, Engine()], ids=str)
def test_anything_else_is_told(wrong):
    with pytest.raises(
        ValueError, match=r"^decode must be 'sample', 'greedy', Draw\(\.\.\.\), Greedy\(\) or Beam\(\.\.\.\), got "
    ):
        decode_of(wrong)


@pytest.mark.parametrize("temperature", [0, -1.0, math.inf, math.nan, "1", True])
def test_temperatures(temperature):
    with pytest.raises(ValueError, match=rf"^temperature must be positive and finite, got {temperature!r}$"):
        Draw(temperature)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0,), "width must be an integer of at least 1, got 0"),
        ((2.0,), "width must be an integer of at least 1, got 2.0"),
        ((3, 4), "kept must be an integer from 1 to 3, got 4"),
        ((3, 0), "kept must be an integer from 1 to 3, got 0"),
        ((4, 2, 3), "returned must be an integer from 1 to 2, got 3"),
    ],
)
def test_beams(fields, message):
    with pytest.raises(ValueError, match=message):
        Beam(*fields)


def test_engines():
    assert Engine() == Engine(compiled=None, cache=True, speculative=True, max_memory=None)
    assert [engine.uses_kernels for engine in (Engine(), Engine(compiled=True))] == [True, True]
    assert [engine.uses_kernels for engine in (Engine(compiled=False), Engine(cache=False))] == [False, False]
    with pytest.raises(ValueError, match=r"^compiled must be one of True, False, None, got 'yes'$"):
        Engine(compiled="yes")
    with pytest.raises(
        ValueError, match=r"^cache must be True with compiled=True: the kernels keep caches, got False$"
    ):
        Engine(compiled=True, cache=False)
    for max_memory in (0, -1, math.nan):
        with pytest.raises(ValueError, match=rf"^max_memory must be positive and finite, got {max_memory}$"):
            Engine(max_memory=max_memory)


def test_memory_of_a_batch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * 2**30, 16 * 2**30))
    assert Engine().memory_on(torch.device("cpu")) == 2**30
    assert Engine().memory_on(torch.device("cuda", 0)) == 5 * 2**30
    assert Engine(max_memory=7).memory_on(torch.device("cuda", 0)) == 7
    # What torch holds in reserve is free for it, though the driver does not say so.
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 7 * 2**20)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3 * 2**20)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 16 * 2**30))
    assert Engine().memory_on(torch.device("cuda", 0)) == 5 * 2**19


@pytest.mark.parametrize("choice", [Draw(), Greedy(), Beam(), Engine()], ids=str)
def test_choices_are_frozen_values(choice):
    assert choice == dataclasses.replace(choice) and hash(choice) == hash(dataclasses.replace(choice))
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice.width = 3


def test_temperatures_that_leave_the_range_are_told():
    with pytest.raises(ValueError, match="temperature must be at least 1e-30, got 1e-38"):
        Draw(1e-38)
