"""Workspaces that a command can't have which answers all tests in one invocation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from manyhands.evals.hooks import AFTER_EACH, BEFORE_EACH
from manyhands.evals.survey import Survey
from manyhands.evals.target_choice import Choice
from manyhands.evals.targets import Target


def workspace_problems(survey: Survey, choice: Choice, targets: Sequence[Target]) -> Iterator[str]:
    """A line for each such target: hooks that run for each test have no moment of their own there, and its tests share one workspace."""
    for target in targets:
        if not target.batching:
            continue
        found = {space: test for (own, space), test in survey.workspaces.items() if target.name in choice.of(own)}
        if target.settings.get("workspace_template") is not None:  # which counts more than the tests' own
            found = {space and replace(space, template=None): test for space, test in found.items()}
        for space, test in found.items():
            hook = next((name for name in (BEFORE_EACH, AFTER_EACH) if getattr(space, name, None) is not None), None)
            if hook is not None:
                yield test.place.at("workspace", hook).says(
                    f"can't run for each test where one invocation answers all of them, as target {target.name} does; "
                    "use before_all and after_all"
                )
                break
        if len(found) > 1:
            test = list(found.values())[1]
            yield test.place.at("workspace").says(
                f"is not the same for all tests that target {target.name} answers in one invocation"
            )
