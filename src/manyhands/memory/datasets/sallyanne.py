"""Stories about who saw what, told as a television programme."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from manyhands.memory.datasets.base import BaseDataset, DatasetArguments, all_or_nothing, last_of
from manyhands.memory.datasets.stories import tell
from manyhands.memory.model import Definition, Evaluation
from manyhands.memory.tolerant_json import NotJson, tolerant_json
from manyhands.models.draws import Draws

_INTRODUCTION = (
    "There is a play on television, and I tell you what happens. Containers are closed in it: only who is in the room when something is "
    "put somewhere knows where it is, and nobody looks into any. At the end I have a question about it. All right?"
)
_ON_TV = "(On TV) "
_ARTICLE = re.compile(r"(?:(?:in|into|inside|at) )?(?:(?:the|a|an) )?")
MISTAKEN = 60
"""Percent of the questions that are about somebody's error, where a story has one; of the others some are so by chance."""
_FORM = 'Answer with a JSON object that holds one word, and nothing else: {"answer": "word"}'


class SallyAnneArguments(DatasetArguments):
    """``question_type``: about what is so (``world_model``), about what people believe (``theory_of_mind``), or ``any``."""

    question_type: Literal["world_model", "theory_of_mind", "any"] = "any"
    data_location: Path | None = None


class SallyAnne(BaseDataset):
    """Where something is, or is believed to be, is asked for as JSON. One point if the ``answer`` is the expected word, in capitals or not.

    Mended: an answer that is no text gets nothing (as published, that crashes); an article or "in" before the word does not matter. The
    stories are made here, so ``data_location``, where the original's file is, is accepted and not used.
    """

    id = "sallyanne"
    default_name = "SallyAnne"
    about = "Tells a story in which people miss some of what happens, and asks where something is or where they believe that it is."
    Arguments: ClassVar[type[DatasetArguments]] = SallyAnneArguments

    def example(self, number: int, draws: Draws) -> Definition:
        story = tell(draws)
        kind = self.arguments.question_type
        queries = [each for each in story.queries() if kind in ("any", each.kind)]
        mistaken = [each for each in queries if each.mistaken]
        query = draws.pick(mistaken if mistaken and draws.chance(MISTAKEN) else queries)
        told = (_INTRODUCTION, *(_ON_TV + line for line in story.lines()))
        return self.scripted(number, told, (f"The play is over. {query.text}\n{_FORM}",), [query.answer])

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        expected = definition.expected_responses[-1]
        try:
            said = _answer(tolerant_json(last_of(answers)))
        except NotJson as error:
            return all_or_nothing(False, f"the answer is no such object: {error}")
        word = said.lower()
        if self.mended:
            word = _ARTICLE.sub("", word.strip(" .!\"'\n"), count=1)
        return all_or_nothing(word == expected.lower(), f"the answer is {word!r}, expected was {expected!r}")

    def right_answer(self, definition: Definition, number: int) -> str:
        return json.dumps({"answer": definition.expected_responses[number]})


def _answer(value: Any) -> str:
    if not isinstance(value, dict) or not isinstance(value.get("answer"), str):
        raise NotJson("it has no text as `answer`")
    return str(value["answer"])
