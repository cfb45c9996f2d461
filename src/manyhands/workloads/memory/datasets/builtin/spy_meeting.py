"""Three messages in a simple code: when and where to meet, and what to bring."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.datasets.answers.settling import says
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    shuffled,
    some_of,
    texts,
)
from manyhands.workloads.memory.datasets.recorded import RecordedTest, Rescoring


@dataclass(frozen=True, slots=True)
class Code:
    """What a message says, and the words of which one must be in an answer that understood it."""

    message: str
    words: tuple[str, ...]


FIRST_NAMES: tuple[str, ...] = texts("names")["first"]
LAST_NAMES: tuple[str, ...] = texts("names")["last"]
_TEXTS = texts("spy_meeting")
TIMES = tuple(Code(**each) for each in _TEXTS["times"])
THINGS = tuple(Code(**each) for each in _TEXTS["things"])
PLACES = tuple(Code(**each) for each in _TEXTS["places"])
TOPICS = (TIMES, THINGS, PLACES)
WORD_LISTS = [code.words for topic in TOPICS for code in topic]
"""The words of all our codes."""

_PUBLISHED: tuple[tuple[str, ...], ...] = _TEXTS["published"]
"""The word lists of the GoodAI LTM Benchmark, as far as published tests show them.

The tests of a run may have older, shorter ones; what counts as a word of another code does not depend on that."""


class SpyMeeting(BaseDataset):
    """A third of a point for each message that was understood: a word of its list is in the answer as a whole word. A third is taken off if
    a word of another code is.

    Mended: the capitals don't matter, a plural counts as well, what is denied ("not at midnight") is not said, and only words of codes that
    were not sent are counted against an answer (as published, all known words but those that the definition lists; lists have grown since,
    so right words counted as wrong).
    """

    id = "spy_meeting"
    default_name = "Spy Meeting"
    about = "Sends three coded messages, and asks when and where a meeting is and what to bring."
    default_question = _TEXTS["question"]

    def example(self, number: int, draws: Draws) -> Definition:
        people = [
            f"{first} {last}"
            for first, last in zip(some_of(draws, FIRST_NAMES, 3), some_of(draws, LAST_NAMES, 3), strict=True)
        ]
        told, expected = [_TEXTS["announcement"].format(*people)], list[Any]()
        for person, topic in zip(shuffled(draws, people), shuffled(draws, TOPICS), strict=True):
            code = draws.pick(topic)
            told.append(f"{person}: {code.message}")
            expected.append(list(code.words))
        return self.scripted(number, told, (self.question,), expected)

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        return self._scored(definition, answers, WORD_LISTS)

    def rescore(self, recorded: RecordedTest) -> Rescoring:
        """With the codes of the run's tests, if they are not ours but those of published tests."""
        yield from ()
        used = dict.fromkeys(tuple(words) for each in recorded.siblings for words in each.expected_responses)
        others = [words for words in used if words not in WORD_LISTS]
        codes = [*others, *_PUBLISHED] if others else WORD_LISTS
        return self._scored(recorded.definition, recorded.exchange.answers, codes), False

    def _scored(self, definition: Definition, answers: Sequence[str], codes: Sequence[Sequence[str]]) -> Evaluation:
        answer, expected = " ".join(answers), definition.expected_responses
        found = [self._found(words, answer) for words in expected]
        confused = self._found(self._other_words(expected, codes), answer)
        reasons = [
            f"{word!r} is in the answer" if word else f"none of {', '.join(words)} is"
            for words, word in zip(expected, found, strict=True)
        ]
        if confused:
            reasons.append(f"{confused!r} is of another code")
        points = sum(word is not None for word in found) - (confused is not None)
        return Evaluation(float(max(0, points)), float(len(expected) or 1), tuple(reasons))

    def _found(self, words: Collection[str], answer: str) -> str | None:
        if self.mended:
            return next((word for word in words if says(answer, word) or says(answer, f"{word}s")), None)
        return next((word for word in words if re.search(rf"\b{re.escape(word)}\b", answer)), None)

    def _other_words(self, expected: Sequence[Sequence[str]], codes: Sequence[Sequence[str]]) -> list[str]:
        """Words that an answer should not hold."""
        wanted = {word for words in expected for word in words}
        codes = [words for words in codes if not (self.mended and wanted & set(words))]
        return list(dict.fromkeys(word for words in codes for word in words if word not in wanted))

    def right_answer(self, definition: Definition, number: int) -> str:
        return f"Keywords: {', '.join(words[0] for words in definition.expected_responses)}."
