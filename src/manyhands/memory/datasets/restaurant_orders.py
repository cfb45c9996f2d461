"""Orders as a model reads them out of what a guest says, and whether they are in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.memory.datasets.judge import object_in, yes
from manyhands.memory.datasets.restaurant_menu import Menu


@dataclass(frozen=True, slots=True)
class Ordered:
    """One thing that was ordered. ``text``: as the guest said it; ``number``: on the menu, None if it is not; ``off_menu``: whether
    the model says that it is not on the menu."""

    text: str
    is_drink: bool
    number: int | None
    off_menu: bool


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
