"""The command line of a settings class.

Every field is an option, written ``--max_turns 5``, ``--max-turns=5`` and so on; a switch (a yes-or-no field) is written
``--resume``, ``--resume=true``, ``--resume false``, ``--no-resume``. If an option is given twice the last one counts, unless the
option or the command lets it be repeated. Nothing is abbreviated, every value is checked by its field, and an unknown option is
rejected before anything is done. A command may take words without a name (files, a job), which stand for the field that the command says.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from keyword import iskeyword
from typing import Any, Literal, TypeVar, get_args, get_origin

from manyhands.core.errors import UserError
from manyhands.core.settings import FALSE_WORDS, TRUE_WORDS, Field, Settings, bare_type
from manyhands.core.text import suggestion

SettingsType = TypeVar("SettingsType", bound=Settings)

_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9].*")
_SWITCH_WORDS = TRUE_WORDS | FALSE_WORDS
_HOW_TO = "Options are written --name=value or --name value, with _ or - inside names; switches --name, --name=false or --no-name."


class UsageError(UserError):
    """The command line can't be understood; one line for each problem."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    group: str
    """Its heading in the help."""
    help: str
    value: str | None
    """The name of its value in the help; None for a switch."""
    default: Any
    required: bool
    bare: str | None = None
    """The value if its name stands alone; None if it must not."""
    repeated: bool = False
    """Whether all values count if it is given several times."""

    @property
    def is_switch(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed."""

    values: dict[str, Any]
    """By the names of their fields: text, a bool for a switch, or a list of texts for an option that was repeated."""
    help: bool = False
    """Help was requested."""
    lists: dict[str, list[str]] = dataclass_field(default_factory=dict)
    """All values of options that may be repeated."""
    has_word: bool = False
    """A word without a name was typed, for the positional field."""


def spell(name: str) -> str:
    """A field's name as an option. The underscore behind a word that Python keeps for itself is no part of it."""
    return f"--{name.removesuffix('_')}"


def options_of(settings: type[Settings]) -> dict[str, Option]:
    """The options of a settings class, by field name, in the order of the help."""
    return {name: _option(name, settings.fields[name]) for name in settings.in_order() if settings.about(name).typed}


def parse(
    settings: type[Settings],
    argv: Sequence[str],
    program: str,
    *,
    positional: str | None = None,
    repeated: Collection[str] = (),
    without: Collection[str] = (),
) -> CommandLine:
    """Read a command line. ``program`` is the command as typed, as in ``manyhands batch``; ``positional``: the field that one word
    without a name is for; ``repeated``: fields that may be given several times, and then all count (the positional one may be among
    them); ``without``: fields that are no options here.

    Raises UsageError for unknown options, missing values and stray words (not for values out of range: see ``make``). If
    help is requested, nothing else matters.
    """
    options = {name: option for name, option in options_of(settings).items() if name not in without}
    parser = _Parser(options, argv, positional, repeated, settings.instead)
    parser.run()
    if parser.problems and not parser.help:
        raise _usage_error(parser.problems, program)
    return CommandLine(parser.values, parser.help, parser.lists, parser.has_word)


def make(settings: type[SettingsType], values: Mapping[str, Any], program: str) -> SettingsType:
    """Checked settings from what was typed. Raises UsageError with one line for each problem, each naming its option."""
    try:
        return settings.make(values, spell)
    except UserError as error:
        raise _usage_error(str(error).splitlines(), program) from None


def read(settings: type[SettingsType], argv: Sequence[str], program: str, description: str) -> SettingsType | None:
    """``parse`` and ``make`` in one; if help is requested, print it and return None."""
    line = parse(settings, argv, program)
    if line.help:
        print(help_text(settings, program, description))
        return None
    return make(settings, line.values, program)


def _usage_error(problems: Sequence[str], program: str) -> UsageError:
    return UsageError("\n".join([*problems[:-1], f"{problems[-1]} (see {program} --help)"]))


class _Parser:
    """Goes through the words of a command line once."""

    def __init__(
        self,
        options: Mapping[str, Option],
        argv: Sequence[str],
        positional: str | None,
        repeated: Collection[str],
        instead: Mapping[str, str],
    ) -> None:
        self._options = options
        self._instead = instead
        self._words = list(argv)
        self._positional = positional
        self._position = 0
        self.values: dict[str, Any] = {}
        self.lists: dict[str, list[str]] = {name: [] for name in repeated}
        self.problems: list[str] = []
        self.help = False
        self.has_word = False

    def run(self) -> None:
        while self._position < len(self._words):
            word = self._words[self._position]
            self._position += 1
            if word in ("-h", "--help"):
                self.help = True
            elif word.startswith("--") and len(word) > 2:
                self._take(word)
            elif word.startswith("-") and len(word) > 1 and word != "--":
                self.problems.append(f"unknown option {word.partition('=')[0]}; option names begin with two dashes")
                self._skip_value(word)
            elif self._positional is not None and word != "--":
                self._take_word(self._positional, word)
            else:
                self.problems.append(f"unexpected {word!r}; options are written --name=value")

    def _take_word(self, name: str, word: str) -> None:
        if name not in self.lists:
            self._positional = None
            if name in self.values:
                self.problems.append(f"unexpected {word!r}; {spell(name)} is given already")
                return
        self.has_word = True
        self._set(name, word)

    def _set(self, name: str, text: str) -> None:
        option = self._options.get(name)
        before = self.values.get(name) if option is not None and option.repeated else None
        self.values[name] = text if before is None else [*([before] if isinstance(before, str) else before), text]
        if name in self.lists:
            self.lists[name].append(text)

    def _take(self, word: str) -> None:
        typed, equals, text = word.partition("=")
        name = typed[2:].replace("-", "_")
        name = f"{name}_" if iskeyword(name) else name
        option = self._options.get(name)
        if option is None:
            self._take_negation_or_complain(word, typed, name)
        elif option.is_switch:
            self._take_switch(option, text if equals else self._next_switch_word())
        elif equals:
            self._set(name, text)
        elif option.bare is not None:
            self.values[name] = self._next_number() or option.bare
        else:
            self._take_next(option)

    def _take_next(self, option: Option) -> None:
        if self._position < len(self._words) and not _is_option(self._words[self._position]):
            self._set(option.name, self._words[self._position])
            self._position += 1
            return
        hint = ""
        if self._position < len(self._words) and not self._is_known(self._words[self._position]):
            word = self._words[self._position]
            self._position += 1
            hint = f" (one that begins with a dash is written {spell(option.name)}={word})"
        self.problems.append(f"{spell(option.name)} needs a value{hint}")

    def _take_switch(self, option: Option, text: str | None) -> None:
        word = "true" if text is None else text.strip().lower()
        if word in _SWITCH_WORDS:
            self.values[option.name] = word in TRUE_WORDS
        else:
            self.problems.append(f"{spell(option.name)} must be true or false, not {text!r}")

    def _take_negation_or_complain(self, word: str, typed: str, name: str) -> None:
        negated = _negated(self._options, name)
        if negated is None:
            instead = self._instead.get(name, self._instead.get(name.removeprefix("no_")))
            near = suggestion(name, self._options, spell)
            self.problems.append(f"unknown option {typed}{near}" if instead is None else f"{typed}: {instead}")
            self._skip_value(word)
        elif "=" in word:
            self.problems.append(
                f"{typed} takes no value; write {spell(negated.name)}=true or {spell(negated.name)}=false"
            )
        else:
            self.values[negated.name] = False

    def _next_number(self) -> str | None:
        if self._position < len(self._words) and self._words[self._position].isdecimal():
            self._position += 1
            return self._words[self._position - 1]
        return None

    def _next_switch_word(self) -> str | None:
        if self._position < len(self._words) and self._words[self._position].lower() in _SWITCH_WORDS:
            self._position += 1
            return self._words[self._position - 1]
        return None

    def _skip_value(self, word: str) -> None:
        """Leave out the value of an unknown option, so that one mistake is reported once."""
        if "=" not in word and self._position < len(self._words) and not _is_option(self._words[self._position]):
            self._position += 1

    def _is_known(self, word: str) -> bool:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        known = name in self._options or _negated(self._options, name) is not None
        return word in ("-h", "--help", "--") or (word.startswith("--") and known)


def _negated(options: Mapping[str, Option], name: str) -> Option | None:
    """The switch that ``no_name`` (or ``noname``) turns off."""
    for prefix in ("no_", "no"):
        option = options.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if option is not None and option.is_switch:
            return option
    return None


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NEGATIVE_NUMBER.fullmatch(word)


# --- Options from fields


def _option(name: str, field: Field) -> Option:
    kind, about = bare_type(field.annotation), field.about
    value = None if kind is bool else about.value or _value_name(kind)
    return Option(
        name, about.group, field.description, value, field.default, field.required, about.bare, about.repeated
    )


def _value_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "A,B,…"
    return {int: "N", float: "X"}.get(kind, "TEXT")


# --- Help


def help_text(
    settings: type[Settings],
    program: str,
    description: str,
    width: int | None = None,
    *,
    without: Collection[str] = (),
    recorded: bool = False,
    positional: str | None = None,
) -> str:
    """The help: how options are written, then every option under its heading, with its default.

    ``without``: fields to leave out. ``recorded``: what is not given is as it was recorded, so nothing is required.
    ``positional``: the field whose word ``program`` ends with.
    """
    columns = width or min(100, shutil.get_terminal_size().columns)
    options = [option for option in options_of(settings).values() if option.name not in without]
    if recorded:
        options = [option if option.name == positional else _as_recorded(option) for option in options]
    named = (option for option in options if option.required and option.name != positional)
    required = " ".join(f"{spell(option.name)} {option.value}" for option in named)
    lines = [f"{program} {required} [OPTIONS]".replace("  ", " "), "", *textwrap.wrap(description, columns)]
    lines += ["", *textwrap.wrap(_HOW_TO, columns)]
    for group in dict.fromkeys(option.group for option in options):
        lines += ["", f"{group}:"]
        for option in options:
            if option.group == group:
                word = program.split()[-1] if option.name == positional else None
                lines += _option_help(option, columns, "" if recorded else _default(option), word)
    return "\n".join(lines)


def _as_recorded(option: Option) -> Option:
    return replace(option, required=False, group="Input") if option.required else option


def _option_help(option: Option, columns: int, default: str, word: str | None) -> Iterator[str]:
    named = f"{spell(option.name)}{value_text(option)}"
    yield f"  {named}" if word is None else f"  {word}  (or {named})"
    text = f"{option.help} {default}".strip()
    yield from textwrap.wrap(text, columns, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)


def value_text(option: Option) -> str:
    """What stands behind the name of an option where it is explained."""
    if option.is_switch:
        return ""
    return f" {option.value}" if option.bare is None else f" [{option.value}]"


def _default(option: Option) -> str:
    if option.required:
        return "(required)"
    if option.is_switch:
        return f"(default: {str(bool(option.default)).lower()})"
    if option.default is None:
        return ""  # the help says what happens without the option
    return f"(default: {default_text(option)})"


_MIB = 1 << 20


def default_text(option: Option) -> str:
    """An option's default, which is not None, as it would be typed."""
    if isinstance(option.default, tuple):
        return ",".join(option.default)
    if option.value == "SIZE" and option.default % _MIB == 0:
        return f"{option.default // _MIB}MiB"
    return f"{option.default:.15g}" if isinstance(option.default, float) else str(option.default)
