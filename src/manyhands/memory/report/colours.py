"""Colours of scores and of agents, which stay the same from report to report."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

_NONE, _FULL = (188, 66, 66), (126, 188, 66)
"""Of no points and of all."""
UNSCORED = "#8c959f"
AGENTS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#c9a227",
    "#66bbdd",
    "#aa3377",
    "#7f7f7f",
    "#ee8833",
    "#44aa99",
    "#8b5a2b",
    "#6655cc",
    "#99bb33",
)


def score_colour(score: float | None) -> str:
    """From red for 0 to green for 1; grey for none."""
    if score is None:
        return UNSCORED
    share = min(1.0, max(0.0, score))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_NONE, _FULL, strict=True))


def agent_colours(names: Mapping[str, str]) -> dict[str, str]:
    """A colour for each label. It follows from the agent's name, unless another one has it already. ``names``: of the agents, by label."""
    found: dict[str, str] = {}
    for label in sorted(names):
        digest = sha256(names[label].encode("utf-8", "surrogatepass")).digest()
        first = int.from_bytes(digest[:4], "big")
        colours = [AGENTS[(first + step) % len(AGENTS)] for step in range(len(AGENTS))]
        taken = set(found.values())
        found[label] = next((colour for colour in colours if colour not in taken), colours[0])
    return found
