"""A target that is a Python function."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json
from manyhands.core.redaction import describe
from manyhands.engine.contract import Context, Effect
from manyhands.processes.python_functions import Function, Overdue, call
from manyhands.workloads.evals.evalfile.tests import Test
from manyhands.workloads.evals.targets.answers import Answer, answer_from_json
from manyhands.workloads.evals.targets.command import STEP, timed
from manyhands.workloads.evals.targets.kinds import PythonSettings
from manyhands.workloads.evals.targets.protocol import cost_usage, with_cost
from manyhands.workloads.evals.workspaces.workspace import TestWorkspace


class FunctionTarget:
    """A ``LiveTarget``.

    The function is called with an object: ``id``, ``prompt``, ``input`` (messages), ``criteria``, ``metadata``, ``files``, ``trial``,
    ``config``, ``workspace`` (its path, or None). It may be async, and returns the answer's text, or a record as a batch command writes it
    (no id needed).
    """

    simulated = False

    def __init__(self, settings: PythonSettings, function: Function, identity: Json) -> None:
        self._settings = settings
        self._function = function
        self._identity = identity

    async def answer(self, context: Context, test: Test, trial: int, workspace: TestWorkspace | None = None) -> Answer:
        async def effect() -> Effect:
            began = time.monotonic()
            record = _record(await self._called(test, trial, workspace))
            cost = answer_from_json({"record": record}).cost_usd
            return Effect({"record": record, "seconds": round(time.monotonic() - began, 3)}, cost_usage(cost))

        request = {"target": self._identity, "test": test.id, "prompt": test.prompt(), "trial": trial}
        asking = with_cost(
            context, f"target {self._identity}", effect if workspace is None else workspace.around(effect)
        )
        output = await context.step(STEP, request, asking)
        if workspace is not None:
            await workspace.recall(output)
        return timed(answer_from_json({"record": output["record"]}), 1000 * output["seconds"])

    async def _called(self, test: Test, trial: int, workspace: TestWorkspace | None) -> Any:
        seconds = self._settings.seconds
        try:
            asked = _asked(test, trial, self._settings.config, workspace)
            return await call(self._function, asked, seconds=seconds)
        except ItemError:
            raise
        except Overdue:
            raise ItemError(Cause.TIMEOUT, f"the function took longer than {seconds:g} s") from None
        except Exception as error:
            raise ItemError(Cause.WORKER_ERROR, describe(error)) from error


def _asked(test: Test, trial: int, config: Mapping[str, Json], workspace: TestWorkspace | None) -> dict[str, Any]:
    return {
        "id": test.id,
        "prompt": test.prompt(),
        "input": list(test.input),
        "criteria": test.criteria,
        "metadata": dict(test.metadata),
        "files": [str(path) for path in test.all_files],
        "trial": trial,
        "config": dict(config),
        "workspace": None if workspace is None else str(workspace.path),
    }


def _record(result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, str):
        return {"text": result}
    raise ItemError(Cause.INVALID_OUTPUT, f"the function returned {type(result).__name__}, not text or a record")
