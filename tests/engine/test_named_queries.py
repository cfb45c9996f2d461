"""Named queries: private to the journal, each used, and those that read in one place each."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import manyhands
from manyhands.engine.journal import database
from manyhands.engine.journal.database import queries

JOURNAL = Path(database.__file__).parent


def used() -> Counter[str]:
    """How often the modules of the journal name each query."""
    text = "".join(path.read_text() for path in JOURNAL.glob("*.py"))
    return Counter({name: len(re.findall(rf'"{name}"', text)) for name in queries()})


def test_every_query_is_used() -> None:
    assert [name for name, times in used().items() if not times] == []


def test_each_query_that_reads_is_used_in_one_place() -> None:
    times = used()
    reading = [name for name, sql in queries().items() if re.match(r"(--.*\n)*SELECT", sql)]
    assert len(reading) > 20
    assert {name: times[name] for name in reading} == dict.fromkeys(reading, 1)


def test_nobody_else_reads_the_queries() -> None:
    outside = [path for path in Path(manyhands.__file__).parent.rglob("*.py") if path.parent != JOURNAL]
    assert [path for path in outside if "journal.database" in path.read_text()] == []
