"""A person's own command, run for an item: its words, its environment, its end, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.redaction import REDACTED, Redactor
from manyhands.processes.commands import CommandEnd, CommandRunner
from manyhands.processes.strays import MARK, process_mark, process_table, started
from manyhands.processes.templates import MAX_ARGUMENT, CommandTemplate

PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture
async def runner() -> AsyncIterator[CommandRunner]:
    async with CommandRunner.opened(process_mark(secrets.token_hex(8)), PATH) as made:
        yield made


async def run(runner: CommandRunner, *words: str, folder: Path, timeout: float = 20.0, **more: str) -> CommandEnd:
    return await runner.run(words, folder=folder, additions=more, input=b"given", timeout=timeout)


# --- Words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("codex exec -", ("codex", "exec", "-")),
        ("sh -c 'echo \"$1\"' sh {prompt}", ("sh", "-c", 'echo "$1"', "sh", "{prompt}")),
        ("  a\\ b  ", ("a b",)),
    ],
)
def test_a_command_line_is_split_as_a_shell_does(text: str, words: Sequence[str]) -> None:
    assert CommandTemplate.split(text).words == tuple(words)


@pytest.mark.parametrize("text", ["", "  ", "a 'b", "''", "a\0b"])
def test_what_is_no_command_line_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"^--worker_command: .*") as caught:
        CommandTemplate.split(text, name="--worker_command")
    assert "\n" not in str(caught.value)


def test_values_stand_in_their_words_as_they_are() -> None:
    line = CommandTemplate.split(
        "run --p={prompt} {item_id}{item_id} {other} {{prompt}} '{prompt} and {item_id}' ${prompt}"
    )
    hostile = "'; rm -rf / #\n{item_id} $(id)"
    assert line.filled({"prompt": hostile, "item_id": "{prompt}"}) == [
        "run",
        f"--p={hostile}",
        "{prompt}{prompt}",
        "{other}",
        f"{{{hostile}}}",
        f"{hostile} and {{prompt}}",
        f"${hostile}",
    ]
    assert line.filled({})[1] == "--p={prompt}"
    assert line.uses("prompt_file", "prompt")
    assert not line.uses("prompt_file")


@pytest.mark.parametrize(("value", "message"), [("x" * (MAX_ARGUMENT + 1), "too long"), ("a\0b", "NUL")])
def test_what_can_be_no_argument_fails_the_item_and_names_the_way_out(value: str, message: str) -> None:
    with pytest.raises(ItemError, match=rf"{message}.*standard input, or from \{{prompt_file\}}") as caught:
        CommandTemplate.split("run {prompt}").filled({"prompt": value})
    assert caught.value.cause is Cause.INVALID_INPUT


async def test_the_longest_argument_can_be_given(runner: CommandRunner, tmp_path: Path) -> None:
    words = CommandTemplate.split("printf %s {prompt}").filled({"prompt": "é" * (MAX_ARGUMENT // 2)})
    end = await run(runner, *words, folder=tmp_path)
    assert (end.exit_code, len(end.output)) == (0, MAX_ARGUMENT - 1)
    with pytest.raises(ItemError) as caught:
        await run(runner, "true", *["x" * MAX_ARGUMENT] * 100, folder=tmp_path)
    assert caught.value.cause is Cause.INVALID_INPUT


def test_a_program_is_looked_for_once_and_early(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    for text in ("no-such-program-anywhere x", "./tool", "./none"):
        with pytest.raises(UserError, match=f"^--worker_command: {text.split()[0]} is no program"):
            CommandTemplate.split(text).check(tmp_path, PATH, name="--worker_command")
    (tmp_path / "tool").chmod(0o755)
    for text in ("./tool", "sh -c true", str(tmp_path / "tool")):
        CommandTemplate.split(text).check(tmp_path, PATH)
    with pytest.raises(UserError, match="no folder"):
        CommandTemplate.split("sh").check(tmp_path / "none", PATH)


# --- A run


async def test_input_output_errors_folder_and_environment(runner: CommandRunner, tmp_path: Path) -> None:
    script = 'cat; pwd; printf "%s\n" "$ROW" "$' + MARK + '"; echo wrong >&2; exit 3'
    end = await run(runner, "sh", "-c", script, folder=tmp_path, ROW="a\0b\ud800")
    lines = end.output.decode().splitlines()
    assert lines[0] == f"given{tmp_path}"
    assert lines[1] == "a\ufffdb\ufffd"
    assert lines[2].endswith(f".{os.getpid()}")
    assert (end.exit_code, end.errors, end.omitted) == (3, b"wrong\n", 0)


async def test_a_program_beside_the_work_is_found_from_its_folder(runner: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "tool").chmod(0o755)
    assert (await run(runner, "./tool", folder=tmp_path)).output == b"here\n"
    (tmp_path / "tool").unlink()
    with pytest.raises(ItemError, match=r"\./tool can't be started: No such file") as caught:
        await run(runner, "./tool", folder=tmp_path)
    assert caught.value.cause is Cause.WORKER_ERROR


async def test_much_output_is_kept_at_both_ends(runner: CommandRunner, tmp_path: Path) -> None:
    script = "print('first'); print('x' * 3_000_000); print('last')"
    end = await runner.run([sys.executable, "-c", script], folder=tmp_path, additions={}, timeout=20, max_output=1000)
    assert len(end.output) == 1000
    assert end.output.startswith(b"first\n")
    assert end.output.endswith(b"last\n")
    assert end.omitted > 2_900_000


async def test_a_command_that_reads_nothing_and_ends_early_is_no_trouble(runner: CommandRunner, tmp_path: Path) -> None:
    end = await runner.run(["true"], folder=tmp_path, additions={}, input=b"x" * 5_000_000, timeout=20)
    assert end.exit_code == 0


@pytest.mark.parametrize(
    "script",
    [
        "sleep 97 & sleep 97",
        "trap '' TERM; sleep 97 & wait; sleep 97",
        "setsid sleep 97 & sleep 97",
        "setsid sh -c 'trap \"\" TERM; sleep 97' & exec sleep 97",
    ],
)
async def test_at_the_time_limit_everything_is_ended(runner: CommandRunner, tmp_path: Path, script: str) -> None:
    tag = secrets.token_hex(8)
    end = await run(runner, "sh", "-c", f"echo on; {script}", folder=tmp_path, timeout=0.4, TAG=tag)
    assert (end.exit_code, end.output) == (None, b"on\n")
    assert 0.3 < end.seconds < 30
    assert tagged(tag) == []


@pytest.mark.parametrize("script", ["sleep 97 &", "setsid sleep 97 & sleep 0.1", "(setsid sleep 97 >/dev/null 2>&1 &)"])
async def test_what_a_command_leaves_running_is_ended_with_it(
    runner: CommandRunner, tmp_path: Path, script: str
) -> None:
    tag = secrets.token_hex(8)
    end = await run(runner, "sh", "-c", script, folder=tmp_path, TAG=tag)
    assert end.exit_code == 0
    assert end.seconds < 30
    assert tagged(tag) == []


async def test_a_cancelled_run_leaves_nothing(runner: CommandRunner, tmp_path: Path) -> None:
    tag = secrets.token_hex(8)
    running = asyncio.create_task(run(runner, "sh", "-c", "setsid sleep 97 & sleep 97", folder=tmp_path, TAG=tag))
    while len(tagged(tag)) < 2:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert tagged(tag) == []


async def test_other_commands_of_the_run_are_left_alone(runner: CommandRunner, tmp_path: Path) -> None:
    tag = secrets.token_hex(8)
    other = await runner.start(["sleep", "97"], folder=tmp_path, additions={"TAG": tag})
    await run(runner, "true", folder=tmp_path)
    assert len(tagged(tag)) == 1
    assert other.exit_code is None
    await other.close()
    await other.close()
    assert other.exit_code == 128 + signal.SIGTERM
    assert tagged(tag) == []


async def test_patience_lets_a_command_end_by_itself(runner: CommandRunner, tmp_path: Path) -> None:
    command = await runner.start(["sh", "-c", "sleep 0.3; echo done"], folder=tmp_path, additions={})
    await command.close(patience=5.0)
    assert command.exit_code == 0


IGNORING = """
import os, signal
from contextlib import AsyncExitStack
from pathlib import Path
from manyhands.processes.commands import CommandRunner
from manyhands.processes.event_loop import run_on_loop

async def main():
    async with CommandRunner.opened("0b1c.1", dict(os.environ)) as runner:
        end = await runner.run(["sh", "-c", "exit 3"], folder=Path("/"), additions={}, timeout=20.0)
        print(end.exit_code)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
run_on_loop(main())
"""


async def test_exit_codes_are_known_where_whoever_started_us_ignores_the_ends_of_children() -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", IGNORING, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(ended.communicate(), 30)
    assert out == b"3\n"


OWNER = """
import asyncio, os, sys
from contextlib import AsyncExitStack
from pathlib import Path
from manyhands.processes.commands import CommandRunner

async def main():
    async with CommandRunner.opened("0b1c.1", dict(os.environ)) as runner:
        command = await runner.start(["sh", "-c", "setsid sleep 97 & sleep 97"], folder=Path("/"), additions={})
        await asyncio.sleep(0.3)
        print("ready", flush=True)
        await command.wait()

asyncio.run(main())
"""


async def test_a_killed_owner_takes_its_commands_along() -> None:
    tag = secrets.token_hex(8)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE, env={**os.environ, "TAG": tag}
    )
    assert owner.stdout is not None
    assert await asyncio.wait_for(owner.stdout.readline(), 30) == b"ready\n"
    assert len(tagged(tag)) == 4
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(10):
        while await asyncio.to_thread(tagged, tag):
            await asyncio.sleep(0.05)


def tagged(tag: str) -> list[int]:
    """The living processes with this tag in their environment."""
    found = []
    for pid, line in process_table().items():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TAG={tag}".encode() in environment and line.state not in "ZX":
            found.append(pid)
    return found


# --- Secrets


def test_secrets_are_known_by_their_names_and_taken_out_everywhere() -> None:
    environ = {
        "OPENAI_API_KEY": "sk-1234567890",
        "GITHUB_TOKEN": "sk-1234567890abc",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7",
        "DB_PASSWORD": "short",
        "HOME": "/home/someone",
        "TOKENIZERS_PARALLELISM": "falsefalse",
    }
    redactor = Redactor.of(environ, "the-attempts-own")
    text = "sk-1234567890abc sk-1234567890 wJalrXUtnFEMI/K7 short /home/someone falsefalse the-attempts-own"
    assert redactor.text(text) == f"{REDACTED} {REDACTED} {REDACTED} short /home/someone falsefalse {REDACTED}"
    value = {"a": ["x sk-1234567890", 3, None], "sk-1234567890": True}
    assert redactor.json(value) == {"a": [f"x {REDACTED}", 3, None], REDACTED: True}
    assert Redactor([]).text(text) == text


async def test_runners_do_not_keep_a_file_open_for_each_process_of_the_machine_each() -> None:
    """Each agent outside that is a program has a runner of its own."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(CommandRunner.opened("first.1", os.environ))
        before = len(os.listdir("/proc/self/fd"))
        for number in range(3):
            await stack.enter_async_context(CommandRunner.opened(f"other-{number}.1", os.environ))
        assert len(os.listdir("/proc/self/fd")) - before <= 3 * 3
    assert len(os.listdir("/proc/self/fd")) < before


async def test_what_a_command_leaves_is_ended_after_another_runner_was_closed(tmp_path: Path) -> None:
    async with CommandRunner.opened("second.1", os.environ) as second:
        async with CommandRunner.opened("first.1", os.environ) as first:
            await first.run(["true"], folder=tmp_path, additions={}, timeout=20)
        script = "setsid sleep 60 >/dev/null 2>&1 & echo $!"
        end = await second.run(["sh", "-c", script], folder=tmp_path, additions={}, timeout=20)
    assert started(int(end.output)) is None


async def test_commands_run_where_python_knows_no_descriptors_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some builds of Python for old systems are like that."""
    monkeypatch.delattr(os, "pidfd_open")
    async with CommandRunner.opened("first.1", PATH) as runner:
        end = await runner.run(["echo", "hello"], folder=tmp_path, additions={}, timeout=20)
    assert (end.exit_code, end.output) == (0, b"hello\n")


async def test_commands_leave_nothing_where_few_files_may_be_open(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, resource, sys\nfrom pathlib import Path\n"
        "from manyhands.processes.commands import CommandRunner\n"
        "async def main():\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "    async with CommandRunner.opened('first.1', os.environ) as runner:\n"
        "        script = 'setsid sleep 60 >/dev/null 2>&1 & echo $!'\n"
        "        end = await runner.run(['sh', '-c', script], folder=Path('/'), additions={}, timeout=20)\n"
        "        print(end.output.decode())\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await done.communicate()
    assert done.returncode == 0
    assert started(int(output)) is None


async def test_a_process_that_was_forked_beside_a_runner_has_its_own() -> None:
    code = (
        "import asyncio, os\nfrom pathlib import Path\n"
        "from manyhands.processes.commands import CommandRunner\n"
        "async def open_one(then):\n"
        "    async with CommandRunner.opened('first.1', os.environ) as runner:\n"
        "        await then(runner)\n"
        "async def run(runner):\n"
        "    await runner.run(['true'], folder=Path('/'), additions={}, timeout=20)\n"
        "async def fork(runner):\n"
        "    if pid := os.fork():\n"
        "        print(os.waitpid(pid, 0)[1])\n"
        "        return\n"
        "    asyncio._set_running_loop(None)\n"
        "    os.closerange(3, 1000)\n"
        "    asyncio.set_event_loop(loop := asyncio.new_event_loop())\n"
        "    loop.run_until_complete(open_one(run))\n"
        "    os._exit(0)\n"
        "asyncio.run(open_one(fork))\n"
    )
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    output, _ = await done.communicate()
    assert (done.returncode, output.strip()) == (0, b"0")
