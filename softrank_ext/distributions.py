"""The laws of `softrank_ext.laws` under the name that torch users look for."""

from softrank_ext.laws import *  # noqa: F403
from softrank_ext.laws import __all__ as __all__
