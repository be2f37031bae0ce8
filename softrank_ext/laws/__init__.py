"""Distributions over orders with the torch.distributions interface.

A value is an order, `order[place] = item`, (..., N) int64. `mask` (..., N) bool, True = real item, lets one batch hold
instances of several sizes. `sample` reads torch's global random numbers; `from_uniform` makes the same draws from given
uniform numbers. All laws choose place after place, so the probability of an order's first places, the sum over all that
may follow, is exact: `log_prob_top`. `torch.distributions.kl_divergence` knows them: `divergence` says which how.
"""

from softrank_ext.laws import divergence as divergence  # registers what kl_divergence finds
from softrank_ext.laws.fitting import fit_generalized_plackett_luce, fit_mallows, fit_plackett_luce
from softrank_ext.laws.mallows import Mallows
from softrank_ext.laws.orders import MAX_ENUMERATED, Finite, OrderDistribution, Permutation, Shape, permutation
from softrank_ext.laws.plackett_luce import GeneralizedPlackettLuce, PlackettLuce, stagewise_log_probs
from softrank_ext.laws.riffle import Riffle, rising_sequences
from softrank_ext.laws.subsets import MAX_SUBSETS_OF

__all__ = [
    "MAX_ENUMERATED",
    "MAX_SUBSETS_OF",
    "Finite",
    "GeneralizedPlackettLuce",
    "Mallows",
    "OrderDistribution",
    "Permutation",
    "PlackettLuce",
    "Riffle",
    "Shape",
    "fit_generalized_plackett_luce",
    "fit_mallows",
    "fit_plackett_luce",
    "permutation",
    "rising_sequences",
    "stagewise_log_probs",
]
