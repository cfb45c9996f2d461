"""Commands that this program itself runs in a sandbox, as steps of an attempt: to set it up, to collect what came of it, to verify it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError, ToolError
from manyhands.core.failures import Cause
from manyhands.core.redaction import KNOWN
from manyhands.core.text import printable
from manyhands.engine.contract import Context, Effect

COMMAND = "command"
"""The kind of the step."""
MAX_OUTPUT = 1_000_000
"""Bytes of output that are kept of one command."""
_LAST_WORDS = 500
_MAX_LINE = 100_000
# Commands begin in the directory that every command begins in, in bash where there is one.
_RUN = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
# The same, with what it says on standard error only if it failed, so that it is no part of what it prints.
_RUN_APART = """\
said=$(mktemp 2>/dev/null) || said=/dev/null
if command -v bash >/dev/null 2>&1; then bash -c "$1" 2>"$said"; else sh -c "$1" 2>"$said"; fi
code=$?
[ "$code" = 0 ] || tail -c 4000 "$said"
[ "$said" = /dev/null ] || rm -f "$said"
exit "$code"
"""


@dataclass(slots=True)  # not frozen: see Outcome
class CommandRecord:
    """How a command ended."""

    command: str
    exit_code: int | None
    """None if it was stopped at its time limit."""
    output: str
    """What it printed, in the middle cut where that is much."""
    omitted: int = 0
    """Bytes that were cut out."""
    seconds: float = 0.0
    """How long it ran; its time limit if it was stopped at that."""

    @property
    def problem(self) -> str | None:
        """Why its output is not to be relied on, in a few words; None if all is well."""
        if self.exit_code is None:
            return f"stopped at its time limit of {self.seconds:g} s"
        if self.exit_code:
            return f"exit code {self.exit_code}"
        return f"{self.omitted:,} bytes of its output were cut out" if self.omitted else None

    def kept(self) -> dict[str, Any]:
        """What a result keeps of it."""
        return {"output": self.output, "problem": self.problem}

    @property
    def last_words(self) -> str:
        """The end of its output, on one line."""
        text = " ".join(printable(self.output).split())
        return text if len(text) <= _LAST_WORDS else f"… {text[-_LAST_WORDS:]}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CommandRecord:
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "exit_code": self.exit_code,
            "output": self.output,
            "omitted": self.omitted,
            "seconds": self.seconds,
        }


async def recorded_command(
    scope: Context,
    world: World,
    command: str,
    *,
    timeout: float,
    max_output: int = MAX_OUTPUT,
    output_alone: bool = False,
    user: str | None = None,
    cwd: str | None = None,
    environment: Mapping[str, str] | None = None,
    check: Callable[[CommandRecord], None] | None = None,
) -> CommandRecord:
    """Run a command line in the item's sandbox once and for all: as the next step of ``scope``, which changes the world. If it is cut off,
    the world is brought back to what it was before, and the command runs again.

    ``timeout``: seconds; ``output_alone``: leave out what it says on standard error unless it fails; ``user``, ``cwd``,
    ``environment``: as of ``Sandbox.run``, ``environment`` is not recorded; ``check``: raises for a result that is not to be recorded,
    so that the step is taken again when the item is executed again. Raises what ``World.sandbox`` and ``Sandbox.run`` raise, and
    ItemError(INVALID_INPUT) in place of a ToolError.
    """
    if "\0" in command or len(command) > _MAX_LINE:
        raise ItemError(Cause.INVALID_INPUT, f"a command can't be longer than {_MAX_LINE:,} characters, or hold NUL")
    address, ran = scope.address, False

    async def effect() -> Effect:
        nonlocal ran
        ran = True
        await world.begin_step(address)
        sandbox = await world.sandbox()
        script = _RUN_APART if output_alone else _RUN
        try:
            result = await sandbox.run(
                ["sh", "-c", script, "sh", command],
                timeout=timeout,
                cwd=cwd,
                max_output=max_output,
                user=user,
                environment=environment,
            )
        except ToolError as error:
            raise ItemError(Cause.INVALID_INPUT, f"{_shown(command)}: {error}") from error
        output = KNOWN.text(result.output.decode(errors="replace"))
        code, seconds = result.exit_code, math.ceil(result.seconds * 1000) / 1000
        if result.timed_out:
            code, seconds = None, timeout
        record = CommandRecord(command, code, output, result.omitted, seconds)
        if check is not None:
            check(record)
        return Effect(record.to_json())

    request = {"command": command, **({"user": user} if user else {}), **({"cwd": cwd} if cwd else {})}
    output = await scope.step(COMMAND, request, effect)
    if not ran:
        world.replayed(address)
    return CommandRecord.from_json(output)


def must_succeed(what: str) -> Callable[[CommandRecord], None]:
    """A ``check`` for a command without which the item can't go on. ``what``: what to call it. Raises ItemError(INVALID_INPUT)."""

    def check(record: CommandRecord) -> None:
        if record.exit_code != 0:
            said = f": {record.last_words}" if record.last_words else ""
            raise ItemError(Cause.INVALID_INPUT, KNOWN.text(f"{what} failed ({record.problem}){said}"))

    return check


def _shown(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 60 else f"{line[:60]}…"
