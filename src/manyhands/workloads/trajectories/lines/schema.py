"""What a line of ``trajectories.jsonl`` holds: one declared schema for all runs of a version.

Readers of JSON Lines (Arrow, Hugging Face Datasets) settle the type of each column on what they see first, and refuse a
later file that shows another one: a null where there was an object, a list that was empty, a number with decimals. So
every line has every field, none is ever null, an empty text stands for "none", and what is open, because it depends on
plug-ins, MCP servers, graders or the dataset, is JSON in a text.

The schema depends on nothing but the layout, which a run records when it is made and keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from manyhands.core.jsonio import Json, line
from manyhands.core.messages import text_of

LAYOUT = 2
"""The layout of new runs."""
FIRST_LAYOUT = 1
"""That of runs which record none: ``tool_stats`` has the run's own tools too, ``metadata.source`` the fields of its dataset, and only
graded runs have ``score``, ``verdict`` and ``scores``."""

Kind = Literal["whole number", "number", "true or false", "text", "JSON text"]
"""``number`` always has decimals. ``JSON text`` is a text to be read with ``json.loads``."""
_INT64 = 1 << 63


@dataclass(frozen=True, slots=True)
class List:
    """A list, which is never empty: that would be another type."""

    of: Form


@dataclass(frozen=True, slots=True)
class Object:
    """An object that always has all its fields, in this order."""

    fields: tuple[Field, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


Form = Kind | List | Object


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object."""

    name: str
    form: Form
    about: str = ""
    """What it says, for the documentation."""


TURNS = List(Object((Field("from", "text"), Field("value", "text"))))
_USED = tuple(
    Field(name, "whole number")
    for name in (
        "calls",
        "input_tokens",
        "output_tokens",
        "cached_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "unpriced_calls",
        "simulated_calls",
    )
)
USAGE = Object((*_USED, Field("tools", Object((*_USED, Field("cost", "number"))))))
METADATA = Object(
    (
        Field("batch_num", "whole number", "the batch file that it is in"),
        Field("timestamp", "text", "when it ended: local time, ISO 8601"),
        Field(
            "model",
            "text",
            "as given by `--model`; of an external agent, and in an adopted line, as that names it, empty if it names none",
        ),
        Field("item", "text", "the item's key"),
        Field("sample", "whole number", "which sample of its row, from 0"),
        Field("attempt", "whole number", "the attempt that it comes from; 0 in an adopted line"),
        Field("seed", "whole number", "the seed that was sent to the endpoint; -1 if none was"),
        Field("stop_reason", "text", "why it ended, see below"),
        Field("duration_seconds", "number", "from its first step to its last, as recorded"),
        Field("simulated", "true or false", "whether a simulated model made it"),
        Field(
            "usage",
            USAGE,
            "what its agent's calls took; in `tools` the same of what its tools asked of models and services, with `cost`",
        ),
        Field("cost", "number", "US dollars for both"),
        Field("unknown_tools", "text", "names that were called and not on offer, with commas between"),
        Field(
            "other_tool_stats",
            "JSON text",
            "as `tool_stats`, for tools of plug-ins and MCP servers that were called: an object by name",
        ),
        Field(
            "toolsets_offered",
            "text",
            "those of the drawn toolsets that had a tool on offer (of one that lacks tools and includes others, those), "
            "with commas between; empty in an adopted line",
        ),
        Field("escaped_tags", "whole number", "tags inside of values that were escaped"),
        Field(
            "score",
            "number",
            "of the whole, from 0 to 1, see [grading](../trajectories.md#grading); -1 if it was not graded",
        ),
        Field("verdict", "text", "`pass`, `borderline` or `fail`; empty if it was not graded"),
        Field("scores", "JSON text", "what each grader found: an object by the graders' names"),
        Field(
            "rewards",
            "JSON text",
            "what the verifier of a [task folder](../harbor-tasks.md) gave, as it is; the score is between 0 and 1",
        ),
        Field(
            "system_prompt",
            "text",
            "the digest of the system message that was [sent](#what-the-model-is-sent); empty if none was, or nobody recorded it",
        ),
        Field(
            "system_template",
            "text",
            "the wording of the saved system turn: `own`, `hermes` or `file`; `other` in an adopted line with a wording that is not known",
        ),
        Field(
            "given",
            "JSON text",
            "what the row gave besides the text of its prompt: `system`; `turns`, how many turns behind the system turn are the row's; and "
            "`images`, its [pictures](../pictures.md#in-prompts) in order, as paths in the run's folder and addresses; and of a sandbox "
            "with an image `sandbox_image` and `sandbox_image_pin`, what that name meant",
        ),
        Field(
            "collected",
            "text",
            "what the command of [`--collect`](../agents-on-a-repository.md#what-is-collected) printed; empty if there was none",
        ),
        Field(
            "collected_problem",
            "text",
            "why that is not to be relied on, such as `exit code 1`; empty if all went well",
        ),
        Field("adopted", "true or false", "whether the original program made it"),
        Field("other_fields", "JSON text", "what an adopted line had that has no field here, `metadata` among it"),
        Field("source", "JSON text", "the row's other fields, as they are in the dataset"),
    )
)
_COUNTS = Object(tuple(Field(name, "whole number") for name in ("count", "success", "failure")))


def schema_of(tools: Iterable[str]) -> Object:
    """The schema of a line. ``tools``: the members of ``tool_stats``, the built-in tools of the version that made the run."""
    names = tuple(tools)
    return Object(
        (
            Field("prompt_index", "whole number", "the row's position among the usable rows, from 0"),
            Field("conversations", TURNS, "the turns, see below"),
            Field("metadata", METADATA, "see below"),
            Field("completed", "true or false", "whether the agent gave its answer"),
            Field(
                "partial",
                "true or false",
                "whether a defect of an answer broke the conversation off. (Running out of turns is neither)",
            ),
            Field(
                "api_calls",
                "whole number",
                "model calls of the conversation; of an external agent that prints its events, its answers",
            ),
            Field(
                "toolsets_used",
                List("text"),
                "the toolsets that were drawn for this prompt, available or not; `none` with an external agent",
            ),
            Field(
                "tool_stats",
                Object(tuple(Field(name, _COUNTS) for name in names)),
                "for every [tool](../tools.md#tools) that is built in or declared: `count`, `success`, `failure`, zeros included",
            ),
            Field(
                "tool_error_counts",
                Object(tuple(Field(name, "whole number") for name in names)),
                "the same tools: `failure` alone",
            ),
        )
    )


def fitted(value: Json, form: Form) -> Any:
    """A value that came from elsewhere in the declared form: what is missing or of another kind becomes the form's empty value, or is
    written as text where a text is due."""
    if isinstance(form, Object):
        known = value if isinstance(value, Mapping) else {}
        return {field.name: fitted(known.get(field.name), field.form) for field in form.fields}
    if isinstance(form, List):
        parts = value if isinstance(value, list) and value else [None]
        return [fitted(part, form.of) for part in parts]
    return _fitted_scalar(value, form)


def _fitted_scalar(value: Json, kind: Kind) -> Json:
    match kind:
        case "text":
            return text_of(value)
        case "JSON text":
            return value if isinstance(value, str) and value else line(value or {})
        case "true or false":
            return value if isinstance(value, bool) else False
        case "number":
            return float(value) if _is_number(value) else 0.0
        case _:
            return int(value) if _is_number(value) and -_INT64 <= value < _INT64 else 0


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
