"""`softrank_ext.distributions` is `softrank_ext.laws` under another name."""

from softrank_ext import distributions, laws


def test_the_same_names():
    assert distributions.__all__ == laws.__all__
    assert {"GeneralizedPlackettLuce", "Mallows", "PlackettLuce", "Riffle", "fit_plackett_luce"} <= set(laws.__all__)
    for name in laws.__all__:
        assert getattr(distributions, name) is getattr(laws, name)
