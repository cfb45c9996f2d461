"""Student's t distribution, which Python's standard library has not."""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log, sqrt
from statistics import NormalDist

NORMAL_FROM = 1e7
"""Degrees of freedom from which on t is the normal distribution, to all digits that anyone shows."""
_SMALLEST = 1e-300
_PRECISION = 1e-15
_MOST_TERMS = 10_000


def t_below(t: float, degrees: float) -> float:
    """The probability of a value below ``t``: half of, or one less half of, I_x(ν/2, 1/2) at x = ν ÷ (ν + t²) (NIST Digital Library of
    Mathematical Functions, 8.17; Abramowitz and Stegun 26.7.1)."""
    if degrees > NORMAL_FROM:
        return NormalDist().cdf(t)
    tail = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2
    return 1 - tail if t > 0 else tail


def two_sided(t: float, degrees: float) -> float:
    """The probability of a value as far from 0 as ``t``, or further."""
    return 2 * t_below(-abs(t), degrees)


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
    for term in range(1, _MOST_TERMS):
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
