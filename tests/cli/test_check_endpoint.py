"""``manyhands check-endpoint`` against servers that behave as providers do, and worse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import Ran, ServerThread, run_command
from tests.support.host_servers import GATEWAYS, HOSTS, KEY, HostRules, Refusal, openai_error, reply_of


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
    ("reply", "row", "code"),
    [
        (
            ScriptedResponse({"error": {"message": f"wrong key {KEY}"}}, status=401),
            "key accepted *no *HTTP 401: wrong",
            1,
        ),
        (ScriptedResponse(b"<html><title>Login</title>"), r"chat *no *the answer is not .* a web page \(Login\)", 1),
        (ScriptedResponse(b"{" * 10_000), "chat *no *the answer is not a JSON object", 1),
        (ScriptedResponse(b"[" + b'"x",' * 500_000 + b'"x"]'), "chat *no *the answer is larger than", 1),
        (ScriptedResponse({"choices": [{"message": {"content": [[]] * 9}}], "usage": "much"}), "chat *yes", 0),
        (chat_response("x" * 100_000), r"max_tokens heeded *yes", 0),
        (ScriptedResponse({}, status=500, announced=100), "reachable *no *the connection broke", 1),
    ],
    ids=["key", "page", "brackets", "large", "parts", "long", "cut off"],
)
def test_hostile_answers(tmp_path: Path, reply: Reply, row: str, code: int) -> None:
    ran = run_on(tmp_path, reply, "--model=m", "--call_timeout=5")
    assert ran.code == code, ran
    assert re.search(row, ran.out), ran
    assert "internal error" not in ran.err
    assert KEY not in ran.out + ran.err
    assert len(ran.out) < 10_000


def test_a_key_that_may_not_list_models_may_ask_one(tmp_path: Path) -> None:
    refused = ScriptedResponse({"error": {"message": "Missing scopes: api.model.read"}}, status=403)

    def reply(request: RecordedRequest) -> Any:
        return refused if request.method == "GET" else reply_of(request, HostRules())

    ran = run_on(tmp_path, reply, "--model=m")
    assert ran.code == 0, ran
    assert re.search("key accepted *yes", ran.out)
    assert re.search("models listed *no *HTTP 403: Missing scopes", ran.out)
    alone = run_on(tmp_path, reply)
    assert (alone.code, "Missing scopes" in alone.out) == (1, True)


def test_a_second_turn_that_is_refused_says_nothing_about_reasoning(tmp_path: Path) -> None:
    def refuse(body: dict[str, Any]) -> Refusal | None:
        several = any(each["role"] == "assistant" for each in body["messages"])
        return openai_error("conversations must alternate") if several else None

    report, _ = checked(tmp_path, HostRules(refuse=refuse))
    assert report["options"] == ["--model=m"]
    found = report["checks"]["takes reasoning back"]
    assert found["result"] == "unclear"
    assert "conversations must alternate" in found["detail"]


def test_the_name_of_a_model_forges_no_line(tmp_path: Path) -> None:
    name = "m\nTo use it:  --base_url=http://evil/v1"
    ran = run_on(tmp_path, {"data": [{"id": name}]})
    assert (ran.code, ran.out.count("\nTo use it")) == (0, 0)
    assert "give --model: m To use it" in ran.out


def test_what_to_set_holds_what_the_check_was_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM", "ours-0123456789")
    words = ('--extra_body={"top_k": 5}', "--header=X-Team: ${TEAM}", "--header=X-Key: 0123456789")
    report, requests = checked(tmp_path, HostRules(), *words)
    assert report["options"] == ["--model=m", *words[:2], "--header=X-Key: …"]
    assert {each.body["top_k"] for each in requests if each.method == "POST"} == {5}
    shown = run_on(tmp_path, lambda request: reply_of(request, HostRules()), *words).out
    assert """ --model=m '--extra_body={"top_k": 5}' '--header=X-Team: ${TEAM}' '--header=X-Key: …'\n""" in shown
    assert "0123456789" not in shown


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
        (["@servers.txt"], "must be one address: check those in a file one by one"),
        (["https://api.openai.com/v1"], "set OPENAI_API_KEY"),
        (["http://127.0.0.1:9/v1", "--temperature=1"], "unknown option --temperature"),
    ],
)
def test_bad_usage(tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ran = run_command(tmp_path, "check-endpoint", *words)
    assert (ran.code, said in ran.err) == (2, True), ran
