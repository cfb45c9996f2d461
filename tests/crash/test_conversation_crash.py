"""SIGKILL at random instants for tests that depend on others and for conversations: no answered turn is asked again, no judgement is paid
twice, nothing begins before what it depends on, and the results are those of a run that nobody disturbed."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.folders import is_made
from tests.crash.rounds import slow_server
from tests.support.commands import Command, SimulatedProcess, run

pytestmark = pytest.mark.slow

TALKS = 5
TURNS = 3
KILLS = 4
MOST_SESSIONS = 3 * KILLS
TARGET = """\
    import sys, time
    from pathlib import Path
    name, output = sys.argv[1:]
    log = Path(__file__).with_name("targets.log")
    with log.open("a") as file:
        file.write("begin " + name + "\\n")
    time.sleep(0.05)
    if name == "broken":
        sys.exit(3)
    Path(output).write_text("answer of " + name)
    with log.open("a") as file:
        file.write("end " + name + "\\n")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with slow_server(tmp_path_factory.mktemp("judge")) as server:
        yield server


class Site:
    """A folder with an eval file and its run: talks, each of which depends on the one before and is judged turn by turn."""

    def __init__(self, folder: Path, base_url: str) -> None:
        folder.mkdir()
        (folder / "target.py").write_text(dedent(TARGET))
        tool = {"provider": "cli", "command": [sys.executable, "target.py", "{EVAL_ID}", "{OUTPUT_FILE}"]}
        judge = {"provider": "model", "model": "simulated", "base_url": base_url}
        tests = [self.talk(number) for number in range(TALKS)]
        grader = {"type": "contains", "value": "x"}
        tests += [
            {"id": "late", "input": "x", "depends_on": ["broken", "talk0"], "assert": [grader]},
            {"id": "broken", "input": "x", "assert": [grader]},
        ]
        suite = {"targets": {"tool": tool, "judge": judge}, "execution": {"target": "tool"}, "tests": tests[::-1]}
        (folder / "suite.yaml").write_text(json.dumps(suite))
        self.folder = folder
        self.run = folder / "data" / "r"

    @staticmethod
    def talk(number: int) -> dict[str, Any]:
        ask = {"type": "llm_judge", "prompt": f"How good is this of {number}: {{{{answer}}}}?"}
        turns = [{"input": f"say {number} {each}", "assert": [ask]} for each in range(TURNS)]
        before = {"depends_on": [f"talk{number - 1}"]} if number % 2 else {}
        return {"id": f"talk{number}", "mode": "conversation", "turns": turns, **before}

    def words(self) -> list[str]:
        options = [f"--data_dir={self.folder / 'data'}", "--run_name=r", "--judge_target=judge", "--workers=3"]
        return ["eval", str(self.folder / "suite.yaml"), *options, "--resume", "--quiet", "--fail_on=never"]

    def logged(self) -> list[str]:
        path = self.folder / "targets.log"
        return path.read_text().splitlines() if path.exists() else []

    def recorded(self) -> set[str]:
        """The turns and tests whose answers are on disk."""
        if not is_made(self.run):
            return set()
        with closing(JournalReader(self.run)) as reader:
            return {
                step.request["test"]
                for row in reader.items()
                for step in reader.steps(row.number, row.attempt)
                if step.kind == "target"
            }

    def in_work(self) -> int:
        if not is_made(self.run):
            return 0
        with closing(JournalReader(self.run)) as reader:
            return sum(row.state == "running" for row in reader.items())

    def results(self) -> list[dict[str, Any]]:
        """What the run came to, without times."""
        kept = ("test_id", "status", "score", "answer", "error", "failed_dependencies")
        records = [json.loads(line) for line in (self.run / "results.jsonl").read_bytes().splitlines()]
        return [
            {name: record.get(name) for name in kept}
            | {"turns": [(turn["answer"], turn["score"]) for turn in record.get("turns", ())]}
            for record in records
        ]


def test_killed_conversations_and_dependencies_end_as_undisturbed_ones(
    tmp_path: Path, server: SimulatedProcess
) -> None:
    calm = Site(tmp_path / "calm", server.base_url)
    assert run(*calm.words()).code == 0
    place, instants, start = Site(tmp_path / "struck", server.base_url), random.Random("talks"), server.count()
    finished: list[tuple[set[str], Counter[str]]] = []
    kills = allowed = 0
    for _ in range(MOST_SESSIONS):
        with Command(*place.words()) as command:
            wanted = len(place.logged()) + instants.randint(2, 8)
            busy = command.wait_until(lambda wanted=wanted: len(place.logged()) >= wanted)  # type: ignore[misc]
            if kills < KILLS and busy and not command.ends_within(instants.uniform(0.0, 0.15)):
                allowed += place.in_work()
                assert command.kill().code != 0
                kills += 1
                finished.append((place.recorded(), Counter(place.logged())))
                continue
            ended = command.wait()
        assert (ended.code, "Traceback" in ended.err) == (0, False), ended.err
        break
    assert kills >= 2
    assert place.results() == calm.results()
    assert {each["test_id"]: each["status"] for each in place.results()}["late"] == "skipped"
    log = place.logged()
    for recorded, then in finished:
        for name in recorded:
            assert log.count(f"begin {name}") == then[f"begin {name}"], f"{name} was asked again"
    for number in range(1, TALKS, 2):
        last, first = f"end talk{number - 1}/turn-{TURNS}", f"begin talk{number}/turn-1"
        assert log.index(last) < log.index(first)
    asked = [each.digest for each in server.asked(start)]
    assert len(set(asked)) == TALKS * TURNS
    assert len(asked) <= TALKS * TURNS + allowed
