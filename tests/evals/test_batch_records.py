"""An output while it is written, in whole and in pieces, as lines, as an array, compressed, replaced, damaged."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import tracemalloc
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhands.io.tables.json import JsonArray, JsonArrayError
from manyhands.workloads.evals.batch.output import OutputFile, Progress
from manyhands.workloads.evals.batch.records import (
    MAX_NAMED,
    MAX_RECORD,
    BadLine,
    Event,
    Found,
    LineScanner,
    NoRecord,
    RecordIndex,
    parse_line,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
LINES = st.one_of(
    JSON.map(json.dumps).map(str.encode),
    st.dictionaries(st.sampled_from(["id", "text"]), JSON, max_size=2).map(json.dumps).map(str.encode),
    st.sampled_from(
        [b"", b"  ", b"\r", b"{oops", b'{"id": "a"', b"\xff\xfe", b"NaN", codecs.BOM_UTF8 + b'{"id": "a"}']
    ),
    st.binary(max_size=20),
)


def record(test_id: str, **more: Any) -> bytes:
    return json.dumps({"id": test_id, "text": "t", **more}).encode()


def scanned(*pieces: bytes) -> list[Event]:
    scanner = LineScanner()
    return [*(event for piece in pieces for event in scanner.feed(piece)), *scanner.finish()]


def ids(events: list[Event]) -> list[str]:
    return [event.id if isinstance(event, Found) else f"!{event.line} {event.problem}" for event in events]


class Followed:
    """An output file that is followed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "output.jsonl"
        self.file = OutputFile(self.path, folder / "records.jsonl")
        self.found: list[Event] = []

    def _took(self, progress: Progress) -> list[str]:
        if progress.anew:
            self.found.clear()
        self.found += progress.events
        return ids(progress.events)

    def on(self) -> list[str]:
        return self._took(self.file.read_on())

    def end(self) -> list[str]:
        self._took(self.file.read_to_the_end())
        return ids(self.found)

    def lines(self) -> list[bytes]:
        """What can be read at the places that were found."""
        return [self.file.read(event.offset, event.length) for event in self.found if isinstance(event, Found)]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


# --- Lines


@given(st.lists(LINES, max_size=6), st.lists(st.integers(0, 200), max_size=6))
@example([b'{"id": 1e999}', b'{"id": ' + b"9" * 5000 + b"}", b"[" * 3000, b'{"id":"a","x":' + b"[" * 1500], [])
def test_any_line_in_any_pieces_is_a_record_or_a_named_fault(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    whole = scanned(data)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert scanned(*(data[start:end] for start, end in pairwise(places))) == whole
    for event in whole:
        if isinstance(event, Found):
            assert str(parse_line(data[event.offset : event.offset + event.length]).get("id")) != ""
        else:
            assert event.problem


def test_each_fault_is_named_with_its_line() -> None:
    lines = [record("a"), b"", b"{oops", b"[1]", b"5", b'{"text": 1}', b'{"id": []}', b"\xff", b"[" * 3000, record("b")]
    assert ids(scanned(b"\r\n".join(lines))) == [
        "a",
        "!3 is not JSON (at column 2: Expecting property name enclosed in double quotes)",
        "!4 is not an object",
        "!5 is not an object",
        "!6 has no id",
        "!7 has an id that is neither text nor a number",
        "!8 is not UTF-8",
        "!9 is nested too deeply",
        "b",
    ]


def test_a_bad_line_is_attributed_to_the_test_that_it_names() -> None:
    bad = [event for event in scanned(b'{"id": "a\\"b", "text": oops}\n{"text": 1, "id" : 7,}\n{"id": "cut') if event]
    assert [(event.id, event.cut) for event in bad if isinstance(event, BadLine)] == [
        ('a"b', False),
        ("7", False),
        (None, True),
    ]


def test_a_line_without_end_has_a_bound() -> None:
    scanner = LineScanner()
    piece = b"x" * (1 << 20)
    tracemalloc.start()
    for _ in range(2 * MAX_RECORD // len(piece) + 1):
        assert scanner.feed(piece) == []
    assert tracemalloc.get_traced_memory()[1] < 3 * MAX_RECORD
    tracemalloc.stop()
    events = scanner.feed(b"\n" + record("a") + b"\n")
    assert ids(events) == ["!1 is longer than 64 MiB", "a"]
    assert isinstance(events[1], Found)
    assert events[1].offset == 2 * MAX_RECORD + len(piece) + 1


@pytest.mark.parametrize("text", [b'{"a": 1e999}', b'{"a": ' + b"9" * 400 + b".5}", b'{"a":' * 300 + b"1" + b"}" * 300])
def test_what_no_journal_could_hold_is_no_record(text: bytes) -> None:
    with pytest.raises(NoRecord):
        parse_line(text)


# --- While it is written


def test_records_are_found_as_their_lines_end(followed: Followed) -> None:
    assert followed.on() == []
    with followed.path.open("wb", buffering=0) as file:
        assert followed.on() == []
        file.write(codecs.BOM_UTF8 + b"\n" + record("a") + b"\r\n" + record("b")[:10])
        assert followed.on() == ["a"]
        assert followed.on() == []
        file.write(record("b")[10:])
        assert followed.on() == []
        file.write(b"\n" + record("c"))
        assert followed.on() == ["b"]
    assert followed.end() == ["a", "b", "c"]
    assert [parse_line(line)["id"] for line in followed.lines()] == ["a", "b", "c"]
    assert (followed.file.problem, followed.file.note, followed.file.unit) == (None, None, "line")


def test_a_file_that_is_replaced_is_read_anew(followed: Followed, tmp_path: Path) -> None:
    followed.path.write_bytes(record("a") + b"\n" + record("b") + b"\n")
    assert followed.on() == ["a", "b"]
    (tmp_path / "aside").write_bytes(record("a", n=2) + b"\n" + record("c") + b"\n")
    (tmp_path / "aside").replace(followed.path)
    assert followed.end() == ["a", "c"]
    assert json.loads(followed.lines()[0])["n"] == 2


def test_a_file_that_is_cut_and_written_anew_is_read_anew(followed: Followed) -> None:
    followed.path.write_bytes(record("a") + b"\n" + record("b") + b"\n")
    assert followed.on() == ["a", "b"]
    followed.path.write_bytes(record("x") + b"\n")
    assert followed.on() == ["x"]
    # Longer than before, so that only what stands there shows it.
    followed.path.write_bytes(record("first") + b"\n" + record("second") + b"\n")
    assert followed.end() == ["first", "second"]


def test_a_file_that_grows_by_being_written_anew_keeps_its_records(followed: Followed) -> None:
    lines = [record(name) + b"\n" for name in "abcd"]
    for count in range(1, 5):
        followed.path.write_bytes(b"".join(lines[:count]))
        followed.on()
    assert followed.end() == ["a", "b", "c", "d"]


def test_a_file_that_is_taken_away_is_not_there(followed: Followed) -> None:
    followed.path.write_bytes(record("a") + b"\n")
    assert followed.on() == ["a"]
    followed.path.unlink()
    assert followed.end() == []
    assert followed.file.problem == "the output file was not written"


@pytest.mark.parametrize(
    ("data", "problem"),
    [(None, "not written"), (b"", "is empty"), (b" \n\r\n", "is empty"), (codecs.BOM_UTF8, "is empty")],
)
def test_nothing_is_named(followed: Followed, data: bytes | None, problem: str) -> None:
    if data is not None:
        followed.path.write_bytes(data)
    assert followed.on() == []
    assert followed.end() == []
    assert problem in (followed.file.problem or "")


def test_what_is_no_file_is_named(followed: Followed) -> None:
    followed.path.mkdir()
    assert followed.end() == []
    assert followed.file.problem == "the output file is not a regular file"
    followed.path.rmdir()
    os.mkfifo(followed.path)
    assert followed.end() == []
    assert followed.file.problem == "the output file is not a regular file"


def test_much_blank_before_the_first_line_is_no_end(followed: Followed) -> None:
    followed.path.write_bytes(b"\n" * 10_000 + record("a"))
    assert followed.end() == ["a"]


# --- Arrays, and what is compressed


ARRAYS = [
    json.dumps([{"id": "a", "text": "x\ny"}, {"id": "b"}]),
    json.dumps([{"id": "a", "text": "x\ny"}, {"id": "b"}], indent=2),
    "\ufeff \n[\r\n" + json.dumps({"id": "a", "text": "x\ny"}) + " \n,\r\n" + '{"id": "b"}' + "\n]\n\n",
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", ARRAYS)
def test_an_array_is_read_once_it_is_whole(followed: Followed, text: str, packed: bool) -> None:
    data = gzip.compress(text.encode()) if packed else text.encode()
    with followed.path.open("wb", buffering=0) as file:
        for place in range(0, len(data), 7):
            file.write(data[place : place + 7])
            assert followed.on() == []
    assert followed.end() == ["a", "b"]
    assert json.loads(followed.lines()[0]) == {"id": "a", "text": "x\ny"}
    assert followed.file.unit == "element"
    assert "one JSON array was read as lines" in (followed.file.note or "")


def test_elements_that_are_no_records_are_named_by_their_number(followed: Followed) -> None:
    followed.path.write_bytes(b'[{"id": "a"}, 5, {"id": NaN}, {"no": "id"}, {"id": "\xff"}, {"id": "b"}]')
    assert followed.end() == [
        "a",
        "!2 is not an object",
        "!3 is not JSON (NaN is not JSON)",
        "!4 has no id",
        "!5 is not UTF-8",
        "b",
    ]


@pytest.mark.parametrize("rest", ['{"id": "c"', "oops]", "", ",", '{"id": "c"} {"id": "d"}]', "5"])
def test_what_could_be_read_of_a_damaged_array_counts(followed: Followed, rest: str) -> None:
    followed.path.write_text('[{"id": "a"},\n{"id": "b"},' + rest)
    found = followed.end()
    assert found[:2] == ["a", "b"]
    assert "it can't be read beyond element" in (followed.file.note or "")


def test_an_empty_array_holds_no_records(followed: Followed) -> None:
    followed.path.write_text("[]")
    assert followed.end() == []
    assert followed.file.problem is None


@pytest.mark.parametrize("first", ["[1, 2]", "[INFO] started", "[]", '[{"id": "x"}]', "["])
def test_a_list_before_lines_is_a_line_of_its_own(followed: Followed, first: str) -> None:
    followed.path.write_bytes(first.encode() + b"\n" + record("a") + b"\n" + record("b"))
    found = followed.end()
    if first == "[":  # nothing shows that it is none
        assert found == ["a"]
    else:
        assert [name for name in found if not name.startswith("!1")] == ["a", "b"]


@given(st.lists(JSON, max_size=6), st.sampled_from([None, 1]), st.integers(1, 40))
def test_an_array_s_elements_are_all_found(values: list[Any], indent: int | None, size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(size)

    array = JsonArray(Slow(json.dumps(values, indent=indent, ensure_ascii=False).encode("utf-8", "replace")))
    assert [json.loads(text) for text in array.texts()] == json.loads(
        json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
    )
    assert not array.followed


@settings(deadline=None)
@given(st.binary(max_size=60).map(lambda data: b"[" + data) | st.text('[]{}",:1a \n', max_size=40).map(str.encode))
def test_no_text_is_too_strange_for_an_array(data: bytes) -> None:
    found: list[str] = []
    with suppress(JsonArrayError):
        found.extend(JsonArray(io.BytesIO(data), "surrogateescape").texts())
    assert len(found) <= len(data)


def test_lines_can_be_compressed_and_several_times(followed: Followed) -> None:
    data = gzip.compress(record("a") + b"\n") + gzip.compress(record("b") + b"\n") + b"\0" * 10
    followed.path.write_bytes(data)
    assert followed.on() == []
    assert followed.end() == ["a", "b"]
    assert followed.file.note == "the output was unpacked with gzip"
    assert followed.file.unit == "line"


def test_what_could_be_unpacked_counts(followed: Followed) -> None:
    lines = b"".join(record(f"t{number}", noise=os.urandom(30).hex()) + b"\n" for number in range(2000))
    packed = gzip.compress(lines)
    followed.path.write_bytes(packed[: len(packed) // 2])
    found = followed.end()
    assert 500 < len(found) < 1500
    assert found[:2] == ["t0", "t1"]
    assert "its end is missing or damaged" in (followed.file.note or "")


WIDE = ["utf-16", "utf-16-le", "utf-16-be"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("encoding", WIDE)
def test_lines_in_utf_16_are_read_once_they_are_whole(followed: Followed, encoding: str, packed: bool) -> None:
    lines = '{"id": "a", "text": "naïve 😀"}\r\n{"id": "b"\r\n\r\n{"id": "c"}\r\n'
    data = gzip.compress(lines.encode(encoding)) if packed else lines.encode(encoding)
    with followed.path.open("wb", buffering=0) as file:
        for place in range(0, len(data), 3):
            file.write(data[place : place + 3])
            assert followed.on() == []
    a, bad, c = followed.end()
    assert (a, c) == ("a", "c")
    assert bad.startswith("!2 is not JSON")
    assert json.loads(followed.lines()[0])["text"] == "naïve 😀"
    assert "the output is UTF-16 and was read as such" in (followed.file.note or "")
    assert followed.file.problem is None


@pytest.mark.parametrize("encoding", WIDE)
def test_an_array_in_utf_16(followed: Followed, encoding: str) -> None:
    followed.path.write_bytes(ARRAYS[1].encode(encoding))
    assert followed.end() == ["a", "b"]
    assert followed.file.unit == "element"
    assert "UTF-16" in (followed.file.note or "")
    assert "one JSON array was read as lines" in (followed.file.note or "")
    assert [path.name for path in sorted(followed.path.parent.iterdir())] == ["output.jsonl", "records.jsonl"]


def test_utf_16_that_begins_with_one_byte_is_waited_for(followed: Followed) -> None:
    with followed.path.open("wb", buffering=0) as file:
        for byte in (b"\xff", b"\xfe"):
            file.write(byte)
            assert followed.on() == []
        file.write(record("a").decode().encode("utf-16-le")[:-1])
    (found,) = followed.end()  # the last character is cut in two
    assert found.startswith("!1 is not JSON")


def test_utf_16_without_anything_in_it_is_empty(followed: Followed) -> None:
    followed.path.write_bytes("\r\n".encode("utf-16"))
    assert followed.end() == []
    assert followed.file.problem == "the output file is empty"


# --- Whose they are


def indexed(names: str, *lines: bytes, asked: str | None = None, known: str = "") -> RecordIndex:
    index = RecordIndex(list(names), asked if asked is not None else names, frozenset(names + known))
    for event in scanned(b"\n".join(lines)):
        index.add(event)
    return index


def notices(index: RecordIndex) -> list[str]:
    return list(index.notices("line", complete=True))


def test_the_same_record_twice_is_one_and_another_is_a_contradiction() -> None:
    index = indexed("ab", b'{"id":"a","x":1,"y":2}', b'{ "y": 2, "x": 1, "id": "a" }', record("b"), record("b", x=1))
    assert index.conflicts == {"b": (3, 4)}
    assert index.retracted == {"b": "there are two different records for it"}
    assert notices(index) == [
        "id a twice, identical records (again in line 2)",
        "id b twice, different records (lines 3 and 4)",
    ]


def test_records_that_nobody_asked_for_are_counted_if_they_are_known() -> None:
    index = indexed("abc", record("a"), record("b"), record("k"), record("z"), asked="a", known="k")
    assert index.records == 4
    assert notices(index) == ["unknown id z in line 4"]
    assert [index.entry(name) is not None for name in "abc"] == [True, False, False]


def test_notices_have_a_bound_and_say_how_many_more() -> None:
    lines = [record(f"x{number}") for number in range(500)] + [b"{"] * 300
    index = indexed("ab", record("a"), *lines)
    said = notices(index)
    assert len(said) == 2 * MAX_NAMED + 2
    assert f"… and {500 - MAX_NAMED} more records with an unknown id" in said
    assert f"… and {300 - MAX_NAMED} more lines without a record" in said


def test_what_was_given_and_then_changed_is_taken_back() -> None:
    index = indexed("abc", record("a"), record("b"), record("c"))
    for name in "abc":
        index.use(name)
    index.forget()
    for event in scanned(record("a") + b"\n" + record("b", x=1)):
        index.add(event)
    index.finish()
    assert index.retracted == {
        "b": "the output was written anew, with another record for it",
        "c": "the output was written anew, without its record",
    }
