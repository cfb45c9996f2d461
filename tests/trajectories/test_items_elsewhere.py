"""Items of batches executed by a worker on another machine: in a folder that has only what such a worker gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.contract import RecordedStep
from manyhands.runs.making import Opened
from manyhands.testing.scripted_server import chat_response
from manyhands.tools.services.artifacts import ArtifactStore, reference
from manyhands.workloads.imported.opening import make_import
from manyhands.workloads.imported.spec import ImportSpec
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.spec import BatchSpec
from manyhands.workloads.trajectories.workload import TrajectoryWorkload
from tests.support.batches import ServerThread
from tests.support.made_tasks import make_task
from tests.support.node_folders import Elsewhere
from tests.support.picture_files import data_address, picture

TOOL = 'def shout(text: str) -> str:\n    """Make it loud."""\n    return text.upper()\n'
JUDGE = 'def judge(payload):\n    return 1.0 if payload["answer"] else 0.0\n'
GRADE = [{"name": "judge", "type": "python", "function": "judge.py:judge"}]


async def batch(folder: Path, rows: list[dict[str, Any]] | None = None, **options: Any) -> Opened[TrajectoryWorkload]:
    if rows is not None:
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    usual = {"dataset_file": str(folder / "rows.jsonl"), "batch_size": 10, "run_name": "r", "executor": "ray"}
    usual |= {"data_dir": str(folder / "data"), "model": "simulated", "distribution": "terminal_only"}
    spec = BatchSpec.make({**usual, **options})
    return await open_batch(spec, resume=False, notice=lambda text: None, environ={})


def only(worker: Elsewhere) -> str:
    (row,) = worker.store.reader.items()
    return row.key


async def test_an_item_with_all_that_it_can_have(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(TOOL)
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "grade.yaml").write_text(json.dumps(GRADE))
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "given.txt").write_text("given")
    (tmp_path / "prices.yaml").write_text("some/model: {input: 1, output: 2}\n")
    rows = [{"prompt": "Do it.", "files": {"more.txt": "more"}}]
    options = {"tools": [str(tmp_path / "tool.py")], "grade": str(tmp_path / "grade.yaml"), "files_field": "files"}
    options |= {"workspace": str(tmp_path / "template"), "setup": "cat given.txt more.txt > all.txt"}
    options |= {"collect": "cat all.txt", "prices": str(tmp_path / "prices.yaml")}
    run = await batch(tmp_path, rows, **options)
    (tmp_path / "prices.yaml").unlink()
    assert run.workload.modules == [(str(tmp_path / "tool.py"), tmp_path), ("judge.py", tmp_path)]
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node") as worker:
        record = await worker.completed(only(worker))
        assert worker.written() == set()
    assert record["collected"]["output"] == "givenmore"
    assert record["grade"]["score"] == 1.0


async def test_a_task_leaves_its_artifacts_where_they_are_brought_back_from(tmp_path: Path) -> None:
    test = "#!/bin/bash\n[ -e /tmp/made ] && echo 1 > /logs/verifier/reward.txt\n"
    make_task(tmp_path / "tasks" / "one", toml='artifacts = ["/tmp/made"]\n', test=test)
    run = await batch(tmp_path, dataset_file=str(tmp_path / "tasks"), agent_command="echo hi > /tmp/made")
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node") as worker:
        record = await worker.completed(only(worker))
        assert [each.read_text() for each in (worker.folder / "artifacts" / "1-1").rglob("made")] == ["hi\n"]
        assert worker.written() == {"artifacts"} == set(run.workload.worker_results)
    assert record["grade"]["score"] == 1.0


async def test_pictures_of_prompts_are_sent_from_there(tmp_path: Path) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_address(picture())}}]
    with ServerThread([chat_response("Seen.", reasoning="I look.")]) as server:
        run = await batch(tmp_path, [{"prompt": content}], model="m", base_url=server.base_url, api_key="k")
        async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node") as worker:
            await worker.completed(only(worker))
        asked = server.bodies[-1]["messages"][-1]["content"]
    assert asked == content


async def test_pictures_of_an_attempt_that_goes_on_elsewhere_go_with_it(tmp_path: Path) -> None:
    here, there = ArtifactStore(tmp_path / "run"), ArtifactStore(tmp_path / "node")
    name = await here.put(picture(), "image/png")
    message = {"role": "user", "content": [reference(name), reference("0" * 64 + ".png")]}
    facts = here.carried([RecordedStep(1, "", 0, "tool", {}, {"message": message}, 0.0, 0.0, {})])
    there.take(json.loads(json.dumps(facts)))
    assert await there.get(name) == picture()
    assert here.carried([]) == {}


async def test_imported_conversations_are_graded_there(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "grade.yaml").write_text(json.dumps(GRADE))
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day."}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "a", "conversations": turns}) + "\n")
    given = {"input_files": str(tmp_path / "rows.jsonl"), "from_": "sharegpt", "run_name": "i", "executor": "ray"}
    given |= {"grade": str(tmp_path / "grade.yaml"), "data_dir": str(tmp_path / "data")}
    run = make_import(ImportSpec.make(given), lambda text: None, {})
    assert run.workload.modules == [("judge.py", tmp_path)]
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node") as worker:
        record = await worker.completed(only(worker))
    assert record["grade"]["score"] == 1.0


async def test_what_a_node_lacks_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    run = await batch(tmp_path, [{"prompt": "Do it."}], workspace=str(tmp_path / "template"))
    (tmp_path / "template").rmdir()
    with pytest.raises(UserError, match=r"^--workspace: there is no .*/template on the node .* on each node$"):
        async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node"):
            pass


async def test_agents_start_no_jobs_there(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("mine: {toolsets: {collab: 50}}\n")
    own = {"distribution": "mine", "distributions_file": str(tmp_path / "own.yaml")}
    with pytest.raises(UserError, match=r"^toolset collab: agents on the nodes of a cluster can't start jobs"):
        await batch(tmp_path, [{"prompt": "Do it."}], **own)
