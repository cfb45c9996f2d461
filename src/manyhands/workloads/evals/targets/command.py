"""Commands of targets: their placeholders, which have AgentV's names and some more, and the target whose command answers one test at a
time. Invoked for each, it writes a record or plain text, or prints its answer.

What a test's id looks like is of no consequence: it names no file.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, loads, too_deep, without_surrogates
from manyhands.core.redaction import Redactor
from manyhands.core.text import decode, wide_encoding
from manyhands.engine.contract import Context, Effect
from manyhands.io.files import bytes_written_aside
from manyhands.io.locations import Location
from manyhands.processes.commands import MAX_OUTPUT, CommandEnd, CommandRunner, failure_of
from manyhands.processes.templates import MAX_ARGUMENT, PREFIX, CommandTemplate, Words, quoted, spots
from manyhands.sandboxes.files.trees import NotPlain, Tree
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import (
    MAX_ID_LENGTH,
    Answer,
    answer_from_json,
    has_answer,
    read_record,
    read_text,
)
from manyhands.workloads.evals.targets.live import answer_step, cost_usage
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace, keep_folder

PLACEHOLDERS: Mapping[str, str] = {
    "PROMPT": "the prompt",
    "PROMPT_FILE": "a file with the prompt",
    "GUIDELINES": "the text of the guideline files",
    "EVAL_ID": "the test's id; `batch` in a batch command",
    "ATTEMPT": "number of earlier samples of the test: 0 for the first",
    "FILES": "all files that the input names, guidelines first, each once and as `files_format` says",
    "OUTPUT_FILE": "where the answer is to be written",
    "EVAL_FILE": "the eval file",
    "EVAL_DIR": "the folder of the eval file",
    "TEST_IDS_FILE": "a file with the ids of the tests to answer, one a line",
    "BATCH_INPUT_FILE": "a file with the tests to answer, a JSON object a line",
    "WORKSPACE": "the folder to work in: the workspace, or where there is none, the one in which the command starts",
}
"""Every placeholder, and what it stands for. All paths are absolute."""
_INSTEAD = "have it read from {PROMPT_FILE} or {BATCH_INPUT_FILE} what is long"
_FILE_TOKENS = re.compile(r"\{(path|basename)\}")


@dataclass(frozen=True, slots=True)
class Values:
    """What placeholders stand for in one invocation. A path that is None is empty text."""

    prompt: str = ""
    guidelines: str = ""
    eval_id: str = ""
    attempt: int = 0
    files: Sequence[Path] = ()
    files_format: str = "{path}"
    """How each file stands in ``{FILES}``, with ``{path}`` and ``{basename}`` in it."""
    prompt_file: Path | None = None
    output_file: Path | None = None
    eval_file: Path | None = None
    test_ids_file: Path | None = None
    batch_input_file: Path | None = None
    workspace: Path | None = None

    def filled(self, template: CommandTemplate) -> list[str]:
        """The words to start. Raises ItemError(INVALID_INPUT) for a value that can't be part of a command."""
        return template.filled(self._values(), instead=_INSTEAD)

    def shown(self, template: CommandTemplate) -> str:
        """The filled command as a person would type it."""
        return template.shown(self._values())

    @property
    def eval_dir(self) -> Path | None:
        return None if self.eval_file is None else self.eval_file.absolute().parent

    def texts(self) -> dict[str, str]:
        """Each placeholder's value; those of ``FILES`` stand on a line each."""
        return {name: _text(getattr(self, name.lower())) for name in PLACEHOLDERS}

    def environment(self) -> dict[str, str]:
        """The same for a command's environment. A value too long for one is left out: it is in its file."""
        named = {PREFIX + name: without_surrogates(text) for name, text in self.texts().items()}
        return {name: text for name, text in named.items() if len(os.fsencode(f"{name}={text}")) <= MAX_ARGUMENT}

    def _values(self) -> dict[str, str | Words]:
        words = [
            _FILE_TOKENS.sub(lambda found, file=file: _file_part(found[1], file), word)  # type: ignore[misc]
            for file in self.files
            for word in shlex.split(self.files_format)
        ]
        return {**self.texts(), "FILES": Words(" ".join(map(self._file_in_line, self.files)), words)}

    def _file_in_line(self, file: Path) -> str:
        pieces, end = [], 0
        for found, spot in spots(self.files_format, _FILE_TOKENS):
            pieces += [self.files_format[end : found.start()], spot.around(quoted(_file_part(found[1], file)))]
            end = found.end()
        return "".join([*pieces, self.files_format[end:]])


def parse_command(value: Json, location: Location) -> CommandTemplate:
    """A target's command: a text for the shell, or a list of words. Raises UserError as ``CommandTemplate.parse``."""
    return CommandTemplate.parse(value, location, PLACEHOLDERS)


def _file_part(token: str, file: Path) -> str:
    return _text(file) if token == "path" else file.name


def _text(value: str | int | Path | Sequence[Path] | None) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, Path):
        return str(value.absolute())
    return "\n".join(map(_text, value or ()))


def check_files_format(value: str, location: Location) -> str:
    """``files_format`` as it is. Raises UserError if it can't be split into words, or if no quotation would hold a file together."""
    try:
        shlex.split(value)
    except ValueError as error:
        raise UserError(location.says(f"can't be split into words ({str(error).lower()})")) from None
    for found, spot in spots(value, _FILE_TOKENS):
        if not spot.safe:
            raise location.error(f"{found[0]} can't be put into {spot.value}")
    return value


def read_answer(data: bytes) -> Answer:
    """An answer as a command wrote it: a record, which needs no id, or else plain text, as it is."""
    text = text_of(data)
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


def text_of(data: bytes) -> str:
    """What a command wrote, as text."""
    return data.decode(wide_encoding(data[:2]) or "utf-8-sig", "replace")


Read = Callable[[bytes], Answer]
"""Reads what a command wrote as its answer."""


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """A target's command."""

    template: CommandTemplate
    folder: Path
    """Where it starts."""
    eval_file: Path | None = None
    """The file whose tests it answers."""
    seconds: float | None = None
    """Its time limit; None: no limit."""
    files_format: str = "{path}"
    """How each file stands in ``{FILES}``."""
    keep_files: bool = False
    """Whether its prompt and output files stay when it has ended."""
    own_folder: bool = False
    """Whether it starts in its folder also where there is a workspace."""
    additions: Mapping[str, str] = field(default_factory=dict)
    """To its environment, besides what its placeholders stand for."""
    before: str = ""
    """A text before each prompt, with an empty line between."""
    read: Read = read_answer
    """How its answers are read."""
    log_folder: Path | None = None
    """Where what it printed, or wrote as its answer, is kept; None: nowhere."""

    def within(self, workspace: Path | None) -> CommandSettings:
        """The command as it starts in a workspace, if there is one."""
        return self if workspace is None or self.own_folder else replace(self, folder=workspace)


# --- Its answers to single tests

FILES = "target"
"""The folder of a command's files, in the attempt's."""
PROMPT, OUTPUT = "prompt.txt", "output.json"
MAX_ANSWER = 64 << 20
"""Bytes of an answer."""
MAX_TAIL = 8_000
"""Characters that are kept of the end of what a command printed."""
NO_LIMIT = 7 * 24 * 3600.0
"""Seconds that a command without a time limit may take: a week, so that no wait is endless."""


class CommandTarget:
    """A ``LiveTarget``. Each invocation is a step."""

    simulated = False

    def __init__(self, invoker: CommandInvoker, identity: Json, *, keep_files: bool = False) -> None:
        """``identity``: what makes it another target if it changes; ``keep_files``: whether the attempt's folder stays, as the command's
        files in it do."""
        self._keep_files = keep_files
        self._invoker = invoker
        self._identity = identity

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        async def effect() -> Effect:
            question = Question(test.id, test.prompt(), test.guidelines, test.all_files, sample)
            folder = Path(context.workspace)
            invoked = await self._invoker.ask(question, folder / FILES, None if workspace is None else workspace.path)
            if self._keep_files:
                await asyncio.to_thread(keep_folder, folder)
            answer = invoked.answer
            printed = {"exit_code": invoked.exit_code, "stdout": invoked.stdout, "stderr": invoked.stderr}
            output = {"answer": answer.to_json(), "seconds": invoked.seconds, **printed}
            return Effect(output, cost_usage(answer.cost_usd))

        output = await answer_step(context, self._identity, test, sample, workspace, effect)
        return answer_from_json(output["answer"]).timed(1000 * output["seconds"])


@dataclass(frozen=True, slots=True)
class Question:
    """The input of a command."""

    test_id: str
    prompt: str
    guidelines: str = ""
    files: Collection[Path] = ()
    attempt: int = 0
    """Number of earlier samples of the test."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What came of a question."""

    answer: Answer
    exit_code: int
    """As shells count."""
    stdout: str
    """The end of what the command printed."""
    stderr: str
    """The like, to its standard error."""
    seconds: float
    """How long it took."""


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
        """``environ``: whose secrets are kept out of what is said about the command (its answers are as they are); ``tell``: gets a line
        for every command that is run."""
        self._tell = tell
        self._settings = settings
        self._runner = runner
        self._redactor = Redactor.of(environ or {})

    async def ask(self, question: Question, folder: Path, workspace: Path | None = None) -> CommandAnswer:
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
            if settings.log_folder is not None:
                await asyncio.to_thread(self._log, question, folder / OUTPUT, end)
            exit_code = _checked(end, settings, printed, lambda: self._said(folder / OUTPUT))
            answer = await asyncio.to_thread(self._answer, folder / OUTPUT, end)
            answer = answer.timed(round(end.seconds * 1000))
            return CommandAnswer(answer, exit_code, **printed, seconds=round(end.seconds, 3))
        finally:
            if not settings.keep_files:
                await asyncio.to_thread(_remove, folder)

    def _prepare(self, question: Question, folder: Path, workspace: Path) -> Values:
        before = self._settings.before
        prompt = f"{before}\n\n{question.prompt}" if before else question.prompt
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove(folder)
            (folder / PROMPT).write_text(prompt, encoding="utf-8", errors="replace")
        except OSError as error:
            raise ItemError(Cause.SANDBOX_LOST, f"can't write the command's files: {error}") from error
        return Values(
            prompt=prompt,
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

    def _said(self, file: Path) -> str:
        """What a command that failed wrote into its output file about why."""
        data = None if self._settings.read is read_answer else _content(file)
        return (self._settings.read(data).error or "") if data is not None else ""

    def _log(self, question: Question, file: Path, end: CommandEnd) -> None:
        """Keep what it wrote and printed, without secrets; what can't be kept is no error of the answer."""
        folder = self._settings.log_folder or file.parent
        name = "".join(mark if mark.isalnum() or mark in "-_." else "_" for mark in question.test_id)[:MAX_ID_LENGTH]
        parts = (_content(file) or b"", end.output, end.errors)
        with suppress(OSError, ItemError):
            text = self._redactor.text("\n".join(text_of(part).rstrip() for part in parts if part))
            with bytes_written_aside(folder / f"{name}-{question.attempt + 1}-{secrets.token_hex(4)}.log") as log:
                log.write(f"{text}\n".encode("utf-8", "replace"))

    def _answer(self, file: Path, end: CommandEnd) -> Answer:
        """What is in the output file; without one, what was printed by a command that did not get its path."""
        data = _content(file)
        if data is None:
            if self._settings.template.uses("OUTPUT_FILE"):
                raise ItemError(Cause.INVALID_OUTPUT, "the output file was not written")
            if end.omitted:
                raise ItemError(
                    Cause.INVALID_OUTPUT, f"it printed more than {MAX_OUTPUT >> 20} MiB; use {{OUTPUT_FILE}}"
                )
            data = end.output.rstrip(b"\r\n")
        return self._settings.read(data)


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


def _checked(end: CommandEnd, settings: CommandSettings, printed: dict[str, str], why: Callable[[], str]) -> int:
    """The exit code of a command that ended well. Raises ItemError for any other. ``why``: what it says itself."""
    said = printed["stdout"] if end.exit_code == 0 else why() or printed["stderr"].strip() or printed["stdout"]
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
