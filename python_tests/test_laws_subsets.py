"""Exact entropies and modes have a limit on the number of items."""

import pytest
import torch
from example_laws import double_by_default, validation_by_default  # noqa: F401

from softrank_ext.laws import GeneralizedPlackettLuce, PlackettLuce


def test_what_is_not_exact_is_not_there():
    with pytest.raises(NotImplementedError, match=r"entropy .* at most 12 items, got 13"):
        PlackettLuce(torch.zeros(13)).entropy()
    with pytest.raises(NotImplementedError, match=r"mode .* at most 12 items, got 13"):
        _ = GeneralizedPlackettLuce(torch.zeros(13, 13)).mode
    with pytest.raises(NotImplementedError, match="at most 8 items, got 9"):
        PlackettLuce(torch.zeros(9)).enumerate_support()
