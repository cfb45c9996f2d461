"""What an endpoint's refusals teach about it, so that the next request is one that it takes.

A refusal (HTTP 400 or 422) that names a field of the request costs nothing, and the request is made again without it where that leaves the
task as it is: reasoning that is sent back, the name of the answer's bound, and the seed, which no endpoint promises to heed. It is told,
and holds for other calls, once a request that was made so is answered: a refusal may repeat words of the request, which are anybody's. A
refused setting that changes answers, such as a temperature, stays an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from manyhands.core.failures import Cause
from manyhands.models.hosts import NOT_SENT
from manyhands.models.openai.errors import Problem
from manyhands.models.openai.request import (
    CONTENT_FIELD,
    DETAILS_FIELD,
    LIMIT_FIELDS,
    Adaptation,
    Endpoint,
    limit_field,
    reasoning_fields,
)
from manyhands.models.protocol import ChatRequest

_STATUSES = (400, 422)
_REFUSED = re.compile(
    r"un(supported|known|recogni[sz]ed|expected|permitted)|not (supported|support|permitted|allowed|recogni[sz]ed|accepted)|"
    r"extra[ _](inputs?|fields?|forbidden)|(cannot|can't|can not) find field|no such field|invalid (field|parameter|argument|property)|"
    r"(must|should) not (be|contain|include)|forbidden|use '?max_",
    re.IGNORECASE,
)
"""How servers say that they don't take a field."""
_OF_VALUE = re.compile(
    r"\b(greater|larger|higher|less|smaller|lower|more than|at (most|least)|max(imum)?|min(imum)?|above|below|exceed\w*|range|between|"
    r"negative|positive|too (large|big|high|small|low))\b|[<>]=? ?\d",
    re.IGNORECASE,
)
"""How they say that they take a field, but not with this value: to send it otherwise, or not at all, would hide that."""
_WANTED = re.compile(r"(must|should|needs? to) be (passed|sent|included|provided)|missing|is required", re.IGNORECASE)
"""How they say that they want one that is not there."""
_SETTINGS = ("temperature", "top_p", "stop", "tool_choice", "reasoning_effort")
"""Settings that have the names of the fields that they set."""
_PLAIN = ("reasoning", "thinking")
"""Fields whose names are common words."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learnt of a refusal."""

    adaptation: Adaptation
    """How requests are made from now on."""
    remark: str
    """What to tell the person."""


def lesson_of(problem: Problem, request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> Lesson | None:
    """What a refusal teaches; None if the request can't be made in another way. ``adaptation``: how it was made."""
    if problem.status not in _STATUSES or problem.cause is not Cause.MODEL_REFUSED:
        return None
    for learn in _LESSONS:
        for learnt, what in learn(problem.message, request, adaptation, endpoint):
            return Lesson(learnt, f"{endpoint.shown}: {what}")
    return None


def setting_refused(problem: Problem, request: ChatRequest) -> str | None:
    """The setting that a refusal names and without which the request might be taken; None if there is none."""
    if problem.status not in _STATUSES or not _REFUSED.search(problem.message):
        return None
    settings = request.settings
    given = [name for name in _SETTINGS if getattr(settings, name, None) is not None]
    if settings.reasoning is not None:
        given.append("reasoning_effort")
    found = next((name for name in given if _names(problem.message, name)), None)
    extra = next((name for name in settings.extra_body or () if _names(problem.message, name)), None)
    return found or (None if extra is None else "extra_body")


def _names(text: str, field: str) -> bool:
    return re.search(rf"\b{re.escape(field)}\b", text) is not None


def _names_plain(text: str, field: str) -> bool:
    """The like for a field whose name is a common word: as part of a sentence, as in "not supported with reasoning", it is none."""
    before = r"(^|[^\w\s-]\s*|\b(field|argument|parameter|property|key|input)s?\s+)"
    behind = r"(?![\w-]|\s+(?!(is|was|not|must|should)\b)\w)"
    return re.search(f"{before}{re.escape(field)}{behind}", text) is not None


def _takes_no(text: str, field: str) -> bool:
    """Whether a refusal says that a field is not taken, whatever its value."""
    return _names(text, field) and _REFUSED.search(text) is not None and _OF_VALUE.search(text) is None


_Lessons = Iterator[tuple[Adaptation, str]]


def _reasoning_wanted(text: str, request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> _Lessons:
    if adaptation.pads or request.settings.send_reasoning is not None or _REFUSED.search(text):
        return
    if _names(text, CONTENT_FIELD) and _WANTED.search(text):
        learnt = replace(adaptation, reasoning=CONTENT_FIELD, pads=True)
        yield (
            learnt,
            f"wants {CONTENT_FIELD} back with every answer; it is sent from now on, empty where an answer had none",
        )


def _reasoning_refused(text: str, request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> _Lessons:
    if adaptation.pads or request.settings.send_reasoning is not None or not _REFUSED.search(text):
        return
    for field in reasoning_fields(request, adaptation, endpoint):
        if not (_names_plain if field in _PLAIN else _names)(text, field):
            continue
        if field == DETAILS_FIELD:
            yield replace(adaptation, details=False), f"takes no {field} back; it is left out from now on"
        else:
            learnt = replace(adaptation, reasoning=NOT_SENT, details=False)
            yield learnt, f"takes no {field} back; reasoning is left out from now on, as with --send_reasoning=never"


def _limit_refused(text: str, request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> _Lessons:
    if request.settings.max_tokens is None or adaptation.limit_field is not None:
        return
    sent = limit_field(adaptation, endpoint)
    if _takes_no(text, sent):
        other = next(name for name in LIMIT_FIELDS if name != sent)
        yield replace(adaptation, limit_field=other), f"takes no {sent}; the bound is sent as {other} from now on"


def _seed_refused(text: str, request: ChatRequest, adaptation: Adaptation, endpoint: Endpoint) -> _Lessons:
    if request.settings.seed is not None and not adaptation.seedless and _takes_no(text, "seed"):
        what = "takes no seed; none is sent from now on, so that only draws of this program are repeated by --seed"
        yield replace(adaptation, seedless=True), what


_LESSONS: tuple[Callable[[str, ChatRequest, Adaptation, Endpoint], _Lessons], ...] = (
    _reasoning_wanted,
    _reasoning_refused,
    _limit_refused,
    _seed_refused,
)
