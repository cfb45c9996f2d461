"""The menu of the restaurant, and how it is read from a message."""

from __future__ import annotations

import re
from dataclasses import dataclass

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "To begin with",
        (
            "Beetroot carpaccio with walnuts",
            "Smoked trout on rye bread",
            "Baked goat cheese with thyme",
            "Stuffed vine leaves",
        ),
    ),
    ("Soups", ("Clear oxtail soup", "Cream of parsnip soup", "Fisherman's soup with saffron", "Cold cucumber soup")),
    ("Salads", ("Lentil salad with mint", "Potato salad with dill", "Warm cabbage salad with bacon")),
    (
        "From the sea",
        ("Pan-fried plaice with capers", "Mussels in cider", "Cod in mustard sauce", "Grilled sardines with lemon"),
    ),
    ("From the oven", ("Shepherd's pie", "Roast duck with red cabbage", "Aubergine gratin", "Leg of lamb with beans")),
    (
        "Pasta and dumplings",
        ("Spinach dumplings in sage butter", "Tagliatelle with chanterelles", "Potato dumplings with goulash"),
    ),
    (
        "Without meat",
        (
            "Chickpea curry with rice",
            "Mushroom stroganoff",
            "Stuffed peppers with bulgur",
            "Polenta with roasted pumpkin",
        ),
    ),
    (
        "Desserts",
        (
            "Apple strudel with custard",
            "Rice pudding with cherries",
            "Chocolate tart with sea salt",
            "Poached pear in red wine",
        ),
    ),
    (
        "Drinks",
        (
            "Mineral water",
            "Elderflower lemonade",
            "Apple juice",
            "Wheat beer",
            "Red wine of the house",
            "Peppermint tea",
        ),
    ),
)

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
