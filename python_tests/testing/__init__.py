"""Checks that several test files share: orders counted and compared with a law, ways to compute a prediction."""

from testing.browser import Tab, browse, needs_browser, run_in
from testing.engines import ENGINES, each_engine
from testing.frequencies import all_orders, chi_square, counts_of, index_of, orders_of_mask, same_law
from testing.pins import pin

__all__ = [
    "ENGINES",
    "Tab",
    "all_orders",
    "browse",
    "chi_square",
    "counts_of",
    "each_engine",
    "index_of",
    "needs_browser",
    "orders_of_mask",
    "pin",
    "run_in",
    "same_law",
]
