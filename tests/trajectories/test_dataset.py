"""Reading datasets: every format, every kind of bad row, identities, memory."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from manyhands.core.errors import UserError
from manyhands.workloads.trajectories.dataset.rows import BadRow, Row, iterate_items, read_rows, row_digest, scan

ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "id": "a", "label": 1},
    {"prompt": "zwei ü", "image": "python:3", "cwd": "/w", "label": 2},
    {"prompt": "three", "docker_image": "debian", "label": 3},
]


def run_python(program: str, *arguments: Path) -> str:
    """What a program prints that runs in a Python of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100, env=environment).stdout


def write(folder: Path, text: str | bytes, name: str = "d.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def good(path: Path) -> list[Row]:
    rows = list(read_rows(path))
    assert all(isinstance(row, Row) for row in rows), rows
    return [row for row in rows if isinstance(row, Row)]


def bad(path: Path) -> list[str]:
    return [str(row) for row in read_rows(path) if isinstance(row, BadRow)]


def jsonl(rows: list[Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


# --- Formats


def test_json_lines(tmp_path: Path) -> None:
    first, second, third = good(write(tmp_path, jsonl(ROWS)))
    assert first == Row(1, "one", id="a", source={"label": 1})
    assert (second.image, second.cwd, second.prompt) == ("python:3", "/w", "zwei ü")
    assert third.image == "debian"


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    expected = good(write(tmp_path, jsonl(ROWS)))
    table = pyarrow.Table.from_pylist(
        [{**dict.fromkeys(("id", "image", "cwd", "docker_image")), **row} for row in ROWS]
    )
    parquet.write_table(table, tmp_path / "d.parquet")
    datasets.Dataset(table).save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"test": datasets.Dataset(table)}).save_to_disk(str(tmp_path / "one_split"))
    other = table.slice(0, 1)
    splits = {"test": datasets.Dataset(other), "train": datasets.Dataset(table)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "splits"))
    paths = [
        write(tmp_path, json.dumps(ROWS), "d.json"),
        write(tmp_path, json.dumps(ROWS, indent=2), "indented.json"),
        write(tmp_path, json.dumps({"info": {"data": [1]}, "data": ROWS, "more": 1}), "wrapped.json"),
        write(tmp_path, jsonl(ROWS), "lines.json"),
        write(tmp_path, jsonl(ROWS), "other.txt"),
        write(tmp_path, gzip.compress(jsonl(ROWS).encode()), "d.jsonl.gz"),
        write(tmp_path, gzip.compress(json.dumps(ROWS).encode()), "d.json.gz"),
        *(tmp_path / name for name in ("d.parquet", "saved", "one_split", "splits")),
    ]
    for path in paths:
        assert good(path) == expected, path


def test_csv(tmp_path: Path) -> None:
    text = '\ufeffprompt,image,id,label\r\n"one, ""two""\r\nthree",,7,x\r\n\r\nfour,img,,y\r\n'
    first, second = good(write(tmp_path, text, "d.csv"))
    assert first == Row(2, 'one, "two"\r\nthree', id="7", source={"label": "x"})
    assert second == Row(5, "four", image="img", source={"label": "y"})


def test_csv_bad_rows_cost_only_themselves(tmp_path: Path) -> None:
    data = b'prompt,label\nok,1\nbad \xff,2\na,b,c\n"x"y,3\nlast,4\n,5\nshort\n'
    rows = list(read_rows(write(tmp_path, data, "d.csv")))
    assert [row.prompt for row in rows if isinstance(row, Row)] == ["ok", "a", "last", "short"]
    assert [str(row).split(":")[0] for row in rows if isinstance(row, BadRow)] == [
        "line 3",
        "line 5",
        "line 7",
    ]
    assert rows[2] == Row(4, "a", source={"label": "b", "column_3": "c"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", 'no "prompt" column'),
        ("prompt,x,x\n", "csv header x is duplicated"),
        ("\n\n", "must include a header"),
    ],
)
def test_csv_header_problems(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text, "d.csv")
    with pytest.raises(UserError, match=said) as caught:
        scan(path)
    assert str(path) in str(caught.value)


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1).filter(str.strip)
    )
)
def test_csv_round_trip(tmp_path_factory: pytest.TempPathFactory, prompts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "d.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["prompt"])
        writer.writerows([prompt] for prompt in prompts)
    assert [row.prompt for row in good(path)] == prompts


@given(
    st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            st.lists,
        )
    ),
    st.booleans(),
)
def test_json_arrays_of_anything_are_split_rightly(
    tmp_path_factory: pytest.TempPathFactory, elements: list[Any], wrap: bool
) -> None:
    rows = [{"prompt": "p", "value": element} for element in elements]
    text = json.dumps({"meta": elements, "data": rows} if wrap else rows)
    assert [row.source["value"] for row in good(write(tmp_path_factory.mktemp("json"), text, "d.json"))] == elements


def test_a_json_array_larger_than_the_buffer(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} " + 'ü\\"' * (number % 7 * 40_000)} for number in range(60)]
    assert [row.prompt for row in good(write(tmp_path, json.dumps(rows, ensure_ascii=False), "d.json"))] == [
        row["prompt"] for row in rows
    ]


def test_json_array_elements_that_are_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path, '[1, {"prompt": NaN}, "x", {"prompt": "fine"}, null, 2.5]', "d.json")
    assert bad(path) == [
        "row 1: not an object but a number",
        "row 2: invalid JSON: NaN is not JSON",
        "row 3: not an object but text",
        "row 5: not an object but null",
        "row 6: not an object but a number",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"prompt": "a"},\n {"prompt" "b"}]', "line 2, column 12: Expecting ':'"),
        ('[{"prompt": "a"}', "line 1, column 17: the file ends early"),
        ('[{"prompt": "a', "Unterminated string"),
        ('{"rows": []}\n', 'no "prompt" field'),
        ('{\n"rows": []}', 'no array called "data"'),
        ('{\n"data": 5}', 'no array called "data"'),
        ('"prompt"', "line 1, column 1: expected an array"),
        (b"[\xff]", "invalid UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no usable row"),
        ("[ ]", "no usable row"),
    ],
)
def test_json_files_that_cannot_be_read_on(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = write(tmp_path, text, "d.json")
    with pytest.raises(UserError) as caught:
        scan(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_element_that_is_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    deep = '{"prompt": "b", "x": ' + "[" * 300 + "]" * 300 + "}"
    path = write(tmp_path, f'[{{"prompt": "a"}}, {deep}, {{"prompt": "c"}}]', "d.json")
    found = scan(path)
    assert (found.rows, [str(row) for row in found.bad_rows]) == (2, ["row 2: invalid JSON: nested too deeply"])


def test_a_syntax_error_early_in_a_large_json_file_does_not_read_it_all(tmp_path: Path) -> None:
    path = write(tmp_path, '[{"prompt": oops},' + '{"prompt": "x"},' * 400_000 + "{}]", "d.json")
    with pytest.raises(UserError, match="line 1, column 13: Expecting value"):
        scan(path)


def test_arrow_values_become_json(tmp_path: Path) -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal

    row = {
        "prompt": "p",
        "day": date(2024, 5, 6),
        "at": datetime(2024, 5, 6, 7, tzinfo=UTC),
        "cost": Decimal("1.50"),
        "raw": b"\x00\x01",
        "nan": float("nan"),
        "deep": [{"day": date(2024, 5, 6)}],
    }
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "d.parquet")
    (read,) = good(tmp_path / "d.parquet")
    assert read.source == {
        "day": "2024-05-06",
        "at": "2024-05-06T07:00:00+00:00",
        "cost": "1.50",
        "raw": "AAE=",
        "nan": None,
        "deep": [{"day": "2024-05-06"}],
    }


def test_nulls_that_tables_put_into_content_parts_are_taken_out(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x.test/"}}]
    parquet.write_table(pyarrow.Table.from_pylist([{"prompt": parts}]), tmp_path / "d.parquet")
    assert good(tmp_path / "d.parquet")[0].prompt == parts


# --- Bad rows


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "x",}', "invalid JSON at column 1"),
        (b"nope", "invalid JSON at column 1: Expecting value"),
        (b'{"prompt": "\xff"}', "invalid UTF-8 at byte 13"),
        (b'{"prompt": NaN}', "invalid JSON: NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "x", "a": ' + b"[" * 250 + b"]" * 250 + b"}", "nested too deeply"),
        (b'{"messages": "[' + b"[" * 250 + b"]" * 250 + b']"}', '"messages" is text that is not JSON'),
        (b'"has prompt in it"', "not an object but text"),
        (b'["prompt"]', "not an object but a list"),
        (b"12", "not an object but a number"),
        (b"null", "not an object but null"),
        (b'{"Prompt": "x"}', 'no "prompt" field'),
        (b'{"prompt": null}', '"prompt" is null'),
        (b'{"prompt": 5}', '"prompt" is a number'),
        (b'{"prompt": true}', '"prompt" is true or false'),
        (b'{"prompt": {"a": 1}}', '"prompt" is an object'),
        (b'{"prompt": ""}', '"prompt" is empty'),
        (b'{"prompt": " \\n\\t"}', '"prompt" is empty'),
        (b'{"prompt": []}', '"prompt" is an empty list'),
        (b'{"prompt": [{"type": "text"}, "x"]}', 'part 2 of "prompt" is not an object with a "type"'),
        (b'{"prompt": [{"type": 5}]}', 'part 1 of "prompt"'),
        (b'{"prompt": "x", "image": 5}', '"image" is a number'),
        (b'{"prompt": "x", "docker_image": ["a"]}', '"docker_image" is a list'),
        (b'{"prompt": "x", "cwd": {"a": 1}}', '"cwd" is an object'),
        (b'{"prompt": "x", "cwd": "a\\u0000b"}', '"cwd" holds characters'),
        (b'{"prompt": "x", "id": true}', '"id" is true or false'),
        (b'{"prompt": "x", "id": 1.5}', '"id" is a number'),
        (b'{"prompt": "x", "id": " "}', '"id" is empty'),
        (b'{"prompt": "x", "id": "\\ud800"}', '"id" holds characters'),
    ],
)
def test_a_bad_line_is_reported_with_number_and_reason_and_costs_nothing_else(
    tmp_path: Path, line: bytes, said: str
) -> None:
    path = write(tmp_path, b'{"prompt": "before"}\n\n' + line + b'\n{"prompt": "after"}')
    rows = list(read_rows(path))
    assert [row.prompt for row in rows if isinstance(row, Row)] == ["before", "after"]
    (problem,) = bad(path)
    assert problem.startswith("line 3: ")
    assert said in problem


def test_bom_carriage_returns_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n  \r\n\r\n{"prompt": "b"}\r\n')
    assert [(row.line, row.prompt) for row in good(path)] == [(1, "a"), (4, "b")]


def test_multimodal_prompts_are_accepted(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "https://x.test/"}}]
    assert good(write(tmp_path, jsonl([{"prompt": parts}])))[0].prompt == parts


def test_falsy_images_are_no_images(tmp_path: Path) -> None:
    path = write(
        tmp_path, jsonl([{"prompt": "x", "image": value, "docker_image": "used"} for value in ("", None, 0, False)])
    )
    assert [row.image for row in good(path)] == ["used"] * 4


def test_a_second_row_with_an_id_names_both_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        jsonl([{"prompt": "a", "id": 7}, {"prompt": "b"}, {"prompt": "c", "id": "7"}, {"prompt": "d", "id": 7}]),
    )
    assert bad(path) == [
        "line 3: the id '7' is taken by line 1 already",
        "line 4: the id '7' is taken by line 1 already",
    ]


def test_a_damaged_gzip_file_loses_only_its_end(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(json.dumps({"prompt": f"{n}" * 50}).encode() + b"\n" for n in range(20_000)))
    rows = list(read_rows(write(tmp_path, data[: len(data) // 2], "d.jsonl.gz")))
    assert sum(isinstance(row, Row) for row in rows) > 1000
    assert "damaged from here on" in str(rows[-1])


def test_a_line_beyond_all_bounds_is_one_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    with path.open("wb") as stream:
        stream.write(b'{"prompt": "a"}\n')
        for _ in range(66):
            stream.write(b"x" * (1 << 20))
        stream.write(b'\n{"prompt": "b"}\n')
    assert bad(path) == ["line 2: longer than 64 MiB"]
    assert sum(isinstance(row, Row) for row in read_rows(path)) == 2


# --- Files that can't be used


def test_nothing_to_read_is_one_line_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, said in [
        (tmp_path / "none.jsonl", "not found"),
        (write(tmp_path, ""), "is empty"),
        (write(tmp_path, "\n \n", "blank.jsonl"), "no usable row"),
        (write(tmp_path, "oops\n{}\n", "bad.jsonl"), "no usable row"),
        (tmp_path / "folder", "not a Hugging Face dataset"),
        (write(tmp_path, "not parquet", "d.parquet"), "not a readable Parquet file"),
        (Path("/dev/null"), "not a regular file"),
    ]:
        with pytest.raises(UserError) as caught:
            scan(path)
        assert said in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="line 1: invalid JSON"):
        scan(tmp_path / "bad.jsonl")


def test_opening_fails_before_the_first_row_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        read_rows(tmp_path / "none.jsonl")


def test_several_splits_without_train_are_named(tmp_path: Path) -> None:
    one = datasets.Dataset.from_list([{"prompt": "x"}])
    datasets.DatasetDict({"dev": one, "test": one}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UserError, match=r"dev, test"):
        scan(tmp_path / "d")


@pytest.mark.parametrize(("name", "module"), [("d.parquet", "pyarrow"), ("saved", "datasets")])
def test_a_missing_extra_is_named(tmp_path: Path, name: str, module: str) -> None:
    if name == "saved":
        (tmp_path / name).mkdir()
        write(tmp_path / name, "{}", "dataset_info.json")
    else:
        write(tmp_path, "x", name)
    program = f"""
import sys
sys.modules[{module!r}] = None
from manyhands.core.errors import UserError
from manyhands.workloads.trajectories.dataset.rows import scan
try: scan({str(tmp_path / name)!r})
except UserError as error: print(error)
"""
    assert "pip install 'manyhands[datasets]'" in run_python(program)


# --- Scan, identities


def test_scan_says_what_there_is(tmp_path: Path) -> None:
    lines = jsonl(
        [{"prompt": "a", "x": 1}, {"prompt": "b", "image": "i", "x": "t", "y": 2}, {"prompt": "c", "image": "j"}]
    )
    found = scan(write(tmp_path, lines + "oops\n" * 1500))
    assert (found.rows, found.bad_count, len(found.bad_rows), found.images.count()) == (3, 1500, 1000, 2)
    assert found.fields.build().fields == (("x", False), ("y", True))


def test_max_samples_takes_the_first_usable_rows(tmp_path: Path) -> None:
    path = write(tmp_path, 'oops\n{"prompt": "a"}\noops\n{"prompt": "b"}\noops\n{"prompt": "c"}\n')
    found = scan(path, max_samples=2)
    assert (found.rows, found.bad_count) == (2, 2)
    assert [item.row.prompt for item in iterate_items(path, max_samples=2)] == ["a", "b"]


def test_items_of_equal_rows_are_samples_of_one_another(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a"},
        {"prompt": "b"},
        {"prompt": " a\n"},
        {"prompt": "a", "cwd": "/x"},
        {"prompt": "a", "id": "z"},
    ]
    items = list(iterate_items(write(tmp_path, "bad\n" + jsonl(rows)), samples=2))
    assert [(item.prompt_index, item.sample) for item in items] == [
        (index, sample) for index in range(5) for sample in range(2)
    ]
    keys = [item.key for item in items]
    base = keys[0].removesuffix("#0")
    assert keys[:2] + keys[4:6] == [f"{base}#{k}" for k in range(4)]
    assert keys[8:] == ["id:z#0", "id:z#1"]
    assert len(set(keys)) == 10


def test_keys_do_not_depend_on_place_or_unknown_fields(tmp_path: Path) -> None:
    before = {item.key for item in iterate_items(write(tmp_path, jsonl([{"prompt": "a"}, {"prompt": "b", "x": 1}])))}
    after = {
        item.key
        for item in iterate_items(write(tmp_path, jsonl([{"prompt": "b"}, {"prompt": "new"}, {"prompt": "a"}])))
    }
    assert before < after
    assert f"{row_digest(Row(9, 'a')).hex()}#0" in before


def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    program = """
import resource, sys
from manyhands.workloads.trajectories.dataset.rows import iterate_items, scan
for path in sys.argv[1:]:
    scan(path)
    assert sum(1 for _ in iterate_items(path)) > 1000
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    for name, rows in (("small", 2_000), ("large", 60_000)):
        lines = (json.dumps({"prompt": f"prompt {n}", **({"id": n} if n % 2 else {})}) for n in range(rows))
        write(tmp_path, "\n".join(lines), name)
    output = run_python(program, tmp_path / "small", tmp_path / "large")
    small, large = map(int, output.split())
    assert large < small * 1.2


# --- Prompts in another column, and splits


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("question,answer", "; give --prompt_column=question"),
        ("id,Prompt", "; give --prompt_column=Prompt"),
        ("id,My task text", "; give --prompt_column='My task text'"),
        (
            "text,question",
            "; --prompt_column=NAME names the one that holds the prompts; the columns are: text, question",
        ),
        ("a,b,id", "; --prompt_column=NAME names the one that holds the prompts; the columns are: a, b"),
        ("id,cwd", ""),
    ],
)
def test_where_the_prompts_may_be_is_said(tmp_path: Path, columns: str, said: str) -> None:
    values = re.sub("[^,]+", "x", columns)
    table = write(tmp_path, f"{columns}\n{values}\n", "d.csv")
    with pytest.raises(UserError) as caught:
        scan(table)
    assert str(caught.value) == f'{table}: the header has no "prompt" column{said}'
    lines = write(tmp_path, jsonl([dict.fromkeys(columns.split(","), "x")]))
    with pytest.raises(UserError) as caught:
        scan(lines)
    assert str(caught.value) == f'the dataset has no usable row: {lines} (line 1: no "prompt" field){said}'


def test_prompts_of_another_column(tmp_path: Path) -> None:
    rows = [
        {"question": "one", "prompt": "kept as it is", "id": 1},
        {"prompt": "two"},
        {"question": 5},
        {"question": "three", "system": "Be brief."},
    ]
    read = list(read_rows(write(tmp_path, jsonl(rows)), prompt_column="question"))
    assert read[0] == Row(1, "one", id="1", source={"prompt": "kept as it is"})
    assert [str(row).split(",")[0] for row in read[1:3]] == [
        'line 2: no "question" field',
        'line 3: "question" is a number',
    ]
    assert read[3] == Row(4, "three", system="Be brief.")
    with pytest.raises(UserError, match="did you mean question"):
        scan(write(tmp_path, "question,answer\na,b\n", "d.csv"), prompt_column="qestion")


def test_splits_are_chosen_by_name(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_dict({"question": [name]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "hf"))
    for split, prompt in ((None, "train"), ("test", "test")):
        rows = read_rows(tmp_path / "hf", prompt_column="question", split=split)
        assert [row.prompt for row in rows if isinstance(row, Row)] == [prompt]
    with pytest.raises(UserError, match="no split called 'tset'; did you mean test\\?; its splits are: test, train"):
        read_rows(tmp_path / "hf", split="tset")
    splits["train"].save_to_disk(str(tmp_path / "one"))
    with pytest.raises(UserError, match="no split called 'test'; it has no splits"):
        read_rows(tmp_path / "one", split="test")
    with pytest.raises(UserError, match="--split is for a Hugging Face dataset folder, and this is a file"):
        read_rows(write(tmp_path, jsonl([{"prompt": "x"}])), split="test")


def repository(folder: Path) -> Path:
    """A folder laid out as a dataset repository, with a card."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Questions\n")
    datasets.Dataset.from_list(ROWS[:2]).to_parquet(str(folder / "data/train-00000-of-00002.parquet"))
    more = [{**row, "id": None, "prompt": f"{row['prompt']}!"} for row in ROWS[:2]]
    datasets.Dataset.from_list(more).to_parquet(str(folder / "data/train-00001-of-00002.parquet"))
    datasets.Dataset.from_list([{**ROWS[0], "prompt": "held out"}]).to_parquet(
        str(folder / "data/test-00000-of-00001.parquet")
    )
    return folder


def test_a_dataset_repository_is_read_by_splits(tmp_path: Path) -> None:
    folder = repository(tmp_path / "hub")
    assert [row.prompt for row in good(folder)] == ["one", "zwei ü", "one!", "zwei ü!"]
    assert [row.prompt for row in read_rows(folder, split="test") if isinstance(row, Row)] == ["held out"]
    with pytest.raises(UserError, match=r"no split called 'tset'; did you mean test"):
        scan(folder, split="tset")


def test_configurations_of_a_repository_are_named(tmp_path: Path) -> None:
    folder = repository(tmp_path / "hub")
    card = "---\nconfigs:\n- {config_name: a, data_files: data/train-*}\n- {config_name: b, data_files: data/test-*}\n---\n"
    (folder / "README.md").write_text(card)
    with pytest.raises(UserError, match=r"configurations a, b; name one with --split=CONFIGURATION/SPLIT"):
        scan(folder)
    assert [row.prompt for row in read_rows(folder, split="b/train") if isinstance(row, Row)] == ["held out"]


def test_a_broken_repository_is_one_line(tmp_path: Path) -> None:
    folder = repository(tmp_path / "hub")
    (folder / "data/train-00001-of-00002.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UserError, match=r"not a readable Hugging Face dataset"):
        scan(folder)
    (tmp_path / "none").mkdir()
    (tmp_path / "none/notes.md").write_text("x")
    with pytest.raises(UserError, match=r"nor one with data files"):
        scan(tmp_path / "none")


@pytest.mark.parametrize("named", ["data_files: {outside}", "data_files: ../outside.jsonl", "data_dir: .."])
def test_a_card_gives_no_data_outside_of_its_folder(tmp_path: Path, named: str) -> None:
    outside = write(tmp_path, jsonl([{"prompt": "SECRET"}]), "outside.jsonl")
    folder = repository(tmp_path / "hub")
    card = "---\nconfigs:\n- config_name: default\n  data_files: data/*\n  " + named.format(outside=outside) + "\n---\n"
    (folder / "README.md").write_text(card.replace("  data_files: data/*\n", "") if "files" in named else card)
    with pytest.raises(UserError, match=r"data outside of the folder, which is not read"):
        read_rows(folder)
    (folder / "README.md").write_text("")
    (folder / ".huggingface.yaml").write_text(card.strip("-\n"))
    with pytest.raises(UserError):
        list(read_rows(folder))


@pytest.mark.parametrize("scheme", ["http://127.0.0.1:{port}/x.jsonl", "zip://x::http://127.0.0.1:{port}/x.zip"])
def test_a_card_asks_no_server(tmp_path: Path, scheme: str) -> None:
    folder = repository(tmp_path / "hub")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        named = scheme.format(port=server.getsockname()[1])
        (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {named}\n---\n")
        with pytest.raises(UserError, match="data outside of the folder"):
            read_rows(folder)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_links_out_of_a_repository_are_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path, jsonl([{"prompt": "SECRET"}]), "outside.jsonl")
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").symlink_to(outside)
    with pytest.raises(UserError, match=r"a link leads out of the folder, and is not read: "):
        read_rows(folder)
    (tmp_path / "cache/blobs").mkdir(parents=True)  # as the Hub's cache has it
    outside.rename(tmp_path / "cache/blobs/0123")
    kept = tmp_path / "cache/snapshots/abc"
    kept.mkdir(parents=True)
    (kept / "train.jsonl").symlink_to("../../blobs/0123")
    assert [row.prompt for row in good(kept)] == ["SECRET"]


def test_scripts_and_broken_cards_are_one_line(tmp_path: Path) -> None:
    folder = repository(tmp_path / "hub")
    (folder / "hub.py").write_text("raise SystemExit")
    with pytest.raises(UserError, match="not a readable Hugging Face dataset"):
        read_rows(folder)
    (folder / "hub.py").unlink()
    (folder / "README.md").write_text("---\nconfigs: [\n---\n")
    with pytest.raises(UserError, match=r"README\.md, line 1: not valid YAML"):
        read_rows(folder)


def test_a_card_that_unfolds_for_ever_is_refused(tmp_path: Path) -> None:
    folder = repository(tmp_path / "hub")
    doubled = [f"a{number}: &a{number} [*a{number - 1}, *a{number - 1}]" for number in range(1, 40)]
    lines = ["---", "a0: &a0 [x, y]", *doubled, "configs: [{config_name: c, data_files: *a39}]", "---", "x", ""]
    (folder / "README.md").write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"README\.md, line \d+: "):
        scan(folder)
