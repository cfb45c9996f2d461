"""Which tests of eval files are run, and what tells those of several files apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from manyhands.evals.id_patterns import compiled, is_group
from manyhands.evals.model import EvalFile

NOT = "!"
_COMMA = re.compile(r"(?<!\\),(?![^{}]*\})(?![^()]*\))(?![^\[\]]*\])")


def split_patterns(text: str) -> list[str]:
    """Patterns with commas between them; commas in brackets of any kind, and behind a backslash, belong to a pattern."""
    return _COMMA.split(text)


def id_filter(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether an id is wanted: it fits one of the patterns, or there are only such as begin with ``!``, and it fits none of these.

    What patterns may hold: see ``id_patterns``. Raises ValueError for one that can't be read or stands for too many.
    """
    unwanted = _compiled([pattern.removeprefix(NOT) for pattern in patterns if _is_unwanted(pattern)])
    wanted = _compiled([pattern for pattern in patterns if not _is_unwanted(pattern)])

    def fits(test_id: str) -> bool:
        if wanted is not None and wanted.fullmatch(test_id) is None:
            return False
        return unwanted is None or unwanted.fullmatch(test_id) is None

    return fits


def _is_unwanted(pattern: str) -> bool:
    return pattern.startswith(NOT) and not is_group(pattern)


def _compiled(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return compiled(patterns) if patterns else None


def told_apart(files: Sequence[EvalFile]) -> tuple[EvalFile, ...]:
    """The files with datasets that tell their tests apart. Where files have a dataset of the same name and the same tests in it, their
    folders' names go before it, and numbers behind it where even that does not help."""
    named_alike = Counter(file.dataset for file in files)
    alike = [file for file in files if named_alike[file.dataset] > 1]
    shared = Counter((file.dataset, test.id) for file in alike for test in file.tests)
    datasets = {dataset for (dataset, _), count in shared.items() if count > 1}
    if not datasets:
        return tuple(files)
    named = [f"{file.folder.name}/{file.dataset}" if file.dataset in datasets else file.dataset for file in files]
    used: Counter[str] = Counter()
    for place, name in enumerate(named):
        used[name] += 1
        if used[name] > 1 and files[place].dataset in datasets:
            named[place] = f"{name}-{used[name]}"
    return tuple(replace(file, dataset=name) for file, name in zip(files, named, strict=True))
