"""Every option of ``manyhands jobs spawn`` through the command line, each with an effect that can be seen from outside.

One check an option, registered under the option's name; an option without a check fails. The command runs in this process,
the jobs in runners of their own.
"""

from __future__ import annotations

import asyncio
import codecs
import csv
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openpyxl
import pytest

from manyhands.cli.jobs.starting import SpawnOptions
from manyhands.cli.options import options_of
from manyhands.models.factory import KEY_VARIABLES, OWN_KEY_VARIABLE
from manyhands.testing.scripted_server import Handler, RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import Ran, ServerThread, run_command
from tests.support.commands import environment
from tests.support.forked import forked_program
from tests.support.image_doubles import NAME as BOXES
from tests.support.image_doubles import Boxes, boxes, pin_of
from tests.support.job_folders import FUNCTION, JobFolder, job_and_item, report, reporting, text_of
from tests.support.own_agent import installed
from tests.support.ssh_servers import REFUSED, ssh_server
from tests.support.tool_checks import TOOL_CHECKS
from tests.support.web_checks import WEB_CHECKS
from tests.support.world_checks import WORLD_CHECKS

Check = Callable[[JobFolder], None]
CHECKS: dict[str, Check] = {}
MCP_SERVER = Path(__file__).parent.parent / "tools" / "mcp_server_for_tests.py"
SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def option(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return register


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobFolder]:
    for variable in (*KEY_VARIABLES.values(), OWN_KEY_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with JobFolder(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", options_of(SpawnOptions))
def test_the_spawn_option_does_what_it_says(name: str, folder: JobFolder) -> None:
    CHECKS[name](folder)


def test_there_is_no_check_of_a_spawn_option_that_is_gone() -> None:
    assert set(CHECKS) <= set(options_of(SpawnOptions))


# --- Helpers


def spawn(folder: JobFolder, *options: str) -> Ran:
    """Rows are performed in the runner itself, which saves the time that worker processes need to begin."""
    return run_command(folder.path, "jobs", *folder.spawn_words("--quiet", "--executor=local", *options))


def done(folder: JobFolder, *options: str) -> list[Any]:
    """The results of a job of the test's own function that ends well."""
    ran = spawn(folder, FUNCTION, *options)
    assert ran.code == 0, ran
    return folder.results()


def asked(
    folder: JobFolder, *options: str, responses: Iterable[Reply] | Handler | None = None, openrouter: bool = False
) -> list[dict[str, Any]]:
    """The request bodies of a job of the built-in agent that ends well."""
    with ServerThread(reporting() if responses is None else responses) as server:
        where = f"--base_url={server.openrouter_url if openrouter else server.base_url}"
        ran = spawn(folder, where, "--toolsets=none", *options)
        assert ran.code == 0, (ran, folder.path)
        return server.bodies


def refused(folder: JobFolder, *options: str) -> str:
    """What is said about a command line that is refused before anything is made."""
    ran = spawn(folder, "--job_name=refused", *options)
    assert (ran.code, ran.out, folder.folder("refused").exists()) == (2, "", False), ran
    return ran.err


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return chat_response("Let me see.", tool_calls=[{"id": f"call_{name}", "type": "function", "function": function}])


def shell(command: str) -> dict[str, Any]:
    return tool_call("terminal", command=command)


def first(response: Reply) -> Callable[[RecordedRequest], Reply]:
    """Every conversation gets ``response`` first, then reports, then ends."""

    def reply(request: RecordedRequest) -> Reply:
        turns = sum(message["role"] == "assistant" for message in request.body["messages"])
        if turns == 0:
            return response
        return report(request, {"ok": True}) if turns == 1 else chat_response("Done.")

    return reply


def tool_results(bodies: list[dict[str, Any]]) -> list[str]:
    """The tool results that the model was shown, in order."""
    return [text_of(message) for body in bodies for message in body["messages"] if message["role"] == "tool"]


def prompts(bodies: list[dict[str, Any]]) -> list[str]:
    return [text_of(message) for body in bodies for message in body["messages"] if message["role"] == "user"]


def everything_in(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


class Crowd:
    """Answers first requests only when so many are there at the same time (or nobody comes any more)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._here = 0
        self.most = 0

    async def __call__(self, request: RecordedRequest) -> Reply:
        if any(message["role"] == "tool" for message in request.body["messages"]):
            return chat_response("Done.")
        self._here += 1
        self.most = max(self.most, self._here)
        for _ in range(60):
            if self.most >= self._size:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)  # time for one too many to show up
        self._here -= 1
        return report(request, {"ok": True})


# --- Job


@option("csv_path")
def _csv_path(folder: JobFolder) -> None:
    folder.write_rows(["alpha", "beta"], "other.csv")
    words = ("spawn", "--csv_path=other.csv", "--instruction=x", "--output_csv_path=out.csv", "--quiet", FUNCTION)
    assert run_command(folder.path, "jobs", *words).code == 0
    assert [row["text"] for row in folder.rows()] == ["alpha", "beta"]
    assert "missing.csv" in refused(folder, FUNCTION, "--csv_path=missing.csv")


@option("instruction")
def _instruction(folder: JobFolder) -> None:
    bodies = asked(folder, "--instruction=Weigh {text} in {{grams}}, {name}.", "--max_concurrency=1")
    assert "Weigh one in {grams}, a." in prompts(bodies)[0]
    for text in ("", "  "):
        assert "instruction must be non-empty" in refused(folder, FUNCTION, f"--instruction={text}")
    assert "columns" in refused(folder, FUNCTION, "--instruction=Weigh {texts}.")


@option("instruction_file")
def _instruction_file(folder: JobFolder) -> None:
    (folder.path / "task.md").write_text("Weigh {text}.\nThen rest.\n")
    words = ("spawn", "rows.csv", "--instruction_file=task.md", "--job_name=f", "--quiet", "--toolsets=none")
    with ServerThread(reporting()) as server:
        assert run_command(folder.path, "jobs", *words, f"--base_url={server.base_url}").code == 0
        assert "Weigh one.\nThen rest.\n" in "".join(prompts(server.bodies))
    assert "not both" in refused(folder, FUNCTION, "--instruction_file=task.md")
    assert "elsewhere.md" in run_command(folder.path, "jobs", *words[:2], "--instruction_file=elsewhere.md").err


@option("stages")
def _stages(folder: JobFolder) -> None:
    stages = [
        {"name": "first", "instruction": "Weigh {text}."},
        {"name": "second", "instruction": "Judge.", "when": "0"},
    ]
    (folder.path / "s.json").write_text(json.dumps(stages))
    words = ("spawn", "rows.csv", "--stages=s.json", "--job_name=f", "--output_csv_path=out.csv", "--quiet")
    with ServerThread(reporting({"first": 3})) as server:
        base_url = f"--base_url={server.base_url}"
        assert run_command(folder.path, "jobs", *words, "--toolsets=none", base_url).code == 0
        assert "Weigh one." in prompts(server.bodies)[0]
    assert [(row["first"], row["second"]) for row in folder.rows()] == [("3", "")] * 3


@option("column")
def _column(folder: JobFolder) -> None:
    words = (
        "spawn",
        "rows.csv",
        "--column=weight=Weigh {text}.",
        "--job_name=f",
        "--output_csv_path=out.csv",
        "--quiet",
    )
    with ServerThread(reporting({"weight": 3})) as server:
        base_url = f"--base_url={server.base_url}"
        assert run_command(folder.path, "jobs", *words, "--toolsets=none", base_url).code == 0
    assert [row["weight"] for row in folder.rows()] == ["3"] * 3


@option("id_column")
def _id_column(folder: JobFolder) -> None:
    folder.write_rows(["one"] * 28)
    done(folder, "--id_column=name")
    ids = [row["item_id"] for row in folder.rows()]
    assert (ids[0], ids[25], ids[26:]) == ("a", "z", ["a-2", "b-2"])
    done(folder, "--job_name=without")
    assert [row["item_id"] for row in folder.rows()][:2] == ["row-1", "row-2"]
    assert "id_column nope was not found" in refused(folder, FUNCTION, "--id_column=nope")


@option("system_column")
def _system_column(folder: JobFolder) -> None:
    folder.write_rows(["Be brief.", ""])
    bodies = asked(folder, "--system_column=text")
    systems = sorted(body["messages"][0]["content"] for body in bodies if len(body["messages"]) == 2)
    assert systems[1] == f"{systems[0]}\n\nBe brief."
    assert "system_column nope was not found" in refused(folder, FUNCTION, "--system_column=nope")


@option("job_name")
def _job_name(folder: JobFolder) -> None:
    done(folder, "--job_name=Größen: 1/2")
    assert folder.status("Größen: 1/2")["job_name"] == "Größen: 1/2"
    job_id = folder.status("Größen: 1/2")["job_id"]
    done(folder, "--job_name=")
    jobs = json.loads(folder.jobs("list", "--json").out)
    assert jobs[0]["folder"].endswith(f"data/{jobs[0]['job_id']}")
    assert jobs[0]["job_name"] == f"agent-job-{jobs[0]['job_id'][:8]}"
    again = spawn(folder, FUNCTION, "--job_name=Größen: 1/2")
    assert (again.code, job_id in again.err) == (2, True)
    for name in ("a\nb", "x" * 201):
        assert "--job_name" in refused(folder, FUNCTION, f"--job_name={name}")


@option("output_csv_path")
def _output_csv_path(folder: JobFolder) -> None:
    ran = spawn(folder, FUNCTION, "--output_csv_path=deep/er/results.csv")
    assert ran.code == 0
    assert len(folder.results("deep/er/results.csv")) == 3
    assert str(Path("deep/er/results.csv")) in ran.out
    assert spawn(folder, FUNCTION, "--output_csv_path=", "--job_name=default").code == 0
    job_id = folder.status("default")["job_id"]
    assert len(folder.results(f"rows.agent-job-{job_id[:8]}.csv")) == 3
    assert "overwritten" in refused(folder, FUNCTION, "--output_csv_path=rows.csv")


@option("output_schema")
def _output_schema(folder: JobFolder) -> None:
    (folder.path / "schema.json").write_text(json.dumps(SCHEMA))

    def reply(request: RecordedRequest) -> Reply:
        said = [message["content"] for message in request.body["messages"] if message["role"] == "tool"]
        if not said:
            return report(request, {"score": "high"})
        return report(request, {"score": 7}) if len(said) == 1 else chat_response("Done.")

    bodies = asked(folder, "--output_schema=schema.json", responses=reply)
    assert any("'high' is not of type 'integer'" in text for text in tool_results(bodies))
    assert folder.results() == [{"score": 7}] * 3
    inline = asked(folder, f"--output_schema={json.dumps(SCHEMA)}", "--job_name=inline", responses=reply)
    assert '"score"' in prompts(inline)[0]
    assert "none.json" in refused(folder, FUNCTION, "--output_schema=none.json")
    (folder.path / "bad.json").write_text('{"type": "objekt"}')
    assert "objekt" in refused(folder, FUNCTION, "--output_schema=bad.json")
    assert "not JSON" in refused(folder, FUNCTION, "--output_schema={")


@option("detach")
def _detach(folder: JobFolder) -> None:
    folder.write_rows(["until go"])
    ran = spawn(folder, FUNCTION, "--detach")
    assert (ran.code, folder.status()["status"]) == (0, "running")
    assert "to follow it:" in ran.out
    (folder.path / "go").touch()
    assert folder.jobs("wait", "j").code == 0


@option("dry_run")
def _dry_run(folder: JobFolder) -> None:
    folder.write_rows([f"text {number}" for number in range(5)])
    for words, count in (
        (["--dry_run"], 3), (["--dry-run", "2"], 2), (["--dry_run=5"], 5), (["--dry_run=0"], 0), (["--dry_run=9"], 5),
    ):  # fmt: skip
        ran = run_command(folder.path, "jobs", *folder.spawn_words(*words))
        assert (ran.code, ran.err) == (0, "")
        assert [f"Say text {number}." in ran.out for number in range(5)] == [number < count for number in range(5)]
        for part in ("rows.csv (csv), 5 rows", "name, text", "row-1", "model anthropic/", "64", "out.csv", "any JSON"):
            assert part in ran.out
    assert {path.name for path in folder.path.iterdir()} == {"rows.csv", "work.py"}
    assert "id_column nope" in refused(folder, "--dry_run", "--id_column=nope")
    before = run_command(folder.path, "jobs", "spawn", "--dry_run", "rows.csv", "--instruction=Say {text}.")
    assert (before.code, "Say text 2." in before.out) == (0, True)
    command = (sys.executable, "-m", "manyhands", "jobs", "spawn", "-", "--instruction=Say {text}.", "--dry_run")
    table = b"name,text\na,one\n"
    piped = subprocess.run(command, input=table, cwd=folder.path, env=environment(), stdout=subprocess.PIPE, timeout=60)
    assert f"{folder.path}/agent_job_output.agent-job-ID.csv (csv)" in piped.stdout.decode()


# --- Table


@option("on_bad_row")
def _on_bad_row(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text('name,text\na,one\n"b"b,two\nc,three\n')
    assert "line 3" in refused(folder, FUNCTION)
    assert "line 3" in refused(folder, FUNCTION, "--on_bad_row=fail")
    ran = spawn(folder, FUNCTION, "--on_bad_row=skip")
    assert ran.code == 1
    assert re.search(r"skipped +1 +bad_row 1", ran.out)
    assert [row["status"] for row in folder.rows()] == ["completed", "skipped", "completed"]
    assert "--on_bad_row" in refused(folder, FUNCTION, "--on_bad_row=keep")


@option("encoding")
def _encoding(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_bytes("name,text\na,Größe\n".encode("cp1252"))
    assert "utf-8" in refused(folder, FUNCTION).lower()
    assert done(folder, "--encoding=cp1252") == [{"length": 5, "text": "Größe"}]
    assert "klingon" in refused(folder, FUNCTION, "--encoding=klingon")


@option("delimiter")
def _delimiter(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text("name|text\na|x;y,z\n")
    commas = "--output_delimiter=,"
    assert done(folder, "--delimiter=|", commas) == [{"length": 5, "text": "x;y,z"}]
    (folder.path / "rows.csv").write_text("name\ttext\na\tx|y\n")
    assert done(folder, "--delimiter=tab", "--job_name=tab", commas) == [{"length": 3, "text": "x|y"}]
    assert "delimiter" in refused(folder, FUNCTION, "--delimiter=ab")


@option("header_row")
def _header_row(folder: JobFolder) -> None:
    (folder.path / "rows.csv").write_text("Names,Texts\nname,text\na,one\n")
    assert done(folder, "--header_row=2") == [{"length": 3, "text": "one"}]
    assert "below line 9" in refused(folder, FUNCTION, "--header_row=9")


@option("sheet")
def _sheet(folder: JobFolder) -> None:
    book = openpyxl.Workbook()
    for title, text in (("Spring", "one"), ("Autumn", "second")):
        sheet = book.create_sheet(title)
        sheet.append(["name", "text"])
        sheet.append(["a", text])
    book.remove(book.worksheets[0])
    book.save(folder.path / "rows.xlsx")
    assert done(folder, "--csv_path=rows.xlsx", "--sheet=Autumn") == [{"length": 6, "text": "second"}]
    said = refused(folder, FUNCTION, "--csv_path=rows.xlsx", "--sheet=Autum")
    assert "did you mean Autumn?" in said
    assert "Spring, Autumn" in said
    assert "a sheet is for spreadsheets" in refused(folder, FUNCTION, "--sheet=Autumn")


@option("table_format")
def _table_format(folder: JobFolder) -> None:
    (folder.path / "rows.txt").write_text('{"name": "a", "text": "in a line"}\n')
    assert done(folder, "--csv_path=rows.txt", "--table_format=jsonl") == [{"length": 9, "text": "in a line"}]
    with gzip.open(folder.path / "rows.csv.gz", "wt") as handle:
        handle.write("name,text\na,packed\n")
    assert done(folder, "--csv_path=rows.csv.gz", "--job_name=gz") == [{"length": 6, "text": "packed"}]
    assert "--table_format" in refused(folder, FUNCTION, "--table_format=ods")


# --- Worker


@option("worker_command")
def _worker_command(folder: JobFolder) -> None:
    (folder.path / "worker.py").write_text(
        "import json, sys\nprompt = sys.stdin.read()\n"
        "print('working…')\nprint(json.dumps({'asked': 'Say two.' in prompt}))\n"
    )
    ran = spawn(folder, f"--worker_command={sys.executable} worker.py")
    assert ran.code == 0, ran
    assert folder.results() == [{"asked": False}, {"asked": True}, {"asked": False}]
    assert "no-such-program" in refused(folder, "--worker_command=no-such-program --go")
    assert "not both" in refused(folder, FUNCTION, "--worker_command=true")


@option("worker_function")
def _worker_function(folder: JobFolder) -> None:
    assert done(folder)[1] == {"length": 3, "text": "two"}
    for name in ("work.py:play", "nowhere.py:work", "no_such_module_here:work", "work.py"):
        assert "work" in refused(folder, f"--worker_function={name}")


@option("project")
def _project(folder: JobFolder) -> None:
    (folder.path / "project").mkdir()
    (folder.path / "project" / "notes.txt").write_text("a note of the project")
    (folder.path / "project" / "own.py").write_text("def work(row):\n    return {'own': True}\n")
    assert spawn(folder, "--project=project", "--worker_function=own.py:work").code == 0
    assert folder.results()[0] == {"own": True}
    assert (
        spawn(
            folder,
            "--project=project",
            "--worker_command=sh -c 'printf {\\\"n\\\":; wc -c <notes.txt; printf }'",
            "--job_name=c",
        ).code
        == 0
    )
    assert folder.results()[0] == {"n": 21}
    look = first(shell("cat notes.txt"))
    bodies = asked(folder, "--project=project", "--toolsets=terminal", "--job_name=a", responses=look)
    assert "a note of the project" in tool_results(bodies)[0]
    assert "--project" in refused(folder, FUNCTION, "--project=nowhere")


@option("max_corrections")
def _max_corrections(folder: JobFolder) -> None:
    folder.write_rows(["one"])

    def reply(request: RecordedRequest) -> Reply:
        return report(request, {"score": "high"})

    for count in (0, 2):
        with ServerThread(reply) as server:
            words = (f"--base_url={server.base_url}", "--toolsets=none", "--max_attempts=1", f"--job_name=c{count}")
            ran = spawn(folder, *words, f"--output_schema={json.dumps(SCHEMA)}", f"--max_corrections={count}")
            assert (ran.code, len(server.requests)) == (1, count + 1)
        item = json.loads(folder.jobs("show", f"c{count}", "1", "--json").out)
        assert (item["cause"], item["record"]["last_report"]) == ("invalid_output", {"score": "high"})


@option("max_depth")
def _max_depth(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    (folder.path / "inner.csv").write_text("text\nx\n")
    start = tool_call("spawn_agents_on_csv", csv_path=str(folder.path / "inner.csv"), instruction="Inner {text}.")

    def reply(request: RecordedRequest) -> Reply:
        inner = any("Inner x." in text_of(message) for message in request.body["messages"] if message["role"] == "user")
        return reporting()(request) if inner else first(start)(request)

    for name, words, said in (("one", [], "agent depth limit reached"), ("two", ["--max_depth=2"], '"job_id"')):
        words = ["--toolsets=collab", "--sandbox=local", f"--job_name={name}", *words]
        assert said in tool_results(asked(folder, *words, responses=reply))[0]
    assert "--max_depth" in refused(folder, FUNCTION, "--max_depth=11")


# --- Model and provider


@option("model")
def _model(folder: JobFolder) -> None:
    assert {body["model"] for body in asked(folder, "--model=vendor/name-1")} == {"vendor/name-1"}
    assert asked(folder, "--job_name=default")[0]["model"] == "anthropic/claude-sonnet-4.6"
    ran = spawn(folder, "--model=simulated", "--job_name=s", "--no-quiet", f"--output_schema={json.dumps(SCHEMA)}")
    assert ran.code == 0, ran
    assert "agent: model simulated, " in ran.out
    assert "(simulated: its answers are made up)" in ran.out
    assert "answered by the simulated model" in ran.out
    assert folder.status("s")["simulated"] is True
    assert all(isinstance(result["score"], int) for result in folder.results())


@option("api_key")
def _api_key(folder: JobFolder) -> None:
    key = "sk-or-v1-0123456789abcdef"
    echo = ScriptedResponse({"error": {"message": f"not allowed for {key}"}}, status=400)
    with ServerThread([echo]) as server:
        ran = spawn(folder, f"--base_url={server.base_url}", f"--api_key={key}", "--toolsets=none")
        assert {request.headers["Authorization"] for request in server.requests} == {f"Bearer {key}"}
    assert ran.code == 1
    assert "not allowed for [redacted]" in ran.out
    assert key.encode() not in everything_in(folder.path)
    assert key not in ran.out + ran.err


@option("base_url")
def _base_url(folder: JobFolder) -> None:
    with ServerThread(reporting()) as server:
        assert spawn(folder, f"--base_url={server.base_url}/", "--toolsets=none").code == 0
        assert {request.headers.get("Authorization") for request in server.requests} == {None}
        assert {request.path for request in server.requests} == {"/v1/chat/completions"}
    assert "OPENROUTER_API_KEY" in refused(folder)
    assert "--base_url" in refused(folder, "--base_url=localhost:80")


@option("implied_think")
def _implied_think(folder: JobFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        said = any(message["role"] == "assistant" for message in request.body["messages"])
        return report(request, {"ok": True}) if said else chat_response("plan</think>Hm.")

    bodies = asked(folder, "--implied_think", responses=reply)
    answers = [message for body in bodies for message in body["messages"] if message["role"] == "assistant"]
    assert {(answer["content"], answer["reasoning_content"]) for answer in answers} == {("Hm.", "plan")}


@option("header")
def _header(folder: JobFolder) -> None:
    secret = "0123456789abcdef"
    with ServerThread(reporting()) as server:
        words = (f"--base_url={server.base_url}", "--toolsets=none", f"--header=X-Api-Key: {secret}")
        assert spawn(folder, *words, "--header=X-Team: ${HOME}").code == 0
        assert {each.headers["X-Api-Key"] for each in server.requests} == {secret}
        assert "$" not in server.requests[0].headers["X-Team"]
    assert secret.encode() not in everything_in(folder.path)
    assert "NOT_SET is not set" in refused(folder, *words, "--header=X-Team: ${NOT_SET}")


@option("tool_choice")
def _tool_choice(folder: JobFolder) -> None:
    bodies = asked(folder, "--tool_choice=required")
    after = [any(message["role"] == "tool" for message in body["messages"]) for body in bodies]
    assert [body.get("tool_choice") for body in bodies] == [None if called else "required" for called in after]


@option("send_reasoning")
def _send_reasoning(folder: JobFolder) -> None:
    def reply(request: RecordedRequest) -> Reply:
        said = any(message["role"] == "assistant" for message in request.body["messages"])
        return report(request, {"ok": True}) if said else chat_response("Hm.", reasoning="plan")

    bodies = asked(folder, "--send_reasoning=reasoning_content", responses=reply)
    assert {message.get("reasoning_content") for body in bodies for message in body["messages"]} == {None, "plan"}


REQUESTED: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "max_tokens": ("321", lambda body: body["max_tokens"] == 321),
    "stop": ("###", lambda body: body["stop"] == ["###"]),
    "extra_body": ('{"top_k": 5}', lambda body: body["top_k"] == 5),
    "temperature": ("0.7", lambda body: body["temperature"] == 0.7),
    "top_p": (".9", lambda body: body["top_p"] == 0.9),
    "providers_allowed": ("anthropic,google", lambda body: body["provider"]["only"] == ["anthropic", "google"]),
    "providers_ignored": ("together, deepinfra", lambda body: body["provider"]["ignore"] == ["together", "deepinfra"]),
    "providers_order": ("x-ai,openai", lambda body: body["provider"]["order"] == ["x-ai", "openai"]),
    "provider_sort": ("price", lambda body: body["provider"]["sort"] == "price"),
    "reasoning_disabled": ("true", lambda body: body["reasoning"] == {"effort": "none"}),
    "ephemeral_system_prompt": ("Think, yes, no.", lambda body: "Think, yes, no." in text_of(body["messages"][0])),
}
"""Options that are seen in the requests and nowhere else: a value, and whether a request is as it should be."""


@cache
def requests_with_all_of_them() -> list[dict[str, Any]]:
    with TemporaryDirectory() as place, JobFolder(Path(place)) as folder:
        words = [f"--{name}={value}" for name, (value, _) in REQUESTED.items()]
        return asked(folder, *words, openrouter=True)


@cache
def requests_without_them() -> list[dict[str, Any]]:
    with TemporaryDirectory() as place, JobFolder(Path(place)) as folder:
        return asked(folder, openrouter=True)


def _requested(name: str) -> Check:
    def check(_folder: JobFolder) -> None:
        as_asked = REQUESTED[name][1]
        assert all(as_asked(body) for body in requests_with_all_of_them())
        with pytest.raises((KeyError, AssertionError)):  # not sent at all, or otherwise
            assert any(as_asked(body) for body in requests_without_them())

    return check


for requested in REQUESTED:
    option(requested)(_requested(requested))


@option("reasoning_effort")
def _reasoning_effort(folder: JobFolder) -> None:
    for effort, sent in (("none", {"effort": "none"}), ("high", {"enabled": True, "effort": "high"})):
        words = (f"--reasoning_effort={effort}", f"--job_name={effort}")
        assert asked(folder, *words, openrouter=True)[0]["reasoning"] == sent
    assert "--reasoning_effort must be one of none" in refused(folder, "--reasoning_effort=huge")


@option("seed")
def _seed(folder: JobFolder) -> None:
    def seeds(name: str, *words: str) -> dict[str, Any]:
        bodies = asked(folder, f"--job_name={name}", *words)
        items = (job_and_item(RecordedRequest("", "", {}, body))[1] for body in bodies)
        return dict(zip(items, (body.get("seed") for body in bodies), strict=True))

    drawn = seeds("first", "--seed=7")
    assert len(set(drawn.values())) == 3
    assert seeds("again", "--seed=7") == drawn
    assert set(drawn.values()).isdisjoint(seeds("other", "--seed=8").values())
    assert set(seeds("without").values()) == {None}


@option("simulated_latency")
def _simulated_latency(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    assert spawn(folder, "--model=simulated", "--simulated_latency=0.3", "--toolsets=none").code == 0
    item = json.loads(folder.jobs("show", "j", "1", "--json").out)
    calls = [step for step in item["steps"] if step["kind"] == "model"]
    assert all(step["finished_at"] - step["started_at"] >= 0.3 for step in calls)


# --- Conversation


@option("agent")
def _agent(folder: JobFolder) -> None:
    folder.write_rows(["one"])

    def reply(request: RecordedRequest) -> Reply:
        turns = sum(message["role"] == "assistant" for message in request.body["messages"])
        return chat_response("Nothing to report.") if turns == 0 else report(request, {"ok": True})

    with installed(folder.path):
        bodies = asked(folder, "--agent=careful", responses=reply)
    assert "Check your answer" in prompts(bodies)[-1]
    assert "no agent is called 'careful'" in refused(folder, "--agent=careful")


@option("max_turns")
def _max_turns(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    with ServerThread([shell("true")]) as server:
        where = (f"--base_url={server.base_url}", "--toolsets=terminal", "--sandbox=local", "--max_attempts=1")
        ran = spawn(folder, *where, "--max_turns=3")
        assert (ran.code, len(server.requests)) == (1, 3)


@option("prefill_messages_file")
def _prefill_messages_file(folder: JobFolder) -> None:
    prefill = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "A prefilled four."}]
    (folder.path / "prefill.json").write_text(json.dumps(prefill))

    def reply(request: RecordedRequest) -> Reply:
        return report(
            RecordedRequest("", "", {}, {"messages": request.body["messages"][2:]}), {"ok": True}
        ) if not any(message["role"] == "tool" for message in request.body["messages"]) else chat_response("Done.")  # fmt: skip

    bodies = asked(folder, "--prefill_messages_file=prefill.json", responses=reply)
    spoken = [message["content"] for message in bodies[0]["messages"] if message["role"] != "system"]
    assert spoken[:2] == [message["content"] for message in prefill]
    (folder.path / "bad.json").write_text("[{")
    assert "bad.json" in refused(folder, "--prefill_messages_file=bad.json")


# --- Tools and sandbox


@option("toolsets")
def _toolsets(folder: JobFolder) -> None:
    folder.write_rows(["one"])

    def offered(name: str, *words: str) -> set[str]:
        bodies = asked(folder, f"--job_name={name}", "--sandbox=local", *words)
        return {tool["function"]["name"] for tool in bodies[0]["tools"]}

    own = "report_agent_job_result"
    assert offered("none", "--toolsets=none") == {own}
    assert offered("file", "--toolsets=file") == {own, "read_file", "write_file", "patch", "search_files"}
    assert offered("two", "--toolsets=terminal,file") >= {own, "terminal", "read_file"}
    assert "fiel" in refused(folder, "--model=simulated", "--toolsets=fiel")


@option("tools")
def _tools(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    (folder.path / "prices.py").write_text("def price(thing: str) -> int:\n    'A price.'\n    return 42\n")
    bodies = asked(folder, "--tools=prices.py", responses=first(tool_call("price", thing="nut")))
    assert "42" in tool_results(bodies)[0]
    again = ("--job_name=again", "--tools=prices.py", "--toolsets=none", "--model=simulated", "--limit=1")
    folder.write_rows(["one", "two"])
    assert spawn(folder, *again).code == 0
    with (folder.path / "prices.py").open("a") as file:
        file.write("# other\n")
    ended = folder.jobs("run", "again", "--limit=none")
    assert ended.code == 0, ended
    assert "prices.py changed since the job was made" in ended.err
    assert "there is no file" in refused(folder, "--model=simulated", "--tools=none.py")


@option("mcp_config")
def _mcp_config(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    command, *args = forked_program(MCP_SERVER, "stdio")
    servers = {"math": {"command": command, "args": args, "tools": ["add"]}}
    (folder.path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    responses = first(tool_call("math__add", a=2, b=40))
    bodies = asked(folder, "--mcp_config=mcp.json", "--toolsets=math", responses=responses)
    assert "42" in tool_results(bodies)[0]
    assert "no such file" in refused(folder, "--mcp_config=elsewhere.json")


@option("sandbox")
def _sandbox(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    (folder.path / "secret.txt").write_text("on the host")
    look = first(shell(f"cat {folder.path}/secret.txt; echo looked"))
    for name in ("local", "bubblewrap", "auto"):
        words = ("--toolsets=terminal", f"--sandbox={name}", f"--job_name={name}")
        seen = tool_results(asked(folder, *words, responses=look))[0]
        assert ("looked" in seen, "on the host" in seen) == (True, name == "local")
    assert "bubblewrap" in refused(folder, "--model=simulated", "--sandbox=bubblewarp")


def _check_refused_ssh(folder: JobFolder, name: str) -> None:
    folder.write_rows(["one"])
    words, said = REFUSED[name]
    assert said in refused(folder, "--model=simulated", "--sandbox=ssh", *words)


@option("ssh_host")
def _ssh_host(folder: JobFolder) -> None:
    _check_refused_ssh(folder, "ssh_host")


@option("ssh_user")
def _ssh_user(folder: JobFolder) -> None:
    _check_refused_ssh(folder, "ssh_user")


@option("ssh_port")
def _ssh_port(folder: JobFolder) -> None:
    _check_refused_ssh(folder, "ssh_port")


@option("ssh_key")
def _ssh_key(folder: JobFolder) -> None:
    _check_refused_ssh(folder, "ssh_key")


@option("ssh_config")
def _ssh_config(folder: JobFolder) -> None:
    _check_refused_ssh(folder, "ssh_config")


@option("ssh_dir")
def _ssh_dir(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    with ssh_server() as server:
        words = ("--toolsets=terminal", *server.options)
        seen = tool_results(asked(folder, *words, responses=first(shell("pwd; echo $HOME"))))[0]
        assert seen.count(f"{server.worlds}/files/") == 2


@option("network")
def _network(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    for name, words, said in (("without", (), "closed"), ("with", ("--network",), "open")):
        responses: list[Reply] = []

        def reply(request: RecordedRequest, responses: list[Reply] = responses) -> Reply:
            return first(responses[0])(request)

        with ServerThread(reply) as server:
            port = server.base_url.rpartition(":")[2].partition("/")[0]
            responses.append(shell(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo open || echo closed"))
            where = (f"--base_url={server.base_url}", "--sandbox=bubblewrap", "--toolsets=terminal")
            assert spawn(folder, *where, f"--job_name={name}", *words).code == 0
            assert json.loads(tool_results(server.bodies)[0])["output"].strip() == said


@option("network_allow")
def _network_allow(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    for name, rule, said in (("listed", "127.0.0.1", "200"), ("other", "10.0.0.0/8,files.example", "403")):
        responses: list[Reply] = []

        def reply(request: RecordedRequest, responses: list[Reply] = responses) -> Reply:
            return first(responses[0])(request)

        with ServerThread(reply) as server:
            port = server.base_url.rpartition(":")[2].partition("/")[0]
            ask = f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
            responses.append(
                shell(f"exec 3<>/dev/tcp/127.0.0.1/13128; printf '{ask}' >&3; head -n 1 <&3 | cut -d ' ' -f 2")
            )
            where = (f"--base_url={server.base_url}", f"--network_allow={rule}", "--toolsets=terminal")
            assert spawn(folder, *where, f"--job_name={name}").code == 0
            assert json.loads(tool_results(server.bodies)[0])["output"].strip() == said
    assert "names a port" in refused(folder, "--model=simulated", "--toolsets=terminal", "--network_allow=a.example:80")


@option("sequential_tools")
def _sequential_tools(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    calls = shell("sleep 0.5; cat made.txt || echo none")
    write = tool_call("write_file", path="made.txt", content="written meanwhile")
    calls["choices"][0]["message"]["tool_calls"] += write["choices"][0]["message"]["tool_calls"]
    words = ("--toolsets=terminal,file", "--sandbox=local")
    parallel = asked(folder, *words, responses=first(calls))
    assert "written meanwhile" in tool_results(parallel)[0]
    sequential = asked(folder, *words, "--job_name=s", "--sequential_tools", responses=first(calls))
    assert "written meanwhile" not in tool_results(sequential)[0]


# --- Tools of the web


class WebRuns:
    """Jobs for ``WEB_CHECKS`` and ``TOOL_CHECKS``."""

    def __init__(self, folder: JobFolder) -> None:
        folder.write_rows(["one"])
        self.path = folder.path
        self._folder = folder
        self._runs = 0

    def result(self, tool: str, arguments: Mapping[str, Any], *words: str, toolset: str = "web") -> str:
        self._runs += 1
        usual = (f"--job_name=web{self._runs}", f"--output_csv_path=web{self._runs}.csv", f"--toolsets={toolset}")
        bodies = asked(self._folder, *usual, *words, responses=first(tool_call(tool, **arguments)))
        return tool_results(bodies)[0]

    def refused(self, *words: str) -> str:
        return refused(self._folder, "--model=simulated", "--toolsets=web", *words)


def _check_of_web(check: Callable[[WebRuns], None]) -> Check:
    return lambda folder: check(WebRuns(folder))


for _name, _web_check in {**WEB_CHECKS, **TOOL_CHECKS}.items():
    option(_name)(_check_of_web(_web_check))


# --- What a row's sandbox is given


class WorldRuns:
    """Jobs for ``WORLD_CHECKS``."""

    def __init__(self, folder: JobFolder) -> None:
        self.path = folder.path
        self._folder = folder
        self._runs = 0

    def collected(self, *words: str, row: Mapping[str, object] | None = None) -> str | None:
        self._runs += 1
        cells = {"name": "a", "text": "one", **(row or {})}
        with (self.path / "rows.csv").open("w", encoding="utf-8", newline="") as handle:
            values = [each if isinstance(each, str) else json.dumps(each) for each in cells.values()]
            csv.writer(handle).writerows([list(cells), values])
        with ServerThread(reporting()) as server:
            usual = (f"--base_url={server.base_url}", "--toolsets=terminal", "--sandbox=local")
            names = (f"--job_name=w{self._runs}", f"--output_csv_path=w{self._runs}.csv")
            ran = spawn(self._folder, *usual, *names, *words)
        (found,) = self._folder.rows(f"w{self._runs}.csv")
        assert ran.code == (0 if found["status"] == "completed" else 1), ran
        return None if ran.code else found["collected"]

    def refused(self, *words: str) -> str:
        return refused(self._folder, "--model=simulated", "--toolsets=terminal", "--sandbox=local", *words)


def _check_of_world(check: Callable[[WorldRuns], None]) -> Check:
    return lambda folder: check(WorldRuns(folder))


for _name in WORLD_CHECKS:
    option(_name)(_check_of_world(WORLD_CHECKS[_name]))


# --- Container images


def _seen(folder: JobFolder, registry: Boxes, name: str, *words: str) -> set[str]:
    """Which images the agents saw around them, in a job of that name, all images being pulled anew."""
    registry.forget()
    where = (f"--sandbox={BOXES}", f"--job_name={name}", "--toolsets=terminal")
    bodies = asked(folder, *where, *words, responses=first(shell("echo box=$BOX=")))
    return {json.loads(text)["output"].split("=")[1] for text in tool_results(bodies) if "box=" in text}


@option("image")
def _image(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("base:1")
        assert _seen(folder, registry, "j", "--image=base:1") == {pin_of("base:1")}
        assert "base:2" in refused(
            folder, f"--sandbox={BOXES}", "--image=base:2", "--toolsets=terminal", "--model=simulated"
        )


@option("image_field")
def _image_field(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1", "own:2")
        folder.write_rows(["own:1", "own:2", "own:1"])
        assert _seen(folder, registry, "j", "--image_field=text") == {pin_of("own:1"), pin_of("own:2")}
        assert registry.counts("find") == {"own:1": 1, "own:2": 1}
        assert registry.counts("pull") == {pin_of("own:1"): 1, pin_of("own:2"): 1}
        assert "image_field" in refused(folder, "--image_field=nobody", "--model=simulated")


@option("image_template")
def _image_template(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("r.example/a_1776_b:1")
        folder.write_rows(["A__b"])
        found = _seen(folder, registry, "j", "--image_template=r.example/{text|swebench}:1")
        assert found == {pin_of("r.example/a_1776_b:1")}


@option("skip_missing_images")
def _skip_missing_images(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1")
        folder.write_rows(["own:1", "gone:1", "gone:1"])
        words = (f"--sandbox={BOXES}", "--image_field=text", "--toolsets=terminal")
        assert "2 rows whose image does not exist: gone:1" in refused(folder, *words, "--model=simulated")
        with ServerThread(reporting()) as server:  # like all rows that can't be used, they are no success
            ran = spawn(folder, f"--base_url={server.base_url}", *words, "--skip_missing_images")
        assert (ran.code, "2 skipped rows" in ran.err) == (1, True)
        ledger = json.loads((folder.folder() / "summary.json").read_text())["ledger"]
        assert (ledger["items"], ledger["completed"], ledger["discarded"]) == (3, 1, 2)


@option("ignore_images")
def _ignore_images(folder: JobFolder) -> None:
    words = ("--image_field=text", "--sandbox=local", "--toolsets=terminal")
    assert "--ignore_images" in refused(folder, *words, "--model=simulated")
    assert len(asked(folder, *words, "--ignore_images")) == 3


@option("pull")
def _pull(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("base:1")
        where = (f"--sandbox={BOXES}", "--image=base:1", "--toolsets=terminal", "--model=simulated")
        assert "not here, and --pull is never" in refused(folder, *where, "--pull=never")
        _seen(folder, registry, "j", "--image=base:1", "--pull=always")
        assert "find newest base:1" in registry.asked


@option("image_cache")
def _image_cache(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("own:1", "own:2", "own:3", size=3_000_000)
        folder.write_rows(["own:1", "own:2", "own:3"])
        _seen(folder, registry, "j", "--image_field=text", "--max_concurrency=1", "--image_cache=7MB")
        assert sum(registry.counts("remove").values()) == 1


def _engine_options(folder: JobFolder, *words: str) -> set[str]:
    """What an engine is told of a job: runtime, checkpoints, their limit, whether they outlive the machine."""
    with boxes(folder.path / "double") as registry:
        registry.publish("base:1")
        folder.write_rows(["one"])
        _seen(folder, registry, "j", "--image=base:1", *words)
        return set(registry.counts("options"))


@option("container_runtime")
def _container_runtime(folder: JobFolder) -> None:
    assert _engine_options(folder, "--container_runtime=runsc") == {"runsc True 67108864 False"}


@option("checkpoints")
def _checkpoints(folder: JobFolder) -> None:
    assert _engine_options(folder, "--no-checkpoints") == {"None False 67108864 False"}


@option("checkpoint_limit")
def _checkpoint_limit(folder: JobFolder) -> None:
    assert _engine_options(folder, "--checkpoint_limit=1GiB") == {"None True 1073741824 False"}


@option("durable_worlds")
def _durable_worlds(folder: JobFolder) -> None:
    assert _engine_options(folder, "--durable_worlds") == {"None True 67108864 True"}


@option("unenforced_limits")
def _unenforced_limits(folder: JobFolder) -> None:
    with boxes(folder.path / "double") as registry:
        registry.publish("base:1")
        (registry.folder / "unenforced").write_text("memory")
        words = ("--image=base:1", "--toolsets=terminal", "--model=simulated")
        assert "can't enforce the limits of memory" in refused(folder, f"--sandbox={BOXES}", *words)
        assert _seen(folder, registry, "j", "--image=base:1", "--unenforced_limits")


@option("keep_workspaces")
def _keep_workspaces(folder: JobFolder) -> None:
    write = first(tool_call("write_file", path="made.txt", content="made"))
    words = ("--toolsets=file", "--sandbox=local")
    asked(folder, *words, responses=write)
    assert not list(folder.folder().rglob("made.txt"))
    asked(folder, *words, "--job_name=kept", "--keep_workspaces", responses=write)
    assert len(list(folder.folder("kept").rglob("made.txt"))) == 3


@option("sandbox_disk")
def _sandbox_disk(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    words = ("--toolsets=terminal", "--sandbox_disk=0.01")
    fill = shell("head -c 15000000 /dev/zero >large; ls")
    assert "disk quota exceeded: 14.3 MiB of 10.2 MiB" in tool_results(asked(folder, *words, responses=first(fill)))[0]


@option("min_free")
def _min_free(folder: JobFolder) -> None:
    """What it does to a disk that fills is shown for batches, whose sandboxes are the same."""
    folder.write_rows(["one"])
    words = ("--toolsets=terminal", "--min_free=0.5")
    assert "here" in tool_results(asked(folder, *words, responses=first(shell("echo here"))))[0]
    assert "--min_free" in refused(folder, "--min_free=-1")


@option("tool_timeout")
def _tool_timeout(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    words = ("--toolsets=terminal", "--sandbox=local", "--tool_timeout=0.3")
    assert "0.3" in tool_results(asked(folder, *words, responses=first(shell("sleep 30"))))[0]


# --- Concurrency


@option("max_concurrency")
def _max_concurrency(folder: JobFolder) -> None:
    folder.write_rows([f"text {number}" for number in range(6)])
    crowd = Crowd(4)
    asked(folder, "--max_concurrency=4", "--max_workers=6", responses=crowd)
    assert crowd.most == 4
    assert "--max_concurrency must be a whole number" in refused(folder, FUNCTION, "--max_concurrency=2.5")


@option("max_workers")
def _max_workers(folder: JobFolder) -> None:
    folder.write_rows([f"text {number}" for number in range(5)])
    crowd = Crowd(3)
    asked(folder, "--max_workers=3", responses=crowd)
    assert crowd.most == 3


@option("max_concurrency_limit")
def _max_concurrency_limit(folder: JobFolder) -> None:
    folder.write_rows([f"text {number}" for number in range(4)])
    crowd = Crowd(2)
    asked(folder, "--max_concurrency=64", "--max_concurrency_limit=2", responses=crowd)
    assert crowd.most == 2


@option("executor")
def _executor(folder: JobFolder) -> None:
    (folder.path / "work.py").write_text(
        "import os\ndef work(row):\n    return {'pid': os.getpid(), 'parent': os.getppid()}\n"
    )
    for name in ("local", "processes", "auto"):
        done(folder, f"--executor={name}", f"--job_name={name}")
        assert (folder.folder(name) / "workers.log").exists() is (name != "local")
    assert "--executor" in refused(folder, FUNCTION, "--executor=threads")


# What these do on a cluster, tests/cluster shows.


@option("ray_address")
def _ray_address(folder: JobFolder) -> None:
    assert "--executor=ray" in refused(folder, FUNCTION, "--ray_address=127.0.0.1:1")
    ran = run_command(
        folder.path, "jobs", *folder.spawn_words("--quiet", "--executor=ray", "--ray_address=127.0.0.1:1", FUNCTION)
    )
    assert (ran.code, "--ray_address=127.0.0.1:1: there is no Ray cluster" in ran.err) == (1, True)


@option("ray_resources")
def _ray_resources(folder: JobFolder) -> None:
    assert "--executor=ray" in refused(folder, FUNCTION, '--ray_resources={"num_cpus": 2}')


@option("ray_listen")
def _ray_listen(folder: JobFolder) -> None:
    assert "--executor=ray" in refused(folder, FUNCTION, "--ray_listen=127.0.0.1:7400")


@option("num_workers")
def _num_workers(folder: JobFolder) -> None:
    """A row ends when three processes have begun one, however long they take to start; or when it is clear that there are fewer."""
    (folder.path / "work.py").write_text(
        "import os, time\nfrom pathlib import Path\n\n\ndef work(row):\n    Path(f'begun-{os.getpid()}').touch()\n"
        "    end = time.monotonic() + 30\n"
        "    while len(list(Path().glob('begun-*'))) < 3 and time.monotonic() < end:\n        time.sleep(0.02)\n"
        "    return {'pid': os.getpid()}\n"
    )
    pids = {result["pid"] for result in done(folder, "--executor=processes", "--num_workers=3", "--max_concurrency=3")}
    assert len(pids) == 3
    assert "--num_workers" in refused(folder, FUNCTION, "--num_workers=0")


# --- Limits


@option("max_runtime_seconds")
def _max_runtime_seconds(folder: JobFolder) -> None:
    folder.write_rows(["one", "sleep 30"])
    ran = spawn(folder, FUNCTION, "--max_runtime_seconds=1", "--max_attempts=1")
    assert ran.code == 1
    assert [row["status"] for row in folder.rows()] == ["completed", "failed"]
    assert json.loads(folder.jobs("show", "j", "2", "--json").out)["cause"] == "timeout"
    assert "--max_runtime_seconds" in refused(folder, FUNCTION, "--max_runtime_seconds=0")


@option("max_attempts")
def _max_attempts(folder: JobFolder) -> None:
    folder.write_rows(["fail"])
    for count, words in ((1, ["--max_attempts=1"]), (2, [])):
        assert spawn(folder, FUNCTION, f"--job_name=a{count}", *words).code == 1
        assert [row["attempt_count"] for row in folder.rows()] == [str(count)]


@option("fail_threshold")
def _fail_threshold(folder: JobFolder) -> None:
    folder.write_rows(["sleep 0.2 fail"] * 10)
    words = ("--max_attempts=1", "--max_concurrency=1")
    for text, failed in (("3", 3), ("20%", 2)):
        ran = spawn(folder, FUNCTION, *words, f"--fail_threshold={text}", f"--job_name=t{failed}")
        status = folder.status(f"t{failed}")
        assert (ran.code, status["status"]) == (1, "failed")
        assert failed <= status["failed_items"] <= failed + 1
        assert "fail_threshold" in status["last_error"]
    assert "--fail_threshold" in refused(folder, FUNCTION, "--fail_threshold=some")


@option("call_timeout")
def _call_timeout(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    late: list[Reply] = [ScriptedResponse(chat_response("late"), delay=20.0)]

    def reply(request: RecordedRequest) -> Reply:
        return late.pop() if late else reporting()(request)

    assert len(asked(folder, "--call_timeout=0.3", responses=reply)) >= 2


def _stopped(folder: JobFolder, usage: dict[str, Any], *words: str) -> None:
    """A job of five rows stops before its end, exits with 1, and can go on."""
    folder.write_rows([f"text {number}" for number in range(5)])

    def reply(request: RecordedRequest) -> Reply:
        answer = reporting()(request)
        assert isinstance(answer, dict)
        return {**answer, "usage": {"prompt_tokens": 1000, "completion_tokens": 5, "total_tokens": 1005, **usage}}

    with ServerThread(reply) as server:
        where = (f"--base_url={server.base_url}", "--toolsets=none", "--max_concurrency=1", "--max_tokens=10")
        ran = spawn(folder, *where, *words)
        status = folder.status()
        assert (ran.code, status["failed_items"]) == (1, 0), ran
        assert 0 < status["completed_items"] < 5
        assert "left. To continue:" in ran.out
        name = words[0].partition("=")[0]
        assert folder.jobs("run", "j", f"{name}=1000000").code == 0
        assert folder.status()["completed_items"] == 5


@option("max_cost")
def _max_cost(folder: JobFolder) -> None:
    _stopped(folder, {"cost": 1.0}, "--max_cost=2.5")


@option("max_total_tokens")
def _max_total_tokens(folder: JobFolder) -> None:
    _stopped(folder, {}, "--max_total_tokens=4500")


@option("max_seconds")
def _max_seconds(folder: JobFolder) -> None:
    folder.write_rows(["sleep 0.3"] * 20)
    ran = spawn(folder, FUNCTION, "--max_seconds=1", "--max_concurrency=1")
    assert (ran.code, 0 < folder.status()["completed_items"] < 20) == (1, True)


@option("prices")
def _prices(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    (folder.path / "prices.yaml").write_text("own/model:\n  input: 1000000\n  output: 2000000\n")
    bodies = asked(folder, "--prices=prices.yaml", "--model=own/model")
    assert folder.status()["usage"]["cost"] == len(bodies) * (10 + 2 * 5)
    (folder.path / "prices.yaml").write_text("own/model:\n  input: much\n  output: 2\n")
    assert "prices.yaml, line 2" in refused(folder, "--base_url=http://127.0.0.1:9/v1", "--prices=prices.yaml")


# --- Resume


@option("on_divergence")
def _on_divergence(folder: JobFolder) -> None:
    folder.write_rows(["one"])
    answer = {**shell("true"), "usage": {"prompt_tokens": 1, "completion_tokens": 1, "cost": 1.0}}
    for name in ("fresh", "stop"):
        with ServerThread(first(answer)) as server:
            where = (f"--base_url={server.base_url}", f"--job_name={name}", "--toolsets=terminal", "--sandbox=local")
            assert spawn(folder, *where, "--max_cost=1", f"--on_divergence={name}").code == 1
            changed = ("--instruction=Other {text}.", "--override=instruction", "--max_cost=9")
            ended = folder.jobs("run", name, *changed)
            assert ended.code == (0 if name == "fresh" else 1), ended
            assert len(server.requests) == 1 if name == "stop" else len(server.requests) > 2


# --- Output


@option("on_end")
def _on_end(folder: JobFolder) -> None:
    done(folder, "--on_end=cat > told; mv told told.json")
    told, end = folder.path / "told.json", time.monotonic() + 30
    while not told.exists():  # it is told once the job has ended
        assert time.monotonic() < end
        time.sleep(0.02)
    assert json.loads(told.read_text())["ledger"]["completed"] == 3


@option("auto_export")
def _auto_export(folder: JobFolder) -> None:
    for off in ("--no-auto_export", "--no-auto-export", "--auto_export=false"):
        assert spawn(folder, FUNCTION, off, f"--job_name={off[2:]}").code == 0
        assert not (folder.path / "out.csv").exists()
    done(folder)


@option("export_format")
def _export_format(folder: JobFolder) -> None:
    assert spawn(folder, FUNCTION, "--export_format=jsonl").code == 0
    lines = [json.loads(line) for line in (folder.path / "out.csv").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["completed"] * 3
    assert spawn(folder, FUNCTION, "--output_csv_path=out.parquet", "--job_name=p").code == 0
    assert (folder.path / "out.parquet").read_bytes().startswith(b"PAR1")
    assert "--export_format" in refused(folder, FUNCTION, "--export_format=xls")


@option("flatten")
def _flatten(folder: JobFolder) -> None:
    done(folder, "--flatten")
    new = set(folder.rows()[0]) - {"name", "text"}
    done(folder, "--job_name=without")
    assert len(new) == len(set(folder.rows()[0]) - {"name", "text"}) + 2


@option("prompt_columns")
def _prompt_columns(folder: JobFolder) -> None:
    folder.write_rows(["wombat"])

    def prompt(*words: str) -> str:
        return text_of(asked(folder, f"--job_name=j{len(words)}{words}", *words)[0]["messages"][-1])

    usual, text = prompt(), prompt("--prompt_columns=text")
    assert (usual.count("wombat"), '"name": "a"' in usual) == (1, True)  # a cell in the instruction is not sent again
    assert ('"text": "wombat"' in text, '"name"' in text) == (True, False)
    assert "as JSON:" not in prompt("--prompt_columns=none")
    assert '"text": "wombat"' in prompt("--prompt_columns=all")
    assert "--prompt_columns: nope is no column" in refused(folder, "--prompt_columns=nope,text")


@option("limit")
def _limit(folder: JobFolder) -> None:
    folder.write_rows([f"text {number}" for number in range(5)])
    assert [bool(result) for result in done(folder, "--limit=2")] == [True, True, False, False, False]
    status = folder.status()
    assert (status["state"], status["original_status"], status["pending_items"]) == ("limit_reached", "completed", 3)
    assert (status["limit"], status["beyond_limit_items"]) == (2, 3)
    again = folder.jobs("run", "j")
    assert "2 of 5 rows have ended, 3 are beyond --limit=2" in again.err
    assert folder.jobs("wait", "j").code == again.code == 0
    generic = run_command(folder.path, "status", "data/j")
    assert "j: limit reached" in generic.out
    assert "beyond_limit 3" in generic.out
    assert folder.jobs("run", "j", "--limit=3", "--quiet").code == 0
    assert folder.status()["completed_items"] == 3
    fewer = folder.jobs("run", "j", "--limit=1")
    assert "--limit=1 is not taken over: the first row has ended already" in fewer.err
    assert folder.status()["limit"] == 3
    assert folder.jobs("run", "j", "--limit=4", "--quiet").code == 0
    assert "4 of 5 rows have ended, 1 is beyond --limit=4. To continue with it" in folder.jobs("run", "j").err
    assert folder.jobs("run", "j", "--limit=none", "--quiet").code == 0
    assert (folder.status()["state"], folder.status()["completed_items"]) == ("completed", 5)
    assert "--limit must be 1 or more" in refused(folder, "--limit=0")


@option("output_columns")
def _output_columns(folder: JobFolder) -> None:
    assert spawn(folder, FUNCTION, "--output_columns=results,name,status").code == 0
    assert list(folder.rows()[0]) == ["result.length", "result.text", "name", "status"]
    assert "--output_columns: nope is no column" in refused(folder, FUNCTION, "--output_columns=name,nope")


@option("excel_safe")
def _excel_safe(folder: JobFolder) -> None:
    folder.write_rows(["=1+1"])
    done(folder, "--excel_safe")
    assert folder.rows()[0]["text"] == "'=1+1"
    assert (folder.path / "out.csv").read_bytes().startswith(codecs.BOM_UTF8)
    done(folder, "--job_name=without")
    assert folder.rows()[0]["text"] == "=1+1"


@option("output_delimiter")
def _output_delimiter(folder: JobFolder) -> None:
    folder.write_rows(["x,y"])
    assert spawn(folder, FUNCTION, "--output_delimiter=;").code == 0
    assert (folder.path / "out.csv").read_text().splitlines()[1].startswith("a;x,y;")
    assert "can't be used" in refused(folder, FUNCTION, "--output_delimiter=;;")


@option("verbose")
def _verbose(folder: JobFolder) -> None:
    words = ("--toolsets=terminal", "--sandbox=local", "--verbose")
    with ServerThread(first(shell("echo hello"))) as server:
        verbose = spawn(folder, f"--base_url={server.base_url}", *words)
        quiet = spawn(folder, f"--base_url={server.base_url}", *words[:2], "--job_name=q")
    assert "terminal" not in quiet.err
    for item in ("row-1", "row-2", "row-3"):
        assert f"[{item}] completed" in verbose.err
        assert f'[{item}]   terminal({{"command": "echo hello"}}) -> ' in verbose.err


@option("log_prefix_chars")
def _log_prefix_chars(folder: JobFolder) -> None:
    words = ("--toolsets=terminal", "--sandbox=local", "--verbose", "--log_prefix_chars=9")
    with ServerThread(first(shell("echo hello"))) as server:
        ran = spawn(folder, f"--base_url={server.base_url}", *words)
    assert '  terminal({"command…) -> ' in ran.err
    assert "hello" not in ran.err


@option("data_dir")
def _data_dir(folder: JobFolder) -> None:
    done(folder, "--data_dir=else/where")
    assert (folder.path / "else" / "where" / "j" / "run.db").exists()
    assert not (folder.path / "data").exists()
    status = run_command(folder.path, "jobs", "status", "j", "--data_dir=else/where")
    assert status.out.startswith("j: completed")


@option("view")
def _view(folder: JobFolder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder.path / "cache"))
        shown = spawn(folder, "--model=simulated", "--simulated_latency=3", "--view")
    assert "In a browser, while this command runs:  http://127." in shown.err, shown
    assert "In a browser" not in spawn(folder, "--model=simulated", "--job_name=other").err


@option("quiet")
def _quiet(folder: JobFolder) -> None:
    quiet = spawn(folder, FUNCTION)
    loud = spawn(folder, FUNCTION, "--no-quiet", "--job_name=loud")
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out.startswith("Ledger\n")
    assert "loud: 3 of 3 ended" in loud.err
    assert loud.out.startswith("Job ")
    assert "\x1b" not in loud.err + loud.out
