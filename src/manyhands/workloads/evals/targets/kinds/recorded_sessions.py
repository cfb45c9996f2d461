"""Answers that agents gave at another time, in formats of AgentV: replay fixtures, transcripts, and the sessions of Copilot on disk.

A fixture file has a record a line: ``schema_version`` (``agentv.replay_fixture.v1``), ``suite``, ``test_id``, ``source_target``, ``output``
(messages); perhaps ``eval_path``, ``attempt``, ``variant``, ``token_usage``, ``cost_usd``, ``duration_ms``. Exactly one record must fit a
test. A transcript has a message a line: ``test_id``, ``message_index``, ``role``, ``content``, ``tool_calls``; what a session took is in
its first line (``transcript_token_usage`` …).

What was found is a step, so that a resumed run goes on with it. Nothing is paid for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from manyhands.agents.program_messages import read_launch
from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json, loads_outside
from manyhands.core.settings import Text, shown
from manyhands.core.text import expand_home
from manyhands.engine.contract import Context, Effect
from manyhands.io.keys import key
from manyhands.io.locations import Location
from manyhands.io.yaml_files import read_yaml
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.protocol import Checking, Making, TargetOpening, TargetSettings
from manyhands.workloads.evals.targets.live import LiveTarget, answer_step
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace

FIXTURE = "agentv.replay_fixture.v1"
"""The ``schema_version`` of records of fixtures."""
MAX_BYTES = 256 << 20
"""Of a file."""
_FIGURES = ("token_usage", "cost_usd", "duration_ms")
Found = Callable[[Test, int], dict[str, Any]]
"""Gives the record of the answer to a test, and the number of its earlier samples; with ``error`` if there is none."""


class SessionTarget:
    """A ``LiveTarget`` whose answers were given at another time."""

    simulated = False

    def __init__(self, found: Found, identity: Json) -> None:
        self._found = found
        self._identity = identity

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        async def effect() -> Effect:
            return Effect({"record": await asyncio.to_thread(self._found, test, sample)})

        output = await answer_step(context, self._identity, test, sample, workspace, effect)
        return answer_from_json({"record": output["record"]})


def _lines(path: Path) -> Iterator[tuple[Location, dict[str, Any]]]:
    """The objects of a file of JSON lines, with the line of each. Raises UserError."""
    location = Location(str(path))
    try:
        if path.stat().st_size > MAX_BYTES:
            raise location.error(f"is larger than {MAX_BYTES >> 20} MiB")
        texts = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise location.error(f"can't be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    for number, text in enumerate(texts, start=1):
        if text.strip():
            at = Location(str(path), (), {(): number})
            try:
                value = loads_outside(text)
            except (ValueError, RecursionError) as error:
                raise at.error(f"is no JSON: {error}") from None
            if not isinstance(value, dict):
                raise at.error("must be an object")
            yield at, value


# --- Replay fixtures


@dataclass(frozen=True, slots=True)
class FixtureSettings(TargetSettings):
    """A file of fixtures."""

    path: Path
    source_target: str
    """The target that gave the answers."""
    suite: str | None = None
    """Of the records; None: that of the eval file."""
    eval_path: str | None = None
    """Of the records; None: the eval file's."""
    variant: str | None = None

    def check(self, checking: Checking) -> None:
        try:
            fixtures(self.path)
        except UserError as error:
            raise checking.at("fixtures").error(str(error)) from None

    async def open(self, opening: TargetOpening) -> LiveTarget:
        records = await asyncio.to_thread(fixtures, self.path)
        suites = {self.suite} if self.suite else {opening.dataset, *_names_of(opening.eval_file)}
        eval_path = self.eval_path or str(opening.eval_file)

        def found(test: Test, sample: int) -> dict[str, Any]:
            fitting = [
                record
                for record in records
                if record["test_id"] == test.id
                and record["source_target"] == self.source_target
                and (record.get("attempt") or 0) == sample
                and record.get("variant") == self.variant
                and record["suite"] in suites
                and _is_same_file(record.get("eval_path"), eval_path)
            ]
            if len(fitting) == 1:
                return {name: fitting[0][name] for name in ("output", *_FIGURES) if fitting[0].get(name) is not None}
            return {"error": f"{self.path} has {len(fitting) or 'no'} records for {self._wanted(test, sample, suites)}"}

        return SessionTarget(found, opening.identity)

    def _wanted(self, test: Test, sample: int, suites: set[str]) -> str:
        variant = f", variant {self.variant}" if self.variant else ""
        suite = " or ".join(sorted(suites))
        return f"test {test.id}, source_target {self.source_target}, suite {suite}, attempt {sample}{variant}"


def fixtures(path: Path) -> Sequence[Mapping[str, Any]]:
    """The records of a file. Raises UserError for a line that is none."""
    return [_fixture(record, at) for at, record in _lines(path)]


def _fixture(record: dict[str, Any], at: Location) -> Mapping[str, Any]:
    if record.get("schema_version") != FIXTURE:
        raise at.at("schema_version").error(f"must be {FIXTURE}, not {shown(record.get('schema_version'))}")
    for name in ("suite", "test_id", "source_target"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise at.at(name).error(f"must be text, not {shown(record.get(name))}")
    if not isinstance(record.get("output"), list):
        raise at.at("output").error("must be a list of messages")
    return record


def _names_of(eval_file: Path) -> tuple[str, ...]:
    """What a file may be called as a suite."""
    stem = eval_file.name.removesuffix(eval_file.suffix)
    value = None
    if eval_file.suffix in (".yaml", ".yml"):
        with suppress(UserError):
            value, _ = read_yaml(eval_file, str(eval_file))
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return (value["name"],)
    return stem, stem.removesuffix(".eval").removesuffix(".EVAL")


def _is_same_file(recorded: Json, wanted: str) -> bool:
    """Whether a record's path, relative to some root, is that of a file; without a path it is."""
    if not isinstance(recorded, str) or not recorded:
        return True
    paths = [path.replace("\\", "/").removeprefix("./") for path in (recorded, wanted)]
    return paths[0] == paths[1] or paths[1].endswith(f"/{paths[0]}")


# --- Transcripts


class TranscriptBlock(TargetBlock):
    """A transcript."""

    spellings: ClassVar = {**TargetBlock.spellings, "file": "path", "transcript": "path"}

    path: Text = key(..., "The transcript: JSON Lines with a message each, relative to the eval file.")


@dataclass(frozen=True, slots=True)
class TranscriptSettings(TargetSettings):
    """A file with sessions of an agent, of which each answers a test."""

    path: Path

    def check(self, checking: Checking) -> None:
        try:
            sessions(self.path)
        except UserError as error:
            raise checking.at("path").error(str(error)) from None

    async def open(self, opening: TargetOpening) -> LiveTarget:
        found = await asyncio.to_thread(sessions, self.path)
        ids = await opening.test_ids()
        by_id = found if any(test_id in found for test_id in ids) else dict(zip(ids, found.values(), strict=False))
        problem = (
            f"{self.path} has {len(found)} sessions for {len(ids)} tests, none of which has a test's id: "
            "there must be one for each test, in their order"
        )
        fits = by_id is found or len(ids) == len(found)

        def answer(test: Test, sample: int) -> dict[str, Any]:
            if not fits:
                return {"error": problem}
            return by_id.get(test.id, {"error": f"{self.path} has no session of test {test.id}"})

        return SessionTarget(answer, opening.identity)


def transcript_settings(block: TranscriptBlock, making: Making) -> TranscriptSettings:
    """A transcript. Raises UserError if there is no such file."""
    path = making.path(block.path)
    if not path.is_file():
        raise making.at("path").error(f"there is no file {path}")
    return TranscriptSettings(path)


def is_transcript(path: Path) -> bool:
    """Whether a file looks like a transcript: its first line is a message with its place in a session."""
    try:
        with path.open("rb") as file:
            first = loads_outside(file.readline(MAX_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"test_id", "message_index", "role"} <= first.keys()


def sessions(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a transcript's sessions by the ids that it gives them, in their order. Raises UserError for a line that is none."""
    found: dict[str, list[dict[str, Any]]] = {}
    for at, line in _lines(path):
        if not isinstance(line.get("test_id"), str) or not isinstance(line.get("role"), str):
            raise at.error("must have test_id and role, as lines of a transcript have")
        if type(line.get("message_index")) is not int:
            raise at.at("message_index").error(f"must be a whole number, not {shown(line.get('message_index'))}")
        found.setdefault(line["test_id"], []).append(line)
    if not found:
        raise UserError(f"{path}: holds no session")
    return {test_id: _session(lines) for test_id, lines in found.items()}


def _session(lines: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("role", "name", "content", "tool_calls", "start_time", "end_time", "duration_ms", "metadata")
    ordered = sorted(lines, key=lambda line: line["message_index"])
    messages = [{name: line[name] for name in names if line.get(name) is not None} for line in ordered]
    figures = {name: value for name in _FIGURES if (value := lines[0].get(f"transcript_{name}")) is not None}
    return {"output": messages, **figures}


# --- Sessions of Copilot


class CopilotLogBlock(TargetBlock):
    """A session that GitHub Copilot's program kept."""

    session_dir: Text | None = key(None, "Folder of the session, relative to the eval file.")
    session_id: Text | None = key(None, "Id of the session, a folder of that name below session_state_dir.")
    discover: Literal["latest"] | None = key(None, "`latest`: the session whose events are the newest.")
    session_state_dir: Text | None = key(None, "Folder with all sessions (default: ~/.copilot/session-state).")
    cwd: Text | None = key(None, "With discover: only sessions of this working directory.")


@dataclass(frozen=True, slots=True)
class CopilotLogSettings(TargetSettings):
    """Where the session is."""

    session: Path | None
    """Its folder; None: the newest."""
    sessions: Path
    """The folder with all of them."""
    cwd: str | None = None
    """Where it worked."""

    async def open(self, opening: TargetOpening) -> LiveTarget:
        return SessionTarget(lambda test, sample: self._record(), opening.identity)

    def _record(self) -> dict[str, Any]:
        folder = self.session or self._newest()
        if folder is None:
            where = "" if self.cwd is None else f" of the working directory {self.cwd}"
            return {"error": f"there is no session of Copilot{where} in {self.sessions}"}
        path = folder / "events.jsonl"
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            return {"error": f"{path} can't be read: {error.strerror}"}
        return read_launch(text) or {"error": f"{path} holds no events of a session"}

    def _newest(self) -> Path | None:
        found = [(path.stat().st_mtime_ns, path.parent) for path in self.sessions.glob("*/events.jsonl")]
        ordered = (folder for _, folder in sorted(found, reverse=True))
        return next((folder for folder in ordered if self.cwd is None or _worked_in(folder) == self.cwd), None)


def _worked_in(folder: Path) -> str | None:
    """The working directory of a session."""
    path = folder / "workspace.yaml"
    try:
        value, _ = read_yaml(path, str(path))
    except UserError:
        return None
    return value.get("cwd") if isinstance(value, dict) else None


def copilot_log_settings(block: CopilotLogBlock, making: Making) -> CopilotLogSettings:
    """A session. Raises UserError if nothing says which."""
    if block.session_dir is None and block.session_id is None and block.discover is None:
        raise making.location.error("needs session_dir, session_id, or discover: latest")
    if block.session_id is not None and Path(block.session_id).name != block.session_id:
        raise making.at("session_id").error(f"must be the name of a folder, not {shown(block.session_id)}")
    state = making.path(block.session_state_dir or str(expand_home("~/.copilot/session-state")))
    session = None if block.session_id is None else state / block.session_id
    return CopilotLogSettings(
        session if block.session_dir is None else making.path(block.session_dir), state, block.cwd
    )
