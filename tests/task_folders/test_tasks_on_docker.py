"""Tasks with images and Dockerfiles, on a real engine."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.batches import read_lines, run_command
from tests.support.engines import Engine
from tests.support.made_tasks import make_task, twenty_tasks

USUAL = ("--batch_size=10", "--run_name=r", "--executor=local", "--concurrency=4", "--quiet", "--unenforced_limits")
PROGRAM = "--agent_command=touch done"
EVALUATION = ("eval", "tasks", "--run_name=r", "--quiet", PROGRAM)
SERVER = """\
import pathlib, socket
server = socket.create_server(("127.0.0.1", 8123))
pathlib.Path("up").touch()
while True:
    taken, _ = server.accept()
    print("asked")
    taken.sendall(b"served")
    taken.close()
"""
ASKED = """\
import socket
with socket.create_connection(("127.0.0.1", 8123), 10) as asked:
    assert asked.recv(100) == b"served"
"""


@pytest.fixture
def on_docker(docker_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    for name, value in docker_engine.environment.items():
        monkeypatch.setenv(name, value)
    return docker_engine


def left_over(engine: Engine, folder: Path) -> list[str]:
    """The containers of runs below a folder; those of other tests may be there."""
    labels = engine.client("ps", "-a", "--format", '{{.Label "manyhands.folder"}}').splitlines()
    return [label for label in labels if label.startswith(str(folder))]


def test_a_dockerfile_is_built_before_the_run_and_leaves_its_log_there(on_docker: Engine, tmp_path: Path) -> None:
    make_task(
        tmp_path / "tasks/a",
        files={"environment/Dockerfile": f"FROM {on_docker.full}\nRUN echo built > /built.txt\n"},
        test="#!/bin/bash\ncat /built.txt; echo 1 > /logs/verifier/reward.txt\n",
    )
    ran = run_command(tmp_path, "batch", "--dataset_file=tasks", PROGRAM, *USUAL)
    assert ran.code == 0, ran.err
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert line["metadata"]["score"] == 1.0
    (log,) = (tmp_path / "data/r/builds").iterdir()
    assert "built.txt" in log.read_text()
    assert (tmp_path / "data/r/artifacts/1-1/logs/verifier/test-stdout.txt").read_text() == "built\n"
    assert left_over(on_docker, tmp_path) == []


def test_a_dockerfile_that_does_not_build_is_refused_in_one_line_or_skipped(on_docker: Engine, tmp_path: Path) -> None:
    broken = {"environment/Dockerfile": f"FROM {on_docker.full}\nRUN echo no good; exit 3\n"}
    make_task(tmp_path / "tasks/broken", files=broken)
    make_task(tmp_path / "tasks/good", toml=f'[environment]\ndocker_image = "{on_docker.full}"\n')
    refused = run_command(tmp_path, "batch", "--dataset_file=tasks", PROGRAM, *USUAL)
    assert refused.code == 2
    assert "task broken: " in refused.err
    assert "does not build" in refused.err
    (log,) = re.findall(r"\(log: ([^)]+)\)", refused.err)
    assert "no good" in Path(log).read_text()
    shutil.rmtree(Path(log).parent)
    assert not (tmp_path / "data").exists()
    skipped = run_command(tmp_path, "batch", "--dataset_file=tasks", PROGRAM, *USUAL, "--skip_invalid")
    assert skipped.code == 0, skipped.err
    assert len(read_lines(tmp_path / "data/r/trajectories.jsonl")) == 1
    (failure,) = read_lines(tmp_path / "data/r/failures.jsonl")
    assert "does not build" in json.dumps(failure)
    assert "(log: data/r/builds/" in skipped.err.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("how", ["--agent=oracle", "--agent_command=sh /tmp/serve.sh"])
def test_what_a_solution_or_a_program_leaves_in_the_background_serves_its_verifier(
    on_docker: Engine, tmp_path: Path, how: str
) -> None:
    serve = (
        "cd /tmp && python3 -u -c '\n"
        + SERVER
        + "' &\nfor i in $(seq 100); do [ -e /tmp/up ] && break; sleep 0.1; done\necho ok\n"
    )
    make_task(
        tmp_path / "tasks/a",
        toml=f'[environment]\ndocker_image = "{on_docker.full}"\nworkdir = "/tmp"\n',
        files={"environment/serve.sh": serve},
        solve=f"#!/bin/bash\n{serve}",
        test=f"#!/bin/bash\npython3 -c '{ASKED}' && echo 1 > /logs/verifier/reward.txt\n",
    )
    ran = run_command(tmp_path, "batch", "--dataset_file=tasks", how, *USUAL)
    assert ran.code == 0, ran.err
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert line["metadata"]["score"] == 1.0, (
        tmp_path / "data/r/artifacts/1-1/logs/verifier/test-stdout.txt"
    ).read_text()
    assert "ok" in json.dumps(line["conversations"])


@pytest.mark.parametrize("mode", [pytest.param("shared", marks=pytest.mark.slow), "separate"])
def test_a_verifier_without_a_reward_leaves_the_agents_work_for_the_next_try_and_no_container_of_its_own(
    on_docker: Engine, tmp_path: Path, mode: str
) -> None:
    named = f'artifacts = ["/work"]\n[environment]\ndocker_image = "{on_docker.full}"\n'
    test = "[ ! -e /tried ] && touch /tried && rm /work && [ -e /project/mended ] && echo 1 > /logs/verifier/reward.txt"
    make_task(
        tmp_path / "tasks/a", toml=f'{named}[verifier]\nenvironment_mode = "{mode}"\n', test=f"#!/bin/bash\n{test}\n"
    )
    (tmp_path / "project").mkdir()
    program = ("--agent_command=touch /work", "--project=project", "--cwd=/")
    failed = run_command(tmp_path, "batch", "--dataset_file=tasks", *program, *USUAL)
    assert "neither reward.json nor reward.txt" in (tmp_path / "data/r/failures.jsonl").read_text(), failed.err
    assert [Path(label).name for label in left_over(on_docker, tmp_path)] == ["1-1"], "that of the failed item alone"
    (tmp_path / "project/mended").touch()
    again = run_command(tmp_path, "resume", "data/r")
    assert again.code == 0, again.out + again.err
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert (line["metadata"]["score"], line["metadata"]["attempt"]) == (1.0, 1)
    assert left_over(on_docker, tmp_path) == []


ATTACK = r"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            try:
                os.makedirs("/logs/verifier", exist_ok=True)
                for name in ("reward.txt", "reward.json"):
                    open("/logs/verifier/" + name, "w").write("1")
                if os.path.exists("/tests/test.sh"):
                    open("/tests/test.sh", "w").write("echo 1 > /logs/verifier/reward.txt")
            except OSError:
                pass
    os._exit(0)
time.sleep(0.3)
os.rename("/logs", "/mine")
os.symlink("/mine", "/logs")
os.symlink("/mine", "/tests")
"""


def test_an_agent_reaches_neither_the_rewards_nor_the_tests_of_its_verifier(on_docker: Engine, tmp_path: Path) -> None:
    make_task(
        tmp_path / "tasks/a",
        toml=f'[environment]\ndocker_image = "{on_docker.full}"\nworkdir = "/tmp"\n',
        files={"environment/attack.py": ATTACK},
        solve="#!/bin/bash\npython3 /tmp/attack.py\n",
        test="#!/bin/bash\nls -A /tests /logs/verifier\necho 0 > /logs/verifier/reward.txt\nsleep 0.2\n",
    )
    ran = run_command(tmp_path, "tasks", "check", "tasks", "--end_processes", *USUAL)
    assert ran.code == 1, ran.err
    assert "what it left running was ended" in " ".join(ran.out.split())
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert line["metadata"]["score"] == 0.0
    said = (tmp_path / "data/r/artifacts/1-1/logs/verifier/test-stdout.txt").read_text()
    assert said == "/logs/verifier:\ntest-stdout.txt\n\n/tests:\ntest.sh\n"


def test_a_resume_builds_an_image_again_that_is_gone_if_its_folder_is_unchanged(
    on_docker: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"made-for-{tmp_path.parent.name}-{tmp_path.name}"
    dockerfile = f"FROM {on_docker.full}\nRUN date +%s%N > /{mark}\n"
    make_task(
        tmp_path / "tasks/a",
        toml='[environment]\nenv = {GIVEN = "${GIVEN_LATER}"}\n[environment.healthcheck]\n'
        'command = "[ -n \\"$GIVEN\\" ]"\nretries = 1\n',
        files={"environment/Dockerfile": dockerfile},
    )
    words = ("batch", "--dataset_file=tasks", PROGRAM, *USUAL, "--max_attempts=1", "--task_env=GIVEN_LATER")
    again = (*words, "--resume")
    monkeypatch.setenv("GIVEN_LATER", "")
    assert run_command(tmp_path, *words).code == 1

    def remove() -> None:
        images = on_docker.client("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        named = [each for each in images if "<none>" not in each]
        (tag,) = [each for each in named if mark in on_docker.client("history", "--no-trunc", each)]
        for each in on_docker.client("ps", "-a", "-q", "--filter", f"ancestor={tag}").split():
            on_docker.client("rm", "-f", each)
        on_docker.client("rmi", "-f", tag)

    remove()
    (tmp_path / "tasks/a/environment/Dockerfile").write_text(dockerfile + "RUN true\n")
    refused = run_command(tmp_path, *again)
    assert refused.code == 2, refused.out
    assert "the run's own image is gone" in refused.err
    (tmp_path / "tasks/a/environment/Dockerfile").write_text(dockerfile)
    monkeypatch.setenv("GIVEN_LATER", "1")
    resumed = run_command(tmp_path, *again)
    assert resumed.code == 0, resumed.err + resumed.out
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert line["metadata"]["score"] == 1.0


def test_an_evaluation_leaves_out_a_task_that_does_not_build(on_docker: Engine, tmp_path: Path) -> None:
    broken = {"environment/Dockerfile": f"FROM {on_docker.full}\nRUN echo no good; exit 3\n"}
    make_task(tmp_path / "tasks/broken", files=broken)
    make_task(tmp_path / "tasks/good", toml=f'[environment]\ndocker_image = "{on_docker.full}"\n')
    (tmp_path / "tasks/targets.yaml").write_text(
        "targets:\n  - {name: default, provider: agent, model: simulated, sandbox: docker, unenforced_limits: true}\n"
    )
    words = EVALUATION
    refused = run_command(tmp_path, *words)
    assert refused.code == 2
    assert "task broken: " in refused.err
    skipped = run_command(tmp_path, *words, "--skip_invalid")
    assert skipped.code == 0, skipped.err
    results = {each.get("test_id"): each for each in read_lines(tmp_path / "data/r/results.jsonl")}
    assert results["good"]["score"] == 1.0
    assert "does not build" in json.dumps(results["broken"])
    again = run_command(tmp_path, *words, "--skip_invalid", "--resume")
    assert again.code == 0, again.err


def test_root_verifies_with_all_rights_what_the_agents_user_left(on_docker: Engine, tmp_path: Path) -> None:
    make_task(
        tmp_path / "tasks/a",
        toml=f'[agent]\nuser = "tester"\n[environment]\ndocker_image = "{on_docker.full}"\n',
        solve="#!/bin/sh\nid -un > /tmp/who; chmod 600 /tmp/who\n",
        test="#!/bin/sh\ncat /tmp/who && chown 1234 /tmp/who && echo 1 > /logs/verifier/reward.txt\n",
        files={"tests/data/more.txt": "more\n"},
    )
    ran = run_command(tmp_path, "batch", "--dataset_file=tasks", "--agent=oracle", *USUAL)
    assert ran.code == 0, ran.err
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    assert line["metadata"]["score"] == 1.0
    assert (tmp_path / "data/r/artifacts/1-1/logs/verifier/test-stdout.txt").read_text() == "tester\n"


@pytest.mark.slow
def test_twenty_tasks_come_to_what_their_verifiers_say(on_docker: Engine, tmp_path: Path) -> None:
    wanted = twenty_tasks(tmp_path / "tasks", on_docker.full, "tester")
    assert len(wanted) == 20
    ran = run_command(tmp_path, "batch", "--dataset_file=tasks", "--agent=oracle", *USUAL)
    found: dict[str, object] = {}
    for line in read_lines(tmp_path / "data/r/trajectories.jsonl"):
        found[json.loads(line["metadata"]["source"])["task"]] = json.loads(line["metadata"]["rewards"])
    errors = {each["source"]["task"]: each["message"] for each in read_lines(tmp_path / "data/r/failures.jsonl")}
    for name, outcome in wanted.items():
        if isinstance(outcome, str):
            assert outcome in errors.get(name, ""), (name, errors.get(name), found.get(name))
        else:
            assert found.get(name) == outcome, (name, errors.get(name), ran.err)
