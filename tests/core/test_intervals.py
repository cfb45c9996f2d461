"""Intervals, tests and estimators: against tables, against counting by hand, and against what must always hold."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product
from math import comb, isclose, sqrt
from random import Random
from statistics import NormalDist, fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.statistics import (
    EXACT_PAIRS,
    bootstrap,
    detectable_effect,
    distribution,
    effective_size,
    incomplete_beta,
    mean,
    paired,
    pass_at_k,
    pass_power_k,
    pass_rate,
    quantiles,
    sign_flips,
    sign_test,
    t_below,
    t_quantile,
    wilson,
)

scores = st.floats(0, 1)
deltas = st.lists(st.integers(-1000, 1000).map(lambda each: each / 1000), min_size=1, max_size=8)


# --- Student's t (reference values: scipy 1.17, stats.t and stats.beta)


@pytest.mark.parametrize(
    ("degrees", "values"),
    [
        (1, (0.32491969623290634, 1.3763819204711738, 12.706204736174694, 63.656741162871526, 3183.098757118502)),
        (2, (0.2886751345948128, 1.0606601717798214, 4.302652729749462, 9.924843200918287, 70.70007107496818)),
        (3.5, (0.27326545405577973, 0.9567588339323106, 2.9400886379827282, 5.085702223091256, 16.295284596959196)),
        (10, (0.2601848294920803, 0.8790578285505889, 2.228138851986274, 3.16927267261695, 5.693820101457592)),
        (30, (0.2556053649519128, 0.8537672614712979, 2.0422724563012378, 2.7499956535672254, 4.23398595727206)),
        (250, (0.2536168815819393, 0.8430613607403348, 1.9694983934211532, 2.5956376304661806, 3.7749127906181994)),
    ],
)
def test_quantiles_of_t(degrees: float, values: tuple[float, ...]) -> None:
    for probability, value in zip((0.6, 0.8, 0.975, 0.995, 0.9999), values, strict=True):
        assert t_quantile(probability, degrees) == pytest.approx(value, rel=1e-10)
        assert t_quantile(1 - probability, degrees) == pytest.approx(-value, rel=1e-9)


@pytest.mark.parametrize(
    ("degrees", "below"),
    [(1, 0.13054758708862277), (2, 0.07407407407407408), (3.5, 0.04619672248986906), (250, 0.011136268426235663)],
)
def test_the_distribution_of_t(degrees: float, below: float) -> None:
    assert t_below(-2.3, degrees) == pytest.approx(below, rel=1e-10)
    assert t_below(2.3, degrees) == pytest.approx(1 - below, rel=1e-10)


@pytest.mark.parametrize(
    ("a", "b", "x", "value"),
    [
        (2, 3, 0.4, 0.5248),
        (0.5, 0.5, 0.2, 0.2951672353008665),
        (10, 0.5, 0.99, 0.6579281751567845),
        (2, 3, 0, 0),
        (2, 3, 1, 1),
    ],
)
def test_the_incomplete_beta_function(a: float, b: float, x: float, value: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(value, rel=1e-12)


def test_t_of_very_many_degrees_is_normal() -> None:
    assert t_quantile(0.975, 1e9) == NormalDist().inv_cdf(0.975)
    assert t_quantile(0.975, 9e6) == pytest.approx(NormalDist().inv_cdf(0.975), rel=1e-6)
    assert t_below(1.5, 1e9) == NormalDist().cdf(1.5)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.5, 1000))
def test_quantile_and_distribution_are_each_others_reverse(probability: float, degrees: float) -> None:
    assert t_below(t_quantile(probability, degrees), degrees) == pytest.approx(probability, rel=1e-8, abs=1e-12)


# --- Rates (reference values: scipy 1.17, binomtest(…).proportion_ci(method="wilson"))


@pytest.mark.parametrize(
    ("passed", "count", "low", "high"),
    [
        (0, 10, 0.0, 0.27753279986288926),
        (1, 3, 0.06149194472039626, 0.7923403991979523),
        (8, 10, 0.4901624715366418, 0.9433178485456248),
        (10, 10, 0.7224672001371109, 1.0),
        (81, 263, 0.2552885198782742, 0.36620957698280004),
    ],
)
def test_wilsons_interval(passed: int, count: int, low: float, high: float) -> None:
    found = pass_rate([place < passed for place in range(count)])
    assert found.interval is not None
    assert found.value == passed / count
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=1e-12)
    assert found.interval.method == "wilson"


def test_no_tests_have_no_rate() -> None:
    assert pass_rate([]).value is None
    assert pass_rate([]).interval is None
    assert mean([]).interval is None
    assert wilson(0.5, 0) is None


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=50), st.floats(0.5, 0.999))
def test_a_rate_is_within_its_interval(passed: list[bool], level: float) -> None:
    found = pass_rate(passed, level=level)
    assert found.interval is not None
    assert found.value is not None
    assert 0 <= found.interval.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.interval.high <= 1


def test_copies_of_tests_make_no_rate_surer() -> None:
    once = [True, False, True, True, False, True] * 5
    groups = [place // 4 for place in range(120)]
    found = pass_rate([each for each in once for _ in range(4)], groups)
    alone = pass_rate(once)
    assert found.interval is not None
    assert alone.interval is not None
    assert found.interval.method == "wilson, clustered"
    assert found.clusters == 30
    # As many independent tests as there are groups, but for the corrections for few of them.
    assert found.interval.high - found.interval.low == pytest.approx(alone.interval.high - alone.interval.low, rel=0.1)
    assert effective_size(24, 4.0, 1.0) == 6
    assert effective_size(24, 0.5, 1.0) == 24
    assert effective_size(24, 1.0, 0.0) == 24


def test_groups_that_do_not_show_how_they_differ_count_as_one_test_each() -> None:
    for passed, groups in (([True] * 24, [0] * 12 + [1] * 12), ([True, False] * 4, [0, 0, 1, 1, 2, 2, 3, 3])):
        found, alone = pass_rate(passed, groups), wilson(fmean(passed), len(set(groups)))
        assert found.interval is not None
        assert alone is not None
        assert (found.interval.low, found.interval.high) == (alone.low, alone.high)
    one = pass_rate([True, False, True], ["g"] * 3).interval
    assert one is not None
    assert one.high - one.low > 0.7


def test_rates_of_few_unlike_groups_hold_what_they_promise() -> None:
    random, held = Random(3), 0
    for _ in range(300):
        rates = [random.betavariate(0.7, 0.3) for _ in range(3)]
        interval = pass_rate([random.random() < rate for rate in rates for _ in range(8)], sorted("abc" * 8)).interval
        assert interval is not None
        held += interval.low <= 0.7 <= interval.high
    assert held >= 285


# --- Means


def test_the_t_interval_by_hand() -> None:
    values = [0.2, 0.4, 0.6, 0.8]
    found = mean(values)
    error = stdev(values) / sqrt(4)
    assert found.interval is not None
    assert (found.value, found.error, found.deviation) == pytest.approx((0.5, error, stdev(values)))
    width = 3.182446305284263 * error
    assert (found.interval.low, found.interval.high) == pytest.approx((0.5 - width, 0.5 + width))
    assert found.interval.method == "t"


def test_clustered_errors_by_hand() -> None:
    # Mean 0.5; deviations summed by group: a −0.6, b +0.6, so that Σ = 0.72, and √(2/1 · 0.72) ÷ 4 = 0.3.
    found = mean([0.2, 0.2, 0.8, 0.8], ["a", "a", "b", "b"])
    assert found.error == pytest.approx(0.3)
    assert found.clusters == 2
    assert found.interval is not None
    assert found.interval.method == "t, clustered"
    assert (found.interval.low, found.interval.high) == (0, 1)  # 12.7 standard errors to each side, cut


@settings(deadline=None)
@given(st.lists(scores, min_size=2, max_size=30))
def test_groups_of_one_member_change_nothing(values: list[float]) -> None:
    assert mean(values) == mean(values, list(range(len(values))))


@settings(deadline=None)
@given(st.lists(scores, min_size=1, max_size=30))
def test_a_mean_is_within_its_interval_and_that_within_bounds(values: list[float]) -> None:
    found = mean(values)
    assert found.interval is not None
    assert found.value == pytest.approx(fmean(values))
    assert 0 <= found.interval.low <= fmean(values) + 1e-9
    assert fmean(values) - 1e-9 <= found.interval.high <= 1


def test_equal_scores_are_no_certainty() -> None:
    for values in ([1.0], [1.0] * 3):
        found = mean(values)
        assert found.interval == wilson(1.0, len(values))
        assert found.interval is not None
        assert found.interval.low < 1
    assert mean([0.5] * 8, list("aaaabbbb")).interval == wilson(0.5, 2)
    assert mean([0.5, 0.7], ["a", "a"]).error is None
    assert mean([0.5, 0.7], ["a", "a"]).interval == wilson(0.6, 1)
    for value in (0.1, 0.7, 1 / 3):  # sums of which are rounded
        found = mean([value] * 3)
        assert found.interval == wilson(found.value or 0, 3)


def test_intervals_hold_what_they_promise() -> None:
    random, held, rates = Random(7), 0, 0
    for _ in range(400):
        values = [random.betavariate(2, 1) for _ in range(20)]
        found, rate = mean(values), pass_rate([random.random() < 0.7 for _ in range(20)])
        assert found.interval is not None
        assert rate.interval is not None
        held += found.interval.low <= 2 / 3 <= found.interval.high
        rates += rate.interval.low <= 0.7 <= rate.interval.high
    assert 365 <= held <= 395
    assert 365 <= rates <= 398


def test_the_bootstrap_is_repeatable_and_near_the_t_interval() -> None:
    random = Random(3)
    values = [random.random() for _ in range(200)]
    first, again, other = bootstrap(values, seed=1), bootstrap(values, seed=1), bootstrap(values, seed=2)
    usual = mean(values).interval
    assert first == again != other
    assert first is not None
    assert usual is not None
    assert first.low == pytest.approx(usual.low, abs=0.01)
    assert first.high == pytest.approx(usual.high, abs=0.01)
    assert bootstrap([0.5]) is None
    assert bootstrap([0.1, 0.9] * 20, ["a"] * 20 + ["b"] * 20) is None
    assert bootstrap([0.7] * 20) is None


def test_the_bootstrap_draws_whole_groups() -> None:
    random = Random(3)
    means = [random.random() for _ in range(40)]
    values, groups = [each for each in means for _ in range(10)], [place for place in range(40) for _ in range(10)]
    whole, alone = bootstrap(values, groups), bootstrap(values)
    assert whole is not None
    assert alone is not None
    assert whole.method == "bootstrap, clustered"
    assert whole.high - whole.low > 2 * (alone.high - alone.low)


# --- Trials


@settings(deadline=None)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_trials_by_counting_every_choice(case: tuple[int, int, int]) -> None:
    trials, passes, k = case
    chosen = list(combinations([True] * passes + [False] * (trials - passes), k))
    assert pass_at_k(trials, passes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert pass_power_k(trials, passes, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_trials_by_hand() -> None:
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 3, 5) == pytest.approx(1 - comb(7, 5) / comb(10, 5))
    assert pass_power_k(4, 3, 2) == pytest.approx(0.5)
    for wrong in ((3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)):
        with pytest.raises(ValueError, match="say nothing"):
            pass_at_k(*wrong)


# --- Differences


@given(deltas | st.lists(st.builds(Fraction, st.integers(-12, 12), st.integers(1, 12)), min_size=1, max_size=8))
def test_sign_flips_by_trying_all(exact: list[float | Fraction]) -> None:
    differences, whole = list(map(float, exact)), [Fraction(each).limit_denominator(1000) for each in exact]
    sums = [
        abs(sum((sign * each for sign, each in zip(signs, whole, strict=True)), Fraction()))
        for signs in product((1, -1), repeat=len(whole))
    ]
    seen = abs(sum(whole, Fraction()))
    expected = sum(each >= seen for each in sums) / len(sums)
    p_value, test = sign_flips(differences)
    assert p_value == pytest.approx(expected)
    assert test == "sign flips, exact"


def test_sign_flips_and_the_interval_as_scipy_has_them() -> None:
    found = paired([0.1, 0.2, -0.1, 0, 0.3, 0.25, -0.05])
    assert found.p_value == 0.1875  # stats.permutation_test(…, permutation_type="samples")
    assert found.difference.interval is not None
    interval = (found.difference.interval.low, found.difference.interval.high)
    assert interval == pytest.approx((-0.04377311433666632, 0.24377311433666632))  # stats.ttest_1samp(d, 0)
    assert sign_test(2, 7) == pytest.approx(0.1796875)  # stats.binomtest(2, 9)


def test_many_differences_are_taken_as_normal_and_agree_at_the_border() -> None:
    random = Random(5)
    some = [random.uniform(-0.5, 0.6) for _ in range(EXACT_PAIRS)]
    exact, how = sign_flips(some)
    more, how_more = sign_flips([*some, 0.001])
    assert (how, how_more) == ("sign flips, exact", "sign flips, normal")
    assert exact is not None
    assert more is not None
    assert isclose(exact, more, rel_tol=0.2)


def test_differences_of_a_group_are_flipped_together() -> None:
    assert sign_flips([0.5] * 6)[0] == pytest.approx(2 / 2**6)
    assert sign_flips([0.5] * 6, list("aabbcc"))[0] == pytest.approx(2 / 2**3)
    assert paired([0.5] * 6, ["a"] * 6).detectable is None


def test_differences_that_only_rounding_makes_differ_are_equal() -> None:
    found = paired([0.9 - 0.8, 0.6 - 0.5, 0.4 - 0.3, 0.3 - 0.2])
    assert found.detectable is None
    assert found.difference.interval is not None
    assert found.difference.interval.method == "wilson"


def test_an_interval_ends_where_differences_do() -> None:
    found = paired([0.5, -0.2, 0.9, 0.9], ["a", "a", "b", "c"]).difference.interval
    assert found is not None
    assert (found.high, found.method) == (1.0, "t, clustered")
    assert found.low > -1


@pytest.mark.parametrize(
    ("differences", "groups", "why", "least"),
    [
        ([], None, "there are no differences", None),
        ([0.4], None, "1 independent test can't say how sure that is", 1.0),
        ([0.0], None, "1 independent test can't say how sure that is", 1.0),
        ([0.5, 0.5], None, "2 independent tests can't say how sure that is", 0.5),
        ([0.5, 0.51], None, "2 independent tests can't say how sure that is", 0.5),
        ([1.0, 1.0, 1.0], "aab", "2 independent tests can't say how sure that is", 0.5),
        ([1.0, -1.0, 0.5], None, "3 independent tests that differ so much can't say how sure that is", 0.25),
    ],
)
def test_differences_that_say_nothing_have_no_interval(
    differences: list[float], groups: str | None, why: str, least: float | None
) -> None:
    found = paired(differences, groups)
    assert (found.difference.interval, found.no_interval, found.least_p_value) == (None, why, least)


@pytest.mark.parametrize("differences", [[0.0, 0.0, 0.0], [-1.0, -1.0, -1.0], [-0.2, -0.3, -0.25], [0.1, 0, -0.1]])
def test_three_differences_have_an_interval(differences: list[float]) -> None:
    found = paired(differences)
    assert found.no_interval is None
    assert found.difference.interval is not None
    assert -1 <= found.difference.interval.low < found.difference.interval.high <= 1
    assert found.difference.interval.high - found.difference.interval.low < 2
    assert found.least_p_value == 0.25


def test_flipping_large_groups_takes_no_longer() -> None:
    random = Random(9)
    values = [random.uniform(-1, 1.01) for _ in range(40_000)]
    p_value, test = sign_flips(values, [place % 150 for place in range(40_000)])
    assert test == "sign flips, exact"
    sums = [sum(values[place::150]) for place in range(150)]
    z = abs(sum(sums)) / sqrt(sum(each * each for each in sums))
    assert p_value == pytest.approx(2 * NormalDist().cdf(-z), abs=0.02)


def test_no_differences() -> None:
    assert sign_flips([0.0, 0.0])[0] == 1.0
    assert sign_flips([])[0] is None
    assert sign_test(0, 0) is None
    assert sign_test(5, 5) == 1.0
    nothing = paired([])
    assert nothing.difference.value is None
    assert nothing.p_value is None
    same = paired([0.0, 0.0, 0.0])
    assert same.difference.interval is not None
    assert same.difference.interval.low < 0 < same.difference.interval.high


def test_the_detectable_effect_is_detected_as_often_as_it_says() -> None:
    random, found = Random(11), 0
    effect = detectable_effect(0.2 / sqrt(50), 49)
    assert effect == pytest.approx((2.009575 + 0.848831) * 0.2 / sqrt(50), rel=1e-4)
    for _ in range(150):
        interval = paired([random.gauss(effect, 0.2) for _ in range(50)]).difference.interval
        assert interval is not None
        found += interval.low > 0
    assert 0.72 <= found / 150 <= 0.88


@given(deltas)
def test_turning_the_comparison_round_turns_its_signs(differences: list[float]) -> None:
    there, back = paired(differences), paired([-each for each in differences])
    assert there.p_value == back.p_value
    assert there.sign_p == back.sign_p
    assert there.difference.value == pytest.approx(-(back.difference.value or 0), abs=1e-12)
    assert there.no_interval == back.no_interval
    if there.difference.interval is None or back.difference.interval is None:
        assert (there.difference.interval, back.difference.interval) == (None, None)
        return
    assert there.difference.interval.low == pytest.approx(-back.difference.interval.high, abs=1e-9)


# --- Descriptions


@settings(deadline=None)
@given(st.lists(scores))
def test_every_score_is_in_one_bin(values: list[float]) -> None:
    assert sum(distribution(values)) == len(values)


def test_bins_hold_their_lower_ends() -> None:
    assert distribution([0.0, 0.1, 0.3, 0.7, 0.8, 1.0, 0.7999]) == [1, 1, 0, 1, 0, 0, 0, 2, 1, 1]
    assert quantiles([3, 1, 2], (0, 0.5, 1)) == [1, 2, 3]
    assert quantiles([], (0.5,)) == []
