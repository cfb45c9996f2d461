"""``preprocessors``: files in an answer as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.graders.preprocessors import media_type
from manyhands.graders.protocol import Candidate
from manyhands.processes.scripts import ScriptResult
from manyhands.testing.context import MemoryContext
from manyhands.testing.grader_doubles import ScriptedPrograms, grade, graders_of, make_grading

XLSX = {"type": "xlsx", "command": ["python3", "to_csv.py"]}
SPREADSHEET = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def answered(*parts: Json, folder: Path = Path(), workspace: Path | None = None) -> Candidate:
    return Candidate(
        "t", "[…]", output=[{"role": "assistant", "content": list(parts)}], folder=folder, workspace=workspace
    )


def file(path: str, kind: str | None = "xlsx") -> dict[str, Any]:
    return {"type": "file", "path": path, **({} if kind is None else {"media_type": kind})}


async def seen(candidate: Candidate, *, preprocessors: list[Any], scripts: ScriptedPrograms | None = None) -> str:
    """The answer as a grader sees it: what it tells a program."""
    programs = scripts or ScriptedPrograms()
    programs.results += ScriptedPrograms.printing({"score": 1}).results
    entry = {"type": "code_judge", "script": "judge", "preprocessors": preprocessors}
    score = await grade(entry, candidate, make_grading(scripts=programs))
    assert score.error is None
    text: str = programs.calls[-1]["payload"]["answer"]
    return text


async def test_a_program_turns_a_file_into_text(tmp_path: Path) -> None:
    programs = ScriptedPrograms([ScriptResult(0, b"\nrevenue,5\n", b"", 0.1)])
    text = await seen(
        answered({"type": "text", "text": "The report:"}, file("out/r.xlsx"), "and so on", folder=tmp_path),
        preprocessors=[XLSX],
        scripts=programs,
    )
    assert text == "The report:\n[[ file: out/r.xlsx ]]\nrevenue,5\nand so on"
    assert programs.calls[0] == {
        "command": ("python3", "to_csv.py"),
        "payload": {"path": str(tmp_path / "out/r.xlsx"), "original_path": "out/r.xlsx", "media_type": SPREADSHEET},
        "folder": tmp_path,
        "seconds": 120.0,
    }


@pytest.mark.parametrize("kind", ["xlsx", "XLSX", SPREADSHEET, None])
@pytest.mark.parametrize("named", ["xlsx", SPREADSHEET.upper()])
async def test_types_by_name_and_by_ending(kind: str | None, named: str) -> None:
    programs = ScriptedPrograms([ScriptResult(0, b"x", b"", 0.1)])
    text = await seen(answered(file("a.XLSX", kind)), preprocessors=[{**XLSX, "type": named}], scripts=programs)
    assert text == "[[ file: a.XLSX ]]\nx"


async def test_other_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a\r\nb\xc3\xa9")
    (tmp_path / "b.bin").write_bytes(b"a\0b")
    (tmp_path / "c.pdf").write_bytes(b"\xff\xfe")
    (tmp_path / "long.txt").write_text("x" * 200_000)
    parts = [
        file("a.csv", None),
        file(f"file://{tmp_path}/a.csv"),
        file("b.bin"),
        file("c.pdf"),
        file("gone.txt", None),
    ]
    text = await seen(
        answered(*parts, file("https://x.test/a.csv"), folder=tmp_path), preprocessors=[{**XLSX, "type": "doc"}]
    )
    assert text.split("[[ file: ")[1:] == [
        "a.csv ]]\na\nbé\n",
        f"file://{tmp_path}/a.csv ]]\na\nbé\n",
        "b.bin ]]\n(can't be shown: it is no text, and no preprocessor is named for its type)\n",
        "c.pdf ]]\n(can't be shown: it is no text, and no preprocessor is named for its type)\n",
        "gone.txt ]]\n(can't be shown: No such file or directory)\n",
        "https://x.test/a.csv ]]\n(can't be shown: it is not on this machine)",
    ]
    long = await seen(answered(file("long.txt", None), folder=tmp_path), preprocessors=[{**XLSX, "type": "doc"}])
    assert long.endswith("… (cut after 100,000 characters)")
    assert len(long) < 100_100


async def test_paths_start_from_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.txt").write_text("workspace")
    (tmp_path / "a.txt").write_text("eval file")
    part = file("a.txt", None)
    assert (await seen(answered(part, folder=tmp_path, workspace=tmp_path / "w"), preprocessors=[XLSX])).endswith(
        "workspace"
    )
    assert (await seen(answered(part, folder=tmp_path), preprocessors=[XLSX])).endswith("eval file")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            ScriptResult(3, b"half", b"no such sheet\n", 0.1),
            "the preprocessor of r.xlsx ended with exit code 3: no such sheet",
        ),
        (ScriptResult(None, b"", b"", 120), "the preprocessor of r.xlsx took too long"),
    ],
)
async def test_a_program_that_fails_breaks_the_grader(result: ScriptResult, message: str) -> None:
    entry = {"type": "contains", "value": "x", "preprocessors": [XLSX]}
    score = await grade(entry, answered(file("r.xlsx")), make_grading(scripts=ScriptedPrograms([result])))
    assert (score.value, score.verdict, score.error) == (None, "error", message)


async def test_answers_without_files_stay_as_they_are() -> None:
    for candidate in (Candidate("t", "plain"), answered({"type": "text", "text": "a"}), answered()):
        assert await seen(candidate, preprocessors=[XLSX]) == candidate.answer


async def test_rules_and_members_see_the_text_too() -> None:
    entry = {"type": "contains", "value": "revenue"}
    candidate = answered(file("r.xlsx"))
    printed = ScriptResult(0, b"revenue", b"", 0.1)
    (rule,) = graders_of({**entry, "preprocessors": [XLSX]})
    assert not getattr(rule, "answer_only", True)
    assert (await rule.grade(candidate, make_grading(scripts=ScriptedPrograms([printed])))).value == 1
    (composite,) = graders_of({"type": "composite", "assert": [entry, entry], "preprocessors": [XLSX]})
    assert (await composite.grade(candidate, make_grading(scripts=ScriptedPrograms([printed])))).value == 1
    assert (await grade(entry, candidate)).value == 0


async def test_nothing_runs_twice() -> None:
    context = MemoryContext()
    (grader,) = graders_of({"type": "contains", "value": "revenue", "preprocessors": [XLSX]})
    candidate = answered(file("r.xlsx"))
    printed = ScriptedPrograms([ScriptResult(0, b"revenue", b"", 0.1)])
    first = await grader.grade(candidate, make_grading(context, scripts=printed))
    again = await grader.grade(candidate, make_grading(MemoryContext(context.journal), scripts=ScriptedPrograms()))
    assert first == again


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("xlsx", "[0].preprocessors: must be a list"),
        (["xlsx"], "[0].preprocessors[0]: must be a mapping"),
        ([{"type": "xlsx"}], "[0].preprocessors[0]: command is required"),
        ([{"command": ["a"]}], "[0].preprocessors[0]: type is required"),
        ([{"type": "xlsx", "command": []}], "[0].preprocessors[0].command: must not be empty"),
        ([{"type": "", "command": ["a"]}], "[0].preprocessors[0].type: must not be empty"),
        ([{"type": "xlsx", "comand": ["a"]}], "[0].preprocessors[0].comand: unknown key; did you mean command?"),
    ],
)
def test_what_can_not_be_meant(value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        graders_of({"type": "is_json", "preprocessors": value})
    assert str(caught.value).startswith(f"checks.yaml: {message}")


def test_short_names_of_types() -> None:
    assert media_type(" CSV ") == "text/csv"
    assert media_type("text/X-Own") == "text/x-own"
