"""``manyhands eval compare``: whether a candidate does better than a base, and how sure that is."""

from __future__ import annotations

import argparse
from pathlib import Path

from manyhands.cli.console import Console, out
from manyhands.cli.plain import parser
from manyhands.core.statistics import LEVEL
from manyhands.core.text import json_text, one_line
from manyhands.runs.exit_codes import ExitCode
from manyhands.workloads.evals.results.compare import LOSS, TIE, WIN, Comparison, compare, load_side

_LISTED = 10
_DESCRIPTION = (
    "Compare two runs test by test: run folders or files of results (.jsonl, .json), also of AgentV. "
    "Exit code: 1 if the candidate's mean score is lower (see --fail_on), 2 if a file is invalid, 3 if no test has a score in both, "
    "0 otherwise."
)


def run(argv: list[str]) -> int:
    """Print the comparison; the exit code."""
    options = _parser().parse_args(argv)
    base = load_side(_found(options.base, options.data_dir), options.base_target or options.target)
    candidate = load_side(_found(options.candidate, options.data_dir), options.candidate_target or options.target)
    comparison = compare(base, candidate, threshold=options.threshold, level=options.confidence)
    if options.json:
        print(json_text(comparison.to_json(), indent=2))
    else:
        _print(out(), comparison)
    return _exit_code(comparison, options.fail_on)


def _exit_code(comparison: Comparison, fail_on: str) -> ExitCode:
    delta = comparison.mean_delta
    if delta is None:
        return ExitCode.DONE if fail_on == "never" else ExitCode.NO_SCORE
    worse = round(delta, 3) < 0
    if fail_on == "significant":
        p_value = comparison.statistics.p_value
        return ExitCode(worse and p_value is not None and p_value < 1 - comparison.level)
    return ExitCode(worse and fail_on == "worse")


def _parser() -> argparse.ArgumentParser:
    result = parser("eval compare", _DESCRIPTION)
    result.add_argument("base", metavar="BASE", help="a run's folder or name, or a file of results")
    result.add_argument("candidate", metavar="CANDIDATE", help="as BASE")
    result.add_argument(
        "-t", "--threshold", type=_share, default=TIE, help=f"minimum difference of a win (default: {TIE})"
    )
    result.add_argument(
        "--confidence", type=_level, default=LEVEL, help=f"confidence level of the interval (default: {LEVEL})"
    )
    result.add_argument("--target", help="only results of this target, on both sides")
    result.add_argument("--base_target", "--base-target", help="only results of this target in BASE")
    result.add_argument("--candidate_target", "--candidate-target", help="only results of this target in CANDIDATE")
    result.add_argument("--json", action="store_true", help="print JSON")
    choices = ("worse", "significant", "never")
    result.add_argument(
        "--fail_on",
        "--fail-on",
        choices=choices,
        default="worse",
        help="exit with 1 if the candidate is worse, if it is significantly worse, or never (default: worse)",
    )
    result.add_argument(
        "--data_dir", "--data-dir", default="data", help="folder that holds the run folders (default: data)"
    )
    return result


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, not {text!r}")
    return value


def _level(text: str) -> float:
    value = _number(text)
    if not 0.5 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0.5 to below 1, not {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def _found(name: str, data_dir: str) -> Path:
    inside = Path(data_dir) / name
    return inside if not Path(name).exists() and inside.exists() else Path(name)


def _print(console: Console, comparison: Comparison) -> None:
    for text in _lines(comparison):
        console.print_line(text)


def _lines(comparison: Comparison) -> list[str]:
    value, statistics = comparison.to_json()["summary"], comparison.statistics
    lines = [
        f"tests with a score in both: {value['matched']:,}; in both, without a score in one of them: {value['unscored']:,}; "
        f"only in BASE: {len(comparison.only_base):,}; only in CANDIDATE: {len(comparison.only_candidate):,}"
    ]
    if comparison.mean_delta is None:
        return [*lines, "nothing to compare: no test has a score in both", *_unmatched(comparison)]
    lines += [f"mean score: {value['base_mean']:.3f} → {value['candidate_mean']:.3f}"]
    between = comparison.interval_text if statistics.difference.interval else f"({comparison.interval_text})"
    lines += [f"mean difference: {comparison.mean_delta:+.3f}  {between}"]
    if statistics.p_value is not None:
        about = "; ".join(filter(None, (statistics.test, comparison.least_p_text)))
        lines += [f"p = {statistics.p_value:.4f} ({about})"]
    lines += [
        f"wins {value['wins']}, losses {value['losses']}, ties {value['ties']} (a win is a difference of "
        f"{comparison.threshold:g} or more)"
    ]
    lines += [comparison.detectable_text]
    if any(comparison.rerolled):
        base, candidate = comparison.rerolled
        lines += [f"scores that are no first tries (re-rolled): {base:,} in BASE, {candidate:,} in CANDIDATE"]
    return [*lines, *_largest(comparison, LOSS), *_largest(comparison, WIN), *_unmatched(comparison)]


def _largest(comparison: Comparison, outcome: str) -> list[str]:
    found = comparison.largest(outcome)
    lines = [
        "  "
        + one_line(
            f"{outcome}: {match.name}  {match.base.score:.3f} → {match.candidate.score:.3f} ({match.delta:+.3f})"
        )
        for match in found[:_LISTED]
    ]
    return [*lines, f"  … and {len(found) - _LISTED} more"] if len(found) > _LISTED else lines


def _unmatched(comparison: Comparison) -> list[str]:
    lost = set(comparison.lost)
    named = (
        ("only in BASE", comparison.only_base),
        ("only in CANDIDATE", comparison.only_candidate),
        ("without a score in CANDIDATE only", comparison.lost),
        ("without a score in BASE", tuple(each for each in comparison.unscored if each not in lost)),
    )
    return [
        "  " + one_line(f"{what}: {', '.join(names[:_LISTED])}{', …' if len(names) > _LISTED else ''}")
        for what, names in named
        if names
    ]
