"""Content parts of prompts: text and pictures in the forms in which datasets have them, checked and made what chat completions take.

A picture is a data address, the address of a page, base64, or the path of a file beside the dataset. What has its bytes becomes an
artifact of the run, and the part refers to it by its digest; addresses of the web stay, and whoever answers fetches them.
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from manyhands.core.jsonio import Json, kind_of
from manyhands.core.text import suggestion
from manyhands.io.files import read_inside
from manyhands.io.picture_headers import MAX_BYTES, read_header
from manyhands.tools.services.artifacts import ArtifactStore, name_of, reference

TEXT = "text"
TEXTS = (TEXT, "input_text")
"""Types of parts that are text: of chat completions, and of OpenAI's Responses."""
PICTURES = ("image_url", "image", "input_image")
"""Types of parts that are pictures: of chat completions, of Anthropic's messages and of chat templates, and of Responses."""
PASSED_ON = ("input_audio", "audio_url", "video_url", "file", "refusal", "thinking")
"""Types of parts that go to the endpoint as they are."""
MAX_TOGETHER = 50_000_000
"""Bytes of the pictures of one row."""
_MAX_ADDRESS = 8192
_WEB = re.compile(r"https?://[^\s/]+[^\s]*", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_DATA = re.compile(r"data:[^,;]{0,100}(?:;[^,;]{1,100}){0,5}", re.IGNORECASE)
_SPACE = str.maketrans("", "", " \t\r\n")
_NO_FILE = "there is no such file in the dataset's folder"
_PLACES = ("image_url", "image", "source", "url", "path", "data", "bytes")
"""Where parts have their picture."""
_OTHERS_OF_PICTURES = frozenset((*_PLACES, "type", "detail", "mimeType", "media_type", "mime_type"))


ReadParts = Callable[[Sequence[Json], str], list[dict[str, Any]]]
"""Reads the parts of a content, given the field's name. Raises BadPart."""


class BadPart(ValueError):
    """Why a part can't be used: ``part 2 of "prompt"`` and what is wrong with it."""


def plain_parts(value: Sequence[Json], field: str) -> list[dict[str, Any]]:
    """The parts of a content as they are, each an object with a type. ``field``: of the row, for errors. Raises BadPart."""
    found = []
    for number, part in enumerate(value, 1):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str) or not part["type"]:
            raise BadPart(f'part {number} of "{field}" is not an object with a "type"')
        # Tables fill the fields of other kinds of parts with nulls, which servers refuse.
        found.append({name: content for name, content in part.items() if content is not None})
    return found


@dataclass(slots=True)
class RowPictures:
    """Where the pictures of one row come from, and where they go."""

    folder: Path | None = None
    """That of the dataset, from which paths start; None if there is none."""
    artifacts: ArtifactStore | None = None
    """What keeps them; None if they are only checked."""
    left: int = MAX_TOGETHER
    """Bytes that further pictures may have."""

    def parts(self, value: Sequence[Json], field: str) -> list[dict[str, Any]]:
        """The parts of a content as chat completions have them. ``field``: of the row, for errors. Raises BadPart, StorageError."""
        found = []
        for number, part in enumerate(plain_parts(value, field), 1):
            try:
                found.append(self._part(part))
            except ValueError as error:
                raise BadPart(f'part {number} of "{field}": {error}') from None
        return found

    def _part(self, part: dict[str, Any]) -> dict[str, Any]:
        kind = part["type"]
        if kind in PICTURES:
            return self._picture(part)
        if kind in TEXTS:
            if not isinstance(part.get("text"), str):
                raise ValueError(f'"text" is {kind_of(part.get("text"))}, expected text')
            return {**part, "type": TEXT}
        if kind in PASSED_ON:
            return part
        known = (*TEXTS, *PICTURES, *PASSED_ON)
        raise ValueError(f"the type {kind[:40]!r} is not known{suggestion(kind, known)}")

    def _picture(self, part: Mapping[str, Any]) -> dict[str, Any]:
        place, value, detail = _given(part)
        try:
            shown = self._kept(_bytes_of(value)) if isinstance(value, _Coded) else self._addressed(value)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if detail is not None:
            shown["image_url"]["detail"] = detail
        return shown | {name: other for name, other in part.items() if name not in _OTHERS_OF_PICTURES}

    def _addressed(self, address: str) -> dict[str, Any]:
        if _WEB.match(address):
            if len(address) > _MAX_ADDRESS or not _WEB.fullmatch(address):
                raise ValueError("this is no address of the web")
            return {"type": "image_url", "image_url": {"url": address}}
        if address[:5].lower() == "data:":
            return self._kept(_bytes_of(_of_data_address(address)))
        if found := _SCHEME.match(address):
            raise ValueError(
                f"{found[0]} is not taken: https: and data: addresses are, and paths that start from the dataset's folder"
            )
        try:
            return self._kept(self._file(address))
        except ValueError as error:
            raise ValueError(f"{_short(address)}: {error}") from None

    def _file(self, path: str) -> bytes:
        if self.folder is None:
            raise ValueError("there is no folder of a dataset, from which a path could start")
        if not path or "\0" in path or PurePosixPath(path).is_absolute():
            raise ValueError("expected a path that starts from the dataset's folder")
        try:
            folder = self.folder.resolve(strict=True)
            file = (folder / path).resolve(strict=True)
            if not file.is_relative_to(folder):
                raise ValueError("outside of the dataset's folder")
            return read_inside(folder, file, MAX_BYTES)
        except UnicodeError:  # half a character
            raise ValueError(_NO_FILE) from None
        except (OSError, RuntimeError) as error:  # a circle of links was a RuntimeError up to Python 3.12
            raise ValueError(_why(error)) from None

    def _kept(self, content: bytes) -> dict[str, Any]:
        header = read_header(content)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"the pictures of the row have more than {MAX_TOGETHER:,} bytes together")
        name = name_of(content, header.media_type)
        if self.artifacts is not None:
            self.artifacts.keep(content, header.media_type)
        return reference(name)


class _Coded(str):
    """Base64."""


def _given(part: Mapping[str, Any]) -> tuple[str, str, Json]:
    """Where a part has its picture, the picture (``_Coded`` if it is base64), and how closely it is to be looked at."""
    place = next((name for name in _PLACES if name in part), None)
    if place is None:
        raise ValueError(f"a picture is missing: expected one of {', '.join(_PLACES[:-1])}")
    value, detail = part[place], part.get("detail")
    coded = place in ("data", "bytes")
    if isinstance(value, dict):
        detail = value.get("detail", detail)
        inner = next((name for name in ("url", "data", "bytes", "path") if value.get(name) is not None), None)
        if inner is None:
            raise ValueError(f'{place}: expected "url", "path" or "data" in it')
        place, value, coded = f"{place}.{inner}", value[inner], inner in ("data", "bytes")
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place}: {'empty' if value == '' else kind_of(value)}, expected text")
    if detail is not None and not isinstance(detail, str):
        raise ValueError(f"detail: {kind_of(detail)}, expected text")
    return place, _Coded(value) if coded else value, detail


def _of_data_address(address: str) -> _Coded:
    """What a data address (RFC 2397) holds."""
    head, comma, coded = address.partition(",")
    if not comma or not _DATA.fullmatch(head) or not head.lower().endswith(";base64"):
        raise ValueError("a broken data address: expected data:image/…;base64,…")
    return _Coded(coded)


def _bytes_of(coded: str) -> bytes:
    if len(coded) > MAX_BYTES * 3 // 2:
        raise ValueError(f"the picture may have {MAX_BYTES:,} bytes")
    try:
        return base64.b64decode(coded.translate(_SPACE), validate=True)
    except (binascii.Error, ValueError):  # for what is not ASCII
        raise ValueError("this is no base64") from None


def _why(error: OSError | RuntimeError) -> str:
    if not isinstance(error, OSError):
        return "a circle of links"
    if error.errno == errno.EFBIG:
        return f"has more than {MAX_BYTES:,} bytes"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _NO_FILE
    return error.strerror or str(error)


def _short(path: str) -> str:
    """The path for a message of one line."""
    shown = path if len(path) <= 200 else f"{path[:200]}…"
    return shown if shown.isprintable() else repr(shown)
