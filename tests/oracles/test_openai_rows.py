"""Rows for OpenAI's fine-tuning, by the types of OpenAI's client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.conversations import conversations
from tests.support.oracles import EXAMPLES, check, examples, format_of, rows_of, write_lines

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(600)]


@pytest.mark.parametrize("reasoning", ["drop", "keep"])
def test_all_messages_and_tools_have_openais_types(tmp_path: Path, reasoning: str) -> None:
    rows = rows_of(format_of("openai", reasoning=reasoning), examples(conversations()))
    path = write_lines(tmp_path / "rows.jsonl", rows)
    assert check("openai", "openai_messages", path, home=tmp_path) == {"rows": EXAMPLES, "rejects": []}
