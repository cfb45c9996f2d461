"""Datasets of every kind and quality, through a whole batch."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from tests.support.batches import REASONED, BatchFolder, Ran, ServerThread, read_lines

ROWS: list[dict[str, Any]] = [
    {"id": "a-1", "prompt": "First, über alles", "label": 3, "tags": ["x", "y"]},
    {"id": "a-2", "prompt": 'Second with "quotes"\nand a line', "label": 4, "tags": ["z"]},
    {"id": "a-3", "prompt": "Third", "label": 5, "tags": ["x", "z"]},
]


def batch(folder: BatchFolder, *words: str) -> tuple[Ran, list[dict[str, Any]]]:
    with ServerThread() as server:
        ran = folder.batch(f"--base_url={server.base_url}", *words)
        return ran, server.bodies


def asked_for(bodies: list[dict[str, Any]]) -> set[str]:
    return {body["messages"][-1]["content"] for body in bodies}


# --- Bad rows


BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"prompt": "torn', "JSON"),
    (b'{"promt": "typo"}', 'no "prompt" field'),
    (b'"a prompt as text"', "not an object but text"),
    (b'["prompt"]', "not an object but a list"),
    (b"17", "not an object but a number"),
    (b"null", "not an object but null"),
    (b'{"prompt": null}', '"prompt" is null'),
    (b'{"prompt": 12}', '"prompt" is a number'),
    (b'{"prompt": "   "}', '"prompt" is empty'),
    (b'{"prompt": []}', '"prompt" is an empty list'),
    (b'{"prompt": "caf\xe9"}', "UTF-8"),
    (b'{"prompt": "x", "image": ["y"]}', '"image" is a list'),
    (b'{"prompt": "x", "cwd": 3}', '"cwd" is a number'),
    (b'{"prompt": "x", "id": {}}', '"id" is an object'),
    (b'{"prompt": "x", "id": "taken"}', "taken by line 1"),
    (b"[" * 100_000, "JSON"),
]


def test_every_bad_line_is_reported_with_its_number_and_reason_and_nothing_else_is_lost(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    lines = [b'\xef\xbb\xbf{"prompt": "after the mark", "id": "taken"}', b"", b"   "]
    for number, (bad, _) in enumerate(BAD_LINES):
        lines += [bad, json.dumps({"prompt": f"good {number}"}).encode()]
    (tmp_path / "d.jsonl").write_bytes(b"\n".join(lines))
    ran, bodies = batch(folder)
    assert ran.code == 0
    good = ["after the mark", *(f"good {number}" for number in range(len(BAD_LINES)))]
    assert asked_for(bodies) == set(good)
    assert [line["conversations"][1]["value"] for line in folder.lines()] == good
    assert [line["prompt_index"] for line in folder.lines()] == list(range(len(good)))
    skipped = folder.lines("failures.jsonl")
    assert [(line["line"], line["state"]) for line in skipped] == [
        (4 + 2 * number, "skipped") for number in range(len(BAD_LINES))
    ]
    for line, (_, reason) in zip(skipped, BAD_LINES, strict=True):
        assert reason in line["message"]
        assert f"line {line['line']}: {line['message']}" in ran.err
    assert folder.json("statistics.json")["skipped_rows"] == len(BAD_LINES)


def test_many_bad_lines_do_not_flood_the_terminal(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    (tmp_path / "d.jsonl").write_text('{"prompt": "good"}\n' + "bad\n" * 60)
    ran, _ = batch(folder)
    assert ran.err.count("the row is skipped") == 20
    assert "40 more rows are skipped (failures.jsonl lists them)" in ran.err
    assert len(folder.lines("failures.jsonl")) == 60


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.jsonl", b"", "d.jsonl"),
        ("d.jsonl", b'{"promt": 1}\n', 'no usable row: d.jsonl (line 1: no "prompt" field)'),
        ("d.parquet", b"no parquet", "d.parquet"),
        ("d.json", b"{", "d.json"),
        ("d.jsonl.gz", b"no gzip", "d.jsonl.gz"),
        ("nowhere.jsonl", None, "nowhere.jsonl"),
    ],
)
def test_an_unusable_dataset_is_one_line_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    folder = BatchFolder(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ran, bodies = batch(folder, f"--dataset_file={name}")
    assert (ran.code, bodies, folder.run().exists()) == (2, [], False)
    assert said in ran.err.replace(f"{tmp_path}/", "")
    assert ran.err.count("\n") == 1


def test_a_table_that_is_cut_off_loses_only_its_end(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path)
    table = "Report\n\nprompt,n\n" + "".join(f"{random.Random(n).random()},{n}\n" for n in range(200))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(table.encode())[:-400])
    ran, _ = batch(folder, "--dataset_file=d.csv.gz")
    assert ran.code == 0, ran
    assert "the compressed data is damaged from here on" in ran.err
    assert "('Report') is left out as a title" in ran.err
    assert len(folder.lines()) > 100


# --- Formats


def write_json(path: Path) -> str:
    (path / "d.json").write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    return "d.json"


def write_gzip(path: Path) -> str:
    with gzip.open(path / "d.jsonl.gz", "wt", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in ROWS)
    return "d.jsonl.gz"


def write_csv(path: Path) -> str:
    with (path / "d.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, ["id", "prompt", "label", "tags"])
        writer.writeheader()
        writer.writerows({**row, "tags": ",".join(row["tags"])} for row in ROWS)
    return "d.csv"


def write_parquet(path: Path) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path / "d.parquet")
    return "d.parquet"


def write_folder(path: Path) -> str:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(path / "saved"))
    return "saved"


@pytest.mark.parametrize("write", [write_json, write_gzip, write_csv, write_parquet, write_folder])
def test_every_format_gives_the_same_prompts_ids_and_fields(tmp_path: Path, write: Callable[[Path], str]) -> None:
    folder = BatchFolder(tmp_path)
    ran, bodies = batch(folder, f"--dataset_file={write(tmp_path)}")
    assert ran.code == 0, ran
    assert asked_for(bodies) == {row["prompt"] for row in ROWS}
    for line, row in zip(folder.lines(), ROWS, strict=True):
        assert line["metadata"]["item"] == f"id:{row['id']}#0"
        assert line["conversations"][1] == {"from": "human", "value": row["prompt"]}
        source = json.loads(line["metadata"]["source"])
        assert str(source["label"]) == str(row["label"])
        assert source["tags"] in (row["tags"], ",".join(row["tags"]))


# --- Fields


def test_unknown_fields_are_carried_through_as_they_are(tmp_path: Path) -> None:
    rows: list[str | dict[str, Any]] = [
        {"prompt": "a", "score": 1, "who": "x"},
        {"prompt": "b", "score": 2.5, "more": [None, {}], "long": 2**70},
        "c",
    ]
    folder = BatchFolder(tmp_path, rows)
    assert batch(folder)[0].code == 0
    sources = [json.loads(line["metadata"]["source"]) for line in folder.lines()]
    assert sources == [{"score": 1, "who": "x"}, {"score": 2.5, "more": [None, {}], "long": 2**70}, {}]


def test_cwd_works_without_an_image(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    rows: list[str | dict[str, str]] = [
        {"prompt": "abs", "cwd": str(tmp_path / "elsewhere")},
        {"prompt": "rel", "cwd": "sub/dir"},
        "none",
    ]
    folder = BatchFolder(tmp_path, rows)
    call = {"id": "c", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "pwd"}'}}

    def reply(request: RecordedRequest) -> Reply:
        used = any(message["role"] == "tool" for message in request.body["messages"])
        return REASONED if used else chat_response(None, reasoning="Where?", tool_calls=[call])

    with ServerThread(reply) as server:
        assert folder.batch(f"--base_url={server.base_url}").code == 0
    texts = [line["conversations"][3]["value"] for line in folder.lines()]
    assert str(tmp_path / "elsewhere") in texts[0]
    assert "/workspace/sub/dir" in texts[1]
    assert "/workspace\\n" in texts[2]


def test_rows_with_an_image_need_a_sandbox_that_can_give_it_or_an_option_that_ignores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):  # whatever engines this machine has
        monkeypatch.setenv(variable, f"unix://{tmp_path}/none")
    folder = BatchFolder(tmp_path, [{"prompt": "a", "image": "python:3.12"}, {"prompt": "b", "docker_image": "x"}, "c"])
    ran, bodies = batch(folder, "--sandbox=auto")
    assert (ran.code, bodies, folder.run().exists()) == (2, [], False)
    assert "2 rows with a container image: no container engine can be used" in ran.err
    assert "--ignore_images goes on without images" in ran.err
    ran, bodies = batch(folder, "--sandbox=local")
    assert (ran.code, bodies) == (2, [])
    assert "--sandbox local can't be made of images, and there are 2 rows with a container image" in ran.err
    ran, bodies = batch(folder, "--sandbox=local", "--ignore_images")
    assert (ran.code, len(bodies)) == (0, 3)


def test_a_prompt_of_parts_reaches_the_model(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://pictures.test/a.png"}},
    ]
    folder = BatchFolder(tmp_path, [{"prompt": parts}])
    ran, (body,) = batch(folder)
    assert ran.code == 0
    assert body["messages"][-1]["content"] == parts
    assert folder.lines()[0]["conversations"][1]["value"] == "What is this?\n<image>"


def test_prompts_are_sent_and_saved_to_the_letter(tmp_path: Path) -> None:
    prompts = [
        "  spaces around  ",
        "tab\tand\nnewline",
        "emoji 🎉 and ünïcode \u2028 line",
        "a,b: {c} [d] 'e' \"f\" \\",
        "0",
    ]
    folder = BatchFolder(tmp_path, prompts)
    ran, bodies = batch(folder)
    assert ran.code == 0
    assert asked_for(bodies) == set(prompts)
    assert [line["conversations"][1]["value"] for line in folder.lines()] == prompts
    assert "🎉" in (folder.run() / "trajectories.jsonl").read_text(encoding="utf-8")


def test_failures_name_the_row_too(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a", "id": "x", "label": 1}])
    with ServerThread([chat_response("no reasoning")]) as server:
        folder.batch(f"--base_url={server.base_url}")
    (failure,) = read_lines(folder.run() / "failures.jsonl")
    expected = {"prompt_index": 0, "sample": 0, "item": "id:x#0", "state": "discarded", "cause": "no_reasoning"}
    assert {name: failure[name] for name in expected} == expected
    assert (failure["prompt"], failure["source"]) == ("a", {"label": 1})
