"""What the simulated model does with a browser: it opens the address of its task, looks, fills in fields, and follows what it sees."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from manyhands.core.digests import Draws
from manyhands.core.jsonio import Json, loads_outside
from manyhands.models.simulated.calls import named_urls

PREFIX = "browser_"
_FIELD = re.compile(r'- (?:textbox|searchbox) "([^"\n]*)".*?\[ref=(\w+)\]')
_CONTROL = re.compile(r"- (?:link|button)\b.*?\[ref=(\w+)\]")


def browsing_call(
    messages: Sequence[Mapping[str, Any]], task: str, tools: Collection[str], draws: Draws, words: Sequence[str]
) -> tuple[str, dict[str, Any]] | None:
    """The next call of a tool of the browser, by what the last ones gave; None if none helps. ``tools``: names of those there are."""
    past = list(_calls(messages))
    if not past:
        urls = named_urls(task)
        made = ("browser_navigate", {"url": urls[0]}) if urls else None
    else:
        made = _following(past, task, draws, words)
    return made if made is not None and made[0] in tools else None


def any_browsing(messages: Sequence[Mapping[str, Any]], tools: Collection[str]) -> tuple[str, dict[str, Any]]:
    """A call of a tool of the browser where none helps: it looks once more at the page, or opens an empty one."""
    past = _calls(messages)
    if "browser_snapshot" in tools and past and _worked(past[-1][2]):
        return "browser_snapshot", {}
    return "browser_navigate", {"url": "about:blank"}


def _following(
    past: Sequence[tuple[str, Json, Json]], task: str, draws: Draws, words: Sequence[str]
) -> tuple[str, dict[str, Any]] | None:
    name, _, result = past[-1]
    worked = _worked(result)
    if name == "browser_navigate" and not worked:
        return None
    if name not in ("browser_snapshot", "browser_type"):
        return "browser_snapshot", {}
    if not worked:
        return "browser_snapshot", {}
    page, typed = _last_page(past)
    for label, ref in _FIELD.findall(page):
        if ref not in typed:
            return "browser_type", {"ref": ref, "text": _value(label, task) or draws.pick(words)}
    if typed:
        return "browser_press", {"key": "Enter"}
    controls = _CONTROL.findall(page)
    return ("browser_click", {"ref": draws.pick(controls)}) if controls else None


def _worked(result: Json) -> bool:
    return isinstance(result, Mapping) and result.get("success") is True


def _last_page(past: Sequence[tuple[str, Json, Json]]) -> tuple[str, set[str]]:
    """The last snapshot, and the refs of fields that were filled in since."""
    typed: set[str] = set()
    for name, arguments, result in reversed(past):
        if name == "browser_snapshot":
            return str(result.get("snapshot", "")) if isinstance(result, Mapping) else "", typed
        if name == "browser_type" and isinstance(arguments, Mapping):
            typed.add(str(arguments.get("ref")))
    return "", typed


def _value(label: str, task: str) -> str | None:
    """What the task says to write into a field (``Name: Ada``)."""
    found = re.search(rf"\b{re.escape(label)}\s*[:=]\s*([^\s,;]+)", task, re.IGNORECASE) if label else None
    return None if found is None else found[1]


def _calls(messages: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, Json, Json]]:
    """The calls of the browser's tools that have a result: name, arguments, result."""
    results = {
        str(message.get("tool_call_id")): message.get("content")
        for message in messages
        if message.get("role") == "tool"
    }
    found = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            name, number = str(function.get("name")), str(call.get("id"))
            if name.startswith(PREFIX) and number in results:
                found.append((name, _read(function.get("arguments")), _read(results[number])))
    return found


def _read(text: Json) -> Json:
    try:
        return loads_outside(text)
    except (TypeError, ValueError):
        return None
