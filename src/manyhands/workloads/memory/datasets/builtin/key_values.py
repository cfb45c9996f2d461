"""Many pairs of keys and values, one of which is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from manyhands.core.digests import Draws
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation, Json
from manyhands.workloads.memory.datasets.answers.settling import settles_on
from manyhands.workloads.memory.datasets.base import BaseDataset, DatasetArguments, all_or_nothing, last_of

_GROUPS = (8, 4, 4, 4, 12)
_IDENTIFIER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VALUE = re.compile(rf'"({_IDENTIFIER.pattern})"(?!\s*:)')
_TOLD = "Remember the values of these keys; some values are themselves objects with a key and a value.\n\n{pairs}"
_ASKED = "Which value have I given you for {path}? Reply with the value alone."


class KeyValueArguments(DatasetArguments):
    """``nested_levels``: how many objects are between a key and its value. ``num_kv_pairs``: pairs of all tests together are different."""

    nested_levels: int = Field(default=0, ge=0, le=20)
    num_kv_pairs: int = Field(default=140, ge=1, le=100_000)


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
        asked = _ASKED.format(path=" in ".join(f"the key {key}" for key in reversed(paths[chosen])))
        told = _TOLD.format(pairs=json.dumps(pairs, indent=1))
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
