"""Certificates for samplers of orders: tests that state how often they are wrong, in either way.

A bare p-value does not say what a test could have found. Each test here states its false-alarm probability, and the
total-variation distance from which on it finds a wrong sampler with a stated probability; both hold for any number of
draws, by McDiarmid's inequality and that of Dvoretzky, Kiefer and Wolfowitz, not in a limit.

- `certify_law`: draws against a law whose probabilities are known, as of all N! orders. The statistic is the total
  variation between the draws' shares and the law. Under the law its mean is at most `sum sqrt(p (1 - p) / n) / 2`, and
  a draw changes it by 1/n at most.
- `certify_agreement`: beyond enumeration, at N = 10 to 20. The sampler's picks against those that the exact conditional
  probabilities after each prefix give for the same random numbers: the total variation is at most the chance that they
  differ.
- `certify_estimates`: draws against a law of which there are only unbiased estimates; their errors are in the bounds.
- `certify_ranks`: simulation-based calibration. The rank of a truth among draws that are said to follow its law is
  uniform; the band holds at all ranks together.
- `certify_same`: two samples of one law, number by number of some statistics, as in Geweke's joint test of forward and
  reverse draws.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import ANY_FLOAT, check_integer, check_limited, check_number, check_tensor

MOST_NUMBERS = 10**8  # that ranks are among


class Certificate(NamedTuple):
    """What a test found, and what it could have.

    statistic, threshold: it passes if the first is not above the second. draws: how many. false_alarm: at most this
    often does a right sampler fail. distance: from this distance on a wrong sampler fails, but for `missed`.
    """

    passes: bool
    statistic: float
    threshold: float
    draws: int
    false_alarm: float
    distance: float
    missed: float

    def __repr__(self) -> str:
        found = f"{self.statistic:.4g} of at most {self.threshold:.4g} with {self.draws} draws"
        chances = f"false alarms at most {self.false_alarm:.2g}, distances from {self.distance:.4g} on missed at most"
        return f"Certificate({'passes' if self.passes else 'FAILS'}: {found}; {chances} {self.missed:.2g})"


def certify_law(
    counts: Tensor, probabilities: Tensor, *, false_alarm: float = 1e-6, missed: float = 1e-3
) -> Certificate:
    """Whether draws, counted by category, follow a law: their total variation from it, with what it can find.

    counts (K,) int64: how often each category was drawn. probabilities (K,) float: of the law; they sum to 1. A
    sampler whose law is at least `distance` away from it, in total variation, passes with a probability of at most
    `missed`. Raises ValueError if probabilities are none.
    """
    check_tensor("counts", counts, ("K",), torch.int64)
    law = _checked_law(probabilities, len(counts))
    draws = int(counts.sum())
    check_integer("draws", draws, 1)
    statistic = float((counts.double() / draws - law).abs().sum() / 2)
    threshold = _law_threshold(law, draws, _checked_chance("false_alarm", false_alarm))
    distance = threshold + _deviation(draws, _checked_chance("missed", missed))
    return Certificate(statistic <= threshold, statistic, threshold, draws, false_alarm, distance, missed)


def draws_needed(probabilities: Tensor, distance: float, *, false_alarm: float = 1e-6, missed: float = 1e-3) -> int:
    """How many draws `certify_law` needs to find every law that is `distance` away in total variation."""
    law = _checked_law(probabilities, None)
    check_number("distance", distance, "from 1e-9 to 1", lambda x: 1e-9 <= x <= 1)
    spread = float((law * (1 - law)).sqrt().sum() / 2)
    chances = (_checked_chance("false_alarm", false_alarm), _checked_chance("missed", missed))
    # All three terms shrink with the root of the number of draws.
    return math.ceil(((spread + sum(math.sqrt(math.log(1 / chance) / 2) for chance in chances)) / distance) ** 2)


def certify_agreement(agrees: Tensor, *, most: float, rounding: float = 0.0, missed: float = 1e-3) -> Certificate:
    """A bound of the total variation beyond enumeration: how often orders differ from those that the law itself gives.

    agrees (R,) bool: whether each of R independent orders of the sampler is, pick for pick, the one that the exact
    conditional probabilities after its own prefix give for the same random numbers. Both are then draws on one
    probability space, so that the total variation between the sampler and the law is at most the probability that they
    differ. The statistic is an upper bound of it that is too low with a probability of at most `missed` (Chernoff); it
    passes if that is at most `most`, which is the distance. rounding: how often a right sampler may differ, because its
    probabilities are rounded; such a sampler fails with the certificate's false_alarm, which follows from the numbers.
    """
    check_tensor("agrees", agrees, ("R",), torch.bool)
    check_integer("draws", len(agrees), 1)
    check_number("most", most, "above 0 and at most 1", lambda x: 0 < x <= 1)
    check_number("rounding", rounding, f"at least 0 and below most, {most:g}", lambda x: 0 <= x < most)
    chance, draws = _checked_chance("missed", missed), len(agrees)
    bound = _most_share(int((~agrees).sum()), draws, chance)
    # The largest number of differing orders that passes.
    low, high = -1, draws
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _most_share(middle, draws, chance) <= most else (low, middle - 1)
    false_alarm = 1.0 if low < 0 else _chance_of_more(low, draws, rounding)
    return Certificate(bound <= most, bound, most, draws, false_alarm, most, missed)


def _chance_of_more(found: int, draws: int, share: float) -> float:
    """At most how likely more than `found` of the draws are hit, each with a chance of `share` (Chernoff)."""
    if found >= draws or share == 0:
        return 0.0
    seen = (found + 1) / draws
    return 1.0 if seen <= share else math.exp(-draws * _relative_entropy(seen, share))


def _relative_entropy(seen: float, tried: float) -> float:
    """Of two coins, the first one seen, the second one tried."""
    entropy = seen * math.log(seen / tried) if seen > 0 else 0.0
    return entropy + ((1 - seen) * math.log((1 - seen) / (1 - tried)) if seen < 1 and tried < 1 else 0.0)


def _most_share(found: int, draws: int, chance: float) -> float:
    """The largest probability under which so few of the draws are found with at least this chance (Chernoff)."""
    low, high = found / draws, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        is_likely = draws * _relative_entropy(found / draws, middle) < math.log(1 / chance)
        low, high = (middle, high) if is_likely else (low, middle)
    return high


def certify_estimates(
    counts: Tensor, weights: Tensor, *, most_weight: float = 1.0, false_alarm: float = 1e-6, missed: float = 1e-3
) -> Certificate:
    """Whether draws follow a law of which there are only unbiased estimates, such as those of `log_likelihood`.

    counts (K,) int64: how often each of K categories, all there are, was drawn. weights (K, S) float: S independent
    numbers from 0 to most_weight per category, whose mean is its probability. The statistic is the total variation
    between the draws' shares and the means. Both errors are in the threshold: a draw changes it by 1/n at most, a
    weight by most_weight / 2S, and its mean is largest for a uniform law. `distance` is that between the laws.
    """
    check_tensor("counts", counts, ("K",), torch.int64)
    check_tensor("weights", weights, (len(counts), "S"), ANY_FLOAT)
    (categories, samples), draws = weights.shape, int(counts.sum())
    check_integer("draws", draws, 1)
    check_integer("samples", samples, 1)
    check_number("most_weight", most_weight, "from 1 to 1e6", lambda x: 1 <= x <= 1e6)
    least, largest = (float(weight) for weight in weights.aminmax())
    if not 0 <= least <= largest <= most_weight:
        raise ValueError(f"weights must be from 0 to {most_weight}, got {least if least < 0 else largest}")
    statistic = float((counts.double() / draws - weights.double().mean(1)).abs().sum() / 2)
    mean = math.sqrt((categories - 1) / draws + (categories * most_weight - 1) / samples) / 2
    # As if so many draws changed it by one part each (McDiarmid).
    like = 1 / (1 / draws + categories * most_weight**2 / (4 * samples))
    threshold = mean + _deviation(like, _checked_chance("false_alarm", false_alarm))
    distance = threshold + _deviation(like, _checked_chance("missed", missed))
    return Certificate(statistic <= threshold, statistic, threshold, draws, false_alarm, distance, missed)


def certify_ranks(ranks: Tensor, numbers: int, *, false_alarm: float = 1e-6, missed: float = 1e-3) -> Certificate:
    """Whether ranks are uniform over 0 to numbers - 1: the largest gap between their shares and the uniform ones.

    ranks (R,) int64: of independent truths, each among numbers - 1 draws, ties broken at random. The statistic is the
    largest difference of the cumulated shares, and `distance` is one of cumulated shares too, which is at most the
    total variation.
    """
    check_tensor("ranks", ranks, ("R",), torch.int64)
    check_limited("numbers", numbers, 2, MOST_NUMBERS)
    if len(ranks) == 0 or not 0 <= int(ranks.min()) <= int(ranks.max()) < numbers:
        raise ValueError(f"ranks must be numbers from 0 to {numbers - 1}, at least one")
    shares = torch.bincount(ranks, minlength=numbers).double().cumsum(0) / len(ranks)
    wanted = torch.arange(1, numbers + 1, dtype=torch.float64) / numbers
    statistic = float((shares - wanted).abs().max())
    threshold = _deviation(len(ranks), _checked_chance("false_alarm", false_alarm) / 2)
    distance = threshold + _deviation(len(ranks), _checked_chance("missed", missed))
    return Certificate(statistic <= threshold, statistic, threshold, len(ranks), false_alarm, distance, missed)


def certify_same(first: Tensor, second: Tensor, *, false_alarm: float = 1e-6, missed: float = 1e-3) -> Certificate:
    """Whether two samples have one law: the largest gap between their cumulated shares, over all statistics.

    first, second (R, S) float: S statistics of R independent draws each. As for Geweke's joint test: draw a clean order
    and noise it, or draw the noisy one and go back; then statistics of the pair (clean, noisy) have one law. The false
    alarm is shared by the statistics; `distance` is the gap of one statistic's distribution functions.
    """
    check_tensor("first", first, ("R", "S"), ANY_FLOAT)
    check_tensor("second", second, ("R", first.shape[1]), ANY_FLOAT)
    if min(first.numel(), second.numel()) == 0 or bool(first.isnan().any() | second.isnan().any()):
        raise ValueError("first and second must hold at least one statistic of one draw, and no NaN")
    chance = _checked_chance("false_alarm", false_alarm) / (4 * first.shape[1])
    threshold = _deviation(len(first), chance) + _deviation(len(second), chance)
    statistic = max(_largest_gap(*columns) for columns in zip(first.double().T, second.double().T, strict=True))
    late = _checked_chance("missed", missed) / 2
    distance = threshold + _deviation(len(first), late) + _deviation(len(second), late)
    return Certificate(
        statistic <= threshold, statistic, threshold, len(first) + len(second), false_alarm, distance, missed
    )


def _largest_gap(first: Tensor, second: Tensor) -> float:
    """The Kolmogorov-Smirnov distance of two samples (R,)."""
    points = torch.cat((first, second)).sort().values
    shares = [torch.searchsorted(sample.sort().values, points, right=True) / len(sample) for sample in (first, second)]
    return float((shares[0] - shares[1]).abs().max())


def _law_threshold(law: Tensor, draws: int, false_alarm: float) -> float:
    return float((law * (1 - law) / draws).sqrt().sum() / 2) + _deviation(draws, false_alarm)


def _deviation(draws: float, chance: float) -> float:
    """How far a mean of so many numbers from 0 to 1 is above its expectation with at most this chance (Hoeffding)."""
    return math.sqrt(math.log(1 / chance) / (2 * draws))


def _checked_law(probabilities: Tensor, categories: int | None) -> Tensor:
    check_tensor("probabilities", probabilities, ("K" if categories is None else categories,), ANY_FLOAT)
    law = probabilities.double()
    if len(law) == 0 or bool((law < 0).any()) or not abs(float(law.sum()) - 1) < 1e-4:
        raise ValueError(f"probabilities must be at least 0 and sum to 1, got a sum of {float(law.sum())}")
    return law / law.sum()


def _checked_chance(name: str, chance: float) -> float:
    check_number(name, chance, "above 0 and below 1", lambda x: 0 < x < 1)
    return chance
