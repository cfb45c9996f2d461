"""Two runs, or two targets of one run, side by side: what ``manyhands eval compare`` says, with links to the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.core.statistics import POWER
from manyhands.core.text import counted, shell_joined
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.shown.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Fact,
    Facts,
    Link,
    Note,
    Section,
    Series,
    Table,
    Tone,
)
from manyhands.runs.shown.pairs import COMPARE
from manyhands.workloads.evals.prepared import PreparedEval
from manyhands.workloads.evals.results.compare import (
    LOSS,
    WIN,
    Aligned,
    Comparison,
    DifferentTargets,
    Match,
    Scored,
    aligned,
    of_aligned,
)
from manyhands.workloads.evals.results.reading import grouped_results_of
from manyhands.workloads.evals.results.shown.matrix import deciding, targets_of
from manyhands.workloads.evals.results.shown.result_cells import name_cell, score_cell, score_text

TARGETS = "targets"
"""The name of the page that compares two targets of a run."""
MAX_COMPARED = 30_000
"""Items of a side up to which a page compares."""
MAX_ROWS = 500
"""Tests of a table."""
_CHOSEN = Cell("● chosen", tone="active")
_BINS = 20
_DEFINITION = (
    "input",
    "criteria",
    "expected_output",
    "graders",
    "default_grader",
    "threshold",
    "guidelines",
    "conversation",
    "trials",
)
"""The fields of a test that say what is asked, and how answers are scored."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison."""

    reader: JournalReader
    prepared: PreparedEval
    target: str | None = None
    """Only the results of this target; None: of all."""
    run: str | None = None
    """What the run is called in addresses; None for the one that the page is about."""

    @property
    def name(self) -> str:
        name = self.reader.folder.name
        return name if self.target is None else f"{name}, {self.target}"

    @property
    def targets(self) -> list[str]:
        """The targets that the run has."""
        return targets_of(self.prepared)

    @property
    def is_large(self) -> bool:
        """Whether it has more items than a page compares."""
        return sum(self.reader.counts().values()) > MAX_COMPARED


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a result is, and what its test asks."""

    number: int
    status: str
    definition: Mapping[str, bytes]
    """Digests, by the fields of ``_DEFINITION`` that the test has."""


_Places = dict[Scored, _Place]


def _results(side: Side) -> list[tuple[Scored, _Place]]:
    """The results of a side in order, and where they are. Raises UserError for one that has none, as ``load_side`` does."""
    found = []
    for planned, result in grouped_results_of(side.reader, side.prepared):
        scored = Scored.of_result(result)
        if scored is None or side.target not in (None, scored.target):
            continue
        row = deciding(planned, result)
        test = row.payload.get("test", {})
        digests = {name: digest(name, test[name]) for name in _DEFINITION if name in test}
        found.append((scored, _Place(row.number, result.status, digests)))
    if not found:
        raise UserError(f"{side.name}: holds no results")
    return found


# --- What is compared


def run_sections(base: Side, candidate: Side) -> Iterator[Section]:
    """Two sides compared, the second with the first as the base."""
    if base.is_large or candidate.is_large:
        yield Section("Comparison", [_heads(base, candidate), _too_large(base, candidate)], name="comparison")
        return
    try:
        one, other = _results(base), _results(candidate)
        tests = aligned([scored for scored, _ in one], [scored for scored, _ in other])
    except UserError as error:
        problem = error.problem if isinstance(error, DifferentTargets) else str(error)
        yield Section("Comparison", [_heads(base, candidate), Note(problem, "bad")], name="comparison")
        return
    yield from _Compared(base, candidate, dict(one), dict(other), tests).sections()


def target_sections(reader: JournalReader, prepared: PreparedEval, query: Mapping[str, str]) -> Iterator[Section]:
    """Two targets of a run compared. ``query``: ``baseline`` and ``target``, by default the first two. Raises KeyError if there are not
    two."""
    names = targets_of(prepared)
    if len(names) < 2:
        raise KeyError(TARGETS)
    baseline = chosen_target(names, query, "baseline") or next(name for name in names if name != query.get("target"))
    target = chosen_target(names, query, "target") or next(name for name in names if name != baseline)
    return _of_targets(reader, prepared, names, baseline, target)


def _of_targets(
    reader: JournalReader, prepared: PreparedEval, names: Sequence[str], baseline: str, target: str
) -> Iterator[Section]:
    yield Section("Targets", [_choice(names, baseline, target)], name="choice")
    yield from run_sections(Side(reader, prepared, baseline), Side(reader, prepared, target))


def chosen_target(names: Sequence[str], query: Mapping[str, str], which: str) -> str | None:
    """A target that the query names; None if it names none that there is."""
    return query[which] if query.get(which) in names else None


def choice_section(base: Side, candidate: Side, query: Mapping[str, str]) -> Iterator[Section]:
    """Which targets of two runs are compared, and what leads to others; nothing where each has no more than one. ``query``: of the page
    that compares runs, with all it asks for."""
    if max(len(base.targets), len(candidate.targets)) < 2:
        return
    rows = [[name_cell("all"), _chosen_of(base, None, query, "baseline"), _chosen_of(candidate, None, query, "target")]]
    for name in dict.fromkeys((*base.targets, *candidate.targets)):
        cells = [_chosen_of(base, name, query, "baseline"), _chosen_of(candidate, name, query, "target")]
        rows.append([name_cell(name), *cells])
    columns = [Column("name", "target"), Column("baseline", "base"), Column("target", "candidate")]
    about = f"Whose results are compared: base is {base.reader.folder.name}, candidate {candidate.reader.folder.name}."
    yield Section("Targets", [Table(columns, rows, about=about)])


def _chosen_of(side: Side, target: str | None, query: Mapping[str, str], which: str) -> Cell:
    """Whether a target of a side (None: all of them) is compared, or what leads to that; nothing if the side has it not."""
    if target is not None and target not in side.targets:
        return Cell("")
    if target == side.target:
        return _CHOSEN
    kept = {name: value for name, value in query.items() if name != which}
    return Cell("choose", link=Link(page=COMPARE, query=kept if target is None else {**kept, which: target}))


def _choice(names: Sequence[str], baseline: str, target: str) -> Table:
    rows = [
        [
            name_cell(name),
            _chosen(name == baseline, {"baseline": name, "target": baseline if name == target else target}),
            _chosen(name == target, {"baseline": target if name == baseline else baseline, "target": name}),
        ]
        for name in names
    ]
    return Table([Column("name", "target"), Column("baseline", "base"), Column("target", "candidate")], rows)


def _chosen(is_chosen: bool, query: Mapping[str, str]) -> Cell:
    return _CHOSEN if is_chosen else Cell("choose", link=Link(page=TARGETS, query=query))


def _heads(base: Side, candidate: Side) -> Facts:
    there = None if candidate.run is None else Link(run=candidate.run)
    return Facts([Fact("base", name_cell(base.name)), Fact("candidate", name_cell(candidate.name, there))])


def _too_large(base: Side, candidate: Side) -> Note:
    words = ["manyhands", "eval", "compare", str(base.reader.folder), str(candidate.reader.folder)]
    for option, side in (("--base_target", base), ("--candidate_target", candidate)):
        words += [] if side.target is None else [option, side.target]
    return Note(f"More than {MAX_COMPARED:,} items on a side are too many for a page: {shell_joined(words)}", "warn")


# --- What it comes to


class _Compared:
    """Two sides whose tests are known to belong together."""

    def __init__(self, base: Side, candidate: Side, one: _Places, other: _Places, tests: Sequence[Aligned]) -> None:
        self._base, self._candidate = base, candidate
        self._one, self._other = one, other
        self._tests = tests
        self._found: Comparison = of_aligned(tests)

    def sections(self) -> Iterator[Section]:
        found = self._found
        if found.mean_delta is None:
            nothing = Note("nothing to compare: no test has a score in both", "warn")
            yield Section(
                "Comparison", [_heads(self._base, self._candidate), self._counts(), nothing], name="comparison"
            )
        else:
            blocks: list[Block] = [_heads(self._base, self._candidate), self._counts(), self._figures()]
            yield Section("Comparison", [*blocks, _differences(found.matches)], name="comparison")
        yield from self._matched(LOSS, "Tests lost", "bad")
        yield from self._matched(WIN, "Tests gained", "good")
        yield from self._unscored()
        yield from self._alone()
        yield from self._redefined()

    def _counts(self) -> Facts:
        found, summary = self._found, self._found.to_json()["summary"]
        counts = {
            "with a score in both": summary["matched"],
            "in both, without a score in one of them": summary["unscored"],
            "only in base": len(found.only_base),
            "only in candidate": len(found.only_candidate),
        }
        return Facts([Fact(label, Cell(f"{count:,}", count)) for label, count in counts.items()], "Tests")

    def _figures(self) -> Facts:
        found, statistics = self._found, self._found.statistics
        value = found.to_json()["summary"]
        facts = [
            Fact("mean score of base", score_cell(value["base_mean"])),
            Fact("mean score of candidate", score_cell(value["candidate_mean"])),
            Fact("mean difference", _signed(value["mean_delta"], _tone(found)), "candidate less base"),
            Fact("interval", Cell(found.interval_text)),
        ]
        if value["interval"] is not None:
            facts += [Fact(f"{end} end", _signed(value["interval"][end])) for end in ("low", "high")]
        if statistics.p_value is not None:
            about = "; ".join(filter(None, (statistics.test, found.least_p_text)))
            facts.append(Fact("p", Cell(f"{value['p_value']:.4f}", value["p_value"]), about))
        if statistics.sign_p is not None:
            facts.append(
                Fact("p by signs", Cell(f"{statistics.sign_p:.4f}", statistics.sign_p), "sign test of wins and losses")
            )
        facts.append(self._detectable())
        facts += [
            Fact(
                outcome,
                Cell(f"{value[outcome]:,}", value[outcome]),
                f"a win is a difference of {found.threshold:g} or more",
            )
            for outcome in ("wins", "losses", "ties")
        ]
        facts += self._certainty(value)
        return Facts(facts, "Difference")

    def _detectable(self) -> Fact:
        found, value = self._found, self._found.statistics.detectable
        shown = Cell("not known" if value is None else score_text(value), value, about=found.detectable_text)
        return Fact("smallest difference that could be seen", shown, found.detectable_text)

    def _certainty(self, value: Mapping[str, Any]) -> Iterator[Fact]:
        yield Fact("independent tests", Cell(f"{value['clusters']:,}", value["clusters"]))
        if value["standard_error"] is not None:
            yield Fact("standard error", Cell(f"{value['standard_error']:.4f}", value["standard_error"]))
        yield Fact("confidence", Cell(f"{100 * value['confidence']:g} %", value["confidence"]))
        yield Fact("power", Cell(f"{100 * POWER:.0f} %", value["power"]))
        for name, side in (("rerolled1", "base"), ("rerolled2", "candidate")):
            if name in value:
                cell = Cell(f"{value[name]:,}", value[name], "warn" if value[name] else "")
                yield Fact(f"re-rolled in {side}", cell, "scores that are no first tries")

    # --- Tests

    def _link(self, base: Scored | None, candidate: Scored | None) -> Link:
        """To both items side by side, or to the one that there is."""
        one = None if base is None else self._one[base].number
        other = None if candidate is None else self._other[candidate].number
        run = self._candidate.run
        if one is None:
            return Link(item=other, run=run)
        return Link(item=one) if other is None else Link(item=one, versus=other, versus_run=run)

    def _matched(self, outcome: str, title: str, tone: Tone) -> Iterator[Section]:
        matches = self._found.largest(outcome)
        if not matches:
            return
        columns = [
            Column("test", "test"),
            *(Column(name, name, is_number=True) for name in ("base", "candidate", "difference")),
        ]
        rows = [
            [
                name_cell(each.name, self._link(each.base, each.candidate)),
                score_cell(each.base.score),
                score_cell(each.candidate.score),
                _signed(each.delta, tone),
            ]
            for each in matches[:MAX_ROWS]
        ]
        yield Section(
            title,
            [Table(columns, rows), *_more(len(matches))],
            f"{counted(len(matches), 'test')}, the largest difference first.",
            name=outcome,
        )

    def _unscored(self) -> Iterator[Section]:
        """Tests that have no score on one side at least: what was lost that way comes first."""
        lost = set(self._found.lost)
        pairs = [each for each in self._tests if each.base is not None and each.candidate is not None]
        unscored = [each for each in pairs if each.name in set(self._found.unscored)]
        for title, name, wanted in (
            ("Without a score in the candidate only", "unscored-candidate", True),
            ("Without a score in the base", "unscored-base", False),
        ):
            tests = [each for each in unscored if (each.name in lost) is wanted]
            if tests:
                yield Section(
                    title, [self._listed(tests), *_more(len(tests))], counted(len(tests), "test") + ".", name=name
                )

    def _alone(self) -> Iterator[Section]:
        for title, name, tests in (
            ("Only in the base", "only-base", [each for each in self._tests if each.candidate is None]),
            ("Only in the candidate", "only-candidate", [each for each in self._tests if each.base is None]),
        ):
            if tests:
                yield Section(
                    title, [self._listed(tests), *_more(len(tests))], counted(len(tests), "test") + ".", name=name
                )

    def _redefined(self) -> Iterator[Section]:
        found = [(each, what) for each in self._tests if (what := self._changed(each))]
        if found:
            tests = [each for each, _ in found]
            about = f"{counted(len(tests), 'test')} that are not the same on both sides. Their scores count above all the same."
            table = self._listed(tests, [", ".join(what) for _, what in found])
            yield Section("Defined otherwise", [table, *_more(len(tests))], about, name="redefined")

    def _changed(self, test: Aligned) -> list[str]:
        """The fields by which a test is another one on the other side."""
        if test.base is None or test.candidate is None:
            return []
        one, other = self._one[test.base].definition, self._other[test.candidate].definition
        return [name.replace("_", " ") for name in _DEFINITION if one.get(name) != other.get(name)]

    def _listed(self, tests: Sequence[Aligned], what: Sequence[str] = ()) -> Table:
        columns = [Column("test", "test"), Column("base", "base"), Column("candidate", "candidate")]
        columns += [Column("what", "what differs")] if what else []
        rows = []
        for number, each in enumerate(tests[:MAX_ROWS]):
            cells = [name_cell(each.name, self._link(each.base, each.candidate))]
            cells += [self._side(each.base, self._one), self._side(each.candidate, self._other)]
            rows.append([*cells, Cell(what[number])] if what else cells)
        return Table(columns, rows)

    def _side(self, scored: Scored | None, places: _Places) -> Cell:
        if scored is None:
            return Cell("")
        text = score_text(scored.score) if scored.score is not None else places[scored].status.replace("_", " ")
        return Cell(text, scored.score)


def _tone(found: Comparison) -> Tone:
    """Good or bad where the difference is one of which the p-value says that it is there."""
    p_value, delta = found.statistics.p_value, found.mean_delta
    if p_value is None or delta is None or p_value >= 1 - found.level:
        return ""
    return "good" if delta > 0 else "bad"


def _signed(value: float | None, tone: Tone = "") -> Cell:
    return Cell("–" if value is None else f"{value:+.3f}", value, tone)


def _more(count: int) -> Iterable[Block]:
    if count > MAX_ROWS:
        yield Note(f"The first {MAX_ROWS:,} of {count:,}; manyhands eval compare --json lists all.", "muted")


def _differences(matches: Sequence[Match]) -> Chart:
    """How many tests differ by how much."""
    counts = [0] * _BINS
    for each in matches:
        counts[min(_BINS - 1, int((each.delta + 1) / 2 * _BINS))] += 1
    width = 2 / _BINS
    points: list[tuple[float | str, float | None]] = [
        (round(-1 + (place + 0.5) * width, 6), count) for place, count in enumerate(counts)
    ]
    labels = [
        f"{-1 + place * width:+.1f} to {-1 + (place + 1) * width:+.1f}: {count:,}" for place, count in enumerate(counts)
    ]
    return Chart(
        "bars", "Differences of scores", [Series("tests", points, labels=labels)], "candidate less base", "tests"
    )
