"""The tables of docs/reference: keys of eval files, targets and graders, made of the classes that check them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from manyhands.cli.options import options_of
from manyhands.graders.composite import AggregatorEntry
from manyhands.graders.config import Common
from manyhands.graders.judged.rubric_items import RubricItem
from manyhands.graders.registry import ALIASES as GRADER_ALIASES
from manyhands.graders.registry import BUILTIN, load_kind
from manyhands.graders.text.fields import FieldEntry
from manyhands.graders.trajectory.skills import SkillCount
from manyhands.graders.trajectory.step_rules import ArgsValue, SequenceValue, StepCount, ToolCount
from manyhands.graders.trajectory.tool_calls import ExpectedCall
from manyhands.io.keys import Entry
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.keys import (
    DEPRECATED,
    Block,
    DockerBlock,
    EvalBlock,
    HookBlock,
    HooksBlock,
    RepoBlock,
    RequirementsBlock,
    SuiteExecution,
    TargetRefBlock,
    TestBlock,
    TestExecution,
    TrialsBlock,
    TurnBlock,
    WorkspaceBlock,
)
from manyhands.workloads.evals.targets.command import PLACEHOLDERS
from manyhands.workloads.evals.targets.keys import TargetBlock
from manyhands.workloads.evals.targets.kinds.model_keys import AgentTargetOptions
from manyhands.workloads.evals.targets.kinds.registry import ALIASES, KINDS

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
_BLOCKS: Mapping[str, type[Block]] = {
    "The file": EvalBlock,
    "`execution` of the file": SuiteExecution,
    "A test": TestBlock,
    "`execution` of a test": TestExecution,
    "`turns`": TurnBlock,
    "`execution.targets`, an item": TargetRefBlock,
    "`trials`": TrialsBlock,
    "`workspace`": WorkspaceBlock,
    "`before_all` and so on": HookBlock,
    "`hooks` of a workspace": HooksBlock,
    "`repos`": RepoBlock,
    "`docker`": DockerBlock,
    "`env` of a workspace": RequirementsBlock,
}
_PARTS: Mapping[str, Mapping[str, type[Entry]]] = {
    "field_accuracy": {"fields": FieldEntry},
    "tool_trajectory": {"expected": ExpectedCall},
    "composite": {"aggregator": AggregatorEntry},
    "rubrics": {"criteria": RubricItem},
    "trajectory:tool_used": {"value": ToolCount},
    "trajectory:tool_sequence": {"value": SequenceValue},
    "trajectory:tool_args_match": {"value": ArgsValue},
    "trajectory:step_count": {"value": StepCount},
    "skill_used": {"value": SkillCount},
}


class EvalTables:
    """``table``: makes one of headings and rows."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def keys(self) -> str:
        """Keys of eval files, by the mapping in which they stand."""
        return "\n\n".join(f"**{heading}**\n\n{self._of(block)}" for heading, block in _BLOCKS.items())

    def older_names(self) -> str:
        """Other names of keys; those that are told to the person are marked."""
        rows = [
            [f"`{name}`", f"`{key}`", heading.lower().removeprefix("the "), "yes" if name in block.obsolete else ""]
            for heading, block in _BLOCKS.items()
            for name, key in block.spellings.items()
        ]
        return self._table(["name", "is read as", "in", "a note says so"], rows)

    def placeholders(self) -> str:
        return self._table(
            ["placeholder", "stands for"], ([f"`{{{name}}}`", what] for name, what in PLACEHOLDERS.items())
        )

    def kinds(self) -> str:
        """Kinds of targets and what else they may be called."""
        rows = [[f"`{kind}`", ", ".join(f"`{name}`" for name, of in ALIASES.items() if of == kind)] for kind in KINDS]
        return self._table(["`provider`", "also"], rows)

    def target_keys(self) -> str:
        """Keys of targets, by kind: of each class of keys those that its base has not. What kinds that call models have in common stands
        in one table, the last."""
        kinds: dict[type[TargetBlock], list[str]] = {}
        for name, kind in KINDS.items():
            kinds.setdefault(kind.block(), []).append(name)
        helps = options_of(AgentTargetOptions)
        models = [block for block, names in kinds.items() if KINDS[names[0]].calls_models]
        parts = [f"**{TargetBlock.heading}**\n\n{self._of(TargetBlock)}"]
        for family in _families(kinds):
            for block in family:
                heading = vars(block).get("heading") or ", ".join(f"`{name}`" for name in kinds[block])
                parts += self._own_keys(block, heading, helps if block in models else ())
            for name, inner in family[0].mappings.items():
                parts.append(f"**`{name}`, if it is a mapping**\n\n{self._of(inner)}")
        names = dict.fromkeys(name for block in models for name in block.model_fields if name in helps)
        rows = [[f"`{name}`", helps[name].help] for name in names]
        return "\n\n".join([*parts, f"**`agent` and models**\n\n{self._table(['key', 'meaning'], rows)}"])

    def _own_keys(self, block: type[TargetBlock], heading: str, common: Collection[str]) -> Iterable[str]:
        """Its keys besides those of its base, what is ``common`` to many and what stands there for older versions only."""
        bases = (base for base in block.__mro__[1:] if issubclass(base, TargetBlock))
        old = (name for name, field in block.model_fields.items() if field.json_schema_extra == DEPRECATED)
        without = {*common, *old, *(name for base in bases for name in base.model_fields)}
        if block.model_fields.keys() - without:
            yield f"**{heading}**\n\n{self._of(block, without)}"

    def graders(self) -> str:
        """Keys of graders, by kind. Kinds with the same keys stand together."""
        alike: dict[type[Entry], list[str]] = {}
        for name in BUILTIN:
            entry = load_kind(name, Location("")).entry
            assert entry is not None
            alike.setdefault(entry, []).append(name)
        parts = [f"**Every grader**\n\n{self._of(Common)}"]
        for entry, names in alike.items():
            parts += self._kind(entry, names)
        return "\n\n".join(parts)

    def _kind(self, entry: type[Entry], names: Sequence[str]) -> Iterable[str]:
        also = [other for other, kind in GRADER_ALIASES.items() if kind in names]
        known = f" (also {', '.join(f'`{other}`' for other in also)})" if also else ""
        heading = f"**{', '.join(f'`{name}`' for name in names)}**{known}"
        keys = self._of(entry) if entry.model_fields else "No keys of its own."
        yield f"{heading}\n\n{keys}"
        for key, part in _PARTS.get(names[0], {}).items():
            yield f"In `{key}` of `{names[0]}`:\n\n{self._of(part)}"

    def _of(self, block: type[Entry], without: Collection[str] = ()) -> str:
        rows = [
            [f"`{field.alias or name}`{_other_names(block, field.alias or name)}", _meaning(field)]
            for name, field in block.model_fields.items()
            if name not in without
        ]
        return self._table(["key", "meaning"], rows)


def _families(blocks: Iterable[type[TargetBlock]]) -> Iterable[Sequence[type[TargetBlock]]]:
    """Classes of keys with those that they are made of, together with their like: the most general first."""
    families: dict[type[TargetBlock], dict[type[TargetBlock], None]] = {}
    for block in blocks:
        line = [each for each in reversed(block.__mro__) if issubclass(each, TargetBlock) and each is not TargetBlock]
        families.setdefault(line[0], {}).update(dict.fromkeys(line))
    return [tuple(family) for family in families.values()]


def _other_names(block: type[Entry], key: str) -> str:
    if issubclass(block, (EvalBlock, TestBlock, SuiteExecution, TestExecution, WorkspaceBlock, HookBlock)):
        return ""
    names = [f"`{name}`" for name, stands_for in block.spellings.items() if stands_for == key]
    return f" ({', '.join(names)})" if names else ""


def _meaning(field: FieldInfo) -> str:
    text = field.description or ""
    if field.is_required():
        return f"{text} Required."
    return text + _default(field.default)


def _default(value: Any) -> str:
    if value is None or value is False or value == () or value == "" or isinstance(value, Entry):
        return ""
    if value is True:
        return " Default: true."
    shown = f"{value:g}" if isinstance(value, float) else ", ".join(value) if isinstance(value, tuple) else str(value)
    return f" Default: `{shown}`."
