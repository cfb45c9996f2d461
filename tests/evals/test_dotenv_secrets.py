"""Secrets of ``.env`` files are in nothing that a run of evaluations leaves behind or shows."""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from manyhands.engine.journal.records import unpack
from manyhands.testing.scripted_server import chat_response
from tests.support.batches import Ran, ServerThread, read_lines, run_command

BLOBS = {"items": ("payload", "record"), "steps": ("request", "output")}
OUTPUTS = ("o.xml", "o.html", "o.json", "o.jsonl", "o.yaml")
SECRETS = {"odd": 'pw-{name}/é"x\\y&z 0123', "lines": "pw-{name}-line-a\nb\tc 0123\nd", "plain": "pw-{name}abcdef"}
"""Characters that JSON, pages and shells escape, and none do alike; several lines, as keys in files have; and neither."""
PROGRAM = """\
import json, os, sys
def leaks(name="VAULT_TOKEN"):
    value = os.environ[name]
    return {"plain": value, "json": json.dumps(value), "twice": json.dumps(json.dumps(value)), value: 1}
def answer(asked):
    values = dict(line.split("=", 1) for line in open(os.path.join(os.path.dirname(__file__), "copy")).read().splitlines())
    return {"text": values["VAULT_TOKEN"].strip("'"), "output": [{"role": "assistant", "content": values["VAULT_TOKEN"].strip("'")}]}
if __name__ == "__main__":
    how = sys.argv[1]
    if how == "text":
        print(os.environ["VAULT_TOKEN"], "and", leaks())
    elif how == "record":
        call = {"tool": "t", "input": leaks(), "output": leaks()}
        messages = [{"role": "assistant", "content": leaks(), "tool_calls": [call]}]
        open(sys.argv[2], "w").write(json.dumps({"output": messages, "token_usage": {"input": 1, "output": 1}}))
    elif how == "error":
        open(sys.argv[2], "w").write(json.dumps({"error": {"message": "no " + os.environ["VAULT_TOKEN"], "code": 1}}))
    elif how == "fails":
        sys.stderr.write("x" * 1990 + os.environ["VAULT_TOKEN"]); sys.exit(3)
    elif how == "batch":
        print(os.environ["VAULT_TOKEN"]); sys.stderr.write(json.dumps(leaks()))
        with open(sys.argv[2], "w") as out:
            for each in open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split():
                said = [{"role": "assistant", "content": leaks()}]
                out.write(json.dumps({"id": each, "text": json.dumps(leaks()), "output": said}) + "\\n")
            out.write(json.dumps({"id": os.environ["VAULT_TOKEN"]}) + "\\nnonsense " + os.environ["VAULT_TOKEN"] + "\\n")
    elif how == "judge":
        told = json.load(sys.stdin)
        found = str(told.get("answer", told.get("output")))
        print(json.dumps({"score": 1, "hits": [os.environ["VAULT_TOKEN"]], "misses": [found], "reasoning": found, "details": leaks()}))
    elif how == "plain":
        print("fine", os.environ["VAULT_TOKEN"])
    elif how == "breaks":
        sys.exit(os.environ["VAULT_TOKEN"])
    elif how == "hook":
        print(os.environ["VAULT_TOKEN"])
        if os.environ.get("MANYHANDS_WORKSPACE"):
            open(os.path.join(os.environ["MANYHANDS_WORKSPACE"], "before.txt"), "w").write("x")
    elif how == "writes":
        open("note.txt", "w").write(os.environ["VAULT_TOKEN"] + "\\n" + json.dumps(leaks()))
        print("done")
"""


def spellings(value: str) -> list[bytes]:
    once, twice = json.dumps(value)[1:-1], json.dumps(json.dumps(value)[1:-1])[1:-1]
    readable = json.dumps(value, ensure_ascii=False)[1:-1]
    core = value[3:15]  # the part that every spelling has
    return [text.encode() for text in (value, once, twice, readable, core)]


def everything(folder: Path, ran: Ran) -> Iterator[tuple[str, bytes]]:
    yield "stdout", ran.out.encode()
    yield "stderr", ran.err.encode()
    for name in OUTPUTS:
        yield name, (folder / name).read_bytes() if (folder / name).exists() else b""
    for path in (folder / "data").rglob("*"):
        if path.is_file() and "workspaces" not in path.parts:  # what a target wrote there is its own
            yield str(path), path.read_bytes()
    with closing(sqlite3.connect(folder / "data/r/run.db")) as journal:
        for table, columns in BLOBS.items():
            for column in columns:
                for (blob,) in journal.execute(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"):
                    yield f"{table}.{column}", str(blob if isinstance(blob, str) else unpack(blob)).encode()


def evaluate(folder: Path, value: str, suite: dict[str, Any], *words: str, where: str = ".env") -> Ran:
    (folder / "suites").mkdir(exist_ok=True)
    quoted = "'" + value + "'"
    (folder / where).write_text(f"VAULT_TOKEN={quoted}\n")
    (folder / "suites/copy").write_text(f"VAULT_TOKEN={quoted}\n")
    (folder / "suites/tool.py").write_text(PROGRAM)
    (folder / "suites/e.yaml").write_text(json.dumps(suite))
    outputs = [f"--output={name}" for name in OUTPUTS]
    return run_command(folder, "eval", "suites/e.yaml", "--run_name=r", "--verbose", *outputs, *words)


def check(folder: Path, value: str, ran: Ran) -> None:
    for place, data in everything(folder, ran):
        for spelling in spellings(value):
            assert spelling not in data, (place, data[max(0, data.find(spelling) - 80) :][:200])


def program(how: str) -> str:
    return (
        f"{sys.executable} {{EVAL_DIR}}/tool.py {how} {{OUTPUT_FILE}}"
        if how in ("record", "error", "batch")
        else (f"{sys.executable} {{EVAL_DIR}}/tool.py {how}")
    )


GRADERS = [
    {"type": "contains", "name": "has", "value": "pw-"},
    {"type": "equals", "name": "is", "value": "x"},
    {"type": "regex", "name": "like", "value": "pw.*"},
    {"type": "is_json", "name": "json"},
    {"type": "code_judge", "name": "judge", "script": f"{sys.executable} tool.py judge"},
    {"type": "script", "name": "script", "script": f"{sys.executable} tool.py judge"},
    {"type": "script", "name": "plain", "script": f"{sys.executable} tool.py plain"},
    {
        "type": "composite",
        "name": "both",
        "assert": [{"type": "script", "script": ["python3", "tool.py", "judge"], "name": "in"}],
    },
    {"type": "llm_judge", "name": "llm", "prompt": {"script": [sys.executable, "tool.py", "plain"]}},
]
TEST = {"id": "a", "input": "x", "criteria": "c", "expected_output": {"plain": "z"}}


@pytest.fixture(params=["odd"])
def value(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A secret of this test alone: once known, it would be taken out everywhere in this process."""
    monkeypatch.delenv("VAULT_TOKEN", raising=False)
    return SECRETS[request.param].format(name=secrets.token_hex(6))


@pytest.mark.parametrize(
    ("value", "where", "how"),
    [
        *(("odd", "suites/.env", how) for how in ("text", "record", "error", "fails", "batch", "writes")),
        *(("lines", ".env", how) for how in ("text", "record", "batch", "writes")),
        *(("plain", ".env", how) for how in ("text", "error")),
    ],
    indirect=["value"],
)
def test_of_commands_and_graders(tmp_path: Path, value: str, how: str, where: str) -> None:
    target = {"provider": "cli", "command": program(how), "provider_batching": how == "batch", "judge_target": "j"}
    target |= {"keep_temp_files": True, "verbose": True}
    suite = {
        "targets": {"t": target, "j": {"provider": "model", "model": "simulated"}},
        "execution": {"target": "t"},
        "assert": GRADERS,
        "tests": [TEST],
    }
    if how == "writes":
        hook = {"script": f"{sys.executable} tool.py hook"}
        suite["workspace"] = {"before_all": hook, "before_each": hook, "after_each": hook, "after_all": hook}
    ran = evaluate(tmp_path, value, suite, where=where)
    check(tmp_path, value, ran)
    (record,) = read_lines(tmp_path / "data/r/results.jsonl")
    assert ("redacted" in json.dumps(record)) or "***" in json.dumps(record)
    again = run_command(tmp_path, "eval", "suites/e.yaml", "--regrade=r", "--run_name=s", "--verbose")
    check(tmp_path, value, again)


@pytest.mark.parametrize("how", ["breaks", "fails"])
def test_of_graders_that_break(tmp_path: Path, value: str, how: str) -> None:
    graders = [
        {"type": kind, "name": kind, "script": f"{sys.executable} tool.py {how}"} for kind in ("code_judge", "script")
    ]
    suite = {"targets": {"t": {"provider": "mock"}}, "assert": graders, "tests": [TEST]}
    check(tmp_path, value, evaluate(tmp_path, value, suite))


def test_of_functions_and_files_of_answers(tmp_path: Path, value: str) -> None:
    function = {"provider": "python", "function": "tool.py:answer"}
    suite = {"targets": {"t": function}, "assert": [{"type": "contains", "value": "z"}], "tests": [TEST]}
    check(tmp_path, value, evaluate(tmp_path, value, suite, "--cache"))
    (tmp_path / "out.jsonl").write_text(
        json.dumps({"id": "a", "text": value, "output": [{"role": "assistant", "content": {value: value}}]})
    )
    ran = run_command(tmp_path, "eval", "suites/e.yaml", "--run_name=s", "--from_output=out.jsonl")
    check(tmp_path, value, ran)


@pytest.mark.parametrize("value", ["plain"], indirect=True)
def test_of_models_and_judges(tmp_path: Path, value: str) -> None:
    judged = json.dumps({"score": 1, "hits": [value], "misses": [], "reasoning": value})
    with ServerThread([chat_response(f"the key is {value}"), chat_response(judged)]) as server:
        model = {"provider": "model", "model": "m", "base_url": server.base_url, "api_key": "${{ VAULT_TOKEN }}"}
        suite = {"targets": {"m": model}, "assert": [{"type": "llm_judge"}], "tests": [TEST]}
        ran = evaluate(tmp_path, value, suite, "--workers=1")
        assert ran.code == 0, ran
        check(tmp_path, value, ran)


def test_of_files_that_are_overruled(tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_TOKEN", "another-value")
    suite = {
        "targets": {"t": {"provider": "cli", "command": "cat {EVAL_DIR}/../.env"}},
        "assert": [{"type": "equals", "name": "is", "value": "x"}],
        "tests": [TEST],
    }
    check(tmp_path, value, evaluate(tmp_path, value, suite))


def test_of_resumed_runs(tmp_path: Path, value: str) -> None:
    command = f"test -e {{EVAL_DIR}}/go || exit 1; {program('text')}"
    suite = {
        "targets": {"t": {"provider": "cli", "command": command}},
        "assert": [{"type": "equals", "name": "is", "value": "x"}],
        "tests": [TEST],
    }
    assert evaluate(tmp_path, value, suite).code == 3
    other = value.replace("pw-", "px-")  # it was changed between sessions
    (tmp_path / ".env").write_text(f"VAULT_TOKEN='{other}'\n")
    (tmp_path / "suites/go").touch()
    ran = run_command(tmp_path, "resume", "r", "--retry_errors")
    assert "[redacted]" in json.dumps(read_lines(tmp_path / "data/r/results.jsonl"))
    check(tmp_path, other, ran)
