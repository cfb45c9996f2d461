"""A model that is named without saying where goes to its own provider, and a resume goes there again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from manyhands.agents.run_settings import usable_keys
from manyhands.core.errors import UserError
from manyhands.engine.journal.reader import JournalReader
from manyhands.graders.conversations.grade_file import GradeFile
from manyhands.workloads.csv_jobs.service.jobs import JobService
from manyhands.workloads.csv_jobs.spec import JobSpec
from manyhands.workloads.memory.agents.choice import choose_agent
from manyhands.workloads.memory.settings import MemorySpec, keys_of, with_endpoints
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.spec import BatchSpec

OPENAI = {"OPENAI_API_KEY": "sk-0123456789abcdef"}
OPENROUTER = {"OPENROUTER_API_KEY": "sk-or-0123456789abcdef"}
URL = "https://api.openai.com/v1"


def recorded(folder: Path) -> str:
    """The address that a run has recorded."""
    reader = JournalReader(folder)
    try:
        return str(reader.meta("spec")["options"]["base_url"])
    finally:
        reader.close()


async def opened(folder: Path, environ: dict[str, str], notes: list[str], *, resume: bool = False) -> Path:
    (folder / "d.jsonl").write_text('{"prompt": "one"}\n')
    spec = BatchSpec.make(
        {
            "dataset_file": str(folder / "d.jsonl"),
            "batch_size": 1,
            "run_name": "r",
            "model": "gpt-5-mini",
            "data_dir": str(folder / "data"),
            "distribution": "terminal_only",
            "sandbox": "local",
        }
    )
    return (await open_batch(spec, resume=resume, notice=notes.append, environ=environ)).folder


async def test_a_batch(tmp_path: Path) -> None:
    notes: list[str] = []
    run = await opened(tmp_path, OPENAI, notes)
    assert recorded(run) == URL
    assert any("gpt-5-mini is called at https://api.openai.com/v1" in note for note in notes)
    await opened(tmp_path, {**OPENAI, **OPENROUTER}, [], resume=True)
    assert recorded(run) == URL
    with pytest.raises(UserError, match=r"no key for api\.openai\.com: set OPENAI_API_KEY"):
        await opened(tmp_path, OPENROUTER, [], resume=True)


async def test_without_any_key_the_line_says_which_would_do(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"set OPENROUTER_API_KEY \(or OPENAI_API_KEY, to call it at api\.openai\.com\)"
    ):
        await opened(tmp_path, {}, [])


async def test_a_job(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    service = JobService(tmp_path / "data", environ=OPENAI)
    values = {"csv_path": str(tmp_path / "t.csv"), "instruction": "{a}", "model": "o4-mini", "toolsets": "none"}
    spawned = await service.spawn(JobSpec.make(values), notice=lambda text: None, start=False)
    assert await asyncio.to_thread(recorded, spawned.folder) == URL


def test_a_memory_benchmark() -> None:
    agents = [choose_agent("gpt-5-mini"), choose_agent("retrieval(gpt-5-nano)")]
    values = {"configuration": "c.yaml", "agent_name": ["gpt-5-mini", "retrieval(gpt-5-nano)"]}
    environ = {**OPENAI, "ANTHROPIC_API_KEY": "sk-ant-0123456789abcdef"}
    options = MemorySpec.make({**values, "judge_model": "claude-sonnet-4-6"})
    found = with_endpoints(options, agents, environ, lambda text: None)
    assert (found.base_url, found.judge_base_url) == (URL, "https://api.anthropic.com/v1")
    assert keys_of(found, agents, environ) == {
        "api_key": environ["OPENAI_API_KEY"],
        "judge_api_key": environ["ANTHROPIC_API_KEY"],
    }
    given = MemorySpec.make({**values, "judge_model": "claude-sonnet-4-6", "base_url": "http://h/v1"})
    assert with_endpoints(given, agents, environ, lambda text: None) == given


@pytest.mark.parametrize(
    ("judge", "extra_body", "send_reasoning"),
    [({"model": "j"}, None, None), ({"extra_body": {"a": 1}, "model": "j"}, {"a": 1}, None), ({}, {"k": 1}, "always")],
)
def test_a_judge_of_another_model_gets_nothing_of_the_agents(
    judge: dict[str, object], extra_body: object, send_reasoning: str | None
) -> None:
    given = {"extra_body": {"k": 1}, "send_reasoning": "always", "stop": ["#"], "tool_choice": "auto"}
    options = BatchSpec.unchecked(dataset_file="d", batch_size=1, run_name="r", model="m", **given)
    found = GradeFile("g.yaml", [], (), 0.5, 1.0, judge).judge_options(options)
    assert (found.extra_body, found.send_reasoning) == (extra_body, send_reasoning)
    assert (found.stop, found.tool_choice) == (None, None)
    if judge == {"model": "j"}:
        of_memory = MemorySpec.make({"configuration": "c.yaml", "agent_name": ["m"], "judge_model": "j", **given}).judge
        assert of_memory is not None
        assert {getattr(of_memory, name) for name in given} == {None}


def test_a_name_of_openrouters_is_told_what_there_is_a_key_for() -> None:
    options = BatchSpec.unchecked(dataset_file="d", batch_size=1, run_name="r", model="openai/gpt-5-mini")
    with pytest.raises(
        UserError, match=r"as there is OPENAI_API_KEY: api\.openai\.com may have it as --model gpt-5-mini"
    ):
        usable_keys(options, OPENAI)
