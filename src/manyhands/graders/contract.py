"""What a grader's program or function, or a judge, replies: an object with a score. What programs are given: ``graders.payloads``.

=============  =========================================================================================================
``score``      a number, clamped to 0 … 1; may be absent: see below
``hits``       texts; what is no text or blank is left out
``misses``     the like
``reasoning``  a text
``details``    an object, kept as it is
``assertions`` objects with ``text``, ``passed`` and perhaps ``evidence``; they become hits and misses where there are none
=============  =========================================================================================================

Programs and functions may also use the words of AgentV 5:

=============  =========================================================================================================
``pass``       true or false: the grader's verdict, whatever the score is; the test's score is made of scores alone
``reason``     ``reasoning``, which counts where both are given
``checks``     objects with ``text``, ``pass`` and perhaps ``score``, ``reason``, ``evidence``; they count instead of ``assertions``
=============  =========================================================================================================

Without ``score`` it is the mean of the checks (of their scores, or else 1 for those that passed), else the share of the assertions that
passed, else 1 or 0 for ``pass``. Anything else in a reply is a grader that broke, never a zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.core.settings import shown
from manyhands.core.text import cut
from manyhands.core.usage import ZERO, Usage
from manyhands.graders.protocol import Candidate, Grading, Score, verdict_of
from manyhands.processes.scripts import ScriptResult

GRADE = "grade"
"""The kind of a grader's step."""
MAX_CHARACTERS = 1 << 20
"""Characters of an object at most; it is looked for in so many at the end."""
_MAX_FAILURES = 500
"""Lines that look like an object and are none, after which the search is given up."""
_MAX_READ = 1 << 22
"""Characters of such lines and of what follows them that are read in vain before that."""
_SHOWN = 300
_TAIL = 1800
"""Characters of what a program wrote on standard error that a message shows."""


def folder_of(candidate: Candidate, folder: Path, cwd: str | None = None) -> Path:
    """Where a program is run: the candidate's folder (or the other, if it has none), or ``cwd`` from there. Raises GraderError if
    there is no such folder."""
    base = folder if candidate.folder == Path() else candidate.folder
    if cwd is None:
        return base
    for start in (base, folder):
        if (start / cwd).is_dir():
            return start / cwd
    raise GraderError(f"cwd: there is no folder {base / cwd}")


def how_it_ended(result: ScriptResult, besides: str = "") -> str:
    """How a program ended that a grader could not use: words that follow its name, and the end of what it wrote on standard error."""
    how = "took too long" if result.exit_code is None else f"ended with exit code {result.exit_code}"
    return with_stderr(how + besides, result)


def with_stderr(text: str, result: ScriptResult) -> str:
    """A text, and behind it the end of what a program wrote on standard error."""
    tail = result.stderr.decode("utf-8", "replace").strip()[-_TAIL:]
    return f"{text}: {tail}" if tail else text


def environment_of(candidate: Candidate) -> dict[str, str]:
    """What AgentV sets for a program."""
    return {} if candidate.workspace is None else {"AGENTV_WORKSPACE_PATH": str(candidate.workspace)}


def last_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or else the last one in it that begins a line; None if there is none of up to ``MAX_CHARACTERS``."""
    text = text.strip().removeprefix("\ufeff")
    window = text if len(text) <= MAX_CHARACTERS else text[-MAX_CHARACTERS:].partition("\n")[2]
    whole = _object(text) if window is text else None
    if whole is not None or len(window) < 2:
        return whole
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found, position, failures, left = None, _line_with_brace(window, 0), 0, _MAX_READ
    while position >= 0 and failures < _MAX_FAILURES and left > 0:
        try:
            value, position = decoder.raw_decode(window, position)
            found = value
        except (ValueError, RecursionError) as error:
            failures += 1
            left -= getattr(error, "pos", len(window)) - position
            position += 1
        position = _line_with_brace(window, position)
    return found if failures < _MAX_FAILURES and left > 0 else _object(window.rpartition("\n")[2])


def _line_with_brace(text: str, start: int) -> int:
    """The next opening brace with nothing but white space before it in its line, or -1."""
    position = text.find("{", start)
    while position >= 0:
        if not text[text.rfind("\n", 0, position) + 1 : position].strip():
            return position
        end = text.find("\n", position)
        position = -1 if end < 0 else text.find("{", end)
    return -1


def _object(text: str) -> dict[str, Any] | None:
    if text[:1] != "{":
        return None
    try:
        value: Json = loads_outside(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def said(value: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What was said about a score, checked, with only what is of use. ``who``: for messages. Raises GraderError."""
    found: dict[str, Any] = {}
    assertions = _assertions(value.get("assertions"), who)
    for name, passed in (("hits", True), ("misses", False)):
        found[name] = _texts(value.get(name), name, who)
        if value.get(name) is None:
            found[name] = [each["text"] for each in assertions if each["passed"] is passed]
    score = value.get("score")
    if score is None and assertions:
        score = sum(each["passed"] for each in assertions) / len(assertions)
    found["score"] = _score(score, value, who)
    reasoning, details = value.get("reasoning"), value.get("details")
    _check(reasoning, str, "reasoning must be a text", who)
    _check(details, dict, "details must be an object", who)
    if reasoning:
        found["reasoning"] = reasoning
    if details or assertions:
        found["details"] = {**(details or {}), **({"assertions": assertions} if assertions else {})}
    return found


def replied(value: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What a program or a function said, as ``said`` gives it, with ``verdict`` where it said whether the answer passes. Raises
    GraderError."""
    passed = value.get("pass") if isinstance(value.get("pass"), bool) else None
    checks = _checks(value.get("checks"), who, needed=value.get("score") is None)
    plain = dict(value)
    if checks:
        plain["assertions"] = [_assertion_of(check) for check in checks]
    score = _score_without(value, checks, passed, who) if value.get("score") is None else None
    if score is not None:
        plain["score"] = score
    if value.get("reasoning") is None and isinstance(value.get("reason"), str):
        plain["reasoning"] = value["reason"]
    found = said(plain, who)
    return found if passed is None else {**found, "verdict": "pass" if passed else "fail"}


def _checks(value: Any, who: str, *, needed: bool) -> list[dict[str, Any]]:
    """Those that are of the right form. Raises GraderError for another one where the score is ``needed`` from them."""
    found = [check for check in value if _is_check(check)] if isinstance(value, list) else []
    if needed and isinstance(value, list) and len(found) < len(value):
        wrong = next(check for check in value if not _is_check(check))
        raise GraderError(f"{who}: a check must have a text and pass, true or false: {shown(wrong, _SHOWN)}")
    return found


def _is_check(check: Any) -> bool:
    return isinstance(check, dict) and isinstance(check.get("text"), str) and isinstance(check.get("pass"), bool)


def _assertion_of(check: Mapping[str, Any]) -> dict[str, Any]:
    evidence = check.get("reason") if check.get("evidence") is None else check["evidence"]
    return {"text": check["text"], "passed": check["pass"], "evidence": evidence}


def _score_without(
    value: Mapping[str, Any], checks: Sequence[Mapping[str, Any]], passed: bool | None, who: str
) -> float | None:
    """The score of a reply that gives none; None where ``said`` finds it, or there is none."""
    if checks:
        scores = [float(check["pass"]) if check.get("score") is None else check["score"] for check in checks]
        return sum(_score(score, value, who) for score in scores) / len(scores)
    return None if passed is None or value.get("assertions") else float(passed)


_BROKE = re.compile(r"(?:Evaluation|Assertion) failed: (.*)", re.DOTALL)
"""What graders written with AgentV's SDKs say of what they could not do; they print it as a failed assertion, and a score of 0."""


def breakdown_in(value: Mapping[str, Any]) -> str | None:
    """Why a grader that is written with an SDK broke, if its reply says that it did."""
    assertions = value.get("assertions")
    parts = [value.get("reason"), *(each.get("text") for each in assertions or () if isinstance(each, Mapping))]
    found = next((found for part in parts if isinstance(part, str) and (found := _BROKE.match(part))), None)
    return None if found is None else _readable(found[1])


def _readable(text: str) -> str:
    """A message; the list of problems that zod gives as JSON as ``FIELD: PROBLEM; …``."""
    try:
        issues = loads_outside(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        issues = None
    if isinstance(issues, list) and issues and all(isinstance(issue, Mapping) for issue in issues):
        text = "; ".join(f"{_path(issue.get('path'))}: {issue.get('message')}" for issue in issues)
    return cut(" ".join(text.split()), _TAIL)


def _path(parts: Any) -> str:
    return ".".join(map(str, parts)) if isinstance(parts, list) and parts else "input"


def score_of(grader: Any, value: Mapping[str, Any], grading: Grading, *, usage: Usage = ZERO) -> Score:
    """The score of what ``said`` gave. ``grader``: anything with ``name`` and ``type``."""
    return Score(
        grader.name,
        grader.type,
        value["score"],
        value.get("verdict") or verdict_of(value["score"], grading.pass_limit),
        hits=tuple(value["hits"]),
        misses=tuple(value["misses"]),
        reasoning=value.get("reasoning"),
        details=value.get("details"),
        usage=usage,
    )


def _score(score: Any, value: Mapping[str, Any], who: str) -> float:
    if score is None:
        raise GraderError(f"{who} gave no score: {shown(dict(value), _SHOWN)}")
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise GraderError(f"{who} gave a score that is no number: {shown(score)}")
    try:
        number = float(score)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise GraderError(f"{who} gave a score that is no number from 0 to 1: {shown(score)}")
    return min(max(number, 0.0), 1.0)


def _texts(value: Any, name: str, who: str) -> list[str]:
    _check(value, list, f"{name} must be a list of texts", who)
    return [text for text in value or () if isinstance(text, str) and text.strip()]


def _assertions(value: Any, who: str) -> list[dict[str, Any]]:
    _check(value, list, "assertions must be a list", who)
    found: list[dict[str, Any]] = []
    for each in value or ():
        if not isinstance(each, dict) or not isinstance(each.get("passed"), bool):
            raise GraderError(f"{who}: an assertion must have a text and passed, true or false: {shown(each, _SHOWN)}")
        _check(each.get("text"), str, "an assertion's text must be a text", who)
        evidence = each.get("evidence")
        found.append(
            {
                "text": each.get("text") or "assertion",
                "passed": each["passed"],
                **({} if evidence is None else {"evidence": evidence}),
            }
        )
    return found


def _check(value: Any, kind: type, wanted: str, who: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise GraderError(f"{who}: {wanted}, not {shown(value)}")


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
