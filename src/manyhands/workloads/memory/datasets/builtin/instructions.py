"""Something to be said later, in the middle of something else: a quotation in a certain reply, or a sentence whenever something happens."""

from __future__ import annotations

import string
from collections.abc import Generator, Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Exchange,
    Json,
    Message,
    Scoring,
    Verdict,
)
from manyhands.workloads.memory.datasets.answers.judging import BY_MODEL, ask_with_data, object_in, yes
from manyhands.workloads.memory.datasets.answers.matching import rouge_l
from manyhands.workloads.memory.datasets.base import (
    ACKNOWLEDGED,
    BaseDataset,
    DatasetArguments,
    JudgeRule,
    all_or_nothing,
    between,
    prompt,
    shuffled,
    texts,
)
from manyhands.workloads.memory.datasets.recorded import NotOnRecord, RecordedTest, Rescoring

_TEXTS = texts("instructions")
QUOTES: tuple[tuple[str, str], ...] = _TEXTS["quotes"]
"""From Hamlet; Essays (Of Studies); Walden; Self-Reliance; A Tale of Two Cities; Endymion; An Essay on Criticism; the poem of that
line; The Rime of the Ancient Mariner; When I Consider How My Light Is Spent; The Charge of the Light Brigade; Pensées. All are in
the public domain."""

EARLIEST, LATEST = 2, 8
"""Which reply the quotation belongs to; the reply to the instruction is the first."""
_MARKS = {ord(mark): " " for mark in "“”„«»‘’—–…"}
_QUOTE_ASCII = str.maketrans("", "", string.punctuation)


class ProspectiveMemory(BaseDataset):
    """One point if the quotation is in the reply it belongs to and in no other one up to the moment of checking. Punctuation and capitals
    don't matter.

    Mended: the first reply may repeat the quotation to confirm it (as published, that gives nothing); the provisional score is 0 (as
    published, 1); the quotation's words are whole ones, however lines break; what counts begins with this test's own instruction (as
    published, with the first message of the same text, which may be of an earlier test).
    """

    id = "prospective_memory"
    default_name = "Prospective Memory"
    default_reset = (
        "There is no need any longer to add a quotation to any of your replies; that instruction is withdrawn."
    )
    about = "Demands that a quotation be added to a later reply, and goes on with other things."
    callback_based: ClassVar[bool] = True
    needs_judge: ClassVar[bool | None] = False

    def make(self, examples: int, draws: Draws) -> Generator[Ask, str, list[Definition]]:
        yield from ()
        left: list[tuple[str, str]] = []
        made: list[Definition] = []
        for number in range(examples):
            left = left or shuffled(draws, QUOTES)
            (quote, author), position = left.pop(), between(draws, EARLIEST, LATEST)
            asked = self.question or _TEXTS["request"].format(author=author, position=position)
            told = (_TEXTS["quotation"].format(quote=quote, author=author),)
            made.append(self.scripted(number, told, (asked,), [[quote, author, position]]))
        return made

    def callback(self, definition: Definition, conversation: Sequence[Message]) -> Verdict:
        if not isinstance(definition.expected_responses[0], list):
            return Verdict(Evaluation(0.0, 1.0, ("this test says in words what it expects",)), True)
        quote, _, position = definition.expected_responses[0]
        replies = replies_to(definition.script[-1], conversation)
        if len(replies) < position:
            return Verdict(Evaluation(float(not self.mended), 1.0, ("it is not yet time for the quotation",)), False)
        said = [self._holds(reply, quote) for reply in replies]
        elsewhere = said[1 if self.mended else 0 : position - 1] + said[position:]
        if any(elsewhere):
            return Verdict(all_or_nothing(False, "the quotation is in another reply"), True)
        reason = f"the quotation {'is' if said[position - 1] else 'is not'} in reply number {position}"
        return Verdict(all_or_nothing(said[position - 1], reason), True)

    def _holds(self, reply: str, quote: str) -> bool:
        if not self.mended:
            return _plain_quote(quote) in _plain_quote(reply)
        return (
            f" {' '.join(_plain_quote(quote).split())} "
            in f" {' '.join(_plain_quote(reply).translate(_MARKS).split())} "
        )

    def evaluate(self, exchange: Exchange) -> Scoring:
        """What the callback found is the score; without it there is nothing to score by."""
        yield from ()
        return self.callback(exchange.definition, exchange.messages).evaluation

    def rescore(self, recorded: RecordedTest) -> Rescoring:
        """By all messages up to the last one that the callback was called for."""
        yield from ()
        definition = recorded.definition
        if not definition.expected_responses or not isinstance(definition.expected_responses[0], list):
            raise NotOnRecord  # of the format's second version, which says in words what it expects
        said = recorded.conversation().until_callback_ended(definition.unique_id)
        own = (position for position, message in enumerate(said) if definition.script[-1] in message.text)
        first = max(own, default=0) if self.mended else 0
        return self.callback(definition, said[first:]).evaluation, False

    def right_answer(self, definition: Definition, number: int) -> str:
        return ACKNOWLEDGED

    def ideal_addition(self, definition: Definition, conversation: Sequence[Message]) -> str:
        quote, author, position = definition.expected_responses[0]
        asked = [each.test_id == definition.unique_id and each.is_question for each in conversation]
        if True not in asked:
            return ""
        replies = len(conversation) - asked.index(True)
        return f'"{quote}" - {author}' if replies == position - 1 else ""


def replies_to(instruction: str, conversation: Sequence[Message]) -> list[str]:
    """The replies from the first message on that holds the instruction."""
    for position, message in enumerate(conversation):
        if instruction in message.text:
            return [each.reply for each in conversation[position:]]
    return []


def _plain_quote(text: str) -> str:
    return text.lower().translate(_QUOTE_ASCII)


RULES: tuple[tuple[str, str, str], ...] = _TEXTS["rules"]
"""What happens, what is to be said then, and a message by which it happens."""

_ASCII = str.maketrans("", "", string.punctuation)

SENTENCE = "find a sentence"
"""The purpose of asking a model whether a reply holds a sentence."""


class TriggerArguments(DatasetArguments):
    trigger_activations: int = Field(default=3, ge=1)
    """How often it happens."""
    rouge_score_threshold: float = Field(default=0.75, ge=0, le=1)
    """The ROUGE-L score, from 0 to 1, above which two sentences are taken to be the same."""


def _sentence_by_rule(data: Json) -> Json:
    present = holds(data["text"], data["sentence"])
    return {"present": present, "sentence": data["sentence"] if present else None}


class TriggerResponse(BaseDataset):
    """A point for each time when the reply holds the sentence, or is nearly nothing else (ROUGE-L above the threshold). Of other replies, a
    model says whether and where they hold it; what it finds must be as alike.

    Mended: apostrophes are apostrophes (as published, some are HTML).
    """

    id = "trigger_response"
    default_name = "Trigger Response"
    default_reset = (
        "There is no sentence any longer that you have to say when I mention something. "
        "All such instructions are withdrawn."
    )
    about = "Demands that a certain sentence be said whenever something happens, which then happens several times."
    Arguments: ClassVar[type[DatasetArguments]] = TriggerArguments
    judge_rules: ClassVar[Mapping[str, JudgeRule]] = {SENTENCE: _sentence_by_rule}

    def make(self, examples: int, draws: Draws) -> Generator[Ask, str, list[Definition]]:
        yield from ()
        order = shuffled(draws, RULES)
        times = self.arguments.trigger_activations
        made: list[Definition] = []
        for number in range(examples):
            request, sentence, trigger = order[number % len(order)]
            rule = _TEXTS["rule"].format(request=request, sentence=sentence)
            made.append(self.scripted(number, (rule,), (trigger,) * times, [sentence] * times))
        return made

    def evaluate(self, exchange: Exchange) -> Scoring:
        expected = exchange.definition.expected_responses
        points, reasons = 0, list[str]()
        for sentence, answer in zip(expected, exchange.answers, strict=False):
            right, how = yield from self._holds(sentence, answer)
            points += right
            reasons.append(f"{sentence!r} is {'' if right else 'not '}in the reply{how}")
        return Evaluation(float(points), float(len(expected)), tuple(reasons))

    def _holds(self, sentence: str, answer: str) -> Generator[Ask, str, tuple[bool, str]]:
        if holds(answer, sentence) or rouge_l(sentence, answer) > self.arguments.rouge_score_threshold:
            return True, ""
        if not answer.strip():
            return False, ""
        found = object_in(
            (yield ask_with_data(SENTENCE, prompt("trigger_response"), {"text": answer, "sentence": sentence}))
        )
        if found is None or not yes(found.get("present")):
            return False, f" {BY_MODEL}"
        alike = rouge_l(sentence, str(found.get("sentence") or ""))
        return alike > self.arguments.rouge_score_threshold, f" {BY_MODEL}"


def holds(text: str, sentence: str) -> bool:
    """Whether a text holds a sentence, whatever the capitals, blanks and punctuation."""
    return _plain_sentence(sentence) in _plain_sentence(text)


def _plain_sentence(text: str) -> str:
    return " ".join(text.lower().translate(_ASCII).split())
