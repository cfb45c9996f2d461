"""Programs as entries of graders name them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from manyhands.graders.entry import Entry, SomeWords, key

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


def script_of(value: Any) -> str | tuple[str, ...]:
    """A program: a line for ``sh``, or argv. Raises ValueError."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a line for sh, or a list of a program and its arguments")
    if not words or not words[0].strip():
        raise ValueError("must not be empty")
    if any("\0" in word for word in words):
        raise ValueError("must not hold a NUL character")
    return value if isinstance(value, str) else tuple(words)


class PreprocessorEntry(Entry):
    """A program that turns files of a type into text (``preprocessors``)."""

    type: SomeWords = key(..., "The files that it is for: an ending such as xlsx, or a media type.")
    command: Annotated[Any, BeforeValidator(script_of, json_schema_input_type=str | list[str])] = key(
        ..., "The program: a list of words, or a line for sh. It prints the text."
    )
