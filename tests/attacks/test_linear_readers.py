"""Readers of what models, tools and servers say take linear time, whatever is said.

Each reader is given texts that repeat a few of its own tokens, made by hypothesis, once and twice as long: a reader whose time more than
trebles is not linear. To add a reader, add a line to ``READERS``.
"""

from __future__ import annotations

import asyncio
import gc
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.agents import programs, reading
from manyhands.agents import reading as tool_calls
from manyhands.agents.toolbox import Toolbox, repair_name
from manyhands.core import jsonio, text
from manyhands.core import text as likeness
from manyhands.core.errors import ToolError
from manyhands.core.redaction import Redactor
from manyhands.export import sharegpt
from manyhands.export import sharegpt as tags
from manyhands.export import sharegpt_reading as turns
from manyhands.graders import contract, json_values
from manyhands.graders.judged import asking
from manyhands.graders.text import fields, patterns
from manyhands.graders.trajectory import skills
from manyhands.io.tables import csv as csv_tables
from manyhands.io.tables import json as json_tables
from manyhands.models import reasoning
from manyhands.models.openai import errors
from manyhands.models.simulated import model
from manyhands.testing.agent_doubles import FakeTool
from manyhands.tools import results, schema
from manyhands.tools.files import edits, search
from manyhands.tools.files import patch as patches
from manyhands.tools.standard import standard_registry
from manyhands.workloads.csv_jobs.rows import prompts, schema_validator
from manyhands.workloads.csv_jobs.rows.output_schema import OutputSchema
from manyhands.workloads.csv_jobs.workers.input_echo import EchoFilter, WorkerInput
from manyhands.workloads.evals.batch import records
from manyhands.workloads.evals.evalfile import messages as evalfile_messages
from manyhands.workloads.memory.conversation import tokens
from manyhands.workloads.memory.datasets.answers import matching, settling
from manyhands.workloads.memory.datasets.builtin import locations, restaurant
from manyhands.workloads.memory.report import formatting
from manyhands.workloads.trajectories.batch_runner import WORDS
from tests.support.job_rows import find_result

SIZE = 40_000
"""Characters of the shorter text."""
TICK = 0.004
"""Seconds that some clocks of processor time can't tell apart."""
NOISE = 0.1
"""Seconds below which a time is not looked at: a quadratic reader of the longer text takes many times that."""
CEILING = 5.0
"""Seconds of this process, as are all times here: others may be busy on the machine."""
RATIO = 3.0
CLEAR = 2.5
"""A ratio that is not measured again: 2 is that of a linear reader, 4 that of a quadratic one."""


def words(text: str, between: str = " ") -> tuple[str, ...]:
    return tuple(text.split(between))


THINK = ("<think>", "</think>", "<thought>", "</thinking>", "<REASONING_SCRATCHPAD>", "</REASONING_SCRATCHPAD>")
SPACE = (" ", "\n", "\t")
JSON = words('{ } [ ] " : , \\ 1 a null {"a": ``` ```json\n \n```\n ~~~ // ... \' "type" "result" {"a":" [1,')
PATCH = words("|*** Begin Patch\n|*** End Patch\n|*** Update File: a\n|*** Add File: b\n|*** Move to: d\n", "|")[1:]
HUNK = ("@@ x\n", "@@\n", " a\n", "-a\n", "+b\n", "-b\n", "\n", " ")
NUMBER = words("1 9 , . e - + 000 /")
_SCHEMA = OutputSchema.of({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}})


def _patched(patch: str) -> None:
    [change] = patches.parse_patch(f"*** Update File: f\n{patch}")
    for line in ("a", "b", "x\n", "a\nb"):
        with _refused():
            patches.apply_hunks(change, f"{line}\n" * (len(patch) // 3))


def _replaced(said: str) -> None:
    for old in (said[: len(said) // 2], said[: len(said) // 2] + "z", said[:3] or "a"):
        for every in (False, True):
            with _refused():
                edits.replaced(said, old, "q", every=every)


def _compared(said: str) -> None:
    edits.unified_diff("f", said, said[::-1])
    edits.unified_diff("f", said, said.replace("a\nb", "b\na"))


def _likened(said: str) -> None:
    edits.nearest_lines(said.split("\n"), [said[::-1].replace("\n", "")])
    text.nearest(said, [said[:200] + str(number) for number in range(2000)])
    repair_name(said[:200], [said[1:150] + str(number) for number in range(100)])


def _told(said: str) -> None:
    error = {"error": {"message": said, "code": said, "metadata": {"raw": said}}}
    errors.classify(400, {}, jsonio.dumps(error), 0.0)
    errors.classify(400, {}, said.encode("utf-8", "replace"), 0.0)


def _turned(said: str) -> None:
    for thought in ("x", said[::-1], said.replace("<think>", "\n")):
        sharegpt._gpt_value({"role": "assistant", "content": said, "reasoning": thought}, ())


def _read_back(said: str) -> None:
    with suppress(ValueError):
        turns.messages_of({"conversations": [{"from": "gpt", "value": said}], "metadata": {"escaped_tags": 1}})


def _escaped(said: str) -> None:
    tags.unescape(tags.escape(said))
    tags.escaped_json(said)


def _gathered(said: str) -> None:
    reasoning.gather({"content": said, "reasoning_details": said.split("\n")})
    reasoning.gather(
        {"content": said, "reasoning": said, "reasoning_details": [f"{n} {p}" for n, p in enumerate(said.split("\n"))]}
    )


def _simulated(said: str) -> None:
    model.simulate([{"role": "user", "content": said}])
    model._identifiers([{"role": "user", "content": said}])


def _bounded(said: str) -> None:
    results.bounded({"one": said, "many": [said[:300]] * (len(said) // 300)}, 2000)
    results.bounded([said[:3]] * (len(said) // 3), 2000)


def _listed(said: str) -> None:
    search._parsed(said, True)
    search._parsed(f"f\0{said}", True)


def _called(said: str) -> None:
    functions = [
        {"function": {"name": f"{number}{said[:100]}", "arguments": "{}"}} for number in range(len(said) // 40)
    ]
    tool_calls.read_calls(functions, Toolbox.of([FakeTool(said[:90] + letter) for letter in "abcdefghij"]), 1, set())


def _mistaken(said: str) -> None:
    wrong = {f"{number}{said[:50]}": said[:10] for number in range(len(said) // 10)}
    tool = standard_registry(plugins=False).get("patch")
    asyncio.run(tool.call(wrong, None))  # type: ignore[arg-type]  # no argument fits, so that nothing is done


READERS: dict[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "visible text": (reading.visible_text, (*THINK, *SPACE, "a", "<")),
    "unclosed reasoning": (reading.has_unclosed_reasoning, (*THINK, *SPACE, "a", "<")),
    "reasoning in content": (reasoning.split_inline, (*THINK, *SPACE, "a", "`", "<")),
    "gathered reasoning": (_gathered, (*THINK, *SPACE, "a", "b", "ab\n")),
    "distinct parts": (lambda said: reasoning.join_distinct(map(str, range(len(said) // 4))), ("a",)),
    "reasoning begun in the prompt": (
        lambda said: reasoning.split_inline(said, implied=True),
        (*THINK, *SPACE, "a", "`", "<"),
    ),
    "ShareGPT turn": (_turned, (*THINK, *SPACE, "a", "b")),
    "ShareGPT turn read back": (_read_back, (*THINK, *SPACE, "a", "<tool_call>", "</tool_call>")),
    "tags in values": (_escaped, (*THINK, *SPACE, "a", "<", "\\", "<|", "|", "|>", "<\\")),
    "JSON": (jsonio.loads_outside, JSON),
    "JSON of the journal": (jsonio.loads, JSON),
    "JSON with many digits": (jsonio.loads_outside, ("9", "99999", "[", "1e9", ".")),
    "arguments": (tool_calls.parse_arguments, JSON),
    "arguments in quotes": (lambda said: tool_calls.parse_arguments(jsonio.dumps(said).decode()), JSON),
    "unknown tools": (_called, ("ab", "ba", "abc")),
    "unknown arguments": (_mistaken, ("ab", "path", "old_string")),
    "cleaned arguments": (schema.cleaned, ("a", "\0", "\ud800", "é")),
    "result in output": (lambda said: find_result(said, _SCHEMA), JSON),
    "prompt that may be repeated": (
        lambda said: EchoFilter(WorkerInput(said, {}), _SCHEMA).without_prompt(said[1:]),
        (*JSON, "[\n", "[{},\n", "a b\n", "{}\n"),
    ),
    "account of a program": (
        lambda said: programs.read_account(said, lambda usage: None),
        (*JSON, '{"type":"result","usage":{}}\n', '{"type":"thread.started"}\n', '"error"'),
    ),
    "quantity": (matching.quantity_in, (*NUMBER, "two ", "dozen ", "x", "½")),
    "options in a message": (WORDS.text, ("--model", "=", "'", " ", "a", "-", "--x=", ")")),
    "web page": (
        lambda said: (
            errors.page_instead(said.encode()),
            errors.error_text(None, f"<html>{said}".encode()),
        ),
        ("<html", "<!--", "-->", "<title>", "<script", "</script>", "<", ">", *SPACE, "a"),
    ),
    "shape of a message": (likeness.shape, ("a", "1", "-", "0x", "_", " ", "g")),
    "any result in output": (lambda said: find_result(said, OutputSchema.of(None)), JSON),
    "JSON in an answer": (json_values.json_in, (*JSON, "```\n", "~~~~\n")),
    "verdict": (contract.last_object, (*JSON, "\n{")),
    "tolerant JSON": (matching.tolerant_json, JSON),
    "tolerant JSON of a list": (lambda said: matching.tolerant_json(f"[{said}"), JSON),
    "ROUGE": (lambda said: matching.rouge_l(said, said[::-1]), ("a", "ab", "abcde", " ", "ing", "s")),
    "stems": (matching.stems, ("a", "y", "abcde", " ", "ing", "ational")),
    "tokens": (tokens.estimate(), ("a", "A", "1", "!", "é", *SPACE)),
    "patch": (patches.parse_patch, (*PATCH, *HUNK)),
    "patch of a file": (_patched, HUNK),
    "file of a patch": (
        lambda said: patches.parse_patch(f"*** Update File: {said}"),
        ("a", "*** Update File: ", *SPACE),
    ),
    "replacement": (_replaced, ("a\n", " a\n", "b\n", "\n", " ", "a")),
    "diff": (_compared, ("a\n", "b\n", "c\n", "\n")),
    "likeness": (_likened, ("a", "b", "ab", "ba", "c", "\n")),
    "output of a program": (lambda said: text.decode(said.encode()), words("\x1b|[|]|0|;|m|\x07|\\| |P", "|")),
    "found lines": (_listed, ("a", "-", ":", "1", "\n", "\0", "rg: ")),
    "bounded result": (_bounded, ("a", "\x01", '"', "é")),
    "text of an error": (_told, ("exceed", "context", "prompt is too ", "a", "{", '"', *SPACE)),
    "reset of a limit": (lambda said: errors.parse_reset(said, 0), (*NUMBER, "h", "m", "s", " ")),
    "retry after": (
        lambda said: errors.parse_retry_after({"Retry-After": said}, 0),
        (*NUMBER, "Mon,", ":", " "),
    ),
    "number in an answer": (fields.number_in, (*NUMBER, " ")),
    "date in an answer": (fields.day_of, (*NUMBER, "T", ":", "jan", "mon", "2020", " ")),
    "size of a pattern": (patterns.written_out, ("(", ")", "{1}", "{", "9", "[", "]", "\\", "a", "}")),
    "files of skills": (
        lambda said: [*skills._SKILL_FILE.finditer(said)],
        ("skills/", "/", "SKILL.md", "a", ".", " ", "`"),
    ),
    "variables": (lambda said: evalfile_messages.VARIABLE.sub("", said), ("{{", "}}", "{", " ", "a", "-", ".")),
    "variables of a judge": (lambda said: asking._VARIABLE.sub("", said), ("{{", "}}", "{", " ", "a")),
    "template": (lambda said: prompts._MARKS.sub("", said), ("{", "}", "{{", "}}", "a")),
    "lines of a batch's output": (lambda said: records.parse_line(said.encode()), (*JSON, '"id"')),
    "depth of a batch's output": (lambda said: jsonio.too_deep(said.encode()), (*JSON, '\\"', '}\\"')),
    "keys of JSON Lines": (lambda said: json_tables.row_in_line(1, said), JSON),
    "cells of a table": (csv_tables._NUMBER.fullmatch, NUMBER),
    "simulated answer": (_simulated, ("[simulate:", "]", ",", "=", "job_id", ":", "is", "'", "Item ID: ", *SPACE)),
    "sentences": (
        lambda said: settling.settles_on(said, "cat", ["dog"]),
        (".", "!", " ", "a", "1", "(", "\n", "cat", "dog", " or ", "not ", ", ", "no longer "),
    ),
    "directions": (
        lambda said: [*locations._LEG.finditer(said)],
        ("From ", "a", ", go ", "1", "km ", " to ", ".", "\n"),
    ),
    "menu": (restaurant.menu_in, ("1", ". ", "a", "\n", " ")),
    "lines of a log": (formatting._LINE.fullmatch, ("Test ", "(", ")", ":", "a", " ")),
    "secrets": (Redactor(["aaaaaaaaab", "abababababc"]).text, ("a", "b", "ab")),
    **{
        f"format {name}": (pattern.fullmatch, words("a 1 - . / ~0 ~ %20 : # T P Y M D S +"))
        for name, pattern in schema_validator._PATTERNS.items()
    },
}


@contextmanager
def _refused() -> Iterator[None]:
    """Readers may refuse what they are given, in any way that callers know."""
    try:
        yield
    except (ValueError, RecursionError, ToolError, records.NoRecord):
        pass


def _overdue(_signal: int, _frame: object) -> None:
    pytest.fail(f"took more than {CEILING:g} s")


def _seconds(reader: Callable[[str], object], said: str) -> float:
    gc.disable()  # looking through all that other tests have left costs more than most readers
    signal.setitimer(signal.ITIMER_PROF, CEILING)
    began = time.process_time()
    try:
        with _refused():
            reader(said)
        return time.process_time() - began
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.enable()


def _check(
    reader: Callable[[str], object], prefix: str, unit: str, suffix: str, size: int = SIZE, times: int = 3
) -> None:
    """Fails if the time for a text twice as long is more than ``RATIO`` times as long, and so again for one that is twice that: a reader
    that refuses texts of a certain length or difficulty may be quick up to some size and slower from there on."""
    ratios = []
    for shorter in (size, 2 * size):
        once, twice = (prefix + unit * (length // len(unit)) + suffix for length in (shorter, 2 * shorter))
        # What else happens on the machine only ever makes a measurement longer.
        quick = longer = math.inf
        for _ in range(times):
            longer = min(longer, _seconds(reader, twice))
            if longer <= NOISE:
                return
            quick = min(quick, _seconds(reader, once))
            if longer <= CLEAR * quick:
                return
        ratios.append(longer / max(quick, TICK))
        if ratios[-1] <= RATIO:
            return
    pytest.fail(f"not linear for {prefix!r} + {unit!r} * n + {suffix!r}: {ratios} times, {longer:.2f} s")


@pytest.mark.parametrize("name", READERS)
def test_time_grows_as_the_text_does(name: str) -> None:
    reader, alphabet = READERS[name]
    some = st.lists(st.sampled_from(alphabet), max_size=2).map("".join)
    unit = st.lists(st.sampled_from(alphabet), min_size=1, max_size=4).map("".join)

    @settings(max_examples=settings().max_examples // 6, derandomize=True, database=None)
    @given(some, unit, some)
    def check(prefix: str, unit: str, suffix: str) -> None:
        _check(reader, prefix, unit, suffix)

    before = signal.signal(signal.SIGPROF, _overdue)
    try:
        for token in alphabet:
            _check(reader, "", token, "")
            _check(reader, "", token, "a")
        check()
    finally:
        signal.signal(signal.SIGPROF, before)


def test_the_check_finds_a_quadratic_reader() -> None:
    def quadratic(said: str) -> None:
        # By the clock of the check: how fast the machine is, and how busy, does not matter.
        end = time.process_time() + 0.4 * NOISE * (len(said) / SIZE) ** 2
        while time.process_time() < end:
            pass

    before = signal.signal(signal.SIGPROF, _overdue)
    try:
        with pytest.raises(pytest.fail.Exception, match="not linear"):
            _check(quadratic, "", "a", "", times=1)
    finally:
        signal.signal(signal.SIGPROF, before)


def _place_naively(lines: list[str], piece: list[str], start: int) -> list[int]:
    for normal in (lambda line: line.removesuffix("\r"), str.rstrip, str.strip):
        have, wanted = [normal(line) for line in lines], [normal(line) for line in piece]
        places = [at for at in range(start, len(lines) - len(piece) + 1) if have[at : at + len(piece)] == wanted]
        if places:
            return places
    return []


@settings(derandomize=True, database=None)
@given(st.lists(st.sampled_from(["a", "a ", " a", "b", "", "c\r"]), min_size=1, max_size=80), st.data())
def test_pieces_are_found_where_a_plain_search_finds_them(lines: list[str], data: Any) -> None:
    piece = data.draw(st.lists(st.sampled_from(["a", "a ", "b", "", "c"]), min_size=1, max_size=3))
    start = data.draw(st.integers(0, len(lines)))
    places, _ = edits.Lines(lines).find(piece, start)
    assert places == _place_naively(lines, piece, start)[: edits.MAX_FOUND]


@settings(derandomize=True, database=None)
@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.lists(st.sampled_from("abcdef"), max_size=40))
def test_a_diff_says_what_changed(old: list[str], new: list[str]) -> None:
    from manyhands.tools.files.edits import LineMatcher

    made: list[str] = []
    at = 0
    for tag, i1, i2, j1, j2 in LineMatcher(old, new).get_opcodes():
        assert i1 == at
        at = i2
        made += old[i1:i2] if tag == "equal" else new[j1:j2]
    assert (at, made) == (len(old), new)


def test_a_patch_of_many_hunks_in_a_file_of_like_lines_is_refused_in_time() -> None:
    draw = random.Random(1)
    lines = [str(draw.randrange(600)) for _ in range(400_000)]
    places = range(0, 200_000, 40)
    hunks = "".join(f"@@\n {lines[at]}\n-{lines[at + 1]}\n+x\n" for at in places)
    [change] = patches.parse_patch(f"*** Update File: f\n{hunks}")
    began = time.process_time()
    with pytest.raises(ToolError):
        patches.apply_hunks(change, "\n".join(lines))
    assert time.process_time() - began < CEILING


@pytest.mark.parametrize("depth", [190, 250, 990, 1500, 200_000])
def test_json_of_any_depth_is_read_or_refused(depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        said = opening * depth + "1" + closing * depth
        with _refused():
            value = jsonio.loads_outside(said)
            assert depth <= jsonio.MAX_DEPTH
            jsonio.dumps(schema.cleaned(value))
        for within in (f'{{"x": "{"]" * 300}", "y": {said}}}', f'"\\"{"[" * 300}"'):
            with _refused():
                jsonio.loads_outside(within)
    assert jsonio.loads_outside(jsonio.dumps(["[" * 500, ['"['] * 500])) == ["[" * 500, ['"['] * 500]
