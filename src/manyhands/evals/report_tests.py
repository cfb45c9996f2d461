"""One test in the page of results: what it was asked, what was answered, what the graders found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from manyhands.evals.grading import FAILED, PASSED
from manyhands.evals.result_records import NO_ID, Record, simulated_scores

LONGEST = 20_000
"""Characters of a text that are shown."""
LEAST = 200
"""Characters of a text that are shown even where there is hardly room."""


class Room:
    """The room that a test's texts have. ``characters``: how many there are, about."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    @property
    def full(self) -> bool:
        return self._left <= 0

    def text(self, value: Any) -> str:
        """A value's text as HTML, cut where it is too long."""
        text = str(value).replace("\0", "\ufffd")
        shown = text[: min(LONGEST, max(LEAST, self._left))]
        self._left -= len(shown)
        more = f"… ({len(text) - len(shown):,} more characters)" if len(shown) < len(text) else ""
        return escape(shown + more)

    def block(self, value: Any) -> str:
        """The like of any JSON value, as a block."""
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        return f"<pre>{self.text(text)}</pre>\n"


def shown_test(record: Record, room: Room, *, several: bool) -> Iterator[str]:
    """A test that opens at a click. ``several``: there are several targets, so that its own is named."""
    status, score = record["status"], record["score"]
    target = escape(str(record["target"] or ""), quote=True)
    name = escape(record["test_id"] or NO_ID) + (f" @ {target}" if several else "")
    simulated = "simulated" if record.get("simulated") else "simulated judge" if simulated_scores(record) else None
    label = f' <span class="label">{simulated}</span>' if simulated else ""
    mark = {PASSED: "✓", FAILED: "✗"}.get(status, "!" if "error" in status else "–")
    yield f'<details class="test {status}" data-status="{status}" data-target="{target}"><summary>'
    yield f'<span class="status">{mark} {status.replace("_", " ")}</span><span class="id">{name}{label}</span>'
    yield f'<span class="score">{"–" if score is None else f"{score:.3f}"}</span></summary>\n<div>\n'
    yield from _about(record, room)
    findings = [*_findings(record, room)]  # they come last, and matter most
    yield from _messages("Input", record.get("input"), room)
    yield from _messages("Expected", record.get("expected_output"), room)
    if record.get("output"):
        yield from _messages("Output", record["output"], room)
    elif record.get("answer"):
        yield f"<h3>Answer</h3>\n{room.block(record['answer'])}"
    if record.get("file_changes"):
        yield f"<h3>File changes</h3>\n{room.block(record['file_changes'])}"
    yield from findings
    yield "</div></details>\n"


def _about(record: Record, room: Room) -> Iterator[str]:
    if record.get("error"):
        yield f"<h3>Error</h3>\n{room.block(record['error'])}"
    if record.get("criteria"):
        yield f"<p><b>Criteria:</b> {room.text(record['criteria'])}</p>\n"
    yield f'<p class="about">{room.text(" · ".join(_figures(record)))}</p>\n'
    for notice in record.get("notices", ()):
        yield f'<p class="about">{room.text(notice)}</p>\n'


def _figures(record: Record) -> Iterator[str]:
    yield f"dataset {record['dataset']}"
    if "threshold" in record:
        yield f"limit {record['threshold']:g}"
    if record.get("duration_ms") is not None:
        yield f"{record['duration_ms']:,.0f} ms"
    if record.get("cost_usd") is not None:
        yield f"${record['cost_usd']:.4f}"
    if record.get("token_usage"):
        yield "tokens: " + ", ".join(f"{name} {count:g}" for name, count in record["token_usage"].items())
    if "aggregation" in record:
        of = record["aggregation"]
        yield f"{of['passed_attempts']} of {of['total_attempts']} trials passed ({of['strategy'].replace('_', ' ')})"


def _messages(title: str, messages: Any, room: Room) -> Iterator[str]:
    if not messages:
        return
    yield f"<h3>{title}</h3>\n"
    listed = messages if isinstance(messages, list) else [messages]
    for place, each in enumerate(listed):
        if room.full and place:
            yield f'<p class="about">… and {len(listed) - place:,} more</p>\n'
            return
        message = each if isinstance(each, dict) else {"content": each}
        yield f'<div class="role">{escape(str(message.get("role", "")))}</div>\n'
        if message.get("content") not in (None, ""):
            yield room.block(message["content"])
        for call in message.get("tool_calls") or []:
            yield f'<div class="role">tool call</div>\n{room.block(call)}'


def _findings(record: Record, room: Room) -> Iterator[str]:
    if record.get("scores"):
        yield '<h3>Scores</h3>\n<table><thead><tr><th>grader</th><th>type</th><th class="n">score</th>'
        yield '<th class="n">weight</th><th>found</th></tr></thead>\n<tbody>'
        yield from _score_rows(record["scores"], 0, room)
        yield "</tbody></table>\n"
    if record.get("trials"):
        yield '<h3>Trials</h3>\n<table><thead><tr><th class="n">trial</th><th>status</th><th class="n">score</th>'
        yield "<th>answer or error</th></tr></thead>\n<tbody>"
        for trial in record["trials"]:
            told = room.text(trial.get("error") or trial.get("answer") or "")
            yield f'<tr><td class="n">{trial["attempt"] + 1}</td><td>{trial["status"].replace("_", " ")}</td>'
            yield f'<td class="n">{_score(trial.get("score"))}</td><td>{told}</td></tr>\n'
        yield "</tbody></table>\n"


def _score_rows(scores: list[Record], depth: int, room: Room) -> Iterator[str]:
    for score in scores:
        found = [f"✓ {hit}" for hit in score["hits"]] + [f"✗ {miss}" for miss in score["misses"]]
        found += [text for text in (score.get("reasoning"), score.get("error"), score.get("left_out")) if text]
        yield f"<tr><td>{'› ' * depth}{room.text(score['name'])}</td><td>{room.text(score['type'])}</td>"
        yield f'<td class="n">{_score(score["score"])}</td><td class="n">{score["weight"]:g}</td>'
        yield f"<td>{'<br>'.join(map(room.text, found))}</td></tr>\n"
        yield from _score_rows(score.get("scores", []), depth + 1, room)


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
