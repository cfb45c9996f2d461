"""Lists: one for shopping, which changes, and a long one of keys with their values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation, Json
from manyhands.workloads.memory.datasets.answers.matching import NotJson, quantity_in, stems, tolerant_json
from manyhands.workloads.memory.datasets.answers.settling import settles_on
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
    item_changes: int = Field(default=3, ge=1)
    """How often something is put on the list or taken off."""


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
    default_reset = "Everything on my shopping list has been bought. The list is empty now; please start a new one."
    about = "Puts things on a shopping list and takes some off, and asks what is on it."
    default_question = _TEXTS["question"]
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


_PAIRS = texts("key_values")
_GROUPS = (8, 4, 4, 4, 12)
_IDENTIFIER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VALUE = re.compile(rf'"({_IDENTIFIER.pattern})"(?!\s*:)')


class KeyValueArguments(DatasetArguments):
    nested_levels: int = Field(default=0, ge=0, le=20)
    """Objects between a key and its value."""
    num_kv_pairs: int = Field(default=140, ge=1, le=100_000)
    """Pairs in each test."""


class KeyValuePairs(BaseDataset):
    """One point if the answer holds the value.

    Mended: the pairs come from the seed (as published, from nowhere); a script of one question needs no waits; an answer that settles
    on no one of the values that were told gets nothing (as published, one that lists them all gets full marks).
    """

    id = "kv"
    default_name = "Key-Value Pairs"
    about = "Gives many random keys with their values, and asks for one value."
    Arguments: ClassVar[type[DatasetArguments]] = KeyValueArguments

    def example(self, number: int, draws: Draws) -> Definition:
        pairs: dict[str, Json] = {}
        paths: list[tuple[str, ...]] = []
        values: list[str] = []
        for _ in range(self.arguments.num_kv_pairs):
            path = tuple(_identifier(draws) for _ in range(self.arguments.nested_levels + 1))
            value = _identifier(draws)
            paths.append(path)
            values.append(value)
            inside: Json = value
            for key in reversed(path[1:]):
                inside = {key: inside}
            pairs[path[0]] = inside
        chosen = draws.below(len(paths))
        asked = _PAIRS["question"].format(path=" in ".join(f"the key {key}" for key in reversed(paths[chosen])))
        told = _PAIRS["told"].format(pairs=json.dumps(pairs, indent=1))
        return self.scripted(number, (told,), (self.question or asked,), [values[chosen]])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        value, answer = definition.expected_responses[0], last_of(answers)
        right = settles_on(answer, value, _others(definition, value, answer)) if self.mended else value in answer
        return all_or_nothing(right, f"the answer {'holds' if right else 'does not hold'} the value")


def _others(definition: Definition, value: str, answer: str) -> list[str]:
    """The other values that were told and that the answer names; keys it may name."""
    said = set(_IDENTIFIER.findall(answer.lower()))
    told = (found for line in definition.script[:-1] for found in _VALUE.findall(line.lower()))
    return sorted({each for each in told if each in said and each != value.lower()})


def _identifier(draws: Draws) -> str:
    """Random hexadecimal digits, grouped as in a UUID."""
    return "-".join("".join(draws.pick("0123456789abcdef") for _ in range(size)) for size in _GROUPS)
