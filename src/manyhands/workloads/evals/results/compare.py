"""Two runs over the same tests compared: test by test, so that what makes tests easy or hard cancels out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.jsonio import loads
from manyhands.core.settings import shown
from manyhands.core.statistics import LEVEL, POWER, Paired, mean, paired
from manyhands.core.text import counted, suggestion
from manyhands.workloads.evals.items import INVALID
from manyhands.workloads.evals.results.reading import RESULTS, records_in
from manyhands.workloads.evals.results.result_lines import PENDING, TestResult

TIE = 0.1
"""The difference from which on a test is won or lost."""
WIN, LOSS, TIED = "win", "loss", "tie"
_OTHERS_RESULTS = "index.jsonl"
"""What the file is called in run folders of later versions of AgentV."""
_IDS = ("test_id", "eval_id", "id")
"""What the id of a test was called over time; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A test in one of the runs."""

    test_id: str
    dataset: str
    target: str
    score: float | None
    """None if it has none (an error, or not graded)."""
    group: str | None
    """What it shares with tests that it is not independent of."""
    rerolled: bool = False
    """Whether its score is no first try."""

    @classmethod
    def of_result(cls, result: TestResult) -> Scored | None:
        """From a result as it is before it becomes a record; None for a test that has not ended, or of which not even the id is known."""
        if result.status == PENDING or result.test_id is None:
            return None
        score = None if result.score is None else float(result.score)
        group = result.group or result.conversation_id or None
        return cls(result.test_id, result.dataset, result.target or "", score, group, bool(result.rerolls))

    @classmethod
    def of(cls, record: Mapping[str, Any], path: Path, number: int) -> Scored:
        """From a record of this program or of AgentV, also an older one. Raises UserError."""
        test_id = next((record[name] for name in _IDS if record.get(name) is not None), None)
        if test_id is None:
            raise UserError(f"{path}, record {number}: has no test_id")
        score = record.get("score")
        if isinstance(score, bool) or not isinstance(score, (int, float, type(None))):
            raise UserError(f"{path}, record {number}: score must be a number, not {shown(score)}")
        if score is not None and not 0 <= score <= 1:
            raise UserError(f"{path}, record {number}: score must be between 0 and 1, not {score:g}")
        # In AgentV's records a test that broke has a score of 0.
        failed = record.get("error") is not None or record.get("execution_status") == "execution_error"
        broken = failed and "status" not in record
        group = record.get("group") or record.get("conversation_id")
        return cls(
            str(test_id),
            str(record.get("dataset") or record.get("suite") or ""),
            str(record.get("target") or ""),
            None if score is None or broken else float(score),
            None if group is None else str(group),
            bool(record.get("rerolls")),
        )


@dataclass(frozen=True, slots=True)
class Match:
    """A test that has a score in both runs."""

    name: str
    """With what tells it apart from others."""
    base: Scored
    candidate: Scored
    delta: float
    """The candidate's score less the base's."""
    outcome: str
    """``win``, ``loss`` or ``tie``."""

    def to_json(self) -> dict[str, Any]:
        value = {"test_id": self.base.test_id, "dataset": self.base.dataset, "target": self.base.target}
        scores = {"score1": self.base.score, "score2": self.candidate.score}
        return {**value, **scores, "delta": round(self.delta, 6), "outcome": self.outcome}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared. Tests stand by name; differences are candidate less base."""

    matches: tuple[Match, ...]
    """The tests that have a score in both."""
    unscored: tuple[str, ...]
    """Those that are in both, but without a score in one of them at least."""
    lost: tuple[str, ...]
    """Those of ``unscored`` that have a score in the base."""
    only_base: tuple[str, ...]
    """Those that the candidate has not."""
    only_candidate: tuple[str, ...]
    """Those that the base has not."""
    statistics: Paired
    threshold: float
    """The difference from which on a test is won or lost."""
    level: float
    """Of confidence."""

    def count(self, outcome: str) -> int:
        return sum(match.outcome == outcome for match in self.matches)

    @property
    def rerolled(self) -> tuple[int, int]:
        """How many scores are no first tries, in the base and in the candidate."""
        return sum(each.base.rerolled for each in self.matches), sum(each.candidate.rerolled for each in self.matches)

    @property
    def interval_text(self) -> str:
        """The interval of the mean difference, or why there is none."""
        interval = self.statistics.difference.interval
        if interval is None:
            return f"no interval: {self.statistics.no_interval}"
        return f"[{interval.low:+.3f} … {interval.high:+.3f}], {100 * interval.level:g} %, {interval.method}"

    @property
    def least_p_text(self) -> str:
        """That so few tests can't show a difference by the p-value, whatever it is, if that is so; else nothing."""
        minimum, clusters = self.statistics.least_p_value, self.statistics.difference.clusters
        if minimum is None or minimum < 1 - self.level:
            return ""
        return f"with {counted(clusters, 'independent test')} it is never below {minimum:g}"

    @property
    def detectable_text(self) -> str:
        """How small a difference as many tests could show."""
        found = self.statistics.detectable
        such = counted(self.statistics.difference.clusters, "such independent test")
        if found is None:
            return "how small a difference these tests could show is not known: too few of them differ"
        if found > 1:
            return f"{such} show no difference with {100 * POWER:.0f} % power, however large"
        return f"smallest difference that {such} show with {100 * POWER:.0f} % power: {found:.3f}"

    def largest(self, outcome: str) -> list[Match]:
        """The tests of an outcome, those with the largest difference first."""
        return sorted(
            (match for match in self.matches if match.outcome == outcome), key=lambda match: -abs(match.delta)
        )

    @property
    def mean_delta(self) -> float | None:
        return self.statistics.difference.value

    def to_json(self) -> dict[str, Any]:
        """With AgentV's names, and more."""
        difference, base, candidate = self.statistics.difference, self._mean(0), self._mean(1)
        interval = None if difference.interval is None else difference.interval.to_json()
        summary = {
            "total": 2 * (len(self.matches) + len(self.unscored)) + len(self.only_base) + len(self.only_candidate),
            "matched": len(self.matches),
            "wins": self.count(WIN),
            "losses": self.count(LOSS),
            "ties": self.count(TIED),
            "mean_delta": difference.value,
            "threshold": self.threshold,
            "base_mean": base,
            "candidate_mean": candidate,
            "unscored": len(self.unscored),
            "unscored_in_candidate_only": len(self.lost),
            **({"rerolled1": self.rerolled[0], "rerolled2": self.rerolled[1]} if any(self.rerolled) else {}),
            "clusters": difference.clusters,
            "standard_error": difference.error,
            "interval": interval,
            "no_interval": self.statistics.no_interval,
            "p_value": self.statistics.p_value,
            "least_p_value": self.statistics.least_p_value,
            "test": self.statistics.test,
            "sign_test_p_value": self.statistics.sign_p,
            "smallest_detectable_effect": self.statistics.detectable,
            "power": POWER,
            "confidence": self.level,
        }
        return {
            "matched": [match.to_json() for match in self.matches],
            "unmatched": {"file1": list(self.only_base), "file2": list(self.only_candidate)},
            "unscored": list(self.unscored),
            "summary": summary,
        }

    def _mean(self, side: int) -> float | None:
        scores = [(match.base, match.candidate)[side].score for match in self.matches]
        return mean([score for score in scores if score is not None]).value


def _nameless(record: Mapping[str, Any]) -> bool:
    """Whether it is of a test that was left out since not even its id could be read."""
    return record.get("status") == INVALID and record.get("test_id") is None


def load_side(path: Path, target: str | None = None) -> list[Scored]:
    """The tests of a run folder or a file of results (JSON Lines, or ``.json`` with ``results``). ``target``: only what it answered.

    Raises UserError for a file that can't be used, or a target that it has not.
    """
    file = _file_of(path)
    records = _listed(file) if file.suffix == ".json" else records_in(file)
    found = [Scored.of(record, file, number) for number, record in enumerate(records, 1) if not _nameless(record)]
    if not found:
        raise UserError(f"{file}: holds no results")
    names = dict.fromkeys(each.target for each in found)
    if target is not None and target not in names:
        raise UserError(
            f"{file}: has no results of target {target!r}{suggestion(target, names)}; it has {', '.join(names)}"
        )
    return [each for each in found if target in (None, each.target)]


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = next((path / name for name in (RESULTS, _OTHERS_RESULTS) if (path / name).is_file()), None)
    if found is None:
        raise UserError(f"{path}: no run of evaluations or imported conversations with results (it has no {RESULTS})")
    return found


def _listed(path: Path) -> list[Any]:
    """The records of a ``.json`` file of results."""
    try:
        value = loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    found = value.get("results") if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise UserError(f"{path}: must be an object with results, a list of objects")
    return found


def compare(
    base: Sequence[Scored], candidate: Sequence[Scored], *, threshold: float = TIE, level: float = LEVEL
) -> Comparison:
    """Compare two runs. Tests are the same if they have the same id (and dataset, and target, where ids alone would not tell).

    Raises UserError as ``aligned`` does.
    """
    return of_aligned(aligned(base, candidate), threshold=threshold, level=level)


class DifferentTargets(UserError):
    """Two sides have different targets, and one of them several, so that it is not known which results belong together."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; choose with --base_target and --candidate_target")
        self.problem = problem
        """What is wrong, without what to do about it on a command line."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """A test with its result on each side."""

    name: str
    """With what tells it apart from others."""
    base: Scored | None
    """None if the base has it not."""
    candidate: Scored | None


def aligned(base: Sequence[Scored], candidate: Sequence[Scored]) -> list[Aligned]:
    """The tests of both sides: those of the base in their order, then those that only the candidate has.

    Raises UserError if a side has a test several times, DifferentTargets if the sides have different targets, and one of them several.
    """
    with_targets = _several_targets(base, candidate)
    with_datasets = not all(_is_unique(side, with_targets) for side in (base, candidate))
    one, other = (_by_key(side, with_targets, with_datasets) for side in (base, candidate))
    return [Aligned(_name(key), one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]


def of_aligned(tests: Sequence[Aligned], *, threshold: float = TIE, level: float = LEVEL) -> Comparison:
    """What tests come to of which it is known which result belongs to which."""
    matches, unscored, lost = [], [], []
    for test in tests:
        if test.base is None or test.candidate is None:
            continue
        if test.base.score is None or test.candidate.score is None:
            unscored.append(test.name)
            if test.base.score is not None:
                lost.append(test.name)
        else:
            delta = test.candidate.score - test.base.score
            matches.append(Match(test.name, test.base, test.candidate, delta, _outcome(delta, threshold)))
    return Comparison(
        tuple(matches),
        tuple(unscored),
        tuple(lost),
        tuple(test.name for test in tests if test.candidate is None),
        tuple(test.name for test in tests if test.base is None),
        paired([match.delta for match in matches], [_group(match.base) for match in matches], level),
        threshold,
        level,
    )


_Key = tuple[str, str, str]


def _several_targets(base: Sequence[Scored], candidate: Sequence[Scored]) -> bool:
    """Whether targets are part of what makes a test the same: if a side has several. Raises DifferentTargets if the sides have different
    ones."""
    sets = [{each.target for each in side} for side in (base, candidate)]
    if all(len(names) == 1 for names in sets):
        return False
    if sets[0] != sets[1]:
        named = " and ".join(f"({', '.join(sorted(names))})" for names in sets)
        raise DifferentTargets(f"the two have different targets {named}")
    return True


def _is_unique(side: Iterable[Scored], with_targets: bool) -> bool:
    keys = [(each.test_id, each.target if with_targets else "") for each in side]
    return len(keys) == len(set(keys))


def _by_key(side: Iterable[Scored], with_targets: bool, with_datasets: bool) -> dict[_Key, Scored]:
    found: dict[_Key, Scored] = {}
    for each in side:
        key = (each.dataset if with_datasets else "", each.test_id, each.target if with_targets else "")
        if key in found:
            raise UserError(
                f"test {_name(key)} has several results on one side; compare runs in which each test has one"
            )
        found[key] = each
    return found


def _name(key: _Key) -> str:
    dataset, test_id, target = key
    return f"{f'{dataset}/' if dataset else ''}{test_id}{f' @ {target}' if target else ''}"


def _outcome(delta: float, threshold: float) -> str:
    if abs(delta) < threshold - 1e-9 or delta == 0:
        return TIED
    return WIN if delta > 0 else LOSS


def _group(test: Scored) -> str:
    """Tests of a group depend on each other, and so do the results of several targets for one test."""
    return f"{test.dataset}//{test.group}" if test.group is not None else f"{test.dataset}/{test.test_id}"
