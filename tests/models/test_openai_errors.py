"""What statuses, bodies and headers mean."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from manyhands.core.failures import Cause
from manyhands.core.jsonio import dumps
from manyhands.models.openai.errors import (
    classify,
    classify_payload,
    error_text,
    page_instead,
    parse_rate_headers,
    parse_reset,
    parse_retry_after,
)

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("status", "message", "cause", "passing", "rate_limited"),
    [
        (400, "bad field", Cause.MODEL_REFUSED, False, False),
        (400, "maximum context length is 32768 tokens", Cause.CONTEXT_OVERFLOW, False, False),
        (400, "prompt is too long: 210000 tokens", Cause.CONTEXT_OVERFLOW, False, False),
        (400, "Please reduce the length of the messages", Cause.CONTEXT_OVERFLOW, False, False),
        (422, "the request exceeds the available context size", Cause.CONTEXT_OVERFLOW, False, False),
        (413, "payload", Cause.CONTEXT_OVERFLOW, False, False),
        (401, "no", Cause.AUTHENTICATION, False, False),
        (403, "not permitted", Cause.AUTHENTICATION, False, False),
        (403, "your input was flagged by moderation", Cause.MODEL_REFUSED, False, False),
        (402, "no credit", Cause.PAYMENT, False, False),
        (404, "no such model", Cause.MODEL_REFUSED, False, False),
        (418, "teapot", Cause.MODEL_REFUSED, False, False),
        (307, "", Cause.MODEL_REFUSED, False, False),
        (408, "", Cause.MODEL_ERROR, True, False),
        (409, "", Cause.MODEL_ERROR, True, False),
        (425, "", Cause.MODEL_ERROR, True, False),
        (429, "slow down", Cause.RATE_LIMIT, False, True),
        (429, "insufficient_quota: check your plan", Cause.PAYMENT, False, False),
        (529, "overloaded", Cause.RATE_LIMIT, False, True),
        (500, "oops", Cause.MODEL_ERROR, True, False),
        (503, "oops", Cause.MODEL_ERROR, True, False),
        (599, "oops", Cause.MODEL_ERROR, True, False),
    ],
)
def test_statuses(status: int, message: str, cause: Cause, passing: bool, rate_limited: bool) -> None:
    problem = classify(status, {}, dumps({"error": {"message": message}}), NOW)
    assert (problem.cause, problem.passing, problem.rate_limited) == (cause, passing, rate_limited)
    assert str(status) in problem.message
    if status >= 400:
        assert message in problem.message


def test_a_code_counts_like_words() -> None:
    body = dumps({"error": {"message": "no", "code": "context_length_exceeded"}})
    assert classify(400, {}, body, NOW).cause is Cause.CONTEXT_OVERFLOW
    body = dumps({"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}})
    assert classify(429, {}, body, NOW).cause is Cause.PAYMENT


def test_503_with_retry_after_is_a_rate_limit() -> None:
    problem = classify(503, {"Retry-After": "3"}, b"", NOW)
    assert (problem.rate_limited, problem.retry_after) == (True, 3.0)


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        ({"error": {"code": 429, "message": "slow"}}, Cause.RATE_LIMIT),
        ({"error": {"code": "502", "message": "bad"}}, Cause.MODEL_ERROR),
        ({"error": {"code": 402, "message": "pay"}}, Cause.PAYMENT),
        ({"error": "broken"}, Cause.MODEL_ERROR),
        ({"error": {"code": "context_length_exceeded"}}, Cause.CONTEXT_OVERFLOW),
        ({"choices": [{"error": {"code": 500, "message": "mid"}}]}, Cause.MODEL_ERROR),
        ({"choices": [{"finish_reason": "error"}]}, Cause.MODEL_ERROR),
        ({"choices": [{"finish_reason": "stop"}]}, None),
        ({"error": None}, None),
        ([], None),
        (None, None),
    ],
)
def test_errors_within_an_answer(payload: Any, cause: Cause | None) -> None:
    problem = classify_payload(payload, NOW)
    assert (problem and problem.cause) == cause


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"error": {"message": "a\n  b"}}, "a b"),
        ({"error": "plain"}, "plain"),
        ({"message": "m"}, "m"),
        ({"detail": [{"msg": "field required"}]}, "field required"),
        ([{"error": {"message": "google"}}], "google"),
        (
            {"error": {"message": "Provider returned error", "metadata": {"raw": "why"}}},
            "Provider returned error (why)",
        ),
        ({"x": 1}, ""),
    ],
)
def test_explanations_are_found_and_put_in_one_line(payload: Any, text: str) -> None:
    assert error_text(payload, b"") == text


def test_a_page_of_html_is_cut() -> None:
    assert len(error_text(None, b"<html>" * 10_000)) == 500


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"Retry-After": "Mon, 13 Nov 2023 22:13:30 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(CIMultiDict(headers), NOW) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3s", 3723.0),
        ("20ms", 0.02),
        ("59.5s", 59.5),
        ("30", 30.0),
        (str(NOW + 5), 5.0),
        (str(int(NOW * 1000) + 5000), 5.0),
        ("2023-11-14T22:13:30Z", 10.0),
        ("later", None),
        ("", None),
        (None, None),
    ],
)
def test_resets(value: str | None, seconds: float | None) -> None:
    assert parse_reset(value, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_what_is_used_up_counts_first() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "10",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6s",
    }
    assert parse_rate_headers(headers, NOW) == (0, 6.0)
    del headers["x-ratelimit-remaining-tokens"]
    assert parse_rate_headers(headers, NOW) == (10, 1.0)
    assert parse_rate_headers({}, NOW) == (None, None)


@given(st.integers(300, 599), st.binary(max_size=200), st.text(max_size=20))
def test_any_status_body_and_header_is_taken(status: int, body: bytes, header: str) -> None:
    headers = {"Retry-After": header, "x-ratelimit-remaining": header, "x-ratelimit-reset": header}
    problem = classify(status, headers, body, NOW)
    assert "\n" not in problem.message
    assert parse_rate_headers(headers, NOW)[1] is None or header


# --- Web pages where an answer should be


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            b"<!DOCTYPE html><html><head><title> 404 Not\nFound </title></head><body>nginx</body></html>",
            "404 Not Found",
        ),
        (b"\n<html><body><script>var a = '<b>';</script><h1>Sign in</h1> first</body></html>", "Sign in first"),
        (b"<!-- generated --><HTML><TITLE>Caf\xc3\xa9 &amp; more</TITLE>", "Café & more"),
        (b"<!doctype html><title></title><p>Welcome", "Welcome"),
    ],
)
def test_pages_are_called_by_their_title(page: bytes, words: str) -> None:
    assert error_text(None, page) == f"a web page ({words})"
    problem = page_instead(page)
    assert problem is not None
    assert (problem.passing, problem.refused) == (True, True)
    assert problem.message == f"the answer is not a JSON object but a web page ({words}); is --base_url right?"


@pytest.mark.parametrize("body", [b"", b"{", b"plain text", b"<p>no page", b"a <html>", b"<htmlish>"])
def test_what_is_no_page(body: bytes) -> None:
    assert page_instead(body) is None


def test_a_hostile_page_takes_no_time() -> None:
    began = time.monotonic()
    for piece in (b"<script", b"<", b"<title", b"<!--", b"<style>", b"&"):
        page_instead(b"<html>" + piece * 2_000_000)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("status", "body", "refused"),
    [
        (404, {"error": {"message": "no such model"}}, True),
        (400, {"error": {"message": "unknown parameter"}}, True),
        (401, {"error": {"message": "wrong key"}}, True),
        (402, {}, True),
        (307, {}, True),
        (400, {"error": {"message": "flagged by moderation"}}, False),
        (400, {"error": {"message": "maximum context length is 5"}}, False),
        (429, {"error": {"message": "slow down"}}, False),
        (500, {}, False),
    ],
)
def test_what_everybody_would_be_refused(status: int, body: Any, refused: bool) -> None:
    assert classify(status, {}, dumps(body), 0.0).refused is refused
