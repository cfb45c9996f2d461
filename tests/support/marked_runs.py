"""Small runs of every workload in which each text that a person, a data set, a model, a tool or a file gives is a mark, to be replaced.

A mark is ``q7`` + letters + ``7q``; it passes as a name, an id, a word of a text. Those that begin with ``the`` are the same in a whole
run (a column, a target, a model); what others stand for differs from item to item.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import BatchFolder, ServerThread, prompt_of, run_command
from tests.support.engine_runs import perform_steps_run
from tests.support.eval_runs import perform_eval
from tests.support.memory_benchmarks import opened, performed, write_configuration


def mark(name: str) -> str:
    """The mark of a name."""
    return f"q7{name}7q"


def _call(number: int, arguments: str, name: str = "terminal") -> dict[str, Any]:
    return {"id": f"{mark('callid')}{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


# --- Trajectories

_JUDGE = f"""\
import json
print(json.dumps({{
    "score": 0.5, "hits": ["{mark("hit")}"], "misses": ["{mark("miss")}"], "reasoning": "{mark("reasoning")}",
    "details": {{"{mark("detailname")}": "{mark("detail")}"}},
    "assertions": [{{"text": "{mark("assertion")}", "passed": True, "evidence": "{mark("evidence")}"}}],
}}))
"""
_ROWS: Sequence[Mapping[str, Any]] = (
    {"prompt": f"{mark('prompt')} one", "id": mark("id"), mark("thefield"): mark("value")},
    {"prompt": f"{mark('prompt')} two", "id": f"{mark('id')}2"},
    {"prompt": f"{mark('prompt')} three", "id": f"{mark('id')}3"},
)


def _answered(request: RecordedRequest) -> Reply:
    asked = prompt_of(request)
    if asked.endswith("three"):
        return ScriptedResponse({"error": {"message": mark("error"), "code": mark("code")}}, 400)
    if asked.endswith("one") and all(message["role"] != "tool" for message in request.body["messages"]):
        calls = [
            _call(1, json.dumps({"command": f"printf '%s' '{mark('output')}'"})),
            _call(2, json.dumps({"command": f"echo {mark('argument')} >&2; exit 3"})),
            _call(3, '{"command": "' + mark("broken")),
            _call(4, json.dumps({mark("unknownname"): mark("unknown")}), mark("tool")),
        ]
        return chat_response(mark("content"), reasoning=mark("thought"), tool_calls=calls)
    reply = chat_response(mark("answer"), reasoning=mark("thought"))
    reply["model"] = mark("realmodel")
    reply["choices"][0]["finish_reason"] = mark("finish")
    return reply


def trajectories(folder: Path) -> Path:
    """Of three prompts, one with tools, one without, one that fails."""
    (folder / "judge.py").write_text(_JUDGE)
    (folder / "checks.yaml").write_text(
        f"- {{name: {mark('thegrader')}, type: code_judge, script: [{sys.executable}, judge.py]}}\n"
    )
    batch = BatchFolder(folder, _ROWS)
    with ServerThread(_answered) as server:
        options = ("--max_attempts=2", "--grade=checks.yaml", f"--ephemeral_system_prompt={mark('thesystem')}")
        batch.batch(f"--base_url={server.base_url}", f"--model={mark('themodel')}", *options)
    return batch.run()


# --- Evaluations

_OWN = f"""\
def answer(asked):
    if asked["id"].endswith("broken"):
        raise ValueError("{mark("failure")}")
    call = {{"tool": "{mark("tool")}", "input": {{"{mark("inputname")}": "{mark("argument")}"}}, "output": "{mark("output")}"}}
    return {{"output": [{{"role": "assistant", "content": "{mark("content")}", "tool_calls": [call]}}],
            "file_changes": "--- a/{mark("file")}\\n+++ b/{mark("file")}\\n@@ -1 +1 @@\\n-{mark("before")}\\n+{mark("after")}\\n"}}

def other(asked):
    return {{"text": "{mark("othertext")}"}}
"""


def evals(folder: Path) -> Path:
    """Of three tests at two targets, of which one is graded, one is flaky, one fails."""
    (folder / "judge.py").write_text(_JUDGE)
    (folder / "own.py").write_text(_OWN)
    known = [
        {"name": mark(f"thetarget{name}"), "provider": "python", "function": f"own.py:{name}"}
        for name in ("answer", "other")
    ]
    tests = [
        {
            "id": f"{mark('testid')}{end}",
            "input": [{"role": "system", "content": mark("system")}, {"role": "user", "content": mark("prompt")}],
            "criteria": mark("criteria"),
            "expected_output": mark("expected"),
            "metadata": {"category": mark("thecategory"), mark("metaname"): mark("meta")},
            "tags": [mark("thetag"), mark("thetagtwo")],
        }
        for end in ("", "-two", "-broken")
    ]
    suite = {
        "description": mark("thedescription"),
        "targets": known,
        "execution": {"targets": [each["name"] for each in known], "trials": {"count": 2, "strategy": "mean"}},
        "assert": [
            {"type": "contains", "name": mark("therule"), "value": mark("content")},
            {"type": "code_judge", "name": mark("thegrader"), "script": [sys.executable, "judge.py"]},
        ],
        "tests": tests,
    }
    (folder / f"{mark('thefile')}.yaml").write_text(json.dumps(suite))
    run = asyncio.run(perform_eval(folder, file=f"{mark('thefile')}.yaml", max_attempts=1))
    return run.folder


# --- Jobs

_WORK = f"""\
def work(row):
    if row["{mark("thecolumn")}"].endswith("fail"):
        raise ValueError("{mark("failure")}")
    if row["{mark("thecolumn")}"].endswith("wrong"):
        return {{"{mark("theproperty")}": 7, "{mark("moreproperty")}": "{mark("more")}"}}
    return {{"{mark("theproperty")}": "{mark("result")}"}}
"""
_SCHEMA = {
    "type": "object",
    "title": mark("thetitle"),
    "properties": {mark("theproperty"): {"type": "string", "description": mark("theabout")}},
    "required": [mark("theproperty")],
    "additionalProperties": False,
}


def jobs(folder: Path) -> Path:
    """Of three rows, of which one is done, one fails, one reports what does not fit."""
    (folder / "work.py").write_text(_WORK)
    (folder / "schema.json").write_text(json.dumps(_SCHEMA))
    heads = [mark("thecolumn"), mark("thecolumntwo")]
    rows = [[f"{mark('cell')}{end}", mark("othercell")] for end in ("", "fail", "wrong")]
    (folder / "rows.csv").write_text("".join(",".join(row) + "\n" for row in (heads, *rows)))
    words = ["--worker_function=work.py:work", "--output_schema=schema.json", "--job_name=j", "--max_attempts=1"]
    words += [f"--instruction={mark('theinstruction')} {{{mark('thecolumn')}}}", "--output_csv_path=out.csv"]
    ran = run_command(folder, "jobs", "spawn", "rows.csv", "--executor=local", "--quiet", *words)
    assert ran.code == 1, ran
    return folder / "data" / "j"


# --- Memory


def memory(folder: Path) -> Path:
    """Three conversations with simulated agents. Nothing in it is marked: whatever is a sentence is to be replaced."""
    write_configuration(folder, ["colours", "shopping"], span=1500, examples=1)
    asyncio.run(performed(opened(folder, ("perfect", "forgetful", "simulated"), max_prompt_size=600)))
    return folder / "data" / "tests" / "small"


# --- Steps


def steps(folder: Path) -> Path:
    """Three items of nothing but steps, of which one fails."""
    spec = {
        "items": [mark("key"), f"{mark('key')}2", f"{mark('key')}3"],
        "steps": 2,
        "tag": mark("thetagofrequests"),
        "failures": {f"{mark('key')}3": ["tool_error"] * 9},
        "execution": {"executor": "local", "max_attempts": 2},
    }
    perform_steps_run(folder / "run", spec)
    return folder / "run"


MARKED = {"trajectories": trajectories, "evals": evals, "jobs": jobs, "memory": memory, "steps": steps}
"""What makes a run of each workload in an empty folder, and gives the run's folder."""
