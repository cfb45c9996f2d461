"""YAML 1.2 files and JSON Lines as plain data with lines."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.io.json_files import parsed_line, read_jsonl
from manyhands.io.locations import Location
from manyhands.io.yaml_files import parse_source, read_yaml

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x7f\x85\ufeff\ufffe\uffff", exclude_categories=("Cc", "Cs")),
    max_size=40,  # a key of YAML is at most 1024 characters long, escapes included
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def value(text: str) -> Any:
    return parse_source(text, "file").value


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        parse_source(text, "file")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-01-15", "2025-01-15"),
        ("2025-01-15T10:00:00Z", "2025-01-15T10:00:00Z"),
        *((word, word) for word in ("yes", "no", "on", "off", "Yes", "NO", "y", "n")),
        ("1:30", "1:30"),
        ("012", 12),
        ("0o14", 12),
        ("0x1f", 31),
        ("+7", 7),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1.5E-2", -0.015),
        (".", "."),
        ("-", [None]),
        ("1.2.3", "1.2.3"),
        ("~", None),
        ("null", None),
        ("nULL", "nULL"),
        ("true", True),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 012", "012"),
        ("!!float 3", 3.0),
        ("!!int 0x10", 16),
        ("! 5", "5"),
        ("|-\n  a\n  b", "a\nb"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, expected: Any) -> None:
    found = value(text)

    assert found == expected
    assert type(found) is type(expected)


def test_numbers_that_json_would_write_otherwise_are_kept_as_written() -> None:
    source = parse_source("a: 012\nb: 12\nc: [1.50, 1.5, 1e3]\nd: '007'\ne: true", "file")

    assert source.written == {("a",): "012", ("c", 0): "1.50", ("c", 2): "1e3"}


def test_keys_are_text_as_written() -> None:
    assert value("1: a\ntrue: b\n0.50: c\n~: d") == {"1": "a", "true": "b", "0.50": "c", "~": "d"}


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    assert refusal("a:\n  b: 1\n  c: 2\n  b: 3\n") == "file, line 4: the key 'b' comes twice: in line 2 and in line 4"
    assert "comes twice" in refusal("{a: 1, 'a': 2}")
    assert "comes twice" in refusal("1: a\n'1': b")


def test_anchors_and_merge_keys() -> None:
    text = """
base: &base {type: contains, weight: 2}
other: &other {weight: 3, negate: true}
one: {<<: *base, weight: 1}
two: {name: x, <<: [*base, *other]}
same: *base
"""
    found = value(text)

    assert found["one"] == {"type": "contains", "weight": 1}
    assert found["two"] == {"type": "contains", "weight": 2, "negate": True, "name": "x"}
    assert found["same"] == found["base"]


def test_a_merge_key_in_quotes_is_a_key() -> None:
    assert value("{'<<': {a: 1}}") == {"<<": {"a": 1}}


def test_lines_are_those_of_keys_and_items_also_behind_aliases() -> None:
    location = parse_source("a: &x\n  deep:\n    er: 1\nb:\n  - *x\n  - c:\n\n      - 2\n", "file").location

    assert str(location.at("a", "deep", "er")) == "file, line 3: a.deep.er"
    assert str(location.at("b", 0)) == "file, line 5: b[0]"
    assert str(location.at("b", 0, "deep", "er")) == "file, line 3: b[0].deep.er"
    assert str(location.at("b", 1, "c", 0)) == "file, line 8: b[1].c[0]"
    assert str(location.at("b", 1, "nowhere")) == "file, line 6: b[1].nowhere"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: [1", 1, "not valid YAML"),
        ("a: 1\nb: c: d", 2, "not valid YAML"),
        ("a:\n\t- b", 2, "not valid YAML"),
        ("a: 1\nb: \x01", 2, "the character U+0001"),
        ("a: &a [*a]", 1, "part of what it stands for"),
        ("a: 1\nb: *c", 2, "stands for nothing"),
        ("a: 1\n---\nb: 2", 2, "a second one begins"),
        ("a: 1\nb: .inf", 2, "no number that JSON can hold"),
        ("a: .nan", 1, "no number that JSON can hold"),
        ("a: 1e999", 1, "no number that JSON can hold"),
        ("a: " + "9" * 5000, 1, "digits"),
        ('a: "\\ud800"', 1, "half a surrogate pair"),
        ("a: !own 3", 1, "the tag !own is not known"),
        ("a: !!set {x}", 1, "the tag !!set is not known"),
        ("a: !!int x", 1, "does not fit"),
        ("[1]: 2", 1, "a key must be text"),
        ("a: &x 1\nb: {<<: *x}", 2, "takes a mapping"),
        ("[" * 5000, 1, "nested more than"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, said: str) -> None:
    assert refusal(text).startswith(f"file, line {line}: ")
    assert said in refusal(text)


def test_escapes_beyond_unicode_are_refused() -> None:
    assert refusal('a: "\\UFFFFFFFF"').startswith("file: not valid YAML")


def test_what_aliases_multiply_is_bounded() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 20))
    began = time.monotonic()

    assert "aliases stand for more than" in refusal(bomb)
    assert time.monotonic() - began < 30


def test_what_merge_keys_multiply_is_bounded() -> None:
    bomb = "a0: &a0 {x: 1}\n"
    bomb += "".join(f"a{level}: &a{level} {{<<: [{','.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 20))

    assert "aliases stand for more than" in refusal(bomb)


@given(JSON)
def test_json_reads_as_itself(wanted: Any) -> None:
    assert value(json.dumps(wanted, ensure_ascii=False)) == wanted


@given(JSON)
def test_json_with_escapes_reads_as_itself(wanted: Any) -> None:
    assert value(json.dumps(wanted)) == wanted


def read_or_refused(text: str) -> Any:
    """What a text holds; its refusal must name the file."""
    try:
        return parse_source(text, "file").value
    except UserError as error:
        return None if str(error).startswith("file") else pytest.fail(f"no place: {error}")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    json.dumps(read_or_refused(text), allow_nan=False).encode()


@given(st.text("{}[]:-,&*!|>'\"#%@` \n\tab1.<?", max_size=40))
def test_any_text_of_syntax_is_read_or_refused(text: str) -> None:
    json.dumps(read_or_refused(text), allow_nan=False).encode()


def test_a_file_that_cant_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xff")

    for path, said in ((tmp_path / "none.yaml", "No such file"), (latin, "not UTF-8 text"), (tmp_path, "directory")):
        with pytest.raises(UserError, match=said):
            read_yaml(path)


def test_an_empty_file_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# only a comment\n")

    assert read_yaml(path)[0] is None


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")

    assert read_yaml(path)[0] == {"a": 1, "b": 2}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_files_of_windows_programs_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes("a: naïve 😀\r\nb: |\r\n  one\r\n  two\r\n".encode(encoding))
    found, location = read_yaml(path)
    assert found == {"a": "naïve 😀", "b": "one\ntwo\n"}
    assert location.at("b").line == 2


def test_the_line_is_named_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(UserError, match=r"e\.yaml, line 2: not UTF-8 text$"):
        read_yaml(path)
    path.write_bytes("a: 1\n".encode("utf-16")[:-1])
    with pytest.raises(UserError, match=r"e\.yaml, line \d: not UTF-16 text$"):
        read_yaml(path)


def test_json_lines_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "tests.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 1.50}\r\n\n{"id": "b",}\n{"a": 1, "a": 2}\n{"a": NaN}\n\xff\n{"x": "\\ud83d"}\n"\\ud83d\\ude00"'
    )

    found = list(read_jsonl(path, "tests.jsonl"))

    errors = [str(each) for each in found if isinstance(each, UserError)]
    assert [error.split(": ")[0] for error in errors] == [f"tests.jsonl, line {line}" for line in (3, 4, 5, 6, 7)]
    first, last = found[0], found[-1]
    assert not isinstance(first, UserError)
    assert not isinstance(last, UserError)
    assert first.value == {"id": 1.5}
    assert first.written == {("id",): "1.50"}
    assert str(first.location.at("id")) == "tests.jsonl, line 1: id"
    assert last.value == "😀"


def test_json_lines_that_are_nested_too_deeply() -> None:
    for depth in (101, 500, 100_000):
        found = parsed_line(b"[" * depth + b"]" * depth, Location("file"))
        assert isinstance(found, UserError)
        assert "deep" in str(found)
    assert not isinstance(parsed_line(b"[" * 100 + b"]" * 100, Location("file")), UserError)


@given(JSON)
def test_json_lines_hold_what_json_holds(wanted: Any) -> None:
    found = parsed_line(json.dumps(wanted).encode(), Location("file"))

    assert not isinstance(found, UserError)
    assert found.value == wanted
