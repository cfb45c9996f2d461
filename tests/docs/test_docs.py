"""The documentation is true: its tables are those of the code, its links lead somewhere, its snippets run as printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from manyhands.core.outcomes import StopReason
from manyhands.engine.journal.reader import JOURNAL
from manyhands.sandboxes.files.checkpoint import MAX_BYTES, MAX_ENTRIES
from manyhands.workloads.csv_jobs.mcp.declarations import STATES
from manyhands.workloads.csv_jobs.rows.columns import OUR_COLUMNS
from manyhands.workloads.evals.results.result_lines import STATUSES
from manyhands.workloads.memory.datasets.base import DatasetArguments, needs_a_judge
from manyhands.workloads.memory.datasets.registry import BUILTIN, dataset_class
from tests.support.forked import ForkedProcess

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
SNIPPET = re.compile(r"<!-- (run|file)(?:: ([^>]*?))? -->\n```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
IN_CODE = re.compile(r"`((?:src|tests|docs|examples|tools|benchmarks)/[\w./-]+)`")
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\!]*\"""")
FOR_A_SHELL = re.compile(r"[^\w\s./=,:%@+-]")
KILLED = re.compile(r"timeout -s KILL \d+ manyhands (.*)")
KILL_CODE = 128 + 9
LONGEST = 60.0


@dataclass(frozen=True)
class Snippet:
    """A marked block. ``kind``: ``run`` or ``file``; ``note``: what stands behind it."""

    kind: str
    note: str
    language: str
    text: str


def snippets(path: Path) -> list[Snippet]:
    return [Snippet(*(part or "" for part in found)) for found in SNIPPET.findall(path.read_text(encoding="utf-8"))]


def environment(*more: Path) -> dict[str, str]:
    """As with the virtual environment active, and no keys."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(map(str, (ROOT / "src", *more))),
        "HOME": os.environ.get("HOME", "/tmp"),
        "LANG": "C.UTF-8",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples in it, as in a clone."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(command: list[str], folder: Path, *more: Path) -> tuple[int, str]:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(*more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
    )
    code = done.returncode
    return (128 - code if code < 0 else code), done.stdout  # as a shell says it


def run_line(command: str, folder: Path) -> tuple[int, str]:
    """Perform a line of a console. Without anything that only a shell understands, ``manyhands`` is forked, which is quicker."""
    if killed := KILLED.fullmatch(command):
        return KILL_CODE, killed_midway(shlex.split(killed[1]), folder)
    if not command.startswith("manyhands ") or FOR_A_SHELL.search(QUOTED.sub("", command)):
        return run(["bash", "-c", command], folder)
    with TemporaryFile() as printed:
        words = shlex.split(command)[1:]
        process = ForkedProcess(words, folder, environment(), printed.fileno(), printed.fileno())
        try:
            code = process.wait(LONGEST)
        finally:
            process.kill()
        printed.seek(0)
        return code, printed.read().decode()


def killed_midway(words: list[str], folder: Path) -> str:
    """Kill a batch as soon as some of its work is recorded, however fast this machine is; what it printed."""
    name = next(value for word, value in pairwise(words) if word == "--run_name")
    journal = folder / "data" / name / JOURNAL
    with TemporaryFile() as printed:
        process = ForkedProcess(words, folder, environment(), printed.fileno(), printed.fileno())
        try:
            deadline = time.monotonic() + LONGEST
            while recorded_steps(journal) < 20:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait(LONGEST)
        printed.seek(0)
        return printed.read().decode()


def recorded_steps(journal: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT count(*) FROM steps").fetchone()[0])
    return 0


def commands(snippet: Snippet) -> Iterator[tuple[str, list[str], int]]:
    """The commands of a console snippet, each with the lines printed under it and its exit code."""
    codes = [int(code) for code in snippet.note.removeprefix("exit ").split(",")] if snippet.note else []
    parts = re.split(r"^\$ ", snippet.text, flags=re.MULTILINE)[1:]
    assert not codes or len(codes) == len(parts), "one exit code for each command"
    for number, part in enumerate(parts):
        command, _, printed = part.partition("\n")
        yield command, [line for line in printed.splitlines() if line.strip()], codes[number] if codes else 0


def assert_printed(line: str, output: str) -> None:
    pattern = r".*?".join(re.escape(" ".join(part.split())) for part in line.split("…"))
    pattern = pattern.replace(r"\ .*?", r"\s?.*?")
    assert re.search(pattern, "\n".join(" ".join(text.split()) for text in output.splitlines())), (
        f"{line!r} not in:\n{output}"
    )


RUNNABLE = [path for path in DOCUMENTS if any(snippet.kind == "run" for snippet in snippets(path))]


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_snippets_run_as_printed(path: Path, folder: Path) -> None:
    for snippet in snippets(path):
        if snippet.kind != "run":
            continue
        if snippet.language == "python":
            code, output = run([sys.executable, "-c", snippet.text], folder)
            assert code == 0, output
            continue
        for command, printed, expected in commands(snippet):
            code, output = run_line(command, folder)
            assert code == expected, f"{command}\n{output}"
            for line in printed:
                assert_printed(line, output)


def test_pages_use_names_of_their_own() -> None:
    """So that someone can follow several pages in one folder. ``quick`` is named by its configuration."""
    named = re.compile(r"(?:--run_name|--job_name)=(\w+)|(?:cp -r \S+|mkdir) (\w+)")
    users: dict[str, set[str]] = {}
    for path in RUNNABLE:
        for snippet in snippets(path):
            for found in named.finditer(snippet.text if snippet.kind == "run" else ""):
                users.setdefault(found[0].split("=")[-1], set()).add(path.name)
    assert {name: pages for name, pages in users.items() if len(pages) > 1} == {}


def test_the_loader_of_the_quickstart_reads_lines_of_any_program(tmp_path: Path) -> None:
    """Also those in which characters stand as they are that end a line for ``str.splitlines``."""
    (loader,) = (
        part
        for part in snippets(ROOT / "docs/quickstart.md")
        if "trajectories.jsonl" in part.text and part.language == "python"
    )
    turns = [{"from": "system", "value": "S"}, {"from": "human", "value": "one\u2028two\u2029three\x85four"}]
    entry = {"conversations": turns, "metadata": {"stop_reason": "answered", "usage": {"calls": 1}}}
    (tmp_path / "data/killed").mkdir(parents=True)
    written = json.dumps(entry, ensure_ascii=False) + "\n" + json.dumps(entry) + "\n"
    (tmp_path / "data/killed/trajectories.jsonl").write_text(written, encoding="utf-8")
    code, output = run([sys.executable, "-c", loader.text], tmp_path)
    assert code == 0, output
    assert output.count("one\u2028two\u2029three\x85four") == 2


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_excerpts_are_in_their_files(path: Path) -> None:
    for snippet in snippets(path):
        if snippet.kind == "file":
            assert snippet.text in (ROOT / snippet.note).read_text(encoding="utf-8"), snippet.note


def test_tables_are_those_of_the_code() -> None:
    code, output = run([sys.executable, "tools/docs.py", "--check"], ROOT)
    assert code == 0, output


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_links_and_file_names_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link in LINK.findall(text):
        name, _, heading = link.partition("#")
        if name.startswith("http"):
            continue
        target = (path.parent / name) if name else path
        assert target.exists(), link
        assert not heading or heading in headings(target), link
    for name in IN_CODE.findall(text):
        assert (ROOT / name).exists(), name


def test_modules_that_contributors_are_sent_to_exist() -> None:
    """Modules are named by the end of their path, with the package before them or in the sentence before."""
    modules = [
        f"/{path.relative_to(ROOT)}"
        for folder in ("docs", "src", "tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for page in (ROOT / "CONTRIBUTING.md", ROOT / "docs/architecture.md"):
        named = re.findall(r"`([\w./]+\.py)`", page.read_text(encoding="utf-8"))
        assert [name for name in named if not any(module.endswith(f"/{name}") for module in modules)] == [], page.name


def test_the_layers_are_those_that_are_checked() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `(\w+)` \|", page.split("## Layers")[1].split("\n## ")[0], re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert described == contracts[0]["layers"]
    inside = page.split("## Inside the workloads")[1].split("\n## ")[0]
    for workload, parts in re.findall(r"^\| `(\w+)` \| (.+) \|$", inside, re.MULTILINE):
        folder = ROOT / "src/manyhands/workloads" / workload
        found = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
        assert set(re.findall(r"`(\w+)`", parts)) <= found, workload


def headings(path: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_picture_moves_is_small_and_needs_no_other_machine() -> None:
    picture = (ROOT / "docs/images/run.svg").read_text(encoding="utf-8")
    assert len(picture.encode()) < 100_000
    assert re.findall(r"@font-face|@import|url\(|href=|https?://(?!www\.w3\.org/2000/svg)", picture) == []
    assert all(part in picture for part in ("@keyframes", "30/30", "prefers-reduced-motion"))


def test_every_field_of_the_outputs_is_described(folder: Path) -> None:
    """Runs a small batch with a row that can't be used, one that is discarded, and looks for each key in the page."""
    rows = ['{"prompt": "Count to three.", "level": 1}', '{"prompt": "x [simulate: no_reasoning]"}', "no JSON"]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    options = (
        "--dataset_file=rows.jsonl --batch_size=5 --run_name=fields --model=simulated --distribution=terminal_only"
    )
    code, output = run_line(f"manyhands batch {options}", folder)
    assert code == 0, output
    results = folder / "data/fields"
    page = (ROOT / "docs/reference/trajectory-files.md").read_text(encoding="utf-8")
    entries = [json.loads(line) for line in (results / "trajectories.jsonl").read_text().splitlines()]
    missed = [json.loads(line) for line in (results / "failures.jsonl").read_text().splitlines()]
    assert len(entries) == 1
    assert len(missed) == 2
    keys = {*entries[0], *entries[0]["metadata"], *entries[0]["metadata"]["usage"]}
    for found in (
        *missed,
        *(json.loads((results / name).read_text()) for name in ("statistics.json", "checkpoint.json")),
    ):
        keys |= set(found)
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    left = {path.name for path in results.iterdir()} - {"batch_0.jsonl"}
    assert [name for name in sorted(left) if name not in page] == []


def test_stop_reasons_and_bounds_are_those_of_the_code() -> None:
    page = (ROOT / "docs/reference/trajectory-files.md").read_text(encoding="utf-8")
    assert [reason for reason in StopReason if f"| `{reason}` |" not in page] == []
    promises = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    assert f"{MAX_ENTRIES:,} files" in promises
    assert f"{MAX_BYTES >> 20} MB" in promises


def test_the_memory_datasets_are_those_of_the_registry() -> None:
    text = (ROOT / "docs/memory-datasets.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in re.findall(r"^\| `.*\|$", text, re.MULTILINE)]
    described = {row[0].strip("` "): row for row in rows if len(row) == 6}
    assert list(described) == list(BUILTIN)
    for dataset, (_, name, _, arguments, _, model) in described.items():
        kind = dataset_class(dataset)
        assert (name, bool(model)) == (kind.default_name, needs_a_judge(kind)), dataset
        own = set(kind.Arguments.model_fields) - set(DatasetArguments.model_fields)
        assert arguments == "see below" or own <= set(re.findall(r"`(\w+)`", arguments)), dataset
    scored = re.findall(r"^\| ([A-Z][\w ,-]+) \|", text, re.MULTILINE)
    assert {name for names in scored for name in names.split(", ")} <= {row[1] for row in described.values()}


def test_states_and_columns_of_jobs_are_those_of_the_code() -> None:
    page = (ROOT / "docs/csv-jobs.md").read_text(encoding="utf-8")
    assert [column for column in OUR_COLUMNS if f"`{column}`" not in page] == []
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    tables = [text for text in texts if "| `completed_with_failures` |" in text]
    assert len(tables) == 3  # of the workload, the commands, the tools
    assert [state for text in tables for state in STATES if f"| `{state}` |" not in text] == []


def test_every_field_of_an_evaluations_results_is_described(folder: Path) -> None:
    """Runs trials of a test that passes, and one whose target fails, and looks for each key in the page."""
    page = (ROOT / "docs/reference/eval-results.md").read_text(encoding="utf-8")
    assert [status for status in STATUSES if f"| `{status}` |" not in page] == []
    (folder / "evals.yaml").write_text(
        "targets: {m: {provider: mock, response: '1'}, broken: {provider: cli, command: 'exit 1'}}\n"
        "execution: {target: m}\n"
        "assert: [{type: is_json, required: true}]\n"
        "tests:\n"
        "  - {id: a, input: x, execution: {target: m, trials: {count: 2, strategy: mean}}}\n"
        "  - {id: b, input: x, criteria: good, conversation_id: c, tags: [t], execution: {target: broken}}\n"
    )
    code, output = run_line("manyhands eval evals.yaml --run_name=fields", folder)
    assert code == 3, output
    results = folder / "data/fields"
    records = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    summary = json.loads((results / "eval_summary.json").read_text())
    assert [record["status"] for record in records] == ["passed", "error"]
    keys = {key for found in (*records, summary, *summary["targets"], *records[0]["scores"]) for key in found}
    assert [key for key in sorted(keys - {"target"}) if f"`{key}`" not in page] == []


def test_an_installed_package_brings_its_tools(folder: Path) -> None:
    """The example package, installed as an installer would: its module, and the entry points of its metadata."""
    site = folder / "site"
    information = site / "word_tools-0.1.0.dist-info"
    information.mkdir(parents=True)
    shutil.copy(folder / "examples/own_tool/word_tools.py", site)
    declared = (folder / "examples/own_tool/pyproject.toml").read_text(encoding="utf-8")
    entry = re.search(r'\[project\.entry-points\."(.+?)"\]\n(\w+) = "(.+?)"', declared)
    assert entry is not None
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: word-tools\nVersion: 0.1.0\n")
    (information / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
    options = "--distributions_file=examples/own_tool/distributions.yaml"
    code, output = run(["bash", "-c", f"manyhands batch --list_distributions {options}"], folder, site)
    assert (code, "with_words" in output) == (0, True), output
    program = (
        "from manyhands import BatchRunner\n"
        "runner = BatchRunner('examples/prompts.jsonl', 5, 'words', 'with_words', model='simulated', max_samples=4,\n"
        "    executor='local', distributions_file='examples/own_tool/distributions.yaml')\n"
        "print(runner.run().ledger)\n"
    )
    code, output = run([sys.executable, "-c", program], folder, site)
    assert code == 0, output
    statistics = json.loads((folder / "data/words/statistics.json").read_text())
    assert {"count_words", "line_count"} & set(statistics["tool_statistics"])


def test_the_example_programs_run(folder: Path) -> None:
    code, output = run([sys.executable, "examples/run_batch.py"], folder)
    assert code == 0, output
    assert "4 of 4 ended" in output
    copy = folder / "data/copy"
    shutil.copytree(folder / "data/from_python", copy)
    compare = [sys.executable, "examples/compare.py", "data/from_python", "data/copy"]
    assert run(compare, folder)[0] == 0
    lines = (copy / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (copy / "trajectories.jsonl").write_text("".join(lines[1:]))
    assert run(compare, folder)[0] == 1
