"""``manyhands sandbox check``: what is found out about a kind of sandboxes, also about one that does not do what it has to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.own_agent import installed
from tests.support.ssh_servers import ssh_server

LATENCIES = {"start", "end", "command", "run", "read", "write", "checkpoint"}
FORGETFUL = """
from manyhands.sandboxes.local import LocalBackend

class Forgetful:
    kind = "forgetful"

    def unavailable(self):
        return None

    async def create(self, request):
        sandbox = await LocalBackend().create(request)
        sandbox.read_file = self.read_file
        return sandbox

    async def read_file(self, path, *, max_bytes=0):
        return b"something else"
"""


def check(*words: str, code: int = 0) -> str:
    ended = run("sandbox", "check", *words)
    assert ended.code == code, ended
    return str(ended.out)


def test_a_kind_that_works() -> None:
    said = check("local")
    assert "local: 12 of 12 checks passed" in said
    assert "failed" not in said


def test_a_kind_that_does_not_do_what_it_has_to(tmp_path: Path) -> None:
    with installed(tmp_path, "[manyhands.sandboxes]", "forgetful = forgetful:Forgetful"):
        (tmp_path / "site" / "forgetful.py").write_text(FORGETFUL)
        report = json.loads(check("forgetful", "--json", code=1))
    assert (report["kind"], report["usable"]) == ("forgetful", False)
    failed = {name: each["detail"] for name, each in report["checks"].items() if each["result"] == "failed"}
    assert set(failed) == {"latencies", "files", "nothing shared"}
    assert "instead of" in failed["files"]


@pytest.mark.slow
def test_worlds_of_a_driver_are_removed() -> None:
    with ssh_server() as server:
        report = json.loads(check("ssh", "--json", *server.options[1:]))
        assert (report["usable"], report["passed"], report["left"]) == (True, 12, 0)
        assert set(report["seconds"]) == LATENCIES
        assert [each for name in ("worlds", "files", "snapshots") for each in (server.worlds / name).iterdir()] == []


def test_kinds_that_can_not_be_used() -> None:
    for words, said in ((["nothing"], "unknown"), (["ssh"], "needs --ssh_host"), ([], "--sandbox is required")):
        ended = run("sandbox", "check", *words)
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err
