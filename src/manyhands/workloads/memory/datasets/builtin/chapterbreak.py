"""Some chapters of a book, and six beginnings of the next one, of which one is the true one.

The texts are those of ChapterBreak (S. Sun, K. Thai, M. Iyyer: "ChapterBreak: A Challenge Dataset for Long-Range Language Models", NAACL
2022, Apache 2.0), which are not part of this project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from manyhands.core.digests import Draws
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import Definition, Evaluation, Wait
from manyhands.workloads.memory.datasets.answers.settling import settles_on
from manyhands.workloads.memory.datasets.base import (
    DEFINITIONS_FOLDER,
    BaseDataset,
    CountTokens,
    DatasetArguments,
    all_or_nothing,
    last_of,
    shuffled,
    texts,
)

_TEXTS = texts("chapterbreak")
SOLVABLE = ("12653258_1", "47583370_7", "90051444_0", "92666381_1")
"""The samples of the split ``goodai``: those that people can solve."""
PAGE_MARGIN = 20
"""Tokens that a page leaves free of the largest message, for its heading."""

_HEADING = re.compile(r"^\s*(?:chapter\s+)?\d+\s*[.:]?\s*", re.IGNORECASE)
_SOURCE = (
    "it needs the file chapterbreak_ctx_8192.zst (or .json) of ChapterBreak, a release asset v1.1 of the repository "
    "GoodAI/goodai-ltm-benchmark (sha256 1567de84…43ed), as args: {data_location: FILE}; or, without it, tests that are made: copy the "
    f"folder data/tests/RUN/definitions of that repository, with its config.yml, to {DEFINITIONS_FOLDER}, where they are used as they are"
)


class ChapterBreakArguments(DatasetArguments):
    split: Literal["goodai", "pg19", "ao3", "all"] = "goodai"
    """Which samples; ``goodai`` are those that people can solve."""
    data_location: Path | None = None
    """The file with the texts, as JSON, or compressed with Zstandard (``.zst``), for which pyarrow has to be installed."""


class ChapterBreak(BaseDataset):
    """One point if the only number in the answer is that of the true beginning.

    Mended: of several numbers it may be the one that the answer settles on ("2, not 3"), and "not 2" is not 2; no sentence is lost where
    a page is full (as published, the one that no longer fits is).
    """

    id = "chapterbreak"
    default_name = "ChapterBreak"
    default_reset = (
        "We are done with that book. You can put its chapters, and the continuations that I listed, out of your mind."
    )
    about = "Reads some chapters of a book, and asks which of six beginnings is that of the next chapter."
    default_question = _TEXTS["question"]
    Arguments: ClassVar[type[DatasetArguments]] = ChapterBreakArguments

    def make(self, examples: int, draws: Draws) -> Any:
        yield from no_questions()
        location = self.arguments.data_location
        if location is None:
            raise UserError(f"dataset {self.id!r}: data_location is not set; {_SOURCE}")
        samples = _chosen(self._load(location), self.arguments.split)
        if len(samples) < examples:
            raise UserError(
                f"dataset {self.id!r}: {location} has {len(samples)} samples of split {self.arguments.split!r}, "
                f"not {examples} (dataset_examples)"
            )
        names = shuffled(draws, sorted(samples))[:examples]
        return [self._test(name, samples[name], draws) for name in names]

    def _load(self, location: Path) -> Any:
        try:
            return _read(location, location.stat().st_mtime_ns)
        except FileNotFoundError:
            raise UserError(f"dataset {self.id!r}: data_location {location} does not exist; {_SOURCE}") from None
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"dataset {self.id!r}: data_location {location} can't be read: {error}") from None

    def _test(self, name: str, sample: dict[str, Any], draws: Draws) -> Definition:
        size = self.arguments.max_message_size - PAGE_MARGIN
        options = shuffled(draws, ((True, sample["pos"]), *((False, text) for text in sample["negs"])))
        same = _HEADING.match(sample["pos"])
        heading = same.group() if same else ""
        told = [
            _TEXTS["introduction"],
            *self._pages(sample["ctx"], size),
            _TEXTS["announcement"].format(count=len(options)),
        ]
        for number, (_, text) in enumerate(options, start=1):
            first, *more = self._split(heading + _HEADING.sub("", text, count=1) if heading else text, size)
            told += [f"Beginning {number}:\n\n{first}", *more]
        right = next(number for number, (true, _) in enumerate(options, start=1) if true)
        waits = tuple(Wait() for _ in range(len(told) + 1))
        return self.scripted(name, told, (self.question,), [str(right)], waits=waits)

    def _pages(self, text: str, size: int) -> list[str]:
        pages = self._split(text, size)
        return [f"Page {number} of {len(pages)}:\n\n{page}" for number, page in enumerate(pages, start=1)]

    def _split(self, text: str, size: int) -> list[str]:
        return pages_of(text, size, self.count_tokens, lossy=not self.mended)

    def score(self, definition: Definition, questions: Sequence[str], answers: Sequence[str]) -> Evaluation:
        expected = definition.expected_responses[0]
        numbers = set(re.findall(r"\d+", last_of(answers)))
        right = settles_on(last_of(answers), expected, numbers) if self.mended else numbers == {expected}
        return all_or_nothing(right, f"{expected} {'is' if right else 'is not'} the number in the answer")


def no_questions() -> Any:
    """A generator that asks nothing."""
    yield from ()


def pages_of(text: str, size: int, count_tokens: CountTokens, *, lossy: bool = False) -> list[str]:
    """A text in pages of at most ``size`` tokens, split between sentences; a longer sentence is a page of its own. ``lossy``: the sentence
    after a full page is dropped, as it was for the published tests."""
    pages: list[str] = []
    page: list[str] = []
    used = 0
    for sentence in text.split(". "):
        tokens = count_tokens(f"{sentence}. ")
        if page and used + tokens > size:
            pages.append(". ".join(page) + ("" if lossy else "."))
            page, used = ([], 0) if lossy else ([sentence], tokens)
        else:
            page.append(sentence)
            used += tokens
    return [*pages, ". ".join(page)] if page or not pages else pages


@lru_cache(maxsize=1)
def _read(location: Path, changed: int) -> Any:
    """The file's content; it is large, so it is kept. ``changed``: when it was written."""
    if location.suffix != ".zst":
        return json.loads(location.read_bytes())
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError("pyarrow is needed to read .zst: pip install 'manyhands[datasets]'") from None
    with pa.CompressedInputStream(pa.OSFile(str(location)), "zstd") as stream:
        return json.loads(stream.read())


def _chosen(data: Any, split: str) -> dict[str, dict[str, Any]]:
    """The samples of a split, by book and number. The file: by split, by book, a list of samples (``ctx``, ``pos``, ``negs``)."""
    splits = ("pg19", "ao3") if split in ("all", "goodai") else (split,)
    try:
        samples = {
            f"{book}_{number}": sample
            for each in splits
            for book, listed in data.get(each, {}).items()
            for number, sample in enumerate(listed)
            if all(key in sample for key in ("ctx", "pos", "negs"))
        }
    except (AttributeError, TypeError):
        raise UserError("dataset 'chapterbreak': data_location holds no samples by split and book") from None
    return {name: sample for name, sample in samples.items() if split != "goodai" or name in SOLVABLE}
