"""``preprocessors``: programs that turn files in an answer into text before a grader looks at it.

The last message of the assistant may hold files, as parts ``{"type": "file", "media_type", "path"}`` of its content. A grader with
preprocessors sees them as text: what the program for the file's type prints, and of a file that there is none for what stands in it,
read as UTF-8. Each is below a line ``[[ file: PATH ]]``; parts that are text stand between them as they are. What can't be read is said
in the file's place, so that a judge knows; a program that fails breaks the grader. Paths start from the test's workspace, or where there is
none from the eval file's folder.

A program starts in the eval file's folder, and gets ``{"path", "original_path", "media_type"}`` on standard input. Its run, and the
reading of a file, are steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator

from manyhands.core.errors import GraderError
from manyhands.core.jsonio import Json, as_text, dumps
from manyhands.engine.contract import Effect
from manyhands.graders.contract import GRADE, environment_of, folder_of, how_it_ended
from manyhands.graders.protocol import Candidate, Grading
from manyhands.io.keys import Entry, SomeWords, key
from manyhands.processes.templates import script_of

MAX_TEXT = 100_000
"""Characters of a file that are shown."""
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """A file in an answer."""

    named: str
    """As the answer names it."""
    media_type: str
    path: Path | None

    @classmethod
    def of(cls, part: Mapping[str, Any], folder: Path) -> _File:
        named = str(part.get("path") or part.get("value") or "")
        ending = Path(urlsplit(named).path).suffix.removeprefix(".").lower()
        given = part.get("media_type") or part.get("mediaType")
        return cls(named, media_type(given if isinstance(given, str) else ending), _path(named, folder))


async def with_files(candidate: Candidate, preprocessors: Sequence[PreprocessorEntry], grading: Grading) -> Candidate:
    """The candidate with the files of its answer as text; as it is, if there are none. Raises GraderError if a program failed."""
    content = _content(candidate)
    if not any(map(_is_file, content)):
        return candidate
    context = grading.context.scope("files")
    inner = replace(grading, context=context)
    programs = {media_type(each.type): each.command for each in preprocessors}
    folder = candidate.workspace or candidate.folder
    parts = [
        await _shown(_File.of(part, folder), programs, candidate, inner) if _is_file(part) else _text(part)
        for part in content
    ]
    return replace(candidate, answer="\n".join(part for part in parts if part))


def _content(candidate: Candidate) -> Sequence[Json]:
    last = next((each for each in reversed(candidate.output or ()) if each.get("role") == "assistant"), {})
    content = last.get("content")
    return content if isinstance(content, (list, tuple)) else ()


def _is_file(part: Json) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "file"


def _text(part: Json) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text":
        part = part.get("text", part.get("value", ""))
    return as_text(part)


async def _shown(file: _File, programs: Mapping[str, Any], candidate: Candidate, grading: Grading) -> str:
    command = programs.get(file.media_type)
    request = {
        "file": file.named,
        "media_type": file.media_type,
        "command": list(command) if isinstance(command, tuple) else command,
    }

    async def effect() -> Effect:
        if file.path is None:
            return Effect({"problem": "it is not on this machine"})
        if command is None:
            return Effect(await asyncio.to_thread(_read, file.path))
        return Effect({"text": await _printed(file, file.path, command, candidate, grading)})

    found: dict[str, str] = await grading.context.step(GRADE, request, effect)
    text = f"(can't be shown: {found['problem']})" if "problem" in found else found["text"]
    return f"[[ file: {file.named} ]]\n{text}"


async def _printed(file: _File, path: Path, command: Any, candidate: Candidate, grading: Grading) -> str:
    request = {"path": str(path), "original_path": file.named, "media_type": file.media_type}
    result = await grading.scripts.run(
        command,
        dumps(request),
        folder=folder_of(candidate, Path()),
        seconds=grading.seconds,
        environment=environment_of(candidate),
    )
    if result.exit_code != 0:
        raise GraderError(f"the preprocessor of {file.named} {how_it_ended(result)}")
    return _cut(result.stdout.decode("utf-8", "replace").strip())


def _read(path: Path) -> dict[str, str]:
    """``{"text"}``, or ``{"problem"}`` where it can't be read as text."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return {"problem": getattr(error, "strerror", None) or str(error)}
    if len(data) > _MAX_BYTES:
        return {"problem": f"it has more than {_MAX_BYTES >> 20} MiB"}
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return {"problem": "it is no text, and no preprocessor is named for its type"}
    return {"text": _cut(text.replace("\r\n", "\n"))}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n… (cut after {MAX_TEXT:,} characters)"


def _path(named: str, folder: Path) -> Path | None:
    """None for addresses of other machines."""
    if named.lower().startswith("file://"):
        return Path(unquote(urlsplit(named).path))
    return None if "://" in named or not named else folder / named


_OFFICE = "application/vnd.openxmlformats-officedocument."
TYPES = {
    "csv": "text/csv",
    "docx": f"{_OFFICE}wordprocessingml.document",
    "htm": "text/html",
    "html": "text/html",
    "json": "application/json",
    "markdown": "text/markdown",
    "md": "text/markdown",
    "pdf": "application/pdf",
    "pptx": f"{_OFFICE}presentationml.presentation",
    "sql": "application/sql",
    "txt": "text/plain",
    "xhtml": "application/xhtml+xml",
    "xls": "application/vnd.ms-excel",
    "xlsx": f"{_OFFICE}spreadsheetml.sheet",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}
"""Media types by short names, which are endings of files too."""


def media_type(word: str) -> str:
    """A type by its short name or its own."""
    word = word.strip().lower()
    return TYPES.get(word, word)


class PreprocessorEntry(Entry):
    """A program that turns files of a type into text (``preprocessors``)."""

    type: SomeWords = key(..., "The files that it is for: an ending such as xlsx, or a media type.")
    command: Annotated[Any, BeforeValidator(script_of, json_schema_input_type=str | list[str])] = key(
        ..., "The program: a list of words, or a line for sh. It prints the text."
    )
