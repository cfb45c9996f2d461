"""``manyhands check-endpoint`` against servers that behave as providers do, and worse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import Ran, ServerThread, run_command
from tests.support.host_servers import GATEWAYS, HOSTS, KEY, HostRules, reply_of


def checked(folder: Path, rules: HostRules, *words: str) -> tuple[dict[str, Any], list[RecordedRequest]]:
    """What is found out about such an endpoint, as JSON, and what it was asked."""
    with ServerThread(lambda request: reply_of(request, rules)) as server:
        ran = run_command(folder, "check-endpoint", server.base_url, f"--api_key={KEY}", "--json", *words)
        assert ran.code == 0, ran
        report: dict[str, Any] = json.loads(ran.out)
        report["options"] = [option for option in report["options"] if not option.startswith("--base_url")]
        return report, server.requests


def results(report: dict[str, Any]) -> dict[str, str]:
    return {name: check["result"] for name, check in report["checks"].items()}


def test_an_endpoint_that_can_do_everything(tmp_path: Path) -> None:
    report, requests = checked(tmp_path, HostRules())
    found = results(report)
    assert report["usable"]
    assert report["model"] == "m"
    assert report["options"] == ["--model=m"]
    can = ("reachable", "key accepted", "chat", "system messages", "tool calls", "reasoning returned", "usage reported")
    assert {found[name] for name in can} == {"yes"}
    assert report["checks"]["reasoning returned"]["detail"] == "reasoning"
    assert report["used"]["calls"] == len([each for each in requests if each.method == "POST"])
    assert report["used"]["input_tokens"] > 0


@pytest.mark.parametrize(
    ("rules", "options", "advice", "detail"),
    [
        (GATEWAYS["strict"], ["--send_reasoning=never"], "", "refuses reasoning_content, reasoning"),
        (GATEWAYS["thinking"], [], "", "as reasoning_content; refuses reasoning; and wants it"),
        (HostRules(refuse=HOSTS["api.cerebras.ai"].refuse), [], "", "as reasoning; refuses reasoning_content"),
        (
            HostRules(reasoning_field="", refuse=GATEWAYS["openai behind"].refuse),
            ["--send_reasoning=never"],
            "leave out --temperature",
            "refuses reasoning_content, reasoning",
        ),
        (GATEWAYS["pydantic"], ["--send_reasoning=never"], "", "refuses reasoning_content, reasoning"),
    ],
)
def test_what_to_set(tmp_path: Path, rules: HostRules, options: list[str], advice: str, detail: str) -> None:
    report, _ = checked(tmp_path, rules, "--model=m")
    assert report["options"] == ["--model=m", *options]
    assert report["checks"]["takes reasoning back"]["detail"] == detail
    assert advice in " ".join(report["advice"])


def test_the_name_of_the_bound_is_found_out(tmp_path: Path) -> None:
    report, _ = checked(tmp_path, GATEWAYS["openai behind"])
    assert "max_completion_tokens heeded" in report["checks"]
    assert any("takes no max_tokens" in sentence for sentence in report["advice"])


def run_on(folder: Path, reply: Any, *words: str) -> Ran:
    with ServerThread(reply if callable(reply) else [reply]) as server:
        return run_command(folder, "check-endpoint", server.base_url, f"--api_key={KEY}", *words)


def test_a_table_for_people(tmp_path: Path) -> None:
    ran = run_on(tmp_path, lambda request: reply_of(request, GATEWAYS["strict"]))
    assert ran.code == 0
    assert "--model=m --send_reasoning=never" in ran.out
    assert "takes reasoning back    no" in ran.out
    assert "model calls" in ran.out.splitlines()[-1]
    assert KEY not in ran.out + ran.err


def test_without_a_model_only_what_is_free_is_asked(tmp_path: Path) -> None:
    listed = {"data": [{"id": "a"}, {"id": "b\x1b[31m" + "x" * 5000}, {"id": 3}, "nonsense"]}
    with ServerThread([listed]) as server:
        ran = run_command(tmp_path, "check-endpoint", server.base_url)
        assert [each.method for each in server.requests] == ["GET"]
    assert (ran.code, "\x1b" in ran.out) == (0, False)
    assert "give --model: a, b" in ran.out
    assert len(ran.out) < 2000


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (ScriptedResponse({"error": {"message": f"wrong key {KEY}"}}, status=401), "key accepted  no"),
        (ScriptedResponse(b"<html><title>Login</title>"), "Login"),
        (ScriptedResponse(b"{" * 10_000), "chat"),
        (ScriptedResponse(b"[" + b'"x",' * 500_000 + b'"x"]'), "larger than"),
        (ScriptedResponse({"choices": [{"message": {"content": [[]] * 9}}], "usage": "much"}), "chat"),
        (chat_response("x" * 100_000), "chat"),
        (ScriptedResponse({}, status=500, announced=100), "broke"),
    ],
)
def test_hostile_answers(tmp_path: Path, reply: Reply, said: str) -> None:
    ran = run_on(tmp_path, reply, "--model=m", "--call_timeout=5")
    assert ran.code in (0, 1)
    assert said in ran.out
    assert "internal error" not in ran.err
    assert KEY not in ran.out + ran.err
    assert len(ran.out) < 10_000


def test_an_endpoint_that_is_not_there(tmp_path: Path) -> None:
    ran = run_command(tmp_path, "check-endpoint", "http://127.0.0.1:9/v1", "--model=m")
    assert ran.code == 1
    assert "Connection refused" in ran.out


def test_an_answer_that_never_comes(tmp_path: Path) -> None:
    ran = run_on(tmp_path, ScriptedResponse({}, delay=30), "--model=m", "--call_timeout=0.2")
    assert ran.code == 1
    assert "no answer within 0.2 s" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["not-a-url"], "must be an address"),
        (["https://api.openai.com/v1"], "set OPENAI_API_KEY"),
        (["http://127.0.0.1:9/v1", "--temperature=1"], "unknown option --temperature"),
    ],
)
def test_bad_usage(tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ran = run_command(tmp_path, "check-endpoint", *words)
    assert (ran.code, said in ran.err) == (2, True), ran
