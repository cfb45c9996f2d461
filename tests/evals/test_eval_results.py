"""From items to results: statuses, trials, figures, and every format of file, with any text in it."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from manyhands.core.errors import UserError
from manyhands.core.outcomes import ItemState
from manyhands.core.statistics import wilson
from manyhands.engine.contract import BEHIND_INPUT, ItemRow
from manyhands.workloads.evals.results.figures import EvalFigures
from manyhands.workloads.evals.results.formats import write_as
from manyhands.workloads.evals.results.reading import records_in, results_in
from manyhands.workloads.evals.results.result_lines import TestResult, results
from manyhands.workloads.evals.settings import ENDINGS

_numbers = count(1)
LIMIT = 0.8


def row(
    test_id: str = "a",
    *,
    score: float | None = None,
    state: ItemState = ItemState.COMPLETED,
    target: str = "t",
    trial: int = 0,
    test: dict[str, Any] | None = None,
    group: str | None = None,
    cause: str | None = None,
    message: str | None = None,
    left: bool = False,
    **record: Any,
) -> ItemRow:
    number = next(_numbers)
    payload = {
        "file": 0,
        "dataset": "d",
        "test": {"id": test_id, "input": [{"role": "user", "content": "hi"}], **(test or {})},
        "target": target,
        "trial": trial,
        "group": group,
    }
    found = {"score": score, **record} if state.final else None
    key = f"d/{test_id}@{target}#{trial}"
    position = number + BEHIND_INPUT if left else number
    return ItemRow(number, key, payload, state, 1, 1, 0, None, cause, message, found, 1.0, 1700000000.25, position)


def failed(test_id: str = "a", **more: Any) -> ItemRow:
    return row(test_id, state=ItemState.FAILED, cause="target_error", message="no answer", status="error", **more)


def found(*rows: ItemRow, threshold: float = LIMIT) -> list[TestResult]:
    return list(results(rows, [threshold]))


def figures(*given: TestResult, level: float | None = 0.95) -> Any:
    result = EvalFigures(level, 0)
    for each in given:
        result.add(each)
    return {"run_name": "r", **result.to_json(LIMIT)}


# --- Statuses


def test_a_graded_test() -> None:
    scores = [
        {"name": "g", "type": "equals", "score": 1.0, "weight": 1.0, "verdict": "pass", "hits": ["x"], "misses": []}
    ]
    (record,) = found(
        row(
            score=0.9,
            scores=scores,
            hits=["x"],
            misses=["y"],
            reasoning="g: so",
            answer="yes",
            output=[{"role": "assistant", "content": "yes"}],
            token_usage={"input": 3, "output": 4},
            cost_usd=0.5,
            duration_ms=12,
            simulated=True,
            test={
                "conversation_id": "c",
                "criteria": "is yes",
                "metadata": {"camelCase": 1},
                "expected_output": [{"role": "assistant", "content": {"aB": 1}}],
            },
        )
    )
    assert list(record.to_json())[:5] == ["timestamp", "test_id", "dataset", "conversation_id", "score"]
    assert record.to_json() == {
        "timestamp": "2023-11-14T22:13:20.250Z",
        "test_id": "a",
        "dataset": "d",
        "conversation_id": "c",
        "score": 0.9,
        "status": "passed",
        "verdict": "pass",
        "threshold": 0.8,
        "hits": ["x"],
        "misses": ["y"],
        "answer": "yes",
        "target": "t",
        "reasoning": "g: so",
        "input": [{"role": "user", "content": "hi"}],
        "expected_output": [{"role": "assistant", "content": {"aB": 1}}],
        "criteria": "is yes",
        "scores": scores,
        "output": [{"role": "assistant", "content": "yes"}],
        "token_usage": {"input": 3, "output": 4},
        "cost_usd": 0.5,
        "duration_ms": 12,
        "simulated": True,
        "metadata": {"camelCase": 1},
    }


@pytest.mark.parametrize(
    ("item", "status", "error"),
    [
        (row(score=0.8), "passed", None),
        (row(score=0.7999), "failed", None),
        (row(score=0.0), "failed", None),
        (row(score=0.5, test={"threshold": 0.5}), "passed", None),
        (row(score=0.5, test={"threshold": 0.0}), "passed", None),
        (row(score=None, status="ungraded"), "ungraded", None),
        (failed(error="exit code 3"), "error", "exit code 3"),
        (failed(), "error", "no answer"),
        (
            row(state=ItemState.FAILED, status="grader_error", error="g: broke", answer="kept"),
            "grader_error",
            "g: broke",
        ),
        (row(state=ItemState.FAILED, cause="timeout"), "error", "timeout"),
        (row(state=ItemState.CANCELLED, message="stopped"), "error", "stopped"),
        (row(state=ItemState.PENDING), "pending", None),
        (row(state=ItemState.RUNNING), "pending", None),
    ],
)
def test_statuses(item: ItemRow, status: str, error: str | None) -> None:
    (record,) = found(item)
    assert (record.status, record.error) == (status, error)
    assert (record.score is not None) == (status in ("passed", "failed"))


def test_an_invalid_test_and_one_that_left_the_input() -> None:
    invalid = ItemRow(
        1, "d/x!0", {"file": 0, "dataset": "d", "id": "x", "place": "f, line 2"}, ItemState.DISCARDED, 1, 0, 0, "invalid",
        None, "f, line 2: criteria is required", {"status": "invalid"}, None, None, 1,
    )  # fmt: skip
    (record,) = found(invalid, row(left=True))
    assert record.status == "invalid"
    assert record.error == "f, line 2: criteria is required"
    assert record.input == []


def test_the_limit_is_todays() -> None:
    assert found(row(score=0.7, status="failed"), threshold=0.6)[0].status == "passed"
    assert found(row(score=0.9, status="passed"), threshold=0.95)[0].status == "failed"


# --- Trials


def trials(*scores: float | None, strategy: str = "pass_at_k") -> TestResult:
    rows = [
        (
            failed(trial=place, error="e")
            if score is None
            else row(score=score, trial=place, answer=f"answer {place}", cost_usd=0.1)
        )
        for place, score in enumerate(scores)
    ]
    for each in rows:
        each.payload["test"]["trials"] = {"count": len(scores), "strategy": strategy}
    (record,) = found(*rows)
    return record


def test_the_best_of_several_trials() -> None:
    record = trials(0.2, 0.9, 0.5)
    assert (record.score, record.status, record.answer) == (0.9, "passed", "answer 1")
    assert record.aggregation == {"strategy": "pass_at_k", "passed_attempts": 1, "total_attempts": 3}
    assert [(each["attempt"], each["score"], each["status"]) for each in record.trials or ()] == [
        (0, 0.2, "failed"), (1, 0.9, "passed"), (2, 0.5, "failed"),
    ]  # fmt: skip
    assert record.cost_usd == 0.3
    assert trials(0.2, 0.3).status == "failed"


def test_the_mean_of_several_trials() -> None:
    record = trials(0.2, 0.9, 0.4, strategy="mean")
    assert record.score == pytest.approx(0.5)
    assert record.status == "failed"
    assert record.aggregation is not None
    assert record.aggregation["mean"] == pytest.approx(0.5)
    assert (record.aggregation["min"], record.aggregation["max"]) == (0.2, 0.9)


def test_the_lower_end_of_the_interval_of_several_trials() -> None:
    record = trials(0.8, 0.9, 1.0, strategy="confidence_interval")
    assert record.score == pytest.approx(0.9 - 4.302652729749462 * 0.1 / 3**0.5)
    assert record.aggregation is not None
    assert record.aggregation["ci95_upper"] == 1.0
    assert record.aggregation["stddev"] == pytest.approx(0.1)
    assert trials(0.9, 0.9, strategy="confidence_interval").score == 0.9


def test_decimal_scores_have_a_decimal_mean() -> None:
    assert trials(0.9, 0.9, 0.6, strategy="mean").status == "passed"


def needless(reason: str, trial: int) -> ItemRow:
    return replace(row(state=ItemState.DISCARDED, trial=trial, status=reason), reason=reason)


def test_trials_that_were_not_needed_are_no_part_of_a_result() -> None:
    (record,) = found(
        row(score=0.2, trial=0), row(score=1.0, trial=1), needless("passed_before", 2), needless("passed_before", 3)
    )
    assert (record.status, len(record.trials or ()), record.cost_limited is True) == ("passed", 2, False)
    aggregation = {"strategy": "pass_at_k", "passed_attempts": 1, "total_attempts": 2, "planned_attempts": 4}
    assert record.aggregation == {**aggregation, "stops_early": True}
    (limited,) = found(row(score=0.2, trial=0, cost_usd=1.0), needless("cost_limit", 1))
    assert (limited.status, limited.cost_limited, len(limited.trials or ())) == ("failed", True, 1)
    value = figures(record, limited)["trials"]
    # Whether one of four trials passes is known of the first test, and that not all do, as the first one failed.
    assert value["tests"] == {"1": 2, "2": 1, "3": 1, "4": 1}
    assert value["pass_at_k"] == {"1": 0.0, "2": 1.0, "3": 1.0, "4": 1.0}
    assert value["pass_power_k"] == {"1": 0.0, "2": 0.0, "3": 0.0, "4": 0.0}


def test_trials_that_other_graders_ended_tell_of_the_first_ones_in_their_order() -> None:
    rows = [row("a", score=float(trial != 1), trial=trial, stops_early=True) for trial in range(3)]
    rows += [row("b", score=1.0, trial=0, stops_early=True), replace(needless("passed_before", 1), key="d/b@t#1")]
    rows[-1].payload["test"]["id"] = "b"
    value = figures(*found(*rows))["trials"]
    assert value["tests"] == {"1": 2, "2": 2, "3": 1}
    assert value["pass_at_k"] == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert value["pass_power_k"] == {"1": 1.0, "2": None, "3": 0.0}


def test_whole_figures_are_whole_numbers_and_data_stays_as_it_is() -> None:
    member = {"name": "m", "type": "equals", "score": 0.0, "weight": 2.0, "details": {"ratio": 1.0}}
    given = {"name": "g", "type": "composite", "score": 1.0, "weight": 1.0, "scores": [member]}
    (record,) = found(
        row(score=1.0, scores=[given], duration_ms=20.0, cost_usd=0.5, token_usage={"input": 3.0}, trace={"share": 1.0})
    )
    text = json.dumps(record.to_json())
    assert '"score": 1,' in text
    assert '"score": 0, "weight": 2, "details": {"ratio": 1.0}' in text
    assert '"duration_ms": 20' in text
    assert '"token_usage": {"input": 3}, "cost_usd": 0.5' in text
    assert '"trace": {"share": 1.0}' in text


@pytest.mark.parametrize("strategy", ["pass_at_k", "mean", "confidence_interval"])
def test_a_trial_that_broke_leaves_no_score(strategy: str) -> None:
    record = trials(0.2, None, strategy=strategy)
    assert (record.status, record.score, record.error) == ("error", None, "e")
    passed = trials(0.9, None, strategy=strategy)
    assert passed.status == ("passed" if strategy == "pass_at_k" else "error")


def test_trials_of_several_tests_and_targets_stay_apart() -> None:
    rows = [row(test, score=1, target=target, trial=trial) for test in "ab" for target in "xy" for trial in (0, 1)]
    assert [(each.test_id, each.target, len(each.trials or ())) for each in found(*rows)] == [
        ("a", "x", 2), ("a", "y", 2), ("b", "x", 2), ("b", "y", 2),
    ]  # fmt: skip


# --- Figures


def test_every_test_is_counted_once_and_errors_have_no_part_in_scores() -> None:
    rows = [
        row("a", score=1.0),
        row("b", score=0.5),
        failed("c"),
        row("d", state=ItemState.PENDING),
        row("e", status="ungraded"),
    ]
    rows += [row("f", state=ItemState.FAILED, status="grader_error", error="x")]
    value = figures(*found(*rows))
    assert value["tests"] == {
        "in": 6, "passed": 1, "failed": 1, "errors": 1, "grader_errors": 1, "skipped": 0, "ungraded": 1, "invalid": 0, "pending": 1,
    }  # fmt: skip
    assert value["mean_score"]["value"] == 0.75
    assert value["mean_score"]["tests"] == 2
    assert value["pass_rate"]["value"] == 0.5
    assert value["passed_of_all"] == pytest.approx(1 / 6)
    interval = wilson(0.5, 2)
    assert interval is not None
    assert value["pass_rate"]["interval"] == interval.to_json()
    assert value["pass_limit"] == LIMIT
    assert value["denominators"]["mean_score"].startswith("tests with a score")
    assert sum(value["distribution"]["counts"]) == 2


def test_targets_have_figures_of_their_own_and_the_same_test_twice_is_no_two_tests() -> None:
    rows = [row(test, score=score, target=target) for test, score in (("a", 1.0), ("b", 0.0)) for target in "xy"]
    value = figures(*found(*rows))
    assert [(each["target"], each["tests"]["in"], each["mean_score"]["clusters"]) for each in value["targets"]] == [
        ("x", 2, 2), ("y", 2, 2),
    ]  # fmt: skip
    assert value["mean_score"]["tests"] == 4
    assert value["mean_score"]["clusters"] == 2


def test_tests_of_a_group_are_clustered() -> None:
    rows = [
        row(f"{number}{place}", score=(number % 3) / 2, group=f"g{number}")
        for number in range(12)
        for place in range(3)
    ]
    value = figures(*found(*rows))
    assert value["mean_score"]["clusters"] == 12
    assert value["mean_score"]["interval"]["method"] == "t, clustered"
    assert value["mean_score"]["bootstrap"]["method"] == "bootstrap, clustered"


def test_figures_of_trials() -> None:
    rows = [row("a", score=float(trial < 2), trial=trial) for trial in range(4)]
    rows += [row("b", score=0.0, trial=trial) for trial in range(2)]
    value = figures(*found(*rows))["trials"]
    assert value["tests"] == {"1": 2, "2": 2, "3": 1, "4": 1}
    assert value["pass_at_k"] == pytest.approx({"1": 0.25, "2": (1 - 1 / 6) / 2, "3": 1.0, "4": 1.0})
    assert value["pass_power_k"] == pytest.approx({"1": 0.25, "2": (1 / 6) / 2, "3": 0.0, "4": 0.0})


def test_no_results_at_all_and_no_intervals() -> None:
    assert figures()["mean_score"]["value"] is None
    assert "interval" not in figures(*found(row(score=1.0)), level=None)["mean_score"]


# --- Files


READERS_KNOW: dict[str, Set[str]] = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped"},
    "testcase": {"name", "classname", "time"},
    "property": {"name", "value"},
    **dict.fromkeys(("failure", "error", "skipped"), frozenset(("type", "message"))),
    **dict.fromkeys(("properties", "system-out", "system-err"), frozenset()),
}
"""Attributes that Jenkins' xUnit plugin allows, which refuses others."""
FEW = settings(max_examples=30, deadline=None)
ANY_TEXT = st.text(st.characters(exclude_categories=[]))
HOSTILE = "</script><b>&amp; ]]> \x00\x01\x7f\x85\u2028\ud800\ufffe 'q' \"q\"\n\t é 漢 🙂 # - : yes"


def written(ending: str, records: Sequence[TestResult]) -> bytes:
    handle = io.BytesIO()
    write_as(ending, handle, lambda: iter(records), figures(*records))
    return handle.getvalue()


def graded(text: str) -> list[TestResult]:
    scores = [
        {
            "name": text,
            "type": "equals",
            "score": 0.0,
            "weight": 1.0,
            "verdict": "fail",
            "hits": [text],
            "misses": [text],
        }
    ]
    output = [{"role": text, "content": text, "tool_calls": [{"tool": text, "input": {text: text}}]}]
    rows = [
        row(text or "a", score=1.0, answer=text, output=output, scores=scores, target=text),
        row(f"{text}2", score=0.1, answer=text, misses=[text], reasoning=text, scores=scores, target=text),
        failed(f"{text}3", error=text, target=text),
        row(f"{text}4", status="ungraded", target=text),
    ]
    return found(*rows)


class Page(HTMLParser):
    """What a browser makes of a page: its elements, and that all are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@FEW
@given(ANY_TEXT)
def test_junit_is_valid_xml_whatever_the_text(text: str) -> None:
    tree = ElementTree.fromstring(written(".xml", graded(text)))
    for each in (tree, *tree.iter("testsuite")):
        counts = {name: each.get(name) for name in ("tests", "failures", "errors")}
        assert counts == {"tests": "4", "failures": "1", "errors": "1"}
    assert sum(int(each.get("skipped", 0)) for each in tree.iter("testsuite")) == 1
    for element in tree.iter():
        assert set(element.attrib) <= READERS_KNOW[element.tag]
    assert [inner.tag for inner in next(tree.iter("testcase"))] == []
    assert len(list(tree.iter("failure"))) == 1
    assert len(list(tree.iter("error"))) == 1


@FEW
@given(ANY_TEXT)
def test_yaml_documents_are_the_records(text: str) -> None:
    documents = list(YAML(typ="safe", pure=True).load_all(written(".yaml", graded(text)).decode()))
    lines = [json.loads(each) for each in written(".jsonl", graded(text)).splitlines()]
    assert documents == lines


@FEW
@given(ANY_TEXT)
def test_json_is_one_object(text: str) -> None:
    value = json.loads(written(".json", graded(text)))
    assert [each["status"] for each in value["results"]] == ["passed", "failed", "error", "ungraded"]
    assert (value["stats"]["total"], value["stats"]["passed"], value["stats"]["failed"]) == (4, 1, 1)
    assert value["stats"]["pass_rate"] == 0.5
    assert value["stats"]["pass_limit"] == LIMIT


@FEW
@given(ANY_TEXT)
def test_the_page_holds_no_text_as_markup(text: str) -> None:
    page = Page()
    page.feed(written(".html", graded(text)).decode())
    page.close()
    assert page.open == []
    kinds = [tag for tag, _ in page.tags]
    assert kinds.count("script") == 3
    folds = [attributes for tag, attributes in page.tags if tag == "details" and "data-filter-status" in attributes]
    assert len(folds) == 4
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")


def test_hostile_text() -> None:
    test_junit_is_valid_xml_whatever_the_text.hypothesis.inner_test(HOSTILE)  # type: ignore[attr-defined]
    test_yaml_documents_are_the_records.hypothesis.inner_test(HOSTILE)  # type: ignore[attr-defined]
    test_json_is_one_object.hypothesis.inner_test(HOSTILE)  # type: ignore[attr-defined]
    test_the_page_holds_no_text_as_markup.hypothesis.inner_test(HOSTILE)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_results_are_a_file_too(ending: str) -> None:
    text = written(ending, []).decode()
    if ending == ".xml":
        assert ElementTree.fromstring(text).get("tests") == "0"
    if ending == ".json":
        assert json.loads(text)["results"] == []
    if ending == ".html":
        assert "</html>" in text


def test_suites_are_datasets_and_classes_name_targets_where_there_are_several() -> None:
    records = found(*(row(test, score=1, target=target, duration_ms=1500) for test in "ab" for target in "xy"))
    tree = ElementTree.fromstring(written(".xml", records))
    (suite,) = tree.iter("testsuite")
    assert (suite.get("name"), suite.get("tests"), suite.get("time")) == ("d", "4", "6.000")
    assert [(case.get("name"), case.get("classname")) for case in suite.iter("testcase")] == [
        ("a", "d @ x"), ("a", "d @ y"), ("b", "d @ x"), ("b", "d @ y"),
    ]  # fmt: skip


def test_what_no_test_says_is_in_the_suite() -> None:
    records = found(row("a", score=1.0), row("b", state=ItemState.PENDING))
    about = figures(*records) | {"commands": [{"dataset": "d", "target": "t", "failure": "exit code 3"}]}
    handle = io.BytesIO()
    write_as(".xml", handle, lambda: iter(records[:1]), about)
    (suite,) = ElementTree.fromstring(handle.getvalue()).iter("testsuite")
    assert [each.tag for each in suite] == ["properties", "testcase", "system-err"]
    said = suite.findtext("system-err")
    assert said == "target t: exit code 3\n1 test of the run has not ended and is not in this file"


def test_a_large_page_shows_first_what_did_not_pass() -> None:
    records = found(
        *(row(f"p{place}", score=1.0) for place in range(5100)), *(row(f"f{place}", score=0.0) for place in range(10))
    )
    text = written(".html", records).decode()
    assert text.count(" data-filter-status=") == 5000
    assert all(f">f{place}</span>" in text for place in range(10))
    assert "5,110 tests ended; 5,000 of them are shown" in text


def test_a_page_has_room_for_all_tests_and_so_not_for_all_of_each() -> None:
    records = found(*(row(f"t{place}", score=0.0, answer=f"{place:06}" * 10_000) for place in range(1000)))
    text = written(".html", records).decode()
    assert len(text) < 22_000_000
    assert text.count("more characters)") == 1000
    talk = [{"role": "user", "content": "word " * 100} for _ in range(100_000)]
    score = {"name": "g", "type": "equals", "score": 0.0, "weight": 1, "verdict": "fail", "hits": []}
    scores = [{**score, "misses": ["the last word"]}]
    (record,) = found(row("long", score=0.0, output=talk, scores=scores))
    text = written(".html", [record]).decode()
    assert len(text) < 30_000_000
    assert re.search(r"[0-9] more", text)
    assert "the last word" in text


def test_the_page_tells_of_trials_and_of_commands_that_failed() -> None:
    rows = [row("a", score=score, trial=place, answer=f"said {place}") for place, score in enumerate((0.1, 0.9))]
    records = found(*rows, failed("b", trial=0, error="no luck"), row("b", score=0.2, trial=1))
    command = {"dataset": "d", "target": "<t>", "trial": 1, "failure": "exit code 3", "notices": [], "invocations": 1}
    ended = {"exit_code": 3, "timed_out": False, "seconds": 1.0, "records": 0, "missing": 2}
    about = figures(*records) | {"commands": [{**command, **ended}]}
    handle = io.BytesIO()
    write_as(".html", handle, lambda: iter(records), about)
    text = handle.getvalue().decode()
    assert "The command of target &lt;t&gt;, trial 2 failed: exit code 3" in text
    assert "1 of 2 trials passed (pass at k)" in text
    shown = " ".join(re.sub("<[^>]*>", " ", text).split())
    assert "1 ✗ failed 0.100 said 0" in shown
    assert "1 ! error – no luck" in shown


def test_records_of_a_file_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": 1}\n\nnonsense\n')

    def read() -> Iterator[dict[str, Any]]:
        return records_in(path)

    with pytest.raises(UserError, match="line 3: not JSON"):
        list(read())
    path.write_text("[1]\n")
    with pytest.raises(UserError, match="line 1: must be an object"):
        list(read())
    with pytest.raises(UserError, match="can't be read"):
        list(records_in(tmp_path / "none.jsonl"))


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    records = [*graded("x"), trials(0.2, 0.9, None)]
    path.write_text("".join(f"{json.dumps(each.to_json())}\n" for each in records))
    assert list(results_in(path)) == records
    path.write_text('{"test_id": "a"}\n')
    with pytest.raises(UserError, match="line 1: no result of a test"):
        list(results_in(path))
