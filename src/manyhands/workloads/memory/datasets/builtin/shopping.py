"""A shopping list that changes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation
from manyhands.workloads.memory.datasets.answers.matching import quantity_in, stems
from manyhands.workloads.memory.datasets.answers.tolerant_json import NotJson, tolerant_json
from manyhands.workloads.memory.datasets.base import (
    BaseDataset,
    DatasetArguments,
    all_or_nothing,
    between,
    last_of,
    texts,
)

_TEXTS = texts("shopping")
ITEMS: tuple[str, ...] = _TEXTS["items"]
MAX_AT_ONCE = 3
_ADD: tuple[str, ...] = _TEXTS["add"]
_REMOVE: tuple[str, ...] = _TEXTS["remove"]

Wanted = list[tuple[str, int]]
Given = list[tuple[str, int | None]]
"""What an answer names, and how many of it; None for a quantity that can't be read."""
_NOTHING = re.compile(
    r"\W*(?:(?:(?:the|your|my) )?(?:shopping )?list is (?:now |currently )?empty(?: now)?|it(?:['’]s| is) empty|"
    r"you (?:do not|don['’]t) (?:need|have) to buy anything|there are no items(?: (?:left|on (?:the|your) (?:shopping )?list))*|"
    r"empty(?: list)?|(?:there is |you need to buy )?nothing"
    r"(?: (?:is )?(?:left|to buy|on (?:the|your|it|my)(?: shopping)?(?: list)?))*|none|no items?|null)\W*",
    re.IGNORECASE,
)
"""An empty list in words."""


class ShoppingArguments(DatasetArguments):
    """``item_changes``: how often something is put on the list or taken off."""

    item_changes: int = Field(default=3, ge=1)


class Shopping(BaseDataset):
    """What is on the list is asked for, as JSON. The score is the mean of three shares: expected items that are there, expected items whose
    quantity is right, and one for naming nothing else. What is no list of objects with ``item`` and ``quantity`` gets nothing.

    Mended: items are the same if all their words are, in the singular or plural (as published, "coconut milk" is milk); each is counted
    once, what comes again is unexpected (as published, it counts again, to more than full marks); an empty list can be right (as
    published, that divides by zero), also one in words, and gets nothing if it is not (as published, a third for naming nothing else);
    a quantity may be a text, as "two cartons" (as published, such an answer is no list), and what is there 0 times is not there.
    """

    id = "shopping"
    default_name = "Shopping"
    about = "Puts things on a shopping list and takes some off, and asks what is on it."
    default_question = (
        "What do I have to buy? Answer with a JSON list and nothing else: an object for each thing on the list, "
        "with its name as `item` and how many of it as `quantity`."
    )
    Arguments: ClassVar[type[DatasetArguments]] = ShoppingArguments

    def example(self, number: int, draws: Draws) -> Definition:
        cart: dict[str, int] = {}
        told = [_change(cart, draws) for _ in range(self.arguments.item_changes)]
        return self.scripted(number, told, (self.question,), [[item.lower(), count] for item, count in cart.items()])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        try:
            given = _items(_value(last_of(answers), self.mended), self.mended)
        except NotJson as error:
            return all_or_nothing(False, f"the answer is no list of items with quantities: {error}")
        expected: Wanted = [(item, count) for item, count in definition.expected_responses]
        return _scored(expected, given, self.mended)

    def right_answer(self, definition: Definition, number: int) -> str:
        return json.dumps([{"item": item, "quantity": count} for item, count in definition.expected_responses])


def _change(cart: dict[str, int], draws: Draws) -> str:
    """Change a cart, and say so."""
    if cart and between(draws, 1, 6) < 2:
        item = draws.pick(list(cart))
        number = between(draws, 1, cart[item])
        cart[item] -= number
        if not cart[item]:
            del cart[item]
        return draws.pick(_REMOVE).format(number=number, item=item)
    item, number = draws.pick(ITEMS), between(draws, 1, MAX_AT_ONCE)
    more = "another " if item in cart else ""
    cart[item] = cart.get(item, 0) + number
    return draws.pick(_ADD).format(more=more, number=number, item=item)


def _value(answer: str, mended: bool) -> Any:
    """What an answer holds. An empty list may be said in words, or be an object that holds nothing."""
    if mended and _NOTHING.fullmatch(answer[:200].strip()):
        return []
    value = tolerant_json(answer)
    return [] if mended and (value is None or value == {}) else value


def _items(value: Any, mended: bool) -> Given:
    if not isinstance(value, list):
        raise NotJson("not a list")
    items = [_item(each, mended) for each in value]
    return [each for each in items if not mended or each[1] is None or each[1] > 0]


def _item(value: Any, mended: bool) -> tuple[str, int | None]:
    if not isinstance(value, dict):
        raise NotJson("not all are objects")
    item, quantity = value.get("item"), value.get("quantity")
    if mended and isinstance(item, str) and (isinstance(quantity, str | float) and quantity != ""):
        return item.lower(), quantity_in(quantity)
    if not isinstance(item, str) or not isinstance(quantity, int) or isinstance(quantity, bool):
        raise NotJson("not all have a text as item and a whole number as quantity")
    return item.lower(), quantity


def _scored(expected: Wanted, given: Given, mended: bool) -> Evaluation:
    found, right, left = 0, 0, list(expected)
    reasons: list[str] = []
    unexpected: list[str] = []
    for item, quantity in given:
        match = _match(item, left if mended else expected, mended)
        if match is None:
            unexpected.append(item)
            continue
        found += 1
        if match in left:
            left.remove(match)
        if match[1] == quantity:
            right += 1
        else:
            said = "an unreadable number of" if quantity is None else quantity
            reasons.append(f"{said} {match[0]} instead of {match[1]}")
    reasons += [f"{item} is missing" for item, _ in left] + [f"{item} was not expected" for item in unexpected]
    if not expected and not mended:
        return all_or_nothing(False, "the list should be empty, which the published rules can't score")
    if not expected:
        return all_or_nothing(not unexpected, "; ".join(reasons) or "the list is empty, as it should be")
    if mended and not given:
        return all_or_nothing(False, "; ".join(reasons))
    share = (found / len(expected) + right / len(expected) + (not unexpected)) / 3
    return Evaluation(share, 1.0, tuple(reasons) or ("all items and quantities are right",))


def _match(item: str, expected: Wanted, mended: bool) -> tuple[str, int] | None:
    if mended:
        return next((each for each in expected if stems(each[0]) == stems(item)), None)
    return next((each for each in expected if each[0] in item), None)
