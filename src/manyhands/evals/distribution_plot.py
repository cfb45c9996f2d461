"""A histogram of scores as SVG, to stand in a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 340, 170
_LEFT, _BOTTOM, _TOP = 34, 22, 22
_AXIS = WIDTH - _LEFT - 8


def distribution_plot(counts: Sequence[int], limit: float, title: str) -> str:
    """A bar for each of equally wide bins from 0 to 1, with the pass limit as a line."""
    highest, total = max(*counts, 1), sum(counts)
    name = escape(f"{title}: {total:,} scores")
    floor, room = HEIGHT - _BOTTOM, HEIGHT - _BOTTOM - _TOP
    parts = [f'<svg role="img" aria-label="{name}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">']
    parts += [f'<text x="{_LEFT}" y="14">{name}</text>']
    step = _AXIS / len(counts)
    for place, count in enumerate(counts):
        height = room * count / highest
        low, high = place / len(counts), (place + 1) / len(counts)
        parts += [
            f'<rect class="bar" x="{_LEFT + place * step + 1:.1f}" y="{floor - height:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}"><title>{low:g} to {high:g}: {count:,}</title></rect>'
        ]
    parts += [f'<line x1="{_LEFT}" y1="{floor}" x2="{_LEFT + _AXIS}" y2="{floor}"/>']
    x = _LEFT + limit * _AXIS
    parts += [
        f'<line class="limit" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{floor}"><title>limit {limit:g}</title></line>'
    ]
    for mark in (0, 0.2, 0.4, 0.6, 0.8, 1):
        parts += [f'<text x="{_LEFT + mark * _AXIS:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{mark:g}</text>']
    parts += [f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{highest:,}</text>']
    parts += [f'<text x="{_LEFT - 4}" y="{floor}" text-anchor="end">0</text>', "</svg>\n"]
    return "\n".join(parts)
