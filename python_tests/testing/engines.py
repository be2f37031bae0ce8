"""The ways to compute a prediction: the kernel, plain torch with caches, plain torch without."""

import pytest

from softrank_ext import Engine

ENGINES = (Engine(), Engine(compiled=False), Engine(compiled=False, cache=False))
each_engine = pytest.mark.parametrize("engine", ENGINES, ids=("kernel", "cached", "uncached"))
