"""Rules on orders: "a before b", pinned places, forbidden places, groups that stay together."""

from softrank_ext.constraints.rules import (
    LAWS,
    Constraining,
    Constraints,
    ConstraintSettings,
    Rules,
    pinned_first,
    read_constraints,
    rules_of,
    settings_of,
)

__all__ = [
    "LAWS",
    "Constraining",
    "ConstraintSettings",
    "Constraints",
    "Rules",
    "pinned_first",
    "read_constraints",
    "rules_of",
    "settings_of",
]
