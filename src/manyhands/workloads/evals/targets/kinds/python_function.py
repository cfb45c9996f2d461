"""Python functions as targets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.redaction import describe
from manyhands.core.settings import Text, shown
from manyhands.engine.contract import Context, Effect
from manyhands.graders.protocol import Judge
from manyhands.io.keys import key
from manyhands.processes.python_functions import Function, Overdue, call, load_function, with_arguments
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.evalfile.keys import Mapped
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json
from manyhands.workloads.evals.targets.judging import Asked, judge_of
from manyhands.workloads.evals.targets.keys import Seconds, TargetBlock
from manyhands.workloads.evals.targets.kinds.protocol import (
    Checking,
    JudgeOpening,
    Making,
    TargetOpening,
    TargetSettings,
)
from manyhands.workloads.evals.targets.live import LiveTarget, answer_step, cost_usage
from manyhands.workloads.evals.targets.recorded import source_file
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace

WHOLE = "test"
"""The name of all of a test, in one object."""
ARGUMENTS = (WHOLE, "prompt", "input", "criteria", "metadata", "files", "trial", "config", "workspace", "id")
"""What a function can get."""


class PythonBlock(TargetBlock):
    """A Python function."""

    spellings: ClassVar = {**TargetBlock.spellings, "callable": "function"}

    function: Text = key(
        ...,
        "module:function or file.py:function, relative to the eval file's folder; module:function(prompt) for one that gets the prompt "
        "instead of the whole test.",
    )
    config: Mapped | None = key(None, "Data that the function gets.")
    timeout_seconds: Seconds | None = key(None, "Time limit of a call in seconds (default: none).")


@dataclass(frozen=True, slots=True)
class PythonTargetSettings(TargetSettings):
    """A Python function."""

    function: str
    """``module:function`` or ``file.py:function``."""
    folder: Path
    """Where it is looked for."""
    config: Mapping[str, Json] = field(default_factory=dict)
    """Data for it."""
    seconds: float | None = None
    """The time limit of a call; None: no limit."""
    arguments: tuple[str, ...] | None = None
    """What it gets one by one; None: the whole test."""

    def check(self, checking: Checking) -> None:
        load_function(self.function, self.folder, checking.at("function").error, checking.functions)

    async def open(self, opening: TargetOpening) -> LiveTarget:
        function = load_function(self.function, self.folder, opening.at("function").error, opening.functions)
        target = FunctionTarget(self, function, opening.identity)
        return opening.cached(target, source_file(function), fields=("criteria", "metadata"))

    def judge(self, name: str, opening: JudgeOpening) -> Judge:
        function = load_function(self.function, self.folder, opening.at("function").error)

        async def ask(asked: Asked) -> Answer:
            argument = _judging(asked, self.config)
            return answer_from_json({"record": _returned_record(await _called(function, [argument], self.seconds))})

        return judge_of(name, ask)


class FunctionTarget:
    """A ``LiveTarget``.

    The function is called with an object: ``id``, ``prompt``, ``input`` (messages), ``criteria``, ``metadata``, ``files``, ``trial``,
    ``config``, ``workspace`` (its path, or None). It may be async, and returns the answer's text, or a record as a batch command writes it
    (no id needed), or messages. One that names what it wants gets that instead: ``function(prompt)``, ``function(prompt, test)``.
    """

    simulated = False

    def __init__(self, settings: PythonTargetSettings, function: Function, identity: Json) -> None:
        self._settings = settings
        self._function = function
        self._identity = identity

    async def answer(self, context: Context, test: Test, sample: int, workspace: TestWorkspace | None = None) -> Answer:
        async def effect() -> Effect:
            began = time.monotonic()
            record = _returned_record(await self._called(test, sample, workspace))
            cost = answer_from_json({"record": record}).cost_usd
            return Effect({"record": record, "seconds": round(time.monotonic() - began, 3)}, cost_usage(cost))

        output = await answer_step(context, self._identity, test, sample, workspace, effect)
        return answer_from_json({"record": output["record"]}).timed(1000 * output["seconds"])

    async def _called(self, test: Test, sample: int, workspace: TestWorkspace | None) -> Any:
        whole = _argument(test, sample, self._settings.config, workspace)
        names = self._settings.arguments
        given = [whole] if names is None else [whole if name == WHOLE else whole[name] for name in names]
        return await _called(self._function, given, self._settings.seconds)


async def _called(function: Function, given: Sequence[Any], seconds: float | None) -> Any:
    """What a function returns. Raises ItemError."""
    try:
        return await call(function, *given, seconds=seconds)
    except ItemError:
        raise
    except Overdue:
        raise ItemError(Cause.TIMEOUT, f"the function took longer than {seconds:g} s") from None
    except Exception as error:
        raise ItemError(Cause.WORKER_ERROR, describe(error)) from error


def _judging(asked: Asked, config: Mapping[str, Json]) -> dict[str, Any]:
    """What a function gets that judges: the like of what it gets of a test, whose input is the judge's prompt."""
    nothing = {"criteria": "", "metadata": {}, "files": [], "trial": 0}
    return {
        "id": asked.test_id,
        "prompt": asked.prompt,
        "input": [{"role": "user", "content": asked.prompt}],
        **nothing,
        "config": dict(config),
        "workspace": None if asked.workspace is None else str(asked.workspace),
    }


def _argument(test: Test, sample: int, config: Mapping[str, Json], workspace: TestWorkspace | None) -> dict[str, Any]:
    return {
        "id": test.id,
        "prompt": test.prompt(),
        "input": list(test.input),
        "criteria": test.criteria,
        "metadata": dict(test.metadata),
        "files": [str(path) for path in test.all_files],
        "trial": sample,
        "config": dict(config),
        "workspace": None if workspace is None else str(workspace.path),
    }


def _returned_record(result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, str):
        return {"text": result}
    if isinstance(result, list):
        return {"output": result}
    raise ItemError(
        Cause.INVALID_OUTPUT, f"the function returned {type(result).__name__}, not text, a record or messages"
    )


def python_settings(block: PythonBlock, making: Making) -> PythonTargetSettings:
    """A function's name and data. Raises UserError for a name that is none of a function."""
    at = making.at("function")
    try:
        function, arguments = with_arguments(block.function)
    except ValueError as error:
        raise at.error(str(error)) from None
    module, colon, name = function.rpartition(":")
    if not colon or not module or not all(part.isidentifier() for part in name.split(".")):
        raise at.error(f"must be module:function or file.py:function, not {shown(block.function)}")
    unknown = next((each for each in arguments or () if each not in ARGUMENTS), None)
    if unknown is not None:
        raise at.error(f"a function can't get {unknown!r}; it can get {', '.join(ARGUMENTS)}")
    return PythonTargetSettings(function, making.folder, block.config or {}, block.timeout_seconds, arguments)
