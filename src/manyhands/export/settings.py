"""The settings of an export."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalText,
    Path,
    Settings,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
)

INPUT, SELECTION, SHAPE, LENGTH, SECRETS = "Input and output", "Selection", "Content", "Length", "Secrets"
KEEP = ("truncated", "synthetic", "ephemeral")
"""What is left out unless it is named in ``--keep``."""
ENDED_STATES = ("completed", "discarded", "failed", "cancelled")
Reasoning = Literal["keep", "drop", "field"]


def _split(value: object) -> tuple[tuple[str, float], ...] | None:
    """``train=0.95,valid=0.05``: names of files and shares that add up to 1. Raises ValueError."""
    if value is None or value == "":
        return None
    if isinstance(value, (list, tuple)):
        parts = [(str(name), share) for name, share in value]
    elif isinstance(value, str):
        parts = [(name.strip(), share.strip()) for name, _, share in (each.partition("=") for each in value.split(","))]
    else:
        raise ValueError("must be names with shares, as train=0.95,valid=0.05")
    found = []
    for name, share in parts:
        if not name.isidentifier():
            raise ValueError("must have names of letters, digits and _, as train=0.95,valid=0.05")
        try:
            found.append((name, float(share)))
        except ValueError:
            raise ValueError("must have shares from 0 to 1, as train=0.95,valid=0.05") from None
    if len({name for name, _ in found}) < len(found):
        raise ValueError("names a split twice")
    if not all(0 < share <= 1 for _, share in found) or abs(sum(share for _, share in found) - 1) > 1e-6:
        raise ValueError("must be shares above 0 that add up to 1, as train=0.95,valid=0.05")
    return tuple(found)


def _keep(value: object) -> tuple[str, ...] | None:
    return _words(value, KEEP)


def _states(value: object) -> tuple[str, ...] | None:
    return _words(value, ENDED_STATES)


def _words(value: object, known: tuple[str, ...]) -> tuple[str, ...] | None:
    words = [each.strip() for each in value.split(",")] if isinstance(value, str) else value
    if words is None:
        return None
    if not isinstance(words, (list, tuple)):
        raise ValueError("must be a list of words, with commas between them")
    found = tuple(str(word) for word in words if word)
    for word in found:
        if word not in known:
            raise ValueError(f"must be words of {', '.join(known)}")
    return found or None


class ExportSettings(Settings):
    """What is exported of which runs, and how."""

    headings: ClassVar[tuple[str, ...]] = (INPUT, SELECTION, SHAPE, LENGTH, SECRETS)

    runs: OptionalList = setting(
        None,
        "Runs: their folders, or their names in the data folder (default: the latest run).",
        group=INPUT,
        value="RUN",
        repeated=True,
    )
    to: Text = setting(..., "The format; --to list names them all.", group=INPUT, value="FORMAT")
    output: OptionalText = setting(
        None,
        "File or folder to write, also -o PATH; - is standard output. Default: exports/FORMAT in the folder of the first run.",
        group=INPUT,
        value="PATH",
    )
    overwrite: Flag = setting(False, "Replace a file or folder that is there and is no earlier export.", group=INPUT)
    data_dir: Path = setting("data", "Folder that holds the run folders.", group=INPUT)

    select: OptionalList = setting(
        None,
        "Which items (repeatable): state=STATE, cause=CAUSE, key=KEY, item=NUMBER or item=FROM-TO, or @FILE with a key on each line.",
        group=SELECTION,
        value="NAME=VALUE",
        repeated=True,
    )
    states: Annotated[tuple[str, ...] | None, Checked(_states)] = setting(
        ("completed",),
        f"States of items whose conversations are exported: {', '.join(ENDED_STATES)}.",
        group=SELECTION,
    )
    keep: Annotated[tuple[str, ...] | None, Checked(_keep)] = setting(
        None,
        "What is otherwise left out: truncated (conversations that were broken off), synthetic (requests of this program to continue or to "
        "summarize), ephemeral (the ephemeral system prompt and prefilled messages).",
        group=SELECTION,
    )
    min_score: Annotated[float | None, optional_number(0, 1)] = setting(
        None, "Minimum score of a conversation.", group=SELECTION
    )
    best_of: Annotated[int | None, optional_whole(1)] = setting(
        None, "Of the samples of one prompt, this many with the highest scores.", group=SELECTION
    )
    pairs: Literal["one", "all"] = setting(
        "one",
        "Pairs of one prompt (openai-dpo, preference): the best against the worst, or every two that differ in score.",
        group=SELECTION,
    )
    min_gap: Annotated[float, number(0, 1)] = setting(
        0.0,
        "Minimum difference in score of a pair (openai-dpo, preference; equal scores never make one).",
        group=SELECTION,
    )
    threshold: Annotated[float, number(0, 1)] = setting(
        0.5, "For --to kto: the score from which on a conversation is labelled as desirable.", group=SELECTION
    )
    dedup: Literal["none", "exact", "near"] = setting(
        "none",
        "Leave out conversations that repeat an earlier one: to the letter, or nearly (MinHash).",
        group=SELECTION,
    )
    near_threshold: Annotated[float, number(0, 1, above=0)] = setting(
        0.8,
        "Similarity (Jaccard, of word 5-grams) from which on two conversations are near duplicates.",
        group=SELECTION,
    )
    split: Annotated[tuple[tuple[str, float], ...] | None, Checked(_split)] = setting(
        None,
        "Files and their shares, as train=0.95,valid=0.05. All samples of a prompt are in one of them.",
        group=SELECTION,
        value="NAME=SHARE,…",
    )

    reasoning: Reasoning | None = setting(
        None,
        "Reasoning of the model: kept in the content between think tags, left out, or in a field of its own. Default: the format's.",
        group=SHAPE,
    )
    train_on: Literal["all", "succeeded", "last"] = setting(
        "all",
        "Assistant messages that are marked to be trained on: all that were written in the run, those without a tool call that failed, or "
        "the last one.",
        group=SHAPE,
    )
    layout: Literal["messages", "prompt_completion"] = setting(
        "messages",
        "For --to messages: whole conversations, or the last answer apart from what comes before it.",
        group=SHAPE,
    )
    tools: Literal["text", "struct"] = setting(
        "text",
        "Tool definitions in a row (messages, preference, kto): as JSON text, which every loader reads, or as objects.",
        group=SHAPE,
    )
    atif_version: Literal["1.7", "1.8"] = setting("1.7", "For --to atif: its version.", group=SHAPE)
    verifiers_version: Literal["v0", "v1"] = setting(
        "v1", "For --to verifiers: the version whose layout is written.", group=SHAPE
    )
    hf_layout: Literal["sts", "pi"] = setting(
        "sts",
        "For --to hf-traces: the Hub's Session Trace Simple Format, or the sessions of the agent Pi, whose tool calls the library datasets "
        "reads, too.",
        group=SHAPE,
    )
    judges: Flag = setting(
        False, "Export the conversations of judges, too, as conversations of their own.", group=SHAPE
    )
    shard_rows: Annotated[int | None, optional_whole(1)] = setting(
        None, "Rows of one file; more go into further files (train-00000-of-00003).", group=SHAPE
    )

    tokenizer: OptionalText = setting(
        None,
        "What counts tokens: a tokenizer.json, a folder with one (and a chat template), or the name of a tiktoken encoding.",
        group=LENGTH,
        value="PATH|NAME",
    )
    max_length: Annotated[int | None, optional_whole(1)] = setting(
        None, "Maximum tokens of a conversation; longer ones are left out.", group=LENGTH
    )
    min_length: Annotated[int | None, optional_whole(1)] = setting(
        None, "Minimum tokens of a conversation.", group=LENGTH
    )

    redact: Flag = setting(False, "Replace secrets by [redacted] instead of stopping at the first.", group=SECRETS)
    keep_secrets: Flag = setting(False, "Do not look for secrets.", group=SECRETS)

    def keeps(self, what: str) -> bool:
        """Whether something is kept that is otherwise left out."""
        return what in (self.keep or ())
