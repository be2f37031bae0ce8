"""The laws of `softrank_ext.laws` under the name that torch users look for."""

from softrank_ext.laws import (
    MAX_ENUMERATED,
    MAX_SUBSETS_OF,
    GeneralizedPlackettLuce,
    Mallows,
    OrderDistribution,
    Permutation,
    PlackettLuce,
    Riffle,
    Shape,
    fit_plackett_luce,
    permutation,
    rising_sequences,
    stagewise_log_probs,
)

__all__ = [
    "MAX_ENUMERATED",
    "MAX_SUBSETS_OF",
    "GeneralizedPlackettLuce",
    "Mallows",
    "OrderDistribution",
    "Permutation",
    "PlackettLuce",
    "Riffle",
    "Shape",
    "fit_plackett_luce",
    "permutation",
    "rising_sequences",
    "stagewise_log_probs",
]
