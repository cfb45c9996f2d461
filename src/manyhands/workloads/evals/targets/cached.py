"""A target whose answers of earlier runs are used again.

Answers of earlier runs, a file each: ``<2 hex digits>/<digest>.json`` in the cache's folder.

The digest is of everything that an answer depends on (``question_key``): who is asked, down to the files that its command names, and
what is asked, down to what is in the input files. So whatever is changed there is asked anew.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from manyhands.core.digests import digest
from manyhands.core.errors import StorageError
from manyhands.core.jsonio import Json, dumps, loads
from manyhands.engine.contract import Context, Effect
from manyhands.io.files import bytes_written_aside
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json
from manyhands.workloads.evals.targets.command_lines import CommandTemplate
from manyhands.workloads.evals.targets.protocol import Answerer
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace

STEP = "cache"
"""The kind of a step that looks into the cache: a resumed run goes on with what was there when it looked."""
FOUND = "answer of an earlier run (--cache)"


class CachedAnswerer:
    """See ``answering.Answerer``. Errors are not kept, and where tests have a workspace every one is asked: what an answer left there is
    not in the cache.

    ``asked``: all that makes the target another one if it changes; ``told``: see ``question_key``.
    """

    def __init__(self, target: Answerer, cache: AnswerCache, asked: Json, told: tuple[str, ...] = ()) -> None:
        self.target = target
        self._cache = cache
        self._asked = asked
        self._told = told

    @property
    def simulated(self) -> bool:
        return self.target.simulated

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        if workspace is not None:
            return await self.target.answer(context, test, trial, workspace)
        key = await asyncio.to_thread(question_key, self._asked, test, self._told)

        async def effect() -> Effect:
            return Effect({"found": await asyncio.to_thread(self._cache.find, key)})

        looked = await context.scope(STEP).step(STEP, {"test": test.id}, effect)
        if looked["found"] is not None:
            found = answer_from_json(looked["found"])
            return replace(found, notices=(*found.notices, FOUND))
        answer = await self.target.answer(context, test, trial, workspace)
        if answer.error is None:
            await asyncio.to_thread(self._cache.keep, key, answer)
        return answer


FOLDER = "eval_cache"
"""Its name in the data folder."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """A cache in a folder, which is made when the first answer is kept."""

    folder: Path

    def find(self, key: str) -> Json:
        """An answer as ``Answer.to_json`` gave it; None if there is none, or none that can be read."""
        try:
            value = loads(self._path(key).read_bytes())
            answer_from_json(value)
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return value

    def keep(self, key: str, answer: Answer) -> None:
        """Raises StorageError."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{path.parent}: can't be made ({error.strerror or error})") from error
        with bytes_written_aside(path) as file:
            file.write(dumps(answer.to_json()))

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def question_key(asked: Json, test: Test, told: tuple[str, ...] = ()) -> str:
    """What an answer depends on, as one digest. ``asked``: who is asked; ``told``: fields of the test that it is told besides its prompt,
    input and files."""
    files = {str(path): content(path) for path in (*test.files, *test.guideline_files)}
    question = {"id": test.id, "prompt": test.prompt(), "guidelines": test.guidelines, "files": files}
    more = {name: getattr(test, name) for name in ("input", *told)}
    return digest("cached answer", {"asked": asked, **question, **more}).hex()


def named_files(template: CommandTemplate, folder: Path) -> dict[str, Json]:
    """The files that a command's words name, from the folder where it starts, with digests of what is in them."""
    words = template.words if template.line is None else _line_words(template.line)
    return _contents(folder / word for word in words if word)


def source_file(function: Callable[..., Any]) -> dict[str, Json]:
    """The file in which a function stands, the like."""
    try:
        named = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        named = None
    return _contents([Path(named)] if named else [])


def content(path: Path) -> str | None:
    """A digest of what is in a file; None if it can't be read."""
    found = blake2b(digest_size=20)
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
    except (OSError, ValueError):
        return None
    return found.hexdigest()


def _contents(paths: Iterable[Path]) -> dict[str, Json]:
    found = {str(path): content(path) for path in paths}
    return {path: value for path, value in found.items() if value is not None}


def _line_words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
