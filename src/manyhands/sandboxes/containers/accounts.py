"""The users of an image: what its ``/etc/passwd`` says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs commands."""

    user: int
    group: int
    home: str | None


ROOT = Account(0, 0, "/root")


def account(user: str, passwd: str) -> Account | None:
    """The account of a user, who is given as engines take one: ``name``, ``number``, each with ``:group``. None for a name that is not
    there."""
    name, _, group = user.partition(":")
    entries = [
        fields
        for line in passwd.splitlines()
        if len(fields := line.split(":")) >= 6 and fields[2].isdigit() and fields[3].isdigit()
    ]
    for fields in entries:
        if name in (fields[0], fields[2]):
            own = int(group) if group.isdigit() else int(fields[3])
            return Account(int(fields[2]), own, fields[5] or None)
    if name in ("", "0", "root"):
        return ROOT
    return Account(int(name), int(group) if group.isdigit() else 0, None) if name.isdigit() else None
