"""What is meant by ``--select``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.core.errors import UserError
from manyhands.engine.journal.reader import JournalReader
from manyhands.runs.steering.selection import Selection, chosen, has_ended
from tests.support.engine_runs import perform_steps_run

WORDS = st.one_of(
    st.text(), st.builds("{}={}".format, st.sampled_from(["state", "cause", "key", "item", ""]), st.text())
)


@given(st.lists(WORDS, max_size=4))
def test_any_words_are_read_or_refused_in_one_line(words: list[str]) -> None:
    said = ""
    try:
        assert Selection.parse(words).text == " ".join(words)
    except UserError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("state=failed", [2, 3]),
        ("state=failed state=completed", [1, 2, 3, 4, 5, 6]),
        ("cause=timeout", [3]),
        ("cause=timeout cause=model_refused", [2, 3]),
        ("key=a item=3-4", [1, 3, 4]),
        ("key=a key=b state=failed", [2]),
        ("item=2-9999 cause=timeout", [3]),
        ("key=own", [5, 6]),
        ("key=id:own#1", [6]),
        ("state=pending", []),
    ],
)
def test_of_one_name_any_may_match_and_of_several_each_has_to(tmp_path: Path, words: str, numbers: list[int]) -> None:
    items = ["a", "b", "c", "d", "id:own#0", "id:own#1"]
    failures = {"b": ["model_refused"], "c": ["timeout"]}
    execution = {"executor": "local", "workers": 1, "concurrency": 1}
    perform_steps_run(tmp_path / "run", {"items": items, "failures": failures, "execution": execution})
    with closing(JournalReader(tmp_path / "run")) as reader:
        assert chosen(reader, Selection.parse(words.split()), has_ended).numbers == numbers


def test_the_home_of_a_user_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match="no such file: ~nosuchuser/keys"):
        Selection.parse(["@~nosuchuser/keys"])
