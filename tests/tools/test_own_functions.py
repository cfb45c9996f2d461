"""A person's own functions as tools: which of a file become tools, and what comes of their calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import dedent

import pytest

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ToolError, UserError
from manyhands.sandboxes.protocol import Sandbox
from manyhands.tools.own_functions import load_sources, source_of
from manyhands.tools.protocol import Tool, ToolEnvironment

FILE = """
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal
from json import dumps
from manyhands.tools.protocol import ToolEnvironment, ToolResult
from manyhands.tools.registry import tool

@dataclass
class Place:
    city: str
    zip: int = 0

def days(start: date, unit: Literal["d", "h"] = "d", places: list[Place] | None = None) -> dict:
    '''Count days
    and more.'''
    return {"start": start, "weekday": start.weekday(), "cities": [place.city for place in places or []]}

async def later(seconds: Annotated[float, "How long."]) -> str:
    '''Wait.'''
    import asyncio
    await asyncio.sleep(seconds)
    return "waited"

def hangs(x: int) -> int:
    '''Never comes back.'''
    import time
    while True:
        time.sleep(0.01)

def endless() -> list:
    '''Gives numbers without end.'''
    n = 0
    while True:
        yield "x" * 100
        n += 1
        if n > 1000: return

def breaks(x: int) -> int:
    '''Fails.'''
    return {}[x]

def leaves(x: int) -> int:
    '''Ends the program.'''
    raise SystemExit(3)

def large() -> str:
    '''Says much.'''
    return "y" * 1_000_000

async def large_later() -> ToolResult:
    '''Says much, later.'''
    return ToolResult("y" * 1_000_000)

class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

def mute(x: int) -> int:
    '''Fails without a word.'''
    raise Mute

@tool(changes_world=True, name="made")
def decorated(environment: ToolEnvironment, x: int) -> int:
    '''With its environment.'''
    return environment.max_output + x

def within(environment: ToolEnvironment, x: int) -> int:
    '''Also with it.'''
    return environment.max_output + x

def helper(x): return x
def untyped(x):
    '''No types.'''
def takes_all(*x: int) -> int:
    '''Any number.'''
def _hidden(x: int) -> int:
    '''Not for models.'''
def größe(x: int) -> int:
    '''A name that endpoints refuse.'''
def strange(x: "Nowhere") -> int:
    '''A type that is not there.'''
"""


def write(folder: Path, text: str, name: str = "own.py") -> str:
    (folder / name).write_text(dedent(text))
    return str(folder / name)


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, Tool]:
    return {each.name: each for each in load_sources([write(tmp_path, FILE)]).tools}


async def call(tool: Tool, **arguments: object) -> object:
    async def no_sandbox() -> Sandbox:
        raise AssertionError("not used here")

    environment = ToolEnvironment(no_sandbox, SystemClock(), timeout=0.5, max_output=5000)
    return (await tool.call(arguments, environment)).content


def test_typed_functions_with_a_docstring_become_tools_and_others_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    own = load_sources([path])
    names = ("days", "later", "hangs", "endless", "breaks", "leaves", "large", "large_later", "mute", "made", "within")
    assert (own.groups, list(own.digests)) == ({"own": names}, [path])
    assert [notice.split(": ")[1].split(" ")[0] for notice in own.notices] == [
        "helper",
        "untyped",
        "takes_all",
        "größe",
        "strange",
    ]
    assert all(notice.startswith(f"{path}: ") and "(line " in notice for notice in own.notices)
    days = own.tools[0]
    assert days.description == "Count days and more."
    assert days.parameters["required"] == ["start"]
    assert days.parameters["properties"]["unit"] == {"default": "d", "enum": ["d", "h"], "type": "string"}
    assert [each.name for each in own.tools if each.changes_world] == ["made", "within"]


async def test_what_comes_of_calls(tools: dict[str, Tool]) -> None:
    found = await call(tools["days"], start="2026-01-05", places=[{"city": "Rome"}])
    assert found == {"start": "2026-01-05", "weekday": 0, "cities": ["Rome"]}
    assert await call(tools["later"], seconds=0.01) == "waited"
    assert len(str(await call(tools["large"]))) <= 5000
    assert len(str(await call(tools["large_later"]))) <= 5000
    assert (await call(tools["made"], x=1), await call(tools["within"], x=2)) == (5001, 5002)
    assert len(str(await call(tools["endless"]))) <= 5100


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("breaks", {"x": 7}, "breaks failed: KeyError: 7"),
        ("leaves", {"x": 7}, "leaves failed: RuntimeError: SystemExit: 3"),
        ("mute", {"x": 7}, "mute failed: Mute: it can't say why"),
        ("hangs", {"x": 7}, "hangs was given up after 0.5 seconds"),
        ("later", {"seconds": 60}, "later was given up after 0.5 seconds"),
        ("days", {"start": "soon"}, "argument 'start' was"),
        ("breaks", {"y": 1}, "there is no argument 'y'"),
    ],
)
async def test_what_goes_wrong_is_an_answer_to_the_model(
    name: str, arguments: dict[str, object], said: str, tools: dict[str, Tool]
) -> None:
    with pytest.raises(ToolError) as caught:
        await call(tools[name], **arguments)
    assert said in str(caught.value)


async def test_calls_that_hang_hold_up_no_others(tools: dict[str, Tool]) -> None:
    hanging = [asyncio.create_task(call(tools["hangs"], x=1)) for _ in range(40)]
    await asyncio.sleep(0.05)
    assert await call(tools["days"], start="2026-01-05")
    assert all(isinstance(each, ToolError) for each in await asyncio.gather(*hanging, return_exceptions=True))


def test_a_file_may_list_its_tools(tmp_path: Path) -> None:
    text = "def one(x: int) -> int:\n    'One.'\ndef two(x: int) -> int:\n    'Two.'\nTOOLS = [two]\n"
    path = write(tmp_path, text)
    assert [each.name for each in load_sources([path]).tools] == ["two"]
    assert [each.name for each in load_sources([f"{path}:one", f"{path}:two"]).tools] == ["one", "two"]
    with pytest.raises(UserError, match="two tools are called 'two'"):
        load_sources([path, f"{path}:two"])


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("x = 1", "", "no function in it can be a tool; a tool has a docstring and type hints$"),
        ("def f(x): return x", "", "type hints: f \\(line 1\\) has no docstring"),
        ("def f(", "", "can't be imported: SyntaxError: .* line 1"),
        ("import nothing_of_that_name", "", "can't be imported: ModuleNotFoundError"),
        ("raise SystemExit('no')", "", "can't be imported: SystemExit"),
        ("x = 1", ":x", "is not a function"),
        ("x = 1", ":f", "has no 'f'"),
        ("TOOLS = 5", "", "TOOLS is not a list of functions"),
        ("TOOLS = []", "", "TOOLS is empty"),
        ("TOOLS = [5]", "", "5 is no function"),
        ("def f(x):\n    'Doc.'", ":f", "f \\(line 1\\): parameter 'x' has no type annotation"),
    ],
)
def test_what_can_not_be_loaded_is_named(text: str, source: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=said) as caught:
        load_sources([path + source])
    assert str(caught.value).startswith(f"--tools {path}{source}: ")
    assert "\n" not in str(caught.value)


def test_sources_of_functions() -> None:
    def local(x: int) -> int:
        """Of this function."""
        return x

    assert source_of(load_sources) == ("manyhands.tools.own_functions:load_sources", True)
    assert source_of("own.py") == ("own.py", True)
    source, is_importable = source_of(local)
    assert is_importable is False
    assert [each.name for each in load_sources([source]).tools] == ["local"]
    with pytest.raises(UserError, match="is no function"):
        source_of(5)
    with pytest.raises(UserError, match="continue it from there"):
        load_sources(["__main__:price"])
