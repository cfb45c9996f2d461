"""Templates: ``{{ name }}`` for a value of ``vars`` and, where a text has more than that, what nunjucks and Jinja have in common.

Names are those of ``vars``, also as ``vars.name``. A text that is nothing but a name becomes the value itself, of whatever type. Within a
text, lists are written with commas between their items, and objects as JSON. ``{{ env.NAME }}`` is read as ``${{ NAME }}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from manyhands.core.errors import UserError
from manyhands.core.jsonio import Json
from manyhands.io.locations import Location
from manyhands.workloads.evals.evalfile.agentv5.template_process import TemplateProcess, written
from manyhands.workloads.evals.evalfile.interpolation import REFERENCE
from manyhands.workloads.evals.evalfile.messages import NOTHING, VARIABLE, variable_of

_PASSES = 5
"""How often values that hold names of others are looked at."""
MAX_INSERTED = 100_000_000
"""Characters that the variables of a file may put into its tests."""
_EACH = 16
"""Characters as which each value counts, whatever is in it."""
_MORE = re.compile(r"\{%|\{#")
_OUTPUT = re.compile(r"(?<!\$)\{\{(?:(?!\{\{).)*?\}\}", re.DOTALL)
_ENV = re.compile(
    r"(?<!\$)\{\{\s*env\.([A-Za-z_]\w*)\s*(?:\|\s*default\(\s*(['\"])((?:(?!\{\{).)*?)\2\s*(?:,\s*true\s*)?\)\s*)?\}\}"
)


def with_present_variables(value: Json) -> Json:
    """The value with variables of the environment as targets and eval files have them: ``{{ env.NAME }}`` is ``${{ NAME }}``."""
    if isinstance(value, str):
        return _ENV.sub(_reference, value) if "env." in value else value
    if isinstance(value, Mapping):
        return {key: with_present_variables(entry) for key, entry in value.items()}
    return [with_present_variables(entry) for entry in value] if isinstance(value, list) else value


def _reference(found: re.Match[str]) -> str:
    return f"${{{{ {found[1]} }}}}" if found[3] is None else f"${{{{ {found[1]}:-{found[3]} }}}}"


Missing = Callable[[str], str | None]


def _nothing(name: str) -> None:
    return None


class Filling:
    """Fills the templates of one file, within what they may put in altogether."""

    def __init__(self) -> None:
        self.exceeded: UserError | None = None
        """What is wrong once that is too much; nothing is filled then."""
        self._left = MAX_INSERTED
        self._process = TemplateProcess()

    def close(self) -> None:
        """End the process that fills templates, if there was one for which it took that."""
        self._process.close()

    def resolved(self, variables: Mapping[str, Json], location: Location) -> dict[str, Json]:
        """Variables in whose values the names of others are replaced; as ``vars`` they are there all together, too. Raises UserError."""
        found = dict(variables)
        for _ in range(_PASSES):
            known = {**found, "vars": found}
            after = {name: self._simply(value, known, _nothing, location.at(name)) for name, value in found.items()}
            if after == found:
                break
            found = after
        return {**found, "vars": found}

    def rendered(
        self, value: Json, variables: Mapping[str, Json], location: Location, missing: Missing = _nothing
    ) -> Json:
        """The value with its templates filled. ``variables``: as ``resolved`` gives them; ``missing``: gives what stands for a name that is
        none, where it stands by itself; None: it stays. Raises UserError for a template that can't be filled."""
        if isinstance(value, str):
            if _is_simple(value):
                return self._simply(value, variables, missing, location)
            return self._by_engine(value, variables, location)
        if isinstance(value, Mapping):
            return {key: self.rendered(entry, variables, location, missing) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.rendered(entry, variables, location, missing) for entry in value]
        return value

    def ids(self, count: int, location: Location) -> None:
        """Take so many ids of tests from what is left. Raises UserError."""
        self._take(count, location)

    def _simply(self, value: Json, variables: Mapping[str, Json], missing: Missing, location: Location) -> Json:
        """The value with the names of variables replaced."""
        if isinstance(value, str):
            return self._text(value, variables, missing, location)
        if isinstance(value, Mapping):
            return {key: self._simply(entry, variables, missing, location) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._simply(entry, variables, missing, location) for entry in value]
        return value

    def _text(self, text: str, variables: Mapping[str, Json], missing: Missing, location: Location) -> Json:
        def inserted(found: re.Match[str]) -> str:
            if text[found.start() - 1 : found.start()] == "$":
                return found[0]
            value = variable_of(found[1], variables)
            if value is not NOTHING:
                self._count(value, location)
                return written(value)
            instead = missing(found[1])
            return found[0] if instead is None else instead

        whole = VARIABLE.fullmatch(text.strip())
        if whole is not None and (value := variable_of(whole[1], variables)) is not NOTHING:
            self._count(value, location)
            return value
        return VARIABLE.sub(inserted, text)

    def _by_engine(self, text: str, variables: Mapping[str, Json], location: Location) -> str:
        kept = REFERENCE.sub(lambda found: f"{{% raw %}}{found[0]}{{% endraw %}}", text)
        try:
            made = self._process.fill(kept, variables)
        except ValueError as error:
            raise location.error(f"the template can't be filled: {error}") from error
        self._take(len(made), location)
        return made

    def _count(self, value: Json, location: Location) -> None:
        """Take what is put in from what is left: as much as it would be when it is written out."""
        self._take(_EACH + (len(value) if isinstance(value, (str, Mapping, list)) else 0), location)
        if isinstance(value, (Mapping, list)):
            for part in value.values() if isinstance(value, Mapping) else value:
                self._count(part, location)

    def _take(self, count: int, location: Location) -> None:
        self._left -= count
        if self._left < 0:
            self.exceeded = self.exceeded or location.error(
                f"variables put more than {MAX_INSERTED:,} characters into the file's tests"
            )
            raise self.exceeded


def is_simple(value: Json) -> bool:
    """Whether the texts of a value hold names only, and nothing that takes an engine."""
    return all(_is_simple(text) for text in _texts(value))


def _texts(value: Json) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _is_simple(text: str) -> bool:
    if "{" not in text:
        return True
    return _MORE.search(text) is None and all(VARIABLE.fullmatch(found) for found in _OUTPUT.findall(text))
