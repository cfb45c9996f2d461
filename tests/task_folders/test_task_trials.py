"""A task in a real sandbox: what is put there, its solution, artifacts, the verifier; and crashes in the middle of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from manyhands.agents.trajectory import fold
from manyhands.agents.worlds.world import World
from manyhands.core.errors import ItemError
from manyhands.core.failures import Cause
from manyhands.core.outcomes import StopReason
from manyhands.sandboxes.bubblewrap.backend import BubblewrapBackend
from manyhands.sandboxes.protocol import SandboxBackend, SandboxLimits, SandboxRequest
from manyhands.sandboxes.remote.backend import RemoteBackend
from manyhands.sandboxes.remote.driver import RUN
from manyhands.task_folders.agents import TaskProgram
from manyhands.task_folders.reading import read_task
from manyhands.task_folders.rules import TaskRules
from manyhands.task_folders.trial import OWN_FOLDERS, TaskTrial, Verified
from manyhands.testing.context import Crash, CrashPoint, MemoryContext, MemoryJournal
from manyhands.testing.fake_worlds.driver import FakeDriver, fake_service
from tests.support.made_tasks import make_task

pytestmark = pytest.mark.skipif(BubblewrapBackend().unavailable() is not None, reason="bubblewrap can't be used here")

CHECK = """#!/bin/bash
if [ "$(cat hello.txt 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
echo "checked in $PWD with $MODE"
exit 3
"""
SOLVE = 'echo "$WORD" > hello.txt\n'


class Trial:
    """One attempt at a task by its own solution or a command, on bubblewrap."""

    def __init__(
        self,
        folder: Path,
        tmp: Path,
        environ: Mapping[str, str] | None = None,
        *,
        end_processes: bool = False,
        apart: SandboxBackend | None = None,
    ) -> None:
        self.task = read_task(folder)
        self.tmp = tmp
        self.environ = environ or {}
        self.end_processes = end_processes
        self.apart = apart or BubblewrapBackend()
        self.journal: MemoryJournal = {}
        self.context = MemoryContext()

    async def run(
        self, *, command: str | None = None, crash: CrashPoint | None = None, seconds: float | None = None
    ) -> Verified:
        context = MemoryContext(self.journal, crash=crash, workspace=self.tmp / "w")
        self.context = context
        backend = BubblewrapBackend()
        limits = TaskRules().limits(self.task, SandboxLimits())

        def request() -> SandboxRequest:
            environment = self.task.config.environment
            return SandboxRequest(self.tmp / "w", "run", cwd=environment.workdir, limits=limits, folders=OWN_FOLDERS)

        async with World(context, backend, request) as world:
            trial = TaskTrial(
                self.task, context, world, self.tmp / "run", self.environ, self.apart, request, self.end_processes
            )
            await trial.prepare()
            self.result = await TaskProgram(command, self.environ).run(context, world, self.task, seconds)
            artifacts = await trial.collect()
            return await trial.verify(artifacts)

    @property
    def kept(self) -> Path:
        return self.tmp / "run" / "artifacts" / "1-1"


def solved(folder: Path, **more: object) -> Path:
    toml = '[verifier.env]\nMODE = "${TASK_MODE:-plain}"\n[solution.env]\nWORD = "hello"\n'
    return make_task(folder, **{"toml": toml, "test": CHECK, "solve": SOLVE, **more})  # type: ignore[arg-type]


async def test_the_solution_gets_the_reward_and_an_exit_code_is_not_looked_at(tmp_path: Path) -> None:
    trial = Trial(solved(tmp_path / "t"), tmp_path)
    verified = await trial.run()
    assert (verified.rewards, verified.error, verified.exit_code) == ({"reward": 1.0}, None, 3)
    assert verified.output == "checked in /workspace with plain\n"
    assert trial.result.stop_reason is StopReason.ANSWERED
    assert fold(trial.context.steps) == trial.result.messages
    assert (trial.kept / "logs/verifier/test-stdout.txt").read_text() == verified.output
    assert oct((tmp_path / "run" / "artifacts").stat().st_mode)[-3:] == "700"


async def test_a_command_that_does_nothing_gets_no_reward(tmp_path: Path) -> None:
    trial = Trial(solved(tmp_path / "t"), tmp_path, {"TASK_MODE": "strict"})
    verified = await trial.run(command="cat; echo {instruction} | wc -c; cat {instruction_file}")
    assert verified.rewards == {"reward": 0.0}
    assert verified.output.endswith("with strict\n")
    asked, said = trial.result.messages
    assert asked["content"] == "Write hello to hello.txt."
    assert said["content"] == "Write hello to hello.txt.26\nWrite hello to hello.txt."


async def test_a_command_is_stopped_at_its_time_limit_and_its_work_is_verified_all_the_same(tmp_path: Path) -> None:
    trial = Trial(solved(tmp_path / "t"), tmp_path)
    verified = await trial.run(command="echo hello > hello.txt; sleep 30", seconds=0.5)
    assert trial.result.stop_reason is StopReason.TIME_LIMIT
    assert verified.rewards == {"reward": 1.0}
    again = await trial.run(command="echo hello > hello.txt; sleep 30", seconds=1000)
    assert (again, trial.context.performed) == (verified, 0)


async def test_a_command_that_fails_is_named_so_and_verified(tmp_path: Path) -> None:
    trial = Trial(solved(tmp_path / "t"), tmp_path)
    assert (await trial.run(command="echo hello > hello.txt; exit 7")).rewards == {"reward": 1.0}
    assert (trial.result.stop_reason, trial.result.partial) == (StopReason.AGENT_ERROR, True)


async def test_what_a_known_program_prints_becomes_the_conversation(tmp_path: Path) -> None:
    events = [
        {"type": "system", "subtype": "init", "session_id": "s"},
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]},
        },
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}]}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "Done."}]}},
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": "Done.",
            "total_cost_usd": 0.5,
            "usage": {"input_tokens": 10, "output_tokens": 5},
            "session_id": "s",
        },
    ]
    printed = "\n".join(map(json.dumps, events))
    folder = solved(tmp_path / "t", files={"environment/said": printed})
    trial = Trial(folder, tmp_path)
    await trial.run(command="cat said")
    roles = [message["role"] for message in trial.result.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert trial.result.messages[2]["content"] == "a.txt"
    assert trial.result.usage.cost == 0.5
    assert trial.result.tool_uses[0].name == "Bash"


async def test_files_of_the_environment_are_in_the_working_directory(tmp_path: Path) -> None:
    toml = '[environment]\nworkdir = "/app"\n'
    test = "#!/bin/bash\ncat data/x.txt > /logs/verifier/reward.txt; pwd\n"
    files = {"environment/data/x.txt": "0.5", "environment/README": "x"}
    verified = await Trial(make_task(tmp_path / "t", toml=toml, test=test, files=files), tmp_path).run(command="true")
    assert (verified.rewards, verified.output) == ({"reward": 0.5}, "/app\n")


async def test_rewards_of_the_agent_are_removed_before_the_verifier_runs(tmp_path: Path) -> None:
    task = make_task(tmp_path / "t", test="#!/bin/bash\ntrue\n")
    cheat = "echo 1 > /logs/verifier/reward.txt; echo 1 > /logs/verifier/reward.json"
    verified = await Trial(task, tmp_path).run(command=cheat)
    assert verified.rewards is None
    assert "neither" in str(verified.error)


HOSTILE = {
    "a loop that has shed all": "(setsid sh -c 'while :; do echo 1 >/logs/verifier/reward.txt; echo 1 >/logs/verifier/reward.json; "
    "echo true >/tests/test.sh; done' >/dev/null 2>&1 &) ; sleep 0.3",
    "a loop that waits for the tests": "(setsid sh -c 'until [ -e /tests/test.sh ]; do :; done; cp /tests/* .; "
    "echo 1 >/logs/verifier/reward.json' >/dev/null 2>&1 &)",
    "files in the way": "mkdir -p /logs/verifier/reward.json /tests/test.sh/x /logs/verifier/.deep; "
    "ln -s /workspace /logs/verifier/test-stdout.txt; "
    "echo 'echo 1 >/logs/verifier/reward.txt' >/tests/usercustomize.py; chmod 0 /tests/test.sh /logs/verifier",
    "links to its own": "mkdir -p mine; echo 1 >mine/reward.json; ln -s $PWD/mine/reward.json /logs/verifier/reward.json; "
    "ln -s $PWD/mine/out /tests/test.sh",
}


@pytest.mark.parametrize("attack", HOSTILE)
async def test_an_agent_reaches_neither_the_rewards_nor_the_tests_of_a_verifier(tmp_path: Path, attack: str) -> None:
    test = "#!/bin/bash\nsleep 0.3\nls -A /tests /logs/verifier\nls seen 2>/dev/null\necho 0 >/logs/verifier/reward.txt\nsleep 0.3\n"
    trial = Trial(make_task(tmp_path / "t", test=test), tmp_path, end_processes=True)
    verified = await trial.run(command=HOSTILE[attack])
    assert (verified.rewards, verified.error) == ({"reward": 0.0}, None)
    assert verified.output == "/logs/verifier:\ntest-stdout.txt\n\n/tests:\ntest.sh\n"
    assert verified.ended_processes == ("loop" in attack)


async def test_a_reward_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    test = "#!/bin/bash\nln -s $PWD/mine /logs/verifier/reward.json; echo 0 >/logs/verifier/reward.txt\n"
    verified = await Trial(make_task(tmp_path / "t", test=test), tmp_path).run(command="echo 1 > mine")
    assert verified.rewards is None
    assert "reward.json, or a folder on the way to it, is a link" in str(verified.error)


async def test_what_an_agent_left_running_goes_on_beside_the_verifier(tmp_path: Path) -> None:
    test = "#!/bin/bash\ncat served > /logs/verifier/reward.txt\n"
    trial = Trial(make_task(tmp_path / "t", toml="[verifier]\ntimeout_sec = 20\n", test=test), tmp_path)
    verified = await trial.run(command="mkfifo served; (echo 1 > served) >/dev/null 2>&1 &")
    assert (verified.rewards, verified.ended_processes) == ({"reward": 1.0}, False)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("echo yes > /logs/verifier/reward.txt", "not a number"),
        ("sleep 30", "took longer than 0.5 s"),
        ("mkdir /logs/verifier/reward.json", "can't be read"),
    ],
)
async def test_an_error_of_the_verifier_is_no_score(tmp_path: Path, test: str, words: str) -> None:
    toml = "[verifier]\ntimeout_sec = 0.5\n"
    verified = await Trial(make_task(tmp_path / "t", toml=toml, test=f"#!/bin/bash\n{test}\n"), tmp_path).run(
        command="true"
    )
    assert verified.rewards is None
    assert words in str(verified.error)


async def test_a_verifier_without_a_reward_runs_again_unless_the_agents_world_is_lost(tmp_path: Path) -> None:
    test = "#!/bin/bash\ncat made; [ -e /logs/verifier/made ] || rm made; (sleep 30 >/dev/null 2>&1 &)\n"
    trial = Trial(make_task(tmp_path / "t", test=test), tmp_path)
    for _ in range(2):
        verified = await trial.run(command="echo work > made")
        assert (verified.rewards, verified.output, trial.context.performed > 0) == (None, "work\n", True)
    live = Trial(trial.task.folder, tmp_path / "live")
    verified = await live.run(command="echo work > made; (sleep 30 >/dev/null 2>&1 &)")
    assert "only a new attempt verifies again" in str(verified.error)
    assert await live.run(command="echo work > made; (sleep 30 >/dev/null 2>&1 &)") == verified
    assert live.context.performed == 0


async def test_a_verifier_of_its_own_gets_the_declared_artifacts_alone(tmp_path: Path) -> None:
    toml = """
artifacts = ["result", {source = "/workspace/one.txt", destination = "kept/first.txt"}, "missing"]
[verifier]
environment_mode = "separate"
collect = [{command = "cp secret.txt /logs/artifacts/copied.txt"}]
"""
    test = """#!/bin/bash
find /workspace /logs/artifacts -type f | sort
cat /logs/artifacts/copied.txt one.txt result/deep/two.txt
[ -e secret.txt ] || echo 1 > /logs/verifier/reward.txt
"""
    trial = Trial(make_task(tmp_path / "t", toml=toml, test=test), tmp_path)
    make = "mkdir -p result/deep; echo 1 > one.txt; echo 2 > result/deep/two.txt; echo 3 > secret.txt; ln -s / result/l"
    verified = await trial.run(command=make)
    assert verified.rewards == {"reward": 1.0}
    assert verified.output.split("\n")[:3] == [
        "/logs/artifacts/copied.txt",
        "/workspace/one.txt",
        "/workspace/result/deep/two.txt",
    ]
    assert verified.output.endswith("\n3\n1\n2\n")
    manifest = json.loads((trial.kept / "manifest.json").read_text())
    assert [(each["destination"], each["status"]) for each in manifest] == [
        ("logs/artifacts", "ok"),
        ("result", "ok"),
        ("kept/first.txt", "ok"),
        ("missing", "failed"),
    ]
    assert manifest[1]["left_out"] == 1
    assert (trial.kept / "kept/first.txt").read_text() == "1\n"


async def test_of_a_verifiers_own_world_nothing_is_left_at_its_engine(tmp_path: Path) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n'
    for test in ("touch kept; echo 1 > /logs/verifier/reward.txt", "true"):
        with fake_service():
            driver = FakeDriver()
            task = make_task(tmp_path / test[:4] / "t", toml=toml, test=f"#!/bin/bash\n{test}\n")
            verified = await Trial(task, tmp_path / test[:4], apart=RemoteBackend(driver)).run(command="true")
            assert (verified.rewards is None) == (test == "true")
            assert await driver.listed({RUN: ""}) == []
            await driver.close()


async def test_a_verifiers_own_image_must_hold_its_tests(tmp_path: Path) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ndocker_image = "base:1"\n'
    verified = await Trial(make_task(tmp_path / "t", toml=toml), tmp_path).run(command="true")
    assert verified.rewards is None
    assert "own image has no /tests/test.sh" in str(verified.error)


async def test_a_health_check_is_repeated_until_it_succeeds_or_has_failed_too_often(tmp_path: Path) -> None:
    check = 'healthcheck = {command = "echo x >> n; [ $(wc -l < n) -ge 3 ] || { echo no; exit 1; }", interval_sec = 0.01, retries = %d}\n'
    good = make_task(
        tmp_path / "good", toml="[environment]\n" + check % 3, test="#!/bin/sh\nwc -l < n > /logs/verifier/reward.txt\n"
    )
    assert (await Trial(good, tmp_path / "a").run(command="true")).rewards == {"reward": 3.0}
    bad = make_task(tmp_path / "bad", toml="[environment]\n" + check % 2)
    with pytest.raises(ItemError, match=r"task bad: its health check failed \(exit code 1\): no") as caught:
        await Trial(bad, tmp_path / "b").run(command="true")
    assert caught.value.cause is Cause.SANDBOX_LOST


async def test_a_task_that_has_changed_since_it_was_planned_is_not_executed(tmp_path: Path) -> None:
    trial = Trial(folder := solved(tmp_path / "t"), tmp_path)
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(ItemError, match="has changed since the run was planned"):
        await trial.run()


COUNTED = """#!/bin/bash
echo run >> verified
wc -l < verified > /logs/verifier/reward.txt
wc -l < worked > worked.lines
[ "$(cat worked.lines)" = 1 ] || echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("when", ["before_recording", "after_recording"])
async def test_what_a_crash_cuts_off_is_undone_and_done_again_as_a_whole(tmp_path: Path, step: int, when: str) -> None:
    trial = Trial(make_task(tmp_path / "t", test=COUNTED), tmp_path)
    command = "echo once >> worked"
    with pytest.raises(Crash):
        await trial.run(command=command, crash=CrashPoint(step, when))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        verified = await trial.run(command=command)
    assert verified.rewards == {"reward": 1.0}
    recorded = [kept for kept in trial.journal.values() if kept.request.get("do") == "verify"]
    assert len(recorded) == 1
    assert await trial.run(command=command) == verified
    assert trial.context.performed == 0


async def test_what_an_agent_leaves_as_artifacts_does_not_end_a_run_or_fill_the_disk(tmp_path: Path) -> None:
    name = "d" * 200
    deep = f"for i in $(seq 30); do mkdir {name} && cd {name} || exit; done; touch deepest"
    links = "truncate -s 40M one; for i in $(seq 20); do ln one link$i; done"
    folder = solved(tmp_path / "task", toml='artifacts = ["many", "deep"]\n', solve="")
    trial = Trial(folder, tmp_path)
    made = "mkdir -p many deep/er; (cd many; " + links + "); (cd deep/er; " + deep + "); echo hello > hello.txt"
    verified = await trial.run(command=made)
    assert verified.rewards == {"reward": 1.0}
    kept = json.loads((trial.kept / "manifest.json").read_text())
    assert [entry["source"] for entry in kept] == ["many", "deep"]
    assert (kept[0]["bytes"], kept[0]["left_out"]) == (6 * (40 << 20), 1)
    assert kept[1]["left_out"] > 0
