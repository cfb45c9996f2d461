"""Hooks: commands that run before and after tests."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.io.dotenv_files import additions
from manyhands.io.search_paths import Surroundings
from manyhands.processes.commands import CommandEnd, CommandRunner, failure_of
from manyhands.processes.templates import PREFIX
from manyhands.workloads.evals.evalfile.tests import Hook, Test

BEFORE_ALL, AFTER_ALL, BEFORE_EACH, AFTER_EACH = "before_all", "after_all", "before_each", "after_each"
BEFORE_SECONDS, AFTER_SECONDS = 60.0, 30.0
"""What a hook may take where it does not say."""
MAX_OUTPUT = 8_000
"""Characters that are kept of the end of what a hook printed."""
PATH_VARIABLES = (f"{PREFIX}WORKSPACE", "AGENTV_WORKSPACE_PATH")
"""In the environment of hooks: the workspace."""
Tell = Callable[[str], None]
"""Shows the person a line."""


@dataclass(frozen=True, slots=True)
class HookEnd:
    """How a hook ended. ``output``: what it printed, standard output before standard error; ``problem``: why it did not end as it should,
    in one line with the hook's name; None if it did."""

    output: str
    problem: str | None = None


class Hooks:
    """Runs hooks. A hook gets a JSON object on standard input: ``workspace_path``, ``eval_run_id``, and of the test, where it runs for one,
    ``test_id``, ``case_input`` (what is asked, as text) and ``case_metadata``. It may leave it unread. What it leaves running is ended with
    it."""

    def __init__(
        self, runner: CommandRunner, environ: Mapping[str, str], run_id: str, tell: Tell, around: Surroundings
    ) -> None:
        """``environ``: the real environment, whose secrets are kept out of outputs; ``tell``: shows the commands that are run;
        ``around``: where ``.env`` files are looked for, from the folder upwards in which a hook starts."""
        self._runner = runner
        self._environ = environ
        self._around = around
        self._run_id = run_id
        self._tell = tell

    async def run(self, name: str, hook: Hook, workspace: Path, test: Test | None = None) -> HookEnd:
        """Run a hook to its end or its time limit. Raises ItemError(SANDBOX_LOST) if this machine has no room for a further process."""
        if not hook.folder.is_dir():
            return HookEnd("", f"{name}: there is no folder {hook.folder} to start it in")
        try:
            extra = await asyncio.to_thread(additions, hook.folder, self._around, self._environ)
        except UserError as error:
            return HookEnd("", f"{name}: {error}")
        redactor = Redactor.of({**self._environ, **extra})
        limit = hook.seconds or (AFTER_SECONDS if name in (AFTER_ALL, AFTER_EACH) else BEFORE_SECONDS)
        self._tell(f"{name}: {redactor.text(shlex.join(hook.argv))}")
        try:
            end = await self._runner.run(
                hook.argv,
                folder=hook.folder,
                additions={**extra, **dict.fromkeys(PATH_VARIABLES, str(workspace))},
                input=dumps(self._told(workspace, test)) + b"\n",
                timeout=limit,
            )
        except ItemError as error:
            if error.cause is Cause.SANDBOX_LOST:
                raise
            return HookEnd("", f"{name}: {error.message}")
        return _read(name, end, limit, redactor)

    def _told(self, workspace: Path, test: Test | None) -> dict[str, Any]:
        return {
            "workspace_path": str(workspace),
            "test_id": None if test is None else test.id,
            "eval_run_id": self._run_id,
            "case_input": None if test is None else test.question,
            "case_metadata": None if test is None else dict(test.metadata),
        }


def _read(name: str, end: CommandEnd, limit: float, redactor: Redactor) -> HookEnd:
    errors = redactor.text(decode(end.errors))
    printed = redactor.text(decode(end.output))
    both = "\n".join(text.strip("\n") for text in (printed, errors) if text.strip())
    failure = failure_of(end.exit_code, limit if end.exit_code is None else None, errors.strip() or printed)
    return HookEnd(both[-MAX_OUTPUT:], None if failure is None else f"{name}: {failure}")
