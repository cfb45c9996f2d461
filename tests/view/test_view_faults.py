"""Runs that are damaged, old, foreign, locked away, gone or left by a killed process: one clear line each, and no other run notices."""

from __future__ import annotations

import hashlib
import html
import http.client
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest

from manyhands.core.jsonio import dumps
from manyhands.engine.journal.reader import JOURNAL, JournalReader
from manyhands.engine.journal.records import pack
from manyhands.view.live import MAX_LISTENERS
from manyhands.view.pages import run_list
from tests.support.commands import Command, batch_words, run, write_prompts
from tests.support.viewing import Viewing

ITEMS = 6
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Starts a program for which permissions count, although it is root's."""
needs_setpriv = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root needs setpriv to be without its rights"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, all of it in its one file."""
    folder = tmp_path_factory.mktemp("finished")
    write_prompts(folder / "prompts.jsonl", (f"Question {number} [simulate: tools=2]" for number in range(ITEMS)))
    options = {"executor": "local", "num_workers": 1, "concurrency": 4, "sandbox": "local", "simulated_latency": 0}
    ended = run(*batch_words(folder, **options))
    assert ended.code == 0, ended
    settled(folder / "r")
    return folder / "r"


@pytest.fixture
def folder(tmp_path: Path, finished: Path) -> Path:
    """A folder with one sound run, ``sound``."""
    runs = tmp_path / "runs"
    runs.mkdir()
    copied(finished, runs / "sound")
    return runs


@pytest.fixture
def made(folder: Path, finished: Path) -> Callable[[str], Path]:
    """Makes further runs there."""
    return lambda name: copied(finished, folder / name)


def settled(run_folder: Path) -> None:
    """Bring all of a journal into its one file."""
    with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in (f"{JOURNAL}-wal", f"{JOURNAL}-shm"):
        (run_folder / name).unlink(missing_ok=True)


def copied(source: Path, target: Path) -> Path:
    """A run of its own with the content of another one."""
    shutil.copytree(source, target)
    change(target, "UPDATE meta SET value = ? WHERE name = 'run_id'", dumps(target.name).decode())
    return target


def change(run_folder: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
        journal.execute(statement, values)
        journal.commit()
    settled(run_folder)


def viewing(tmp_path: Path, folder: Path, *before: str, words: tuple[str, ...] = ("--no_index",)) -> Viewing:
    return Viewing(tmp_path / "cache", folder, words=words, before=before)


def assert_sound(viewer: Viewing, name: str = "sound", items: int = ITEMS) -> None:
    """All pages of a run are there, and the viewer has nothing to complain of."""
    seen = viewer.crawl(f"/runs/{name}", 12)
    assert set(seen) == {200}, viewer.refused
    assert len(viewer.json(f"/runs/{name}/items")["items"]) == items
    assert viewer.errors == ""


def hash_of(run_folder: Path) -> str:
    return hashlib.sha256((run_folder / JOURNAL).read_bytes()).hexdigest()


# --- Damage inside of a journal


DAMAGED_ITEMS = [
    "payload = x'63deadbeef7b7d'",
    "record = x'7a00'",
    "payload = 'text'",
    "payload = x'6a5b5d'",
    "record = x'6a2278' || x'22'",
    "state = 'dreaming'",
    "attempt = 'many'",
    "finished_at = 1e300",
    "message = x'fffe'",
]


def test_a_damaged_item_is_the_only_one_that_is(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    for number, damage in enumerate(DAMAGED_ITEMS):
        run_folder = made(f"damaged-{number}")
        with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
            journal.execute("DROP TRIGGER items_moved")
            journal.commit()
        change(run_folder, f"UPDATE items SET {damage} WHERE number = 3")
    with viewing(tmp_path, folder) as viewer:
        for number, damage in enumerate(DAMAGED_ITEMS):
            base = f"/runs/damaged-{number}"
            items = viewer.json(f"{base}/items")["items"]
            assert [item["item"] for item in items] == [*range(1, ITEMS + 1)]
            assert [item["item"] for item in items if item["cause"] == "damaged"] == [3], damage
            assert items[2]["message"]
            assert viewer.page(f"{base}/items").words.count("damaged") >= 2
            for tab in ("conversation", "result", "timeline", "attempts", "raw"):
                viewer.page(f"{base}/items/3?tab={tab}")
            assert "Question" in viewer.page(f"{base}/items/3").words, "its steps are sound"
            for form, lines in (("jsonl", ITEMS), ("keys", ITEMS), ("csv", ITEMS + 1)):
                assert viewer.page(f"{base}/export?as={form}").body.count(b"\n") == lines
            assert set(viewer.crawl(f"{base}/items/2", 8)) <= {200, 409}, viewer.refused
        assert_sound(viewer)


@pytest.mark.parametrize(
    "column",
    [
        *("output", "usage", "kind"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("request", "scope", "started_at")),
    ],
)
def test_a_damaged_step_is_the_only_one_that_is(
    tmp_path: Path, folder: Path, made: Callable[[str], Path], column: str
) -> None:
    values: list[object] = [b"c\0\0\0\0{}", b"zzz", b"j[]", b"jnull", b"j12", "text", b"", 1e300, -1]
    step = "(SELECT min(id) FROM steps WHERE item = 2)"
    for number, value in enumerate(values):
        change(made(f"damaged-{number}"), f"UPDATE steps SET {column} = ? WHERE id = {step}", value)
    with viewing(tmp_path, folder) as viewer:
        for number in range(len(values)):
            base = f"/runs/damaged-{number}"
            assert len(viewer.json(f"{base}/items/2")["conversation"]["steps"]) >= 2
            assert set(viewer.crawl(f"{base}/items/2", 8)) <= {200, 409}, viewer.refused
            assert len(viewer.json(f"{base}/items")["items"]) == ITEMS
        assert_sound(viewer)


def test_a_download_that_turns_out_to_be_damaged_is_cut_off(tmp_path: Path, folder: Path) -> None:
    """So that nobody takes a part for the whole."""
    run_folder = folder / "sound"
    blob = bytearray(pack({"content": random.Random(1).randbytes(9_000_000).hex()}))
    assert blob[:1] == b"z"
    blob[-2000] ^= 0xFF
    change(run_folder, "UPDATE steps SET output = ? WHERE id = 2", bytes(blob))
    change(run_folder, "UPDATE steps SET output = ? WHERE id = 3", b"c\1\2\3\4" + b'"' + b"x" * 9_000_000 + b'"')
    with viewing(tmp_path, folder) as viewer:
        for step in (2, 3):
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                viewer.get(f"/runs/sound/steps/{step}/download?path=output")
        assert viewer.get("/runs/sound/items/1").status == 200
        assert viewer.errors == ""


# --- Files that are no journals


def garbage(run_folder: Path) -> None:
    (run_folder / JOURNAL).write_bytes(random.Random(1).randbytes(100_000))


def cut_short(run_folder: Path) -> None:
    os.truncate(run_folder / JOURNAL, 30_000)


def empty(run_folder: Path) -> None:
    os.truncate(run_folder / JOURNAL, 0)


def without_facts(run_folder: Path) -> None:
    change(run_folder, "DELETE FROM meta")


def newer(run_folder: Path) -> None:
    change(run_folder, "PRAGMA user_version = 999")


def folder_instead(run_folder: Path) -> None:
    (run_folder / JOURNAL).unlink()
    (run_folder / JOURNAL).mkdir()


def pipe_instead(run_folder: Path) -> None:
    (run_folder / JOURNAL).unlink()
    os.mkfifo(run_folder / JOURNAL)


def link_to_nowhere(run_folder: Path) -> None:
    (run_folder / JOURNAL).unlink()
    (run_folder / JOURNAL).symlink_to("nowhere")


def damaged_schema(run_folder: Path) -> None:
    path = run_folder / JOURNAL
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE steps", b"CREATE \xff\xfeBLE steps"))


def damaged_facts(run_folder: Path) -> None:
    change(run_folder, "UPDATE meta SET value = '{' WHERE name = 'spec'")


def damaged_figures(run_folder: Path) -> None:
    change(run_folder, "UPDATE usage SET cost = x'fffe', calls = 1e308")


NO_JOURNALS: list[tuple[Callable[[Path], None], str]] = [
    (garbage, "not a run database, or damaged: file is not a database"),
    (cut_short, "malformed"),
    (empty, "making it was cut short; make it again"),
    (without_facts, "making it was cut short; make it again"),
    (newer, "written by a newer version of manyhands (schema 999"),
    (folder_instead, "not a plain file"),
    (pipe_instead, "not a plain file"),
    (link_to_nowhere, "not a plain file"),
    (damaged_schema, "damaged"),
    (damaged_facts, "the fact 'spec' can't be read"),
    (damaged_figures, "damaged, or of a form that this version does not know"),
]


def test_a_file_that_is_no_journal_is_one_line_in_the_list(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    for damage, _ in NO_JOURNALS:
        damage(made(damage.__name__))
    with viewing(tmp_path, folder) as viewer:
        listed, page = viewer.runs(), viewer.page("/").words
        assert len(listed) == 1 + len(NO_JOURNALS)
        for damage, words in NO_JOURNALS:
            found = listed[damage.__name__]
            assert found["state"] == "unreadable"
            assert words in found["problem"]
            assert "\n" not in found["problem"]
            assert words in page
            status, problem = viewer.refusal(f"/runs/{damage.__name__}/items")
            assert status == 404
            assert "there is no such run" in problem
        assert_sound(viewer)


STRANGE_FACTS = {
    "deep_seed": ("seed", "[" * 990 + "]" * 990, "nested too deeply"),
    "many_digits": ("spec", '{"options": {"max_cost": 1' + "0" * 400 + "}}", "damaged, or of a form"),
    "half_a_character": ("run_id", '"\\ud800"', "facts and figures can't be read"),
    "long_id": ("run_id", '"' + "x" * 5000 + '"', "facts and figures can't be read"),
    "no_id": ("run_id", '""', "facts and figures can't be read"),
}


def test_facts_that_nobody_expects_are_one_line_in_the_list(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    for name, (fact, value, _) in STRANGE_FACTS.items():
        change(made(name), "INSERT OR REPLACE INTO meta VALUES (?, ?)", fact, value)
    deep_model = '{"options": {"model": ' + "[" * 980 + "]" * 980 + "}}"
    change(made("deep_model"), "UPDATE meta SET value = ? WHERE name = 'spec'", deep_model)
    nameless = os.fsencode(made("nameless"))
    Path(os.fsdecode(nameless), JOURNAL).write_bytes(b"no journal")
    os.rename(nameless, nameless + b"\xff")
    with viewing(tmp_path, folder) as viewer:
        listed, page = viewer.runs(), viewer.page("/").html
        assert len(listed) == 3 + len(STRANGE_FACTS)
        assert listed["deep_model"]["models"] == []
        for name, (_, _, words) in STRANGE_FACTS.items():
            assert listed[name]["state"] == "unreadable"
            assert words in listed[name]["problem"]
        rows = re.findall(r'<tr id="([^"]+)"', page)
        assert len(set(rows)) == len(listed)
        assert all(row.isascii() for row in rows)
        for path in ("/compare", "/search?q=sound"):
            viewer.page(path)
        assert_sound(viewer)


@needs_setpriv
def test_a_folder_that_must_not_be_looked_into(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    before = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    closed, other = made("closed"), tmp_path / "other"
    other.mkdir()
    closed.chmod(0)
    other.chmod(0)
    try:
        with Viewing(tmp_path / "cache", folder, other, words=["--no_index"], before=before) as viewer:
            listed = viewer.runs()
            assert "can't be looked into (Permission denied)" in listed["closed"]["problem"]
            assert "can't be looked into (Permission denied)" in listed["other"]["problem"]
            assert_sound(viewer)
    finally:
        closed.chmod(0o700)
        other.chmod(0o700)


# --- Other versions, other modes


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        *((steps, ()) for steps in (1, 4)),
        *(pytest.param(steps, (), marks=pytest.mark.slow) for steps in (2, 3)),
        *((steps, ("--no_index",)) for steps in (1, 2, 3, 4)),
    ],
)
def test_an_older_journal_is_read_and_stays_as_it_is(
    tmp_path: Path, folder: Path, finished: Path, steps: int, words: tuple[str, ...]
) -> None:
    """It gets the items and steps of a run of today, as far as it has columns for them."""
    old = folder / "old"
    old.mkdir()
    scripts = sorted(files("manyhands.engine.journal").joinpath("migrations").iterdir(), key=lambda each: each.name)
    with closing(sqlite3.connect(old / JOURNAL)) as journal:
        for script in scripts[:steps]:
            journal.executescript(script.read_text())
        journal.execute(f"PRAGMA user_version = {steps}")
        journal.execute("ATTACH ? AS new", (str(finished / JOURNAL),))
        tables = ["meta", "items", "steps", "failures", *(["sessions"] if steps > 1 else [])]
        for table in tables:
            columns = ", ".join(row[1] for row in journal.execute(f"PRAGMA main.table_info({table})"))
            journal.execute(f"INSERT OR REPLACE INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
        journal.execute("UPDATE main.meta SET value = '\"old\"' WHERE name = 'run_id'")
        journal.commit()
    before = hash_of(old)
    with viewing(tmp_path, folder, words=words) as viewer:
        assert viewer.runs()["old"]["state"] == "finished"
        if steps > 1:
            assert viewer.runs()["old"]["last_session"]["ending"] == "finished"
            assert viewer.runs()["old"]["working_seconds"] > 0
        assert_sound(viewer, "old")
        assert_sound(viewer)
    assert hash_of(old) == before


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_a_journal_without_a_write_ahead_log(
    tmp_path: Path, folder: Path, made: Callable[[str], Path], mode: str
) -> None:
    run_folder = made("other")
    with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
        journal.execute(f"PRAGMA journal_mode = {mode}")
    with viewing(tmp_path, folder) as viewer:
        assert_sound(viewer, "other")


@needs_setpriv
@pytest.mark.parametrize("left", ["closed", "log", "log alone"])
def test_a_folder_that_can_only_be_read(
    tmp_path: Path, folder: Path, made: Callable[[str], Path], finished: Path, left: str
) -> None:
    """Also with what a killed owner leaves: a log, and perhaps the file that goes with it."""
    run_folder = made("kept")
    if left != "closed":
        with closing(sqlite3.connect(run_folder / JOURNAL)) as journal:
            journal.execute("UPDATE meta SET value = value")
            journal.commit()
            for name in (f"{JOURNAL}-wal", f"{JOURNAL}-shm"):
                if left == "log" or name.endswith("wal"):
                    shutil.copy(run_folder / name, tmp_path / name)
        for each in tmp_path.glob(f"{JOURNAL}-*"):
            shutil.copy(each, run_folder / each.name)
    for each in run_folder.iterdir():
        each.chmod(0o400)
    run_folder.chmod(0o500)
    names = sorted(os.listdir(run_folder))
    try:
        with viewing(tmp_path, folder, *(WITHOUT_RIGHTS if os.geteuid() == 0 else ())) as viewer:
            if left == "log alone":
                assert "can't be" in viewer.runs()["kept"]["problem"]
            else:
                assert_sound(viewer, "kept")
            assert_sound(viewer)
            assert sorted(os.listdir(run_folder)) == names
    finally:
        run_folder.chmod(0o700)


def test_a_workload_that_is_not_installed_and_odd_contents_are_shown_as_they_are(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    run_folder = made("foreign")
    change(run_folder, "UPDATE meta SET value = '\"weaving\"' WHERE name = 'workload'")
    change(run_folder, "UPDATE meta SET value = '[1]' WHERE name = 'spec'")
    odd = [{"thread": "blue"}, [1, 2], "text", 12, None, {"a": {"b": [{"c": "<script>x</script>"}] * 50}}]
    for number, value in enumerate(odd, 1):
        change(run_folder, "UPDATE items SET payload = ?1, record = ?1 WHERE number = ?2", pack(value), number)
    change(run_folder, "UPDATE steps SET kind = 'loom', request = ?1, output = ?1", pack({"warp": ["weft"] * 3}))
    with viewing(tmp_path, folder) as viewer:
        assert_sound(viewer, "foreign")
        page = viewer.page("/runs/foreign/items/1").words
        assert "blue" in page
        assert '"warp"' in page
        assert "blue" in viewer.page("/runs/foreign/items/1?tab=raw").words
        assert_sound(viewer)


def test_settings_of_a_form_that_is_not_known(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    change(made("strange"), "UPDATE meta SET value = '{}' WHERE name = 'spec'")
    with viewing(tmp_path, folder) as viewer:
        assert_sound(viewer, "strange")


# --- Folders that move, vanish and are copied


def test_a_folder_that_moves_keeps_its_addresses(tmp_path: Path, folder: Path) -> None:
    with viewing(tmp_path, folder) as viewer:
        viewer.page("/runs/sound/items")
        (folder / "sound").rename(folder / "elsewhere")
        viewer.page("/runs/sound/items")
        assert set(viewer.runs()) == {"elsewhere"}
        assert_sound(viewer)


def test_a_folder_that_vanishes(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    run_folder = made("gone")
    with viewing(tmp_path, folder) as viewer:
        viewer.page("/runs/gone/items")
        shutil.rmtree(run_folder)
        for path in ("/runs/gone", "/runs/gone/items", "/runs/gone/items/1", "/runs/gone/steps/1/json"):
            status, problem = viewer.refusal(path)
            assert status == 404
            assert problem == "there is no such run under the folders that are shown (any more)"
        assert set(viewer.runs()) == {"sound"}
        assert_sound(viewer)
        shutil.rmtree(folder)
        assert viewer.runs() == {}
        assert viewer.errors == ""


def test_a_copy_of_a_run_is_a_run_of_its_own(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder / "sound", folder / "sound-2")
    change(folder / "sound-2", "DELETE FROM items WHERE number > 2")
    with viewing(tmp_path, folder) as viewer:
        links = [link for link in viewer.page("/").links if link.startswith("/runs/")]
        assert len(set(links)) == 2
        assert sorted(len(viewer.json(f"{link}/items")["items"]) for link in set(links)) == [2, ITEMS]
        for link in set(links):
            assert set(viewer.crawl(link, 30)) == {200}


def test_a_run_beside_its_copy_leads_to_both(tmp_path: Path, folder: Path) -> None:
    copy = folder / "sound-2"
    shutil.copytree(folder / "sound", copy)
    with closing(JournalReader(copy)) as reader:
        first = reader.item("1")
        assert first is not None
    change(copy, "UPDATE items SET record = ? WHERE number = 1", pack({**first.record, "api_calls": 99}))
    with viewing(tmp_path, folder) as viewer:
        assert 'href="/difference?a=sound%3A1&amp;b=sound.1%3A1"' in viewer.page("/compare?runs=sound,sound.1").html
        assert 'href="/compare?runs=sound.1%2Csound"' in viewer.page("/compare?runs=sound.1,sound&after=3").html


def test_a_run_that_says_it_is_another_does_not_take_its_place(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    with viewing(tmp_path, folder) as viewer:
        assert "same id" not in viewer.page("/runs/sound").words
        change(made("aaa"), "UPDATE meta SET value = ? WHERE name = 'run_id'", dumps("sound").decode())
        change(folder / "aaa", "DELETE FROM items WHERE number > 2")
        change(made("aab"), "UPDATE meta SET value = ? WHERE name = 'run_id'", dumps("sound.1").decode())
        rows = viewer.page("/").html.split("<tr id=")
        assert [row.count("id taken twice") for row in rows[1:] if ">aab<" not in row] == [1, 1]
        assert len({row.partition(">")[0] for row in rows}) == len(rows)
        assert_sound(viewer)
        for _ in range(2):
            (row,) = (row for row in viewer.page("/").html.split("<tr id=") if ">aaa<" in row)
            other = row.partition('data-href="')[2].partition('"')[0]
            assert other.startswith("/runs/sound.")
            for page, mine, items in (("/runs/sound", "sound", ITEMS), (other, "aaa", 2)):
                assert len(viewer.json(f"{page}/items")["items"]) == items
                assert f"This is {folder / mine}." in viewer.page(f"{page}/items").words
            change(folder / "aaa", "UPDATE items SET message = 'changed' WHERE number = 1")
        shutil.rmtree(folder / "aaa")
        assert set(viewer.runs()) == {"sound", "aab"}
        assert "same id" not in viewer.page("/runs/sound").words


PASTED = "x\x15touch pwned\r\n\t\x1b[200~ it's \\ \u202eodd\udcff"
"""The name of a folder that would type for whoever pastes it into a terminal."""


def test_what_is_copied_types_nothing_into_a_terminal(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    evil = folder / PASTED
    made("evil").rename(evil)
    change(evil, "UPDATE items SET key = ? WHERE number = 1", PASTED.encode("utf-8", "replace").decode())
    change(evil, "UPDATE items SET state = 'pending' WHERE number = 2")
    change(evil, "INSERT OR REPLACE INTO totals VALUES ('failed', 'model', 1)")
    with viewing(tmp_path, folder) as viewer:
        pages = viewer.page("/runs/evil").html + viewer.page("/runs/evil/items").html
    copied_texts = [html.unescape(text) for text in re.findall(r' data-(?:copy|command|key)="([^"]*)"', pages)]
    assert [text for text in copied_texts if not text.isprintable()] == []
    found = [text for text in copied_texts if text.startswith("manyhands ")]
    assert len(found) >= 2
    for command in found:
        words = subprocess.run(
            ["bash", "-c", f"manyhands() {{ printf '%s\\0' \"$@\"; }}; {command}"], capture_output=True, check=True
        ).stdout.split(b"\0")
        assert words[1] == os.fsencode(evil)


# --- Owners and viewers that are killed


def owner(folder: Path, items: int) -> Command:
    write_prompts(folder / "prompts.jsonl", (f"Question {number} [simulate: tools=1]" for number in range(items)))
    options = {"executor": "local", "num_workers": 1, "concurrency": 4, "sandbox": "local", "simulated_latency": 0.1}
    return Command(*batch_words(folder, **options))


def test_a_run_whose_owner_was_killed_says_so(tmp_path: Path, folder: Path) -> None:
    with viewing(tmp_path, folder) as viewer:
        with owner(folder, 200) as command:
            assert command.wait_until(lambda: viewer.runs().get("r", {}).get("ledger", {}).get("completed", 0) > 2, 60)
            run_id = viewer.runs()["r"]["run_id"]
            assert viewer.runs()["r"]["state"] == "running"
            viewer.page(f"/runs/{run_id}/items")
            command.kill()
        assert viewer.runs()["r"]["state"] == "interrupted"
        page = viewer.page(f"/runs/{run_id}").words
        assert re.search(r"The process that executed this run has died; \d+ items are left", page)
        assert f"manyhands resume {folder / 'r'}" in page
        assert set(viewer.crawl(f"/runs/{run_id}", 60)) == {200}
        assert viewer.errors == ""


def test_a_run_whose_workers_were_lost_says_how_often(
    tmp_path: Path, folder: Path, made: Callable[[str], Path]
) -> None:
    lost = made("lost")
    for cause in ("worker_crash", "node_lost", "timeout"):
        change(lost, "INSERT INTO failures (item, attempt, at, cause, message) VALUES (1, 1, 0, ?, '')", cause)
    with viewing(tmp_path, folder) as viewer:
        page = viewer.page(f"/runs/{viewer.runs()['lost']['run_id']}").words
        assert "interrupted 2 2 went on, 0 started afresh" in page


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 51))])
def test_owners_and_viewers_killed_at_any_instant(tmp_path: Path, folder: Path, seed: int) -> None:
    """What the next viewer shows is what the journal says; the owner's work goes on to its end."""
    chance = random.Random(seed)
    with owner(folder, 40) as command:
        with viewing(tmp_path, folder, words=()) as viewer:
            command.wait_until(lambda: "r" in viewer.runs(), 60)
            until = time.monotonic() + chance.random() * 2
            while time.monotonic() < until:
                found = viewer.runs().get("r", {}).get("run_id")
                if found:
                    viewer.crawl(f"/runs/{found}", 10)
            viewer.process.send_signal(signal.SIGKILL)
        time.sleep(chance.random() / 2)
        command.kill()
    with viewing(tmp_path, folder, words=()) as viewer:
        listed = viewer.runs()["r"]
        assert listed["state"] in ("interrupted", "finished", "unreadable")
        if listed["state"] == "unreadable":
            assert "cut short" in listed["problem"]
            return
        with closing(sqlite3.connect(f"file:{folder / 'r' / JOURNAL}?mode=ro", uri=True)) as journal:
            completed = journal.execute("SELECT count(*) FROM items WHERE state = 'completed'").fetchone()[0]
        assert listed["ledger"]["completed"] == completed
        assert set(viewer.crawl(f"/runs/{listed['run_id']}", 30)) == {200}
        assert viewer.errors == ""
    ended = run("resume", str(folder / "r"), "--quiet")
    assert ended.code == 0, ended


def test_a_finished_journal_is_not_touched(tmp_path: Path, folder: Path) -> None:
    before, when = hash_of(folder / "sound"), (folder / "sound" / JOURNAL).stat().st_mtime_ns
    with viewing(tmp_path, folder, words=()) as viewer:
        assert_sound(viewer)
        with viewer.events("sound") as events:
            assert next(events, None) is not None
    assert hash_of(folder / "sound") == before
    assert (folder / "sound" / JOURNAL).stat().st_mtime_ns == when


def traced() -> bool:
    words = ["strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true"]
    return (
        shutil.which("strace") is not None and subprocess.run(words, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not traced(), reason="needs strace")
def test_the_journal_is_only_opened_to_be_read(tmp_path: Path, folder: Path) -> None:
    log = tmp_path / "calls"
    calls = "trace=open,openat,openat2,creat,truncate,ftruncate,rename,renameat,renameat2,unlink,unlinkat"
    before = ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-e", calls, "-o", str(log))
    with viewing(tmp_path, folder, *before, words=()) as viewer:
        assert viewer.crawl("/runs/sound", 40) == {200: 40}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and f'{JOURNAL}"' not in log.read_text(errors="replace"):
        time.sleep(0.1)
    named = [line for line in log.read_text(errors="replace").splitlines() if f'/{JOURNAL}"' in line]
    assert named
    assert [line for line in named if not re.search(r"open(at|at2)?\(.*O_RDONLY", line)] == []


# --- Live pages


def test_a_row_that_ended_is_sent_soon(tmp_path: Path, folder: Path) -> None:
    """By the clock of the journal: each row within some seconds of the end of its item, half of them within two. What ended between the
    making of the page and the beginning of listening is sent too."""
    with owner(folder, 180) as command, viewing(tmp_path, folder) as viewer:
        assert command.wait_until(lambda: viewer.runs().get("r", {}).get("run_id"), 60)
        run_id = viewer.runs()["r"]["run_id"]
        page = viewer.json(f"/runs/{run_id}/items")["items"]
        shown = {item["item"] for item in page if item["state"] == "completed"}
        time.sleep(1.0)
        with viewer.events(run_id) as events:
            began = time.time()
            seen = dict(ended_rows(events))
        with closing(sqlite3.connect(f"file:{folder / 'r' / JOURNAL}?mode=ro", uri=True)) as journal:
            ends = dict(journal.execute("SELECT number, finished_at FROM items"))
    assert shown | set(seen) == {*range(1, 181)}
    late = sorted(at - ends[number] for number, at in seen.items() if ends[number] > began)
    assert len(late) > 10
    assert late[len(late) // 2] < 2.0
    assert late[-1] < 10.0


def ended_rows(events: Iterator[tuple[str, dict[str, str]]]) -> Iterator[tuple[int, float]]:
    """The rows of completed items with the times at which they came, until the end of the run."""
    for name, value in events:
        if name == "ended":
            return
        if name == "row" and value["state"] == "completed":
            yield int(value["id"].removeprefix("item-")), time.time()


def test_listeners_that_go_away_make_room_for_others(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    """Also where there is nothing to send to them."""
    with viewing(tmp_path, folder) as viewer:
        for _ in range(MAX_LISTENERS):
            with viewer.events():
                pass

        def is_heard() -> bool:
            try:
                with viewer.events() as events:
                    made(f"new-{time.monotonic_ns()}")
                    name, value = next(events)
                    return name == "row" and bool(value["new"])
            except AssertionError:
                return False

        deadline = time.monotonic() + 30
        while not is_heard():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert viewer.errors == ""


# --- Choices, and many runs


def test_without_an_index_the_page_says_which_filters_are_not_applied(tmp_path: Path, folder: Path) -> None:
    with viewing(tmp_path, folder) as viewer:
        found = viewer.json("/runs/sound/items?state=completed&text=nowhere&sort=-score&score_min=0.5")
        assert found["not_applied"] == ["score_min=0.5", "text=nowhere", "sort=-score"]
        assert len(found["items"]) == ITEMS
        page = viewer.page("/runs/sound/items?state=completed&text=nowhere")
        assert "Not applied: text nowhere." in page.words
        assert page.html.count('class="chip off"') == 1
        assert "these filters need an index" in viewer.refusal("/runs/sound/export?as=csv&text=nowhere")[1]
        applied = viewer.page("/runs/sound/items?state=completed")
        assert "Not applied" not in applied.words
    with viewing(tmp_path, folder, words=()) as viewer:
        deadline = time.monotonic() + 60
        while (found := viewer.json("/runs/sound/items?text=nowhere"))["not_applied"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert found["items"] == []


def test_pages_can_be_left_as_they_are(tmp_path: Path, folder: Path) -> None:
    with viewing(tmp_path, folder, words=("--no_index", "--no_live")) as viewer:
        assert "data-events" not in viewer.page("/").html
        assert viewer.refusal("/events")[0] == 404
        assert_sound(viewer)
    with viewing(tmp_path, folder) as viewer:
        assert "data-events" in viewer.page("/").html


def test_the_list_of_runs_has_pages(tmp_path: Path, folder: Path, made: Callable[[str], Path]) -> None:
    for number in range(run_list.ROWS):
        made(f"run-{number:03}")
    with viewing(tmp_path, folder) as viewer:
        assert len(viewer.runs()) == run_list.ROWS + 1, "its twin for programs has all"
        first, second = viewer.page("/?sort=run"), viewer.page("/?sort=run&page=2")
        assert "page=2" in first.html
        assert first.html.count('<tr id="run-') == run_list.ROWS
        assert second.html.count('<tr id="run-') == 1
        assert 'id="run-sound"' in second.html
        assert 'id="run-sound"' in viewer.page("/?sort=run&page=999").html
        assert len(first.body) < 150_000
