"""Code that lies about in the current folder is imported by none of our processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITNESS = "HOSTILE_WITNESS"
MODULES = (
    *(
        "orjson",
        "json",
        "statistics",
        "typing",
        "asyncio",
        "sqlite3",
        "uuid",
        "email",
        "random",
        "shlex",
        "pickle",
        "csv",
    ),
    *(
        "aiohttp",
        "pydantic",
        "yaml",
        "jsonschema",
        "uvloop",
        "pyarrow",
        "datasets",
        "tiktoken",
        "snowballstemmer",
        "mcp",
    ),
    *("manyhands", "sitecustomize", "usercustomize", "batch_runner"),
)
PACKAGES = ("rich", "concurrent", "manyhands_plugin")
CODE = f"""
import os
with open(os.path.join(os.environ["{WITNESS}"], __name__), "w") as file:
    file.write(os.environ.get("OPENAI_API_KEY", ""))
raise ImportError("a module of the current folder was imported")
"""
FILE_AGENT = """
class Keeper:
    def reply(self, message, agent_response=None):
        return "I see."
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder that a person stands in, full of files that are named like modules."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    (tmp_path / "witness").mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(CODE, encoding="utf-8")
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(CODE, encoding="utf-8")
    return folder


def perform(hostile: Path, *words: str, program: Sequence[str] = ()) -> tuple[int, str]:
    """A command line in the hostile folder, by an interpreter of its own."""
    script = Path(sys.executable).parent / "manyhands"
    usual = [str(script)] if script.is_file() else [sys.executable, "-P", "-m", "manyhands"]
    kept = {**environment(), WITNESS: str(hostile.parent / "witness"), "OPENAI_API_KEY": "sk-of-this-test-0123456789"}
    kept.pop("MANYHANDS_FORKED_RUNNERS", None)
    done = subprocess.run(
        [*(program or usual), *words],
        cwd=hostile,
        env=kept,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def imported(hostile: Path) -> list[str]:
    return sorted(os.listdir(hostile.parent / "witness"))


def test_the_witness_tells_of_an_import(hostile: Path) -> None:
    perform(hostile, "-c", "import orjson", program=[sys.executable])
    assert imported(hostile) == ["orjson"]


BATCH = ("batch", "--batch_size=2", "--num_workers=1", "--model=simulated", "--sandbox=local", "--max_samples=2")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param((), id="script"),
        pytest.param((sys.executable, "-P", "-m", "manyhands"), id="module", marks=pytest.mark.slow),
    ],
)
def test_no_worker_of_a_batch_imports_it(hostile: Path, program: Sequence[str]) -> None:
    words = [*BATCH, f"--dataset_file={EXAMPLES / 'prompts.jsonl'}", "--run_name=r"]
    code, said = perform(hostile, *words, program=program)
    assert (code, imported(hostile)) == (0, []), said
    code, said = perform(hostile, "resume", "data/r", program=program)
    assert (code, imported(hostile)) == (0, []), said


def test_a_run_that_is_started_as_a_module_imports_none_of_ours_from_there(hostile: Path) -> None:
    """Without ``-P``, Python itself may take what it imports before our first line from there; nothing that comes later."""
    for early in ("manyhands", "sitecustomize", "usercustomize", "typing", "email", "random", "json", "statistics"):
        (hostile / f"{early}.py").unlink()
    words = [*BATCH, f"--dataset_file={EXAMPLES / 'prompts.jsonl'}", "--run_name=r"]
    code, said = perform(hostile, *words, program=[sys.executable, "-m", "manyhands"])
    assert (code, imported(hostile)) == (0, []), said


@pytest.mark.parametrize("worker", ["agent", "command"])
def test_no_runner_of_a_job_imports_it(hostile: Path, worker: str) -> None:
    table, schema = EXAMPLES / "csv_jobs" / "files.csv", EXAMPLES / "csv_jobs" / "schema.json"
    words = ["jobs", "spawn", str(table), "--instruction=x", f"--output_schema={schema}", "--output_csv_path=out.csv"]
    how = ["--model=simulated"] if worker == "agent" else ["--worker_command=printf {}"]
    code, said = perform(hostile, *words, *how, "--job_name=j", "--num_workers=1", "--id_column=path")
    assert imported(hostile) == [], said
    assert (hostile / "data" / "j" / "run.db").is_file(), said
    assert worker == "command" or code == 0, said


@pytest.mark.parametrize(
    "suite", ["python_grader/estimates.yaml", pytest.param("per_test/words.yaml", marks=pytest.mark.slow), "rules"]
)
def test_no_evaluation_imports_it(hostile: Path, suite: str) -> None:
    code, said = perform(hostile, "eval", str(EXAMPLES / "evals" / suite), "--run_name=e", "--quiet")
    assert imported(hostile) == [], said
    assert code in (0, 1), said


def test_neither_the_mcp_server_nor_a_memory_benchmark_imports_it(hostile: Path) -> None:
    _, said = perform(hostile, "mcp", "--model=simulated")
    assert imported(hostile) == [], said
    words = ["-c", str(EXAMPLES / "memory" / "quick.yml"), "-a", "simulated", "-m", "3000", "--quiet"]
    code, said = perform(hostile, "memory", "run", *words)
    assert (code, imported(hostile)) == (0, []), said


def test_an_agent_of_a_persons_own_is_found_by_its_path_only(hostile: Path) -> None:
    (hostile / "agent_found_by_path.py").write_text(FILE_AGENT, encoding="utf-8")
    words = ["memory", "run", "-c", str(EXAMPLES / "memory" / "quick.yml"), "-m", "3000", "--quiet", "-a"]
    code, said = perform(hostile, *words, "python:agent_found_by_path:Keeper")
    assert code == 2
    assert "python:agent_found_by_path.py:Keeper" in said
    code, said = perform(hostile, *words, "python:agent_found_by_path.py:Keeper")
    assert (code, imported(hostile)) == (0, []), said


def test_a_module_that_is_installed_looks_for_its_own_imports_elsewhere(hostile: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from manyhands.processes.python_functions import load_function;"
        "print(load_function('wave:open', Path(sys.argv[1]), ValueError))"
    )
    (hostile / "chunk.py").write_text(CODE, encoding="utf-8")
    _, said = perform(hostile, "-P", "-c", program, str(hostile), program=[sys.executable])
    assert "function open" in said
    assert imported(hostile) == []


def test_what_is_handed_on_is_neither_empty_nor_relative_nor_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys; from manyhands.processes.interpreters import module_path, own_module_path, leave_current_folder;"
        "sys.path[:0] = ['', '.', os.getcwd(), 'relative']; sys.path.append('');"
        "print(module_path()); print(own_module_path({'PYTHONPATH': ':/named:.:'}));"
        "leave_current_folder(); print(os.pathsep.join(sys.path)); print(os.environ['PATH'])"
    )
    named = tmp_path / "named"
    kept = {**environment(), "PATH": f":.:{os.environ['PATH']}:"}
    kept["PYTHONPATH"] = f"{named}{os.pathsep}{kept['PYTHONPATH']}"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=hostile, env=kept, capture_output=True, text=True)
    ours, of_a_person, path, programs = done.stdout.splitlines()
    for handed_on in (ours, path):
        assert str(named) in handed_on.split(os.pathsep)
        assert not {"", ".", "relative", str(hostile)} & set(handed_on.split(os.pathsep))
    assert of_a_person.split(os.pathsep)[:2] == ["/named", str(hostile)]  # which that person named
    assert not {"", "."} & set(programs.split(os.pathsep))


def test_no_variables_of_the_current_folder_say_which_code_programs_run(hostile: Path) -> None:
    (hostile / ".env").write_text(f"PYTHONPATH={hostile}\nLD_PRELOAD=./x.so\nBASH_ENV=./x.sh\nHARMLESS=1\n")
    suite = hostile.parent / "suite"
    suite.mkdir()
    target = f"targets: {{show: {{provider: cli, command: '{sys.executable} show.py {{OUTPUT_FILE}}'}}}}"
    test = "tests: [{id: a, input: x, assert: [{type: contains, value: HARMLESS}]}]"
    (suite / "suite.yaml").write_text(f"{target}\n{test}\n", encoding="utf-8")
    show = "import os, sys, statistics; open(sys.argv[1], 'w').write(' '.join(sorted(os.environ)))"
    (suite / "show.py").write_text(show, encoding="utf-8")
    code, said = perform(hostile, "eval", str(suite / "suite.yaml"), "--run_name=e", "--output=e.jsonl")
    assert (code, imported(hostile)) == (0, []), said
    assert not {"LD_PRELOAD", "BASH_ENV"} & set((hostile / "e.jsonl").read_text().split())
