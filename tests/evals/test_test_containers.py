"""Tests that bring a container image: agents work in it, what can't be had is refused before a model is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.runs.making import recorded_run
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedServer, chat_response
from manyhands.workloads.evals.validation import validate
from manyhands.workloads.evals.workload import EvalsWorkload
from tests.support.eval_runs import EvalRun, perform_eval
from tests.support.image_tars import full_image
from tests.support.unpacked_images import image_file

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")
PASSES = [{"type": "regex", "value": ".*"}]
COMMAND = "echo in ${OF_THE_IMAGE:-none} >>log"


def reply(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"][-1:]):
        return chat_response("Done.")
    function = {"name": "terminal", "arguments": json.dumps({"command": COMMAND})}
    return chat_response(None, tool_calls=[{"id": "a", "type": "function", "function": function}])


def write(
    folder: Path, images: dict[str, Any], target: dict[str, Any] | None = None, graders: Any = PASSES, **more: Any
) -> None:
    """``images``: the ``docker`` of each test, by its id."""
    (folder / "template").mkdir(exist_ok=True)
    (folder / "template" / "log").write_text("template\n")
    about = {"name": "t", "provider": "agent", "model": "m", "toolsets": ["terminal"], "sandbox": "bubblewrap"}
    tests = [
        {"id": name, "input": "Work.", "assert": graders, "workspace": {"docker": docker, **more} if docker else {}}
        for name, docker in images.items()
    ]
    suite = {"targets": [{**about, **(target or {})}], "workspace": {"template": "template"}, "tests": tests}
    (folder / "suite.yaml").write_text(json.dumps(suite))


async def perform(folder: Path, **settings: Any) -> tuple[EvalRun, int]:
    """The run, and how often the model was called."""
    async with ScriptedServer(reply) as server:
        suite = json.loads((folder / "suite.yaml").read_text())
        suite["targets"][0]["base_url"] = server.base_url
        (folder / "suite.yaml").write_text(json.dumps(suite))
        try:
            return await perform_eval(folder, **settings), len(server.requests)
        except UserError:
            assert not server.requests
            raise


def added(run: EvalRun, test_id: str) -> list[str]:
    changes = run.record(test_id)["file_changes"].splitlines()
    return [line[1:] for line in changes if line.startswith("+") and not line.startswith("+++")]


async def test_each_test_gets_its_own_image_which_is_recorded_with_the_run(tmp_path: Path) -> None:
    image = image_file(full_image())
    write(tmp_path, {"plain": None, "boxed": {"image": image, "memory": "256m", "timeout": 9}})
    run, _ = await perform(tmp_path)
    assert run.statuses() == {"plain": "passed", "boxed": "passed"}, run.records()
    assert added(run, "plain")[0] == "in none"
    assert added(run, "boxed")[0] == "in yes"
    pins = list(EvalsWorkload(recorded_run(run.folder, "evals").spec, run.folder).prepared.pins.values())
    assert [list(each.images) for each in pins] == [[image]]


async def test_images_that_do_not_exist_are_named_with_their_tests_and_can_be_skipped(tmp_path: Path) -> None:
    missing = {"image": f"tar:{tmp_path}/none.tar"}
    write(tmp_path, {"plain": None, "a": missing, "b": missing})
    with pytest.raises(
        UserError, match=r"2 tests whose image does not exist: .*none\.tar \(tests a, b\); --skip_invalid"
    ):
        await perform(tmp_path)
    run, calls = await perform(tmp_path, skip_invalid=True)
    assert calls > 0
    assert run.record("plain")["status"] == "passed"
    assert "its image does not exist" in run.record("a")["error"]


@pytest.mark.parametrize(
    ("target", "graders", "more", "problem"),
    [
        ({"provider": "model", "toolsets": None, "sandbox": None}, PASSES, {}, "is of kind model, which works outside"),
        ({"toolsets": []}, PASSES, {}, "has no toolsets to work in it with"),
        ({"sandbox": "local"}, PASSES, {}, r"--sandbox local can't be made of images.*1 test with a container image: "),
        (
            {},
            [{"type": "code_grader", "command": ["true"]}],
            {},
            "programs, such as grader .* can't grade in containers",
        ),
        (
            {},
            PASSES,
            {"repos": [{"path": "/testbed", "commit": "abc"}]},
            "repositories in an image can't be checked out",
        ),
        ({}, PASSES, {"mode": "static", "path": "template"}, "can't work in an existing folder"),
    ],
)
async def test_what_cannot_be_had_in_a_container_is_one_line(
    target: dict[str, Any], graders: Any, more: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    write(tmp_path, {"a": {"image": "some/image"}}, {k: v for k, v in target.items() if v is not None}, graders, **more)
    suite = json.loads((tmp_path / "suite.yaml").read_text())
    suite["targets"][0] = {k: v for k, v in suite["targets"][0].items() if target.get(k, 0) is not None}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    with pytest.raises(UserError, match=problem) as refused:
        await perform(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_sizes_and_names_are_checked_with_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": {"image": "a b", "memory": "much"}})
    (report,) = validate([str(tmp_path / "suite.yaml")], environ={})
    assert any("docker.image: 'a b' is no name of a container image" in each for each in report.problems), report
    assert any("docker.memory: must be a number of bytes" in each for each in report.problems), report
