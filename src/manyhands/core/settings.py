"""Settings of a workload as one object: each with its type, default, help, and what a change of it means.

A settings class derives from ``Settings``, and its fields are made with ``setting``. The same class serves the command line
(``manyhands.cli.options``), Python callers and the record in the run folder. Values may be given as they are typed on a
command line (``"10"``, ``"yes"``, ``"a, b"``); what can't be read is refused with a message that says what is expected.

Every command has settings, so they are no models of a library that takes longer to import than most commands need.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import get_annotations
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from manyhands.core.errors import UserError
from manyhands.core.redaction import KNOWN, without_user_info
from manyhands.core.text import cut, suggestion

TRUE_WORDS = frozenset(("true", "yes", "1", "on"))
FALSE_WORDS = frozenset(("false", "no", "0", "off"))

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class About:
    """What is known about a setting besides its type, default and description."""

    group: str = "Options"
    """Its heading in the help."""
    identity: bool = False
    """A run is another run if it changes, so a resume refuses it; other settings may change freely."""
    recorded: bool = True
    """Kept in the run folder."""
    typed: bool = True
    """An option of the command line."""
    secret: bool = False
    """Its value appears in no message."""
    value: str | None = None
    """What the help calls its value."""
    repeated: bool = False
    """May be given several times on the command line, and then all count."""
    bare: str | None = None
    """The value of an option whose name stands alone on the command line, if that means one (only for whole numbers)."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a settings class. Made by ``setting``; what is said with its name is added when the class is made."""

    default: Any
    """``...`` if it must be given."""
    description: str
    about: About
    annotation: Any = None
    read: Callable[[Any], Any] = str
    """Makes the value of what is given. Raises ValueError."""
    read_recorded: Callable[[Any], Any] = str
    """The same of what is recorded."""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is ...


def setting(default: Any, description: str, **about: Any) -> Any:
    """A field of a settings class: its default (``...`` if it must be given), one sentence of help, and fields of ``About``."""
    return Field(default, description, About(**about))


class Settings:
    """The base of settings classes, whose instances can't be changed. What several have in common is a class of its own, from which only
    those inherit that use all of it."""

    fields: ClassVar[Mapping[str, Field]] = MappingProxyType({})
    """All settings, those of base classes first."""
    headings: ClassVar[tuple[str, ...]] = ()
    """The groups in the order of the help; others follow."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Settings that people may expect here and that there are not, each with what to do instead, for messages."""
    retired: ClassVar[frozenset[str]] = frozenset()
    """Settings that earlier versions recorded although nothing heeded them."""
    given: frozenset[str]
    """The settings that have been given a value."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, field in [(name, field) for name, field in vars(cls).items() if isinstance(field, Field)]:
            annotation = _evaluated(cls.__annotations__[name], cls)
            read, read_recorded = _reader(annotation), _recorded_reader(annotation)
            setattr(cls, name, replace(field, annotation=annotation, read=read, read_recorded=read_recorded))
        found = [(name, field) for each in reversed(cls.__mro__) for name, field in vars(each).items()]
        cls.fields = MappingProxyType({name: field for name, field in found if isinstance(field, Field)})

    def __init__(self, /, **values: Any) -> None:
        """Raises ValueError with one line for each problem."""
        checked, problems = self._checked(values, str)
        if problems:
            raise ValueError("\n".join(problems))
        vars(self).update(checked, given=frozenset(values))

    @classmethod
    def make(cls, values: Mapping[str, Any], spell: Callable[[str], str] = str) -> Self:
        """A checked instance. ``spell`` gives the name of a setting as the person knows it (``--max_turns``).

        Raises UserError with one line for each problem.
        """
        checked, problems = cls._checked(values, spell)
        if problems:
            raise UserError("\n".join(problems))
        return cls._of(checked, values)

    @classmethod
    def unchecked(cls, **values: Any) -> Self:
        """An instance with these values as they are, and the defaults of others."""
        defaults = {name: field.default for name, field in cls.fields.items() if not field.required}
        return cls._of({**defaults, **values}, values)

    @classmethod
    def _of(cls, values: Mapping[str, Any], given: Collection[str]) -> Self:
        made = cls.__new__(cls)
        vars(made).update(values, given=frozenset(given))
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"settings are frozen: {name}")

    def __delattr__(self, name: str) -> None:
        raise ValueError(f"settings are frozen: {name}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) | {"given": ()} == vars(self) | {"given": ()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    @classmethod
    def about(cls, name: str) -> About:
        """What is known about one setting."""
        return cls.fields[name].about

    @classmethod
    def in_order(cls) -> list[str]:
        """The names of all settings in the order of the help: by heading; under each first those that must be given, then a class's own,
        then inherited ones."""
        names = dict.fromkeys(name for each in cls.__mro__ for name in get_annotations(each) if name in cls.fields)
        ranks = {heading: rank for rank, heading in enumerate(cls.headings)}
        return sorted(
            names, key=lambda name: (ranks.get(cls.about(name).group, len(ranks)), not cls.fields[name].required)
        )

    def values(self) -> dict[str, Any]:
        """All settings by name."""
        return {name: getattr(self, name) for name in self.fields}

    def to_json(self, names: Collection[str]) -> dict[str, Any]:
        """Some of the settings as a JSON object."""
        return {name: _as_json(getattr(self, name)) for name in self.fields if name in names}

    def recorded(self) -> dict[str, Any]:
        """The settings as a JSON object for the run folder, without secrets; ``from_record`` takes it back."""
        return self.to_json([name for name in self.fields if self.about(name).recorded and not self.about(name).secret])

    @classmethod
    def from_record(cls, record: Mapping[str, Any], **others: Any) -> Self:
        """What ``recorded`` gave, also in an earlier version. ``others``: settings that are not recorded. Raises ValueError. No file is
        read: nobody knows who wrote a record."""
        known = {name: value for name, value in record.items() if name in cls.fields or name not in cls.retired}
        values = {**known, **others}
        checked, problems = cls._checked(values, str, recorded=known.keys() - others.keys())
        if problems:
            raise ValueError("\n".join(problems))
        return cls._of(checked, values)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same settings but for these values, which are not checked and count as given."""
        return self._of({**self.values(), **changes}, self.given | changes.keys())

    def inherit(self, earlier: Settings) -> Self:
        """These settings, with everything that was not given explicitly as it is in ``earlier``, which has all that are recorded."""
        kept = {
            name: getattr(earlier, name) for name in self.fields if name not in self.given and self.about(name).recorded
        }
        return self.changed(kept)

    @classmethod
    def check(cls, name: str, value: Any) -> Any:
        """The value of a setting that was given and read, for what depends on the class. Raises ValueError."""
        return value

    @classmethod
    def _checked(
        cls, values: Mapping[str, Any], spell: Callable[[str], str], recorded: Collection[str] = ()
    ) -> tuple[dict[str, Any], list[str]]:
        """The values of all settings, and what is wrong with those that were given, in plain words, a line each. ``recorded``: those that
        are as a run folder has them."""
        checked, problems = {}, []
        for name, field in cls.fields.items():
            if name not in values:
                checked[name] = field.default
                if field.required:
                    problems.append(f"{spell(name)} is required")
                continue
            try:
                read = field.read_recorded if name in recorded else field.read
                checked[name] = cls.check(name, read(values[name]))
            except ValueError as error:
                got = "" if field.about.secret else f", not {shown(values[name])}"
                problems.append(f"{spell(name)} {error}{got}")
        return checked, problems + [cls._unknown(name, spell) for name in values if name not in cls.fields]

    @classmethod
    def _unknown(cls, name: str, spell: Callable[[str], str]) -> str:
        if name in cls.instead:
            return f"{spell(name)}: {cls.instead[name]}"
        return f"unknown setting {spell(name)}{suggestion(name, cls.fields, spell)}"


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    return {name: _as_json(each) for name, each in value.items()} if isinstance(value, dict) else value


# --- Annotations


@dataclass(frozen=True, slots=True)
class Checked:
    """In an annotation (``Annotated[int, Checked(read)]``): makes the value of what is given, or raises ValueError. Models of pydantic
    heed it, too."""

    read: Callable[[Any], Any]
    recorded: Callable[[Any], Any] | None = None
    """The same of what is recorded, where ``read`` may take a file's name in place of what is in the file; that is not done there."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # large, and no settings need it

        return core_schema.no_info_before_validator_function(self.read, schema=handler(source))


def _evaluated(annotation: Any, owner: type) -> Any:
    return eval(annotation, vars(sys.modules[owner.__module__])) if isinstance(annotation, str) else annotation


def _reader(annotation: Any) -> Callable[[Any], Any]:
    """What makes a value of that type of what is given."""
    for part in getattr(annotation, "__metadata__", ()):
        if isinstance(part, Checked):
            return part.read
    if _is_union(annotation):
        return partial(_unless_none, _reader(next(part for part in get_args(annotation) if part is not NoneType)))
    if get_origin(annotation) is Literal:
        return partial(_choice, get_args(annotation))
    readers = {str: _any_text, dict: _mapping}
    try:
        return readers[get_origin(annotation) or annotation]
    except KeyError:
        raise TypeError(f"a setting of type {annotation} needs what reads it: Annotated[…, Checked(…)]") from None


def _recorded_reader(annotation: Any) -> Callable[[Any], Any]:
    """The same of what is recorded."""
    own = (part.recorded for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Checked))
    return next(own, None) or _reader(annotation)


def _unless_none(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _choice(choices: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"must be {', '.join(others)} or {last}" if others else f"must be {last}")
    return value


def _any_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping")
    return dict(value)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def bare_type(annotation: Any) -> Any:
    """The type without "or None", and without what is said of its values."""
    if get_origin(annotation) is Annotated:
        return bare_type(annotation.__origin__)
    if _is_union(annotation):
        return next((bare_type(part) for part in get_args(annotation) if part is not NoneType), str)
    return annotation


def changed_settings(old: Settings, new: Settings) -> list[tuple[str, Any, Any]]:
    """Settings that make it another run, in the order of the help: name, old value, new value."""
    names = (name for name in new.in_order() if new.about(name).identity)
    return [
        (name, getattr(old, name), getattr(new, name)) for name in names if getattr(old, name) != getattr(new, name)
    ]


def shown(value: Any, length: int = 60) -> str:
    """A value for a message: short, on one line, without secrets."""
    return cut(without_user_info(KNOWN.text(repr(list(value) if isinstance(value, tuple) else value))), length)


# --- Types of values, as they are typed


def _whole(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


_LARGEST = sys.float_info.max


def _number(value: Any) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST <= value <= _LARGEST:
        raise ValueError("must be a number")
    return float(value)


def _bounded(
    parse: Callable[[Any], Any], minimum: float | None, maximum: float | None, above: float | None
) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = parse(value)
        if minimum is not None and number < minimum:
            raise ValueError(
                f"must be {minimum} or more" if maximum is None else f"must be between {minimum} and {maximum}"
            )
        if maximum is not None and number > maximum:
            raise ValueError(
                f"must be {maximum} or less" if minimum is None else f"must be between {minimum} and {maximum}"
            )
        if above is not None and number <= above:
            raise ValueError(f"must be more than {above}")
        return number

    return check


def _optional(check: Callable[[Any], Any], *words: str) -> Callable[[Any], Any]:
    def check_given(value: Any) -> Any:
        return (
            None
            if value is None or (isinstance(value, str) and value.strip().lower() in ("", *words))
            else check(value)
        )

    return check_given


def whole(minimum: int | None = None, maximum: int | None = None) -> Checked:
    """A whole number within bounds, both included."""
    return Checked(_bounded(_whole, minimum, maximum, None))


def optional_whole(minimum: int | None = None, maximum: int | None = None) -> Checked:
    """The like, or None: also written as nothing or ``None``."""
    return Checked(_optional(_bounded(_whole, minimum, maximum, None), "none"))


def number(minimum: float | None = None, maximum: float | None = None, above: float | None = None) -> Checked:
    """A finite number within bounds; ``above`` is excluded."""
    return Checked(_bounded(_number, minimum, maximum, above))


def optional_number(minimum: float | None = None, maximum: float | None = None, above: float | None = None) -> Checked:
    """The like, or None: also written as nothing or ``None``."""
    return Checked(_optional(_bounded(_number, minimum, maximum, above), "none"))


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise ValueError("must be true or false (or yes, no, on, off, 1, 0)")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.strip():
        raise ValueError("must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("holds bytes that are not UTF-8 text") from None
    if "\0" in value:
        raise ValueError("holds a NUL character")
    return value


def _path(value: Any) -> str:
    return _text(str(value) if hasattr(value, "__fspath__") else value)


def _list(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of words, with commas between them")
    return tuple(word for word in (_word(part) for part in value) if word) or None


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a list of words, with commas between them")
    return value.strip()


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that is in no message about what holds it."""

    text: str

    def __repr__(self) -> str:
        return "Secret(…)"


def _secret(value: Any) -> Any:
    return value if isinstance(value, Secret) else Secret(_text(value).strip())


def _secrets(value: Any) -> Any:
    return tuple(map(_secret, value)) if isinstance(value, (list, tuple)) else (_secret(value),)


Flag = Annotated[bool, Checked(_flag)]
OptionalFlag = Annotated[bool | None, Checked(_optional(_flag))]
Text = Annotated[str, Checked(_text)]
OptionalText = Annotated[str | None, Checked(_optional(_text))]
Path = Annotated[str, Checked(_path)]
OptionalPath = Annotated[str | None, Checked(_optional(_path))]
OptionalSecret = Annotated[Secret | None, Checked(_optional(_secret))]
OptionalSecrets = Annotated[tuple[Secret, ...] | None, Checked(_optional(_secrets))]
"""One secret, or a list of some."""
OptionalList = Annotated[tuple[str, ...] | None, Checked(_optional(_list))]
"""Words with commas between them, or a list of words; nothing at all is None."""
