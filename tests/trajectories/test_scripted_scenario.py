"""Twenty prompts, each with an endpoint that behaves in its own way: the specification's appendix A, with our outcomes.

What the original made of each is in the appendix; what differs here is meant to.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from manyhands.testing.scripted_server import RecordedRequest, Reply, ScriptedResponse, chat_response
from tests.support.batches import BatchFolder, Ran, ServerThread, prompt_of

TURNS = 3
PROMPTS = [
    "answer with reasoning",
    "answer without reasoning",
    "two calls in one turn",
    "inline think",
    "scratchpad",
    "calls for ever",
    "answer on the last turn",
    "429 first",
    "429 after a tool turn",
    "402 after a tool turn",
    "401 once",
    "unknown tool once",
    "unknown tool always",
    "Read-File",
    "invalid arguments once",
    "empty content",
    "length, then the rest",
    "reasoning in many places",
    "context too small",
    "invalid arguments always",
]


def error(status: int, message: str, **headers: str) -> ScriptedResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ScriptedResponse({"error": {"message": message}}, status=status, headers=named)


def calling(*calls: tuple[str, str], reasoning: str | None = "I need a tool.") -> dict[str, Any]:
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return chat_response(None, reasoning=reasoning, tool_calls=made)


DONE = chat_response("Done.", reasoning="That is it.")
LIST = ("search_files", '{"pattern": "*", "target": "files"}')
RUN = ("terminal", '{"command": "echo made > made.txt"}')
LONG = chat_response("The first half", reasoning="Much to say.")
LONG["choices"][0]["finish_reason"] = "length"
MANY = chat_response(
    "Done.",
    reasoning_content="RC",
    reasoning_details=[
        {"type": "reasoning.text", "text": "RT"},
        {"type": "reasoning.summary", "summary": "RS"},
        {"type": "reasoning.encrypted", "data": "xxxx"},
    ],
)
SCRIPTS: dict[str, list[Reply]] = {
    "answer with reasoning": [DONE],
    "answer without reasoning": [chat_response("Done.")],
    "two calls in one turn": [calling(LIST, RUN), DONE],
    "inline think": [chat_response("<think>\nplan\n</think>\nI will answer.")],
    "scratchpad": [chat_response("<REASONING_SCRATCHPAD>plan</REASONING_SCRATCHPAD>An answer.")],
    "calls for ever": [calling(RUN)],
    "answer on the last turn": [calling(RUN), calling(LIST), DONE],
    "429 first": [error(429, "slow down", Retry_After="0.2"), DONE],
    "429 after a tool turn": [calling(RUN), error(429, "slow down", Retry_After="0.2"), DONE],
    "402 after a tool turn": [calling(RUN), error(402, "credits used up"), DONE],
    "401 once": [error(401, "no such key"), DONE],
    "unknown tool once": [calling(("quantum_teleport", "{}")), DONE],
    "unknown tool always": [calling(("quantum_teleport", "{}"))],
    "Read-File": [calling(("Read-File", '{"path": "nothing.txt"}')), DONE],
    "invalid arguments once": [calling(("terminal", '{"command": "ls"')), DONE],
    "empty content": [chat_response("", reasoning="I say nothing.")],
    "length, then the rest": [LONG, chat_response(", the second half.", reasoning="Go on.")],
    "reasoning in many places": [MANY],
    "context too small": [error(400, "This model's maximum context length is 32768 tokens")],
    "invalid arguments always": [calling(("terminal", '{"command": "ls"'))],
}


class Scenario:
    """The run, session by session: a lack of credit or a wrong key stops it, and it is resumed until nothing is left."""

    def __init__(self, folder: BatchFolder) -> None:
        self.folder = folder
        self.sessions: list[Ran] = []
        self.asked: Counter[str] = Counter()
        with ServerThread(self._reply) as server:
            words = (f"--base_url={server.base_url}", f"--max_turns={TURNS}", "--num_workers=4")
            for resume in ("--no-resume", "--resume", "--resume"):
                self.sessions.append(folder.batch(*words, resume))
        self.entries = {entry["conversations"][1]["value"]: entry for entry in folder.lines()}
        self.failures = {failure["prompt"]: failure for failure in folder.lines("failures.jsonl")}

    def _reply(self, request: RecordedRequest) -> Reply:
        prompt = prompt_of(request)
        script = SCRIPTS[prompt]
        self.asked[prompt] += 1
        return script[min(self.asked[prompt], len(script)) - 1]

    def turns(self, prompt: str) -> list[str]:
        return [turn["from"] for turn in self.entries[prompt]["conversations"][2:]]

    def last(self, prompt: str) -> str:
        value: str = self.entries[prompt]["conversations"][-1]["value"]
        return value


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    return Scenario(BatchFolder(tmp_path_factory.mktemp("scenario"), PROMPTS))


ANSWERED = "answered"
FATES = {
    # prompt: (turns saved, stop reason, completed, partial, calls that counted, requests in all)
    "answer with reasoning": ("gpt", ANSWERED, True, False, 1, 1),
    "two calls in one turn": ("gpt tool gpt", ANSWERED, True, False, 2, 2),
    "inline think": ("gpt", ANSWERED, True, False, 1, 1),
    "scratchpad": ("gpt", ANSWERED, True, False, 1, 1),
    "calls for ever": ("gpt tool gpt tool gpt tool", "max_turns", False, False, 3, 3),
    "answer on the last turn": ("gpt tool gpt tool gpt", ANSWERED, True, False, 3, 3),
    "429 first": ("gpt", ANSWERED, True, False, 1, 2),
    "429 after a tool turn": ("gpt tool gpt", ANSWERED, True, False, 2, 3),
    "402 after a tool turn": ("gpt tool gpt", ANSWERED, True, False, 2, 3),
    "401 once": ("gpt", ANSWERED, True, False, 1, 2),
    "Read-File": ("gpt tool gpt", ANSWERED, True, False, 2, 2),
    "invalid arguments once": ("gpt tool gpt", ANSWERED, True, False, 2, 2),
    "empty content": ("gpt", "empty_answer", False, True, 3, 3),
    "length, then the rest": ("gpt", ANSWERED, True, False, 2, 2),
    "reasoning in many places": ("gpt", ANSWERED, True, False, 1, 1),
    "invalid arguments always": ("gpt tool gpt tool", "invalid_arguments", False, True, 3, 3),
}


@pytest.mark.parametrize("prompt", FATES)
def test_what_becomes_a_trajectory(scenario: Scenario, prompt: str) -> None:
    turns, stop_reason, completed, partial, calls, requests = FATES[prompt]
    entry = scenario.entries[prompt]
    assert scenario.turns(prompt) == turns.split()
    assert entry["metadata"]["stop_reason"] == stop_reason
    assert (entry["completed"], entry["partial"], entry["api_calls"]) == (completed, partial, calls)
    assert scenario.asked[prompt] == requests


@pytest.mark.parametrize(
    ("prompt", "state", "cause", "requests"),
    [
        ("answer without reasoning", "discarded", "no_reasoning", 1),
        ("unknown tool once", "discarded", "unknown_tool", 2),
        ("unknown tool always", "discarded", "unknown_tool", 3),
        ("context too small", "failed", "context_overflow", None),
    ],
)
def test_what_does_not(scenario: Scenario, prompt: str, state: str, cause: str, requests: int | None) -> None:
    assert prompt not in scenario.entries
    assert (scenario.failures[prompt]["state"], scenario.failures[prompt]["cause"]) == (state, cause)
    if requests is not None:
        assert scenario.asked[prompt] == requests


def test_nothing_is_lost(scenario: Scenario) -> None:
    assert set(scenario.entries) | set(scenario.failures) == set(PROMPTS)
    assert not set(scenario.entries) & set(scenario.failures)
    assert [entry["prompt_index"] for entry in scenario.entries.values()] == [
        index for index, prompt in enumerate(PROMPTS) if prompt in scenario.entries
    ]


def test_lack_of_credit_and_a_wrong_key_stop_the_run_and_are_said(scenario: Scenario) -> None:
    said = scenario.sessions[0].err + scenario.sessions[1].err
    assert "credits used up" in said or "no such key" in said
    assert [session.code for session in scenario.sessions] == [1, 1, 1]
    assert "can be retried" in scenario.sessions[-1].out


def test_reasoning_is_written_once_wherever_it_came_from(scenario: Scenario) -> None:
    assert scenario.last("inline think") == "<think>\nplan\n</think>\nI will answer."
    assert scenario.last("scratchpad").count("plan") == 1
    assert scenario.last("reasoning in many places") == "<think>\nRC\n\nRT\n\nRS\n</think>\nDone."
    assert scenario.last("length, then the rest") == (
        "<think>\nMuch to say.\n</think>\nThe first half, the second half."
    )


def test_no_words_of_this_program_are_in_the_turns(scenario: Scenario) -> None:
    for entry in scenario.entries.values():
        humans = [turn["value"] for turn in entry["conversations"] if turn["from"] == "human"]
        assert humans == [PROMPTS[entry["prompt_index"]]]
        assert "_budget_warning" not in json.dumps(entry)


def test_tools_are_named_as_they_are_called_and_counted_as_they_went(scenario: Scenario) -> None:
    repaired = scenario.entries["Read-File"]
    assert '{"name": "read_file", "arguments": {"path": "nothing.txt"}}' in repaired["conversations"][2]["value"]
    assert repaired["tool_stats"]["read_file"] == {"count": 1, "success": 0, "failure": 1}
    two = scenario.entries["two calls in one turn"]["tool_stats"]
    assert [name for name, counts in two.items() if counts["success"]] == ["search_files", "terminal"]
    malformed = scenario.entries["invalid arguments always"]
    assert malformed["tool_error_counts"]["terminal"] == malformed["tool_stats"]["terminal"]["count"] > 0


def test_a_call_with_unreadable_arguments_is_answered_to_the_model(scenario: Scenario) -> None:
    result = scenario.entries["invalid arguments once"]["conversations"][3]["value"]
    assert "JSON" in result
    assert "Send the call again" in result


def test_the_tool_turn_before_the_lack_of_credit_was_not_performed_again(scenario: Scenario) -> None:
    entry = scenario.entries["402 after a tool turn"]
    assert entry["tool_stats"]["terminal"]["count"] == 1
    assert entry["metadata"]["attempt"] == 1
