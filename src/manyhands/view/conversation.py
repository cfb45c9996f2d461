"""The conversation of an attempt, a page of steps at a time: who said what, and each tool call together with its result.

A model step holds only the messages that no earlier step holds, so a page needs no other steps than its own, but for results of calls that
were recorded behind its end. No value is unpacked beyond what a page can show: of a larger one the beginning is shown, and where all of it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

from manyhands.agents.task import CLOCK
from manyhands.agents.time_limit import OVER
from manyhands.agents.trajectory import MODEL, TOOL, TOOLS, as_text
from manyhands.core.jsonio import loads
from manyhands.core.messages import text_of
from manyhands.core.text import counted
from manyhands.engine.contract import RecordedStep
from manyhands.engine.journal.browsing import UNREADABLE, JournalBrowser, StepOutline, Value
from manyhands.engine.journal.records import DamagedBlob
from manyhands.tools.services.artifacts import SCHEME, picture_address, picture_names
from manyhands.view.text import MAX_IMAGE

PAGE = 50
"""Steps of a page, about: it ends before a model step, so that calls stand together with their results."""
_MAX_BEHIND = 30
"""Further steps that are looked at for such an end."""
_MAX_FURTHER = 400
"""Steps behind a page that are looked at for results of its calls."""
MAX_VALUE = 4 << 20
"""Bytes of JSON of a request or an output up to which it is unpacked."""
_MAX_VALUES = 16 << 20
"""The same of all values of a page together; beyond it only small ones are unpacked."""
_MAX_PICTURES = 16 << 20
"""Characters of the addresses of a page's pictures together, which have their content in them."""
_MAX_SEARCHED = 100_000
"""Characters of a result in which names of pictures are looked for."""
_SMALL = 1 << 16
MAX_TEXT = 64_000
"""Characters of one text on a page."""
MAX_PAGE = 1_200_000
"""Characters of all texts of a page, about. What comes behind is cut to a few lines."""
_MIN_TEXT = 300
MAX_PARTS = 3000
"""Messages, calls, images and labelled texts of a page together. Empty ones take room, too."""
_Call: TypeAlias = tuple[str, int]
"""The address of the step of a turn, and the place of one of its calls."""
Describe = Callable[[RecordedStep], Iterable[tuple[str, str]]]
"""A step for people: pairs of a label and text."""


@dataclass(slots=True)
class ShownText:
    """A text, or the beginning of one."""

    text: str
    left_out: int = 0
    """Characters behind it that are not shown; -1 if nobody counted them."""
    path: str = ""
    """Where all of it is in its step, as ``output/message/content``; empty: nowhere in particular."""
    digest: str = ""
    """Of all of it (as ``digest_of`` makes it), where only the beginning is here; empty where that was not read."""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(slots=True)
class ShownResult:
    """What a tool call came to."""

    text: ShownText
    failed: bool
    """Whether it was recorded as a failure, as everywhere failed calls are counted. A command may end with any exit code without being
    one."""
    step: int
    """The id of the step that holds it."""
    seconds: float | None
    exit_code: int | None = None
    """Of a command."""
    images: Sequence[str] = ()
    """The addresses of pictures that it names and the run has kept."""


@dataclass(slots=True)
class ShownCall:
    """A tool call with its result."""

    name: str
    arguments: ShownText
    result: ShownResult | None
    """None if none was recorded (yet)."""
    call_id: str = ""
    may_follow: bool = False
    """Whether a result that was not found may be recorded further on than was looked."""


@dataclass(slots=True)
class ShownMessage:
    """A message of a conversation."""

    role: str
    text: ShownText
    note: str = ""
    """Where it comes from, if not from whom the role says."""
    reasoning: ShownText = field(default_factory=lambda: ShownText(""))
    is_encrypted: bool = False
    """Whether there was reasoning of which only a signature came."""
    calls: Sequence[ShownCall] = ()
    images: Sequence[str] = ()
    """The addresses of images in it."""


@dataclass(slots=True)
class ShownStep:
    """A step as a page shows it."""

    id: int
    address: str
    scope: str
    kind: str
    at: float
    """Seconds since 1970 UTC, when it began."""
    seconds: float
    usage: Mapping[str, Any]
    messages: Sequence[ShownMessage] = ()
    labelled: Sequence[tuple[str, ShownText]] = ()
    """Of a step that is no part of a conversation: texts with their labels."""
    model: str | None = None
    finish_reason: str | None = None
    problem: str | None = None
    """Why it can't be shown as what it is."""
    request_bytes: int = 0
    output_bytes: int = 0

    @property
    def has_failed(self) -> bool:
        """Whether a tool call of it failed."""
        calls = (call for message in self.messages for call in message.calls)
        return any(call.result is not None and call.result.failed for call in calls)


@dataclass(slots=True)
class ConversationPage:
    """Steps of an attempt."""

    steps: list[ShownStep]
    """Without readings of the clock, which say nothing to people."""
    first: int
    """The number of its first step in the attempt, from 1; 0 if there is none."""
    count: int
    """Steps of the attempt."""
    behind: int | None
    """The id of the step behind which the next page begins; None on the last one."""
    before: int | None
    """The id of the first step of the page before; None on the first one."""


class ConversationReader:
    """Reads the steps of one attempt for one page."""

    def __init__(
        self,
        reader: JournalBrowser,
        item: int,
        attempt: int,
        describe: Describe,
        *,
        most: int = MAX_PAGE,
        told: set[int] | None = None,
    ) -> None:
        """``describe``: of steps that are no part of a conversation. ``most``: characters of all texts, about. ``told``: the ids of steps
        whose results stand beside their calls on the pages before, which are not shown again; those of this one's pages are added."""
        self._reader = reader
        self._item = item
        self._attempt = attempt
        self._describe = describe
        self._left = most
        self._left_to_unpack = _MAX_VALUES
        self._left_for_pictures = _MAX_PICTURES
        self._parts_left = MAX_PARTS
        self._told = set[int]() if told is None else told

    def page(self, start: int = 0) -> ConversationPage:
        """The page that begins with the step of that id, or with the next one that there is."""
        reader, item, attempt = self._reader, self._item, self._attempt
        count = reader.step_count(item, attempt)
        outline = reader.outline(item, attempt, start - 1, PAGE + _MAX_BEHIND)
        end = _end(outline)
        shown, more = outline[:end], len(outline) > end
        if not shown:
            return ConversationPage([], 0, count, None, None)
        self._parts_left = MAX_PARTS
        earlier = reader.outline_before(item, attempt, shown[0].id, PAGE)
        first = 1 + reader.steps_before(item, attempt, shown[0].id)
        steps = self._shown(shown)
        return ConversationPage(
            steps, first, count, shown[-1].id + 1 if more else None, earlier[0].id if earlier else None
        )

    @property
    def is_full(self) -> bool:
        """Whether there is no room for further texts, so that they are cut to a few lines."""
        return self._left <= 0

    def left_out(self, page: ConversationPage) -> int:
        """How many steps of the attempt are behind a page and not shown: all but those whose results stand beside their calls already."""
        if page.behind is None:
            return 0
        behind = page.count - self._reader.steps_before(self._item, self._attempt, page.behind)
        return behind - sum(step >= page.behind for step in self._told)

    def _shown(self, outlines: Sequence[StepOutline]) -> list[ShownStep]:
        values = {each.id: self._values(each) for each in outlines if each.id not in self._told}
        turns = {each.address for each in outlines if each.kind == MODEL}
        results = _Results()
        for each in outlines:
            if each.id in values:
                self._tell(each, values[each.id], turns, results)
        self._look_further(outlines, values, results)
        return [
            self._step(each, values[each.id], results)
            for each in outlines
            if each.id not in self._told and each.kind != CLOCK
        ]

    def _tell(self, outline: StepOutline, values: tuple[Any, Any], turns: Collection[str], results: _Results) -> None:
        """Take the results from a step of tools, if they belong to one of these turns."""
        request, output = values
        if outline.kind in (TOOL, TOOLS) and isinstance(request, dict):
            with suppress(*UNREADABLE):
                if request.get("turn") in turns:
                    results.found.update(self._results(outline, request, output))
                    self._told.add(outline.id)

    def _look_further(
        self, outlines: Sequence[StepOutline], values: Mapping[int, tuple[Any, Any]], results: _Results
    ) -> None:
        """Take results of calls of these steps from behind them: of a turn with very many calls, or one during which others went on. They
        are looked for by their addresses, so that no other steps are unpacked."""
        last = {each.scope: each for each in outlines if each.kind == MODEL}
        calls = (call for each in last.values() for call in _calls(each.address, values[each.id][1]))
        missing = {call for call in calls if call not in results.found}
        if not missing:
            return
        turns = {scope: each.address for scope, each in last.items()}
        own_scopes = {_own_scope(*call) for call in missing}
        further = self._reader.outline(self._item, self._attempt, outlines[-1].id, _MAX_FURTHER)
        for each in further:
            if each.kind == MODEL:
                ended = turns.pop(each.scope, None)
                missing = {call for call in missing if call[0] != ended}
            elif (each.kind == TOOLS and each.scope in turns) or (each.kind == TOOL and each.scope in own_scopes):
                if self._left_to_unpack <= 0:
                    break
                self._tell(each, self._values(each), turns.values(), results)
                missing -= results.found.keys()
            if not missing:
                return
        else:
            if len(further) < _MAX_FURTHER:
                return
        results.unseen = missing

    def _values(self, outline: StepOutline) -> tuple[Any, Any]:
        return self._value(outline.id, "request"), self._value(outline.id, "output")

    def _value(self, step: int, name: Value) -> Any:
        """A value, or what is known of one that is too large or damaged."""
        try:
            limit = min(MAX_VALUE, max(_SMALL, self._left_to_unpack))
            data, complete = self._reader.value_beginning(step, name, limit)
            self._left_to_unpack -= len(data)
            if not complete:
                return _Large(data[: 4 * MAX_TEXT].decode("utf-8", "replace")[:MAX_TEXT], "")
            return loads(data)
        except (DamagedBlob, ValueError) as error:
            return _Large("", str(error))

    def _results(
        self, outline: StepOutline, request: Mapping[str, Any], output: Any
    ) -> Iterator[tuple[_Call, ShownResult]]:
        calls = request["calls"] if outline.kind == TOOLS else [request["call"]]
        alone = outline.finished_at - outline.started_at if len(calls) == 1 else None
        for place, call in enumerate(calls):
            path = f"output/results/{place}/content" if outline.kind == TOOLS else "output/content"
            if isinstance(output, _Large):
                text = output.text if len(calls) == 1 else ""
                result = ShownResult(ShownText(text, -1, "output"), False, outline.id, alone)
            else:
                record = output["results"][place] if outline.kind == TOOLS else output
                result = self._result(record, path, outline.id, alone)
            yield (request["turn"], call["index"]), result

    def _result(self, record: Mapping[str, Any], path: str, step: int, seconds: float | None) -> ShownResult:
        content, code = record.get("content"), None
        if isinstance(content, dict):
            code = content.get("exit_code") if isinstance(content.get("exit_code"), int) else None
            if set(content) <= {"output", "exit_code", "error"} and content.get("error") in (None, ""):
                content, path = content.get("output") or "", f"{path}/output"
        text = as_text(content)
        pictures, _ = self._first_of(picture_names(text[:_MAX_SEARCHED]), "picture")
        images = [self._picture(SCHEME + name) for name in pictures]
        return ShownResult(self._text(text, path), bool(record.get("failed")), step, seconds, code, images)

    def _picture(self, address: str) -> str:
        """The address of a picture; of an artifact one with its content, as long as there is room for that."""
        if not address.startswith(SCHEME) or self._left_for_pictures <= 0:
            return address
        folder = self._reader.folder
        found = picture_address(folder, address.removeprefix(SCHEME), min(MAX_IMAGE, self._left_for_pictures))
        self._left_for_pictures -= len(found or "")
        return found or address

    def _step(self, outline: StepOutline, values: tuple[Any, Any], results: _Results) -> ShownStep:
        request, output = values
        step = ShownStep(
            outline.id,
            outline.address,
            outline.scope,
            outline.kind,
            outline.started_at,
            outline.finished_at - outline.started_at,
            outline.usage,
            request_bytes=outline.request_bytes,
            output_bytes=outline.output_bytes,
        )
        large = [(name, each) for name, each in (("request", request), ("output", output)) if isinstance(each, _Large)]
        if large:
            step.problem = next((each.problem for _, each in large if each.problem), None)
            step.labelled = [(name, self._large(each, name)) for name, each in large]
            return step
        try:
            self._fill(step, outline, request, output, results)
        except UNREADABLE as error:
            step.problem = f"this version of the program does not know steps of this form ({error!r})"
            step.labelled = [
                ("request", self._text(as_text(request), "request")),
                ("output", self._text(as_text(output), "output")),
            ]
        return step

    def _large(self, value: _Large, name: str) -> ShownText:
        return ShownText(value.text, -1, name)

    def _fill(
        self,
        step: ShownStep,
        outline: StepOutline,
        request: Any,
        output: Any,
        results: _Results,
    ) -> None:
        if outline.kind == MODEL and isinstance(request, dict) and "added" in request:
            step.messages = [*self._model_step(request, output, outline.address, results, outline.id)]
            extra = output.get("extra") or {}
            step.model = extra.get("model") or (request.get("settings") or {}).get("model")
            step.finish_reason = output.get("finish_reason")
            return
        if outline.kind in (TOOL, TOOLS) and isinstance(request, dict) and "turn" in request:
            found = dict(self._results(outline, request, output))
            calls = request["calls"] if outline.kind == TOOLS else [request["call"]]
            calls, more = self._first_of(calls, "call")
            shown = [
                ShownCall(
                    str(call.get("name")),
                    self._text(as_text(call.get("arguments")), ""),
                    found[(request["turn"], call["index"])],
                )
                for call in calls
            ]
            step.messages = [ShownMessage("tool", ShownText(""), more, calls=shown)]
            return
        recorded = RecordedStep(
            self._attempt,
            outline.scope,
            outline.seq,
            outline.kind,
            request,
            output,
            outline.started_at,
            outline.finished_at,
            outline.usage,
        )
        labelled, more = self._first_of([*self._describe(recorded)], "part")
        step.labelled = [(label, self._text(text, "")) for label, text in labelled]
        if more:
            step.labelled.append(("", ShownText(more, -1)))

    def _model_step(
        self,
        request: Mapping[str, Any],
        output: Mapping[str, Any],
        turn: str,
        results: _Results,
        step: int,
    ) -> Iterator[ShownMessage]:
        messages, more = self._first_of(request["added"], "message")
        for number, message in enumerate(messages):
            note = "given" if "_given" in message else ""
            if "_synthetic" in message:
                note = f"by this program: {message['_synthetic']}"
            yield self._message(message, f"request/added/{number}", note, _Results(), turn)
        if more:
            yield ShownMessage("", ShownText(more, -1, "request/added"))
        if "overflow" in output:
            yield ShownMessage("overflow", self._text(str(output["overflow"]), "output/overflow"))
        if OVER in output:
            yield ShownMessage("time limit", self._text(f"over after {output[OVER]:g} s", "output/time_limit"))
        message = output.get("message")
        if message is None:
            return
        refused = {
            (turn, int(index)): ShownResult(self._text(str(reason), ""), True, step, None)
            for index, reason in (output.get("refused") or {}).items()
        }
        note = "not kept" if output.get("dropped") else ""
        known = _Results({**results.found, **refused}, results.unseen)
        yield self._message(message, "output/message", note, known, turn)

    def _message(
        self,
        message: Mapping[str, Any],
        path: str,
        note: str,
        results: _Results,
        turn: str,
    ) -> ShownMessage:
        content = message.get("content")
        text = self._text(text_of(content), f"{path}/content" if isinstance(content, str) else "")
        reasoning = message.get("reasoning")
        shown = ShownMessage(str(message.get("role")), text, note)
        shown.reasoning = self._text(str(reasoning or ""), f"{path}/reasoning")
        shown.is_encrypted = not reasoning and bool(message.get("reasoning_details"))
        calls, more_calls = self._first_of(message.get("tool_calls") or (), "call")
        shown.calls = [
            self._call(call, f"{path}/tool_calls/{index}", (turn, index), results) for index, call in enumerate(calls)
        ]
        images, more_images = self._first_of([*_images(content)], "image")
        shown.images = [self._picture(address) for address in images]
        shown.note = ", ".join(filter(None, (note, more_calls, more_images)))
        return shown

    def _first_of(self, parts: Sequence[Any], name: str) -> tuple[Sequence[Any], str]:
        """As many parts as there is room for, and a text that counts the others."""
        found = parts[: self._parts_left]
        self._parts_left -= len(found)
        left = len(parts) - len(found)
        return found, f"{counted(left, f'more {name}')} not shown" if left else ""

    def _call(self, call: Mapping[str, Any], path: str, key: _Call, results: _Results) -> ShownCall:
        function = call.get("function") or {}
        arguments = self._text(as_text(function.get("arguments")), f"{path}/function/arguments")
        name, call_id = str(function.get("name")), str(call.get("id") or "")
        return ShownCall(name, arguments, results.found.get(key), call_id, key in results.unseen)

    def _text(self, text: str, path: str) -> ShownText:
        """A text, cut to what there is room for."""
        room = min(MAX_TEXT, max(_MIN_TEXT, self._left))
        shown = text[:room]
        self._left -= len(shown)
        left_out = len(text) - len(shown)
        return ShownText(shown, left_out, path, digest_of(text) if left_out else "")


@dataclass(slots=True)
class _Results:
    """What is known of the results of calls."""

    found: dict[_Call, ShownResult] = field(default_factory=dict)
    unseen: Collection[_Call] = ()
    """Calls whose results may be recorded further on than was looked."""


@dataclass(frozen=True, slots=True)
class _Large:
    """In the place of a value that is not unpacked."""

    text: str
    """Its beginning."""
    problem: str
    """Why it can't be; empty: it is too large."""


def digest_of(text: str) -> str:
    """By which two texts are known to be equal (SHA-256, in hexadecimal)."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def value_at(value: Any, path: Sequence[str]) -> Any:
    """What is at a path in a JSON value. Raises KeyError if nothing is."""
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise KeyError(name)
    return value


def step_label(step: ShownStep) -> str:
    """A step in a word or two, for an outline."""
    calls = [call.name for message in step.messages for call in message.calls]
    if calls:
        return ", ".join(calls[:3]) + ("…" if len(calls) > 3 else "")
    roles = [message.role for message in step.messages]
    return roles[-1] if roles else step.labelled[0][0] if step.labelled else step.kind


def _end(outline: Sequence[StepOutline]) -> int:
    """How many steps a page takes: it ends before a model step."""
    if len(outline) <= PAGE:
        return len(outline)
    return next((n for n in range(PAGE, len(outline)) if outline[n].kind == MODEL), PAGE)


def _calls(turn: str, output: Any) -> Iterator[_Call]:
    """The calls of a turn that were run, or are to be. None of an answer that was not kept, or that can't be read."""
    with suppress(*UNREADABLE):
        if not output.get("dropped"):
            refused = output.get("refused") or {}
            count = len(output["message"].get("tool_calls") or ())
            yield from ((turn, place) for place in range(count) if str(place) not in refused)


def _own_scope(turn: str, place: int) -> str:
    """The scope of the step of a call that has one of its own."""
    scope = turn.rpartition("/")[0]
    return f"{scope}/call-{turn}-{place}" if scope else f"call-{turn}-{place}"


def _images(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "image_url":
            image = part.get("image_url")
            yield str(image.get("url") if isinstance(image, dict) else image)
