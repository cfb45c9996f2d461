"""The turns of a test, read from its mapping, and who can be asked them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.io.findings import Findings
from manyhands.io.keys import Read, collect
from manyhands.io.locations import Place
from manyhands.workloads.evals.evalfile.grader_lists import GraderLists
from manyhands.workloads.evals.evalfile.keys import TestBlock, TurnBlock
from manyhands.workloads.evals.evalfile.messages import Messages, expected_messages, file_value, input_messages, parts
from manyhands.workloads.evals.evalfile.sources import RawTest
from manyhands.workloads.evals.evalfile.tests import Conversation, Turn
from manyhands.workloads.evals.evalfile.variables import filled

_OF_CONVERSATIONS = ("turns", "aggregation", "on_turn_failure", "window_size")


class Turns:
    """The conversation of one test in the making. ``findings`` says what is wrong with it."""

    def __init__(
        self, raw: RawTest, source: Read[TestBlock], variables: Mapping[str, Json], findings: Findings
    ) -> None:
        self._raw = raw
        self._source = source
        self._variables = variables
        self._findings = findings
        self._places: list[Place] = []
        self._wrong = False
        self.conversation: Conversation | None = None

    @property
    def graded(self) -> bool:
        """Whether any turn says what is good, or may have tried to."""
        return self._wrong or (self.conversation is not None and any(turn.graders for turn in self.conversation.turns))

    def read(self, lists: GraderLists, judge: str) -> None:
        """``judge``: the kind of grader that holds the answers of turns without graders against what is expected."""
        before = len(self._findings.problems)
        self._read(lists, judge)
        self._wrong = len(self._findings.problems) > before

    def _read(self, lists: GraderLists, judge: str) -> None:
        block, source = self._source.block, self._source
        if block.mode is None:
            for name in _OF_CONVERSATIONS:
                if getattr(block, name) is not None:
                    self._findings.problem(source.at(name), "goes with mode: conversation, which is not given")
            return
        if block.expected_output is not None:
            self._findings.problem(
                source.at("expected_output"), "each turn of a conversation says for itself what is expected"
            )
        place = source.at("turns")
        if not isinstance(block.turns, list) or not block.turns:
            problem = (
                "is required for a conversation"
                if block.turns is None
                else f"must be a list of turns, not {shown(block.turns)}"
            )
            self._findings.problem(place, problem)
            return
        turns = [self._turn(value, place.at(number), lists, judge) for number, value in enumerate(block.turns)]
        self.conversation = Conversation(
            tuple(turn for turn in turns if turn is not None),
            block.aggregation or "mean",
            block.on_turn_failure or "continue",
            block.window_size,
        )

    def references(self, find: Callable[[str, Place, Findings], Path | None]) -> dict[str, Path]:
        """The files that turns name."""
        found: dict[str, Path] = {}
        if self.conversation is None:
            return found
        for turn, place in zip(self.conversation.turns, self._places, strict=True):
            named = (file_value(part) for message in turn.input for part in parts(message))
            for name in named:
                if name is not None and name not in found and (path := find(name, place, self._findings)) is not None:
                    found[name] = path
        return found

    def _turn(self, value: Json, place: Place, lists: GraderLists, judge: str) -> Turn | None:
        source = collect(TurnBlock, value, place, self._findings)
        if source is None:
            return None
        block, at = source.block, source.at("expected_output")
        expected: Messages = ()
        if block.expected_output is not None:
            expected = expected_messages(self._filled(block.expected_output, at), at, self._findings)
        own = filled(block.assert_, self._variables)
        graders = lists.entries(own, source.at("assert"), self._findings, self._variables)
        if expected and not graders:
            graders = (lists.shared({"type": judge, "name": judge}),)
        self._places.append(source.at("input"))
        return Turn(self._input(block.input, source.at("input")), expected, graders)

    def _input(self, value: Json, place: Place) -> Messages:
        value = self._filled(value, place)
        if isinstance(value, list) and value and not (isinstance(value[0], Mapping) and "role" in value[0]):
            value = {"role": "user", "content": value}  # parts of what is said
        return input_messages(value, place, self._findings)

    def _filled(self, value: Json, place: Place) -> Any:
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (int, float)):
            value = self._raw.as_written(value, place)
        return filled(value, self._variables)
