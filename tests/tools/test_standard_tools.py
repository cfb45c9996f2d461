"""The built-in tools as models see them: names, schemas, and which of them touch the sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import BROWSER, BUILT_IN, DECLARED, KNOWN_TOOLS, known_tools

REGISTRY = standard_registry(plugins=False)
SNAPSHOT = Path(__file__).with_name("tool_schemas.json")


def test_the_schemas_are_those_recorded() -> None:
    """A change of a schema changes what models are asked and breaks the replay of runs: it must be meant.

    To record an intended change, write ``json.dumps({name: parameters}, indent=1)`` to ``tool_schemas.json``.
    """
    assert {name: REGISTRY.get(name).parameters for name in REGISTRY.names} == json.loads(SNAPSHOT.read_text())


@pytest.mark.parametrize("name", REGISTRY.names)
def test_every_schema_is_strict_and_described(name: str) -> None:
    tool = REGISTRY.get(name)
    Draft202012Validator.check_schema(dict(tool.parameters))
    assert tool.parameters["additionalProperties"] is False
    assert all(part.get("description") for part in tool.parameters["properties"].values())
    assert "title" not in tool.parameters
    assert len(tool.description) > 40


def test_what_touches_the_sandbox() -> None:
    assert {name for name in REGISTRY.names if not REGISTRY.get(name).changes_world} == {
        "mixture_of_agents",
        "todo",
        *BROWSER,
        "web_extract",
        "web_search",
    }


def test_the_known_tools_are_stable() -> None:
    assert REGISTRY.names == BUILT_IN
    assert list(KNOWN_TOOLS) == sorted(set(BUILT_IN) | set(DECLARED))
    fork = [
        "browser_back",
        "browser_click",
        "browser_close",
        "browser_console",
        "browser_get_images",
        "browser_navigate",
        "browser_press",
        "browser_scroll",
        "browser_snapshot",
        "browser_type",
        "browser_vision",
        "patch",
        "read_file",
        "search_files",
        "web_extract",
        "web_search",
        "write_file",
    ]
    assert len(fork) == 17
    assert set(fork) <= set(KNOWN_TOOLS)
    assert {"terminal", "process", "vision_analyze", "image_generate"} <= set(KNOWN_TOOLS)
    assert known_tools(["zebra", "terminal", "abc"]) == tuple(sorted([*KNOWN_TOOLS, "zebra", "abc"]))
