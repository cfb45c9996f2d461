"""A target whose command answers one test at a time: invoked for each, it writes a record or plain text, or prints its answer.

What a test's id looks like is of no consequence: it names no file.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, loads, too_deep
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode
from manyhands.engine.contract import Context, Effect
from manyhands.io.wide_text import wide_encoding
from manyhands.processes.commands import MAX_OUTPUT, CommandEnd, CommandRunner, failure_of
from manyhands.sandboxes.files.trees import NotPlain, Tree
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.targets.answers import (
    Answer,
    RecordFault,
    answer_from_json,
    has_answer,
    read_record,
    read_text,
    record_id,
    shown,
)
from manyhands.workloads.evals.targets.command_lines import CommandSettings, Values
from manyhands.workloads.evals.targets.protocol import cost_usage, with_cost
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, keep_folder

PROMPT = "prompt.txt"


STEP = "target"
"""The kind of a step in which a target answered."""
FILES = "target"
"""The folder of its files, in the attempt's."""


class CommandTarget:
    """A ``LiveTarget``. Each invocation is a step. ``identity``: what makes it another target if it changes."""

    simulated = False

    def __init__(self, target: CommandInvoker, identity: Json, *, keep_files: bool = False) -> None:
        """``keep_files``: whether the attempt's folder stays, as the command's files in it do."""
        self._keep_files = keep_files
        self._target = target
        self._identity = identity

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        prompt = test.prompt()

        async def effect() -> Effect:
            question = Question(test.id, prompt, test.guidelines, test.all_files, trial)
            folder = Path(context.workspace)
            asked = await self._target.ask(question, folder / FILES, None if workspace is None else workspace.path)
            if self._keep_files:
                await asyncio.to_thread(keep_folder, folder)
            answer = asked.answer
            printed = {"exit_code": asked.exit_code, "stdout": asked.stdout, "stderr": asked.stderr}
            output = {"answer": answer.to_json(), "seconds": asked.seconds, **printed}
            return Effect(output, cost_usage(answer.cost_usd))

        request = {"target": self._identity, "test": test.id, "prompt": prompt, "trial": trial}
        asking = with_cost(
            context, f"target {self._identity}", effect if workspace is None else workspace.around(effect)
        )
        output = await context.step(STEP, request, asking)
        if workspace is not None:
            await workspace.recall(output)
        return timed(answer_from_json(output["answer"]), 1000 * output["seconds"])


def timed(answer: Answer, duration_ms: float) -> Answer:
    """The answer, with a duration where it names none itself."""
    if answer.duration_ms is not None:
        return answer
    if answer.record is None:
        return read_text(answer.text, duration_ms=duration_ms, error=answer.error)
    return answer.timed(duration_ms)


OUTPUT = "output.json"
MAX_ANSWER = 64 << 20
"""Bytes of an answer."""
MAX_TAIL = 8_000
"""Characters that are kept of the end of what a command printed."""
NO_LIMIT = 7 * 24 * 3600.0
"""Seconds that a command without a time limit may take: a week, so that no wait is endless."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a target is asked. ``attempt``: how often it was asked before."""

    test_id: str
    prompt: str
    guidelines: str = ""
    files: Collection[Path] = ()
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a question. ``exit_code``: as shells count; ``stdout``, ``stderr``: the end of what the command printed;
    ``notices``: of the answer, and of the command."""

    answer: Answer
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    notices: tuple[str, ...] = ()


class CommandInvoker:
    """Asks questions by invocations of a command."""

    def __init__(
        self,
        settings: CommandSettings,
        runner: CommandRunner,
        *,
        environ: Mapping[str, str] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """``environ``: whose secrets are kept out of what is said about the command (its answers are as they are); ``tell``: is told of
        every command that is run."""
        self._tell = tell
        self._settings = settings
        self._runner = runner
        self._redactor = Redactor.of(environ or {})

    async def ask(self, question: Question, folder: Path, workspace: Path | None = None) -> Asked:
        """Invoke the command. ``folder``: for its files, of this attempt alone; what was made there is removed, unless the settings say
        otherwise; ``workspace``: where it works, if that is not where its settings say.

        Raises ItemError: TIMEOUT, WORKER_ERROR if it ends with an exit code other than 0 or can't be started, INVALID_OUTPUT if there
        is no answer, INVALID_INPUT for a prompt that can't be given to it.
        """
        settings, folder = self._settings.within(workspace), folder.absolute()
        values = await asyncio.to_thread(self._prepare, question, folder, workspace or settings.folder)
        if self._tell is not None:
            self._tell(self._redactor.text(values.shown(settings.template)))
        try:
            if not settings.folder.is_dir():
                raise ItemError(Cause.WORKER_ERROR, f"there is no folder {settings.folder} to start the command in")
            end = await self._runner.run(
                values.filled(settings.template),
                folder=settings.folder,
                additions={**settings.additions, **values.environment()},
                timeout=settings.seconds or NO_LIMIT,
            )
            printed = self._printed(end)
            exit_code = _checked(end, settings, printed)
            answer = await asyncio.to_thread(self._answer, folder / OUTPUT, end)
            answer = answer.timed(round(end.seconds * 1000))
            notices = (*answer.notices, *_other_test(answer, question.test_id))
            return Asked(answer, exit_code, **printed, seconds=round(end.seconds, 3), notices=notices)
        finally:
            if not settings.keep_files:
                await asyncio.to_thread(_remove, folder)

    def _prepare(self, question: Question, folder: Path, workspace: Path) -> Values:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove(folder)
            (folder / PROMPT).write_text(question.prompt, encoding="utf-8", errors="replace")
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't write the command's files: {error}") from error
        return Values(
            prompt=question.prompt,
            guidelines=question.guidelines,
            eval_id=question.test_id,
            attempt=question.attempt,
            files=tuple(dict.fromkeys(question.files)),
            files_format=self._settings.files_format,
            prompt_file=folder / PROMPT,
            output_file=folder / OUTPUT,
            eval_file=self._settings.eval_file,
            workspace=workspace,
        )

    def _printed(self, end: CommandEnd) -> dict[str, str]:
        """The ends of what it printed."""
        found = {"stdout": end.output, "stderr": end.errors}
        return {name: self._redactor.text(decode(data))[-MAX_TAIL:] for name, data in found.items()}

    def _answer(self, file: Path, end: CommandEnd) -> Answer:
        """What is in the output file; without one, what was printed by a command that was not told of it."""
        data = _content(file)
        if data is None:
            if self._settings.template.uses("OUTPUT_FILE"):
                raise ItemError(Cause.INVALID_OUTPUT, "the output file was not written")
            if end.omitted:
                raise ItemError(
                    Cause.INVALID_OUTPUT, f"it printed more than {MAX_OUTPUT >> 20} MiB; use {{OUTPUT_FILE}}"
                )
            data = end.output.rstrip(b"\r\n")
        return read_answer(data)


def read_answer(data: bytes) -> Answer:
    """An answer as a command wrote it: a record, which needs no id, or else plain text, as it is."""
    text = data.decode(wide_encoding(data[:2]) or "utf-8-sig", "replace")
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")) or too_deep(data):
        return read_text(text)
    try:
        record = loads(stripped)
    except (ValueError, RecursionError):
        return read_text(text)
    if not has_answer(record):
        return read_text(text)
    return read_record(record)


def _other_test(answer: Answer, test_id: str) -> list[str]:
    try:
        found = test_id if answer.record is None else record_id(answer.record)
    except RecordFault:
        return []
    return [] if found == test_id else [f"the record names the test {shown(found)}"]


def _content(file: Path) -> bytes | None:
    """What a command wrote, None if it wrote nothing. The file must be its own: a link is not followed. Raises ItemError."""
    try:
        with Tree(file.parent) as tree:
            status = tree.status(file.name)
            mode, size = status.st_mode, status.st_size
            if stat.S_ISDIR(mode):
                raise ItemError(Cause.INVALID_OUTPUT, "the output file is a folder")
            if stat.S_ISLNK(mode):
                raise ItemError(Cause.INVALID_OUTPUT, "the output file is a symbolic link")
            if stat.S_ISREG(mode) and size > MAX_ANSWER:
                raise ItemError(
                    Cause.INVALID_OUTPUT, f"the output file is larger than {MAX_ANSWER >> 20} MiB ({size} bytes)"
                )
            return tree.read(file.name, size) if stat.S_ISREG(mode) else None
    except FileNotFoundError:
        return None
    except NotPlain as error:
        raise ItemError(Cause.INVALID_OUTPUT, f"the output file can't be read ({error})") from error
    except OSError as error:
        raise ItemError(Cause.INVALID_OUTPUT, f"the output file can't be read ({error.strerror})") from error


def _checked(end: CommandEnd, settings: CommandSettings, printed: dict[str, str]) -> int:
    """The exit code of a command that ended well. Raises ItemError for any other."""
    said = printed["stderr"].strip() or printed["stdout"]
    if end.exit_code is None:
        raise ItemError(Cause.TIMEOUT, failure_of(None, settings.seconds or NO_LIMIT, said) or "", record={**printed})
    failure = failure_of(end.exit_code, None, said)
    if failure is not None:
        raise ItemError(Cause.WORKER_ERROR, failure, record={**printed})
    return end.exit_code


def _remove(folder: Path) -> None:
    for name in (PROMPT, OUTPUT):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError:
            continue
