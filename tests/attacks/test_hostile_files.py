"""Files that somebody gave: evaluations, datasets and tables made to harm. And what we write of it: pages and tables."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import manyhands.view
from tests.support.batches import BatchFolder
from tests.support.commands import one_line, run
from tests.support.job_folders import FUNCTION, JobFolder

PLANTED = (
    "</td></pre></script><script>planted()</script>",
    '"><img src=x onerror=planted()>',
    "' onmouseover='planted()",
    "<svg/onload=planted()>",
    "<iframe src=javascript:planted()>",
    "<!--><base href=//evil.example/>",
    "javascript:planted()",
)
ASSETS = Path(manyhands.view.__file__).parent / "assets"
BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class Page(HTMLParser):
    """What of a page is alive."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.alive: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append("")
            self.alive += [f"script {name}" for name, _ in attrs]
        if tag in ("img", "iframe", "object", "embed", "base", "link", "form"):
            self.alive.append(tag)
        for name, value in attrs:
            outside = name in ("href", "src", "action", "xlink:href") and not (value or "").startswith("#")
            if name.startswith("on") or outside or ("javascript:" in (value or "") and name != "value"):
                self.alive.append(f"{tag} {name}={value}")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.cdata_elem:
            self.scripts[-1] += data


def test_nothing_planted_is_alive_on_a_page(tmp_path: Path) -> None:
    """In ids, names, questions, criteria, answers and what graders say."""
    tests = [
        {
            "id": f"{number} {planted}",
            "input": planted,
            "criteria": planted,
            "assert": [{"type": "contains", "name": planted, "value": planted + "."}],
        }
        for number, planted in enumerate(PLANTED)
    ]
    targets = {"t": {"provider": "mock", "response": " ".join(PLANTED)}}
    suite = {
        "name": "suite",
        "description": PLANTED[0],
        "targets": targets,
        "execution": {"target": "t"},
        "tests": tests,
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    ended = run("eval", "suite.yaml", "--run_name=r", "--quiet", "--output=page.html", folder=tmp_path)
    assert "Traceback" not in ended.err
    text = (tmp_path / "page.html").read_text()
    page = Page(text)
    assert "planted()" in text
    assert page.scripts
    assert set(page.scripts) <= {path.read_text() for path in ASSETS.rglob("*.js")}
    assert page.alive == []


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    """In a table for spreadsheet programs: what was given, and what workers reported."""
    texts = [f"{begin}cmd|' /C calc'!A0" for begin in BEGINS_A_FORMULA] + [
        '=HYPERLINK("http://evil.example")',
        " =1+1",
        "ok",
    ]
    with JobFolder(tmp_path, texts) as folder:
        words = ("rows.csv", "--instruction=Do {text}.", FUNCTION, "--output_csv_path=out.csv", "--excel_safe")
        ended = folder.jobs("spawn", *words, "--quiet")
        assert ended.code == 0, ended.err
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.reader(handle))
    assert len(rows) == len(texts) + 1
    for row in rows:
        for cell in row:
            assert not cell.startswith(BEGINS_A_FORMULA), cell


LAUGHS = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"] + [
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 12)
]
TARGET = "targets: {t: {provider: mock, response: x}}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n".join([*LAUGHS, "tests: [{id: a, input: x, criteria: *a11}]", TARGET]), "aliases stand for more"),
        ("tests: " + "[" * 50_000, "nested more than"),
        ("tests: " + "[" * 5_000 + "]" * 5_000, "nested more than"),
        (f"tests: [{{id: a, input: x, n: {'9' * 100_000}}}]\n{TARGET}", "too long"),
        (f'tests: [{{id: "a\\0b", input: x, criteria: y}}]\n{TARGET}', "control characters"),
        ("tests: !!python/object/apply:os.system ['touch manyhands-breakout']", ""),
        (
            "tests: [{id: a, input: x, criteria: y}]\ntargets: {t: {provider: mock, response: !!python/name:os.system }}",
            "",
        ),
    ],
    ids=["billion-laughs", "deep-open", "deep", "long-number", "nul", "python-object", "python-name"],
)
def test_an_evaluation_made_to_harm_is_refused_in_a_line(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(text)
    ended = run("eval", "suite.yaml", "--run_name=r", "--quiet", folder=tmp_path, seconds=60)
    assert ended.code == 2
    assert says in one_line(ended)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == ["suite.yaml"]


PATHS = (
    "../../escaped",
    "/tmp/manyhands-breakout",
    "..",
    ".",
    "a/../../../escaped",
    "a\\..\\b",
    "con\n\x1b[2Jx",
    "x" * 4000,
)


def test_ids_that_look_like_paths_lead_nowhere(tmp_path: Path) -> None:
    """Ids of tests and of rows, whatever is made for them."""
    home = tmp_path / "deep" / "er" / "home"
    home.mkdir(parents=True)
    tests = [{"id": each, "input": "x", "criteria": "y"} for each in PATHS if "\n" not in each]
    command = "sh -c 'pwd > {OUTPUT_FILE}'"
    target = {"t": {"provider": "cli", "command": command}}
    suite = {
        "targets": target,
        "execution": {"target": "t"},
        "tests": tests,
        "assert": [{"type": "contains", "value": "/"}],
    }
    (home / "suite.yaml").write_text(json.dumps(suite))
    ended = run("eval", "suite.yaml", "--run_name=r", "--quiet", "--output=page.html", folder=home)
    assert "Traceback" not in ended.err
    with JobFolder(home, ["one"] * len(PATHS)) as folder:
        with (home / "rows.csv").open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows([("key", "name", "text"), *((each, "a", "one") for each in PATHS)])
        ended = folder.jobs("spawn", "rows.csv", "--instruction=Do {text}.", FUNCTION, "--id_column=key", "--quiet")
        assert "Traceback" not in ended.err
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["er"]
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["home"]
    assert not Path("/tmp/manyhands-breakout").exists()


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": ' + "[" * 200_000,
        '{"prompt": "x", "more": ' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"prompt": "x", "n": ' + "9" * 100_000 + "}",
        '{"prompt": "x", "n": NaN, "m": 1e999}',
        '{"prompt": "a\\u0000b", "id": "\\u0000"}',
        '{"prompt": "\\ud800", "cwd": "../../.."}',
        '{"prompt": "x", "cwd": "/etc"}',
        '{"prompt": {"x": 1}}',
        "\x00\x01\x02",
    ],
    ids=["open", "deep", "long-number", "no-number", "nul", "half-a-character", "etc", "object", "bytes"],
)
def test_a_dataset_made_to_harm_ends_in_lines(line: str, tmp_path: Path) -> None:
    """It is refused in one line, or the row fails on record; the others are performed."""
    folder = BatchFolder(tmp_path)
    (tmp_path / "d.jsonl").write_text(f'{{"prompt": "good"}}\n{line}\n')
    ended = folder.batch("--model=simulated", "--distribution=terminal_only")
    assert "Traceback" not in ended.err
    assert "internal error" not in ended.err
    if ended.code == 2:
        assert ended.err.count("\n") == 1
        assert ended.err.startswith("manyhands: error: ")
    else:
        found = folder.json("summary.json")["ledger"]
        assert found["items"] == found["completed"] + found["discarded"] + found["failed"]
        assert found["completed"] >= 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == ["d.jsonl"]


def test_links_in_the_place_of_outputs_are_not_followed(tmp_path: Path) -> None:
    """Whole files are made aside and renamed: what a link in their place led to stays as it was."""
    folder = BatchFolder(tmp_path, [{"prompt": f"Question {number}"} for number in range(3)])
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    assert folder.batch("--model=simulated").code == 0
    for name in ("statistics.json", "summary.json"):
        (folder.run() / name).unlink()
        (folder.run() / name).symlink_to(victim)
    ended = run("resume", str(folder.run()), "--quiet")
    assert "Traceback" not in ended.err
    assert victim.read_text() == "precious\n"


NOBODY = "~no-such-user/there"


@pytest.mark.parametrize(
    "words",
    [
        ["eval", NOBODY, "--run_name=r"],
        ["eval", "validate", "suite.yaml"],
        ["eval", "suite.yaml", f"--targets={NOBODY}", "--run_name=r"],
        ["batch", f"--dataset_file={NOBODY}", "--batch_size=1", "--run_name=r", "--model=simulated"],
        ["jobs", "spawn", NOBODY, "--instruction=x", "--model=simulated"],
        pytest.param(
            ["mcp", f"--roots={NOBODY}"],
            marks=pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra mcp"),
        ),
    ],
)
def test_a_path_in_the_home_of_nobody_is_a_path_where_nothing_is(tmp_path: Path, words: list[str]) -> None:
    """On a command line and in an eval file, as in a shell."""
    suite = {
        "targets": {"t": {"provider": "cli", "command": "echo hi", "cwd": NOBODY}},
        "workspace": {"before_all": {"script": ["true"], "cwd": NOBODY}},
        "tests": [{"id": "a", "input": "x", "assert": [{"type": "contains", "value": "hi"}]}],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    ended = run(*words, folder=tmp_path)
    assert ended.code == 2, ended.err
    assert NOBODY in ended.out + ended.err
    assert "internal error" not in ended.err


def test_a_path_that_is_too_long_is_reported_as_one(tmp_path: Path) -> None:
    """On a command line and in an eval file, in one line, as bad input."""
    name = "x" * 5000
    test = {"id": "a", "input": "x", "assert": [{"type": "contains", "value": "x"}]}
    targets = {"t": {"provider": "cli", "command": "echo x", "cwd": name}}
    (tmp_path / "suite.yaml").write_text(json.dumps({"targets": targets, "tests": [test]}))
    for words in (["eval", "suite.yaml", "--run_name=r"], ["eval", "validate", name], ["resume", name]):
        ended = run(*words, folder=tmp_path)
        assert ended.code == 2, ended.err
        assert "the path is too long" in one_line(ended)
        assert len(ended.err) < 1000
