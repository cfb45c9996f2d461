"""SIGKILL at random instants for runs of evaluations: no finished target is asked again, no call of a judge is paid twice, no batch
command whose records are all there is invoked again, and the results are those of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import is_made
from tests.crash.rounds import slow_server
from tests.support.commands import Command, SimulatedProcess, run

pytestmark = pytest.mark.slow

TESTS = 10
WORKERS = 4
KILLS = 3
MOST_SESSIONS = 3 * KILLS
LOG = """\
    import json, os, sys, time
    from pathlib import Path
    def log(name, line):
        with open(Path(__file__).with_name(name), "a") as file:
            file.write(line + "\\n")
"""
ONE = (
    LOG
    + """\
    log("targets.log", sys.argv[1])
    time.sleep(0.08)
    Path(sys.argv[2]).write_text("answer of " + sys.argv[1])
"""
)
BULK = (
    LOG
    + """\
    ids = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
    log("targets.log", " ".join(ids))
    with open(sys.argv[1], "w") as out:
        for each in ids:
            time.sleep(0.06)
            out.write(json.dumps({"id": each, "text": "answer of " + each}) + "\\n")
            out.flush()
    time.sleep(0.3)
"""
)
JUDGE = (
    LOG
    + """\
    answer = json.load(sys.stdin)["answer"]
    log("judges.log", answer.split()[-1])
    time.sleep(0.05)
    print(json.dumps({"score": 1 if answer.startswith("answer of") else 0, "hits": [answer]}))
"""
)
COMMANDS = {
    "each": "command: python3 one.py {EVAL_ID} {OUTPUT_FILE}",
    "all": "command: python3 bulk.py {OUTPUT_FILE}\n    provider_batching: true",
}
Done = set[tuple[str, str, str]]
"""Of steps that are recorded: the test, the scope and the kind."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedProcess]:
    with slow_server(tmp_path_factory.mktemp("judge")) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with an eval file, its scripts and its runs."""

    folder: Path

    @classmethod
    def made(cls, folder: Path, kind: str, base_url: str) -> Site:
        folder.mkdir()
        lines = [
            f"targets:\n  - name: tool\n    provider: cli\n    {COMMANDS[kind]}",
            f"  - {{name: judge, provider: model, model: simulated, base_url: '{base_url}'}}",
            "execution: {target: tool}",
            "assert:",
            "  - {type: code_judge, name: script, script: [python3, judge.py]}",
            "  - {type: llm_judge, name: model}",
            "tests:",
            *(f"  - {{id: t{number}, criteria: It answers {number}, input: say {number}}}" for number in range(TESTS)),
        ]
        (folder / "suite.yaml").write_text("\n".join(lines) + "\n")
        for name, script in (("one", ONE), ("bulk", BULK), ("judge", JUDGE)):
            (folder / f"{name}.py").write_text(dedent(script))
        return cls(folder)

    @property
    def run(self) -> Path:
        return self.folder / "data" / "r"

    def words(self) -> list[str]:
        given = {"data_dir": self.folder / "data", "run_name": "r", "judge_target": "judge", "workers": WORKERS}
        options = [f"--{name}={value}" for name, value in given.items()]
        return ["eval", str(self.folder / "suite.yaml"), *options, "--resume", "--quiet", "--fail_on=error"]

    def logged(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def done(self) -> Done:
        if not is_made(self.run):
            return set()
        with closing(JournalReader(self.run)) as reader:
            return {
                (row.payload["test"]["id"], step.scope, step.kind)
                for row in reader.items()
                for step in reader.steps(row.number, row.attempt)
            }

    def in_work(self) -> int:
        if not is_made(self.run):
            return 0
        with closing(JournalReader(self.run)) as reader:
            return sum(row.state == "running" for row in reader.items())

    def written(self) -> set[str]:
        """The tests whose records a batch command has written so far."""
        found = set()
        for path in self.run.glob("targets/*/invocation_*/output.jsonl"):
            whole = path.read_bytes().rpartition(b"\n")[0]
            found |= {json.loads(line)["id"] for line in whole.splitlines()}
        return found

    def results(self) -> list[dict[str, Any]]:
        """What the run came to, without times."""
        lines = (self.run / "results.jsonl").read_bytes().splitlines()
        kept = ("test_id", "target", "status", "score", "answer", "scores", "hits", "misses", "error")
        return [{name: json.loads(line).get(name) for name in kept} for line in lines]


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_killed_run_asks_nothing_twice(kind: str, tmp_path: Path, server: SimulatedProcess) -> None:
    calm = Site.made(tmp_path / "calm", kind, server.base_url)
    assert run(*calm.words()).code == 0
    place = Site.made(tmp_path / "struck", kind, server.base_url)
    instants, start = random.Random(f"eval/{kind}"), server.count()
    finished: list[tuple[Done, Counter[str], Counter[str]]] = []
    written: list[tuple[set[str], int]] = []
    kills = allowed = 0
    for _ in range(MOST_SESSIONS):
        with Command(*place.words()) as command:
            if kills < KILLS and not ended_before(command, place, instants):
                allowed += place.in_work()
                assert command.kill().code != 0
                kills += 1
                time.sleep(0.2)  # what ran on has ended, or logged that it began
                finished.append(
                    (place.done(), Counter(place.logged("targets.log")), Counter(place.logged("judges.log")))
                )
                written.append((place.written(), len(place.logged("targets.log"))))
                continue
            ended = command.wait()
        assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err
        break
    assert kills >= 2
    assert place.results() == calm.results()
    targets, judges = Counter(place.logged("targets.log")), Counter(place.logged("judges.log"))
    for done, targets_then, judges_then in finished:
        for test, scope, step in done:
            if (scope, step) == ("", "target"):
                assert targets[test] == targets_then[test], f"{test} was asked again"
            if scope == "grader-0":
                assert judges[test] == judges_then[test], f"{test} was judged again by the script"
    asked = [each.digest for each in server.asked(start)]
    assert len(set(asked)) == TESTS
    assert len(asked) <= TESTS + allowed
    if kind == "all":
        check_invocations(place, written)


def check_invocations(place: Site, written: list[tuple[set[str], int]]) -> None:
    """No test is asked again whose record was written, so that no command is invoked when all were."""
    invocations = place.logged("targets.log")
    for records, before in written:
        for later in invocations[before:]:
            assert not records & set(later.split()), "a test was asked again whose record was there"
        assert len(records) < TESTS or len(invocations) == before


def ended_before(command: Command, place: Site, instants: random.Random) -> bool:
    """Let the run do something, and a little more; whether it ended meanwhile."""
    wanted = len(place.logged("judges.log")) + instants.randint(1, 3)
    busy = command.wait_until(lambda: len(place.logged("judges.log")) >= wanted or place.logged("targets.log")[wanted:])
    return not busy or command.ends_within(instants.uniform(0.0, 0.15))


def test_a_batch_command_whose_records_are_all_written_is_not_invoked_again(
    tmp_path: Path, server: SimulatedProcess
) -> None:
    place = Site.made(tmp_path / "written", "all", server.base_url)
    with Command(*place.words()) as command:
        assert command.wait_until(lambda: len(place.written()) == TESTS, pause=0.002)
        command.kill()
    assert len(place.logged("targets.log")) == 1
    ended = run(*place.words())
    assert ended.code == 0, ended.err
    assert len(place.logged("targets.log")) == 1
    assert [each["status"] for each in place.results()].count("error") == 0


MANY = 800
AT_ONCE = (
    LOG
    + """\
    ids = open(os.environ["MANYHANDS_TEST_IDS_FILE"]).read().split()
    log("targets.log", f"{len(ids)} tests")
    with open(sys.argv[1], "w") as out:
        out.writelines(json.dumps({"id": each, "text": "answer of " + each}) + "\\n" for each in ids)
"""
)


def is_begun(run: Path) -> bool:
    """The run folder is there, and what is to be done is being written down."""
    return (run / "run.db").exists()


def is_answered(run: Path) -> bool:
    """All records are written, and most of them not graded."""
    return any(path.read_bytes().count(b"\n") == MANY for path in run.glob("targets/*/invocation_*/output.jsonl"))


def is_exporting(run: Path) -> bool:
    return any(run.glob(".results.jsonl.*"))


@pytest.mark.parametrize("instant", [is_begun, is_answered, is_exporting], ids=lambda each: each.__name__)
def test_a_run_that_is_killed_at_a_turn_loses_nothing(instant: Callable[[Path], bool], tmp_path: Path) -> None:
    (tmp_path / "bulk.py").write_text(dedent(AT_ONCE))
    command_line = f"{sys.executable} bulk.py {{OUTPUT_FILE}}"
    target = {"provider": "cli", "command": command_line, "provider_batching": True}
    tests = (
        f"  - {{id: t{number}, input: x, assert: [{{type: equals, value: answer of t{number}}}]}}"
        for number in range(MANY)
    )
    (tmp_path / "suite.yaml").write_text(
        "\n".join([f"targets: {json.dumps({'tool': target})}", "tests:", *tests]) + "\n"
    )
    words = ["eval", "suite.yaml", "--run_name=r", "--resume", "--quiet", "--output=report.xml"]
    run_folder = tmp_path / "data" / "r"
    with Command(*words, folder=tmp_path) as command:
        assert command.wait_until(lambda: instant(run_folder), pause=0.0005)
        assert command.kill().code != 0
    ended = run(*words, folder=tmp_path)
    assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err
    results = [json.loads(line) for line in (run_folder / "results.jsonl").read_bytes().splitlines()]
    assert [(each["test_id"], each["status"]) for each in results] == [(f"t{n}", "passed") for n in range(MANY)]
    asked = (tmp_path / "targets.log").read_text().splitlines()
    assert asked == [f"{MANY} tests"]
    assert (tmp_path / "report.xml").read_text().count("<testcase") == MANY
    assert not [*run_folder.glob(".*.new"), *tmp_path.glob(".*.new")]
