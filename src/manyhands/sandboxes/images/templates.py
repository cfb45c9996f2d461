"""Which image a row names: in a field of its own, or by a template that its fields fill."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from manyhands.core.jsonio import kind_of

_MARK = re.compile(r"\{([^{}]*)\}")
_MAX_CHARACTERS = 500


def _swebench(text: str) -> str:
    return text.lower().replace("__", "_1776_")


FILTERS: Mapping[str, Callable[[str], str]] = {"lower": str.lower, "swebench": _swebench}
"""What may be done to a field's text. ``swebench``: as the images of SWE-bench are named after its instances."""


@dataclass(frozen=True, slots=True)
class ImageTemplate:
    """A name with fields in braces: ``registry.example/sweb.eval.{instance_id|swebench}:latest``."""

    text: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """The fields in it, each with its filters."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for a template without a field, and for an unknown filter."""
        text = text.strip()
        parts = tuple(_field(mark[1]) for mark in _MARK.finditer(text))
        if not parts or set(_MARK.sub("", text)) & set("{}"):
            raise ValueError("must have fields of rows in braces, such as {instance_id}")
        return cls(text, parts)

    def fill(self, row: Mapping[str, Any]) -> str:
        """The name for a row. Raises ValueError if it lacks a field."""
        parts = iter(self.parts)
        files = names_file(self.text)
        name = _MARK.sub(lambda mark: _value(row, *next(parts), in_path=files), self.text)
        return checked_reference(name, files=files)


FIELDS = ("image", "docker_image")
"""Fields of a dataset's rows that name an image where no other is given: the first that is not empty counts."""


@dataclass(frozen=True, slots=True)
class RowImages:
    """Where rows name their images."""

    fields: tuple[str, ...] = FIELDS
    template: ImageTemplate | None = None
    """For rows that name none."""

    @classmethod
    def of(cls, field: str | None, template: str | None, *, fixed: tuple[str, ...] = FIELDS) -> Self:
        """What ``--image_field`` and ``--image_template`` say. ``fixed``: the fields where no other is given."""
        return cls(fixed if field is None else (field,), None if template is None else ImageTemplate.parse(template))

    def image(self, row: Mapping[str, Any]) -> str | None:
        """The image that a row names; None if it names none. Raises ValueError for what can't be a name."""
        named = self.named(row)
        return self.template.fill(row) if named is None and self.template is not None else named

    def named(self, row: Mapping[str, Any]) -> str | None:
        """The same without the template."""
        for name in self.fields:
            if value := row.get(name):
                if not isinstance(value, str):
                    raise ValueError(f'"{name}" is {kind_of(value)}, expected text')
                if value.strip():
                    return checked_reference(value)
        return None


def names_file(reference: str) -> bool:
    """Whether a reference means a file or folder of this machine (``oci:FOLDER``, ``tar:FILE``, with a path that begins with ``/``, ``.``
    or ``~``). Only the person who starts a run may name such, not a row of a dataset."""
    kind, colon, rest = reference.partition(":")
    return bool(colon) and kind in ("oci", "tar") and rest[:1] in ("/", ".", "~")


def checked_reference(name: str, *, files: bool = False) -> str:
    """The name of an image, as far as can be said without looking it up. ``files``: whether it may mean a file of this machine. Raises
    ValueError."""
    name = name.strip()
    if names_file(name) and not files:
        raise ValueError(
            f"{name[:100]!r} is a file of this machine, which rows can't name (--image and --image_template can)"
        )
    wrong = not name or len(name) > _MAX_CHARACTERS or name.startswith("-") or not name.isprintable() or " " in name
    # An engine is asked by addresses that have the name in them.
    if wrong or (not names_file(name) and not {"", ".", ".."}.isdisjoint(name.partition("@")[0].split("/"))):
        raise ValueError(f"{name[:100]!r} is no name of a container image")
    return name


def _field(mark: str) -> tuple[str, tuple[str, ...]]:
    name, *filters = (part.strip() for part in mark.split("|"))
    for each in filters:
        if each not in FILTERS:
            raise ValueError(f"has an unknown filter: {each} (there are {', '.join(FILTERS)})")
    if not name:
        raise ValueError("has braces without the name of a field")
    return name, tuple(filters)


def _value(row: Mapping[str, Any], name: str, filters: tuple[str, ...], *, in_path: bool) -> str:
    """``in_path``: whether it becomes part of a path of this machine, of which it must not choose the folder."""
    value = row.get(name)
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
        raise ValueError(f'no text in "{name}", of which --image_template makes the name of an image')
    text = str(value).strip()
    for each in filters:
        text = FILTERS[each](text)
    if in_path and ("/" in text or text.startswith(".") or "#" in text):
        raise ValueError(f'"{name}" can\'t become part of a path: {text[:100]!r}')
    return text
