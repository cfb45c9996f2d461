"""The simulated model in this process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.agents.toolbox import Toolbox
from manyhands.core.clock import SystemClock
from manyhands.core.messages import Message
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.models.simulated.calls import NEVER, fits_roughly
from manyhands.models.simulated.model import REPORT_TOOL, SimulatedModel, simulate
from manyhands.tools.standard import standard_registry


def tool(name: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TEXT = {"type": "string"}
TASK = {"type": "object", "properties": {"id": TEXT, "content": TEXT, "status": {"enum": ["pending", "in_progress"]}}}
TOOLS = [
    tool("execute_code", {"code": TEXT}),
    tool("patch", {"mode": TEXT, "path": TEXT, "old_string": TEXT, "new_string": TEXT}),
    tool("process", {"action": TEXT}),
    tool("read_file", {"path": TEXT, "offset": {"type": "integer"}}, ["path"]),
    tool("search_files", {"pattern": TEXT, "path": TEXT}, ["pattern"]),
    tool("terminal", {"command": TEXT, "timeout": {"type": "integer"}}, ["command"]),
    tool("todo", {"todos": {"type": "array", "items": TASK}}),
    tool("write_file", {"path": TEXT, "content": TEXT}),
]
WEATHER = tool("weather", {"city": TEXT, "days": {"type": "integer", "minimum": 1, "maximum": 5}})


def converse(
    prompt: str, tools: list[dict[str, Any]], world: Path | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Let the model talk until it answers, with tools that really run in ``world``."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for _ in range(50):
        message = simulate(messages, tools, seed=seed)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return messages
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            result = perform(call["function"]["name"], arguments, world) if world else '{"output": "fine"}'
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise AssertionError("no end")


def perform(name: str, arguments: dict[str, Any], world: Path) -> str:
    if name == "write_file":
        (world / arguments["path"]).write_text(arguments["content"])
        return json.dumps({"written": len(arguments["content"])})
    if name == "patch":
        path = world / arguments["path"]
        text = path.read_text()
        assert text.count(arguments["old_string"]) == 1
        path.write_text(text.replace(arguments["old_string"], arguments["new_string"]))
        return json.dumps({"success": True})
    commands: dict[str, Callable[[], list[str]]] = {
        "read_file": lambda: ["cat", arguments["path"]],
        "search_files": lambda: ["grep", "-c", arguments["pattern"], arguments["path"]],
        "terminal": lambda: ["sh", "-c", arguments["command"]],
        "execute_code": lambda: ["python3", "-c", arguments["code"]],
        "todo": lambda: ["echo", str(len(arguments["todos"]))],
    }
    done = subprocess.run(commands[name](), cwd=world, capture_output=True, text=True, timeout=20, check=False)
    if name != "search_files":
        assert done.returncode == 0, (name, arguments, done.stderr)
    return json.dumps({"output": done.stdout, "exit_code": done.returncode})


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call["function"] for message in messages for call in message.get("tool_calls") or ()]


def test_it_reasons_and_answers() -> None:
    response = simulate([{"role": "user", "content": "Why is the sky blue?"}])
    message = response["choices"][0]["message"]
    assert message["reasoning"]
    assert "sky blue" in message["content"]
    assert response["choices"][0]["finish_reason"] == "stop"
    assert response["usage"]["total_tokens"] > 0


def test_the_same_conversation_gets_the_same_answer_and_another_seed_another_one() -> None:
    prompt = [{"role": "user", "content": "Why is the sky blue?"}]
    assert simulate(prompt, TOOLS) == simulate(prompt, TOOLS)
    answers = {json.dumps(simulate(prompt, TOOLS, seed=seed)["choices"]) for seed in range(20)}
    assert len(answers) > 10
    assert simulate(prompt, request_seed=1)["choices"] != simulate(prompt, request_seed=2)["choices"]


def test_prompts_differ_in_how_many_tools_they_take() -> None:
    turns = []
    parallel = 0
    for number in range(100):
        messages = converse(f"Do task {number}", TOOLS)
        asking = [message for message in messages if message.get("tool_calls")]
        turns.append(len(asking))
        parallel += sum(len(message["tool_calls"]) == 2 for message in asking)
    assert set(turns) == {0, 1, 2, 3}
    assert 5 < parallel < 80


def test_its_calls_work_in_a_real_workspace(tmp_path: Path) -> None:
    seen = set()
    for number in range(12):
        world = tmp_path / str(number)
        world.mkdir()
        messages = converse(f"Measure river {number} [simulate: tools=6]", TOOLS, world)
        assert sum(bool(message.get("tool_calls")) for message in messages) == 6
        assert all(message["reasoning"] for message in messages if message["role"] == "assistant")
        seen |= {call["name"] for call in calls_of(messages)}
    assert seen == {tool["function"]["name"] for tool in TOOLS} - {"process"}


def test_calls_of_one_turn_do_not_share_files() -> None:
    pairs = 0
    for number in range(40):
        for message in converse(f"Measure river {number} [simulate: tools=6]", TOOLS):
            calls = message.get("tool_calls") or ()
            paths = [json.loads(call["function"]["arguments"]).get("path") for call in calls]
            named = [path for path in paths if path]
            pairs += len(calls) == 2
            assert len(set(named)) == len(named)
            for path in named:
                assert sum(path in call["function"]["arguments"] for call in calls) == 1
    assert pairs > 10


def test_the_answer_quotes_the_last_result() -> None:
    messages = converse("Look [simulate: tools=1]", [WEATHER])
    assert messages[-1]["content"].count('"fine"') == 1


@pytest.mark.parametrize(
    "prompt", ["Read 名前 please", "", "日本語だけ", "\ud800", "x; rm -rf / $(boom) `a` 'b' \"c\""]
)
def test_no_prompt_gets_into_a_shell(prompt: str, tmp_path: Path) -> None:
    converse(f"{prompt} [simulate: tools=8]", [tool("terminal", {"command": TEXT})], tmp_path)


def test_directives() -> None:
    def turns(prompt: str) -> int:
        return len(converse(prompt, [WEATHER])) // 2

    assert turns("a [simulate: tools=3]") == 4
    assert turns("a [simulate: tools=0]") == 1
    silent = converse("a\n[simulate: no_reasoning, tools=1]", [WEATHER])
    assert all("reasoning" not in message for message in silent)


@pytest.mark.parametrize(
    "names", [("web_search", "web_extract"), ("browser_navigate", "browser_snapshot"), ("web_extract",)]
)
def test_as_many_turns_with_tools_as_are_asked_for_with_the_web_alone(names: tuple[str, ...]) -> None:
    shapes: dict[str, dict[str, Any]] = {
        "web_search": {"query": TEXT},
        "web_extract": {"urls": {"type": "array", "items": TEXT}},
        "browser_navigate": {"url": TEXT},
    }
    tools = [tool(name, shapes.get(name, {})) for name in names]
    said = converse("Find the height of lamps [simulate: tools=3]", tools)
    called = calls_of(said)
    assert (len(said), {call["name"] for call in called} <= set(names)) == (8, True)
    wanted = {"web_search": "height", "browser_navigate": "about:blank", "web_extract": "https://example.org/"}
    assert wanted[names[0]] in called[0]["arguments"]


def test_a_site_that_is_named_by_its_host_is_read() -> None:
    tools = [tool("web_extract", {"urls": {"type": "array", "items": TEXT}})]
    said = converse("See lamps.example.org/a, a.txt and ada@example.com [simulate: tools=1]", tools)
    assert json.loads(said[1]["tool_calls"][0]["function"]["arguments"]) == {"urls": ["https://lamps.example.org/a"]}


@given(st.text(max_size=50), st.integers(0, 100))
@settings(deadline=None)
def test_arguments_fit_any_tools_schema(prompt: str, seed: int) -> None:
    messages = converse(f"{prompt} [simulate: tools=3]", [WEATHER, *TOOLS], seed=seed)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in [WEATHER, *TOOLS]}
    for call in calls_of(messages):
        jsonschema.validate(json.loads(call["arguments"]), schemas[call["name"]])


def test_call_ids_are_distinct_and_repeatable() -> None:
    messages = converse("a [simulate: tools=20]", [WEATHER, *TOOLS])
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assert len(set(ids)) == len(ids)
    assert all(len(call_id) == len("call_") + 12 for call_id in ids)
    assert messages == converse("a [simulate: tools=20]", [WEATHER, *TOOLS])


def test_a_tool_of_a_known_name_with_another_schema_is_called_by_its_schema() -> None:
    other = tool("terminal", {"lines": {"type": "array", "items": TEXT, "minItems": 1}})
    (call,) = calls_of(converse("a [simulate: tools=1]", [other]))
    assert json.loads(call["arguments"])["lines"]
    assert not fits_roughly({"command": "x"}, other["function"]["parameters"])


def test_a_response_schema_is_answered_in_its_shape() -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["score"],
    }
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    content = simulate([{"role": "user", "content": "grade"}], response_format=shape)["choices"][0]["message"][
        "content"
    ]
    jsonschema.validate(json.loads(content), schema)
    content = simulate([{"role": "user", "content": "x"}], response_format={"type": "json_object"})
    assert json.loads(content["choices"][0]["message"]["content"])


def test_a_job_is_reported_once_at_the_end() -> None:
    report = tool(
        REPORT_TOOL,
        {"job_id": TEXT, "item_id": TEXT, "result": {"type": "object"}, "stop": {"type": "boolean"}},
        ["job_id", "item_id", "result"],
    )
    messages = converse("job_id: job-7\nitem_id: row_3\nDo it. [simulate: tools=2]", [report, WEATHER])
    calls = calls_of(messages)
    assert [call["name"] for call in calls].count(REPORT_TOOL) == 1
    arguments = json.loads(calls[-1]["arguments"])
    assert (arguments["job_id"], arguments["item_id"]) == ("job-7", "row_3")
    assert isinstance(arguments["result"], dict)


async def test_completions_are_labelled_and_counted() -> None:
    model = SimulatedModel(seed=1)
    limits = SharedLimits()
    messages: list[Message] = [{"role": "user", "content": "Why?"}]
    completion = await model.complete(ChatRequest(ChatSettings("simulated"), messages), limits, SystemClock())
    assert model.simulated
    assert completion.message["reasoning"]
    assert completion.usage.simulated_calls == completion.usage.calls == 1
    assert (completion.usage.cost, completion.usage.unpriced_calls) == (0.0, 0)
    assert completion.extra["simulated"] is True
    assert limits.budget.spent == completion.usage


async def test_latency_is_taken_from_the_clock() -> None:
    began = time.monotonic()
    request = ChatRequest(ChatSettings("simulated"), [{"role": "user", "content": "Why?"}])
    await SimulatedModel(latency=0.05).complete(request, SharedLimits(), SystemClock())
    assert time.monotonic() - began >= 0.05


def test_a_plain_answer_is_quick() -> None:
    messages = [{"role": "user", "content": "Count the rivers of the world, please"}]
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(500):
            simulate(messages)
        best = min(best, (time.process_time() - began) / 500)
    assert best < 0.0001


OFFERED = ("terminal", "process", "read_file", "write_file", "patch", "search_files", "execute_code", "todo")


def test_its_arguments_fit_the_built_in_tools_and_make_sense() -> None:
    registry = standard_registry(plugins=False)
    tools = Toolbox([registry.get(name) for name in OFFERED]).definitions
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    sensible = {"terminal": "command", "write_file": "content", "execute_code": "code", "patch": "new_string"}
    seen: set[str] = set()
    for number in range(60):
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"Sort library {number} [simulate: tools=5]"}]
        for _ in range(5):
            message = simulate(messages, tools)["choices"][0]["message"]
            messages.append(message)
            for call in message["tool_calls"]:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                jsonschema.validate(arguments, schemas[name])
                assert sensible.get(name, next(iter(arguments))) in arguments
                seen.add(name)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "{}"})
    assert seen == set(OFFERED) - set(NEVER)
