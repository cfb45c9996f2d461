"""Whether a target can be used at all: asked once, before anything is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
from yarl import URL

from manyhands.agents.command import CommandRunner
from manyhands.core.errors import ItemError
from manyhands.core.redaction import Redactor
from manyhands.evals.invocation import failure_of
from manyhands.evals.placeholders import CommandTemplate, Values
from manyhands.evals.target_settings import Healthcheck
from manyhands.tools.text import decode


class Health:
    """A target's health. However often and by however many it is asked for, the check is made once."""

    def __init__(
        self,
        check: Healthcheck,
        runner: CommandRunner | None = None,
        *,
        eval_file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        additions: Mapping[str, str] | None = None,
    ) -> None:
        """``runner``: starts the command, if the check is one; ``eval_file``: what its placeholders say of it; ``environ``: whose secrets
        are kept out of what is said; ``additions``: to the environment of the command."""
        self._redactor = Redactor.of(environ or {})
        self._check = check
        self._runner = runner
        self._eval_file = eval_file
        self._additions = additions or {}
        self._task: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """Why the target can't be used, in one line; None if it can."""
        if self._task is None:
            self._task = asyncio.create_task(self._found())
        problem = await asyncio.shield(self._task)
        return None if problem is None else self._redactor.text(problem)

    async def _found(self) -> str | None:
        check = self._check
        if check.url is not None:
            return await _problem_at(check.url, check.seconds)
        if self._runner is None or check.template is None:
            raise ValueError("a command can't be checked without a runner")
        return await _problem_of(check.template, check, self._runner, self._eval_file, self._additions)


async def _problem_at(url: str, seconds: float) -> str | None:
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        shown = _without_secrets(URL(url))
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            status = response.status
    except TimeoutError:
        return f"the healthcheck at {shown} timed out after {seconds:g} s"
    except (aiohttp.InvalidURL, ValueError):
        return "the healthcheck's url can't be used: it needs to be like http://HOST/PATH"
    except (aiohttp.ClientError, OSError) as error:
        return f"the healthcheck at {shown} failed: {str(error) or type(error).__name__}"
    return None if 200 <= status < 300 else f"the healthcheck at {shown} failed: it answers with status {status}"


async def _problem_of(
    template: CommandTemplate,
    check: Healthcheck,
    runner: CommandRunner,
    eval_file: Path | None,
    environment: Mapping[str, str],
) -> str | None:
    if not check.folder.is_dir():
        return f"the healthcheck failed: there is no folder {check.folder} to start its command in"
    with TemporaryDirectory(prefix="manyhands-healthcheck-", ignore_cleanup_errors=True) as name:
        values = _values(Path(name), eval_file, check.folder)
        try:
            words = template.filled(values)
            additions = {**environment, **values.environment()}
            end = await runner.run(words, folder=check.folder, additions=additions, timeout=check.seconds)
        except ItemError as error:
            return f"the healthcheck failed: {error.message}"
    limit = check.seconds if end.exit_code is None else None
    failure = failure_of(end.exit_code, limit, decode(end.errors).strip() or decode(end.output))
    return None if failure is None else f"the healthcheck failed: {failure}"


def _values(folder: Path, eval_file: Path | None, workspace: Path) -> Values:
    """Its placeholders stand for empty files, which are gone afterwards."""
    for name in ("prompt.txt", "test_ids.txt", "tests.jsonl"):
        (folder / name).touch()
    return Values(
        eval_id="healthcheck",
        prompt_file=folder / "prompt.txt",
        output_file=folder / "output.jsonl",
        eval_file=eval_file,
        test_ids_file=folder / "test_ids.txt",
        batch_input_file=folder / "tests.jsonl",
        workspace=workspace,
    )


def _without_secrets(url: URL) -> str:
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else "the url"
