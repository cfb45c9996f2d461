"""Figures as a page writes them, and the colours of scores and agents, which stay the same from report to report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import sha256

from manyhands.core.statistics import Interval, Mean, Paired

NOTHING = "–"


def share(value: float | None) -> str:
    """A score from 0 to 1."""
    return NOTHING if value is None else f"{value:.3f}"


def interval(found: Interval | None, scale: float = 1, places: int = 3) -> str:
    """An interval in brackets; nothing if there is none."""
    return "" if found is None else f"[{scale * found.low:.{places}f} … {scale * found.high:.{places}f}]"


METHODS = {
    "wilson": "Wilson's score interval",
    "wilson, clustered": "Wilson's score interval, for as many independent tests as say as much (tests of a dataset depend on each other)",
    "t": "Student's t interval",
    "t, clustered": "Student's t interval with the standard error of clusters (tests of a dataset depend on each other)",
}
"""What methods of intervals are called in full."""


def method(found: Interval | None) -> str:
    """By which formula an interval was found."""
    return "no interval" if found is None else METHODS.get(found.method, found.method)


def methods(found: Iterable[Interval | None]) -> str:
    """By which formulas several intervals were found, in a sentence; empty if there are none."""
    named = dict.fromkeys(method(each) for each in found if each is not None)
    return f"Intervals of 95 %: {'; '.join(named)}." if named else ""


def estimate(found: Mean) -> str:
    """A mean score with its interval."""
    return f"{share(found.value)} {interval(found.interval)}".rstrip()


def percent(found: Mean) -> str:
    """A mean score in percent, with its interval."""
    if found.value is None:
        return NOTHING
    return f"{100 * found.value:.1f} % {interval(found.interval, 100, 1)}".rstrip()


def difference(found: Paired | None) -> str:
    """A mean difference of scores, with its interval; of too few datasets it has none, and that is said."""
    if found is None or found.difference.value is None:
        return NOTHING
    return (
        f"{found.difference.value:+.3f} {interval(found.difference.interval) or '(too few datasets for an interval)'}"
    )


def p_value(found: Paired | None) -> str:
    """How likely as large a difference is by chance alone."""
    if found is None or found.p_value is None:
        return NOTHING
    return "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def money(value: float | None) -> str:
    """US dollars; small sums to a hundredth of a cent."""
    if value is None:
        return NOTHING
    return f"${value:,.4f}" if 0 < abs(value) < 1 else f"${value:,.2f}"


def duration(seconds: float) -> str:
    """Seconds as days, hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


_NONE, _FULL = (188, 66, 66), (126, 188, 66)
"""Of no points and of all."""
UNSCORED = "#8c959f"
AGENTS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#c9a227",
    "#66bbdd",
    "#aa3377",
    "#7f7f7f",
    "#ee8833",
    "#44aa99",
    "#8b5a2b",
    "#6655cc",
    "#99bb33",
)


def score_colour(score: float | None) -> str:
    """From red for 0 to green for 1; grey for none."""
    if score is None:
        return UNSCORED
    share = min(1.0, max(0.0, score))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_NONE, _FULL, strict=True))


def agent_colours(names: Mapping[str, str]) -> dict[str, str]:
    """A colour for each label. It follows from the agent's name, unless another one has it already. ``names``: of the agents, by label."""
    found: dict[str, str] = {}
    for label in sorted(names):
        digest = sha256(names[label].encode("utf-8", "surrogatepass")).digest()
        first = int.from_bytes(digest[:4], "big")
        colours = [AGENTS[(first + step) % len(AGENTS)] for step in range(len(AGENTS))]
        taken = set(found.values())
        found[label] = next((colour for colour in colours if colour not in taken), colours[0])
    return found
