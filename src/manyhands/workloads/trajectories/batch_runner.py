"""Running trajectory batches from Python, with the interface of the original ``BatchRunner``.

Nothing that the command line would print is lost: notes are passed to a callback or the logger ``manyhands``, and are in the result;
messages name parameters where those of the command line name options (``core.python_words``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.outcomes import Outcome
from manyhands.core.python_words import PythonWords
from manyhands.engine.contract import Item
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, Progress, RunResult, perform_run
from manyhands.runs.notes import Notes
from manyhands.workloads.trajectories.dataset.rows import BadRow, Row, read_rows
from manyhands.workloads.trajectories.exports import CHECKPOINT, STATISTICS
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.prepared import tables
from manyhands.workloads.trajectories.spec import BatchSpec

_RENAMED = {"max_iterations": "max_turns"}
_POSITIONS = (
    "base_url",
    "api_key",
    "model",
    "num_workers",
    "verbose",
    "ephemeral_system_prompt",
    "log_prefix_chars",
    "providers_allowed",
    "providers_ignored",
    "providers_order",
    "provider_sort",
    "max_tokens",
    "reasoning_config",
    "prefill_messages",
    "max_samples",
)
"""The original's further arguments, in their order."""


LOGGER = logging.getLogger("manyhands")
WORDS = PythonWords(BatchSpec, {"resume": "run(resume=True)"})


class InvalidBatch(UserError, ValueError):
    """A setting or the dataset can't be used."""


class MissingDataset(UserError, FileNotFoundError):
    """There is no dataset at that path."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What to call while a batch runs. ``on_progress`` at most twice a second; ``on_outcome`` at every end of an item; ``notice`` with
    lines that a person should see, as soon as they are known: rows that are skipped, tools that are missing, what an endpoint refuses,
    what is waited for. Without it, they are warnings of the logger ``manyhands``, which Python prints unless logging is set up otherwise.
    """

    on_progress: Callable[[Progress], None] | None = None
    on_outcome: Callable[[Item, Outcome], None] | None = None
    notice: Callable[[str], None] = LOGGER.warning


class BatchRunner:
    """A trajectory batch.

    Takes the original's arguments and, as keywords, every option of ``manyhands batch`` (see ``BatchSpec``). Without ``model`` it takes the
    command line's default. Nothing is made on disk before ``run``.

    Raises ValueError (as UserError) for a setting or a dataset that can't be used, FileNotFoundError for a missing dataset.
    """

    def __init__(
        self,
        dataset_file: str | os.PathLike[str],
        batch_size: int,
        run_name: str,
        distribution: str = "default",
        max_iterations: int = 10,
        *more: Any,
        callbacks: Callbacks | None = None,
        **settings: Any,
    ) -> None:
        values = {
            "dataset_file": os.fspath(dataset_file),
            "batch_size": batch_size,
            "run_name": run_name,
            "distribution": distribution,
            "max_turns": max_iterations,
            "max_samples": None,  # said explicitly: without it, a resume is for the whole dataset
            **dict(_positional(more, settings)),
            **{name: value for name, value in settings.items() if value is not None},
        }
        if not Path(values["dataset_file"]).exists():
            raise MissingDataset(f"there is no dataset at {values['dataset_file']}")
        try:
            self.spec = BatchSpec.make(values)
            _check_dataset(self.spec)
            if self.spec.mcp_config is None:  # with it, toolsets are known only when the servers have started
                tables(self.spec)[0].named(self.spec.distribution)
        except UserError as error:
            raise InvalidBatch(WORDS.text(str(error))) from None
        self._callbacks = callbacks or Callbacks()
        self.controls = Controls()

    def __getattr__(self, name: str) -> Any:
        """Settings are attributes, by their own names and the original's."""
        if name.startswith("_") or name == "spec":
            raise AttributeError(name)
        return getattr(self.spec, _RENAMED.get(name, name))

    @property
    def output_dir(self) -> Path:
        return self.spec.run_folder

    @property
    def checkpoint_file(self) -> Path:
        return self.output_dir / CHECKPOINT

    @property
    def stats_file(self) -> Path:
        return self.output_dir / STATISTICS

    @property
    def dataset(self) -> list[dict[str, Any]]:
        """The usable rows, read anew at each access."""
        rows = (row for row in read_rows(self.spec.dataset_file, self.spec.max_samples) if not isinstance(row, BadRow))
        return [_shown_row(row) for row in rows]

    @property
    def batches(self) -> list[list[tuple[int, dict[str, Any]]]]:
        """The rows by output file: (prompt index, row)."""
        rows, size = list(enumerate(self.dataset)), self.spec.batch_size
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def run(self, resume: bool = False) -> RunResult:
        """Run, or with ``resume`` continue, the batch to its end.

        Returns the ledger, usage and exit code, and what was said on the way (``notes``, ``stopped``, ``nothing_kept``). Raises UserError
        (RunError if the name is taken or settings changed), StorageError.
        """
        return run_on_loop(self.run_async(resume))

    async def run_async(self, resume: bool = False) -> RunResult:
        """The like, inside a running event loop."""
        return await run_batch(self.spec, resume=resume, callbacks=self._callbacks, controls=self.controls)

    def stop(self) -> None:
        """Finish the calls in flight and stop; again: stop at once. Only from the thread that runs."""
        self.controls.stop()


def _shown_row(row: Row) -> dict[str, Any]:
    shown: dict[str, Any] = {"prompt": row.prompt, "image": row.image, "cwd": row.cwd, "id": row.id}
    if row.system is not None:
        shown["system"] = row.system
    if row.messages:
        shown["messages"] = list(row.messages)
    return {**shown, **row.source}


def _check_dataset(spec: BatchSpec) -> None:
    """Reads up to the first usable row. Raises UserError, naming the path, if there is none."""
    if all(isinstance(row, BadRow) for row in read_rows(spec.dataset_file, spec.max_samples)):
        raise UserError(f"the dataset has no usable row: {spec.dataset_file}")


async def run_batch(
    options: BatchSpec,
    *,
    resume: bool,
    callbacks: Callbacks,
    controls: Controls | None = None,
    environ: Mapping[str, str] = os.environ,
) -> RunResult:
    """Open a batch, new or to be resumed, and perform it. All that is said names parameters of ``BatchRunner``."""
    notes = Notes(lambda text: callbacks.notice(text))

    def tell(text: str) -> None:
        notes(WORDS.text(text))

    with WORDS.errors():
        session = await open_batch(options, resume=resume, notice=tell, environ=environ)
        result = await perform_run(
            session.folder,
            session.workload,
            spec_changed=session.spec_changed,
            rewrite_outputs=session.rewrite_outputs,
            judge_again=session.judge_again,
            notice=tell,
            controls=controls,
            on_progress=callbacks.on_progress,
            on_outcome=callbacks.on_outcome,
            on_wait=tell,
        )
    WORDS.put(result.error)
    return replace(
        result,
        notes=notes.lines,
        stopped=None if result.stopped is None else WORDS.text(result.stopped),
        nothing_kept=None if result.nothing_kept is None else WORDS.text(result.nothing_kept),
    )


def _positional(values: tuple[Any, ...], settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The original's further arguments given by position, by name; None means the default."""
    if len(values) > len(_POSITIONS):
        raise TypeError(
            f"BatchRunner takes {5 + len(_POSITIONS)} positional arguments at most, {5 + len(values)} were given"
        )
    for name, value in zip(_POSITIONS, values, strict=False):
        if name in settings:
            raise TypeError(f"BatchRunner got two values for {name!r}")
        if value is not None:
            yield name, value
