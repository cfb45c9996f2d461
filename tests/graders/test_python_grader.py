"""``python``: functions that judge in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.graders.protocol import Candidate, Score
from manyhands.processes.python_functions import STUCK
from manyhands.testing.context import MemoryContext
from manyhands.testing.grader_doubles import graders_of, make_grading

FUNCTIONS = """
import asyncio, threading, time
from manyhands.graders.protocol import Score
from helper_of_checks import VALUE
calls = []

def given(payload):
    calls.append(payload)
    return {"score": 1, "details": payload}

def number(payload): return 0.25
def above(payload): return 7
def true(payload): return True
def false(payload): return False
def whole(payload): return {"score": 0.5, "hits": ["h"], "misses": "m", "reasoning": "r"}
def listed(payload): return {"score": 0.5, "hits": ["h"], "misses": ["m"], "reasoning": "r", "details": {"VALUE": VALUE}}
def asserted(payload): return {"assertions": [{"text": "a", "passed": True}, {"text": "b", "passed": False}]}
async def later(payload):
    await asyncio.sleep(0.01)
    return len(payload["answer"]) / 10
def nothing(payload): pass
def text(payload): return "1"
def nan(payload): return float("nan")
def breaks(payload): raise KeyError("missing")
def exits(payload): raise SystemExit(3)
def timeout(payload): raise TimeoutError("mine")
async def async_breaks(payload): raise ValueError("later")
def slow(payload): time.sleep(30)
async def async_slow(payload): await asyncio.sleep(30)
def changes(payload):
    payload["input"].append("mine")
    payload["metadata"]["x"] = 1
    return 1
def where(payload): return {"score": 1, "hits": [threading.current_thread().name]}
async def blocks(payload): time.sleep(3)
async def async_exits(payload): raise SystemExit(3)
async def cancels(payload): raise asyncio.CancelledError
def cancels_in_a_thread(payload): raise asyncio.CancelledError
def no_json(payload): return {"score": 1, "details": {"x": {1, 2}}}
def scored(payload): return Score("a", "b", 0.75, "pass", hits=("h",), reasoning="r", details={"d": 1})
def broken(payload): return Score("a", "b", None, "error", error="no key")
def ready(payload):
    async def inner(): return 0.75
    return inner()
class Checks:
    @staticmethod
    def method(payload): return 0.5
    def __call__(self, payload): return 0.125
callable_object = Checks()
class Numpy:
    def item(self): return 0.5
class Numpys:
    def item(self): raise ValueError("can only convert an array of size 1")
def fraction(payload):
    from fractions import Fraction
    return Fraction(1, 4)
def decimal(payload):
    from decimal import Decimal
    return {"score": Decimal("0.25")}
def numpy(payload): return {"score": Numpy()}
def numpys(payload): return Numpys()
def tuples(payload): return {"score": 0.5, "hits": ("h",), "misses": ("m",), "reasoning": "r", "details": {"VALUE": 5}}
not_callable = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checks.py").write_text(FUNCTIONS)
    (tmp_path / "helper_of_checks.py").write_text("VALUE = 5\n")
    return tmp_path


def candidate(**more: Any) -> Candidate:
    return Candidate("t", "answer", criteria="c", input=({"role": "user", "content": "q"},), **more)


async def judged(
    folder: Path, name: str, *, context: MemoryContext | None = None, seconds: float = 10, **keys: Any
) -> Score:
    (grader,) = graders_of({"type": "python", "function": f"checks.py:{name}", **keys}, folder=folder)
    return await grader.grade(candidate(), make_grading(context, seconds=seconds))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", 0.25), ("above", 1.0), ("true", 1.0), ("false", 0.0), ("asserted", 0.5), ("later", 0.6)),
        *(("ready", 0.75), ("Checks.method", 0.5), ("callable_object", 0.125)),
        *(("fraction", 0.25), ("decimal", 0.25), ("numpy", 0.5)),
    ],
)
async def test_what_functions_may_return(folder: Path, name: str, value: float) -> None:
    score = await judged(folder, name)
    assert (score.value, score.error) == (value, None)


@pytest.mark.parametrize("name", ["listed", "tuples"])
async def test_a_mapping_says_the_rest(folder: Path, name: str) -> None:
    score = await judged(folder, name)
    assert (score.value, score.hits, score.misses, score.reasoning, score.details) == (
        0.5,
        ("h",),
        ("m",),
        "r",
        {"VALUE": 5},
    )


async def test_it_is_given_what_a_code_judge_is(folder: Path) -> None:
    score = await judged(folder, "given", tolerance=3, someKey={"innerKey": 1})
    assert score.details is not None
    payload = score.details
    assert payload["answer"] == "answer"
    assert payload["input"] == [{"role": "user", "content": "q"}]
    assert payload["config"] == {"tolerance": 3, "someKey": {"innerKey": 1}}
    assert payload["test_id"] == "t"


async def test_what_it_changes_changes_nothing_else(folder: Path) -> None:
    metadata: dict[str, Any] = {}
    given = candidate(metadata=metadata)
    (grader,) = graders_of({"type": "python", "function": "checks.py:changes"}, folder=folder)
    assert (await grader.grade(given, make_grading())).value == 1.0
    assert metadata == {}
    assert len(given.input) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "must return a number, a truth value or a mapping"),
        ("text", "must return a number"),
        ("numpys", "must return a number"),
        ("nan", "no number"),
        ("breaks", "checks.py:breaks raised KeyError: 'missing'"),
        ("exits", "SystemExit: 3"),
        ("timeout", "raised TimeoutError: mine"),
        ("async_breaks", "raised ValueError: later"),
        ("async_exits", "SystemExit: 3"),
        ("cancels", "it cancelled itself"),
        ("cancels_in_a_thread", "CancelledError"),
        ("no_json", "details that JSON can't hold"),
        ("broken", "no key"),
        ("whole", "misses must be a list"),
    ],
)
async def test_what_goes_wrong_is_an_error(folder: Path, name: str, words: str) -> None:
    score = await judged(folder, name)
    assert score.value is None
    assert words in (score.error or "")


@pytest.mark.parametrize("name", ["slow", "async_slow", "blocks"])
async def test_the_time_limit(folder: Path, name: str) -> None:
    began = time.monotonic()
    score = await judged(folder, name, seconds=0.2)
    assert score.error == f"checks.py:{name} took more than 0.2 s"
    assert time.monotonic() - began < 5


async def test_an_async_function_that_blocks_holds_up_nobody(folder: Path) -> None:
    blocked = asyncio.ensure_future(judged(folder, "blocks", seconds=1.5))
    ticks = 0
    while not blocked.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert ticks > 20
    assert "took more than" in ((await blocked).error or "")


async def test_after_one_that_blocks_others_go_on(folder: Path) -> None:
    (folder / "forever.py").write_text(
        "import time\nasync def hang(payload):\n    time.sleep(600)\nasync def quick(payload):\n    return 1\n"
    )
    hang, quick = graders_of(
        *({"type": "python", "function": f"forever.py:{name}"} for name in ("hang", "quick")), folder=folder
    )
    assert (await hang.grade(candidate(), make_grading(seconds=0.1))).error is not None
    await asyncio.sleep(STUCK + 0.1)
    assert (await quick.grade(candidate(), make_grading(seconds=10))).value == 1.0


async def test_functions_do_not_hold_each_other_up(folder: Path) -> None:
    (folder / "meet.py").write_text(
        "import threading\nbarrier = threading.Barrier(5)\ndef meet(payload):\n    barrier.wait(10)\n    return 1\n"
    )
    (grader,) = graders_of({"type": "python", "function": "meet.py:meet"}, folder=folder)
    scores = await asyncio.gather(*(grader.grade(candidate(), make_grading()) for _ in range(5)))
    assert [score.value for score in scores] == [1.0] * 5
    hit = (await judged(folder, "where")).hits[0]
    assert hit != threading.main_thread().name


async def test_a_call_is_one_step_and_never_repeated(folder: Path) -> None:
    context = MemoryContext()
    await judged(folder, "given", context=context)
    assert [step.kind for step in context.steps] == ["grade"]
    again = MemoryContext(context.journal)
    assert (await judged(folder, "given", context=again)).value == 1.0
    assert again.performed == 0


async def test_a_score_may_be_returned(folder: Path) -> None:
    score = await judged(folder, "scored")
    assert (score.name, score.type, score.value, score.hits, score.reasoning) == ("python", "python", 0.75, ("h",), "r")
    assert score.details == {"d": 1}


async def test_modules_beside_the_eval_file_are_found_even_where_names_are_shared(tmp_path: Path) -> None:
    values = []
    for name, value in (("one", 0.25), ("two", 0.5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module_of_checks.py").write_text(f"def grade(payload):\n    return {value}\n")
        (grader,) = graders_of({"type": "python", "function": "module_of_checks:grade"}, folder=tmp_path / name)
        values.append((await grader.grade(candidate(), make_grading())).value)
    assert values == [0.25, 0.5]


async def test_a_file_that_was_changed_is_loaded_again(tmp_path: Path) -> None:
    for value in (0.25, 0.125):
        (tmp_path / "changed.py").write_text(f"def grade(payload):\n    return {value}\n")
        (grader,) = graders_of({"type": "python", "function": "changed.py:grade"}, folder=tmp_path)
        assert (await grader.grade(candidate(), make_grading())).value == value


async def test_functions_of_modules() -> None:
    (grader,) = graders_of({"type": "python-function", "function": "math:isnan"})
    assert "TypeError" in ((await grader.grade(candidate(), make_grading())).error or "")
    (grader,) = graders_of({"type": "function", "function": "operator:length_hint"})
    assert (await grader.grade(candidate(), make_grading())).value == 1.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("checks.py", "must be module:function or path/file.py:function"),
        ("checks.py:", "must be module:function"),
        ("gone.py:f", "there is no file"),
        ("checks.py:gone", "has no 'gone'"),
        ("checks.py:not_callable", "is not a function"),
        ("no_such_module_here:f", "ModuleNotFoundError"),
        ("broken.py:f", "ZeroDivisionError"),
        ("exits.py:f", "SystemExit"),
        ("", "must not be empty"),
    ],
)
def test_wrong_functions_are_found_before_anything_runs(folder: Path, function: str, words: str) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "exits.py").write_text("raise SystemExit\n")
    with pytest.raises(UserError, match=words):
        graders_of({"type": "python", "function": function}, folder=folder)
