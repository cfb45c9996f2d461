"""What an image or a command wrote where only engines and we write."""

from __future__ import annotations

import io
import tarfile

from manyhands.sandboxes.containers.accounts import MAX_PASSWD, account, passwd_in
from manyhands.sandboxes.remote.streams import is_number


def archive_of(content: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packing:
        member = tarfile.TarInfo("passwd")
        member.size = len(content)
        packing.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def test_a_list_of_users_that_is_cut_off_or_none_is_empty() -> None:
    whole = archive_of(b"u:x:7:8::/home/u:/bin/sh\n" * 100_000)
    assert account("u", passwd_in(whole[: 3 << 18])) is None
    assert passwd_in(b"") == passwd_in(b"no archive" * 1000) == ""
    assert len(passwd_in(whole)) == MAX_PASSWD


def test_numbers_of_users_are_numbers() -> None:
    assert account("u", "u:x:\u00b2:8::/:/bin/sh\n") is None
    assert account("\u00b2", "") is None
    assert account("u", passwd_in(archive_of(b"u:x:7:8::/home/u:/bin/sh\n"))) is not None


def test_what_stands_in_a_mark_need_not_be_a_number() -> None:
    assert is_number(["12"])
    assert not any(map(is_number, ([], [""], ["\u00b2"], ["-1"], ["1", "2"], ["x"])))
