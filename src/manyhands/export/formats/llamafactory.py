"""The datasets of LLaMA-Factory: from its ``data/README.md``, and where that is silent from its ``converter.py`` and ``formatter.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from manyhands.core.jsonio import Json, pretty, spaced
from manyhands.core.messages import Message, text_of
from manyhands.export.chat import images_in
from manyhands.export.conversations import Conversation
from manyhands.export.format import Format, Unfit
from manyhands.export.formats.training import (
    IMAGES,
    argument_object,
    count_untrained,
    ordered_results,
    tools_text,
    trainable,
)
from manyhands.export.sharegpt import escaped, escaped_json

DATASET_INFO = "dataset_info.json"
BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
"""Between several results of one turn: what it puts there itself when it reads OpenAI's layout."""
_SPEAKS = {"human": "request", "observation": "request", "gpt": "answer", "function_call": "answer"}


class LlamaFactory(Format):
    """A folder of JSON Lines of ``{conversations, system, tools}`` in its ShareGPT layout, with ``dataset_info.json``.

    It drops rows in which requests (human, observation) and answers (gpt, function_call) do not alternate, with one line in a log; such
    conversations are left out here, and counted. All results of a turn are one observation. Reasoning stands before the answer
    between think tags, which its templates know; what an answer says beside its calls is held by tags around the calls. It has no flag for
    a message: all answers are trained on, or with its ``mask_history`` the last. Tools are JSON text.
    """

    name = "llamafactory"
    about = "LLaMA-Factory: its ShareGPT layout; a folder with dataset_info.json"
    reasoning = "keep"
    in_folder = True

    def rows(self, conversation: Conversation) -> Iterator[Mapping[str, Json]]:
        turns = trainable(conversation)
        if images_in([turn for turn in turns if turn.role == "user"]):
            raise Unfit("with images")
        first = turns[0]
        system = text_of(first.message.get("content")) if first.role == "system" else ""
        spoken = ordered_results([turn.message for turn in turns[first.role == "system" :]])
        written = self._turns(spoken)
        self.losses.add(IMAGES, images_in(turns))
        count_untrained(turns, self.losses)
        yield {
            "conversations": written,
            "system": system,
            "tools": tools_text(conversation) if conversation.tools else "",
        }

    def extra_files(self, files: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        columns = {"messages": "conversations", "system": "system", "tools": "tools"}
        found: dict[str, Any] = {}
        for split, names in files.items():
            name = f"manyhands_{split}" if split else "manyhands"
            for number, file_name in enumerate(names):
                found[name if len(names) == 1 else f"{name}_{number:05}"] = {
                    "file_name": file_name,
                    "formatting": "sharegpt",
                    "columns": columns,
                }
        return {DATASET_INFO: pretty(found) + "\n"}

    def _turns(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        """Raises Unfit if they do not alternate."""
        turns: list[dict[str, str]] = []
        results: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                results.append(text_of(message.get("content")))
                continue
            if results:
                turns.append(self._turn("observation", BETWEEN_RESULTS.join(results)))
                results = []
            turns.append(self._spoken(message))
        wanted = ["request", "answer"] * (len(turns) // 2)
        if [_SPEAKS[turn["from"]] for turn in turns] != wanted:
            raise Unfit("in which requests and answers do not alternate")
        return turns

    def _spoken(self, message: Message) -> dict[str, str]:
        content = text_of(message.get("content"))
        if message["role"] == "user":
            return self._turn("human", content)
        if message["role"] != "assistant":
            raise Unfit(f"with a {message['role']} message behind the first")
        return self._answer(message, content)

    def _answer(self, message: Message, content: str) -> dict[str, str]:
        calls, thought = message.get("tool_calls") or (), (message.get("reasoning") or "").strip()
        if thought and self.reasoning_mode == "drop":
            self.losses.add("messages' reasoning")
        before = f"<think>\n{self._escaped(thought)}\n</think>\n\n" if thought and self.reasoning_mode == "keep" else ""
        if not calls:
            return self._turn("gpt", before + content, thought)
        functions = [
            {"name": call["function"]["name"], "arguments": argument_object(call["function"]["arguments"])}
            for call in calls
        ]
        written, _ = escaped_json(spaced(functions))
        before += self._escaped(content)
        return self._turn("function_call", f"{before}<tool_call>{written}</tool_call>" if before else written, thought)

    def _escaped(self, text: str) -> str:
        """A text that stands where tags are looked for."""
        found, number = escaped(text)
        self.losses.add("tags in texts, which got a backslash", number)
        return found

    def _turn(self, speaker: str, value: str, thought: str = "") -> dict[str, str]:
        turn = {"from": speaker, "value": value}
        if self.reasoning_mode == "field":
            turn["reasoning"] = thought
        return turn
