"""What is asked and expected, as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.contents import Test
from manyhands.workloads.evals.evalfile.messages import MessageJson


def said(role: str, content: object = None, **more: object) -> MessageJson:
    return {"role": role, **({} if content is None else {"content": content}), **more}


def asked_test(*messages: MessageJson, expected: tuple[MessageJson, ...] = (), **more: object) -> Test:
    return Test("t", messages, Location("file"), expected_output=expected, **more)  # type: ignore[arg-type]


FILE = {"type": "file", "value": "doc.txt"}


def test_the_question_is_all_that_is_said() -> None:
    asked = asked_test(
        said("system", " Be brief. "),
        said("user", ["a", {"type": "text", "value": "b\n"}, FILE, {"type": "text", "text": "c"}, {"own": 1}]),
        said("assistant", tool_calls=[{"tool": "f"}]),
        said("user", {"k": [1]}),
    )

    assert asked.question == 'Be brief. a b c {\n  "own": 1\n} {\n  "k": [\n    1\n  ]\n}'


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        ((), ""),
        ((said("assistant", "x"),), "x"),
        ((said("user", "q"), said("assistant", {"ä": 1})), '{\n  "ä": 1\n}'),
        ((said("assistant", ["a"]),), '[\n  "a"\n]'),
        ((said("assistant", tool_calls=[{"tool": "f"}]),), '[\n  {\n    "tool": "f"\n  }\n]'),
    ],
)
def test_the_reference_answer_is_what_the_last_message_says(expected: tuple[MessageJson, ...], answer: str) -> None:
    assert asked_test(said("user", "q"), expected=expected).reference_answer == answer


def test_one_message_is_its_text() -> None:
    assert asked_test(said("user", ["a", "b"])).prompt() == "a\n\nb"
    assert asked_test(said("system", []), said("user", "a")).prompt() == "a"


def test_several_messages_stand_below_their_roles() -> None:
    asked = asked_test(
        said("system", "s"), said("user", "u"), said("assistant", tool_calls=[{"tool": "f"}]), said("tool", "r")
    )

    assert (
        asked.prompt()
        == '@[System]:\ns\n\n@[User]:\nu\n\n@[Assistant]:\n[\n  {\n    "tool": "f"\n  }\n]\n\n@[Tool]:\nr'
    )
    assert asked_test(said("assistant", "a")).prompt() == "@[Assistant]:\na"


def test_files_are_paths_or_what_is_in_them(tmp_path: Path) -> None:
    path, rules = tmp_path / "doc.txt", tmp_path / "rules.md"
    path.write_bytes(b"one\r\ntwo")
    asked = asked_test(
        said("user", ["read", FILE, {"type": "file", "value": "rules.md"}]),
        references={"doc.txt": path, "rules.md": rules},
        guideline_files=(rules,),
        guidelines="Be kind.",
    )

    assert asked.prompt() == f'read\n\n<file: path="{path}">'
    assert asked.files == (path,)
    assert asked.chat() == [
        {"role": "system", "content": "[[ ## Guidelines ## ]]\n\nBe kind."},
        {"role": "user", "content": 'read\n\n<file path="doc.txt">\none\ntwo\n</file>'},
    ]


def test_the_chat_puts_later_systems_and_tools_into_the_assistants_mouth() -> None:
    asked = asked_test(
        said("system", "a"),
        said("system", "b"),
        said("user", "q"),
        said("system", "c"),
        said("assistant", "d"),
        said("tool", {"r": 1}),
        guidelines="g",
    )

    assert asked.chat() == [
        {"role": "system", "content": "[[ ## Guidelines ## ]]\n\ng\n\na\n\nb"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "@[System]:\nc"},
        {"role": "assistant", "content": "d"},
        {"role": "assistant", "content": '@[Tool]:\n{\n  "r": 1\n}'},
    ]
