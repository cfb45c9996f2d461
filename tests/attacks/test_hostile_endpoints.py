"""Endpoints that answer with too much, too slowly, or with something else: a call ends within its limits, and the key goes nowhere else."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.attacks.hostile_call import KEY, called
from tests.attacks.hostile_server import Answer, HostileServer, bomb, completion, endless, fixed, head, whole
from tests.support.commands import batch_words, ledger, run, write_prompts

GROWTH = 420
"""MB that a process may grow by for one call, whose answer may have 64 MB."""
GZIP, ZLIB = 31, 15
CHUNKED = head(Transfer_Encoding="chunked")
MEGABYTE = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"


@dataclass(frozen=True, slots=True)
class Hostile:
    """An endpoint. ``says``: what the call ends with, in part."""

    name: str
    answer: Answer
    says: str = "model_error"


@cache
def packed(wbits: int) -> bytes:
    return bomb(4 << 30, wbits)


HOSTILE = (
    Hostile("a byte now and then", endless(head(Content_Length="100000"), b" ", 0.2), "no answer within"),
    Hostile("a chunk now and then", endless(CHUNKED, b"1\r\n \r\n", 0.2), "no answer within"),
    Hostile("a header now and then", endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.2), "no answer within"),
    Hostile("interim answers for ever", endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01)),
    Hostile("an endless body", endless(CHUNKED, MEGABYTE), "larger than"),
    Hostile("an endless body without a length", endless(head(), b" " * (1 << 20)), "larger than"),
    Hostile(
        "an endless body of an error", endless(head("500 Oh", Transfer_Encoding="chunked"), MEGABYTE), "larger than"
    ),
    Hostile("a length beyond all", fixed(head(Content_Length=str(1 << 60)), b"{"), "broke"),
    Hostile("endless headers", endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 4000 + b"\r\n")),
    Hostile("a giant header", fixed(head(X="y" * (8 << 20)), b"{}")),
    Hostile("a status line of megabytes", fixed(b"HTTP/1.1 200 " + b"O" * (4 << 20) + b"\r\n\r\n")),
    Hostile("a gzip bomb", lambda: whole(packed(GZIP), Content_Encoding="gzip")()),
    Hostile("a deflate bomb", lambda: whole(packed(ZLIB), Content_Encoding="deflate")()),
    Hostile("a gzip bomb in an error", lambda: whole(packed(GZIP), "400 No", Content_Encoding="gzip")()),
    Hostile("gzip that is none", whole(b"{}" * 99, Content_Encoding="gzip")),
    Hostile(
        "gzip that is cut", whole(zlib.compress(completion("x" * 99999), wbits=GZIP)[:60], Content_Encoding="gzip")
    ),
    Hostile("an answer that is cut", fixed(head(Content_Length="5000"), completion()), "broke"),
    Hostile("no answer", fixed(b"")),
    Hostile("no HTTP", fixed(b"SSH-2.0-OpenSSH_9.2\r\n" * 99)),
    Hostile("a page", whole(b"<html>Sign in to the hotel</html>", Content_Type="text/html"), "not a JSON"),
    Hostile("JSON as a page", whole(completion(), Content_Type="text/html"), "answer: yes"),
    Hostile("deep JSON", whole(b'{"choices":' + b"[" * 500_000 + b"]" * 500_000 + b"}")),
    Hostile("deep JSON in an error", whole(b'{"error":' * 300_000, "418 I"), "model_refused"),
    Hostile("millions of objects", whole(b'{"choices":[' + b'{"a":1},' * 3_000_000 + b"{}]}"), "not a JSON"),
    Hostile("an error whose code is no number", whole('{"error":{"code":"²"}}'.encode()), "holds an error"),
    Hostile("an error with a long code", whole(completion(error={"code": "9" * 5000})), "holds an error"),
    Hostile("an error of millions of objects", whole(b'{"error":[' + b'{"a":1},' * 3_000_000 + b"{}]}", "502 Bad")),
    Hostile(
        "a hundred thousand tool calls",
        whole(completion().replace(b'"content"', b'"tool_calls":[' + b"{}," * 100_000 + b'{}],"content"')),
        "tool calls",
    ),
    Hostile(
        "a long number", whole(completion(usage="N").replace(b'"N"', b'{"prompt_tokens":' + b"9" * 100_000 + b"}"))
    ),
    Hostile("events for ever", endless(head(Content_Type="text/event-stream"), b'data: {"choices":[]}\n\n', 0.1)),
    Hostile("a wait of years", whole(b"{}", "429 Slow", Retry_After="99999999"), "rate_limit"),
    Hostile("a wait of ever", whole(b"{}", "429 Slow", Retry_After="inf", X_RateLimit_Reset="1e309"), "rate_limit"),
    Hostile("an error page of megabytes", whole(b"<p>" * (2 << 20), "502 Bad", Content_Type="text/html")),
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda each: each.name.replace(" ", "-"))
def test_a_call_ends_within_its_limits(hostile: Hostile) -> None:
    with HostileServer(hostile.answer) as server:
        came = called(server.base_url)
    (said,) = came["said"]
    assert hostile.says in said or (hostile.name == "a long number" and said.startswith("answer"))
    assert "\n" not in said
    assert len(said) < 3000
    assert KEY not in said
    assert came["grown"] < GROWTH


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
def test_no_redirect_is_followed(status: str) -> None:
    """Neither the key nor what was asked goes to another server, or to the same one without encryption."""
    with HostileServer(whole(completion())) as other:
        for location in (other.base_url.replace("http://", "//"), f"{other.base_url}/chat/completions"):
            with HostileServer(whole(b"", status, Location=location, Refresh=f"0; url={location}")) as server:
                (said,) = called(server.base_url)["said"]
                assert "redirected to" in said
                assert all(KEY.encode() in request for request in server.requests)
        assert other.requests == []


def test_bombs_at_once_are_bounded_together() -> None:
    with HostileServer(lambda: whole(packed(GZIP), Content_Encoding="gzip")()) as server:
        came = called(server.base_url, 8)
    assert all(said.startswith("model_error") for said in came["said"])
    assert came["grown"] < 8 * GROWTH


@pytest.mark.slow
def test_a_run_outlives_hostile_answers(tmp_path: Path) -> None:
    """Every prompt meets some of them, is asked again, and ends completed."""
    by_name = {each.name: each for each in HOSTILE}
    turn = itertools.count()
    wanted = [
        "a page",
        "an answer that is cut",
        "gzip that is none",
        "a gzip bomb in an error",
        "deep JSON",
        "an endless body",
    ]

    def answer() -> AsyncIterator[bytes]:
        number = next(turn)
        return by_name[wanted[number // 2 % len(wanted)]].answer() if number % 2 else whole(completion())()

    write_prompts(tmp_path / "prompts.jsonl", (f"Question {number}" for number in range(12)))
    with HostileServer(answer) as server:
        options = {
            "model": "some/model",
            "keep_unreasoned": True,
            "num_workers": 2,
            "concurrency": 2,
            "call_timeout": 5,
        }
        ended = run(*batch_words(tmp_path, base_url=server.base_url, **options))
    found = ledger(tmp_path / "r")
    assert "Traceback" not in ended.err
    assert found["completed"] + found["failed"] == 12
    assert found["completed"] >= 6
    assert found["pending"] == 0
