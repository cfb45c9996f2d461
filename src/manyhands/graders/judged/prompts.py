"""What judges are given: prompts of the person's own with variables, or one of ours in sections."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json
from manyhands.engine.contract import Effect
from manyhands.graders.contract import GRADE, encoded, environment_of, folder_of, payload_of
from manyhands.graders.protocol import Candidate, Grading
from manyhands.io.locations import Location

SHOW_THE_ANSWER = ("answer", "output", "output_text", "expected_output")
"""Variables of which a prompt file must hold one."""
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FILE = re.compile(r"[^\s{}]+\.(md|txt|prompt|j2|jinja|tmpl)")
"""What is meant as the name of a file, whether there is one or not."""
SCORE_TASK = (
    "Judge how well the answer meets the criteria. 1 is for an answer that meets all of them, 0 for one that meets none; a wrong or "
    "missing part costs as much as it matters to the criteria. Where there is a reference answer, it shows what is right; other words "
    "for the same are as good."
)
SCORE_REPLY = (
    'Reply with one JSON object: {"score": a number from 0 to 1, "hits": [up to four things that are right, a few words each], '
    '"misses": [up to four that are wrong or missing], "reasoning": "one to three sentences"}'
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Where a prompt comes from: ``text``, or a program that prints it (``script``, with its ``config``); neither: our own."""

    text: str | None = None
    script: tuple[str, ...] | str | None = None
    config: Json = None

    async def rendered(self, grader: Any, candidate: Candidate, grading: Grading, folder: Path) -> str | None:
        """The prompt for a candidate, None if it is ours. A program's run is a step. Raises GraderError."""
        if self.script is not None:
            return await self._printed(grader, candidate, grading, folder)
        return None if self.text is None else filled(self.text, candidate)

    async def _printed(self, grader: Any, candidate: Candidate, grading: Grading, folder: Path) -> str:
        payload = encoded(payload_of(candidate, grader.type, self.config))
        script = self.script or ""
        request = {
            "grader": grader.name,
            "prompt": script if isinstance(script, str) else list(script),
            "payload": digest("payload", payload.decode("utf-8", "replace")).hex(),
        }

        async def effect() -> Effect:
            result = await grading.scripts.run(
                script,
                payload,
                folder=folder_of(candidate, folder),
                seconds=grading.seconds,
                environment=environment_of(candidate),
            )
            text = result.stdout.decode("utf-8", "replace").strip()
            if result.exit_code != 0 or not text:
                how = "took too long" if result.exit_code is None else f"ended with exit code {result.exit_code}"
                tail = result.stderr.decode("utf-8", "replace").strip()[-2000:]
                raise GraderError(
                    f"the prompt's program {how}{' and printed nothing' if not text else ''}"
                    + (f": {tail}" if tail else "")
                )
            return Effect({"prompt": text})

        printed: dict[str, str] = await grading.context.step(GRADE, request, effect)
        return printed["prompt"]


def prompt_of(value: Any, location: Location, folder: Path) -> Prompt:
    """The prompt that an entry names: a text, the path of a file, or a mapping with ``script`` and ``config``. Raises UserError."""
    if value is None:
        return Prompt()
    if isinstance(value, Mapping):
        return _program(value, location)
    if not isinstance(value, str) or not value.strip():
        raise location.error("must be a text, the path of a file, or a mapping with script")
    text = _file_text(value, location, folder)
    if text is None:
        return Prompt(value)
    if not any(name in SHOW_THE_ANSWER for name in _VARIABLE.findall(text)):
        raise location.error(
            f"{value} shows the judge no answer: it must hold {{{{answer}}}} or {{{{expected_output}}}}"
        )
    return Prompt(text)


def _program(value: Mapping[str, Any], location: Location) -> Prompt:
    words = value.get("script", value.get("command"))
    for name in value:
        if name not in ("script", "command", "config"):
            raise location.at(str(name)).error("unknown key")
    if isinstance(words, str) and words.strip():
        return Prompt(script=words, config=value.get("config"))
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise location.at("script").error("must be a line for sh, or a list of a program and its arguments")
    return Prompt(script=tuple(words), config=value.get("config"))


def _file_text(value: str, location: Location, folder: Path) -> str | None:
    """The text of a file of that name; None if the value is no name of one."""
    name = value.strip().removeprefix("file://")
    if "\n" in name or len(name) > 4000 or "\0" in name:
        return None
    path = folder / name
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise location.error(f"{path} can't be read: {error}") from error
    if _FILE.fullmatch(name) or value.startswith("file://"):
        raise location.error(f"there is no file {path}")
    return None


def filled(text: str, candidate: Candidate) -> str:
    """A prompt with its variables replaced, in one pass; what is no variable of ours stays."""
    values = _variables(candidate)
    return _VARIABLE.sub(lambda found: values.get(found[1], found[0]), text)


def _variables(candidate: Candidate) -> dict[str, str]:
    messages = candidate.output
    return {
        "answer": candidate.answer,
        "output_text": candidate.answer,
        "output": candidate.answer if messages is None else shown_json(messages),
        "expected_output": shown_json(candidate.expected_output),
        "expected_output_text": candidate.reference_answer,
        "reference_answer": candidate.reference_answer,
        "question": candidate.question,
        "input_text": candidate.question,
        "input": shown_json(candidate.input),
        "criteria": candidate.criteria,
        "file_changes": candidate.file_changes or "",
    }


def shown_json(value: Any) -> str:
    """JSON for a judge's eyes."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, indent=2, ensure_ascii=False, default=str)


def sections(candidate: Candidate, *more: tuple[str, str], leave_out: Sequence[str] = ()) -> str:
    """What there is to judge, in sections with a heading each (in AgentV's form of headings). Empty ones are left out, but for the
    answer. ``more``: further ones, last."""
    parts = (
        ("criteria", candidate.criteria),
        ("question", candidate.question),
        ("reference_answer", candidate.reference_answer),
        ("answer", candidate.answer or "(the answer is empty)"),
        ("file_changes", candidate.file_changes or ""),
        *more,
    )
    return "\n\n".join(
        f"[[ ## {name} ## ]]\n{text.strip()}" for name, text in parts if text.strip() and name not in leave_out
    )
