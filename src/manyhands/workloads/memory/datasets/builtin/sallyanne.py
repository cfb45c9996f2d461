"""Stories about who saw what (after the Sally–Anne test), made at random and told as a television programme.

The world is simple, and said so to whoever is asked: containers are closed, and only who is in the room when something is put somewhere
knows of it. A story is a list of events; beliefs are simulated event by event. Somebody knows where the thing is from the last time they
saw it put somewhere, and knows what another one knows from the last time both of them saw that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.datasets.answers.matching import NotJson, tolerant_json
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    all_or_nothing,
    between,
    last_of,
    shuffled,
    some_of,
    texts,
)

_ON_TV = "(On TV) "
_ARTICLE = re.compile(r"(?:(?:in|into|inside|at) )?(?:(?:the|a|an) )?")
MISTAKEN = 60
"""Percent of the questions that are about somebody's error, where a story has one; of the others some are so by chance."""


class SallyAnneArguments(DatasetArguments):
    question_type: Literal["world_model", "theory_of_mind", "any"] = "any"
    """Whether questions are about what is so (``world_model``), about what people believe (``theory_of_mind``), or either."""
    data_location: Path | None = None
    """Accepted and not used."""


class SallyAnne(BaseDataset):
    """Where something is, or is believed to be, is asked for as JSON. One point if the ``answer`` is the expected word, in capitals or not.

    Mended: an answer that is no text gets nothing (as published, that crashes); an article or "in" before the word does not matter. The
    stories are made here, so ``data_location``, where the GoodAI LTM Benchmark's file is, is accepted and not used.
    """

    id = "sallyanne"
    default_name = "SallyAnne"
    about = "Tells a story in which people miss some of what happens, and asks where something is or where they believe that it is."
    Arguments: ClassVar[type[DatasetArguments]] = SallyAnneArguments

    def example(self, number: int, draws: Draws) -> Definition:
        story = tell(draws)
        kind = self.arguments.question_type
        queries = [each for each in story.queries() if kind in ("any", each.kind)]
        mistaken = [each for each in queries if each.mistaken]
        query = draws.pick(mistaken if mistaken and draws.chance(MISTAKEN) else queries)
        told = (_TEXTS["introduction"], *(_ON_TV + line for line in story.lines()))
        return self.scripted(number, told, (_TEXTS["question"].format(query=query.text),), [query.answer])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        expected = definition.expected_responses[-1]
        try:
            said = _answer(tolerant_json(last_of(answers)))
        except NotJson as error:
            return all_or_nothing(False, f"the answer is no such object: {error}")
        word = said.lower()
        if self.mended:
            word = _ARTICLE.sub("", word.strip(" .!\"'\n"), count=1)
        return all_or_nothing(word == expected.lower(), f"the answer is {word!r}, expected was {expected!r}")

    def right_answer(self, definition: Definition, number: int) -> str:
        return json.dumps({"answer": definition.expected_responses[number]})


def _answer(value: Any) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("answer"), str):
        raise NotJson("it has no text as `answer`")
    return str(value["answer"])


Kind = Literal["world_model", "theory_of_mind"]

FIRST_NAMES: tuple[str, ...] = texts("names")["first"]
_TEXTS = texts("sallyanne")
ROOMS: tuple[str, ...] = _TEXTS["rooms"]
CONTAINERS: tuple[str, ...] = _TEXTS["containers"]
SINGULAR: tuple[str, ...] = _TEXTS["singular"]
PLURAL: tuple[str, ...] = _TEXTS["plural"]
FEELINGS: tuple[str, ...] = _TEXTS["feelings"]


@dataclass(frozen=True, slots=True)
class Event:
    """Somebody enters or leaves a room, puts the thing into a container, or has a feeling about something, which changes nothing."""

    what: Literal["enters", "leaves", "puts", "feeling"]
    who: str
    """Empty for where the thing is at first."""
    where: str
    """The room or container; of a feeling, the rest of the sentence."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question about a story."""

    kind: Kind
    text: str
    answer: str
    """A container."""
    mistaken: bool = False
    """Whether the answer is an error that somebody makes."""


@dataclass(slots=True)
class Beliefs:
    """What is so, and who knows what of it."""

    present: set[str] = field(default_factory=set)
    """The people in the room."""
    places: list[str] = field(default_factory=list)
    """Where the thing was, one container after the other."""
    first_order: dict[str, str] = field(default_factory=dict)
    """Where people believe that the thing is."""
    second_order: dict[tuple[str, str], str] = field(default_factory=dict)
    """Where people believe that somebody else, the second of each pair, believes that the thing is."""

    def follow(self, event: Event) -> None:
        """What changes by an event. All of them are in the room that the thing is in, or outside."""
        if event.what == "enters":
            self.present.add(event.who)
        elif event.what == "leaves":
            self.present.discard(event.who)
        elif event.what == "puts":
            self.places.append(event.where)
            self.first_order.update(dict.fromkeys(self.present, event.where))
            pairs = ((one, other) for one in self.present for other in self.present if one != other)
            self.second_order.update(dict.fromkeys(pairs, event.where))


@dataclass(frozen=True, slots=True)
class Story:
    thing: str
    plural: bool
    """Whether the name of the thing is a plural."""
    room: str
    events: tuple[Event, ...]

    def lines(self) -> list[str]:
        """The events as sentences."""
        return [self._line(event) for event in self.events]

    def _line(self, event: Event) -> str:
        if event.what == "feeling":
            return f"{event.who} {event.where}."
        if event.what != "puts":
            return f"{event.who} {event.what} the {event.where}."
        if event.who:
            return f"{event.who} puts the {self.thing} into the {event.where}."
        return f"The {self.thing} {'are' if self.plural else 'is'} in the {event.where} of the {self.room}."

    def queries(self) -> Iterator[Query]:
        """All questions that have an answer."""
        beliefs = Beliefs()
        for event in self.events:
            beliefs.follow(event)
        were, are, thing = ("were", "are", self.thing) if self.plural else ("was", "is", self.thing)
        really = beliefs.places[-1]
        yield Query("world_model", f"Where {were} the {thing} at the beginning?", beliefs.places[0])
        yield Query("world_model", f"Where {are} the {thing} really, at the end?", really)
        for who, place in sorted(beliefs.first_order.items()):
            yield Query("theory_of_mind", f"Where will {who} look for the {thing}?", place, place != really)
        for (who, other), place in sorted(beliefs.second_order.items()):
            yield Query(
                "theory_of_mind",
                f"Where does {who} think that {other} searches for the {thing}?",
                place,
                place != really,
            )


def tell(draws: Draws) -> Story:
    """A story with two or three people, one thing, and two or three containers in one room."""
    people = some_of(draws, FIRST_NAMES, between(draws, 2, 3))
    room = draws.pick(ROOMS)
    containers = some_of(draws, CONTAINERS, between(draws, 2, 3))
    plural = draws.chance(40)
    thing = draws.pick(PLURAL if plural else SINGULAR)
    events = [Event("enters", who, room) for who in people]
    events.append(Event("puts", "", containers[0]))
    events += _turmoil(draws, people, room, containers)
    return Story(thing, plural, room, tuple(events))


def _turmoil(draws: Draws, people: Sequence[str], room: str, containers: Sequence[str]) -> list[Event]:
    """Comings and goings, with the thing put elsewhere at least once while somebody is out, and a remark that does not matter. Only who
    knows where the thing is puts it elsewhere."""
    present, out, at, knowing = list(people), list[str](), containers[0], set(people)
    events: list[Event] = []
    moves = between(draws, 1, 2)
    for _ in range(moves):
        leavers = [who for who in present if knowing & ({*present} - {who})]
        if leavers:
            leaver = draws.pick(leavers)
            present.remove(leaver)
            out.append(leaver)
            events.append(Event("leaves", leaver, room))
        at = draws.pick([container for container in containers if container != at])
        events.append(Event("puts", draws.pick([who for who in present if who in knowing]), at))
        knowing = set(present)
        if out and draws.chance(40):
            back = draws.pick(out)
            out.remove(back)
            present.append(back)
            events.append(Event("enters", back, room))
    remark = Event("feeling", draws.pick(people), f"{draws.pick(FEELINGS)} the {draws.pick(SINGULAR)}")
    events.insert(draws.below(len(events) + 1), remark)
    leaving = shuffled(draws, present)[: draws.below(2)]
    return [*events, *(Event("leaves", leaver, room) for leaver in leaving)]
