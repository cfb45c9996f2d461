"""``code_judge`` and ``code_grader``: a program of the person's own that judges.

It gets a JSON object on standard input (``payload``) and prints one on standard output (``verdicts``); other lines may stand before it.
What goes wrong with the program is an error of the grader, never a score: another exit code than 0, whatever it had printed by then, a
signal, no object, an object with wrong types, the time limit, a program that can't be started. A program may end without reading its
input.

A ``code_grader`` (also written ``script`` or ``command``) may print plain text, or nothing, instead of an object: its exit code is then the
score, 1 for 0 and 0 for others, as long as it wrote nothing to standard error. Text is not plain if it says within a line what the
score is (``result: {"score": 0}``); nor is what a failed program left behind if it begins like JSON, or one of its lines like an object.
From a program that succeeds, ``0.2`` or ``false`` by itself is an error too: it would count as 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from manyhands.agents.reading import brief_usage
from manyhands.core.digests import digest
from manyhands.core.errors import GraderError
from manyhands.core.settings import OptionalText, shown
from manyhands.core.usage import Usage
from manyhands.engine.contract import Effect
from manyhands.graders.payload import GRADE, LATER, encoded, environment_of, folder_of, payload_of
from manyhands.graders.programs.judge_proxy import DEFAULT_CALLS, JudgeProxy
from manyhands.graders.protocol import Candidate, Grader, Grading, Score
from manyhands.graders.registry import Setup
from manyhands.graders.verdicts import MAX_CHARACTERS, last_object, said, score_of
from manyhands.io.keys import Entry, key, own_keys, read
from manyhands.io.locations import Place
from manyhands.processes.scripts import ScriptResult
from manyhands.processes.templates import script_of

_TAIL = 1800
"""Characters of standard error that an error shows."""
_LAST_LINES = 300
_JSON_LINE = re.compile(r"\A[\ufeff\s]*\[|^[\ufeff \t]*\{", re.MULTILINE)
"""What JSON begins with, whole or cut off."""
_SCORE = re.compile(r"""["'](?:score|assertions)["']\s*:""")
"""What says a score, in JSON or in a dictionary of Python's."""
_BELOW_ONE = re.compile(r"0*(?:\.\d+)?|0+\.?|false|null|nan", re.IGNORECASE)
"""A value by itself that is a score below 1, or none: a program that prints it and succeeds has not said that all is well."""
_HIGHEST = 125
"""The highest exit code that is a program's own: shells use those above for programs that can't be run, and for signals."""


def target_calls(value: Any) -> int | None:
    """Calls that the program may make of the judge; None: it may make none."""
    if value is None or isinstance(value, bool):
        return DEFAULT_CALLS if value else None
    calls = value.get("max_calls", value.get("maxCalls", DEFAULT_CALLS)) if isinstance(value, Mapping) else None
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
        raise ValueError("must be true, or a mapping with max_calls, a whole number of 0 or more")
    return calls


class CodeEntry(Entry):
    """Settings of ``code_judge`` and ``code_grader``; every other key goes to the program as ``config``."""

    spellings: ClassVar[Mapping[str, str]] = {"command": "script"}
    open: ClassVar[bool] = True
    script: Annotated[Any, BeforeValidator(script_of)] = key(
        ..., "The program: a line for sh, or a list of a program and its arguments."
    )
    cwd: OptionalText = key(None, "The folder to run it in, from the eval file's folder, which is the default.")
    target: Annotated[Any, BeforeValidator(target_calls)] = key(
        None, "Whether the program may ask the judge: true, or max_calls with a number of calls."
    )


ENTRY = CodeEntry


def parse(entry: Mapping[str, Any], place: Place, setup: Setup) -> Grader:
    """Raises UserError if there is no program."""
    settings = read(CodeEntry, entry, place)
    config = own_keys(CodeEntry, entry) or None
    return CodeJudge(entry["name"], entry["type"], settings.script, settings.cwd, setup.folder, config, settings.target)


@dataclass(frozen=True, slots=True)
class CodeJudge:
    """``script``: a line for ``sh``, or argv; ``folder``: where to run it if the candidate has no folder of its own; ``calls``: of
    the judge that it may make."""

    name: str
    type: str
    script: str | Sequence[str]
    cwd: str | None
    folder: Path
    config: Mapping[str, Any] | None = None
    calls: int | None = None

    async def grade(self, candidate: Candidate, grading: Grading) -> Score:
        payload = encoded(payload_of(candidate, self.type, self.config))
        folder = folder_of(candidate, self.folder, self.cwd)
        request = {
            "grader": self.name,
            "script": self.script if isinstance(self.script, str) else list(self.script),
            "cwd": self.cwd,
            "payload": digest("payload", payload.decode("utf-8", "replace")).hex(),
        }
        proxied = grading.context.scope("target") if self.calls is not None else None

        async def effect() -> Effect:
            environment = environment_of(candidate)
            async with AsyncExitStack() as stack:
                proxy = None
                if proxied is not None and self.calls is not None:
                    proxy = await stack.enter_async_context(
                        JudgeProxy.opened(proxied, grading.judges, self.calls, candidate.test_id)
                    )
                    environment |= proxy.environment
                result = await grading.scripts.run(
                    self.script, payload, folder=folder, seconds=grading.seconds, environment=environment
                )
                if proxy is not None:
                    proxy.check()
            found = read_result(result, grading.seconds, plain=self.type == LATER)
            if proxy is not None:
                found["details"] = {**found.get("details", {}), "target_calls": proxy.count}
                found["usage"] = brief_usage(proxy.usage)
            return Effect({**found, "seconds": round(result.seconds, 3)})

        output = await grading.context.step(GRADE, request, effect)
        return score_of(self, output, grading, usage=Usage(**output.get("usage", {})))


def read_result(result: ScriptResult, seconds: float, *, plain: bool = False) -> dict[str, Any]:
    """What a program said, checked. ``seconds``: its time limit; ``plain``: whether an exit code and a text are an answer.

    Raises GraderError that says how it ended, with the last lines of what it wrote.
    """
    if result.exit_code is None:
        raise GraderError(_with_tail(f"the program took more than {seconds:g} s and was stopped", result))
    text = result.stdout.decode("utf-8", "replace")
    if result.exit_code != 0:
        silent = not (result.stderr.strip() or _JSON_LINE.search(text) or _SCORE.search(text[-MAX_CHARACTERS:]))
        if plain and result.exit_code <= _HIGHEST and silent:
            return _plain(text, passed=False)
        raise GraderError(_with_tail(_ended(result) + _besides(text, result), result))
    value = last_object(text)
    if value is not None:
        return said(value, "the program")
    if plain and not (text.lstrip().startswith(("{", "[")) or _meant_as_score(text)):
        return _plain(text, passed=True)
    what = "nothing" if not text.strip() else f"no JSON object: {shown(text.strip()[-_LAST_LINES:], _LAST_LINES)}"
    if len(text) > MAX_CHARACTERS:
        what += f" (looked for in the last {MAX_CHARACTERS:,} characters)"
    raise GraderError(_with_tail(f"the program printed {what}", result))


def _meant_as_score(text: str) -> bool:
    """Whether the text of a program that succeeded says a score in a way that is not read, and may be below 1."""
    end = text[-MAX_CHARACTERS:].strip()
    return bool(end) and (_BELOW_ONE.fullmatch(end) or _SCORE.search(end)) is not None


def _besides(text: str, result: ScriptResult) -> str:
    """What a person would miss in an error that says how a program ended: its own last words, where standard error has none."""
    crashed = (result.exit_code or 0) > _HIGHEST
    if crashed or result.stderr.strip() or not text.strip():
        return ""
    value = last_object(text)
    if value is not None and not value.keys().isdisjoint(("score", "assertions")):
        return ", although it had printed a score: it does not count"
    return f": {shown(text.strip()[-_LAST_LINES:], _LAST_LINES)}"


def _plain(text: str, *, passed: bool) -> dict[str, Any]:
    line = [" ".join(text.split())[:500] or f"exit code {0 if passed else 1}"]
    return {"score": float(passed), "hits": line if passed else [], "misses": [] if passed else line}


def _ended(result: ScriptResult) -> str:
    code = result.exit_code or 0
    return f"the program ended with exit code {code}" + (f" (signal {code - 128})" if code > 128 else "")


def _with_tail(text: str, result: ScriptResult) -> str:
    tail = result.stderr.decode("utf-8", "replace").strip()[-_TAIL:]
    return f"{text}: {tail}" if tail else text
