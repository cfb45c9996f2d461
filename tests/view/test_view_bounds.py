"""Journals and addresses that ask too much of the viewer: a few bytes that unpack to very many, deep JSON, pipes, another run in a run's
place, very many who listen."""

from __future__ import annotations

import html
import json
import os
import re
import resource
import shutil
import socket
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest

from manyhands.core.errors import RunError
from manyhands.engine.journal.browsing import JournalBrowser
from manyhands.engine.journal.records import DamagedBlob
from manyhands.runs.shown.blocks import Note, Text, Value
from manyhands.runs.shown.grades import graded_blocks
from manyhands.view.links import Links
from manyhands.view.live import MAX_LISTENERS
from manyhands.view.rendering import Renderer
from manyhands.view.text import MAX_PAGE_TEXT
from tests.support.engine_runs import perform_steps_run
from tests.support.served_views import Got, View, served

MEGABYTES = 300
"""That a bomb unpacks to."""
SECONDS = 15.0
"""For a page: more than enough on a machine that does other things."""
PAGES_OF_MEMORY = ("results", "schedule", "conversation", "comparison")
TABS = ("conversation", "result", "timeline", "attempts", "raw")


def bomb() -> bytes:
    """A blob of the journal: a JSON text of nothing but one letter."""
    packer, letters = zlib.compressobj(9), b"a" * (1 << 20)
    parts = [packer.compress(b'"'), *(packer.compress(letters) for _ in range(MEGABYTES)), packer.compress(b'"')]
    return b"".join([b"z", *parts, packer.flush()])


def changed(run: Path, query: str, *values: object) -> None:
    """Write something into a journal that nobody executes."""
    with closing(sqlite3.connect(run / "run.db")) as connection:
        connection.execute(query, values)
        connection.commit()


def make(folder: Path, name: str) -> Path:
    perform_steps_run(folder / name, {"items": 3, "steps": 2, "execution": {"executor": "local"}})
    return folder / name


def quick(view: View, address: str) -> Got:
    began = monotonic()
    got = view.get(address)
    assert monotonic() - began < SECONDS, address
    return got


def ids_of(view: View) -> dict[str, str]:
    return {run["run"]: run.get("run_id", "") for run in json.loads(view.get("/?format=json").body)["runs"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("runs")
    run, blob = make(found, "bombs"), bomb()
    assert len(blob) < MEGABYTES << 11
    changed(run, "UPDATE steps SET output = ? WHERE item = 1", blob)
    changed(run, "UPDATE items SET record = ? WHERE number = 2", blob)
    changed(run, "UPDATE steps SET usage = ? WHERE item = 3", blob)
    run, deep = make(found, "deep"), b"j" + b"[" * 900 + b"]" * 900
    changed(run, "UPDATE items SET record = ? WHERE number = 1", deep)
    changed(run, "UPDATE steps SET request = ? WHERE item = 1", deep)
    run = make(found, "pipes")
    for name in ("summary.json", "run.lock", "part_0.jsonl"):
        (run / name).unlink()
        os.mkfifo(run / name)
    for name in ("pipe", "loop", "zero"):
        (found / name).mkdir()
    os.mkfifo(found / "pipe" / "run.db")
    (found / "loop" / "run.db").symlink_to("run.db")
    (found / "zero" / "run.db").symlink_to("/dev/zero")
    return found


@pytest.fixture(scope="module")
def view(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    with served([folder], tmp_path_factory.mktemp("cache"), has_index=False) as found:
        yield found


def test_a_few_bytes_do_not_become_very_many(view: View) -> None:
    run = ids_of(view)["bombs"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    addresses = [f"/runs/{run}", f"/runs/{run}/items", f"/runs/{run}/items?format=json", f"/runs/{run}/export?as=jsonl"]
    addresses += [f"/runs/{run}/items/{number}?tab={tab}" for number in (1, 2, 3) for tab in TABS]
    addresses += [
        f"/difference?a={run}:1&b={run}:3",
        f"/runs/{run}/steps/1/json",
        f"/runs/{run}/steps/1/text?path=output",
    ]
    for address in addresses:
        got = quick(view, address)
        assert (got.status, len(got.body) <= 5 << 20) == (200, True), address
    assert quick(view, f"/runs/{run}/steps/1/text?path=output/x").status == 400
    assert quick(view, f"/runs/{run}/steps/1/text?path=output&from=300000000").body.startswith(b"aaa")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < MEGABYTES, f"{grown} MB more"


def test_an_item_that_is_too_large_says_so(view: View) -> None:
    run = ids_of(view)["bombs"]
    assert "too large to be shown" in quick(view, f"/runs/{run}/items").text


def test_items_that_are_gone_through_are_bounded_too(folder: Path) -> None:
    with closing(JournalBrowser(folder / "bombs")) as reader, pytest.raises(DamagedBlob, match="holds more than"):
        list(reader.results())


def test_a_few_bytes_do_not_become_very_many_objects(tmp_path: Path) -> None:
    run, count = make(tmp_path / "runs", "objects"), 2_000_000
    blobs = [b"z" + zlib.compress(b"[%b]" % b",".join([each] * count)) for each in (b"{}", b"0")]
    changed(run, "UPDATE items SET record = ? WHERE number = 1", blobs[0])
    changed(run, "UPDATE items SET payload = ? WHERE number = 2", blobs[1])
    with served([tmp_path / "runs"], tmp_path / "cache", has_index=False) as view:
        run_id = ids_of(view)["objects"]
        began = monotonic()
        assert quick(view, f"/runs/{run_id}/items").text.count("too large to be shown") == 2
        assert "too large to be shown" in quick(view, f"/runs/{run_id}/items/1?tab=raw").text
        assert monotonic() - began < SECONDS / 3


def test_of_a_large_record_the_beginning_is_shown(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", "large")
    changed(run, "UPDATE items SET record = ? WHERE number = 1", b"j[%b]" % b",".join([b"12345"] * 300_000))
    with served([tmp_path / "runs"], tmp_path / "cache", has_index=False) as view:
        page = f"/runs/{ids_of(view)['large']}/items/1?tab=raw"
        got = quick(view, page)
        assert len(got.body) < 2_000_000
        assert "more characters)" in got.text
        link = re.search(r'href="([^"]*format=json[^"]*)"', got.text)
        assert link is not None
        assert len(json.loads(quick(view, html.unescape(link[1])).body)["record"]) == 300_000


def test_of_very_many_failures_the_last_ones_are_listed(tmp_path: Path) -> None:
    run = make(tmp_path / "runs", "failures")
    changed(run, "UPDATE items SET message = ? WHERE number = 1", "long " * 200_000)
    changed(
        run,
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
        "INSERT INTO failures(item, attempt, at, cause, message) SELECT 1, 1, 1.79e9, 'model', 'failure ' || n FROM n",
    )
    with served([tmp_path / "runs"], tmp_path / "cache", has_index=False) as view:
        got = quick(view, f"/runs/{ids_of(view)['failures']}/items/1?tab=attempts")
    assert "2,800 earlier failures are not listed." in got.text
    assert got.text.count("failure 29") == 100
    assert "failure 2800<" not in got.text
    assert got.text.count("long ") < 100_000
    assert len(got.body) < 1_000_000


def test_of_very_many_graders_some_are_shown() -> None:
    many: list[Any] = [{"name": "g", "misses": ["m"] * 500, "scores": [{}] * 500}] * 300
    blocks = [*graded_blocks({"grade": {"score": 1, "verdict": "pass", "scores": [{"scores": many}, *many]}})]
    shown = Renderer(Links()).part("blocks.html", "blocks", "run", blocks)
    assert len(shown) < 2_000_000
    notes = re.findall(r"([0-9,]+) more (grader|line)s are in the record only", shown)
    assert ("101", "grader") in notes  # on the uppermost level
    assert ("300", "line") in notes
    assert ("500", "line") in notes


def test_a_page_holds_no_more_of_texts_than_it_can_bear() -> None:
    blocks: list[Any] = [Value("v" * 300_000), Text("t" * 300_000), Note("n" * 300_000)] * 10
    shown = Renderer(Links()).part("blocks.html", "blocks", "run", blocks)
    assert MAX_PAGE_TEXT <= len(shown) < 1.1 * MAX_PAGE_TEXT
    assert re.sub(r"<[^>]+>", "", shown).count(" more characters)") == 24


def test_json_that_is_too_deep_is_one_line(view: View) -> None:
    run = ids_of(view)["deep"]
    for tab in TABS:
        assert quick(view, f"/runs/{run}/items/1?tab={tab}").status == 200
        twin = quick(view, f"/runs/{run}/items/1?tab={tab}&format=json")
        assert twin.status == 200 or json.loads(twin.body) == {"error": "it holds JSON that is nested too deeply"}
    assert quick(view, f"/runs/{run}/steps/1/text?path=request/0/0").status == 200


def test_pipes_and_links_to_nowhere_keep_nobody_waiting(view: View) -> None:
    ids = ids_of(view)
    assert (ids["pipe"], ids["loop"], ids["zero"]) == ("", "", "")
    for address in ("", "/items", "/items/1?tab=result"):
        assert quick(view, f"/runs/{ids['pipes']}{address}").status == 200


def test_a_run_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    shown = make(tmp_path / "runs", "shown")
    other = make(tmp_path, "other")
    with served([tmp_path / "runs"], tmp_path / "cache", has_index=False) as view:
        old = ids_of(view)["shown"]
        assert view.get(f"/runs/{old}/items/1").status == 200
        shutil.rmtree(shown)
        shutil.copytree(other, shown)
        for address in ("", "/items", "/items/1", "/steps/1/json", "/steps/1/download"):
            assert view.get(f"/runs/{old}{address}").status == 404, address
        new = ids_of(view)["shown"]
        assert new != old
        assert view.get(f"/runs/{new}").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "page=after:9999999999999999999:1",
        "page=before:-1:0",
        "page=at:nan",
        "page=at:1e308",
        "page=at:-1e308",
        "page=after:1:999999999999999",
        "at=999999999999999999",
        "at=-1",
        "sort=-score&page=after::3",
        "columns=" + ",".join(map(str, range(1500))),
        "&".join(f"label=a{number}%3Db" for number in range(400)),
        "&".join(f"state=x{number}" for number in range(700)),
        "score_min=1e400",
        "text=" + "%22" * 900,
        "text=" + "*" * 2000,
    ],
)
def test_absurd_addresses_get_a_page(view: View, query: str) -> None:
    run = ids_of(view)["pipes"]
    got = quick(view, f"/runs/{run}/items?{query}")
    assert got.status == 200
    assert len(got.body) < 200_000


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "%2e%2e/server.py",
        "vendor/../app.js",
        "vendor%2f..%2f..%2fserver.py",
        "app.js%00",
        ".",
        "/etc/passwd",
    ],
)
def test_assets_are_those_of_the_viewer(view: View, path: str) -> None:
    assert view.get(f"/assets/{path}").status == 404


def test_no_more_than_some_can_listen(view: View) -> None:
    host, _, port = urlsplit(view.base).netloc.partition(":")
    request = f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {view.cookie}\r\n\r\n".encode()
    answers: Counter[bytes] = Counter()
    with ExitStack() as stack:
        asking = [
            stack.enter_context(socket.create_connection((host, int(port)), SECONDS)) for _ in range(MAX_LISTENERS + 40)
        ]
        for connection in asking:
            connection.sendall(request)
        for connection in asking:
            answers[connection.recv(12)] += 1
        assert view.get("/").status == 200
    assert answers == {b"HTTP/1.1 200": MAX_LISTENERS, b"HTTP/1.1 503": 40}


def test_a_view_in_the_place_of_a_table_is_one_line_and_takes_nothing(tmp_path: Path) -> None:
    make(tmp_path, "sound")
    with closing(sqlite3.connect(make(tmp_path, "computing") / "run.db")) as connection:
        connection.executescript(
            "ALTER TABLE meta RENAME TO m; CREATE VIEW meta AS SELECT name, value FROM m "
            "WHERE instr(printf('%.*c', 600000, 'a'), printf('%.*c', 300000, 'a') || 'b') = 0"
        )
    with served([tmp_path], tmp_path / "cache", has_index=False) as view:
        began = monotonic()
        runs = {run["run"]: run for run in json.loads(view.get("/?format=json").body)["runs"]}
        assert monotonic() - began < 3
        assert runs["computing"]["problem"].endswith("changed by another program: meta is no plain table")
        assert quick(view, f"/runs/{runs['sound']['run_id']}/items").status == 200


def as_memory_run(run: Path) -> Path:
    """Make a run one of the memory benchmark, and the folder of its agent's results."""
    changed(run, "UPDATE meta SET value = '\"memory\"' WHERE name = 'workload'")
    changed(run, "UPDATE meta SET value = '{\"options\": {}}' WHERE name = 'spec'")
    changed(run, "UPDATE items SET payload = ?, record = NULL, state = 'running'", b'j{"name": "agent"}')
    results = run / "results" / "agent"
    results.mkdir(parents=True)
    (run / "definitions").mkdir()
    return results


def test_pipes_in_the_place_of_results_keep_nobody_waiting(tmp_path: Path) -> None:
    results = as_memory_run(make(tmp_path, "memory"))
    for name in ("session.json", "runstats.json", "master_log.jsonl"):
        os.mkfifo(results / name)
    os.mkfifo(results.parents[1] / "definitions" / "config.yml")
    with served([tmp_path], tmp_path / "cache", has_index=False) as view:
        run = ids_of(view)["memory"]
        for address in ("", "/items", "/items/1?tab=result", *(f"/pages/{each}" for each in PAGES_OF_MEMORY)):
            assert quick(view, f"/runs/{run}{address}").status == 200
        assert "not a plain file" in quick(view, f"/runs/{run}/pages/schedule").text


def test_links_out_of_a_run_are_not_followed(tmp_path: Path) -> None:
    results = as_memory_run(make(tmp_path / "runs", "memory"))
    outside = tmp_path / "outside"
    outside.mkdir()
    said = {"type": 1, "timestamp": 1.0, "test_id": "t", "data": {"message": "s3cret", "is_question": False}}
    (outside / "master_log.jsonl").write_text(json.dumps(said) + "\n")
    (outside / "0_0.json").write_text('{"score": "s3cret", "dataset_name": "s3cret"}')
    (outside / "config.yml").write_text("datasets: {args: {memory_span: 424242}}")
    (results / "master_log.jsonl").symlink_to(outside / "master_log.jsonl")
    (results / "linked").symlink_to(outside)
    (results.parents[1] / "definitions" / "config.yml").symlink_to(outside / "config.yml")
    imported = make(tmp_path / "runs", "imported")
    changed(imported, "UPDATE meta SET value = '\"imported\"' WHERE name = 'workload'")
    figures = {"conversations": 424242, "scores": {"scored": 1, "mean": 0.5, "verdicts": {"s3cret": 7}}}
    (outside / "import_summary.json").write_text(json.dumps(figures))
    (imported / "import_summary.json").symlink_to(outside / "import_summary.json")
    with served([tmp_path / "runs"], tmp_path / "cache", has_index=False) as view:
        runs = ids_of(view)
        addresses = [f"/runs/{runs['memory']}{each}" for each in ("", "/items/1?tab=result")]
        addresses += [f"/runs/{runs['memory']}/pages/{each}" for each in PAGES_OF_MEMORY]
        for address in [*addresses, f"/runs/{runs['imported']}"]:
            got = quick(view, address)
            assert (got.status, "s3cret" in got.text, "424,242" in got.text) == (200, False, False), address


def test_a_file_of_nothing_is_not_read(tmp_path: Path) -> None:
    results = as_memory_run(make(tmp_path, "memory"))
    imported = make(tmp_path, "imported")
    changed(imported, "UPDATE meta SET value = '\"imported\"' WHERE name = 'workload'")
    for path in (
        *(results / name for name in ("session.json", "runstats.json", "master_log.jsonl")),
        imported / "import_summary.json",
    ):
        path.touch()
        os.truncate(path, 3 * MEGABYTES << 20)
    with served([tmp_path], tmp_path / "cache", has_index=False) as view:
        runs = ids_of(view)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for address in (
            f"{runs['imported']}",
            f"{runs['memory']}/items/1?tab=result",
            f"{runs['memory']}/pages/schedule",
        ):
            assert quick(view, f"/runs/{address}").status == 200
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < MEGABYTES, f"{grown} MB more"


def test_what_an_item_had_come_to_before_does_not_become_very_many_bytes(tmp_path: Path) -> None:
    run = make(tmp_path, "earlier")
    for blob in (bomb(), b"j[1]", b"z"):
        changed(
            run,
            "INSERT INTO earlier_outcomes (item, attempt, state, record, reopened_at) VALUES (1, 1, 'failed', ?, 1)",
            blob,
        )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with closing(JournalBrowser(run)) as reader:
        first, second, third = reader.earlier_outcomes(1)
        with pytest.raises(
            RunError, match=r"earlier/run\.db: what its items had come to before is too large to be shown$"
        ):
            reader.replaced_outcomes()
    assert (first.record, first.message) == (None, "what it holds is too large to be shown")
    assert (second.record, second.message) == ([1], None)
    assert third.record is None
    assert "damaged" in str(third.message)
    with served([tmp_path], tmp_path / "cache", has_index=False) as view:
        got = quick(view, f"/runs/{ids_of(view)['earlier']}/items/1?tab=attempts")
        assert (got.status, got.text.count("what it holds is too large to be shown")) == (200, 1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < MEGABYTES, f"{grown} MB more"
