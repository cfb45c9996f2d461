"""How sure one can be of figures that come from a limited number of tests.

Scores are numbers from 0 to 1. Tests that belong together (turns of a conversation, variants of a question) are not independent: where
groups are given, standard errors are those of clustered samples.

Student's t distribution is here, which Python's standard library has not; and so is arithmetic with decimal numbers as people write them.
Thresholds are compared with ``>=``, so a mean of 0.9, 0.9 and 0.6 must be 0.8 and not 0.7999999999999999, which is what binary arithmetic
makes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import comb, erfc, exp, fsum, gcd, lcm, lgamma, log, sqrt
from random import Random
from statistics import NormalDist
from typing import Any

NORMAL_FROM = 1e7
"""Degrees of freedom from which on t is the normal distribution, to all digits that anyone shows."""
_SMALLEST = 1e-300
_PRECISION = 1e-15
_MAX_TERMS = 10_000
LEVEL = 0.95
POWER = 0.8
RESAMPLES = 1000
MIN_PAIRED = 3
"""Independent differences from which on there is an interval of their mean."""
EXACT_PAIRS = 200
"""Differences other than 0 up to which all ways to flip their signs are counted."""
MIN_RESAMPLED = 10
"""Groups from which on resampling is used; of fewer its interval is too narrow."""
_GRID = 1000
_MAX_UNITS = 200_000
"""For counting, differences are whole numbers of units, of which all have no more than this many together. Unless they are simple
fractions of one unit, it is a thousandth."""
_NOISE = 1e-9
"""What is no more than this differs by rounding alone."""


def t_below(t: float, degrees: float) -> float:
    """The probability of a value below ``t``: half of, or one less half of, I_x(ν/2, 1/2) at x = ν ÷ (ν + t²) (NIST Digital Library of
    Mathematical Functions, 8.17; Abramowitz and Stegun 26.7.1)."""
    if degrees > NORMAL_FROM:
        return NormalDist().cdf(t)
    tail = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: float) -> float:
    """The value below which t is with this probability (0 to 1, both excluded), found by bisection."""
    if degrees > NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while t_below(high, degrees) < probability:
        low, high = high, high * 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_below(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22), in the half where that
    converges fast (8.17.4 gives the other half)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) by the modified method of Lentz (Thompson and Barnett 1986)."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, _MAX_TERMS):
        m = term // 2
        if term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _not_zero(1 + step * d)
        c = _not_zero(1 + step / c)
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


def effective_size(count: float, variance: float, simple_variance: float) -> float:
    """How many independent observations say as much: count ÷ design effect (Kish 1965), never more than ``count``."""
    if simple_variance <= 0 or sqrt(variance) <= sqrt(simple_variance):
        return count
    return count * simple_variance / variance


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true value is with that confidence, and by which method that was found."""

    low: float
    high: float
    level: float
    method: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with what is known of its error."""

    count: int
    value: float | None
    deviation: float | None
    error: float | None
    """The standard error, None if there is but one group."""
    clusters: int
    """Independent groups (of one member, if none are given)."""
    interval: Interval | None
    """None for no values."""


def wilson(rate: float, count: float, level: float = LEVEL) -> Interval | None:
    """The score interval of a rate (Wilson 1927): the true rates p from which the one seen is at most z standard errors √(p(1−p)/n) away.

    ::

        (r + z²/2n ± z·√(r(1−r)/n + z²/4n²)) ÷ (1 + z²/n)

    It holds for the mean of any values between 0 and 1 too, where it is too wide rather than too narrow, because their variance is at most
    p(1−p). None for a count of 0.
    """
    if count <= 0:
        return None
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre, width = rate + z * z / (2 * count), z * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    shrink = 1 + z * z / count
    # At 0 and 1 an end is known, and rounding would miss it.
    low = 0.0 if rate <= 0 else max(0.0, (centre - width) / shrink)
    high = 1.0 if rate >= 1 else min(1.0, (centre + width) / shrink)
    return Interval(low, high, level, "wilson")


def pass_rate(passed: Sequence[bool], groups: Sequence[Hashable] | None = None, level: float = LEVEL) -> Mean:
    """The share of True with Wilson's interval; with groups, for as many independent tests as say as much (``_independent``)."""
    found = mean(passed, groups, level)
    if found.value is None:
        return found
    interval = wilson(found.value, _independent(found, level), level)
    if interval is not None and found.clusters < found.count:
        interval = replace(interval, method="wilson, clustered")
    return replace(found, interval=interval)


def _independent(rate: Mean, level: float) -> float:
    """How many independent tests say as much as clustered ones: n ÷ design effect (Kish 1965) · (t_{n−1} ÷ t_{G−1})², where the last
    factor is for the few groups of which the design effect is known (Korn and Graubard 1998). Where groups don't show how much they
    differ, each counts as one test.
    """
    if rate.clusters == rate.count or not rate.error or rate.value is None:
        return float(rate.clusters)
    simple = rate.value * (1 - rate.value) / (rate.count - 1)
    known = [t_quantile((1 + level) / 2, count - 1) for count in (rate.count, rate.clusters)]
    return effective_size(float(rate.count), rate.error**2, simple) * (known[0] / known[1]) ** 2


def mean(values: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = LEVEL) -> Mean:
    """The mean of scores with a t interval, cut to 0 … 1. Where nothing is known of their spread, as all groups have the same mean or
    there is but one, Wilson's for as many tests as there are groups."""
    found = _mean(values, groups, level)
    if found.value is None:
        return found
    if found.error and found.interval is not None:
        return replace(found, interval=_cut(found.interval, 0.0, 1.0))
    return replace(found, interval=wilson(found.value, found.clusters, level))


def _cut(interval: Interval, minimum: float, maximum: float) -> Interval:
    return replace(interval, low=max(minimum, interval.low), high=min(maximum, interval.high))


def _mean(values: Sequence[float], groups: Sequence[Hashable] | None, level: float) -> Mean:
    """The mean of any numbers, and its t interval of G−1 degrees of freedom.

    The standard error is that of clusters (Liang and Zeger 1986; for evaluations: Miller 2024, "Adding Error Bars to Evals"), with the
    correction for few of them. With groups of one member it is the usual s/√n. ::

        √( G/(G−1) · Σ_g (Σ_{i∈g} (x_i − x̄))² ) ÷ n
    """
    count = len(values)
    if not count:
        return Mean(0, None, None, None, 0, None)
    value = fsum(values) / count
    deviation = sqrt(fsum((each - value) ** 2 for each in values) / (count - 1)) if count > 1 else None
    sums = _sums([each - value for each in values], groups)
    clusters = len(sums)
    if clusters < 2:
        return Mean(count, value, deviation, None, clusters, None)
    error = sqrt(clusters / (clusters - 1) * fsum(each * each for each in sums)) / count
    error = error if error > _NOISE else 0.0
    width = t_quantile((1 + level) / 2, clusters - 1) * error
    method = "t" if clusters == count else "t, clustered"
    return Mean(count, value, deviation, error, clusters, Interval(value - width, value + width, level, method))


def _sums(values: Sequence[float], groups: Sequence[Hashable] | None) -> list[float]:
    if groups is None or len(set(groups)) == len(groups):
        return list(values)  # mostly nothing is shared, and a sum for each takes much memory
    sums: dict[Hashable, float] = {}
    for group, value in zip(groups, values, strict=True):
        sums[group] = sums.get(group, 0.0) + value
    return list(sums.values())


def bootstrap(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    *,
    level: float = LEVEL,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval | None:
    """The percentile interval of the mean (Efron 1979): that of the means of as many groups drawn with replacement. None for less than
    ``MIN_RESAMPLED`` groups, and for values that are all the same."""
    members: dict[Hashable, list[float]] = {}
    for group, value in zip(range(len(values)) if groups is None else groups, values, strict=True):
        members.setdefault(group, []).append(value)
    sums = [(fsum(each), len(each)) for each in members.values()]
    if len(sums) < MIN_RESAMPLED or max(values) - min(values) <= _NOISE:
        return None
    random = Random(seed)
    means = sorted(_drawn_mean(random.choices(sums, k=len(sums))) for _ in range(resamples))
    tail = (1 - level) / 2
    method = "bootstrap" if len(sums) == len(values) else "bootstrap, clustered"
    return Interval(_percentile(means, tail), _percentile(means, 1 - tail), level, method)


def _drawn_mean(drawn: Sequence[tuple[float, int]]) -> float:
    return sum(total for total, _ in drawn) / sum(count for _, count in drawn)


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def pass_at_k(trials: int, passes: int, k: int) -> float:
    """The chance that at least one of k trials passes, without bias from n ≥ k trials of which c passed: 1 − C(n−c, k) ÷ C(n, k)
    (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", section 2.1)."""
    _check_trials(trials, passes, k)
    return 1 - comb(trials - passes, k) / comb(trials, k)


def pass_power_k(trials: int, passes: int, k: int) -> float:
    """The chance that k trials all pass (pass^k), without bias: C(c, k) ÷ C(n, k) (Yao et al. 2024, "τ-bench", section 4)."""
    _check_trials(trials, passes, k)
    return comb(passes, k) / comb(trials, k)


def _check_trials(trials: int, passes: int, k: int) -> None:
    if not (0 <= passes <= trials and 1 <= k <= trials):
        raise ValueError(f"{passes} passes of {trials} trials say nothing about {k}")


@dataclass(frozen=True, slots=True)
class Paired:
    """What differences between pairs say."""

    difference: Mean
    p_value: float | None
    """The probability that their mean is 0, by ``test``."""
    test: str
    detectable: float | None
    """The smallest difference that as many tests show for sure, see ``detectable_effect``."""
    sign_p: float | None
    """The probability that wins and losses are equally likely."""
    no_interval: str | None = None
    """Why the mean has no interval; None if it has one."""
    least_p_value: float | None = None
    """The smallest ``p_value`` that as many independent differences can have by that test."""


def paired(differences: Sequence[float], groups: Sequence[Hashable] | None = None, level: float = LEVEL) -> Paired:
    """Differences between two scores of the same tests (candidate less base), with a t interval (Student 1908), cut to −1 … 1; where all
    groups have the same mean, Wilson's.

    There is none for less than ``MIN_PAIRED`` independent differences: a t interval of two rests on 12.7 times the half of one
    distance, and Wilson's of one or two misses its level by far (Brown, Cai and DasGupta 2001, "Interval Estimation for a Binomial
    Proportion", section 3). Nor is one from −1 to 1 given, which any differences have.
    """
    found, no_interval = _bounded(_mean(differences, groups, level), level)
    p_value, test = sign_flips(differences, groups)
    detectable = None
    if found.error:
        detectable = detectable_effect(found.error, found.clusters - 1, level)
    wins = sum(each > 0 for each in differences)
    losses = sum(each < 0 for each in differences)
    minimum = min(1.0, 2.0 ** (1 - found.clusters)) if found.clusters else None
    return Paired(found, p_value, test, detectable, sign_test(wins, losses), no_interval, minimum)


def _bounded(found: Mean, level: float) -> tuple[Mean, str | None]:
    """A mean of differences with the interval that it may have, or why there is none."""
    if found.value is None:
        return found, "there are no differences"
    number = f"{found.clusters} independent {'test' if found.clusters == 1 else 'tests'}"
    if found.clusters < MIN_PAIRED:
        return replace(found, interval=None), f"{number} can't say how sure that is"
    if found.error and found.interval is not None:
        interval: Interval | None = _cut(found.interval, -1.0, 1.0)
    else:
        interval = _of_equal_differences(found.value, found.clusters, level)
    if interval is not None and (interval.low, interval.high) == (-1.0, 1.0):
        return replace(found, interval=None), f"{number} that differ so much can't say how sure that is"
    return replace(found, interval=interval), None


def _of_equal_differences(value: float, clusters: int, level: float) -> Interval | None:
    """Wilson's interval for differences that are all the same, on the scale from −1 to 1: a t interval would have no width."""
    found = wilson((value + 1) / 2, clusters, level)
    return None if found is None else Interval(2 * found.low - 1, 2 * found.high - 1, level, found.method)


def detectable_effect(error: float, degrees: float, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest true difference that would have been found to differ from 0 with that power: (t_{1−α/2} + t_{power}) · standard error
    (Bloom 1995, "Minimum detectable effects")."""
    return (t_quantile((1 + level) / 2, degrees) + t_quantile(power, degrees)) * error


def sign_test(wins: int, losses: int) -> float | None:
    """The exact two-sided p-value of as uneven a split, or a more uneven one, if both are equally likely (Arbuthnot 1710; with passed
    and failed it is McNemar's exact test). None without wins or losses."""
    count = wins + losses
    if not count:
        return None
    tail = sum(comb(count, each) for each in range(min(wins, losses) + 1))
    return min(1.0, float(2 * tail / 2**count))


def sign_flips(differences: Sequence[float], groups: Sequence[Hashable] | None = None) -> tuple[float | None, str]:
    """The two-sided p-value of the mean difference, by flipping signs at random (Fisher 1935), and how it was found. Differences of a
    group are flipped together.

    Up to ``EXACT_PAIRS`` differences other than 0 every way to flip them counts, to a thousandth of a score where they are no simple
    fractions; beyond that their sum is taken as normal, with the variance Σd².
    """
    sums = [each for each in _sums(differences, groups) if abs(each) > _NOISE]
    if not sums:
        return (1.0 if differences else None), "sign flips, exact"
    if len(sums) <= EXACT_PAIRS:
        return _exact_flips(_whole(sums)), "sign flips, exact"
    z = abs(fsum(sums)) / sqrt(fsum(each * each for each in sums))
    return erfc(z / sqrt(2)), "sign flips, normal"


def _whole(values: Sequence[float]) -> list[int]:
    """Whole numbers in the proportions of the values: exactly, if all are fractions of which that many can be counted (thirds, say, whose
    sums must tie), else in thousandths, or in larger units where even these are too many."""
    fractions = [Fraction(each).limit_denominator(_GRID) for each in values]
    grid, size = lcm(*(each.denominator for each in fractions)), fsum(map(abs, values))
    exact = all(abs(float(each) - value) <= _NOISE for each, value in zip(fractions, values, strict=True))
    if exact and grid * size <= _MAX_UNITS:
        return [int(each * grid) for each in fractions]
    finest = min(_GRID, _MAX_UNITS / size)
    return [round(finest * each) for each in values]


def _exact_flips(sums: Sequence[int]) -> float:
    """Of all 2ⁿ sums ±d₁ ± … ± dₙ the share that is as far from 0 as the one seen, or further.

    The counts of all sums are kept side by side in one large number, as the coefficients of Π(1 + x^d): adding a difference is one
    shift and one addition.
    """
    unit = gcd(*sums) or 1
    sizes = [abs(each) // unit for each in sums]
    total, seen = sum(sizes), abs(sum(sums)) // unit
    width = len(sizes) // 8 + 1  # bytes that hold any count
    counts = 1
    for size in sizes:
        counts += counts << (8 * width * size)
    data = counts.to_bytes(width * (total + 1), "little")
    # The sum is 2·position − total; by symmetry both tails hold the same.
    last = (total - seen) // 2
    tail = sum(
        int.from_bytes(data[position * width : (position + 1) * width], "little") for position in range(last + 1)
    )
    return min(1.0, float(2 * tail / 2 ** len(sizes)))


def distribution(values: Sequence[float], bins: int = 10) -> list[int]:
    """How many scores are in each of as many bins of equal width from 0 to 1; the last one includes 1."""
    counts = Counter(min(bins - 1, max(0, int(value * bins + 1e-9))) for value in values)
    return [counts[position] for position in range(bins)]


def quantiles(values: Sequence[float], shares: Sequence[float] = (0.5,)) -> list[float]:
    """Values below which these shares are, interpolated linearly. Empty for no values."""
    ordered = sorted(values)
    return [_percentile(ordered, share) for share in shares] if ordered else []


def exact(number: float) -> Fraction:
    """The decimal number that a float is shown as."""
    return Fraction(repr(number))


def inverse(value: float) -> float:
    """1 − value."""
    return float(1 - exact(value))


def exact_sum(numbers: Iterable[float]) -> float:
    """Their sum: 0.1, 0.1 and 0.1 are 0.3."""
    return float(sum(map(exact, numbers)))


def weighted_mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Σ(value · weight) ÷ Σ(weight) of pairs of both, weights 0 or more; 0 if the weights are all 0."""
    values = {value for value, weight in weighted if weight}
    if len(values) < 2:
        return values.pop() if values else 0.0
    weights = sum(exact(weight) for _, weight in weighted)
    return float(sum(exact(value) * exact(weight) for value, weight in weighted) / weights)
