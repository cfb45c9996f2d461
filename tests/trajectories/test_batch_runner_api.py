"""``BatchRunner`` from Python: the original's interface, and what is added to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batch_runner
import pytest

import manyhands
from manyhands import BatchRunner, Callbacks, Progress, RunResult
from manyhands.core.errors import RunError, UserError
from manyhands.core.outcomes import ItemState, Outcome
from manyhands.engine.contract import Item
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import REASONED, BatchFolder, ServerThread

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchFolder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    return BatchFolder(tmp_path)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        yield running


def runner(server: ServerThread, **settings: Any) -> BatchRunner:
    given = {"base_url": server.base_url, "sandbox": "local", "executor": "local", **settings}
    return BatchRunner("d.jsonl", 2, "r", "terminal_only", **given)


def test_both_imports_are_the_same_class() -> None:
    assert batch_runner.BatchRunner is manyhands.BatchRunner


def test_the_original_s_example(folder: BatchFolder, server: ServerThread) -> None:
    (folder.path / "data").mkdir()
    folder.write_rows(["one", "two", "three"], "data/prompts.jsonl")
    made = BatchRunner(
        dataset_file="data/prompts.jsonl",
        batch_size=10,
        run_name="my_run",
        distribution="default",
        max_iterations=10,
        model="anthropic/claude-opus-4.6",
        num_workers=4,
        base_url=server.base_url,
        sandbox="local",
    )
    result = made.run(resume=False)
    assert (result.exit_code, result.done, result.ledger["completed"]) == (0, True, 3)
    assert len(folder.lines(name="my_run")) == 3
    assert {body["model"] for body in server.bodies} == {"anthropic/claude-opus-4.6"}
    assert made.run(resume=True).ledger["completed"] == 3
    assert len(server.requests) == 3


def test_every_argument_of_the_original(folder: BatchFolder, server: ServerThread) -> None:
    made = BatchRunner(
        dataset_file=folder.path / "d.jsonl",
        batch_size=2,
        run_name="r",
        distribution="terminal_only",
        max_iterations=5,
        base_url=server.openrouter_url,
        api_key="key-1234",
        model="anthropic/m",
        num_workers=2,
        verbose=True,
        ephemeral_system_prompt="Be brief.",
        log_prefix_chars=20,
        providers_allowed=["anthropic"],
        providers_ignored=["together"],
        providers_order=["x", "y"],
        provider_sort="price",
        max_tokens=77,
        reasoning_config={"enabled": True, "effort": "low", "max_tokens": 5},
        prefill_messages=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        max_samples=2,
        sandbox="local",
        executor="local",
    )
    assert made.run().exit_code == 0
    body = server.bodies[0]
    assert body["provider"] == {"only": ["anthropic"], "ignore": ["together"], "order": ["x", "y"], "sort": "price"}
    assert body["reasoning"] == {"enabled": True, "effort": "low", "max_tokens": 5}
    assert body["max_tokens"] == 77
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert "Be brief." in json.dumps(body["messages"][0])
    assert server.requests[0].headers["Authorization"] == "Bearer key-1234"
    assert len(server.requests) == 2


def test_none_means_the_default_as_it_did(folder: BatchFolder, server: ServerThread) -> None:
    optional = (
        "api_key",
        "ephemeral_system_prompt",
        "providers_allowed",
        "max_tokens",
        "prefill_messages",
        "max_samples",
    )
    assert runner(server, **dict.fromkeys(optional)).run().exit_code == 0
    assert BatchRunner("d.jsonl", 2, "x").model == "anthropic/claude-sonnet-4.6"


def test_attributes(folder: BatchFolder, server: ServerThread) -> None:
    folder.write_rows([{"prompt": "a", "label": 1}, "b", "c"])
    made = runner(server, max_tokens=9, verbose=True)
    assert made.output_dir == Path("data/r")
    assert made.checkpoint_file == Path("data/r/checkpoint.json")
    assert made.stats_file == Path("data/r/statistics.json")
    assert (made.dataset_file, made.batch_size, made.run_name, made.distribution) == (
        "d.jsonl",
        2,
        "r",
        "terminal_only",
    )
    assert (made.max_iterations, made.num_workers, made.max_tokens, made.verbose) == (10, 4, 9, True)
    assert [row["prompt"] for row in made.dataset] == ["a", "b", "c"]
    assert made.dataset[0]["label"] == 1
    assert [[(index, row["prompt"]) for index, row in batch] for batch in made.batches] == [
        [(0, "a"), (1, "b")],
        [(2, "c")],
    ]
    assert not made.output_dir.exists()
    with pytest.raises(AttributeError):
        _ = made.nonsense
    made.run()
    assert made.checkpoint_file.exists()
    assert made.stats_file.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"distribution": "nonsense"}, "nonsense"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_iterations": 0}, "max_turns"),
        ({"run_name": "a/b"}, "run_name"),
        ({"temprature": 1}, "did you mean temperature"),
        ({"num_workers": 0}, "num_workers"),
        ({"prefill_messages": [1]}, "message 1"),
    ],
)
def test_wrong_settings_are_value_errors_at_once(folder: BatchFolder, settings: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"dataset_file": "d.jsonl", "batch_size": 1, "run_name": "r", **settings}
    with pytest.raises(ValueError, match=said) as caught:
        BatchRunner(**given)
    assert isinstance(caught.value, UserError)
    assert not (folder.path / "data").exists()


def test_datasets_that_are_not_there_or_empty(folder: BatchFolder) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        BatchRunner("nowhere.jsonl", 1, "r")
    (folder.path / "empty.jsonl").write_text('{"no": "prompt"}\n')
    with pytest.raises(ValueError, match="no usable row"):
        BatchRunner("empty.jsonl", 1, "r")


def test_a_taken_name_and_a_missing_key(folder: BatchFolder, server: ServerThread) -> None:
    runner(server).run()
    with pytest.raises(RunError, match=r"continue it with run\(resume=True\)"):
        runner(server).run()
    with pytest.raises(UserError, match="OPENROUTER_API_KEY"):
        BatchRunner("d.jsonl", 2, "x", sandbox="local").run()


async def test_inside_a_running_loop_with_callbacks(folder: BatchFolder) -> None:
    progress: list[Progress] = []
    outcomes: list[tuple[Item, Outcome]] = []
    notices: list[str] = []
    (folder.path / "d.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\nnonsense\n')
    callbacks = Callbacks(
        on_progress=progress.append,
        on_outcome=lambda item, outcome: outcomes.append((item, outcome)),
        notice=notices.append,
    )
    with ServerThread([chat_response("unreasoned"), REASONED]) as server:
        result = await runner(server, num_workers=1, callbacks=callbacks).run_async()
    assert isinstance(result, RunResult)
    assert (result.ledger["completed"], result.ledger["discarded"], result.exit_code) == (1, 1, 0)
    assert (progress[-1].items, progress[-1].finished, progress[-1].in_flight) == (2, 2, 0)
    assert [(item.payload["prompt"], outcome.state) for item, outcome in outcomes] == [
        ("a", ItemState.DISCARDED),
        ("b", ItemState.COMPLETED),
    ]
    assert any("line 3" in notice for notice in notices)
    assert result.summary["usage"]["calls"] == 2


async def test_stop_finishes_the_calls_in_flight_and_can_be_resumed(folder: BatchFolder) -> None:
    folder.write_rows([f"prompt {number}" for number in range(10)])
    with ServerThread([ScriptedResponse(REASONED, delay=0.2)]) as server:
        made = runner(server, num_workers=2)
        running = asyncio.create_task(made.run_async())
        while not server.requests:
            await asyncio.sleep(0.02)
        made.stop()
        result = await running
        assert (result.interrupted, result.done, result.exit_code) == (True, False, 130)
        assert 0 < result.ledger["completed"] == len(server.requests) < 10
        assert len(folder.lines()) == result.ledger["completed"]
        assert (await runner(server).run_async(resume=True)).exit_code == 0
        assert len(server.requests) == 10


async def test_an_error_of_a_callback_stops_the_run_and_reaches_the_caller(folder: BatchFolder) -> None:
    def broken(_item: Item, _outcome: Outcome) -> None:
        raise ZeroDivisionError

    with ServerThread() as server:
        with pytest.raises(ZeroDivisionError):
            await runner(server, callbacks=Callbacks(on_outcome=broken)).run_async()
        assert runner(server).batches
        assert (await runner(server).run_async(resume=True)).ledger["completed"] == 3


async def test_two_runs_at_once_in_one_loop(folder: BatchFolder, server: ServerThread) -> None:
    first = runner(server)
    second = BatchRunner("d.jsonl", 2, "other", base_url=server.base_url, sandbox="local", executor="local")
    results = await asyncio.gather(first.run_async(), second.run_async())
    assert [result.ledger["completed"] for result in results] == [3, 3]


async def test_a_second_owner_of_one_run_is_refused(folder: BatchFolder) -> None:
    async def reply(_request: RecordedRequest) -> Reply:
        await asyncio.sleep(0.5)
        return REASONED

    with ServerThread(reply) as server:
        running = asyncio.create_task(runner(server).run_async())
        while not server.requests:
            await asyncio.sleep(0.02)
        with pytest.raises(RunError, match="being executed by process"):
            await runner(server).run_async(resume=True)
        assert (await running).exit_code == 0


def test_a_script_without_a_main_guard(folder: BatchFolder, server: ServerThread) -> None:
    """Worker processes do not import the caller's script."""
    (folder.path / "script.py").write_text(
        "from batch_runner import BatchRunner\n"
        f"r = BatchRunner('d.jsonl', 2, 'r', 'terminal_only', base_url={server.base_url!r}, sandbox='local', num_workers=2)\n"
        "print(r.run().ledger['completed'])\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder.path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "HOME": str(folder.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "3\n"), done


def test_the_originals_further_arguments_may_go_by_position(tmp_path: Path) -> None:
    dataset = tmp_path / "d.jsonl"
    dataset.write_text('{"prompt": "x"}\n')
    runner = BatchRunner(dataset, 2, "r", "default", 7, None, None, "simulated", 3)
    assert (runner.model, runner.num_workers, runner.max_iterations) == ("simulated", 3, 7)
    with pytest.raises(TypeError, match="multiple values for argument 'model'"):
        BatchRunner(dataset, 2, "r", "default", 7, None, None, "simulated", model="other")  # type: ignore[misc]


def test_a_budget_that_cannot_be_kept_is_named(folder: BatchFolder, server: ServerThread) -> None:
    folder.write_rows(["one"])
    (folder.path / "prices.yaml").write_text("my-own-model: {input: 1.0, output: 2.0}\n")
    said: dict[str, str] = {}
    cases: dict[str, dict[str, Any]] = {
        "unknown": {"model": "my-own-model", "max_cost": 1.0},
        "own price": {"model": "my-own-model", "max_cost": 1.0, "prices": "prices.yaml"},
        "known": {"model": "gpt-4o", "max_cost": 1.0},
        "no budget": {"model": "my-own-model"},
    }
    for name, settings in cases.items():
        notices: list[str] = []
        made = runner(server, callbacks=Callbacks(notice=notices.append), data_dir=name, **settings)
        assert made.run().exit_code == 0
        said[name] = "\n".join(notices)
    assert "no price is known for my-own-model, so max_cost counts only" in said["unknown"]
    assert not any("no price is known" in said[name] for name in ("own price", "known", "no budget"))


# --- Own functions as tools


def _calls_tool(request: RecordedRequest) -> Reply:
    if any(message["role"] == "tool" for message in request.body["messages"]):
        return REASONED
    function = {"name": "double", "arguments": '{"number": 21}'}
    return chat_response(None, reasoning="Hm.", tool_calls=[{"id": "c", "type": "function", "function": function}])


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_functions_as_tools(folder: BatchFolder, executor: str) -> None:
    factor = 2

    def local(number: int) -> int:
        """Twice a number."""
        return factor * number

    local.__name__ = "double"
    with ServerThread(_calls_tool) as server:
        tools = [local if executor == "local" else double]
        made = runner(server, tools=tools, executor=executor, max_samples=1, num_workers=1)
        assert made.run().exit_code == 0
        (told,) = (message["content"] for message in server.bodies[-1]["messages"] if message["role"] == "tool")
        assert told == "42"
        assert runner(server, tools=tools, executor=executor).run(resume=True).done
        with pytest.raises(UserError, match="worker processes can't import"):
            runner(server, tools=[local], executor="processes")
        with pytest.raises(UserError, match="is no function"):
            runner(server, tools=[3])
