"""How large a regular expression becomes when it is compiled.

Counted repetitions are written out in a compiled pattern, so ``(?:(?:a{1000}){1000}){1000}`` takes all memory there is.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\\?\Z)|\{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\}|.", re.DOTALL)


def written_out(pattern: str) -> int:
    """About how many elements a pattern has when each ``{n}`` and ``{n,m}`` is written out, at its larger number."""
    sizes = [0]
    last = 0
    for token in _TOKEN.finditer(pattern):
        numbers = [int(number) for number in (token["least"], token["most"]) if number]
        if token[0] == "(":
            sizes.append(0)
        elif token[0] == ")" and len(sizes) > 1:
            last = sizes.pop() + 1
            sizes[-1] += last
        elif numbers:
            sizes[-1] += last * (max(numbers) - 1)
            last *= max(numbers)
        else:
            last = 1
            sizes[-1] += 1
    return sum(sizes)
