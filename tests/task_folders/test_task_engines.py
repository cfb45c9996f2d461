"""Tasks with built images in other kinds of sandboxes than docker, and what the agents of tasks in containers reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.batches import Ran, read_lines, run_command
from tests.support.engines import Engine
from tests.support.made_tasks import make_task

USUAL = ("--batch_size=10", "--run_name=r", "--executor=local", "--quiet", "--unenforced_limits")
REWARD = "/logs/verifier/reward.txt"
PROXY = "/dev/tcp/127.0.0.1/13128"


def use(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)


def done(path: Path, *options: str) -> Ran:
    """The tasks in ``path``, done by their solutions."""
    return run_command(path, "batch", "--dataset_file=tasks", "--agent=oracle", *USUAL, *options)


def built_for_users(folder: Path, engine: Engine) -> None:
    """A task whose image is built, with a user for the agent, files, and a background process for the verifier that root runs."""
    make_task(
        folder,
        toml='[agent]\nuser = "tester"\n',
        files={
            "environment/Dockerfile": f"FROM {engine.full}\nRUN mkdir /made && chown 1000 /made\nWORKDIR /made\n",
            "tests/more/data.txt": "data\n",
        },
        solve="#!/bin/sh\nid -un > who; chmod 600 who; mkfifo -m 600 pipe; (echo served > pipe) &\n",
        test="#!/bin/sh\ncat who pipe /tests/more/data.txt > /tmp/said && chown 1234 who && [ $(id -u) = 0 ] && "
        f"[ \"$(cat /tmp/said | tr '\\n' -)\" = tester-served-data- ] && echo 1 > {REWARD}; cat /tmp/said\n",
    )


@pytest.mark.parametrize("kind", ["bubblewrap", pytest.param("podman", marks=pytest.mark.slow)])
def test_a_task_works_in_the_image_that_was_built_for_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Engine = request.getfixturevalue("podman_engine" if kind == "podman" else "docker_engine")
    use(engine, monkeypatch)
    built_for_users(tmp_path / "tasks/a", engine)
    ran = done(tmp_path, f"--sandbox={kind}")
    assert ran.code == 0, (ran.err, (tmp_path / "data/r/failures.jsonl").read_text())
    (line,) = read_lines(tmp_path / "data/r/trajectories.jsonl")
    said = (tmp_path / "data/r/artifacts/1-1/logs/verifier/test-stdout.txt").read_text()
    assert line["metadata"]["score"] == 1.0, said


def test_an_agent_reaches_the_hosts_that_its_task_lists_and_those_of_the_run_only_where_it_overrides(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(docker_engine, monkeypatch)
    ask = (
        "#!/bin/bash\nfor host in files.example other.example; do\n"
        f"  exec 3<>{PROXY}; printf 'GET http://%s/ HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n' $host $host >&3\n"
        "  timeout 30 head -n 1 <&3 | cut -d ' ' -f 2 >> /tmp/said; exec 3>&-\ndone\n"
    )
    make_task(
        tmp_path / "tasks/a",
        toml=f'[environment]\ndocker_image = "{docker_engine.full}"\nnetwork_mode = "allowlist"\n'
        'allowed_hosts = ["files.example"]\n',
        solve=ask,
        test='#!/bin/bash\nls /sys/class/net; cat /tmp/said; echo "{\\"listed\\": $(sed -n 1p /tmp/said), '
        '\\"other\\": $(sed -n 2p /tmp/said)}" > /logs/verifier/reward.json\n',
    )
    rewards = "--reward=listed"
    for name, options, refused in (
        ("own", (), "other"),
        ("same", ("--network_allow=other.example,files.example",), "other"),
        ("override", ("--override_task", "--network_allow=other.example"), "listed"),
    ):
        ran = done(tmp_path, rewards, *options, f"--run_name={name}")
        assert ran.code == 0, (ran.err, (tmp_path / f"data/{name}/failures.jsonl").read_text())
        (line,) = read_lines(tmp_path / f"data/{name}/trajectories.jsonl")
        statuses = json.loads(line["metadata"]["rewards"])
        assert statuses[refused] == 403
        assert statuses["listed" if refused == "other" else "other"] == 502  # nobody has such a name
        assert (tmp_path / f"data/{name}/artifacts/1-1/logs/verifier/test-stdout.txt").read_text().split()[0] == "lo"
