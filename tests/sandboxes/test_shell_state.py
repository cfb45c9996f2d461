"""What is kept of a sandbox's shell, and when its file is written."""

from __future__ import annotations

import os
from pathlib import Path

from manyhands.processes.event_loop import run_on_loop
from manyhands.sandboxes.commands.shell_state import ShellState
from manyhands.sandboxes.local import LocalBackend
from manyhands.sandboxes.protocol import SandboxRequest

COUNTED = 'declare -- A="1"\ndeclare -a BASH_LINENO=([0]="{}")\ndeclare -- B="{}"\n'


def test_states_that_differ_in_the_lines_read_are_the_same() -> None:
    state = ShellState("/", COUNTED.format(12, "x"))
    assert state.same_but_for_line(ShellState("/", COUNTED.format(13, "x"), jobs=True))
    assert not state.same_but_for_line(ShellState("/", COUNTED.format(12, "y")))
    assert not state.same_but_for_line(ShellState("/tmp", COUNTED.format(12, "x")))


def test_a_variable_that_looks_like_the_count_is_compared_whole() -> None:
    def state(count: int) -> ShellState:
        return ShellState("/", COUNTED.format(12, f'\ndeclare -a BASH_LINENO=([0]="{count}")\n'))

    assert state(1).same_but_for_line(state(1))
    assert not state(1).same_but_for_line(state(2))


def test_the_file_is_replaced_when_a_command_changed_the_state(tmp_path: Path) -> None:
    commands = ("true", "ls /", "X=1", "true", "cd /", "f() { :; }", "f")
    files = run_on_loop(_files_after(tmp_path, commands))
    changed = [
        command
        for command, before, after in zip(commands[1:], files, files[1:], strict=False)
        if before.st_mtime_ns != after.st_mtime_ns
    ]
    assert changed == ["X=1", "cd /", "f() { :; }"]


def test_what_is_kept_is_the_last_state(tmp_path: Path) -> None:
    async def said() -> bytes:
        sandbox = await LocalBackend().create(SandboxRequest(tmp_path, "test"))
        await sandbox.shell("true", timeout=20)
        await sandbox.shell("X=kept; cd /usr", timeout=20)
        await sandbox.shell("true", timeout=20)
        await sandbox.close()
        again = await LocalBackend().create(SandboxRequest(tmp_path, "test"))
        try:
            return (await again.shell('echo "$X $PWD"', timeout=20)).output
        finally:
            await again.close()

    assert run_on_loop(said()) == b"kept /usr\n"


async def _files_after(folder: Path, commands: tuple[str, ...]) -> list[os.stat_result]:
    """What the file is after each command."""
    sandbox = await LocalBackend().create(SandboxRequest(folder, "test"))
    found = []
    try:
        for command in commands:
            await sandbox.shell(command, timeout=20)
            found.append(os.stat(folder / "state" / "shell"))
    finally:
        await sandbox.close()
    return found
