"""How arguments of tool calls are read, and which paths they may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import ToolError, UserError
from manyhands.workloads.csv_jobs.mcp.calls import PROBLEM, Arguments
from manyhands.workloads.csv_jobs.mcp.settings import ToolPaths


@pytest.mark.parametrize("value", [2.5, -1, "3", True, [], {}, 2**64])
def test_a_count_is_a_whole_number_from_zero_up(value: Any) -> None:
    with pytest.raises(ToolError) as caught:
        Arguments({"max_concurrency": value}).count("max_concurrency")
    assert str(caught.value).startswith("failed to parse function arguments: max_concurrency ")


def test_numbers_that_javascript_clients_write() -> None:
    assert Arguments({"n": 5.0}).count("n") == 5
    assert Arguments({"n": -5.0}).whole("n") == -5
    assert Arguments({"n": 0}).count("n") == 0


def test_null_is_as_nothing_and_unknown_names_are_passed_over() -> None:
    arguments = Arguments(
        {"path": None, "limit": None, "stop": None, "items": None, "schema": None, "unknown": object()}
    )
    assert arguments.text("path") is None
    assert arguments.count("limit") is None
    assert arguments.flag("stop") is None
    assert arguments.texts("items") is None
    assert arguments.mapping("schema") is None
    assert Arguments(None).text("path") is None


def test_an_alias_counts_where_the_name_is_missing() -> None:
    assert Arguments({"path": "a.csv"}).text("output_csv_path", "path") == "a.csv"
    assert Arguments({"path": "a.csv", "output_csv_path": "b.csv"}).text("output_csv_path", "path") == "b.csv"


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        ("text", 5, "name must be text, not 5"),
        ("text", "a\0b", "name holds a NUL character"),
        ("text", "\ud800", "name holds half of a surrogate pair, which is no text"),
        ("flag", "true", 'name must be true or false, not "true"'),
        ("mapping", "{}", 'name must be a JSON object, not "{}"'),
        ("texts", "row-1", 'name must be a list of texts, not "row-1"'),
        ("texts", ["row-1", 2], 'name must be a list of texts, not ["row-1", 2]'),
        ("required_text", None, "missing field `name`"),
    ],
)
def test_what_is_said_about_other_types(read: str, value: Any, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        getattr(Arguments({"name": value}), read)("name")
    assert str(caught.value) == PROBLEM + message


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_value_is_worse_than_a_clear_error(value: Any) -> None:
    for read in ("text", "count", "whole", "flag", "mapping", "texts", "required"):
        message = complaint(value, read)
        assert message is None or (message.startswith(PROBLEM) and "\n" not in message)
    if value is not None:
        with pytest.raises(ToolError, match=PROBLEM):
            Arguments(value)


def complaint(value: Any, read: str) -> str | None:
    try:
        getattr(Arguments({"name": value}), read)("name")
    except ToolError as error:
        return str(error)
    return None


# --- Paths


def test_paths_begin_at_the_servers_folder(tmp_path: Path) -> None:
    paths = ToolPaths.of(tmp_path)
    assert paths.path("csv_path", "in/../rows.csv") == tmp_path / "rows.csv"
    assert paths.path("csv_path", "/elsewhere/rows.csv") == Path("/elsewhere/rows.csv")


@pytest.mark.parametrize("text", ["../rows.csv", "/etc/passwd", "inside/../../rows.csv", "link/rows.csv", "~/rows.csv"])
def test_paths_outside_the_roots_are_refused(tmp_path: Path, text: str) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    paths = ToolPaths.of(root, ["."])
    assert paths.path("csv_path", "inside/new.csv") == root / "inside/new.csv"
    with pytest.raises(ToolError, match=r"csv_path .* is outside the folders that this server may use"):
        paths.path("csv_path", text)


def test_links_within_the_roots_are_followed_and_circles_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    paths = ToolPaths.of(tmp_path, [str(tmp_path)])
    assert paths.path("csv_path", "link/rows.csv") == tmp_path / "real/rows.csv"
    for name in ("circle", "dangling"):
        with pytest.raises(ToolError):
            paths.path("csv_path", name)


def test_roots_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--roots names 'nowhere', which is no folder"):
        ToolPaths.of(tmp_path, ["nowhere"])


def test_where_exports_go(tmp_path: Path) -> None:
    root, job = tmp_path / "root", tmp_path / "data/job"
    root.mkdir()
    recorded = root / "out.csv"
    anywhere = ToolPaths.of(root)
    assert anywhere.export_target(None, job, recorded) is None
    assert anywhere.export_target("../b.csv", job, recorded) == tmp_path / "b.csv"
    confined = ToolPaths.of(root, ["."])
    assert confined.export_target("b.csv", job, recorded) == root / "b.csv"
    with pytest.raises(ToolError, match="outside the folders"):
        confined.export_target(None, job, tmp_path / "out.csv")


def test_own_exports_stay_in_the_jobs_folder(tmp_path: Path) -> None:
    job, recorded = tmp_path / "data/job", tmp_path / "out.csv"
    own = ToolPaths.of(tmp_path, own_exports=True)
    assert own.export_target(None, job, recorded) == job / "exports/out.csv"
    assert own.export_target("now.csv", job, recorded) == job / "exports/now.csv"
    assert own.export_target(str(job / "exports/now.csv"), job, recorded) == job / "exports/now.csv"
    for text in ("../run.db", "/etc/passwd", "..", "", "a/b.csv"):
        with pytest.raises(ToolError):
            own.export_target(text, job, recorded)
