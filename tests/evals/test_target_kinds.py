"""Every kind of target that the registry has opens and answers, is documented, and has its keys in the schema."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from manyhands.models.factory import OWN_KEY_VARIABLE, key_variable
from manyhands.testing.scripted_server import ScriptedServer, chat_response
from manyhands.workloads.evals.evalfile.keys import DEPRECATED
from manyhands.workloads.evals.schema import targets_schema
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.models import BASE_URLS
from manyhands.workloads.evals.targets.kinds.registry import ALIASES, BEYOND, KINDS
from tests.support.eval_runs import perform_eval

PAGE = Path(__file__).parents[2] / "docs/reference/targets.md"
PROGRAM = """\
import sys
words = sys.argv[1:]
file = words[words.index("--output-last-message") + 1] if "--output-last-message" in words else None
print("said so", file=open(file, "w") if file else sys.stdout)
"""


def keys_of(kind: str) -> list[str]:
    """The keys that a kind has besides those of every kind, but for such as older versions have."""
    fields = KINDS[kind].block().model_fields
    old = {name for name, field in fields.items() if field.json_schema_extra == DEPRECATED}
    return [name for name in fields if name not in TargetBlock.model_fields and name not in old]


def written(folder: Path, base_url: str) -> dict[str, str]:
    """What to write for keys, of whatever kind, so that a target answers with ``said so``."""
    program = folder / "program"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    (folder / "own.py").write_text("def answer(asked):\n    return 'said so'\n")
    (folder / "answers.jsonl").write_text('{"id": "a", "text": "said so"}\n')
    line = {"test_id": "any", "message_index": 0, "role": "assistant", "content": "said so"}
    (folder / "session.jsonl").write_text(json.dumps(line))
    (folder / "session").mkdir()
    event = {"type": "assistant.message", "data": {"content": "said so"}}
    (folder / "session/events.jsonl").write_text(json.dumps(event))
    (folder / ".env").write_text("KEY_OF_SERVER=key-0123456789abcdef\n")
    return {
        "command": f"{program} > {{OUTPUT_FILE}}",
        "executable": str(program),
        "function": "own.py:answer",
        "path": "answers.jsonl",
        "response": "said so",
        "session_dir": "session",
        "base_url": base_url,
        "api_key": "${{ KEY_OF_SERVER }}",
        "model": "m",
    }


async def test_every_kind_opens_and_answers(tmp_path: Path) -> None:
    async with ScriptedServer([chat_response("said so")]) as server:
        values = written(tmp_path, server.base_url)
        targets = {
            kind: {"provider": kind, **{key: value for key, value in values.items() if key in keys_of(kind)}}
            for kind in KINDS
        }
        targets["transcript"]["path"] = "session.jsonl"
        targets["agentv"]["model"] = "openai:m"
        suite = {
            "targets": targets,
            "execution": {"targets": list(KINDS)},
            "tests": [{"id": "a", "criteria": "c", "input": "i"}],
            "assert": [{"type": "contains", "value": "said so"}],
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        run = await perform_eval(tmp_path, max_attempts=1)

    found = {each["target"]: (each["status"], each.get("error")) for each in run.records()}
    assert found == dict.fromkeys(KINDS, ("passed", None))
    assert {each["target"] for each in run.records() if each.get("simulated")} == {
        name for name, kind in KINDS.items() if kind.simulated
    }


def test_every_kind_is_in_the_table_of_kinds() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Kinds")[2].partition("Aliases of kinds")[0]
    first = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(first))) - {"provider"} == set(KINDS)


def test_providers_have_a_variable_of_their_own_for_the_key() -> None:
    assert [kind for kind, url in BASE_URLS.items() if key_variable(url) == OWN_KEY_VARIABLE] == []


def test_kinds_that_are_refused_are_none_of_ours() -> None:
    page = (PAGE.parents[1] / "evaluations.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w-]+)`", page.partition("The target kinds")[2].partition("can't be used")[0])
    assert named
    assert set(named) <= set(BEYOND)
    assert not set(BEYOND) & KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_a_kind_is_documented_and_in_the_schema(kind: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    schema = targets_schema()["$defs"]
    names = [kind, kind.upper().replace("-", "_"), *(alias for alias, of in ALIASES.items() if of == kind)]
    for name in names:
        branches = [
            each["then"]["$ref"].rpartition("/")[2]
            for each in schema["Target"]["allOf"]
            if re.search(each["if"]["properties"]["provider"]["pattern"], name)
        ]
        assert branches == [KINDS[kind].block().__name__], name
    block = KINDS[kind].block().__name__
    for key in keys_of(kind):
        assert f"\n| `{key}`" in page, key
        assert key in schema[block]["properties"], key
