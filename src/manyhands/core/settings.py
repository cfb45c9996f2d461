"""Settings of a workload as one object: each with its type, default, help, and what a change of it means.

A settings class is a frozen pydantic model whose fields are made with ``setting``. The same class serves the command line
(``manyhands.cli.options``), Python callers and the record in the run folder. Values may be given as they are typed on a
command line (``"10"``, ``"yes"``, ``"a, b"``); what can't be read is refused with a message that says what is expected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

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
    bare: str | None = None
    """The value of an option whose name stands alone on the command line, if that means one (only for whole numbers)."""

    @classmethod
    def of(cls, field: FieldInfo) -> Self:
        """What ``setting`` recorded about a field."""
        extra = field.json_schema_extra
        return cls(**extra) if isinstance(extra, dict) else cls()  # type: ignore[arg-type]


def setting(default: Any, description: str, **about: Any) -> Any:
    """A field of a settings class: its default (``...`` if it must be given), one sentence of help, and fields of ``About``."""
    return Field(default, description=description, validate_default=False, json_schema_extra=asdict(About(**about)))


class Settings(BaseModel):
    """The base of settings classes. What several have in common is a class of its own, from which only those inherit that use all of
    it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)
    headings: ClassVar[tuple[str, ...]] = ()
    """The groups in the order of the help; others follow."""
    instead: ClassVar[Mapping[str, str]] = {}
    """Settings that people may expect here and that there are not, each with what to do instead, for messages."""
    retired: ClassVar[frozenset[str]] = frozenset()
    """Settings that earlier versions recorded although nothing heeded them."""

    @classmethod
    def make(cls, values: Mapping[str, Any], spell: Callable[[str], str] = str) -> Self:
        """A checked instance. ``spell`` gives the name of a setting as the person knows it (``--max_turns``).

        Raises UserError with one line for each problem.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise UserError("\n".join(problems(cls, error, spell))) from None

    @classmethod
    def about(cls, name: str) -> About:
        """What is known about one setting."""
        return About.of(cls.model_fields[name])

    @classmethod
    def in_order(cls) -> list[str]:
        """The names of all settings in the order of the help: by heading; under each first those that must be given, then a class's own,
        then inherited ones."""
        names = dict.fromkeys(
            name for each in cls.__mro__ for name in get_annotations(each) if name in cls.model_fields
        )
        ranks = {heading: rank for rank, heading in enumerate(cls.headings)}
        return sorted(
            names,
            key=lambda name: (ranks.get(cls.about(name).group, len(ranks)), not cls.model_fields[name].is_required()),
        )

    def recorded(self) -> dict[str, Any]:
        """The settings as a JSON object for the run folder, without secrets; ``from_record`` takes it back."""
        names = {name for name in type(self).model_fields if self.about(name).recorded and not self.about(name).secret}
        return self.model_dump(mode="json", include=names)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], **others: Any) -> Self:
        """What ``recorded`` gave, also in an earlier version. ``others``: settings that are not recorded. Raises ValueError."""
        known = {name: value for name, value in record.items() if name in cls.model_fields or name not in cls.retired}
        return cls(**{**known, **others})

    def inherit(self, earlier: Settings) -> Self:
        """These settings, with everything that was not given explicitly as it is in ``earlier``, which has all that are recorded."""
        kept = {
            name: getattr(earlier, name)
            for name in type(self).model_fields
            if name not in self.model_fields_set and self.about(name).recorded
        }
        return self.model_copy(update=kept)


def bare_type(annotation: Any) -> Any:
    """The type without "or None"."""
    if get_origin(annotation) in (Union, UnionType):
        return next((part for part in get_args(annotation) if part is not NoneType), str)
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


# --- Problems in plain words


def problems(settings: type[Settings], error: ValidationError, spell: Callable[[str], str] = str) -> list[str]:
    """What is wrong with the values, one line for each problem, the setting's name first."""
    return [_problem(settings, detail, spell) for detail in error.errors(include_url=False)]


def _problem(settings: type[Settings], detail: Mapping[str, Any], spell: Callable[[str], str]) -> str:
    path = detail["loc"]
    if not path:
        return plain_problem(detail)
    name = str(path[0])
    if detail["type"] == "extra_forbidden":
        if name in settings.instead:
            return f"{spell(name)}: {settings.instead[name]}"
        return f"unknown setting {spell(name)}{suggestion(name, settings.model_fields, spell)}"
    if detail["type"] == "missing":
        return f"{spell(name)} is required"
    got = "" if settings.about(name).secret else f", not {shown(detail['input'])}"
    return f"{spell(name)} {plain_problem(detail)}{got}"


def plain_problem(detail: Mapping[str, Any]) -> str:
    """What pydantic finds wrong with a value, in plain words. ``detail``: one of ``ValidationError.errors()``."""
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a mapping"
        case "list_type" | "tuple_type":
            return "must be a list"
        case "string_type":
            return "must be text"
    return str(detail["msg"]).replace("Input should be", "must be")


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
        return None if value is None or (isinstance(value, str) and value.strip() in ("", *words)) else check(value)

    return check_given


def whole(minimum: int | None = None, maximum: int | None = None) -> BeforeValidator:
    """A whole number within bounds, both included."""
    return BeforeValidator(_bounded(_whole, minimum, maximum, None))


def optional_whole(minimum: int | None = None, maximum: int | None = None) -> BeforeValidator:
    """The like, or None: also written as nothing or ``None``."""
    return BeforeValidator(_optional(_bounded(_whole, minimum, maximum, None), "None"))


def number(minimum: float | None = None, maximum: float | None = None, above: float | None = None) -> BeforeValidator:
    """A finite number within bounds; ``above`` is excluded."""
    return BeforeValidator(_bounded(_number, minimum, maximum, above))


def optional_number(
    minimum: float | None = None, maximum: float | None = None, above: float | None = None
) -> BeforeValidator:
    """The like, or None: also written as nothing or ``None``."""
    return BeforeValidator(_optional(_bounded(_number, minimum, maximum, above), "None"))


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


def _secret(value: Any) -> Any:
    return value if isinstance(value, SecretStr) else SecretStr(_text(value).strip())


Flag = Annotated[bool, BeforeValidator(_flag)]
OptionalFlag = Annotated[bool | None, BeforeValidator(_optional(_flag))]
Text = Annotated[str, BeforeValidator(_text)]
OptionalText = Annotated[str | None, BeforeValidator(_optional(_text))]
Path = Annotated[str, BeforeValidator(_path)]
OptionalPath = Annotated[str | None, BeforeValidator(_optional(_path))]
OptionalSecret = Annotated[SecretStr | None, BeforeValidator(_optional(_secret))]
OptionalList = Annotated[tuple[str, ...] | None, BeforeValidator(_optional(_list))]
"""Words with commas between them, or a list of words; nothing at all is None."""
