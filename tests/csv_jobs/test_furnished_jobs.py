"""Files for the agents of jobs: what their rows get, what is collected from them into the results, and a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import ServerThread
from tests.support.job_folders import JobFolder, report, text_of

SECRET = "f00dcafe-tricky-42"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[JobFolder]:
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "log").write_text("template\n")
    with JobFolder(tmp_path, ["one", "two's; false"]) as made:
        yield made


@pytest.fixture
def server() -> Iterator[ServerThread]:
    def reply(request: RecordedRequest) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            prompt = next(text_of(each) for each in request.body["messages"] if each["role"] == "user")
            stage = next((name for name in ("first", "second") if f"Stage {name}" in prompt), None)
            return report(request, {"ok": True} if stage is None else {stage: "done"})
        arguments = json.dumps({"command": "echo agent >>log"})
        function = {"name": "terminal", "arguments": arguments}
        return chat_response("I work.", tool_calls=[{"id": "a", "type": "function", "function": function}])

    with ServerThread(reply) as found:
        yield found


def spawn(folder: JobFolder, server: ServerThread, *words: str) -> Any:
    return folder.jobs(*spawn_words(folder, server, *words))


def spawn_words(folder: JobFolder, server: ServerThread, *words: str) -> list[str]:
    usual = ("--model=m", f"--base_url={server.base_url}", "--toolsets=terminal", "--executor=local", "--quiet")
    return folder.spawn_words(*usual, *words)


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
def test_what_the_rows_change_is_a_column(kind: str, folder: JobFolder, server: ServerThread) -> None:
    words = ["--workspace=template", "--setup=echo {name} >>log", "--collect=cat log; printf '%s' {text}"]
    ended = spawn(folder, server, *words, f"--sandbox={kind}")
    assert ended.code == 0, ended
    assert [row["collected"] for row in folder.rows()] == [
        "template\na\nagent\none",
        "template\nb\nagent\ntwo's; false",
    ]
    assert {row["collected_problem"] for row in folder.rows()} == {""}
    assert folder.results() == [{"ok": True}] * 2
    assert "workspace, which holds the files to work on" in server.bodies[0]["messages"][0]["content"]
    exported = folder.jobs("export", "j", "--output=chosen.csv", "--output_columns=name,collected,results")
    assert exported.code == 0, exported
    assert list(folder.rows("chosen.csv")[0]) == ["name", "collected", "collected_problem", "result.ok"]
    assert folder.jobs("export", "j", "--output=flat.jsonl", "--flatten").code == 0
    line = json.loads((folder.path / "flat.jsonl").read_text().splitlines()[0])
    assert (line["collected"], line["result.ok"]) == ("template\na\nagent\none", True)
    asked = len(server.requests)
    checked = folder.jobs("show", "j", "row-1", "--json")
    assert (checked.code, len(server.requests)) == (0, asked)


def test_rows_bring_files_commands_and_variables_in_named_columns(folder: JobFolder, server: ServerThread) -> None:
    rows = [
        {
            "name": "a",
            "text": "t",
            "given": {"n/one": "1\n"},
            "prep": "echo set >>log",
            "vars": {"V": "row", "W": "row"},
        },
        {"name": "b", "text": "t", "given": None, "prep": "", "vars": '{"V": "text"}'},
    ]
    (folder.path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["--files_field=given", "--setup_field=prep", "--env_field=vars", "--container_env=W=run"]
    words = spawn_words(folder, server, *named, "--collect=cat n/one; cat log; echo $V $W")
    ended = folder.jobs(words[0], "rows.jsonl", *words[2:])
    assert ended.code == 0, ended
    assert [row["collected"] for row in folder.rows()] == ["1\nset\nagent\nrow run\n", "agent\ntext run\n"]


def test_a_bad_value_refuses_the_job_or_skips_the_row(folder: JobFolder, server: ServerThread) -> None:
    words = ["--env_field=text", "--collect=true"]
    ended = spawn(folder, server, *words)
    assert ended.code == 2
    assert 'line 2: "text" is text, expected an object of texts, or JSON text of one (on_bad_row=skip' in ended.err
    assert not folder.folder().exists()
    folder.write_rows(['{"A": "b"}', '{"A B": "c"}'])
    ended = spawn(folder, server, *words, "--on_bad_row=skip")
    assert [row["status"] for row in folder.rows()] == ["completed", "skipped"]
    assert 'line 3: "text" must begin with the name of a variable' in folder.rows()[1]["last_error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workspace=."], "holds the run's own folder"),
        (["--files_field=nope"], "files_field nope was not found in csv headers"),
        (["--user=someone"], "--user: only containers can do that, and bubblewrap sandboxes are none"),
        (["--container_env=HIDDEN"], "the environment variable HIDDEN is not set"),
        (["--setup=cat `echo {text}`"], "{text} can't be put into `…`"),
        (["--workspace=template", "--worker_command=cat"], "--workspace: for the built-in agent only"),
    ],
)
def test_what_cannot_be_given_is_refused_before_anything_is_made(
    words: list[str], said: str, folder: JobFolder, server: ServerThread
) -> None:
    given = words if "--worker_command=cat" not in words else None
    ended = spawn(folder, server, *words) if given else folder.spawn(*words)
    assert ended.code == 2, ended
    assert said in ended.err
    assert not folder.folder().exists()


def test_each_stage_has_a_world_of_its_own_and_the_last_is_collected(folder: JobFolder, server: ServerThread) -> None:
    stages = "- {name: first, instruction: 'Stage first: {text}.'}\n- {name: second, instruction: 'Stage second: {first}.'}\n"
    (folder.path / "stages.yaml").write_text(stages)
    words = spawn_words(
        folder, server, "--stages=stages.yaml", "--workspace=template", "--collect=cat log; echo {name}"
    )
    ended = folder.jobs(*[word for word in words if not word.startswith("--instruction")])
    assert ended.code == 0, ended
    assert [row["collected"] for row in folder.rows()] == ["template\nagent\na\n", "template\nagent\nb\n"]


def test_a_job_killed_while_it_collects_asks_nothing_again(
    folder: JobFolder, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_rows(["one"])
    monkeypatch.setenv("HIDDEN", SECRET)
    gate = 'echo try >>log; while [ -z "$GO" ]; do sleep 0.05; done; cat log'
    words = ["--workspace=template", f"--collect={gate}; echo $HIDDEN", "--container_env=HIDDEN", "--container_env=GO"]
    monkeypatch.setenv("GO", "")
    log = folder.folder() / "workspaces" / "1-1" / "workspace" / "log"
    with folder.begin(*spawn_words(folder, server, *words)) as following:
        assert following.wait_until(lambda: log.exists() and "try" in log.read_text())
        os.kill(folder.runner(), signal.SIGKILL)
        following.wait()
    assert len(server.requests) == 2
    monkeypatch.setenv("GO", "yes")
    ended = folder.jobs("run", "j", "--quiet")
    assert ended.code == 0, ended
    assert len(server.requests) == 2
    assert folder.rows()[0]["collected"] == "template\nagent\ntry\n[redacted]\n"
    for path in folder.folder().rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
