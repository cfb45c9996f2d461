"""What an endpoint's errors mean (the cause, whether trying again can help, and how long to wait), and how failed calls are tried again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from manyhands.core.digests import derived_random
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, dumps, loads_mended
from manyhands.core.redaction import KNOWN
from manyhands.core.text import cut

_MAX_MESSAGE = 500
_MAX_READ = 8 * _MAX_MESSAGE
"""Characters of an explanation that are looked at."""
_MAX_BRACKETS = 1_000_000
"""Arrays and objects of an answer at most: in memory, each takes up to fifty times the bytes that it has in JSON."""
_CONTEXT = re.compile(
    r"context[ _-]?(length|size|window)|token limit|too many tokens|reduce the length|exceeds the limit"
    r"|(prompt|input|request) is too (long|large)|payload too large|exceed\w{0,20} .{0,40}context",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient[ _](quota|credit|balance|funds)", re.IGNORECASE)
_MODERATED = re.compile(r"moderation|flagged|content[ _](filter|policy)", re.IGNORECASE)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?$")
_MAX_PAGE = 16 * 1024
_MAX_TITLE = 200
_PAGE = re.compile(
    rb"\s*(<!--.{0,1000}?-->\s*)?(<\?xml[^>]{0,200}>\s*)?<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,1000})", re.IGNORECASE)
_TAGS = re.compile(r"<(script|style)\b.{0,4000}?</\1\s*>|<[^<>]{0,2000}(>|$)", re.IGNORECASE | re.DOTALL)
_PASSING = (408, 409, 425)
_RATE_LIMITS = (429, 529)
_TIMED_OUT = 408
"""The server had no request in time, or no answer: proxies use it for both."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a try failed."""

    cause: Cause
    message: str
    passing: bool = False
    """Whether a few more tries may help."""
    rate_limited: bool = False
    """Whether waiting will help."""
    retry_after: float | None = None
    status: int | None = None
    """The HTTP status; None where there was none."""
    refused: bool = False
    """Whether whoever asks there is refused, not only this request."""

    @property
    def unknown(self) -> bool:
        """Whether an answer may have been made all the same, and billed."""
        refused = self.status is not None and 300 <= self.status < 500 and self.status != _TIMED_OUT
        return not (self.rate_limited or refused)


def classify(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Problem:
    """What an HTTP status other than 200 means. ``now``: seconds since 1970 UTC."""
    return replace(_classified(status, headers, body, now), status=status)


def _classified(status: int, headers: Mapping[str, str], body: bytes, now: float) -> Problem:
    payload = read_json(body)
    detail = error_text(payload, body)
    code = _code(payload)
    message = f"HTTP {status}{': ' + detail if detail else ''}"
    retry_after = parse_retry_after(headers, now)
    words = f"{code} {detail}"
    if status == 402 or (status == 429 and _NO_CREDIT.search(words)):
        return Problem(Cause.PAYMENT, message, refused=True)
    if status in _RATE_LIMITS or (status == 503 and retry_after is not None):
        return Problem(Cause.RATE_LIMIT, message, rate_limited=True, retry_after=retry_after)
    if status == 413 or (status in (400, 422, 500) and _CONTEXT.search(words)):
        return Problem(Cause.CONTEXT_OVERFLOW, message)
    if status == 401 or (status == 403 and not _MODERATED.search(words)):
        return Problem(Cause.AUTHENTICATION, message, refused=True)
    if status in _PASSING or status >= 500:
        return Problem(Cause.MODEL_ERROR, message, passing=True, retry_after=retry_after)
    if 300 <= status < 400:
        target = headers.get("Location", "nowhere")[:_MAX_MESSAGE]
        return Problem(Cause.MODEL_REFUSED, f"HTTP {status}: redirected to {target}", refused=True)
    return Problem(Cause.MODEL_REFUSED, message, refused=not _MODERATED.search(words))


def page_instead(body: bytes) -> Problem | None:
    """A web page with status 200, as wrong addresses give it; None for what is none. It is tried again, as a gateway may have sent it."""
    if not _PAGE.match(body[:_MAX_READ]):
        return None
    words = _words_of_page(body)
    page = f"a web page ({words})" if words else "a web page"
    message = f"the answer is not a JSON object but {page}; is --base_url right?"
    return Problem(Cause.MODEL_ERROR, message, passing=True, refused=True)


def read_json(body: bytes) -> Json:
    """A body as JSON; None for what is none, or more of it than any answer has."""
    if len(body) > _MAX_BRACKETS and body.count(b"{") + body.count(b"[") > _MAX_BRACKETS:
        return None
    try:
        return loads_mended(body)
    except (ValueError, RecursionError):
        return None


def classify_payload(payload: Json, now: float) -> Problem | None:
    """The error in an answer with status 200, which some gateways send when the provider behind them fails; None if there
    is none."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    choices = payload.get("choices")
    if not error and isinstance(choices, list) and choices and isinstance(choices[0], dict):
        error = choices[0].get("error")
        if not error and choices[0].get("finish_reason") == "error":
            error = {"message": "the provider broke the answer off"}
    if not error:
        return None
    wrapped = {"error": error}
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:
        return classify(code, {}, dumps(wrapped), now)
    words = error_text(wrapped, b"")
    if _CONTEXT.search(f"{code} {words}"):
        return Problem(Cause.CONTEXT_OVERFLOW, words)
    return Problem(Cause.MODEL_ERROR, f"the answer holds an error: {words}", passing=True)


def error_text(payload: Json, body: bytes) -> str:
    """The explanation in an error body, in one line of at most 500 characters."""
    text = _explanation(payload)
    if not text and payload is None:
        words = _words_of_page(body)
        text = f"a web page ({words})" if words else KNOWN.cut(body[:_MAX_READ], end=True).decode("utf-8", "replace")
    return cut(" ".join(KNOWN.text(text).split()), _MAX_MESSAGE)


def _words_of_page(body: bytes) -> str:
    """A web page's title, else its first words; nothing for what is no page, or has none."""
    if not _PAGE.match(body[:_MAX_READ]):
        return ""
    from html import unescape  # with a large table, and most servers send no pages

    text = KNOWN.cut(body[:_MAX_PAGE], end=True).decode("utf-8", "replace")
    title = _TITLE.search(text)
    found = title[1] if title and title[1].strip() else _TAGS.sub(" ", text[:_MAX_READ])
    return " ".join(KNOWN.text(unescape(found)).split())[:_MAX_TITLE]


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds to wait by ``retry-after-ms`` or ``Retry-After`` (seconds or a date, RFC 9110 section 10.2.3); None if neither
    says."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000.0
    value = headers.get("Retry-After")
    if value is None:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def parse_rate_headers(headers: Mapping[str, str], now: float) -> tuple[int | None, float | None]:
    """What is left of the server's allowance, and the seconds until it is full again: of requests or of tokens, whichever is
    used up, else of requests. (None, None) where the server does not say."""
    found: tuple[int | None, float | None] = (None, None)
    for remaining_name, reset_name in _RATE_HEADERS:
        remaining = _number(headers.get(remaining_name))
        if remaining is None:
            continue
        figures = (int(min(remaining, 1e15)), parse_reset(headers.get(reset_name), now))
        if figures[0] <= 0:
            return figures
        if found[0] is None:
            found = figures
    return found


_RATE_HEADERS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
)


def parse_reset(value: str | None, now: float) -> float | None:
    """Seconds until a limit is reset. Servers write seconds, ``6m0s`` (OpenAI), an RFC 3339 time (Anthropic), or seconds or
    milliseconds since 1970 (OpenRouter)."""
    if not value:
        return None
    number = _number(value)
    if number is not None:
        if number > 1e11:
            number = number / 1000.0 - now
        elif number > 1e8:
            number -= now
        return max(0.0, number)
    match = _DURATION.match(value.strip())
    if match is not None and any(match.groups()):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now)


def _number(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _explanation(payload: Json) -> str:
    if isinstance(payload, str):
        return KNOWN.text(payload)[:_MAX_READ]
    if isinstance(payload, list):
        return _explanation(payload[0]) if payload else ""
    if not isinstance(payload, dict):
        return ""
    for name in ("error", "message", "detail", "msg", "error_message"):
        text = _explanation(payload.get(name))
        if text:
            details = [each for each in (_field(payload), _raw(payload)) if each and each not in text]
            return f"{text} ({'; '.join(details)})"[:_MAX_READ] if details else text
    return _raw(payload)


def _field(payload: dict[str, Any]) -> str:
    """The field of the request that an error is about, as OpenAI (``param``) and pydantic (``loc``) name it."""
    location = payload.get("loc") or payload.get("param")
    parts = location if isinstance(location, list) else [location]
    named = ".".join(str(part) for part in parts if isinstance(part, (str, int)))
    return KNOWN.text(named)[:_MAX_MESSAGE] if re.search(r"[a-z]", named) else ""


def _raw(payload: dict[str, Any]) -> str:
    """What the provider behind OpenRouter said."""
    metadata = payload.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return KNOWN.text(raw)[:_MAX_READ] if isinstance(raw, str) else ""


def _code(payload: Json) -> str:
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        return ""
    return f"{error.get('code') or ''} {error.get('type') or ''}"[:_MAX_READ]


TRIES = 4
"""How often a call is tried in all when what broke may pass by itself."""
MAX_DELAY = 60.0
MIN_STATUS, MAX_STATUS = 400, 599
"""The HTTP statuses that mean an error."""
_TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Retries:
    """How failed calls are tried again. The pause after the nth failure is ``delay · factorⁿ⁻¹`` seconds, up to a quarter more or less so
    that calls which failed together don't return together."""

    tries: int = TRIES
    """How often a call is tried in all."""
    delay: float = 1.0
    max_delay: float = MAX_DELAY
    """Maximum seconds of a pause."""
    factor: float = 2.0
    statuses: frozenset[int] | None = None
    """The HTTP statuses that are tried again, and no other ones are; each such answer counts as a try. None: what an error means decides
    (``classify``), and rate limits are waited out beside the tries, unless there is but one."""

    def pause(self, failures: int, digest: str) -> float:
        """Seconds before the next try. ``digest``: the request's, so that its pauses are always the same."""
        delay = self.delay
        for _ in range(failures - 1):
            delay = min(delay * self.factor, self.max_delay)
        return min(delay * (0.75 + 0.5 * derived_random("retry", digest, failures).random()), self.max_delay)

    def judged(self, problem: Problem) -> Problem:
        """The problem, tried again if its status is one of ``statuses``. Those that waiting can't mend are not, whatever the status."""
        if self.statuses is None or problem.status is None or _is_lasting(problem):
            return problem
        return replace(problem, passing=problem.status in self.statuses)

    def waits_out(self, problem: Problem) -> bool:
        """Whether a problem is a rate limit that is waited out, however often it comes."""
        return problem.rate_limited and self.tries > 1 and (self.statuses is None or problem.status is None)


def _is_lasting(problem: Problem) -> bool:
    no_credit = problem.cause is Cause.PAYMENT and problem.status == _TOO_MANY_REQUESTS
    return no_credit or problem.cause is Cause.CONTEXT_OVERFLOW


ONCE = Retries(tries=1)
"""No call is made a second time."""
