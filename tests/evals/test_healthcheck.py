"""Whether a target can be used: asked of a real server, of a command, of the target's own command, once."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from manyhands.io.locations import Location
from manyhands.processes.commands import CommandRunner
from manyhands.processes.strays import process_mark
from manyhands.workloads.evals.targets.checks import health_problem
from manyhands.workloads.evals.targets.command import parse_command
from manyhands.workloads.evals.targets.kinds.protocol import Healthcheck


@pytest.fixture
async def runner() -> AsyncIterator[CommandRunner]:
    async with CommandRunner.opened(process_mark(secrets.token_hex(8)), {"PATH": os.environ["PATH"]}) as made:
        yield made


class Server:
    """A server with a status to order, which counts its requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request.method)
        if "slow" in request.path:
            await asyncio.sleep(5)
        if "moved" in request.path:
            raise web.HTTPFound("/204")
        return web.Response(status=int(request.path[1:] or 200))


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield made, str(runner.addresses[0][1])
    await runner.cleanup()


def at(url: str, *, seconds: float = 20.0) -> Healthcheck:
    return Healthcheck(seconds, Path(), url)


@pytest.mark.parametrize("path", ["200", "204", "moved"])
async def test_2xx_is_well_and_asked_once(server: tuple[Server, str], path: str) -> None:
    assert await health_problem(at(f"http://127.0.0.1:{server[1]}/{path}")) is None
    assert server[0].requests == ["GET"] * (2 if path == "moved" else 1)


@pytest.mark.parametrize("status", [404, 500, 304])
async def test_any_other_status_is_named_without_what_may_be_secret(server: tuple[Server, str], status: int) -> None:
    problem = await health_problem(at(f"http://me:secret@127.0.0.1:{server[1]}/{status}?key=secret"))
    assert (
        problem == f"the healthcheck at http://127.0.0.1:{server[1]}/{status} failed: it answers with status {status}"
    )
    assert server[0].requests == ["GET"]


async def test_what_does_not_answer_is_named(server: tuple[Server, str]) -> None:
    slow = await health_problem(at(f"http://127.0.0.1:{server[1]}/slow", seconds=0.2))
    assert (slow or "").endswith("/slow timed out after 0.2 s")
    nobody = await health_problem(at("http://127.0.0.1:1/"))
    assert (nobody or "").startswith("the healthcheck at http://127.0.0.1:1/ failed: ")
    for url in ("", "nonsense", "http://", "ftp://127.0.0.1/x", "http://[", "http://host:port/"):
        problem = await health_problem(at(url, seconds=2))
        assert problem is not None
        assert "\n" not in problem


def check(command: str | list[str], folder: Path, *, seconds: float = 20.0) -> Healthcheck:
    return Healthcheck(seconds, folder, template=parse_command(command, Location("targets.yaml")))


async def test_a_command_is_well_if_it_ends_with_0(runner: CommandRunner, tmp_path: Path) -> None:
    script = "echo call >>calls; test {EVAL_FILE} = $PWD/eval.yaml && touch {OUTPUT_FILE} && test -e {TEST_IDS_FILE}"
    assert await health_problem(check(script, tmp_path), runner, eval_file=tmp_path / "eval.yaml") is None
    assert (tmp_path / "calls").read_text() == "call\n"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo down >&2; exit 2", "the healthcheck failed: the command ended with exit code 2: down"),
        ("echo down; exit 2", "the healthcheck failed: the command ended with exit code 2: down"),
        ("sleep 30", "the healthcheck failed: the command timed out after 0.5 s"),
        (["./none"], "the healthcheck failed: ./none can't be started: No such file or directory"),
    ],
)
async def test_a_command_that_is_not_well_is_named(
    runner: CommandRunner, tmp_path: Path, command: str | list[str], problem: str
) -> None:
    assert await health_problem(check(command, tmp_path, seconds=0.5), runner) == problem


async def test_secrets_stay_out_of_what_is_said(runner: CommandRunner, tmp_path: Path) -> None:
    key = "sk-0123456789abcdef"
    problem = await health_problem(check(f"echo {key} >&2; exit 1", tmp_path), runner, environ={"MY_API_KEY": key})
    assert problem == "the healthcheck failed: the command ended with exit code 1: [redacted]"


async def test_a_folder_that_is_missing_is_named(runner: CommandRunner, tmp_path: Path) -> None:
    problem = await health_problem(check("true", tmp_path / "none"), runner)
    assert problem == f"the healthcheck failed: there is no folder {tmp_path / 'none'} to start its command in"


async def test_a_target_s_own_command_checks_itself(runner: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text(
        "import sys; print(sys.argv[1:]); open('calls', 'a').write('call\\n'); sys.exit('--healthcheck' not in sys.argv)"
    )
    for command in (
        f"{sys.executable} runner.py --out {{OUTPUT_FILE}}",
        [sys.executable, "runner.py", "--out", "{OUTPUT_FILE}"],
    ):
        template = parse_command(command, Location("t")).with_word("--healthcheck")
        assert await health_problem(Healthcheck(20.0, tmp_path, template=template), runner) is None
    assert (tmp_path / "calls").read_text() == "call\ncall\n"
    assert not list(tmp_path.glob("*.jsonl"))


async def test_a_command_needs_somebody_who_starts_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without a runner"):
        await health_problem(check("true", tmp_path))
