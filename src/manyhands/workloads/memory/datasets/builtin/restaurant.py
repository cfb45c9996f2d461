"""An evening in a restaurant: the agent is the guest, and what happens depends on what it orders.

The menu is read from the waiter's message, and orders as a model reads them out of what the guest says.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Definition,
    Evaluation,
    Json,
    Message,
    Play,
    Say,
    Step,
    Wait,
)
from manyhands.workloads.memory.datasets.answers.judging import BY_MODEL, ask_with_data, flag_in, object_in, yes
from manyhands.workloads.memory.datasets.answers.settling import says
from manyhands.workloads.memory.datasets.base import ACKNOWLEDGED, BaseDataset, JudgeRule, prompt, shuffled, texts
from manyhands.workloads.memory.datasets.recorded import NotOnRecord, RecordedTest, Rescoring, played_again

_TEXTS = texts("restaurant")
WAITS = (20, 40, 60, 80, 90)
"""Percent of the memory span at which the evening goes on."""
COURSES = 5
"""Points there are."""

ROLE, ORDER, NOTICED, RECALLS = "restaurant: role", "restaurant: order", "restaurant: noticed", "restaurant: recalls"
"""A request to a model."""

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = _TEXTS["sections"]

_ITEM = re.compile(r"^(\d+)\. (.+)$")


@dataclass(frozen=True, slots=True)
class Menu:
    """Numbered items by section; the last section has the drinks."""

    sections: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def items(self) -> tuple[str, ...]:
        """All, in the order of their numbers, which begin with 1."""
        return tuple(item for _, items in self.sections for item in items)

    @property
    def dishes(self) -> tuple[str, ...]:
        """Those that are no drinks."""
        return self.items[: len(self.items) - len(self.sections[-1][1])] if self.sections else ()

    @property
    def drinks(self) -> tuple[str, ...]:
        return self.items[len(self.dishes) :]

    def dish(self, number: int) -> str | None:
        """The dish of a number, if it is one."""
        return self.dishes[number - 1] if 1 <= number <= len(self.dishes) else None

    def alternatives(self, dish: str) -> tuple[str, ...]:
        """The other dishes of its section."""
        items = next((items for _, items in self.sections[:-1] if dish in items), ())
        return tuple(item for item in items if item != dish)

    def __str__(self) -> str:
        """As a guest reads it."""
        lines, number = [], 1
        for title, items in self.sections:
            lines.append(f"{title}:")
            for item in items:
                lines.append(f"{number}. {item}")
                number += 1
            lines.append("")
        return "\n".join(lines).rstrip()


MENU = Menu(SECTIONS)


def menu_in(message: str) -> Menu:
    """The menu that a message holds, as ``str`` gives it; empty if there is none."""
    sections: list[tuple[str, list[str]]] = []
    for line in message.splitlines():
        item = _ITEM.match(line)
        if item is not None and sections:
            sections[-1][1].append(item[2])
        elif line.endswith(":"):
            sections.append((line[:-1], []))
    return Menu(tuple((title, tuple(items)) for title, items in sections if items))


@dataclass(frozen=True, slots=True)
class Ordered:
    """One thing that was ordered."""

    text: str
    """As the guest said it."""
    is_drink: bool
    number: int | None
    """On the menu; None if it is not there."""
    off_menu: bool
    """Whether the model says that it is not on the menu."""


def read_order(reply: str) -> list[Ordered] | None:
    """The order in a model's reply; empty if nothing was ordered, None if the reply can't be read."""
    value = object_in(reply)
    if value is None or "has_ordered_something" not in value:
        return None
    items = value.get("order") or []
    if not isinstance(items, list) or not all(
        isinstance(item, dict) and isinstance(item.get("item"), str) for item in items
    ):
        return None
    return [_ordered(item) for item in items] if yes(value["has_ordered_something"]) else []


def drinks_of(order: Sequence[Ordered]) -> list[str] | None:
    """What the drinks are called; None if anything else was ordered too, or nothing."""
    return [item.text for item in order] if order and all(item.is_drink for item in order) else None


def dishes_of(order: Sequence[Ordered], menu: Menu) -> list[str] | None:
    """The dishes as the menu calls them; None if a drink is among them, something that is not on the menu, or nothing."""
    dishes = [_dish(item, menu) for item in order]
    known = [dish for dish in dishes if dish is not None]
    return known if known and len(known) == len(dishes) else None


def listed(items: Sequence[str]) -> str:
    """``A, B and C``."""
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else "".join(items)


def _dish(item: Ordered, menu: Menu) -> str | None:
    if item.is_drink or item.number is None:
        return None
    if item.off_menu and item.text.lower() not in str(menu).lower():
        return None
    return menu.dish(item.number)


def _ordered(item: dict[str, Any]) -> Ordered:
    number = item.get("menu_nr")
    if isinstance(number, str) and number.strip().isdecimal():
        number = int(number)
    known = number if isinstance(number, int) and not isinstance(number, bool) else None
    return Ordered(str(item["item"]), yes(item.get("is_drink")), known, yes(item.get("off_menu")))


_BAD_NEWS = 4
"""The position, among the messages of an evening, of the one that something has run out."""


@dataclass(slots=True)
class _Evening:
    """How far it went."""

    points: int = 0
    """Courses that went well."""
    reasons: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expects(self, what: str) -> None:
        """What comes next, if it goes well."""
        self.expected.append(what)

    def good(self, reason: str) -> None:
        self.points += 1
        self.reasons.append(f"{reason} {BY_MODEL}")

    def over(self, reason: str) -> Evaluation:
        """The evening ends here."""
        self.reasons.append(f"{reason} {BY_MODEL}")
        return self.end()

    def end(self) -> Evaluation:
        return Evaluation(float(self.points), float(COURSES), tuple(self.reasons), tuple(self.expected))


def _role_by_rule(data: Json) -> Json:
    return {"follows_role": any(says(data["guest"], item) for item in menu_in(data["waiter"]).items)}


def _order_by_rule(data: Json) -> Json:
    menu = menu_in(data["menu"])
    named = [(number, item) for number, item in enumerate(menu.items, start=1) if says(data["guest"], item)]
    order = [
        {"is_drink": item in menu.drinks, "item": item, "menu_nr": number, "menu_ref": item, "off_menu": False}
        for number, item in named
    ]
    return {"has_ordered_something": bool(order), "order": order}


def _noticed_by_rule(data: Json) -> Json:
    missing = [dish for dish in data["ordered"] if dish not in data["served"]]
    return {"noticed": any(says(data["guest"], dish) for dish in missing)}


def _recalls_by_rule(data: Json) -> Json:
    return {"recalls": says(data["guest"], data["drink"])}


class Restaurant(BaseDataset):
    """A point each for: ordering a drink in the part of the guest; ordering dishes that are on the menu; ordering another one for
    one that ran out; noticing that another dish was served; knowing what the drink was. A model reads the answers. The first that
    goes wrong, or that the model gives no readable reply about, ends the evening with the points so far. What runs out and what is
    served follows from the seed, the test's name and the order.

    Mended: who repeats a dish that is already on its way while ordering another one has not ordered it twice (as published, that ends the
    test); the choices depend on the seed of the configuration.
    """

    id = "restaurant"
    default_name = "Restaurant"
    default_reset = (
        "We have left the restaurant. Please stop playing the guest, and disregard everything that happened there."
    )
    about = "Plays a guest in a restaurant who has to keep in mind what was ordered."
    judge_rules: ClassVar[Mapping[str, JudgeRule]] = {
        ROLE: _role_by_rule,
        ORDER: _order_by_rule,
        NOTICED: _noticed_by_rule,
        RECALLS: _recalls_by_rule,
    }

    def example(self, number: int, draws: Draws) -> Definition:
        return Definition(self.name, str(number))

    def play(self, definition: Definition) -> Play:
        return self._evening(Draws("restaurant", self.arguments.seed, definition.unique_id), MENU)

    def _evening(self, draws: Draws, menu: Menu) -> Play:
        evening = _Evening()
        yield Say(_TEXTS["invitation"])
        yield Wait(percentage=WAITS[0])
        said = _TEXTS["welcome"].format(menu=menu)
        evening.expects("The guest plays the part, and orders a drink.")
        reply = yield Say(said, is_question=True)
        if not (yield from _flag(ROLE, prompt("restaurant_role"), "follows_role", waiter=said, guest=reply)):
            return evening.over("the answer is not that of a guest")
        drinks = drinks_of((yield from _order(menu, said, reply)))
        if drinks is None:
            return evening.over("a drink, and nothing else, was to be ordered")
        evening.good(f"ordered {listed(drinks)}")
        yield Wait(percentage=WAITS[1])
        return (yield from self._dinner(draws, menu, evening, listed(drinks)))

    def _dinner(self, draws: Draws, menu: Menu, evening: _Evening, drink: str) -> Play:
        said = _TEXTS["food"].format(drink=drink)
        evening.expects("The guest orders dishes that are on the menu.")
        reply = yield Say(said, is_question=True)
        order = dishes_of((yield from _order(menu, said, reply)), menu)
        if order is None:
            return evening.over("dishes of the menu, and no drinks, were to be ordered")
        evening.good(f"ordered {listed(order)}")
        yield Say(_TEXTS["taken"].format(dishes=listed(order)))
        yield Wait(percentage=WAITS[2])
        gone = draws.pick(order)
        said = _TEXTS["gone"].format(dish=gone)
        evening.expects(f"The guest orders something else instead of {gone}.")
        reply = yield Say(said, is_question=True)
        others = self._others(dishes_of((yield from _order(menu, said, reply)), menu), order, gone)
        if not others:
            return evening.over(f"something else was to be ordered instead of {gone}")
        evening.good(f"ordered {listed(others)} instead of {gone}")
        yield Say(_TEXTS["changed"].format(dishes=listed(others)))
        yield Wait(percentage=WAITS[3])
        order = [dish for dish in order if dish != gone] + others
        return (yield from self._mistake(draws, menu, evening, drink, order, gone))

    def _mistake(self, draws: Draws, menu: Menu, evening: _Evening, drink: str, order: list[str], gone: str) -> Play:
        right, wrong = _swap(draws, menu, order, gone)
        served = [wrong if dish == right else dish for dish in order]
        evening.expects(f"The guest notices that {wrong} was served instead of {right}.")
        reply = yield Say(_TEXTS["served"].format(dishes=listed(served)), is_question=True)
        if not (
            yield from _flag(
                NOTICED, prompt("restaurant_noticed"), "noticed", ordered=order, served=served, guest=reply
            )
        ):
            return evening.over(f"it was not noticed that {wrong} was served instead of {right}")
        evening.good(f"noticed that {wrong} was served instead of {right}")
        yield Say(_TEXTS["sorry"])
        yield Wait(percentage=WAITS[4])
        evening.expects(f"The guest recalls that the drink was {drink}.")
        reply = yield Say(_TEXTS["repaired"].format(dish=right), is_question=True)
        if not (yield from _flag(RECALLS, prompt("restaurant_recalls"), "recalls", drink=drink, guest=reply)):
            return evening.over(f"the drink was {drink}")
        evening.good(f"knew that the drink was {drink}")
        return evening.end()

    def _others(self, dishes: list[str] | None, order: Sequence[str], gone: str) -> list[str]:
        """What is ordered anew; nothing if that is not in order."""
        if not dishes or gone in dishes:
            return []
        again = [dish for dish in dishes if dish in order]
        if again and not self.mended:
            return []
        return [dish for dish in dishes if dish not in order]

    def rescore(self, recorded: RecordedTest) -> Rescoring:
        """The evening again with the guest's replies, where a model judges and the waiter says what ours does; else by what a model
        replied during it."""
        definition, log = recorded.definition, recorded.conversation("task_log")
        said = log.of_test(definition.unique_id)
        if recorded.judged:
            evaluation = yield from played_again(self.play(definition), said)
            if evaluation is not None:
                return evaluation, False
        calls = log.calls(definition.unique_id)
        if not calls:
            raise NotOnRecord
        evaluation = self.from_log([message.text for message in said], calls)
        asked = sum(message.is_question for message in said)
        return evaluation, asked not in (0, min(int(evaluation.score) + 1, int(evaluation.maximum)))

    def from_log(self, messages: Sequence[str], replies: Sequence[str]) -> Evaluation:
        """The score of an evening that is over, also of a published one, from its messages and from what a model replied during it."""
        menu = next((found for text in messages if (found := menu_in(text)).sections), Menu(()))
        evening, left = _Evening(), iter(replies)
        if not flag_in(next(left, ""), "follows_role"):
            return evening.over("the answer is not that of a guest")
        drinks = drinks_of(read_order(next(left, "")) or [])
        if drinks is None:
            return evening.over("a drink, and nothing else, was to be ordered")
        evening.good(f"ordered {listed(drinks)}")
        order = dishes_of(read_order(next(left, "")) or [], menu)
        if order is None:
            return evening.over("dishes of the menu, and no drinks, were to be ordered")
        evening.good(f"ordered {listed(order)}")
        bad_news = messages[_BAD_NEWS] if len(messages) > _BAD_NEWS else ""
        gone = next((dish for dish in order if dish in bad_news), "")
        others = self._others(dishes_of(read_order(next(left, "")) or [], menu), order, gone)
        if not others:
            return evening.over("something else was to be ordered")
        evening.good(f"ordered {listed(others)} instead")
        for flag in ("noticed", "recalls"):
            if not flag_in(next(left, ""), flag):
                return evening.over(f"{flag}: no")
            evening.good(f"{flag}: yes")
        return evening.end()

    def ideal(self, definition: Definition, conversation: Sequence[Message], message: str) -> str:
        own = [each.text for each in conversation if each.test_id == definition.unique_id]
        menu = next((found for text in (message, *own) if (found := menu_in(text)).sections), None)
        if menu is None:
            return ACKNOWLEDGED
        drink, first, second = menu.drinks[0], menu.dishes[len(menu.dishes) // 3], menu.dishes[len(menu.dishes) // 2]
        answers = {
            1: f"I'd like the {drink}, please.",
            2: f"I'd like the {first}, please.",
            4: f"Then I'd like the {second}, please.",
            6: f"Excuse me, that is not what I ordered. I ordered the {second}.",
            8: f"I was drinking the {drink}, thank you.",
        }
        return answers.get(len(own), "Thank you.")


def _flag(purpose: str, task: str, flag: str, **data: object) -> Generator[Step, str, bool]:
    """What a model says; False if its reply can't be read."""
    return flag_in((yield ask_with_data(purpose, task, data)), flag)


def _order(menu: Menu, waiter: str, guest: str) -> Generator[Ask, str, list[Ordered]]:
    """What a guest ordered; nothing if the model's reply can't be read."""
    data = {"menu": str(menu), "waiter": waiter, "guest": guest}
    reply = yield ask_with_data(ORDER, prompt("restaurant_order"), data, max_tokens=1024)
    return read_order(reply) or []


def _swap(draws: Draws, menu: Menu, order: Sequence[str], gone: str) -> tuple[str, str]:
    """A dish that was ordered, and the one of its section that is served instead."""
    for dish in shuffled(draws, order):
        others = [other for other in menu.alternatives(dish) if other not in (gone, *order)]
        if others:
            return dish, draws.pick(others)
    dish = draws.pick(order)
    return dish, draws.pick([other for other in menu.dishes if other not in (gone, *order)] or [gone])
