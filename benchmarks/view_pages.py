"""How quickly ``manyhands view`` shows runs that are many, large or go on, and what it costs those that go on.

Large runs are made, not executed. The server is a process of its own, which is asked over HTTP; where there is a Chromium and Playwright,
some pages are opened in it too, from the click to the last row.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.children import run_child
from benchmarks.rows import Row
from benchmarks.startup import program
from benchmarks.viewer import Viewer
from manyhands.core.jsonio import dumps
from manyhands.engine.journal.reader import JOURNAL
from manyhands.view.server import asset

_MEGABYTE = 1_000_000
_KILOBYTE = 1000
_PAIRS = 7
_LARGE = "large-items"
_SCRIPTS = ("theme.js", "app.js", "charts.js")
_BROWSER = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def view_pages(quick: bool) -> Iterator[Row]:
    """Seconds, bytes and memory of pages; the delay of live rows; and by how much a run is slower while pages of it are open."""
    with TemporaryDirectory() as name:
        base = Path(name)
        small = _batch(base / "one", "small", 20)
        yield from _start(small.parent, base)
        yield from _many_items(small, base, 50_000 if quick else 1_000_000)
        yield from _many_runs(small, base, 100 if quick else 1_000)
        yield from _large_items(small, base, 10 if quick else 1)
        yield from _live(base, 8 if quick else 30)
        yield from _slow_down(base, 500 if quick else 3_000, 3 if quick else _PAIRS)


def _start(folder: Path, base: Path) -> Iterator[Row]:
    taken = []
    for _ in range(5):
        with Viewer(folder, base / "cache") as viewer:
            viewer.get("/")
            taken.append(time.perf_counter() - viewer.began)
    yield Row("view: first page after start", median(taken), "s", at_most=0.8, note="median of 5")
    helped = []
    for _ in range(6):
        began = time.perf_counter()
        subprocess.run([*program(), "view", "--help"], check=True, stdout=subprocess.DEVNULL)
        helped.append(time.perf_counter() - began)
    yield Row("view: --help", median(helped[1:]), "s", at_most=0.3, note="median of 5")
    scripts = {name: len(asset(name) or b"") for name in _SCRIPTS}
    note = ", ".join(f"{name} {size:,}" for name, size in scripts.items())
    yield Row("view: our scripts", sum(scripts.values()) / _KILOBYTE, "KB", at_most=60.0, note=note)


def _many_items(like: Path, base: Path, items: int) -> Iterator[Row]:
    folder = base / "many-items" / "run"
    run_child("index_run", folder=str(folder), items=items)
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        journal.execute("UPDATE meta SET value = ? WHERE name = 'spec'", (dumps(_spec(like)).decode(),))
        journal.commit()
    with Viewer(folder.parent, base / "cache", "--no_index") as viewer:
        run = viewer.json("/")["runs"][0]["run_id"]
        page, chosen = f"/runs/{run}/items", random.Random(1)
        viewer.get(page)
        paths = [f"{page}?at={chosen.randrange(1, items + 1)}" for _ in range(60)]
        paths += [f"{page}?state=failed&at={chosen.randrange(1, items + 1)}" for _ in range(30)]
        paths += [f"{page}?state=failed&why=timeout", f"{page}?state=cancelled"] * 5
        cpu = viewer.cpu()
        taken = [viewer.seconds(path) for path in paths]
        each = 1000 * (viewer.cpu() - cpu) / len(paths)
        note = f"{items:,} items, no index; {len(taken)} pages, half of them {1000 * median(taken):.0f} ms, {each:.0f} ms of CPU each"
        yield Row("view: items page, server", 1000 * _at(taken, 0.95), "ms (95 %)", at_most=50.0, note=note)
        yield from _weights(viewer, run)
        yield from _in_browser(viewer, f"/runs/{run}", f'a[href^="{page}"]', "table.item-list tbody tr", "items page")


def _weights(viewer: Viewer, run: str) -> Iterator[Row]:
    pages = ["/", f"/runs/{run}", f"/runs/{run}/items"]
    pages += [f"/runs/{run}/items/2?tab={tab}" for tab in ("conversation", "result", "timeline", "attempts", "raw")]
    sizes = {path: len(viewer.get(path)) / _KILOBYTE for path in pages}
    heaviest = max(sizes, key=lambda path: sizes[path])
    yield Row("view: heaviest page of a run", sizes[heaviest], "KB", at_most=150.0, note=heaviest.partition(run)[2])


def _in_browser(viewer: Viewer, path: str, click: str, rows: str, name: str) -> Iterator[Row]:
    """Seconds from a click on a page until there are rows on the next one; nothing where there is no browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    if chromium is None:
        return
    taken = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=_BROWSER)
        context = browser.new_context()
        context.add_cookies([{"name": viewer.cookie[0], "value": viewer.cookie[1], "url": viewer.base}])
        page = context.new_page()
        for _ in range(5):
            page.goto(viewer.base + path)
            began = time.perf_counter()
            page.click(click)
            page.wait_for_load_state("load")
            page.locator(rows).last.wait_for()
            page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            taken.append(time.perf_counter() - began)
        browser.close()
    yield Row(
        f"view: {name}, Chromium", median(taken), "s", at_most=1.0, note="from the click to the drawn rows, median of 5"
    )


def _many_runs(like: Path, base: Path, runs: int) -> Iterator[Row]:
    folder = base / "many-runs"
    for number in range(runs):
        shutil.copytree(like, folder / f"run-{number:04}")
        with closing(sqlite3.connect(folder / f"run-{number:04}" / JOURNAL)) as journal:
            journal.execute("UPDATE meta SET value = ? WHERE name = 'run_id'", (json.dumps(f"run-{number}"),))
            journal.commit()
    with Viewer(folder, base / "cache") as viewer:
        cold, size = viewer.seconds("/"), len(viewer.get("/")) / _KILOBYTE
        viewer.get("/")
        warm = [viewer.seconds("/") for _ in range(10)]
        yield Row(f"view: {runs:,} runs listed, cold", cold, "s", at_most=1.0, note=f"a page of {size:,.0f} KB")
        yield Row(f"view: {runs:,} runs listed, warm", 1000 * median(warm), "ms", at_most=100.0, note="median of 10")
        yield Row("view: the list's page", size, "KB", at_most=150.0)


def _large_items(like: Path, base: Path, part: int) -> Iterator[Row]:
    folder, steps, size = base / "large" / "run", 100_000 // part, 100 * _MEGABYTE // part
    whole = 1000 * _MEGABYTE // part
    found = run_child("large_items", folder=str(folder), like=str(like), steps=steps, output=size, conversation=whole)
    chosen = random.Random(1)
    with Viewer(folder.parent, base / "cache", "--no_index") as viewer:
        viewer.get(f"/runs/{_LARGE}/items")
        idle, item = viewer.memory(), f"/runs/{_LARGE}/items"
        opened = [viewer.seconds(f"{item}/1")]
        opened += [viewer.seconds(f"{item}/1?number={chosen.randrange(1, steps)}") for _ in range(10)]
        note = f"first page and 10 random steps, median {1000 * median(opened):.0f} ms"
        yield Row(f"view: item of {steps:,} steps", max(opened), "s", at_most=1.0, note=note)
        tabs = {tab: viewer.seconds(f"{item}/1?tab={tab}") for tab in ("result", "timeline", "raw")}
        note = ", ".join(f"{tab} {taken:.2f}" for tab, taken in tabs.items())
        yield Row("view: its other tabs", max(tabs.values()), "s", at_most=1.0, note=note)
        sizes = {tab: len(viewer.get(f"{item}/1?tab={tab}")) / _MEGABYTE for tab in ("conversation", *tabs)}
        yield Row(
            "view: its heaviest tab",
            max(sizes.values()),
            "MB",
            at_most=2.0,
            note=max(sizes, key=lambda tab: sizes[tab]),
        )
        yield from _large_output(viewer, item, found, size)
        pages = [viewer.seconds(f"{item}/3?number={chosen.randrange(1, 2 * (whole // 3_500_000))}") for _ in range(8)]
        note = f"{whole / _MEGABYTE:,.0f} MB of steps of 3.5 MB; the slowest of 8 pages at random steps"
        yield Row("view: large conversation", max(pages), "s", at_most=1.0, note=note)
        biggest = len(viewer.get(f"{item}/3")) / _MEGABYTE
        yield Row("view: large conversation, page", biggest, "MB", at_most=2.0)
        more = viewer.memory(peak=True) - idle
        yield Row("view: memory over idle", more, "MB", at_most=150.0, note=f"at the most; idle {idle:.0f} MB")


def _large_output(viewer: Viewer, item: str, found: dict[str, Any], size: int) -> Iterator[Row]:
    label, step = f"{size / _MEGABYTE:,.0f} MB output", f"/runs/{_LARGE}/steps/{found['step']}"
    taken, page = viewer.seconds(f"{item}/2"), len(viewer.get(f"{item}/2"))
    yield Row(f"view: item with {label}", taken, "s", at_most=1.0, note=f"a page of {page / _KILOBYTE:,.0f} KB")
    text = [viewer.seconds(f"{step}/text?path=output&from={begin}") for begin in (0, size // 2, size - 1000)]
    yield Row("view: a part of it", max(text), "s", at_most=1.0, note="at its beginning, middle and end")
    checksum, began = hashlib.sha256(), time.perf_counter()
    for part in viewer.parts(f"{step}/download?path=output"):
        checksum.update(part)
    note = (
        "byte by byte what was recorded"
        if checksum.hexdigest() == found["digest"]
        else "DIFFERS from what was recorded"
    )
    yield Row("view: its download", time.perf_counter() - began, "s", note=note)
    same = float(checksum.hexdigest() != found["digest"])
    yield Row("view: downloads that differ", same, at_most=0.0)


def _live(base: Path, seconds: int) -> Iterator[Row]:
    """Of ten pages that listen to a run of about twenty items a second, how late rows come."""
    folder, listeners = base / "live", 10
    with _going_on(folder, 20 * seconds, "--simulated_latency=0.5", "--concurrency=12") as process:
        with Viewer(folder, base / "cache") as viewer:
            run = _run_in(viewer)
            viewer.get(f"/runs/{run}/items")
            arrived: dict[int, float] = {}
            began, at, cpu = time.time(), time.perf_counter(), viewer.cpu()

            def take(name: str, value: Any) -> None:
                if name == "row" and value["state"] == "completed":
                    arrived.setdefault(int(value["id"].removeprefix("item-")), time.time())

            with viewer.listened(run, listeners, take):
                process.wait()
                share = 100 * (viewer.cpu() - cpu) / (time.perf_counter() - at)
        with closing(sqlite3.connect(folder / "r" / JOURNAL)) as journal:
            ends = {
                number: end for number, end in journal.execute("SELECT number, finished_at FROM items") if end > began
            }
    late = [arrived[number] - end for number, end in ends.items() if number in arrived]
    note = f"{len(late)} of {len(ends)} rows came; half of them {median(late):.2f} s after the end of the item"
    yield Row("view: live rows come after", max(late), "s", at_most=1.0, note=note)
    yield Row("view: live rows that did not come", len(ends) - len(late), at_most=0.0)
    yield Row(f"view: {listeners} pages of a live run", share, "% of a core", at_most=5.0)


def _slow_down(base: Path, items: int, pairs: int) -> Iterator[Row]:
    """By how much a run takes longer while three pages listen to it and its index is made, and what becomes of its write-ahead log."""
    order, slower, longer = random.Random(1), [], []
    gaps: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        rates: dict[bool, float] = {}
        logs: dict[bool, int] = {}
        for watched in order.sample((False, True), 2):
            folder = base / f"pair-{pair}-{watched}"
            folder.mkdir()
            with ExitStack() as opened:
                viewer = opened.enter_context(Viewer(folder, base / "cache")) if watched else None
                process = opened.enter_context(_going_on(folder, items, "--simulated_latency=0", "--concurrency=16"))
                if viewer is not None:
                    run = _run_in(viewer)
                    viewer.get(f"/runs/{run}/items")
                    opened.enter_context(viewer.listened(run, 3))
                logs[watched] = _largest_log(process, folder / "r")
            with closing(sqlite3.connect(folder / "r" / JOURNAL)) as journal:
                began = journal.execute("SELECT min(started_at) FROM steps").fetchone()[0]
                ends = [end for (end,) in journal.execute("SELECT finished_at FROM steps ORDER BY finished_at")]
            rates[watched] = len(ends) / (ends[-1] - began)
            gaps[watched].append(max(after - before for before, after in pairwise(ends)))
        slower.append(100 * (rates[False] / rates[True] - 1))
        longer.append(100 * (logs[True] / logs[False] - 1))
    note = f"median of {pairs} pairs, from {min(slower):.1f} to {max(slower):.1f} %; {rates[False]:,.0f} steps/s alone"
    yield Row("view: a run that is watched is slower by", median(slower), "%", at_most=3.0, note=note)
    note = f"median of {pairs} pairs, from {min(longer):.1f} to {max(longer):.1f} %"
    yield Row("view: its write-ahead log is larger by", median(longer), "%", at_most=10.0, note=note)
    note = f"median of {pairs}; {1000 * median(gaps[False]):.0f} ms without"
    yield Row("view: longest time without a step", 1000 * median(gaps[True]), "ms", note=note)


def _largest_log(process: subprocess.Popen[bytes], run_folder: Path) -> int:
    """Bytes of the write-ahead log of a run that goes on, at the most."""
    largest = 1
    while process.poll() is None:
        with suppress(FileNotFoundError):
            largest = max(largest, (run_folder / f"{JOURNAL}-wal").stat().st_size)
        time.sleep(0.02)
    return largest


def _run_in(viewer: Viewer) -> str:
    """The only run that is shown, once it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for run in viewer.json("/")["runs"]:
            if "run_id" in run:
                return str(run["run_id"])
        time.sleep(0.02)
    raise RuntimeError("the run was not made")


def _going_on(folder: Path, items: int, *options: str) -> subprocess.Popen[bytes]:
    """A batch ``r`` in a folder, which is executed."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = folder / "prompts.jsonl"
    prompts = (f"Question {number} [simulate: tools={number % 2}]" for number in range(items))
    dataset.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = ["batch", f"--dataset_file={dataset}", "--run_name=r", f"--data_dir={folder}", "--batch_size=100"]
    more = ["--model=simulated", "--distribution=terminal_only", "--sandbox=local", "--executor=local", "--quiet"]
    return subprocess.Popen([*program(), *words, *more, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _batch(folder: Path, name: str, items: int) -> Path:
    """A small finished run."""
    with _going_on(folder, items, "--simulated_latency=0") as process:
        process.wait()
    with closing(sqlite3.connect(folder / "r" / JOURNAL)) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (folder / "r").rename(folder / name)


def _spec(folder: Path) -> Any:
    with closing(sqlite3.connect(folder / JOURNAL)) as journal:
        return json.loads(journal.execute("SELECT value FROM meta WHERE name = 'spec'").fetchone()[0])


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
