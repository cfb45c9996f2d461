"""Codex and Claude Code write tables, start jobs on them and read the results, and they are workers of jobs. The programs are real, what
their models answer is scripted. ``CODEX`` and ``CLAUDE`` name the programs; otherwise they are looked up in the ``PATH``."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.agent_models import MCP, Call, Handler, Script, messages_api, responses_api
from tests.support.batches import ServerThread
from tests.support.commands import LONGEST, PROGRAM

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
KEY = "sk-fake-0123456789abcdef"
PASSED = ("MANYHANDS_WORKER", "MANYHANDS_JOB_ID", "MANYHANDS_DATA_DIR", "PYTHONPATH")
"""Variables that a program passes on to ``manyhands mcp``."""
TABLE = 'Report of the year\n\nid,text\n1,"one, ""two""\nthree"\n2,Größe\n'
CELLS = [["1", 'one, "two"\nthree'], ["2", "Größe"]]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@dataclass(frozen=True)
class AgentProgram:
    """A program as docs/mcp.md and docs/job-workers.md say that it is set up. Its home is the folder in which it works."""

    name: str
    model: Callable[[Script], Handler]
    configure: Callable[[Path, str, Sequence[str]], dict[str, str]]
    """Write its settings into a folder, with a model's URL and the options of ``manyhands mcp``; the variables that it needs."""
    shell: Callable[[str], Call]
    session: str
    """The command line (without the program) of a session that may use its shell and our tools."""
    printing: str
    """That of a worker that prints its result,"""
    reporting: str
    """and of one that reports it over MCP."""


def codex_settings(folder: Path, base_url: str, options: Sequence[str]) -> dict[str, str]:
    (folder / "config.toml").write_text(
        f"""
        model = "scripted"
        model_provider = "fake"
        check_for_update_on_startup = false
        [analytics]
        enabled = false
        [model_providers.fake]
        name = "fake"
        base_url = "{base_url}"
        wire_api = "responses"
        env_key = "FAKE_KEY"
        [mcp_servers.manyhands]
        command = {json.dumps(PROGRAM[0])}
        args = {json.dumps([*PROGRAM[1:], "mcp", *options])}
        env_vars = {json.dumps(PASSED)}
        required = true
        default_tools_approval_mode = "approve"
        """
    )
    return {"CODEX_HOME": str(folder), "FAKE_KEY": KEY}


def claude_settings(folder: Path, base_url: str, options: Sequence[str]) -> dict[str, str]:
    environ = {name: f"${{{name}:-}}" for name in PASSED}
    server = {"command": PROGRAM[0], "args": [*PROGRAM[1:], "mcp", *options], "env": environ, "timeout": 300000}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"manyhands": server}}))
    own = {"ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": KEY}
    waits = {"MCP_CONNECTION_NONBLOCKING": "0", "MCP_CONNECT_TIMEOUT_MS": "30000"}
    return {**own, **waits, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


CODEX = AgentProgram(
    "codex",
    responses_api,
    codex_settings,
    shell=lambda command: Call("exec_command", {"cmd": command}),
    # its sandbox does not start on every machine, and what it runs is written here
    session="exec --json --skip-git-repo-check --sandbox danger-full-access -",
    printing="exec --json --sandbox read-only --skip-git-repo-check --output-schema {schema_file} -",
    reporting="exec --json --skip-git-repo-check -",
)
CLAUDE = AgentProgram(
    "claude",
    messages_api,
    claude_settings,
    shell=lambda command: Call("Bash", {"command": command, "description": "Run it"}),
    session=f"-p --output-format json --mcp-config servers.json --allowedTools Bash,{MCP}__spawn_agents_on_csv",
    printing="-p --output-format json --allowedTools Read,Grep,Glob",
    reporting=f"-p --output-format json --mcp-config servers.json --allowedTools {MCP}__report_agent_job_result,Read,Grep",
)
both = pytest.mark.parametrize("program", [CODEX, CLAUDE], ids=lambda program: program.name)


@pytest.fixture
def path(program: AgentProgram) -> str:
    found = os.environ.get(program.name.upper()) or shutil.which(program.name)
    if found is None:
        pytest.skip(f"there is no {program.name}, to be installed by hand")
    return found


@contextmanager
def set_up(program: AgentProgram, folder: Path, script: Script, *options: str) -> Iterator[Callable[..., str]]:
    """A function that runs a command in the folder, with none of the person's own keys and settings, and returns what it printed."""
    with ServerThread(program.model(script)) as server:
        environ = program.configure(folder, server.base_url, options)
        environ |= {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }

        def run(*words: str, prompt: str = "") -> str:
            ended = subprocess.run(
                words, input=prompt, env=environ, cwd=folder, capture_output=True, encoding="utf-8", timeout=LONGEST
            )
            assert ended.returncode == 0, ended
            return ended.stdout

        yield run


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@both
def test_it_writes_a_table_and_reads_the_results_of_a_job(program: AgentProgram, path: str, tmp_path: Path) -> None:
    arguments = {
        "csv_path": "in.csv",
        "instruction": "Rate {text}",
        "output_csv_path": "out.csv",
        "output_schema": SCHEMA,
    }
    calls = [
        program.shell(f"cat > in.csv <<'END'\n{TABLE}END"),
        Call("spawn_agents_on_csv", {**arguments, "wait": True}, MCP),
        program.shell("cat out.csv"),
    ]
    results: list[str] = []

    def script(_prompt: str, so_far: Sequence[str]) -> Call | str:
        results[:] = so_far
        return calls[len(so_far)] if len(so_far) < len(calls) else "All is done."

    with set_up(
        program, tmp_path, script, f"--data_dir={tmp_path}/jobs", "--model=simulated", "--toolsets=none"
    ) as run:
        assert "All is done." in run(path, *program.session.split(), prompt="Rate the texts.")
    assert (tmp_path / "in.csv").read_text(encoding="utf-8") == TABLE
    assert re.search(r'"status": ?"completed"', results[1]), results
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").strip() in results[2].replace("\r\n", "\n")
    rows = table(tmp_path / "out.csv")
    assert [[row["id"], row["text"], row["status"]] for row in rows] == [[*cells, "completed"] for cells in CELLS]
    assert all(isinstance(json.loads(row["result_json"])["n"], int) for row in rows)


@both
@pytest.mark.parametrize("over_mcp", [False, True], ids=["printed", "over_mcp"])
def test_it_works_on_the_rows_of_a_job(program: AgentProgram, path: str, tmp_path: Path, over_mcp: bool) -> None:
    (tmp_path / "in.csv").write_text(TABLE, encoding="utf-8")
    answers: list[str] = []

    def script(prompt: str, so_far: Sequence[str]) -> Call | str:
        answers.extend(so_far)
        result = {"n": 5 if "Größe" in prompt else 3}
        if not over_mcp:
            return json.dumps(result)
        ids = {f"{name.lower()}_id": re.findall(rf"^{name} ID: (.+)$", prompt, re.M)[-1] for name in ("Job", "Item")}
        return "It is reported." if so_far else Call("report_agent_job_result", {**ids, "result": result}, MCP)

    worker = f"{shlex.quote(path)} {program.reporting if over_mcp else program.printing}"
    words = (
        "in.csv",
        "--instruction=Rate {text}",
        f"--output_schema={json.dumps(SCHEMA)}",
        "--output_csv_path=out.csv",
    )
    with set_up(program, tmp_path, script) as run:
        run(*PROGRAM, "jobs", "spawn", *words, "--job_name=rated", f"--worker_command={worker}")
        status = json.loads(run(*PROGRAM, "jobs", "status", "rated", "--json"))
    rows = table(tmp_path / "out.csv")
    assert [[row["id"], row["text"]] for row in rows] == CELLS
    assert [json.loads(row["result_json"]) for row in rows] == [{"n": 3}, {"n": 5}]
    assert len(re.findall(r'"accepted": ?true', "".join(answers))) == 2 * over_mcp
    turns = 4 if over_mcp else 2
    assert (status["usage"]["input_tokens"], status["usage"]["output_tokens"]) == (10 * turns, 5 * turns)
