"""Reading task folders: every field, former words, and what is not taken, named with the task and the word."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from manyhands.task_folders.contents import Task, archive_of, digest_of
from manyhands.task_folders.reading import BadTask, Refused, agent_policy, read_task, read_tasks, verifier_policy
from tests.support.made_tasks import make_task

FULL = """
schema_version = "1.4"
source = "a paper"
artifacts = ["/app/out.txt", {source = "data", destination = "kept/data", exclude = ["*.tmp"]}]

[task]
name = "org/full"
version = "2.1"
description = "All fields."
authors = [{name = "A", email = "a@example.com"}]
keywords = ["one"]

[metadata]
difficulty = "hard"
created = 2025-03-04

[agent]
timeout_sec = 120
user = 1000
network_mode = "allowlist"
allowed_hosts = ["Packages.Example.", "*.example.com", "192.0.2.0/24", "2001:DB8::1"]

[environment]
docker_image = "registry.example/tasks/full:1"
build_timeout_sec = 30
cpus = 2
memory_mb = 512
storage_mb = 1024
workdir = "/app"
env = {TOKEN = "${TASK_TOKEN:-none}", PLAIN = "x"}
healthcheck = {command = "test -d /app", interval_sec = 0.5, retries = 2}

[verifier]
timeout_sec = 60
user = "root"
env = {MODE = "strict"}
environment_mode = "separate"
collect = [{command = "cp /var/log/x /logs/artifacts/", timeout_sec = 5}]

[verifier.environment]
docker_image = "registry.example/tasks/verifier:1"
network_mode = "no-network"

[solution]
env = {ANSWER = "42"}
"""


def read(folder: Path) -> Task:
    return read_task(folder)


def refused(folder: Path) -> str:
    with pytest.raises(BadTask) as caught:
        read_task(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_field_is_read_and_comes_back_from_what_is_recorded(tmp_path: Path) -> None:
    task = read(make_task(tmp_path / "full", toml=FULL, test=None, solve="true\n"))
    assert (task.name, task.instruction) == ("org/full", "Write hello to hello.txt.")
    config = task.config
    assert (config.agent.timeout_sec, config.agent.user) == (120, 1000)
    assert agent_policy(config) == (
        "allowlist",
        ("packages.example", "*.example.com", "192.0.2.0/24", "2001:db8::1"),
    )
    assert verifier_policy(config) == ("no-network", ())
    environment = config.environment
    assert (environment.cpus, environment.memory_mb, environment.storage_mb) == (2, 512, 1024)
    assert environment.healthcheck is not None
    assert (environment.healthcheck.interval_sec, environment.healthcheck.timeout_sec) == (0.5, 30.0)
    assert [(each.source, each.destination) for each in config.artifacts] == [
        ("/app/out.txt", None),
        ("data", "kept/data"),
    ]
    assert config.verifier.collect[0].service == "main"
    assert config.metadata == {"difficulty": "hard", "created": "2025-03-04"}
    assert (task.image, task.built) == ("registry.example/tasks/full:1", None)
    assert (task.verifier_image, task.own_tests, task.solved) == ("registry.example/tasks/verifier:1", False, True)
    recorded = json.loads(json.dumps(task.to_json()))
    assert Task.from_json(recorded, task.instruction) == task


def test_defaults_stand_for_everything_that_is_not_written(tmp_path: Path) -> None:
    task = read(make_task(tmp_path / "plain"))
    assert task.name == "plain"
    assert (task.image, task.config.agent.timeout_sec, task.config.verifier.timeout_sec) == (None, None, 600.0)
    assert agent_policy(task.config) == verifier_policy(task.config) == ("public", ())
    assert not task.solved
    assert task.config.to_json() == {}


def test_former_words_mean_what_they_meant(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
    config = read(make_task(tmp_path / "old", toml=toml)).config
    assert config.schema_version == "1.0"
    assert (config.environment.memory_mb, config.environment.storage_mb) == (2048, 512)
    assert agent_policy(config) == ("no-network", ())


@pytest.mark.parametrize("version", ["9.0", "2.0", "0.9", "newest", ""])
def test_a_version_that_is_not_known_is_refused_in_one_line(tmp_path: Path, version: str) -> None:
    for key in ("version", "schema_version"):
        folder = make_task(tmp_path / key, toml=f'{key} = "{version}"\n')
        with pytest.raises(BadTask) as error:
            read_task(folder)
        assert (
            str(error.value)
            == f"{folder}/task.toml: schema_version: {version!r} is no version that is read: 1.0 to 1.4"
        )


def test_a_later_version_of_the_same_schema_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    said: list[str] = []
    task = read_task(make_task(tmp_path / "a", toml='schema_version = "1.12"\nnews = 1\n'), said.append)
    assert task.config.schema_version == "1.12"
    assert ["later than 1.4" in said[0], "news is not known" in said[1]] == [True, True]


def test_keys_that_mean_nothing_are_named(tmp_path: Path) -> None:
    lines: list[str] = []
    toml = 'max = 1\n[environment]\ncpu = 2\nmemory = 5\n[verifier.environment]\nram = "1G"\n[metadata]\nfree = 1\n'
    folder = make_task(tmp_path / "odd", toml=toml)
    read_task(folder, lines.append)
    said = [line.removeprefix(f"{folder / 'task.toml'}: ") for line in lines]
    unknown = [line.split()[0] for line in said if "not known" in line]
    assert unknown == ["max", "environment.cpu", "verifier.environment.ram"]
    assert sum("use memory_mb" in line for line in said) == 1


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[environment]\nos = "Windows"', 'environment.os = "windows"'),
        ("[environment]\ngpus = 1", "environment.gpus"),
        ('[environment]\ntpu = {type = "v4", topology = "2x2"}', "environment.tpu"),
        ('[[steps]]\nname = "one"', "steps"),
        ('[environment]\nmcp_servers = [{name = "m", url = "http://m.example"}]', "environment.mcp_servers"),
        ('artifacts = [{source = "/x", service = "db"}]', "service 'db'"),
        ('[[verifier.collect]]\ncommand = "true"\nservice = "db"', "service 'db'"),
        ('[verifier]\nnetwork_mode = "no-network"', "verifier.network_mode"),
    ],
)
def test_kinds_that_are_not_taken_are_refused_with_the_task_and_the_word(tmp_path: Path, toml: str, words: str) -> None:
    message = refused(make_task(tmp_path / "kind", toml=toml))
    assert "task kind: " in message
    assert words in message


@pytest.mark.parametrize(
    ("toml", "field"),
    [
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec: "),
        ("[environment]\ncpus = inf", "environment.cpus: "),
        ('[task]\nname = "no-organisation"', "task.name: "),
        ('[environment]\nallowed_hosts = ["example.com"]', "environment: allowed_hosts"),
        (
            '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.com:80"]',
            "environment.allowed_hosts.1: ",
        ),
        ('[environment]\nmemory = "2G"\nmemory_mb = 5', "environment: memory = '2G'"),
        ('[environment]\nmemory = "lots"', "environment: memory = 'lots'"),
        ('artifacts = ["../x"]', "artifacts.1.source: "),
        ('artifacts = ["."]', "artifacts.1.source: '.' names no file or folder"),
        ('artifacts = ["/"]', "artifacts.1.source: '/' names no file or folder"),
        ('artifacts = ["manifest.json"]', "artifacts.1: manifest.json is taken"),
        ('artifacts = [{source = "x", destination = "./manifest.json"}]', "artifacts.1: manifest.json is taken"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]', "verifier: environment_mode"),
        ("[verifier.env]\nX = 1", "verifier.env.X: "),
        ('[verifier.env]\nX = "${1-2}"', "verifier.env.X: "),
        ("[environment\n", "not TOML"),
    ],
)
def test_wrong_values_are_named_with_file_and_field(tmp_path: Path, toml: str, field: str) -> None:
    message = refused(make_task(tmp_path / "bad", toml=toml))
    assert str(tmp_path / "bad" / "task.toml") in message
    assert field in message


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert "tests/test.sh" in refused(make_task(tmp_path / "a", test=None))
    assert "instruction is empty" in refused(make_task(tmp_path / "b", instruction=" \n"))
    folder = make_task(tmp_path / "c")
    (folder / "instruction.md").unlink()
    assert str(folder / "instruction.md") in refused(folder)


def test_a_task_of_terminal_bench_1_is_refused_with_what_converts_it(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "task.yaml").write_text("instruction: x\n")
    (folder / "run-tests.sh").write_text("true\n")
    assert "Harbor converts it" in refused(folder)


def test_a_link_that_leads_out_of_the_task_is_refused(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "linked")
    (folder / "tests" / "passwd").symlink_to("/etc/passwd")
    assert "tests/passwd" in refused(folder)


def test_an_instruction_loses_its_canary_and_the_white_space_behind_it(tmp_path: Path) -> None:
    text = "<!-- some-canary GUID 1 -->\n# terminal-bench-canary GUID 2\n\nDo it.\n\n# canary here stays\n\n"
    assert read(make_task(tmp_path / "t", instruction=text)).instruction == "Do it.\n\n# canary here stays"


def test_a_dockerfile_is_built_under_the_hash_of_its_folder(tmp_path: Path) -> None:
    first = read(make_task(tmp_path / "a", files={"environment/Dockerfile": "FROM base:1\n"}))
    same = read(make_task(tmp_path / "b", files={"environment/Dockerfile": "FROM base:1\n"}))
    other = read(make_task(tmp_path / "c", files={"environment/Dockerfile": "FROM base:2\n"}))
    assert first.built == "environment"
    assert first.image == same.image != other.image
    named = read(
        make_task(
            tmp_path / "d",
            toml='[environment]\ndocker_image = "base:3"\n',
            files={"environment/Dockerfile": "FROM base:1\n"},
        )
    )
    assert (named.image, named.built) == ("base:3", None)


def test_a_separate_verifier_has_the_image_of_its_tests_or_of_the_task(tmp_path: Path) -> None:
    toml = '[environment]\ndocker_image = "base:1"\n[verifier]\nenvironment_mode = "separate"\n'
    copied = read(make_task(tmp_path / "a", toml=toml))
    assert (copied.verifier_image, copied.verifier_built, copied.own_tests) == ("base:1", None, True)
    bundled = read(make_task(tmp_path / "b", toml=toml, test=None, files={"tests/Dockerfile": "FROM base:1\n"}))
    assert (bundled.verifier_built, bundled.own_tests) == ("tests", False)
    assert bundled.verifier_image is not None


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        ("services: {main: {image: x}, db: {image: y}}", "more than main"),
        ("services: {app: {image: x}}", "without a service main"),
        ("services: {main: {image: x, volumes: [a:/b]}}", "services.main.volumes"),
        ("services: {main: {build: {context: .., dockerfile: F}}}", "services.main.build.dockerfile"),
    ],
)
def test_compose_with_more_than_one_plain_service_is_refused(tmp_path: Path, compose: str, words: str) -> None:
    assert words in refused(make_task(tmp_path / "t", files={"environment/docker-compose.yaml": compose}))


def test_compose_with_one_plain_service_names_the_image(tmp_path: Path) -> None:
    compose = "services: {main: {image: 'base:1', command: sleep infinity}}"
    assert read(make_task(tmp_path / "t", files={"environment/docker-compose.yaml": compose})).image == "base:1"
    files = {"environment/docker-compose.yaml": "services: {main: {build: .}}", "environment/Dockerfile": "FROM a\n"}
    assert read(make_task(tmp_path / "u", files=files)).built == "environment"


def test_a_folder_of_tasks_is_read_in_order_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        make_task(tmp_path / name, toml='[task]\nname = "org/same"\n' if name != "b" else "")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("x")
    found = list(read_tasks(tmp_path))
    assert [each.name for each in found] == ["org/same", "b", "org/same"]
    assert isinstance(found[2], Refused)
    assert "in a, too" in found[2].reason


def test_a_digest_changes_with_content_names_and_modes_alone(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "t")
    first = digest_of(folder)
    os.utime(folder / "task.toml", (1, 1))
    assert digest_of(folder) == first
    (folder / "tests" / "test.sh").chmod(0o755)
    changed = digest_of(folder)
    assert changed != first
    (folder / "tests" / "more").mkdir()
    assert digest_of(folder) != changed


def test_archives_are_the_same_for_the_same_files(tmp_path: Path) -> None:
    first = archive_of(make_task(tmp_path / "t") / "tests").getvalue()
    os.utime(tmp_path / "t" / "tests" / "test.sh", (1, 1))
    assert archive_of(tmp_path / "t" / "tests").getvalue() == first


def test_nothing_of_a_task_is_read_by_a_link_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    for name in ("key", "test.sh", "solve.sh", "Dockerfile"):
        (tmp_path / "secrets" / name).write_text("the person's own")
    for name in ("environment", "tests", "solution"):
        folder = make_task(tmp_path / name, test="true\n", solve="true\n")
        (folder / name).rename(folder / "before")
        (folder / name).symlink_to(tmp_path / "secrets")
        assert refused(folder).endswith(f"task {name}: {name} is a link")
    for name in ("instruction.md", "task.toml"):
        folder = make_task(tmp_path / f"{name}-task")
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / "secrets" / "key")
        assert refused(folder).endswith("is a link that leads out of the task's folder")


def test_a_pipe_in_place_of_an_instruction_is_not_waited_for(tmp_path: Path) -> None:
    folder = make_task(tmp_path / "task")
    (folder / "instruction.md").unlink()
    os.mkfifo(folder / "instruction.md")
    assert refused(folder).endswith("instruction.md: task task: is no file")


@pytest.mark.parametrize("image", ["tar:/backup.tar", "oci:~/images", "../containers/other", "-v", "a//b"])
def test_an_image_of_a_task_is_a_name_alone(image: str, tmp_path: Path) -> None:
    for number, toml in enumerate(
        (
            f'[environment]\ndocker_image = "{image}"\n',
            f'[verifier.environment]\ndocker_image = "{image}"\n',
        )
    ):
        assert "docker_image: " in refused(make_task(tmp_path / f"task{number}", toml=toml))
    compose = f'services: {{main: {{image: "{image}"}}}}\n'
    folder = make_task(tmp_path / "composed", files={"environment/docker-compose.yaml": compose})
    assert "docker_image: " in refused(folder)
