"""``skill_used`` and ``skill_trigger``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.graders.protocol import Candidate, ToolUse
from manyhands.graders.trajectory.skills import skills_of
from manyhands.testing.grader_doubles import grade, graders_of


def did(*uses: ToolUse) -> Candidate:
    return Candidate("t", "done", output=[], tool_uses=uses)


def skills(names: str) -> Candidate:
    return did(*(ToolUse("Skill", {"skill": name}) for name in names.split()))


CALLED = ToolUse("Skill", {"skill": "pdf"})
READ = ToolUse("Read", {"file_path": "/repo/.claude/skills/pdf/SKILL.md"})


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (CALLED, ["pdf"]),
        (ToolUse("skill", {"name": "pdf"}), ["pdf"]),
        (ToolUse("Using skill: pdf", {}), ["pdf"]),
        (READ, ["pdf"]),
        (ToolUse("readFile", {"filePath": "skills/pdf/SKILL.md"}), ["pdf"]),
        (ToolUse("read", {"path": "C:\\x\\skills\\pdf\\SKILL.md"}), ["pdf"]),
        (ToolUse("Read", {"file_path": "skills/pdf/forms.md"}), []),
        (ToolUse("Read", {"file_path": "myskills/pdf/SKILL.md"}), []),
        (ToolUse("Write", {"file_path": "skills/pdf/SKILL.md"}), []),
        (
            ToolUse("Bash", {"command": "cat .agents/skills/pdf/SKILL.md && cat 'skills/xlsx/SKILL.md'"}),
            ["pdf", "xlsx"],
        ),
        (ToolUse("Bash", {"command": "ls skills/pdf"}), []),
        (ToolUse("command_execution", {"command": "sed -n 1,9p skills/pdf/SKILL.md"}), ["pdf"]),
        (ToolUse("load", {}, "skills/pdf/SKILL.md: reads PDFs"), ["pdf"]),
        (ToolUse("load", {}, {"loaded": ["/a/skills/pdf/SKILL.md"]}), ["pdf"]),
        (ToolUse("Skill", {"skill": ""}), []),
        (ToolUse("Skill", None), []),
        (ToolUse("search", {"skill": "pdf"}), []),
    ],
)
def test_where_skills_are_seen(use: ToolUse, expected: list[str]) -> None:
    assert skills_of(did(use)) == expected


def test_each_call_and_each_file_once() -> None:
    assert skills_of(did(READ, READ, CALLED, CALLED)) == ["pdf", "pdf", "pdf"]


@pytest.mark.parametrize(
    ("value", "used", "expected"),
    [
        ("pdf", "pdf", 1),
        ("pdf", "pdf-forms", 0),
        ("PDF", "pdf", 0),
        (["pdf", "xlsx"], "xlsx pdf", 1),
        (["pdf", "xlsx"], "pdf", 0),
        ({"name": "pdf"}, "pdf", 1),
        ({"name": "pdf"}, "", 0),
        ({"pattern": "PDF*"}, "pdf-forms", 1),
        ({"pattern": "p?f"}, "pdf", 1),
        ({"pattern": "pdf*", "name": "pdf"}, "pdf-forms", 0),
        ({"name": "pdf", "min": 2}, "pdf", 0),
        ({"name": "pdf", "min": 2}, "pdf pdf", 1),
        ({"name": "pdf", "max": 1}, "", 1),  # max alone: not at all is fine
        ({"name": "pdf", "max": 1}, "pdf pdf", 0),
        ({"name": "pdf", "max": 0}, "pdf", 0),
    ],
)
async def test_skills_used(value: Any, used: str, expected: float) -> None:
    score = await grade({"type": "skill-used", "value": value}, skills(used))
    assert (score.value, score.type, len(score.hits) + len(score.misses)) == (expected, "skill_used", 1)


@pytest.mark.parametrize(
    ("value", "used", "expected"),
    [
        ("pdf", "pdf", 0),
        ("pdf", "xlsx", 1),
        (["pdf", "xlsx"], "xlsx", 0),  # none of them is to be used
        (["pdf", "xlsx"], "docx", 1),
        ({"pattern": "pdf*"}, "pdf-forms", 0),
        ({"pattern": "pdf*", "max": 0}, "xlsx", 1),
    ],
)
async def test_skills_not_used(value: Any, used: str, expected: float) -> None:
    for entry in ({"type": "not-skill-used"}, {"type": "skill_used", "negate": True}):
        assert (await grade({**entry, "value": value}, skills(used))).value == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "skill-used"}, "[0]: value is required"),
        ({"type": "skill-used", "value": ""}, "[0].value: must be a skill's name, a list of them, or a mapping"),
        ({"type": "skill-used", "value": []}, "[0].value: must be a skill's name"),
        ({"type": "skill-used", "value": {"min": 1}}, "[0].value: name or pattern is required"),
        (
            {"type": "skill-used", "value": {"name": "a", "min": 0.5}},
            "[0].value.min: must be a whole number of 0 or more",
        ),
        ({"type": "skill-used", "value": {"name": "a", "min": 3, "max": 2}}, "[0].value.max: must be at least min"),
        (
            {"type": "not-skill-used", "value": {"name": "a", "min": 1}},
            "[0].value: where the opposite is meant there are",
        ),
        (
            {"type": "not-skill-used", "value": {"name": "a", "max": 1}},
            "[0].value: where the opposite is meant there are",
        ),
        ({"type": "skill-used", "value": {"nmae": "a"}}, "[0].value.nmae: unknown key; did you mean name?"),
        ({"type": "skill-trigger"}, "[0]: skill is required"),
        (
            {"type": "skill-trigger", "skill": "a", "should_triger": False},
            "[0].should_triger: unknown key; did you mean should_trigger?",
        ),
    ],
)
def test_what_can_not_be_meant(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of(entry)
    assert str(caught.value).startswith(f"checks.yaml: {message}")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (CALLED, 1),
        (ToolUse("Skill", {"skill": "acme:pdf"}), 1),
        (ToolUse("Skill", {"skill": "xlsx"}), 0),
        (READ, 1),
        (ToolUse("Read", {"file_path": "skills/pdf/forms.md"}), 1),
        (ToolUse("Read", {"path": "skills/pdf-forms/SKILL.md"}), 0),
        (ToolUse("Bash", {"command": "ls"}, "skills/pdf/SKILL.md"), 1),
        (ToolUse("search", {"path": "skills/pdf/SKILL.md"}), 0),
    ],
)
async def test_skill_trigger(use: ToolUse, expected: float) -> None:
    candidate = did(ToolUse("search"), use)
    assert (await grade({"type": "skill-trigger", "skill": "pdf"}, candidate)).value == expected
    for entry in ({"should_trigger": False}, {"shouldTrigger": False}, {"negate": True}):
        assert (await grade({"type": "skill_trigger", "skill": "pdf", **entry}, candidate)).value == 1 - expected


async def test_what_nobody_knows_is_a_miss_either_way() -> None:
    unknown = Candidate("t", "text")
    for entry in (
        {"type": "skill-used", "value": "pdf"},
        {"type": "not-skill-used", "value": "pdf"},
        {"type": "not-skill-used", "value": {"name": "pdf"}},
        {"type": "skill-trigger", "skill": "pdf"},
        {"type": "skill-trigger", "skill": "pdf", "should_trigger": False},
    ):
        score = await grade(entry, unknown)
        assert (score.value, score.misses) == (0, ("no data about tool calls",))
        counted = await grade(entry, Candidate("t", "", trace={"event_count": 1}))
        assert counted.value is None


async def test_names() -> None:
    graders = graders_of({"type": "skill-trigger", "skill": "pdf"}, {"type": "skill-used", "value": {"pattern": "p*"}})
    assert [grader.name for grader in graders] == ["skill_trigger-pdf", "skill_used-p*"]


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=5),
)
async def test_all_of_them_and_none_of_them(wanted: list[str], used: list[str]) -> None:
    candidate = skills(" ".join(used))
    assert (await grade({"type": "skill-used", "value": wanted}, candidate)).value == float(set(wanted) <= set(used))
    assert (await grade({"type": "not-skill-used", "value": wanted}, candidate)).value == float(
        not set(wanted) & set(used)
    )
