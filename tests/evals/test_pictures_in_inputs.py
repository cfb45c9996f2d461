"""Inputs of eval files with pictures: models are shown them, commands are told where they are, and bad ones are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import chat_response
from manyhands.tools.services.artifacts import name_of
from tests.support.batches import Ran, ServerThread, read_lines, run_command
from tests.support.picture_files import data_address, picture

PNG = picture()
DATA = data_address(PNG)
NAME = name_of(PNG, "image/png")
SHOWN = {"type": "image_url", "image_url": {"url": DATA}}
ADDRESS = "https://pictures.test/a.png"
WEB = {"type": "image_url", "image_url": {"url": ADDRESS}}


def evaluate(folder: Path, suite: dict[str, Any], *words: str) -> Ran:
    (folder / "a.png").write_bytes(PNG)
    for test in suite["tests"]:
        test.setdefault("assert", [{"type": "contains", "value": "ed"}])
    (folder / "suite.yaml").write_text(json.dumps(suite))
    return run_command(folder, "eval", "suite.yaml", "--run_name=r", "--quiet", *words)


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_models_are_shown_the_pictures_of_a_test(tmp_path: Path) -> None:
    text = {"type": "text", "value": "Which colour?"}
    tests = [
        {"id": "one", "input": user(text, {"type": "image", "image": "a.png"}, WEB)},
        {"id": "two", "input": user({"type": "image_url", "image_url": {"url": DATA}}, "And this?")},
        {"id": "told", "input": user(text, {"type": "image", "value": "a.png"})},
        {
            "id": "turns",
            "mode": "conversation",
            "turns": [{"input": user({"type": "input_image", "image_url": "a.png"})}, {"input": "And now?"}],
        },
    ]
    with ServerThread([chat_response("Red, I looked.")]) as server:
        target = {"provider": "model", "model": "m", "base_url": server.base_url, "system_prompt": ""}
        suite = {"targets": {"m": target}, "tests": tests}
        ran = evaluate(tmp_path, suite, "--workers=1")
        assert ran.code == 0, ran
        asked = [body["messages"] for body in server.bodies]
        ran = evaluate(tmp_path, suite, "--resume")
        assert (ran.code, "suite.yaml" in ran.err, len(server.bodies)) == (0, False, len(asked)), (
            ran
        )  # nothing was edited
    assert [messages[0]["content"] for messages in asked] == [
        [{"type": "text", "text": "Which colour?"}, SHOWN, WEB],
        [SHOWN, {"type": "text", "text": "And this?"}],
        'Which colour?\n\n<image path="a.png">',
        [SHOWN],
        [SHOWN],
    ]
    assert [path.name for path in (tmp_path / "data/r/artifacts").iterdir()] == [NAME]
    coded = DATA.partition(",")[2].encode()
    files = [path for path in (tmp_path / "data/r").rglob("*") if path.is_file() and path.parent.name != "artifacts"]
    assert not [path for path in files if coded in path.read_bytes()]
    ran = run_command(tmp_path, "export", "r", "--to", "openai", "--output", "out.jsonl")
    assert ran.code == 0, ran
    assert read_lines(tmp_path / "out.jsonl")[0]["messages"][0]["content"][1] == SHOWN
    ran = run_command(tmp_path, "show", "r", "1")
    assert f"<image artifacts/{NAME}>" in ran.out


def test_a_command_is_told_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("import sys; print(sys.argv[1], 'red')")
    target = {"provider": "cli", "command": [sys.executable, "echo.py", "{PROMPT}"]}
    tests = [{"id": "one", "input": user("Which?", {"type": "image", "image": "a.png"}, WEB)}]
    ran = evaluate(tmp_path, {"targets": {"c": target}, "tests": tests})
    assert ran.code == 0, ran
    answer = read_lines(tmp_path / "data/r/results.jsonl")[0]["answer"]
    assert answer.split() == ["Which?", "<image", f"artifacts/{NAME}>", "<image", f"{ADDRESS}>", "red"]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image", "image": "none.png"}, "image: none.png: there is no such file"),
        ({"type": "image_url", "image_url": {"url": "../a.png"}}, "image_url.url: ../a.png: "),
        ({"type": "image_url", "image_url": {"url": "data:,x"}}, "image_url.url: a broken data address"),
        ({"type": "image", "image": "suite.yaml"}, "image: suite.yaml: this is no picture"),
    ],
)
def test_a_bad_picture_is_named_with_file_and_field(part: Any, said: str, tmp_path: Path) -> None:
    targets = {"m": {"provider": "mock", "response": "red"}}
    ran = evaluate(tmp_path, {"targets": targets, "tests": [{"id": "one", "input": user("Which?", part)}]})
    assert ran.code == 2
    assert "suite.yaml, line 1: tests[0].input[0].content[1]: " + said in ran.err
