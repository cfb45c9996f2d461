"""Files for the agents of batches: what rows and options give their sandboxes, what is collected, and what a kill in the middle leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, prompt_of, run_command
from tests.support.commands import Command, run

SECRET = "f00dcafe-tricky-41"
WORDS = ("--workspace=template", "--setup=./prepare {base}", "--collect=cat log; printf '%s' {base}")


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    template = tmp_path / "template"
    template.mkdir()
    (template / "prepare").write_text('#!/bin/sh\necho "prepared $1 $WHERE" >>log\n')
    (template / "prepare").chmod(0o755)
    return BatchFolder(
        tmp_path, [{"prompt": f"row {name}", "id": name, "base": f"{name}'s; false", "cores": 1} for name in "abc"]
    )


@pytest.fixture
def server() -> Iterator[ServerThread]:
    def reply(request: RecordedRequest) -> Reply:
        if len(request.body["messages"]) > 2:
            return REASONED
        arguments = json.dumps({"command": f"echo {prompt_of(request)} >>log; ls"})
        call = {"id": "a", "type": "function", "function": {"name": "terminal", "arguments": arguments}}
        return chat_response(None, reasoning="First look.", tool_calls=[call])

    with ServerThread(reply) as found:
        yield found


def collected(folder: BatchFolder, name: str = "r") -> dict[str, str]:
    return {line["metadata"]["item"]: line["metadata"]["collected"] for line in folder.lines(name=name)}


def batch(folder: BatchFolder, server: ServerThread, *words: str, code: int = 0) -> Ran:
    ran = folder.batch(f"--base_url={server.base_url}", *words)
    assert ran.code == code, ran
    return ran


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
def test_a_template_setup_and_collecting_are_one_command_line(
    kind: str, folder: BatchFolder, server: ServerThread
) -> None:
    batch(folder, server, *WORDS, f"--sandbox={kind}", "--container_env=WHERE=here")
    expected = {f"id:{name}#0": f"prepared {name}'s; false here\nrow {name}\n{name}'s; false" for name in "abc"}
    assert collected(folder) == expected
    assert {line["metadata"]["collected_problem"] for line in folder.lines()} == {""}
    assert any(
        "workspace, which holds the files to work on" in line["messages"][0]["content"] for line in server.bodies
    )
    ran = run_command(folder.path, "check", "data/r")
    assert (ran.code, server.requests[6:]) == (0, []), ran


def test_rows_name_files_commands_and_variables_only_where_the_person_says_so(
    folder: BatchFolder, server: ServerThread
) -> None:
    row = {
        "files": {"sub/given": "text\n"},
        "setup": "echo own setup",
        "env": {"MINE": "1"},
        "memory": 64,
        "network": True,
    }
    folder.write_rows([{"prompt": "p", **row}])
    batch(folder, server, "--run_name=unnamed", "--collect=ls; echo $MINE")
    assert collected(folder, "unnamed") == {f"{folder.lines(name='unnamed')[0]['metadata']['item']}": "log\n\n"}
    assert json.loads(folder.lines(name="unnamed")[0]["metadata"]["source"]) == row
    names = [f"--{kind}_field={kind}" for kind in ("files", "setup", "env", "memory", "network")]
    ran = batch(folder, server, "--run_name=named", *names, "--collect=cat sub/given; echo $MINE; ulimit -v")
    assert next(iter(collected(folder, "named").values())).startswith("text\n1\n")
    assert json.loads(folder.lines(name="named")[0]["metadata"]["source"]) == {}
    assert "rows ask for up to 64 GiB of memory; each gets at most 4" in ran.err


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("files", {"../up": "x"}, "\"x\" '../up' leads out of the workspace"),
        ("files", {"a": 1}, "\"x\" has a number at 'a', expected text"),
        ("files", "no JSON", '"x" is text, expected an object of texts, or JSON text of one'),
        ("setup", ["ls"], '"x" is a list, expected text'),
        ("env", {"A B": "x"}, '"x" must begin with the name of a variable'),
        ("env", {"MANYHANDS_RUN": "x"}, '"x" can\'t set MANYHANDS_RUN'),
        ("memory", "lots", '"x" must be a number from 0.0625 on'),
        ("network", "perhaps", '"x" must be yes or no'),
        ("network", ["a.example", "b.example:80"], "\"x\" 'b.example:80' names a port"),
    ],
)
def test_a_bad_value_is_a_bad_row(field: str, value: Any, said: str, folder: BatchFolder, server: ServerThread) -> None:
    good = {"files": {"a": "b"}, "setup": "true", "env": {"A": "b"}, "memory": 1, "network": "no"}[field]
    folder.write_rows([{"prompt": "good", "x": good}, {"prompt": "bad", "x": value}])
    ran = batch(folder, server, f"--{field}_field=x")
    assert f"line 2: {said}" in ran.err
    assert len(folder.lines()) == 1
    assert said in (folder.run() / "failures.jsonl").read_text().replace('\\"', '"')


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--user=nobody"], "--user: only containers can do that, and local sandboxes are none"),
        (["--cpus_field=cores"], "--cpus_field: only containers can do that"),
        (["--workspace=nowhere"], "--workspace: there is no folder"),
        (["--workspace=."], "holds the run's own folder"),
        (["--setup_field=none"], 'no row has anything in "none", which --setup_field names'),
        (["--image_field=none"], 'no row has anything in "none", which --image_field names'),
        (["--collect=cat `echo {base}`"], "{base} can't be put into `…`"),
        (["--container_env=A B=c"], "must begin with the name of a variable"),
        (["--container_env=API_TOKEN=f00dcafe-tricky-41"], "API_TOKEN looks like a secret, which would be recorded"),
        (["--container_env=NOT_SET_ANYWHERE"], "the environment variable NOT_SET_ANYWHERE is not set"),
        (["--project=nowhere"], "project: there is no folder"),
    ],
)
def test_what_cannot_be_given_is_refused_before_anything_is_made(
    words: list[str], said: str, folder: BatchFolder, server: ServerThread
) -> None:
    ran = batch(folder, server, *words, code=2)
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert SECRET not in ran.err
    assert not folder.run().exists()
    assert server.requests == []


def test_a_failed_setup_fails_its_item_before_any_model_call(folder: BatchFolder, server: ServerThread) -> None:
    batch(folder, server, "--setup=echo missing tool >&2; exit 4", code=1)
    (failure, *more) = folder.lines("failures.jsonl")
    assert len(more) == 2
    assert failure["cause"] == "invalid_input"
    assert failure["message"] == "the setup command failed (exit code 4): missing tool"
    assert server.requests == []


def test_a_row_without_a_field_that_a_command_names_fails(folder: BatchFolder, server: ServerThread) -> None:
    folder.write_rows([{"prompt": "with", "base": "x"}, {"prompt": "without"}])
    batch(folder, server, "--collect=echo {base} {other}", code=1)
    assert list(collected(folder).values()) == ["x {other}\n"]
    assert (
        folder.lines("failures.jsonl")[0]["message"] == "the row has no field 'base', which a command of the run names"
    )


def test_what_fails_while_collecting_is_said_and_loses_nothing(folder: BatchFolder, server: ServerThread) -> None:
    batch(folder, server, "--collect=echo partly; echo why >&2; exit 9")
    metadata = folder.lines()[0]["metadata"]
    assert (metadata["collected"], metadata["collected_problem"]) == ("partly\nwhy\n", "exit code 9")


def test_a_project_is_read_and_not_changed(folder: BatchFolder, server: ServerThread) -> None:
    (folder.path / "project").mkdir()
    (folder.path / "project" / "known").write_text("known\n")
    words = [
        "--project=project",
        "--sandbox=bubblewrap",
        "--collect=pwd; cat $PROJECT/known; touch $PROJECT/x 2>/dev/null || echo no",
    ]
    batch(folder, server, *words, "--run_name=alone")
    assert set(collected(folder, "alone").values()) == {"/project\nknown\nno\n"}
    assert "can be read but not changed" in server.bodies[0]["messages"][0]["content"]
    batch(folder, server, *words, "--workspace=template", "--run_name=both")
    assert set(collected(folder, "both").values()) == {"/workspace\nknown\nno\n"}


def test_a_secret_reaches_commands_and_no_record(
    folder: BatchFolder, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", SECRET)
    words = ("--container_env=HIDDEN", "--collect=printf '%s' $HIDDEN | wc -c; echo $HIDDEN")
    batch(folder, server, *words)
    assert set(collected(folder).values()) == {f"{len(SECRET)}\n[redacted]\n"}
    for path in folder.run().rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    monkeypatch.delenv("HIDDEN")
    assert "HIDDEN is not set" in batch(folder, server, "--resume", code=2).err


def test_a_row_that_asks_for_another_world_is_other_work(folder: BatchFolder, server: ServerThread) -> None:
    rows = [{"prompt": "p", "id": name, "prep": f"echo {name} >>log"} for name in "ab"]
    folder.write_rows(rows)
    batch(folder, server, "--setup_field=prep", "--collect=cat log")
    folder.write_rows([rows[0], {**rows[1], "prep": "echo changed >>log"}])
    asked = len(server.requests)
    batch(folder, server, "--resume", "--setup_field=prep", "--collect=cat log")
    assert len(server.requests) == asked + 2
    assert sorted(collected(folder).values()) == ["a\nrow p\n".replace("row ", ""), "changed\np\n"]


def test_a_changed_template_is_said_and_what_has_not_begun_gets_it(folder: BatchFolder, server: ServerThread) -> None:
    batch(folder, server, *WORDS, "--max_samples=1")
    (folder.path / "template" / "prepare").write_text("#!/bin/sh\necho changed >>log\n")
    ran = batch(folder, server, *WORDS, "--resume", "--max_samples=2")
    assert "template changed since the run was made" in ran.err
    found = collected(folder)
    assert found["id:a#0"].startswith("prepared ")
    assert found["id:b#0"].startswith("changed\n")


# --- Kills


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("setup", "bubblewrap"),
        ("collect", "local"),
        pytest.param("setup", "local", marks=pytest.mark.slow),
        pytest.param("collect", "bubblewrap", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_within_a_command_does_that_once_more_and_nothing_else(
    place: str, kind: str, folder: BatchFolder, server: ServerThread
) -> None:
    slow = f'echo {place} >>log; [ -n "$GO" ] || sleep 60'
    commands = [f"--setup={slow}", "--collect=cat log"] if place == "setup" else [f"--collect={slow}; cat log"]
    words = (
        *("batch", "--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r", "--distribution=terminal_only"),
        *(f"--sandbox={kind}", "--quiet", "--max_samples=1", "--num_workers=1", f"--base_url={server.base_url}"),
        *(*commands, "--container_env=GO"),
    )
    marked = folder.run() / "workspaces" / "1-1" / "workspace" / "log"
    with Command(*words, folder=folder.path, environ={"GO": ""}) as command:
        assert command.wait_until(lambda: marked.exists() and place in marked.read_text())
        command.kill()
    assert len(server.requests) == (0 if place == "setup" else 2)
    ended = run(*words, "--resume", folder=folder.path, environ={"GO": "yes"})
    assert ended.code == 0, ended
    assert len(server.requests) == 2
    line = folder.lines()[0]
    assert line["metadata"]["attempt"] == 1
    assert line["metadata"]["collected"] == ("setup\nrow a\n" if place == "setup" else "row a\ncollect\n")
