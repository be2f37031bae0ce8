"""Every check lets right values through and says what it wanted and what came."""

import math
import re

import pytest
import torch

from softrank_ext import checks


def test_described():
    assert checks.described(torch.zeros(2, 3, dtype=torch.float64)) == "(2, 3) float64"
    assert checks.described([1]) == "list"
    assert checks.dtype_name(torch.int64) == "int64"


def test_choice():
    checks.check_choice("grid", "paper", ("paper", "midpoint"))
    checks.check_choice("direction", None, iter((None, "file")))
    with pytest.raises(ValueError, match=r"^grid must be one of 'paper', 'midpoint', got 'centroid'$"):
        checks.check_choice("grid", "centroid", (name for name in ("paper", "midpoint")))


def test_integer():
    assert checks.check_integer("steps", 1, 1) == 1
    assert checks.check_integer("steps", 7, 1, 7) == 7
    for wrong in (0, 1.0, True, "3", None):
        with pytest.raises(ValueError, match=rf"^steps must be an integer of at least 1, got {wrong!r}$"):
            checks.check_integer("steps", wrong, 1)
    with pytest.raises(ValueError, match=r"^kept must be an integer from 1 to 3, got 4$"):
        checks.check_integer("kept", 4, 1, 3)


def test_seed():
    for seed in (0, -1, 2**63 - 1, -(2**63)):
        assert checks.check_seed(seed) == seed
    for wrong in (2**63, -(2**63) - 1, 0.5, False, None):
        with pytest.raises(ValueError, match=rf"^seed must be a 64-bit integer, got {wrong}$"):
            checks.check_seed(wrong)


@pytest.mark.parametrize(
    ("check", "right", "wrong", "wanted"),
    [
        (checks.check_positive, (1e-9, 1, 3.5), (0, -1.0, math.inf, math.nan, 10**400), "positive and finite"),
        (checks.check_not_negative, (0, 0.0, 7), (-0.1, math.inf, math.nan), "at least 0 and finite"),
        (checks.check_share, (0, 0.999), (1, 1.0, -0.1, math.nan), "at least 0 and below 1"),
    ],
)
def test_numbers(check, right, wrong, wanted):
    for value in right:
        check("rate", value)
    for value in (*wrong, True, "1", None):
        with pytest.raises(ValueError, match=rf"^rate must be {wanted}, got {value!r}$"):
            check("rate", value)


def test_number_of_any_kind():
    def is_share(value):
        return 0 <= value <= 1

    checks.check_number("share", 1.0, "from 0 to 1", is_share)
    for value in (2.0, True, "x", torch.zeros(2)):  # what is no number is not compared with one
        with pytest.raises(ValueError, match=rf"^share must be from 0 to 1, got {re.escape(repr(value))}$"):
            checks.check_number("share", value, "from 0 to 1", is_share)


def test_tensor():
    value = torch.zeros(2, 5, 3)
    assert checks.check_tensor("items", value, (2, "N", 3), torch.float32) is value
    assert checks.check_tensor("items", value, ("B", "N", "F"), checks.FLOAT_DTYPES) is value
    wanted = r"^items must be a \(2, N, 4\) tensor of float32 or float64, got "
    for wrong, error, got in (
        (value, ValueError, r"\(2, 5, 3\) float32$"),
        (torch.zeros(2, 5), ValueError, r"\(2, 5\) float32$"),
        (torch.zeros(2, 5, 4, dtype=torch.int64), ValueError, r"\(2, 5, 4\) int64$"),
        ([[1.0]], TypeError, "list$"),
    ):
        with pytest.raises(error, match=wanted + got):
            checks.check_tensor("items", wrong, (2, "N", 4), checks.FLOAT_DTYPES)
    with pytest.raises(ValueError, match=r"^ranks must be a \(B,\) tensor of int64, got \(2,\) float32; did you\?$"):
        checks.check_tensor("ranks", torch.zeros(2), ("B",), torch.int64, "; did you?")


def test_mask():
    like = torch.zeros(2, 3)
    checks.check_mask("mask", torch.ones(2, 3, dtype=torch.bool), "order", like)
    wanted = r"^mask must be a bool tensor of the shape of order \(2, 3\), got "
    for wrong, got in (
        (torch.ones(2, 3), r"\(2, 3\) float32$"),
        (torch.ones(3).bool(), r"\(3,\) bool$"),
        (True, "bool$"),
    ):
        with pytest.raises(ValueError, match=wanted + got):
            checks.check_mask("mask", wrong, "order", like)
    elsewhere = torch.ones(2, 3, dtype=torch.bool, device="meta")
    with pytest.raises(ValueError, match=r"^mask must be on the device of order, cpu, got meta$"):
        checks.check_mask("mask", elsewhere, "order", like)


def test_sparse_tensors_are_told():
    with pytest.raises(ValueError, match=r"^x must be a \(2, 2\) tensor of float32, got \(2, 2\) float32 sparse$"):
        checks.check_tensor("x", torch.eye(2).to_sparse(), (2, 2), torch.float32)
