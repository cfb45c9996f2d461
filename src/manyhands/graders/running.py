"""Several graders at once."""

from __future__ import annotations

from collections.abc import Sequence

from manyhands.agents.tool_running import together
from manyhands.core.errors import ItemError
from manyhands.graders.protocol import Candidate, Grader, Grading, Score


async def grade_all(graders: Sequence[Grader], candidate: Candidate, grading: Grading) -> tuple[Score, ...]:
    """The scores of all graders, in their order. They run at the same time, each with a scope of its own for its steps, which is
    named after its place in the list; so call this once for a context.

    Raises what ``Grader.grade`` raises; if several can't go on for reasons of the item, the first of these ItemErrors alone.
    """
    scopes = (grading.context.scope(f"grader-{index}") for index in range(len(graders)))
    runs = [
        grader.grade(candidate, Grading(scope, grading.judges, grading.scripts, grading.seconds, grading.pass_limit))
        for grader, scope in zip(graders, scopes, strict=True)
    ]
    try:
        return tuple(await together(runs)) if runs else ()
    except ExceptionGroup as group:
        failures, others = group.split(ItemError)
        if failures is None or others is not None:
            raise
        raise _first(failures) from group


def _first(group: ExceptionGroup[ItemError]) -> ItemError:
    error: ItemError | ExceptionGroup[ItemError] = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
