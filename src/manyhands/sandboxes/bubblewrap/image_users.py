"""The users of an image, by its ``/etc/passwd`` and ``/etc/group`` (passwd(5), group(5))."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_NUMBERS = 1 << 32


@dataclass(frozen=True, slots=True)
class ImageUser:
    """Who runs a command in a world made of an image. Ids are those inside."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = "/"


ROOT = ImageUser(0, 0, (), "/root")


def user_of(said: str, passwd: str, group: str) -> ImageUser:
    """The user that ``NAME``, ``NUMBER``, ``NAME:GROUP`` … means, as in a Dockerfile. Raises LookupError, with what is missing."""
    name, colon, wanted = said.partition(":")
    known = {fields[0]: fields for fields in _lines(passwd, 7)}
    number = _number(name)
    if number is None and name not in known:
        raise LookupError(f"there is no user {name!r}")
    entry = known.get(name) if number is None else next((e for e in known.values() if _number(e[2]) == number), None)
    uid = _checked(number if entry is None else _number(entry[2]))
    gid = 0 if entry is None else _checked(_number(entry[3]))
    home = "/" if entry is None or not entry[5].startswith("/") else entry[5]
    groups = {fields[0]: fields for fields in _lines(group, 4)}
    if colon:
        return ImageUser(uid, _group(wanted, groups), (), home)
    mine = [_number(fields[2]) for fields in groups.values() if entry is not None and entry[0] in fields[3].split(",")]
    return ImageUser(uid, gid, tuple(each for each in mine if each is not None), home)


def _group(wanted: str, groups: dict[str, list[str]]) -> int:
    number = _number(wanted)
    if number is None:
        if wanted not in groups:
            raise LookupError(f"there is no group {wanted!r}")
        number = _number(groups[wanted][2])
    return _checked(number)


def _lines(text: str, fields: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        parts = line.strip().split(":")
        if len(parts) >= fields:
            yield parts


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _checked(number: int | None) -> int:
    if number is None or number >= _NUMBERS - 1:
        raise LookupError("its ids are no numbers")
    return number
