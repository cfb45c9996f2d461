"""Makes the pictures of ``docs/viewer.md``: pages of ``manyhands view`` in Chromium, of real runs.

    .venv/bin/python tools/screenshots.py [FOLDER]

The runs are made in a folder of their own that is removed afterwards: models are simulated, everything else is as always. FOLDER takes
the pictures; without it, they go to ``docs/images``. A page that reports an error, or asks another machine for anything, is no picture.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")
WIDTH, HEIGHT = 1280, 800
LARGEST = 200_000
"""Bytes of a picture."""
LONGEST = 120.0
"""Seconds for a run, or a page."""
SOME_ENDED = 14.0
"""Seconds after which some items of the live run have ended."""
COUNTERS = {
    "split": "len(text.split())",
    "letters": r"len(re.findall(r'[A-Za-z]+', text))",
    "spaces": "text.count(' ') + 1",
}
"""Three ways to count the words of a text, of which none is always right."""
TEXTS = (
    ("plain", "one two three", 3),
    ("plain", "The quick brown fox jumps over the lazy dog", 9),
    ("plain", "word", 1),
    ("spaces", "two  spaces", 2),
    ("spaces", " before and after ", 3),
    ("spaces", "one\ttab", 2),
    ("marks", "Stop! (Please.)", 2),
    ("marks", "well-known", 1),
    ("marks", "it's", 1),
    ("marks", "yes - or no", 3),
    ("digits", "7 of 9", 3),
    ("digits", "route 66", 2),
)
NIGHTLY = (
    "batch nightly.jsonl --model simulated --simulated_latency 0.2 --samples 3 --max_turns 90 --item_timeout 8 --max_attempts 1 "
    "--grade examples/checks.yaml --keep_unreasoned=false"
)
RUNS = {
    "monday": NIGHTLY,
    "words": "eval words.yaml --target=split,letters,spaces",
    "files": "jobs spawn examples/csv_jobs/files.csv --instruction_file=examples/csv_jobs/instruction.txt "
    "--output_schema=examples/csv_jobs/schema.json --output_csv_path=scores.csv --model=simulated --simulated_latency=0.1",
    "quick": "memory run -c examples/memory/quick.yml -a simulated -m 3000",
}
"""Runs by their names, without the option that gives them that."""
LIVE = f"{NIGHTLY} --run_name=tuesday --concurrency=2"
NAMED = {"batch": "run_name", "eval": "run_name", "jobs": "job_name"}


def eval_file() -> str:
    """An eval file that has the words of texts counted."""
    code = "import re,sys; text=open(sys.argv[1]).read(); print(%s)"
    targets = "".join(
        f"  {name}: {{provider: cli, command: {json.dumps(f'python -c {shlex.quote(code % count)} {{PROMPT_FILE}}')}}}\n"
        for name, count in COUNTERS.items()
    )
    tests = "".join(
        f'  - {{id: "{category}-{number}", metadata: {{category: {category}}}, tags: [{category}], input: "{text}", '
        f'assert: [{{type: equals, value: "{words}"}}]}}\n'
        for number, (category, text, words) in enumerate(TEXTS, 1)
    )
    return f"description: Words of texts, counted in three ways\ntargets:\n{targets}tests:\n{tests}"


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }


def make_inputs(folder: Path) -> None:
    """What the runs read: the examples; and prompts, of which the filter for conversations without reasoning discards some, and others
    take too long."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    (folder / "words.yaml").write_text(eval_file(), encoding="utf-8")
    lines = (folder / "examples/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    for place, what in (
        (2, "no_reasoning"),
        (4, "tools=80"),
        (7, "tools=80"),
        (12, "no_reasoning"),
        (20, "no_reasoning"),
    ):
        rows.insert(place, {**rows[place], "prompt": f"{rows[place]['prompt']} [simulate: {what}]"})
    (folder / "nightly.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def make_runs(folder: Path) -> None:
    """The finished runs, in ``folder/data``."""
    for name, words in RUNS.items():
        kind = words.split()[0]
        named = [f"--{NAMED[kind]}={name}"] if kind in NAMED else []
        command = [sys.executable, "-P", "-m", "manyhands", *shlex.split(words), *named, "--quiet"]
        done = subprocess.run(
            command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LONGEST
        )
        if done.returncode not in (0, 1):  # tests of the evaluation fail, as they should
            raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")


@contextmanager
def going_on(folder: Path, words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on meanwhile."""
    command = [sys.executable, "-P", "-m", "manyhands", *words.split()]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def said_link(process: subprocess.Popen[str]) -> str:
    """The address that a command prints first."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://[^\s()]+", line)
    if found is None:
        raise RuntimeError(line + process.stdout.read())
    return found[0]


class Camera:
    """Takes pictures of pages."""

    def __init__(self, browser: Browser, link: str, target: Path) -> None:
        self.problems: list[str] = []
        self._browser, self._link, self._target = browser, link, target
        self._origin = re.sub(r"(?<=[0-9])/.*", "", link)
        self._context = browser.new_context()
        self._context.new_page().goto(link)
        self._cookies = self._context.cookies()

    def ids(self) -> dict[str, str]:
        """The ids of the runs by their names."""
        answer = self._context.request.get(f"{self._origin}/?format=json")
        return {run["run"]: run["run_id"] for run in answer.json()["runs"]}

    @contextmanager
    def page(self, path: str, scheme: Literal["light", "dark"] = "light", height: int = HEIGHT) -> Iterator[Page]:
        """A page, when everything in it has come."""
        context = self._browser.new_context(
            viewport={"width": WIDTH, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        context.add_cookies([dict(cookie) for cookie in self._cookies])  # type: ignore[misc]
        page = context.new_page()
        page.on("console", lambda message: self._hear(path, message.type, message.text))
        page.on("pageerror", lambda error: self._hear(path, "error", str(error)))
        page.on("request", lambda request: self._asked(path, request.url))
        answer = page.goto(f"{self._origin}{path}")
        if answer is None or answer.status != 200:
            self.problems.append(f"{path}: status {answer and answer.status}")
        page.wait_for_timeout(400)
        try:
            yield page
        finally:
            context.close()

    def wait_for_index(self, path: str) -> None:
        """Wait until a run's items can be sorted and searched."""
        end = time.monotonic() + LONGEST
        while self._context.request.get(f"{self._origin}{path}?format=json").json().get("note"):
            if time.monotonic() > end:
                raise TimeoutError(f"{path}: there is no index")
            time.sleep(0.3)

    def shoot(self, page: Page, name: str) -> None:
        """Keep what a page shows."""
        page.wait_for_timeout(300)
        path = self._target / f"{name}.png"
        page.screenshot(path=path)
        if path.stat().st_size > LARGEST:
            self.problems.append(f"{path.name} has {path.stat().st_size} bytes, {LARGEST} is the most")
        print(f"{path}: {path.stat().st_size} bytes")

    def _hear(self, path: str, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{path}: {text}")

    def _asked(self, path: str, url: str) -> None:
        if not url.startswith((f"{self._origin}/", "data:")):
            self.problems.append(f"{path} asks for {url}")


def take(camera: Camera) -> None:
    """All the pictures."""
    ids = camera.ids()
    for name in ("tuesday", "monday"):
        camera.wait_for_index(f"/runs/{ids[name]}/items")
    with camera.page("/", height=480) as page:
        camera.shoot(page, "viewer-runs")
    with camera.page(f"/runs/{ids['tuesday']}") as page:
        camera.shoot(page, "viewer-run")
    with camera.page(f"/runs/{ids['monday']}/items") as page:
        page.locator("table.item-list tbody tr").nth(6).locator("th a").click()
        page.wait_for_selector("#panel .conversation")
        page.mouse.move(WIDTH - 5, 30)
        camera.shoot(page, "viewer-items")
    with camera.page(f"/runs/{ids['monday']}/items/1", "dark") as page:
        camera.shoot(page, "viewer-conversation")
    with camera.page(f"/runs/{ids['words']}/pages/matrix") as page:
        camera.shoot(page, "viewer-matrix")
    with camera.page(f"/runs/{ids['quick']}/pages/schedule") as page:
        camera.shoot(page, "viewer-schedule")


def main(words: list[str]) -> int:
    target = Path(words[0]) if words else TARGET
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="manyhands-pictures-") as name, ExitStack() as stack:
        folder = Path(name)
        make_inputs(folder)
        make_runs(folder)
        stack.enter_context(going_on(folder, LIVE))
        link = said_link(stack.enter_context(going_on(folder, "view data")))
        time.sleep(SOME_ENDED)
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        stack.callback(browser.close)
        camera = Camera(browser, link, target)
        take(camera)
    for problem in camera.problems:
        print(problem, file=sys.stderr)
    return 1 if camera.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
