"""``make compat-test DIR=…``: whether the eval files of a tree load, run and score as their authors meant.

The tree is copied, so that nothing in it changes. Every eval file in it is checked (``manyhands eval validate``), evaluated, and its
scores are held against its own baseline, ``NAME.baseline.jsonl`` beside it: lines of results as AgentV writes them. Targets that need a
vendor (a model, somebody's coding agent) are replaced by simulated models, those that run here (commands, mocks, files of answers) are
not. Only what does not depend on a model is compared: the scores of deterministic graders, where the answer is a command's, a mock's, or
stands in the baseline itself.

``AGENTV_SDK``: a folder with ``node_modules``, in which graders written in TypeScript find ``@agentv/sdk``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

COMMAND = (sys.executable, "-m", "manyhands")
SECONDS = 300
"""The time limit of one command."""
_KEYS = frozenset(("tests", "eval_cases", "evalcases", "prompts"))
"""What makes a mapping an eval file."""
_ENDINGS = (".yaml", ".yml")
_LEFT_OUT = frozenset(("node_modules", ".git", "__pycache__", ".venv"))
_LOCAL = frozenset(("cli", "mock", "replay", "python"))
"""Kinds of targets that run here."""
_CHOICES = ("AGENT_TARGET", "LLM_TARGET", "GRADER_TARGET")
"""Variables by which targets files of AgentV choose the target that is meant."""
_OURS = "simulated"
_JUDGED = frozenset(("llm-grader", "llm_judge", "rubrics", "rubric", "llm-rubric", "agent-rubric", "agent_judge"))
_TOLERANCE = 1e-9


@dataclass(slots=True)
class Row:
    """What came of one eval file."""

    file: str
    loads: str = ""
    """``yes``, or the first problem."""
    runs: str = ""
    """``yes``, with what was replaced, or why not."""
    baseline: str = ""
    """``equal``, how many scores differ, or why nothing is compared; empty without a baseline."""
    notes: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return self.loads == "yes" and self.runs.startswith("yes") and "differ" not in self.baseline


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    output: str
    errors: str

    @property
    def problem(self) -> str:
        """Its first line that says what is wrong."""
        lines = [line for line in (self.errors + "\n" + self.output).splitlines() if line.strip()]
        found = next((line for line in lines if not line.startswith(("note:", "✓", "✗"))), "")
        return found or f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Site:
    """A copy of the tree, and a folder for runs."""

    tree: Path
    runs: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> Ended:
        """A command of manyhands, in the tree."""
        try:
            done = subprocess.run(
                [*COMMAND, *words],
                cwd=self.tree,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ended(-1, "", f"took more than {SECONDS} s")
        return Ended(done.returncode, done.stdout, done.stderr)


def survey(tree: Path, at_once: int = 2) -> list[Row]:
    """A row for each eval file below a folder, by path. ``at_once``: files that are looked at at the same time."""
    with tempfile.TemporaryDirectory(prefix="manyhands-compat-") as name:
        site = _site(tree, Path(name))
        files = sorted(eval_files(site.tree))
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda file: look_at(site, file), files))


def _site(tree: Path, folder: Path) -> Site:
    copy = folder / "tree"
    shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (copy / ".git").mkdir()  # so that it counts as the root from which files are looked for
    (copy / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    sdk = os.environ.get("AGENTV_SDK")
    if sdk:
        (copy / "node_modules").symlink_to(Path(sdk).absolute() / "node_modules")
    runs = folder / "runs"
    runs.mkdir()
    environment = dict(os.environ) | dict.fromkeys(_CHOICES, _OURS) | {"HOME": str(folder)}
    return Site(copy, runs, environment)


def eval_files(tree: Path) -> Iterator[Path]:
    """The eval files below a folder: YAML whose top level is a mapping with tests."""
    for folder, inner, names in os.walk(tree):
        inner[:] = [name for name in inner if name not in _LEFT_OUT]
        for name in names:
            path = Path(folder, name)
            if path.suffix in _ENDINGS and not _KEYS.isdisjoint(_content(path)):
                yield path


def _content(path: Path) -> Mapping[str, Any]:
    try:
        value = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def look_at(site: Site, file: Path) -> Row:
    """What comes of an eval file of the tree."""
    name = str(file.relative_to(site.tree))
    row = Row(name)
    checked = site.run("eval", "validate", name)
    row.notes = [line for line in checked.errors.splitlines() + checked.output.splitlines() if line.startswith("note:")]
    row.loads = "yes" if checked.code == 0 else checked.problem
    folder = site.runs / name.replace("/", "__")
    folder.mkdir()
    replaced = _evaluated(site, name, folder, row) if checked.code == 0 else ()
    baseline = file.with_name(file.name.removesuffix(file.suffix) + ".baseline.jsonl")
    if baseline.is_file():
        row.baseline = _compared(site, name, folder, _lines(baseline), replaced, ran=row.runs.startswith("yes"))
    return row


# --- Runs


def _evaluated(site: Site, name: str, folder: Path, row: Row) -> tuple[str, ...]:
    """Evaluate a file, with what needs a vendor replaced; the names of what was."""
    targets, replaced = _targets(site.tree, site.tree / name)
    path = folder / "targets.yaml"
    path.write_text(json.dumps({"targets": targets}))
    ended = site.run("eval", name, *_options(folder, "run"))
    if not (folder / "run" / "eval_summary.json").is_file():
        row.runs = ended.problem
        return replaced
    results = _lines(folder / "run" / "results.jsonl")
    problems = [each for each in results if each["status"] in ("error", "invalid")]
    if problems and len(problems) == len(results):
        row.runs = f"{len(problems)} of {len(results)} tests: {problems[0].get('error', '')}"
        return replaced
    broken = sum(each["status"] == "grader_error" for each in results)
    used = [each for each in replaced if each in {line["target"] for line in results}]
    said = [
        f"{', '.join(used)} replaced" if used else "",
        f"graders broke in {broken} of {len(results)} tests" if broken else "",
        f"{len(problems)} of {len(results)} tests are errors ({problems[0].get('error', '')})" if problems else "",
    ]
    row.runs = "yes" + "".join(f"; {each}" for each in said if each)
    return replaced


def _targets(tree: Path, file: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The targets that a file may name: those that run here as they are, others as simulated models; and the names of these."""
    known: dict[str, dict[str, Any]] = {}
    for folder in [file.parent, *file.parent.parents]:
        path = folder / ".agentv" / "targets.yaml"
        if path.is_file():
            for each in _content(path).get("targets") or ():
                known.setdefault(each["name"], each)
        if folder == tree:
            break
    ours = {"provider": "model", "model": "simulated"}
    content = _content(file)
    names = dict.fromkeys([_OURS, "default", *known, *_named(content), *_named(_listed(file, content.get("tests")))])
    kept = {
        name for name in known if str(known[name].get("provider", "")).lower() in _LOCAL or "command" in known[name]
    }
    found = [
        {**known[name], **({"grader_target": _OURS} if "grader_target" in known[name] else {})}
        if name in kept
        else {"name": name, **ours}
        for name in names
    ]
    return found, tuple(name for name in names if name not in kept)


def _listed(file: Path, tests: Any) -> dict[str, Any]:
    """The tests of the JSON Lines file that an eval file names."""
    path = file.parent / str(tests)
    return {"tests": _lines(path)} if isinstance(tests, str) and path.suffix == ".jsonl" else {}


def _named(content: Any) -> Iterator[str]:
    """The names of targets in an eval file."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if key in ("target", "use_target", "grader_target", "judge_target") and isinstance(value, str):
            yield from () if "${{" in value else (value,)
        elif key == "targets" and isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))
        for each in value if isinstance(value, list) else (value,):
            yield from _named(each)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.is_file() else []


# --- Baselines


def _compared(
    site: Site, name: str, folder: Path, expected: Sequence[dict[str, Any]], replaced: Iterable[str], *, ran: bool
) -> str:
    """How the scores of a file's run compare with its baseline."""
    if not ran:
        return "not compared, as it does not run"
    live = [each for each in expected if each["target"] not in replaced and not _is_dry(each) and "answer" not in each]
    given = [each for each in expected if isinstance(each.get("answer"), str)]
    dry = [each for each in expected if _is_dry(each) and "answer" not in each]
    found = [(live, folder / "run")] if live else []
    if given:
        found.append((given, _graded(site, name, folder, given)))
    if dry:
        site.run("eval", name, "--dry_run", *_options(folder, "dry"))
        found.append((dry, folder / "dry"))
    equal, differing = 0, list[str]()
    for rows, run in found:
        ours = {each["test_id"]: each for each in _lines(run / "results.jsonl")}
        for row in rows:
            for what, theirs, mine in _scores(row, ours.get(row["test_id"])):
                if mine is not None and abs(theirs - mine) <= _TOLERANCE:
                    equal += 1
                else:
                    differing.append(f"{what}: {theirs:g} there, {'none' if mine is None else f'{mine:g}'} here")
    if differing:
        return f"{len(differing)} of {equal + len(differing)} scores differ: {'; '.join(differing[:3])}"
    return f"equal ({equal} scores)" if equal else "nothing to compare: a model's answers, which it does not hold"


def _options(folder: Path, run: str) -> tuple[str, ...]:
    own = (
        f"--run_name={run}",
        f"--data_dir={folder}",
        f"--targets={folder / 'targets.yaml'}",
        f"--judge_target={_OURS}",
    )
    return (*own, "--fail_on=never", "--quiet", "--allow_ungraded")


def _graded(site: Site, name: str, folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The run in which the answers of a baseline were graded."""
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps({"id": each["test_id"], "text": each["answer"]}) + "\n" for each in rows))
    site.run("eval", name, f"--from_output={path}", *_options(folder, "given"))
    return folder / "given"


def _is_dry(row: Mapping[str, Any]) -> bool:
    return str(row["target"]).endswith("-dry-run")


def _scores(theirs: Mapping[str, Any], ours: Mapping[str, Any] | None) -> Iterator[tuple[str, float, float | None]]:
    """What of a test's result does not depend on a model: a name, the baseline's score, and ours."""
    if theirs.get("error"):
        failed = ours is not None and ours["status"] in ("error", "grader_error")
        yield f"{theirs['test_id']} (an error there)", 0.0, 0.0 if failed else (ours or {}).get("score")
        return
    graders = theirs.get("scores") or []
    own = {str(each["name"]): each.get("score") for each in (ours or {}).get("scores") or []}
    fixed = [each for each in graders if not _is_judged(each)]
    by_place = list((ours or {}).get("scores") or [])
    for index, each in enumerate(graders):
        if each in fixed:
            mine = own.get(str(each["name"]))
            if mine is None and index < len(by_place):  # names that both programs make up differ
                mine = by_place[index].get("score")
            yield f"{theirs['test_id']} {each['name']}", each["score"], mine
    if graders and len(fixed) == len(graders):
        yield str(theirs["test_id"]), theirs["score"], None if ours is None else ours.get("score")


def _is_judged(score: Mapping[str, Any]) -> bool:
    return str(score.get("type")) in _JUDGED or any(map(_is_judged, score.get("scores") or ()))


# --- What a person sees


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| Eval file | Loads | Runs | Baseline |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (row.file, row.loads, row.runs or "—", row.baseline or "—")
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def counted(rows: Sequence[Row]) -> str:
    """How many files load, run, and score as their baselines say."""
    loaded = sum(row.loads == "yes" for row in rows)
    ran = sum(row.runs.startswith("yes") for row in rows)
    with_baseline = [row for row in rows if row.baseline]
    equal = sum(row.baseline.startswith("equal") for row in with_baseline)
    differing = sum("differ" in row.baseline for row in with_baseline)
    return (
        f"{len(rows)} eval files: {loaded} load, {ran} run; {len(with_baseline)} baselines: {equal} equal, "
        f"{differing} differ, {len(with_baseline) - equal - differing} without anything to compare"
    )


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 0 if every file loads, runs and scores as its baseline says."""
    parser = argparse.ArgumentParser(prog="make compat-test", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the tree of eval files")
    parser.add_argument("--table", type=Path, help="also write the table to this file")
    parser.add_argument("--at_once", type=int, default=2, help="files that are looked at at the same time")
    given = parser.parse_args(words)
    if not given.folder.is_dir():
        parser.error(f"{given.folder}: there is no such folder")
    rows = survey(given.folder, given.at_once)
    print(table(rows) + "\n" + counted(rows))
    if given.table is not None:
        given.table.write_text(table(rows))
    return 0 if rows and all(row.well for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
