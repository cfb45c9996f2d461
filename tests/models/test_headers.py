"""A person's own headers: read, kept out of records, found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.clock import SystemClock
from manyhands.core.errors import ItemError, UserError
from manyhands.core.redaction import KNOWN
from manyhands.engine.limits.shared import SharedLimits
from manyhands.models.headers import as_secrets, headers_among, read_headers, secrets_in, usable_headers
from manyhands.models.openai.client import OpenAIChatModel
from manyhands.models.openai.errors import ONCE
from manyhands.models.protocol import ChatRequest, ChatSettings
from manyhands.models.settings import ModelSettings
from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, ScriptedServer, chat_response
from tests.support.batches import BatchFolder, ServerThread, run_command

NAMES = st.from_regex(r"X-[A-Za-z0-9-]{1,20}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40).filter(
    lambda text: "${" not in text
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_given_is_sent_and_its_values_are_not_kept(headers: dict[str, str]) -> None:
    kept = {name.lower(): name for name in headers}
    given_headers = read_headers([f"{name}: {value}" for name, value in headers.items()])
    assert given_headers == read_headers(headers)
    sent = usable_headers(given_headers, None, {})
    assert {name.lower() for name in sent} == kept.keys()
    assert all(headers[name] == value for name, value in sent.items())
    assert [header.recorded for header in given_headers or ()] == list(sent)
    assert headers_among(as_secrets(sent, "key"), "key") == sent
    settings = ModelSettings(header=headers)
    assert settings.recorded()["recorded_headers"] is None
    assert "value=" not in repr(settings.header)


def test_variables_are_recorded_and_looked_up() -> None:
    headers = read_headers(["Authorization: Bearer ${TOKEN}", "X-Plain: plain", "X-Mixed: secret-${TOKEN}"])
    recorded = [header.recorded for header in headers or ()]
    assert recorded == ["Authorization: Bearer ${TOKEN}", "X-Plain", "X-Mixed"]
    assert usable_headers(headers, None, {"TOKEN": "t"})["X-Mixed"] == "secret-t"
    assert usable_headers(None, recorded[:1], {"TOKEN": "u"}) == {"Authorization": "Bearer u"}
    with pytest.raises(UserError, match="the environment variable TOKEN is not set"):
        usable_headers(None, recorded[:1], {})
    with pytest.raises(UserError, match="give them again, --header='X-Plain: …' --header='X-Mixed: …'"):
        usable_headers(None, recorded, {"TOKEN": "t"})


@pytest.mark.parametrize(
    "wrong",
    ["no colon", ": value", "X Y: z", "X-A:", "X-A: a\nX-B: b", "Host: h", "content-length: 3", "X-A: ä", [3]],
)
def test_wrong_headers_are_refused_without_their_values(wrong: object) -> None:
    with pytest.raises(ValueError) as caught:
        read_headers(wrong)
    assert "z" not in str(caught.value)


def test_only_what_looks_like_a_secret_is_taken_out_of_texts() -> None:
    headers = {"X-Team": "production", "X-Api-Key": "short-key", "Authorization": "Bearer abcdef", "X-Id": "a1" * 12}
    assert set(secrets_in(headers)) == {"short-key", "Bearer abcdef", "abcdef", "a1" * 12}


TAKES_NO = {"error": {"message": "X-Rev 1000 error: max_tokens is not supported", "code": 1000, "type": "invalid"}}
FAILED = {"error": {"message": "not for my-own-team-1", "code": 400, "type": "invalid"}}


async def problem_of(reply: Reply, headers: dict[str, str]) -> str:
    """What is told of a refusal."""
    async with ScriptedServer([reply]) as server:
        model = OpenAIChatModel(server.base_url, headers=headers, retries=ONCE)
        request = ChatRequest(ChatSettings("m"), [{"role": "user", "content": "hello"}])
        with pytest.raises(ItemError) as caught:
            await model.complete(request, SharedLimits(), SystemClock())
        await model.close()
    return caught.value.message


@pytest.mark.parametrize(
    "reply",
    [
        ScriptedResponse(FAILED, 400),
        ScriptedResponse(FAILED),
        ScriptedResponse({"choices": [{"error": FAILED["error"]}]}),
        ScriptedResponse(b"not for my-own-team-1", 400),
        ScriptedResponse(b"<html><title>not for my-own-team-1</title></html>"),
        ScriptedResponse(b"", 307, {"Location": "https://login/?team=my-own-team-1"}),
    ],
    ids=lambda reply: f"{reply.status} {reply.body!r}"[:40],
)
async def test_no_refusal_repeats_the_value_of_a_header(reply: ScriptedResponse) -> None:
    told = await problem_of(reply, {"X-Team": "my-own-team-1"})
    assert "[redacted]" in told
    assert "my-own" not in told


async def test_a_header_whose_value_is_part_of_another_s_leaves_nothing_of_it() -> None:
    failed = ScriptedResponse({"error": {"message": "no project acme-bid of acme"}}, 400)
    told = await problem_of(failed, {"X-Org": "acme", "X-Project": "acme-bid"})
    assert "no project [redacted] of [redacted]" in told


async def test_a_header_of_common_words_does_not_spoil_what_a_refusal_says() -> None:
    notices: list[str] = []
    headers = {"X-Kind": "error", "X-Rev": "1000", "X-Field": "message"}

    def reply(request: RecordedRequest) -> Reply:
        return (
            ScriptedResponse(TAKES_NO, 400) if "max_tokens" in request.body else chat_response("an error, 1000 times")
        )

    async with ScriptedServer(reply) as server:
        model = OpenAIChatModel(server.base_url, headers=headers)
        request = ChatRequest(ChatSettings("m", max_tokens=9), [{"role": "user", "content": "hello"}])
        completion = await model.complete(request, SharedLimits(notice=notices.append), SystemClock())
        await model.close()
    assert completion.message["content"] == "an error, 1000 times"
    assert [each.body.get("max_completion_tokens") for each in server.requests] == [None, 9]


@pytest.mark.parametrize("url", ["http://h/v1?api_key=x", "http://h/v1?sig=x", "http://h/v1?subscription-key=x"])
def test_a_key_in_a_base_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="give it with --api_key or --header"):
        ModelSettings.make({"base_url": url}, lambda name: f"--{name}")
    versioned = "http://h/v1?api-version=2024-10-21"
    assert ModelSettings(base_url=versioned).base_url == versioned


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"api_key": "x"}, "api_key"),
        ({"api-key": {"a": "x"}}, "api-key"),
        ({"litellm_params": {"apiKey": "sk-x"}}, "litellm_params.apiKey"),
        ({"access_token": "t"}, "access_token"),
        ({"fallbacks": [{"model": "m"}, {"token": "t"}]}, "fallbacks.token"),
        ({"extra_headers": {"Authorization": "Bearer s"}}, "extra_headers.Authorization"),
    ],
)
def test_a_key_in_the_body_is_refused(body: dict[str, object], field: str) -> None:
    with pytest.raises(UserError, match=f"can't set {field}, which would be recorded"):
        ModelSettings.make({"extra_body": body}, lambda name: f"--{name}")


@pytest.mark.parametrize(
    "body",
    [
        {"provider": [{"api_key": "first-key-5f1b"}, {"api_key": "second-key-5f1b"}]},
        {"api_key": ["first-key-5f1c", "second-key-5f1c"]},
        {"credentials": {"user": "first-key-5f1d", "password": "second-key-5f1d"}},
    ],
)
def test_all_keys_of_a_body_that_is_refused_are_known_as_secrets(body: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ModelSettings.make({"extra_body": body}, lambda name: f"--{name}")
    assert "-key-5f1" not in KNOWN.text(json.dumps(body))


@pytest.mark.parametrize(
    "body",
    [
        {"min_tokens": 1, "thinking": {"budget_tokens": 9}, "skip_special_tokens": False, "prompt_cache_key": "c"},
        {"chat_template_kwargs": {"bos_token": "<s>"}},
        {"guided_json": {"properties": {"password": {"type": "string"}}, "required": ["password"]}},
    ],
)
def test_what_is_no_key_stays_in_the_body(body: dict[str, object]) -> None:
    assert ModelSettings.make({"extra_body": body}, lambda name: f"--{name}").extra_body == body


def test_a_resume_finds_a_header_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BatchFolder(tmp_path)
    monkeypatch.setenv("GATEWAY_KEY", "first-0123456789")
    with ServerThread() as server:
        words = (f"--base_url={server.base_url}", "--header=X-Gateway-Key: ${GATEWAY_KEY}", "--max_samples=1")
        assert folder.batch(*words).code == 0
        monkeypatch.setenv("GATEWAY_KEY", "second-0123456789")
        ran = run_command(tmp_path, "resume", "r", "--max_samples=2", "--quiet")
        assert ran.code == 0, ran
        sent = [each.headers["X-Gateway-Key"] for each in server.requests]
    assert sent == ["first-0123456789", "second-0123456789"]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"0123456789" not in kept
    assert json.dumps("X-Gateway-Key: ${GATEWAY_KEY}").encode() in kept
