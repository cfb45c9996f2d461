"""``manyhands tools``, ``manyhands tools check``, and toolsets and tools by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.agents.toolbox import RunTools, outside_record
from manyhands.cli.tools.check import ToolCheckSettings, check_tools
from manyhands.cli.tools.listing import ToolListSettings, listed_tools
from manyhands.core.errors import UserError
from manyhands.tools.toolsets import KNOWN_TOOLS
from tests.support.commands import run

MODELS = "--moa_models=simulated,simulated/b"


async def test_every_known_tool_is_listed_once() -> None:
    listed = list(listed_tools(await outside_record(ToolListSettings.make({}))))
    assert sorted(each.name for each in listed) == list(KNOWN_TOOLS)
    by_name = {each.name: each for each in listed}
    assert by_name["terminal"].available
    assert by_name["read_file"].toolset == "file"
    assert not by_name["mixture_of_agents"].available
    assert "--moa_models" in by_name["mixture_of_agents"].needs


def test_settings_make_tools_available() -> None:
    ended = run("tools", "--json", MODELS)
    assert ended.code == 0
    found = {each["name"]: each for each in json.loads(ended.out)}
    assert found["mixture_of_agents"]["available"]
    assert found["mixture_of_agents"]["costs"]


def test_a_check_calls_what_is_available() -> None:
    ended = run("tools", "check", "--json", MODELS, "mixture_of_agents")
    assert ended.code == 0
    [check] = json.loads(ended.out)
    assert check["works"]
    assert check["simulated"]
    refused = run("tools", "check", "mixture_of_agents")
    assert refused.code == 2
    assert "mixture_of_agents is not available here, so it can't be tried; it needs: several models" in refused.err
    failed = run("tools", "check", "mixture_of_agents", "--moa_models=m", "--base_url=http://127.0.0.1:9/v1")
    assert failed.code == 1
    assert "FAILED" in failed.out


async def _refusal(name: str, **settings: str) -> str:
    with pytest.raises(UserError) as refused:
        await anext(check_tools(ToolCheckSettings.make({"names": name, **settings})))
    return str(refused.value)


async def test_a_tool_that_can_not_be_tried_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    (tmp_path / "own.py").write_text('def add(a: int) -> int:\n    """Add."""\n    return a\n')
    assert "terminal is available, and asks no service" in await _refusal("terminal")
    assert "add is available, and asks no service" in await _refusal("add", tools=f"{tmp_path}/own.py:add")
    assert "no tool terminl; did you mean terminal" in await _refusal("terminl")
    assert "it needs: --web_search tavily: Tavily needs TAVILY_API_KEY" in await _refusal(
        "web_search", web_search="tavily"
    )


def test_a_tool_whose_settings_can_not_be_used_is_listed_with_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    ended = run("tools", "--json", "--web_search=tavily", "--image_provider=fal")
    assert ended.code == 0
    found = {each["name"]: (each["available"], each["needs"]) for each in json.loads(ended.out)}
    assert found["web_search"] == (False, "--web_search tavily: Tavily needs TAVILY_API_KEY in the environment")
    assert found["image_generate"][0] is False
    assert "--image_model" in found["image_generate"][1]
    checked = run("tools", "check", "--web_search=tavily")
    assert (checked.code, "Tavily needs TAVILY_API_KEY" in checked.err) == (2, True)


def named(names: str, **more: str) -> ToolListSettings:
    return ToolListSettings.make({"tools": names, **more})


async def test_toolsets_and_tools_by_name() -> None:
    tools = RunTools.recorded(await outside_record(named("file,todo,terminal")))
    assert [tool.name for tool in tools.tools([])] == [
        "patch",
        "process",
        "read_file",
        "search_files",
        "terminal",
        "todo",
        "write_file",
    ]
    alone = RunTools.recorded(await outside_record(named("read_file")))
    assert [tool.name for tool in alone.tools([])] == ["read_file"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("fiel", "no toolset or tool is called 'fiel'; did you mean file"),
        ("mixture_of_agents", "mixture_of_agents can't be had here; it needs several models"),
        ("moa", "moa can't be had here"),
    ],
)
async def test_names_that_give_no_tool(names: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        await outside_record(named(names))


def test_a_file_of_functions_is_added_to_what_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "list the files"}\n')
    (tmp_path / "own.py").write_text("def price(thing: str) -> int:\n    'The price of something.'\n    return 1\n")
    words = ["batch", "prompts.jsonl", "--run_name=r", "--model=simulated"]
    ended = run(*words, "--tools=own.py", folder=tmp_path)
    assert ended.code == 0
    assert "distribution terminal_only" in ended.out + ended.err
    line = json.loads((tmp_path / "data/r/trajectories.jsonl").read_text())
    assert line["toolsets_used"] == ["terminal", "file"]
    named = run(*words[:2], "--run_name=n", "--model=simulated", "--tools=own.py,todo", folder=tmp_path)
    assert "tools own.py, todo" in (named.out + named.err).replace(f"{tmp_path}/", "")


def test_a_batch_has_the_named_tools_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "note what is to do"}\n')
    words = [
        "batch",
        str(tmp_path / "prompts.jsonl"),
        "--run_name=r",
        f"--data_dir={tmp_path}",
        "--model=simulated",
        "--quiet",
    ]
    assert run(*words, "--tools=todo,mixture_of_agents", MODELS).code == 0
    line = json.loads((tmp_path / "r" / "trajectories.jsonl").read_text())
    offered = line["conversations"][0]["value"]
    assert '"name": "todo"' in offered
    assert '"name": "mixture_of_agents"' in offered
    assert '"name": "terminal"' not in offered
    assert line["toolsets_used"] == ["todo", "mixture_of_agents"]
    assert run(*words, "--resume", "--tools=todo,mixture_of_agents", MODELS).code == 0
