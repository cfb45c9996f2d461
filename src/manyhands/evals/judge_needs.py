"""Which graders of a test ask a judge, and which one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.evals.grader_programs import aggregator_of
from manyhands.graders.names import name_for
from manyhands.graders.registry import BUILTIN, JUDGED

_PROGRAMS = ("code_judge", "code_grader")


@dataclass(frozen=True, slots=True)
class JudgeNeed:
    """``grader``: its name, behind those of the composites it is in; ``target``: the judge that it names, None for the test's own;
    ``workspace``: whether it can't do without one; ``bare``: whether it has nothing but the test's criteria and expected output to hold an
    answer against; ``certain``: whether it is known to ask one, and not a kind of somebody else's that may."""

    grader: str
    target: str | None = None
    workspace: bool = False
    bare: bool = False
    certain: bool = True


def judge_needs(graders: Sequence[Mapping[str, Any]], within: str = "") -> Iterator[JudgeNeed]:
    """What the graders of a test need. ``graders``: in normal form; ``within``: names of composites around them."""
    for entry in graders:
        kind, name = entry["type"], within + str(entry.get("name") or name_for(entry))
        if kind in JUDGED:
            target = entry.get("target")
            bare = all(entry.get(name) is None for name in ("prompt", "rubrics", "value")) and kind != "rubrics"
            yield JudgeNeed(name, target, workspace=kind == "agent_judge" and target is None, bare=bare)
        elif kind in _PROGRAMS and entry.get("target"):
            yield JudgeNeed(name)
        elif kind == "composite":
            yield from judge_needs(entry["assert"], f"{name} > ")
            aggregator = aggregator_of(entry)
            if aggregator.type == "llm_judge":
                yield JudgeNeed(f"{name} > aggregator", aggregator.target)
        elif kind not in BUILTIN:
            yield JudgeNeed(name, certain=False)
