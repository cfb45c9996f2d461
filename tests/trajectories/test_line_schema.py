"""One declared schema for the lines of all runs: whatever made them, their files load together in any order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from io import BytesIO
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.json
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.jsonio import line
from manyhands.runs.making import create_run
from manyhands.testing.scripted_server import RecordedRequest, Reply, chat_response
from manyhands.tools.toolsets import KNOWN_TOOLS
from manyhands.workloads.trajectories.lines.schema import FIRST_LAYOUT, METADATA, Form, List, Object, fitted, schema_of
from manyhands.workloads.trajectories.prepared import Prepared
from manyhands.workloads.trajectories.workload import TrajectoryWorkload
from tests.support.batches import REASONED, BatchFolder, ServerThread, prompt_of, read_lines, run_command
from tests.support.forked import forked_program

MCP_SERVER = Path(__file__).parents[1] / "tools" / "mcp_server_for_tests.py"
SCALARS = {
    "whole number": pyarrow.int64(),
    "number": pyarrow.float64(),
    "true or false": pyarrow.bool_(),
    "text": pyarrow.string(),
    "JSON text": pyarrow.string(),
}
SCHEMA = schema_of(KNOWN_TOOLS)


def arrow_type(form: Form) -> Any:
    if isinstance(form, Object):
        return pyarrow.struct([(field.name, arrow_type(field.form)) for field in form.fields])
    return pyarrow.list_(arrow_type(form.of)) if isinstance(form, List) else SCALARS[form]


DECLARED = pyarrow.schema([(field.name, arrow_type(field.form)) for field in SCHEMA.fields])


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def answers(request: RecordedRequest) -> Reply:
    """A tool of a server, then an answer; some prompts are answered at once."""
    offered = {tool["function"]["name"] for tool in request.body.get("tools") or ()}
    if request.body["messages"][-1]["role"] == "tool" or prompt_of(request).startswith("plain"):
        return REASONED
    wanted = "math__add" if "math__add" in offered else "terminal"
    arguments = {"a": 1, "b": 2} if wanted == "math__add" else {"command": "true"}
    return chat_response("I begin.", reasoning="Hm.", tool_calls=[call(wanted, **arguments)])


def left(prompt: str, **more: Any) -> dict[str, Any]:
    """A line of the original's, with what later versions of it and other programs put in, too."""
    entry = {
        "prompt_index": 0,
        "conversations": [
            {"from": "system", "value": "You are a function calling AI model."},
            {"from": "human", "value": prompt},
            {"from": "gpt", "value": "<think>\nHm.\n</think>\nAn old answer."},
        ],
        "metadata": {"batch_num": 0, "timestamp": "2026-01-02T03:04:05", "model": "old/model"},
        "completed": True,
        "partial": False,
        "api_calls": 2,
        "toolsets_used": ["file"],
        "tool_stats": {"read_file": {"count": 1, "success": 1, "failure": 0}},
        "tool_error_counts": {"read_file": 0},
    }
    return {**entry, **more}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with nothing in common but the version."""
    folder = BatchFolder(tmp_path_factory.mktemp("runs"))
    path = folder.path
    command, *args = forked_program(MCP_SERVER, "stdio")
    servers = {"math": {"command": command, "args": args, "tools": ["add"]}}
    (path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    (path / "own.yaml").write_text("mine: {toolsets: {math: 100, search: 100}}\n")
    (path / "searching.yaml").write_text("searching: {toolsets: {search: 100}}\n")
    (path / "checks.yaml").write_text("- {type: contains, value: Done, name: done}\n- {type: regex, value: x}\n")
    datasets_of: dict[str, list[Any]] = {
        "bare": ["plain one", "plain two"],
        "mixed": [
            {"prompt": "a", "score": 1, "tags": [], "deep": None, "when": "2026-01-01"},
            {"prompt": "b", "score": 0.5, "tags": ["x", 2], "deep": {"y": [{}]}, "when": None, "metadata": {"k": 1}},
        ],
        "graded": [{"prompt": "c", "tags": 7, "score": "high"}],
        "served": [{"prompt": "d", "tags": {"none": None}}],
        "given": [
            {"prompt": "plain e", "system": "Be brief."},
            {"messages": [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "What?"},
                          {"role": "user", "content": "This."}]},
        ],
        "adopted": ["f", "new", "g"],
    }  # fmt: skip
    more = {
        "mixed": ["--distributions_file=searching.yaml", "--distribution=searching", "--seed=7"],
        "graded": ["--grade=checks.yaml"],
        "served": ["--mcp_config=mcp.json", "--distributions_file=own.yaml", "--distribution=mine"],
        "adopted": ["--resume"],
    }
    folder.run("adopted").mkdir(parents=True)
    odd = left("g", metadata=None, toolsets_used=[], usage={"cost": None}, completed="yes", tool_stats=None)
    old = [left("f", schema_version=3), odd]
    (folder.run("adopted") / "batch_0.jsonl").write_text("".join(line(each) + "\n" for each in old))
    with ServerThread(answers) as server:
        for name, rows in datasets_of.items():
            folder.write_rows(rows)
            words = (f"--base_url={server.base_url}", f"--run_name={name}", *more.get(name, ()))
            ran = folder.batch(*words)
            assert ran.code == 0, (name, ran)
            assert len(folder.lines(name=name)) == len(rows), name
    return {name: folder.run(name) / "trajectories.jsonl" for name in datasets_of}


def test_every_line_of_every_run_alone_has_the_declared_schema(runs: dict[str, Path]) -> None:
    for name, path in runs.items():
        assert pyarrow.json.read_json(path).schema == DECLARED, name
        for text in path.read_bytes().splitlines():
            assert pyarrow.json.read_json(BytesIO(text)).schema == DECLARED, (name, text)
            entry = json.loads(text)
            assert tuple(entry) == SCHEMA.names
            assert tuple(entry["metadata"]) == METADATA.names


def test_datasets_loads_the_files_together_whichever_comes_first(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = [str(path) for path in runs.values()]
    rows = sum(len(read_lines(path)) for path in runs.values())
    features = None
    for number, order in enumerate([*(files[turn:] + files[:turn] for turn in range(len(files))), files[::-1]]):
        cache = str(tmp_path / f"cache{number}")
        loaded = datasets.load_dataset("json", data_files=order, split="train", cache_dir=cache)
        assert loaded.num_rows == rows
        assert features in (None, loaded.features)
        features = loaded.features
        indices = [entry["prompt_index"] for path in order for entry in read_lines(Path(path))]
        assert loaded["prompt_index"][:] == indices
    loaded.to_parquet(str(tmp_path / "all.parquet"))
    assert pyarrow.parquet.read_table(tmp_path / "all.parquet").num_rows == rows


def test_tables_of_two_runs_can_be_put_together_without_promotion(runs: dict[str, Path]) -> None:
    tables = {name: pyarrow.json.read_json(path) for name, path in runs.items()}
    for first, second in islice(permutations(tables, 2), 30):
        assert pyarrow.concat_tables([tables[first], tables[second]], promote_options="none")
        assert tables[second].cast(tables[first].schema).num_rows == tables[second].num_rows


def test_what_is_open_comes_back_from_json_text(runs: dict[str, Path]) -> None:
    mixed, (graded,), (served,) = (read_lines(runs[name]) for name in ("mixed", "graded", "served"))
    assert [json.loads(each["metadata"]["source"]) for each in mixed] == [
        {"score": 1, "tags": [], "deep": None, "when": "2026-01-01"},
        {"score": 0.5, "tags": ["x", 2], "deep": {"y": [{}]}, "when": None, "metadata": {"k": 1}},
    ]
    assert set(json.loads(graded["metadata"]["scores"])) >= {"done"}
    assert graded["metadata"]["score"] == 0.5
    counts = {"count": 1, "success": 1, "failure": 0}
    assert json.loads(served["metadata"]["other_tool_stats"]) == {"math__add": counts}
    assert set(served["tool_stats"]) == set(KNOWN_TOOLS)


def test_toolsets_used_is_the_draw_and_toolsets_offered_what_was_left_of_it(runs: dict[str, Path]) -> None:
    served, mixed = read_lines(runs["served"])[0], read_lines(runs["mixed"])[0]
    assert (served["toolsets_used"], served["metadata"]["toolsets_offered"]) == (["math", "search"], "math")
    assert (mixed["toolsets_used"], mixed["metadata"]["toolsets_offered"]) == (["search"], "")
    system = mixed["conversations"][0]["value"]
    assert "\n<tools>\n[]\n</tools>\n" in system


def test_an_adopted_line_is_marked_and_loses_nothing(runs: dict[str, Path]) -> None:
    known, own, odd = read_lines(runs["adopted"])
    assert [each["metadata"]["adopted"] for each in (known, own, odd)] == [True, False, True]
    assert [each["metadata"]["model"] for each in (known, odd)] == ["old/model", ""]
    assert known["metadata"]["timestamp"] == "2026-01-02T03:04:05.000000"
    assert known["metadata"]["system_template"] == "other"
    assert own["metadata"]["system_template"] == "own"
    assert json.loads(known["metadata"]["other_fields"]) == {"schema_version": 3}
    assert json.loads(odd["metadata"]["other_fields"]) == {"usage": {"cost": None}}
    assert (odd["completed"], odd["toolsets_used"]) == (False, [""])
    statistics = json.loads((runs["adopted"].parent / "statistics.json").read_text())
    assert statistics["adopted"] == 2
    makers = [(each["program"], each["model"], each["system_prompt_of"]) for each in statistics["made_by"]]
    assert set(makers) == {
        ("original", "old/model", "not recorded"),
        ("original", "", "not recorded"),
        ("manyhands", "anthropic/claude-sonnet-4.6", "run"),
    }
    assert [each["trajectories"] for each in statistics["made_by"]] == [1, 1, 1]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab<é"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=5,
)


def leaves(value: Any, form: Form) -> Iterator[tuple[Any, str]]:
    if isinstance(form, Object):
        assert isinstance(value, dict)
        assert tuple(value) == form.names
        for field in form.fields:
            yield from leaves(value[field.name], field.form)
    elif isinstance(form, List):
        assert isinstance(value, list)
        assert value
        for part in value:
            yield from leaves(part, form.of)
    else:
        yield value, form


PYTHON = {"whole number": int, "number": float, "true or false": bool, "text": str, "JSON text": str}


@given(
    st.dictionaries(st.sampled_from(SCHEMA.names), ANYTHING), st.dictionaries(st.sampled_from(METADATA.names), ANYTHING)
)
def test_whatever_another_program_wrote_fits_the_schema(entry: dict[str, Any], metadata: dict[str, Any]) -> None:
    for value in (entry, {**entry, "metadata": metadata}):
        for leaf, kind in leaves(fitted(value, SCHEMA), SCHEMA):
            assert type(leaf) is PYTHON[kind]


# --- Runs of earlier versions


class OlderRun:
    """A run as the version with the first layout made it: its spec says nothing of layouts."""

    def __init__(self, folder: BatchFolder, base_url: str, *words: str) -> None:
        self.folder = folder
        ran = folder.batch(f"--base_url={base_url}", "--run_name=donor", *words)
        assert ran.code == 0, ran
        recorded = read_spec(folder.run("donor"))
        for name in ("layout", "built_in", "own_systems", "own_messages", "counts_tags"):
            del recorded[name]
        for name in ("tags_in_values", "implied_think"):
            del recorded["options"][name]
        recorded["options"]["run_name"] = "r"
        recorded["source_fields"] = {"fields": [["label", True], ["system", True]], "decimals": [], "others": False}
        workload = TrajectoryWorkload(recorded, folder.run())
        create_run(folder.run(), workload.name, workload, version="0", notice=print)
        shutil.rmtree(folder.run("donor"))


def read_spec(run: Path) -> dict[str, Any]:
    from manyhands.engine.journal.reader import JournalReader

    reader = JournalReader(run)
    try:
        spec: dict[str, Any] = reader.meta("spec")
    finally:
        reader.close()
    return spec


def test_a_run_keeps_the_layout_that_it_was_made_with(tmp_path: Path) -> None:
    folder = BatchFolder(tmp_path, [{"prompt": "a", "label": 1, "system": "Be brief."}, {"prompt": "b", "label": 2}])
    with ServerThread(answers) as server:
        OlderRun(folder, server.base_url)
        asked = len(server.requests)
        assert run_command(tmp_path, "resume", "r", "--quiet").code == 0
        systems = {request.body["messages"][0]["content"] for request in server.requests[asked:]}
    assert Prepared.from_json(read_spec(folder.run()), tmp_path / "data").layout == FIRST_LAYOUT
    first, second = folder.lines()
    assert [each["metadata"]["source"] for each in (first, second)] == [
        {"label": 1, "system": "Be brief."},
        {"label": 2, "system": None},
    ]
    assert "Be brief." not in "".join(systems)
    assert not {"adopted", "given", "score", "toolsets_offered", "other_tool_stats"} & set(first["metadata"])
    assert run_command(tmp_path, "check", "r").code == 0
    # Changed rows and another wording don't change it either.
    folder.write_rows([{"prompt": "a", "label": 1, "system": "Be brief."}, {"prompt": "b", "label": 3}, "c"])
    with ServerThread(answers) as server:
        words = (f"--base_url={server.base_url}", "--system_template=hermes", "--override=system_template")
        assert folder.batch("--resume", *words).code == 0
        assert {prompt_of(request) for request in server.requests} == {"c"}
    assert {tuple(each["metadata"]) for each in folder.lines()} == {tuple(first["metadata"])}
    assert [each["metadata"]["source"]["label"] for each in folder.lines()] == [1, 3, None]


def test_a_new_run_records_its_layout_and_tools(runs: dict[str, Path]) -> None:
    spec = read_spec(runs["served"].parent)
    assert spec["layout"] == 2
    assert tuple(spec["built_in"]) == KNOWN_TOOLS
    assert "math__add" in spec["tools"]
