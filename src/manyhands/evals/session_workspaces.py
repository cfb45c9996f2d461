"""The workspaces of one session of a run: which tests have one, and what they are made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from manyhands.agents.command import CommandRunner
from manyhands.core.redaction import Redactor
from manyhands.engine.context import Context
from manyhands.evals.file_references import Surroundings
from manyhands.evals.hooks import Hooks, Tell
from manyhands.evals.items import TestItem
from manyhands.evals.opening import Openings
from manyhands.evals.prepared import PreparedEval
from manyhands.evals.targets import Target
from manyhands.evals.workspace_templates import Templates
from manyhands.evals.workspaces import TestWorkspace, WorkspaceTools, with_template


class SessionWorkspaces:
    """``openings``: knows the targets' own templates."""

    def __init__(self, prepared: PreparedEval, openings: Openings) -> None:
        self._prepared = prepared
        self._openings = openings
        self._templates: dict[tuple[int, str], Path | None] = {}

    def of(self, context: Context, item: TestItem, target: Target) -> TestWorkspace | None:
        """Where a target works on a test; None if that has no workspace, nothing is run, or a command has one for all its tests.

        Raises UserError if the target can't be used.
        """
        if target.batching or target.kind == "replay" or self._prepared.options.regrade is not None:
            return None
        key = (item.file, target.name)
        if key not in self._templates:
            self._templates[key] = self._openings.template(target)
        settings = with_template(item.test.workspace, self._templates[key])
        if settings is None:
            return None
        eval_file = self._prepared.files[item.file].path
        return TestWorkspace(context, eval_file, item.test, settings, self._openings.workspaces)


def workspace_tools(
    run_folder: Path,
    run_id: str,
    runner: CommandRunner,
    environ: Mapping[str, str],
    tell: Tell,
    around: Surroundings,
    *,
    live: bool,
) -> WorkspaceTools:
    """``environ``: the real environment, whose secrets are kept out of what is recorded; ``tell``: shows the hooks that are run;
    ``around``: where the command was given; ``live``: whether anything may happen outside."""
    hooks = Hooks(runner, environ, run_id, tell, around)
    return WorkspaceTools(Templates(run_folder, hooks), hooks, runner, Redactor.of(environ), live)
