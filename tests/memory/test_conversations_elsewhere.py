"""Conversations of the memory benchmark that are held by a worker on another machine, with what such a worker gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.core.errors import UserError
from manyhands.engine.attempt import Failed
from tests.support.memory_benchmarks import log_of, opened, performed, write_configuration
from tests.support.node_folders import Elsewhere, node_folder

AGENT = '''
from pathlib import Path


class Keeper:
    """Keeps what it was told, and breaks once."""

    def __init__(self, save_path):
        self.seen = []
        self.file = Path(save_path) / "seen.txt"

    def reply(self, message):
        if len(self.seen) == 4 and not Path(__file__).with_name("mended").exists():
            raise RuntimeError("broken")
        self._keep(message)
        return f"reply {len(self.seen)}"

    def observe(self, message, reply):
        self._keep(message)

    def _keep(self, message):
        self.seen.append(message)
        self.file.write_text("\\n".join(str(len(each)) for each in self.seen))
'''


async def test_results_are_as_those_of_a_conversation_here(tmp_path: Path) -> None:
    write_configuration(tmp_path)
    local = opened(tmp_path, "simulated", executor="local")
    assert (await performed(local)).exit_code == 0
    (tmp_path / "there").mkdir()
    write_configuration(tmp_path / "there")
    run = opened(tmp_path / "there", "simulated", executor="ray")
    assert run.workload.execution.executor == "ray"
    key = run.workload.executed[0]["name"]
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "node") as worker:
        await worker.completed(key)
        assert worker.written() == set(run.workload.worker_results)
    assert not (run.folder / "results").exists()
    (worker.folder / run.workload.worker_results[0]).rename(run.folder / "results")
    assert log_of(run.folder) == log_of(local.folder)

    def results(folder: Path) -> dict[str, float]:
        found = (folder / "results").rglob("*_0.json")
        return {str(path.relative_to(folder)): json.loads(path.read_text())["score"] for path in found}

    assert results(run.folder) == results(local.folder)
    assert len(results(run.folder)) == 2


async def test_an_agent_whose_folder_is_on_another_node_hears_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_configuration(tmp_path)
    (tmp_path / "keeper.py").write_text(AGENT)
    run = opened(tmp_path, "python:keeper.py:Keeper", executor="ray")
    assert run.workload.modules == [("keeper.py", tmp_path)]
    key = run.workload.executed[0]["name"]
    monkeypatch.chdir("/")
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "first") as worker:
        failed = await worker.run(key)
        assert isinstance(failed, Failed), failed
        assert "broken" in failed.failure.message
        seen = worker.folder / "states" / "1-1" / "persistence" / "seen.txt"
        assert len(seen.read_text().split()) == 4
    (tmp_path / "mended").touch()
    async with Elsewhere.opened(run.folder, run.workload, tmp_path / "second") as worker:
        await worker.completed(key)
        again = worker.folder / "states" / "1-1" / "persistence" / "seen.txt"
        exchanges = worker.kinds(key).count("exchange")
        assert again.read_text().split()[:4] == seen.read_text().split()
        assert len(again.read_text().split()) == exchanges > 4
    assert not (tmp_path / "data" / "persistence").exists()


async def test_where_the_owner_is_and_how_it_counts_goes_with_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_configuration(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = opened(tmp_path, "command:cat", executor="ray", tokenizer="auto")
    assert run.workload.spec["owner"]["folder"] == str(tmp_path / "here")
    assert run.workload.spec["owner"]["tokenizer"] in ("cl100k", "estimate")
    worker = type(run.workload)(run.workload.spec, node_folder(run.folder, run.workload, tmp_path / "node"))
    async with worker.opened():
        pass
    (tmp_path / "here").rmdir()
    with pytest.raises(UserError, match=r"^--agent_name: the current folder: there is no .*/here on the node "):
        async with worker.opened():
            pass
    monkeypatch.chdir(tmp_path)
    assert "owner" not in opened(tmp_path, "command:cat", executor="local", tokenizer="auto").workload.spec
