"""A person's own distributions and toolsets, in a YAML file.

::

    toolsets:                        # optional
      proofs:
        description: Lean and its files
        tools: [terminal]
        includes: [file]
    lean_only:                       # any number of distributions
      description: Proving in Lean
      toolsets:
        proofs: 100
        web: 20                      # percent
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from manyhands.core.errors import UserError
from manyhands.tools.distributions import STANDARD_DISTRIBUTIONS, Distribution, Distributions
from manyhands.tools.text import suggestion
from manyhands.tools.toolsets import Toolset, Toolsets

_SECTION = "toolsets"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file a value is, for messages."""

    path: Path
    parent: Any
    key: str
    field: str

    def wrong(self, message: str) -> UserError:
        line = ""
        if isinstance(self.parent, CommentedMap) and self.key in self.parent.lc.data:
            line = f":{self.parent.lc.key(self.key)[0] + 1}"
        return UserError(f"{self.path}{line}: {self.field}: {message}")

    def inner(self, parent: Any, key: str) -> _Place:
        return _Place(self.path, parent, key, f"{self.field}.{key}" if self.field else key)


def load_distributions_file(
    path: Path, toolsets: Toolsets, distributions: Distributions = STANDARD_DISTRIBUTIONS
) -> tuple[Distributions, Toolsets]:
    """The given distributions and toolsets with those of the file. A distribution of the file replaces one of the same
    name.

    Raises UserError that names file, line and field.
    """
    content = read_yaml(path)
    if not isinstance(content, CommentedMap) or not content:
        raise UserError(f"{path}: a mapping of distributions by name is expected")
    top = _Place(path, content, "", "")
    section = content.get(_SECTION)
    own = []
    if section is not None:
        place = top.inner(content, _SECTION)
        named = _mapping(place, section)
        own = [_toolset(place.inner(named, str(name)), str(name), value) for name, value in named.items()]
        try:
            toolsets = toolsets.extended(own)
        except UserError as error:
            raise place.wrong(str(error)) from error
    read = [
        _distribution(top.inner(content, name), name, value, toolsets)
        for name, value in content.items()
        if name != _SECTION
    ]
    return distributions.extended(read), toolsets


def read_yaml(path: Path) -> Any:
    """A YAML file's content, in which mappings know their lines.

    Raises UserError if it can't be read or isn't YAML.
    """
    try:
        return YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text") from error
    except MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _distribution(place: _Place, name: Any, value: Any, toolsets: Toolsets) -> Distribution:
    if not isinstance(name, str) or not name or ":" in name:
        raise place.wrong("a distribution's name is text without a colon")
    fields = _fields(place, value, ("description", "toolsets"))
    table = place.inner(fields, "toolsets")
    entries = _mapping(table, fields.get("toolsets"))
    if not entries:
        raise table.wrong("at least one toolset with its percentage is expected")
    drawn: list[tuple[str, float]] = []
    for toolset, percent in entries.items():
        entry = table.inner(entries, str(toolset))
        try:
            drawn.append((toolsets.checked(str(toolset)), _percent(entry, percent)))
        except UserError as error:
            raise error if str(error).startswith(str(place.path)) else entry.wrong(str(error)) from error
    return Distribution(name, _text(place, fields, "description"), tuple(drawn))


def _toolset(place: _Place, name: str, value: Any) -> Toolset:
    fields = _fields(place, value, ("description", "tools", "includes"))
    tools, includes = (_names(place.inner(fields, key), fields.get(key)) for key in ("tools", "includes"))
    if not tools and not includes:
        raise place.wrong("tools or includes are expected")
    return Toolset(name, _text(place, fields, "description"), tools, includes)


def _fields(place: _Place, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
    fields = _mapping(place, value)
    for key in fields:
        if key not in known:
            hint = suggestion(str(key), known)
            raise place.inner(fields, str(key)).wrong(f"unknown field{hint}; known: {', '.join(known)}")
    return fields


def _mapping(place: _Place, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise place.wrong(f"a mapping is expected, not {_kind(value)}")
    return value


def _names(place: _Place, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise place.wrong(f"a list of names is expected, not {_kind(value)}")
    return tuple(map(str, value))


def _text(place: _Place, fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise place.inner(fields, key).wrong(f"text is expected, not {_kind(value)}")
    return str(value)


def _percent(place: _Place, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 100:
        raise place.wrong(f"a percentage above 0 and up to 100 is expected, not {value!r}")
    return float(value)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
