"""Typed functions as tools, and registries of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, ToolError, UserError
from manyhands.core.failures import Cause
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import FunctionTool, Registry, tool, with_plugins
from manyhands.tools.results import bounded
from manyhands.tools.standard import standard_registry

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class Point(BaseModel):
    title: Annotated[str, Field(description="Its name.")]
    x: int = 0


@tool(changes_world=False)
async def sample(
    environment: ToolEnvironment,
    path: Annotated[str, "Where."],
    title: Annotated[int | None, "A number.", Field(ge=1)] = None,
    mode: Literal["fast", "slow"] = "fast",
    points: list[Point] | None = None,
    flag: bool = False,
) -> dict[str, Any]:
    """Says what it was given."""
    return {"path": path, "title": title, "mode": mode, "points": points, "flag": flag}


@tool(changes_world=True, name="renamed")
def blocking(environment: ToolEnvironment) -> str:
    """A plain function."""
    return "done"


async def no_sandbox() -> Sandbox:
    raise AssertionError("not used here")


def environment(max_output: int = 5000) -> ToolEnvironment:
    return ToolEnvironment(no_sandbox, SystemClock(), max_output=max_output)


async def answer(arguments: dict[str, Any]) -> Any:
    return (await sample.call(arguments, environment())).content


async def complaint(arguments: dict[str, Any]) -> str:
    with pytest.raises(ToolError) as caught:
        await sample.call(arguments, environment())
    return str(caught.value)


def test_the_schema_is_strict_and_without_noise() -> None:
    assert sample.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "title": {"type": "integer", "minimum": 1, "description": "A number."},
            "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
            "points": {
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "title": {"type": "string", "description": "Its name."},
                        "x": {"type": "integer", "default": 0},
                    },
                    "required": ["title"],
                },
            },
            "flag": {"type": "boolean", "default": False},
        },
        "required": ["path"],
    }
    assert (sample.name, sample.description) == ("sample", "Says what it was given.")
    assert blocking.name == "renamed"
    assert blocking.parameters == {"type": "object", "additionalProperties": False, "properties": {}}


async def test_what_models_get_nearly_right_is_taken() -> None:
    assert (await answer({"path": 7, "title": "5", "flag": "true"})) == {
        "path": "7",
        "title": 5,
        "mode": "fast",
        "points": None,
        "flag": True,
    }
    assert (await answer({"path": "p", "mode": None, "points": '[{"title": "a"}]'}))["points"] == [
        {"title": "a", "x": 0}
    ]
    assert (await answer({"path": "lone \ud800"}))["path"] == "lone \ufffd"


async def test_wrong_arguments_are_named() -> None:
    assert await complaint({"path": "p", "title": "many"}) == (
        "sample was not called: argument 'title' was \"many\", expected: integer, at least 1. "
        "It takes: path (required), title (optional), mode (optional), points (optional), flag (optional)."
    )
    assert "argument 'mode' was \"quick\", expected: one of 'fast', 'slow'" in await complaint(
        {"path": "p", "mode": "quick"}
    )
    wrong_name = await complaint({"file_path": "p"})
    assert "there is no argument 'file_path' (did you mean 'path'?)" in wrong_name
    assert "argument 'path' is missing (expected: string)" in wrong_name
    assert "argument 'points.1.title' is missing" in await complaint({"path": "p", "points": [{"title": "a"}, {}]})


async def outcome(arguments: dict[str, Any]) -> Any:
    try:
        return (await sample.call(arguments, environment(100_000))).content
    except ToolError as error:
        return str(error)


@given(st.dictionaries(st.sampled_from(["path", "title", "mode", "points", "flag", "other"]) | st.text(), JSON))
def test_whatever_a_model_writes_is_taken_or_explained(arguments: dict[str, Any]) -> None:
    told = asyncio.run(outcome(arguments))
    json.dumps(told, ensure_ascii=False).encode()
    if isinstance(told, str):
        assert "sample was not called" in told
    else:
        assert isinstance(told["title"], int | None)
        assert told["mode"] in ("fast", "slow")


@given(JSON, st.integers(300, 2000))
def test_results_are_bounded(content: Any, limit: int) -> None:
    big = [content, "x" * 1000, {"deep": ["y" * 5000, '"\n' * 2000, content]}]
    small = bounded(big, limit)
    assert (
        len(small if isinstance(small, str) else json.dumps(small, separators=(",", ":"), ensure_ascii=False)) <= limit
    )


def test_long_texts_within_a_result_are_shortened_first() -> None:
    result = bounded({"output": "a" * 5000 + "z" * 5000, "exit_code": 1, "short": "kept"}, 1000)
    assert result["exit_code"] == 1
    assert result["short"] == "kept"
    assert result["output"].startswith("aaa")
    assert result["output"].endswith("zzz")
    assert "characters left out" in result["output"]


async def test_results_of_all_kinds() -> None:
    async def given_back(value: Any) -> ToolResult:
        @tool(changes_world=False)
        def give(environment: ToolEnvironment) -> Any:
            """Gives it back."""
            return value

        return await give.call({}, environment())

    assert await given_back("text\0\ud800") == ToolResult("text\ufffd\ufffd")
    assert await given_back(None) == ToolResult("")
    assert await given_back(Point(title="a")) == ToolResult({"title": "a", "x": 0})
    assert await given_back([1, Point(title="a")]) == ToolResult([1, {"title": "a", "x": 0}])
    assert await given_back({"error": "no luck"}) == ToolResult({"error": "no luck"}, failed=True)
    assert await given_back({"error": ""}) == ToolResult({"error": ""}, failed=False)
    assert await given_back(ToolResult({"error": "x"}, failed=False)) == ToolResult({"error": "x"}, failed=False)
    assert await blocking.call({}, environment()) == ToolResult("done")


async def test_a_tool_that_breaks_is_named_in_the_record() -> None:
    @tool(changes_world=False)
    async def broken(environment: ToolEnvironment, how: str) -> str:
        """Breaks."""
        raise {"time": TimeoutError("5 s"), "value": ValueError("no")}[how]

    with pytest.raises(ItemError, match="tool broken broke: ValueError: no") as caught:
        await broken.call({"how": "value"}, environment())
    assert caught.value.cause is Cause.TOOL_ERROR
    with pytest.raises(ToolError, match="took too long"):
        await broken.call({"how": "time"}, environment())


def test_functions_that_can_not_be_tools() -> None:
    def undocumented(environment: ToolEnvironment) -> str:
        return ""

    def untyped(environment: ToolEnvironment, path) -> str:  # type: ignore[no-untyped-def]
        """Doc."""
        return ""

    def open_ended(environment: ToolEnvironment, *paths: str) -> str:
        """Doc."""
        return ""

    for function, message in ((undocumented, "docstring"), (untyped, "'path' has no type"), (open_ended, r"\*paths")):
        with pytest.raises(TypeError, match=message):
            tool(changes_world=False)(function)


def test_available_tools_are_sorted() -> None:
    registry = standard_registry(plugins=False)
    assert registry.available(["todo", "patch", "no_such_tool", "patch"]) == ("patch", "todo")


def test_lookup() -> None:
    registry = Registry([sample])
    assert registry.get("sample") is sample
    with pytest.raises(UserError, match=r"no tool is called 'simple'; did you mean sample\?"):
        registry.get("simple")
    with pytest.raises(UserError, match="two tools are called 'sample'"):
        registry.extended([sample])


class Plugin(EntryPoint):
    """An entry point whose object is at hand."""

    def __new__(cls, name: str, loaded: Any) -> Plugin:
        made = super().__new__(cls)
        EntryPoint.__init__(made, name, f"package:{name}", "manyhands.tools")
        made.__dict__["loaded"] = loaded
        return made

    def __init__(self, name: str, loaded: Any) -> None:
        pass

    def load(self) -> Any:
        if isinstance(self.__dict__["loaded"], Exception):
            raise self.__dict__["loaded"]
        return self.__dict__["loaded"]


def several() -> Iterator[FunctionTool]:
    yield sample


def test_plugins_and_broken_plugins() -> None:
    plugins = [
        Plugin("one", blocking),
        Plugin("many", several),
        Plugin("broken", ImportError("no module\nnamed x")),
        Plugin("odd", [42]),
        Plugin("taken", [standard_registry(plugins=False).get("todo")]),
    ]
    registry = with_plugins(standard_registry(plugins=False), plugins)
    assert registry.groups == {"many": ("sample",), "one": ("renamed",)}
    assert "sample" in registry
    broken, odd, taken = registry.notices
    assert broken == "tool plug-in 'broken' (package:broken) can't be used: ImportError: no module named x"
    assert "42 is not a tool" in odd
    assert "two tools are called 'todo'" in taken
