"""The users of an image: what its ``/etc/passwd`` says."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

MAX_PASSWD = 1_000_000
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs commands."""

    user: int
    group: int
    home: str | None


ROOT = Account(0, 0, "/root")


def passwd_in(archive: bytes) -> str:
    """The text of the one file in an archive; empty if there is none, also for what is no archive or was cut off, as for a file that is
    far too large."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as content:
            for member in content:
                file = content.extractfile(member) if member.isreg() else None
                if file is not None:
                    return file.read(MAX_PASSWD).decode(errors="replace")
    except (tarfile.TarError, ValueError):
        pass
    return ""


def account(user: str, passwd: str) -> Account | None:
    """The account of a user, who is given as engines take one: ``name``, ``number``, each with ``:group``. None for a name that is not
    there."""
    name, _, group = user.partition(":")
    entries = [
        fields
        for line in passwd.splitlines()
        if len(fields := line.split(":")) >= 6 and _is_number(fields[2]) and _is_number(fields[3])
    ]
    for fields in entries:
        if name in (fields[0], fields[2]):
            own = int(group) if _is_number(group) else int(fields[3])
            return Account(int(fields[2]), own, fields[5] or None)
    if name in ("", "0", "root"):
        return ROOT
    return Account(int(name), int(group) if _is_number(group) else 0, None) if _is_number(name) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10
