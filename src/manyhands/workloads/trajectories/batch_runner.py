"""Running trajectory batches from Python, with the interface of the original ``BatchRunner``.

Nothing that the command line would print is lost: notes are passed to a callback or the logger ``manyhands``, and are in the result;
messages name parameters (``sandbox="local"``) where those of the command line, as which they are written, name options
(``--sandbox local``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from manyhands.core.errors import UserError
from manyhands.core.outcomes import Outcome
from manyhands.engine.contract import Item
from manyhands.processes.event_loop import run_on_loop
from manyhands.runs.execution import Controls, RunResult, execute_run
from manyhands.runs.parameters import PythonWords
from manyhands.runs.progress import Notes, Progress
from manyhands.workloads.trajectories.dataset.rows import BadRow, Row, check_usable, read_rows
from manyhands.workloads.trajectories.opening import open_batch
from manyhands.workloads.trajectories.prepared import tables
from manyhands.workloads.trajectories.results.exports import CHECKPOINT, STATISTICS
from manyhands.workloads.trajectories.spec import BatchSpec

_RENAMED = {"max_iterations": "max_turns"}
_NO_SETTINGS = ("self", "max_iterations", "callbacks", "settings")
"""Parameters that are no settings."""
LOGGER = logging.getLogger("manyhands")
WORDS = PythonWords(BatchSpec, {"resume": "run(resume=True)"})


class InvalidBatch(UserError, ValueError):
    """A setting or the dataset can't be used."""


class MissingDataset(UserError, FileNotFoundError):
    """There is no dataset at that path."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What to call while a batch runs."""

    on_progress: Callable[[Progress], None] | None = None
    """At most twice a second."""
    on_outcome: Callable[[Item, Outcome], None] | None = None
    """At every end of an item."""
    notice: Callable[[str], None] = LOGGER.warning
    """With lines that a person should see, as soon as they are known: rows that are skipped, tools that are missing, what an endpoint
    refuses, what is waited for. By default they are warnings of the logger ``manyhands``, which Python prints unless logging is set up
    otherwise."""


class BatchKeywords(TypedDict, total=False):
    """The options of ``manyhands batch`` that the original's ``BatchRunner`` does not have, so that an editor completes them. None is the
    default; ``BatchSpec`` says what each means."""

    max_turns: int | None
    """The same as ``max_iterations``, which it goes before."""
    max_concurrency: int | None
    on_end: str | None
    prompt_column: str | None
    system_column: str | None
    split: str | None
    agent: str | None
    distributions_file: str | os.PathLike[str] | None
    encoding: str | None
    delimiter: str | None
    header_row: int | None
    sheet: str | None
    sandbox: str | None
    network: bool | None
    sandbox_disk: float | None
    min_free: float | None
    mcp_config: str | os.PathLike[str] | None
    tools: Sequence[str | os.PathLike[str] | Callable[..., Any]] | None
    """Functions, or where they are, as ``--tools`` has it. One that other processes can't import needs ``executor="local"``."""
    sequential_tools: bool | None
    keep_workspaces: bool | None
    workspace: str | os.PathLike[str] | None
    project: str | os.PathLike[str] | None
    setup: str | None
    collect: str | None
    setup_timeout: float | None
    container_env: Sequence[str] | Mapping[str, str | None] | None
    user: str | None
    cwd: str | None
    cpus: float | None
    memory: float | None
    files_field: str | None
    setup_field: str | None
    env_field: str | None
    user_field: str | None
    cpus_field: str | None
    memory_field: str | None
    network_field: str | None
    reasoning_effort: str | None
    reasoning_disabled: bool | None
    implied_think: bool | None
    send_reasoning: str | None
    header: Sequence[str] | None
    stop: Sequence[str] | None
    tool_choice: str | None
    extra_body: dict[str, Any] | None
    seed: int | None
    temperature: float | None
    top_p: float | None
    simulated_latency: float | None
    prefill_messages_file: str | os.PathLike[str] | None
    concurrency: int | None
    executor: Literal["processes", "local", "ray"] | None
    ray_address: str | None
    ray_resources: dict[str, float] | None
    ray_listen: str | None
    samples: int | None
    grade: str | os.PathLike[str] | None
    min_score: float | None
    best_of: bool | None
    on_divergence: Literal["fresh", "stop"] | None
    override: Sequence[str] | None
    keep_unreasoned: bool | None
    keep_unknown_tools: bool | None
    keep_synthetic: bool | None
    batch_files: bool | None
    tags_in_values: Literal["escape", "discard", "keep"] | None
    system_template: str | os.PathLike[str] | None
    data_dir: str | os.PathLike[str] | None
    quiet: bool | None
    item_timeout: float | None
    call_timeout: float | None
    tool_timeout: float | None
    moa_models: Sequence[str] | None
    moa_aggregator: str | None
    vision_model: str | None
    vision_base_url: str | None
    image_provider: Literal["openai", "fal", "chat", "simulated"] | None
    image_model: str | None
    image_base_url: str | None
    image_quality: str | None
    browser_executable: str | None
    browser_cdp: str | None
    browser_contexts: int | None
    browser_resume: Literal["page", "attempt"] | None
    web_allow_private: bool | None
    web_search: Literal["firecrawl", "exa", "tavily", "brave", "searxng"] | None
    web_extract: Literal["firecrawl", "exa", "tavily", "direct"] | None
    ignore_robots: bool | None
    web_cache: str | os.PathLike[str] | None
    web_summary: str | None
    max_attempts: int | None
    max_cost: float | None
    max_total_tokens: int | None
    max_seconds: float | None
    prices: str | os.PathLike[str] | None
    timeout_multiplier: float | None
    override_task: bool | None
    end_processes: bool | None
    skip_invalid: bool | None
    agent_command: str | None
    task_env: Sequence[str] | Mapping[str, str | None] | None
    reward: str | None
    ssh_host: str | None
    ssh_user: str | None
    ssh_port: int | None
    ssh_key: str | os.PathLike[str] | None
    ssh_config: str | os.PathLike[str] | None
    ssh_dir: str | None
    network_allow: Sequence[str] | None
    image: str | None
    ignore_images: bool | None
    pull: Literal["missing", "always", "never"] | None
    image_cache: int | None
    container_runtime: str | None
    unenforced_limits: bool | None
    checkpoints: bool | None
    checkpoint_limit: int | None
    durable_worlds: bool | None
    image_field: str | None
    image_template: str | None
    skip_missing_images: bool | None
    id_field: str | None
    time_limit: float | None


class BatchRunner:
    """A trajectory batch.

    Takes the original's arguments, by position or name, and as keywords every other option of ``manyhands batch`` (``BatchSpec`` says
    what each means). What is None, or not given, is the command line's default. Nothing is made on disk before ``run``.

    Raises ValueError (as UserError) for a setting or a dataset that can't be used, FileNotFoundError for a missing dataset.
    """

    def __init__(
        self,
        dataset_file: str | os.PathLike[str],
        batch_size: int,
        run_name: str,
        distribution: str = "default",
        max_iterations: int = 10,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        num_workers: int | None = None,
        verbose: bool | None = None,
        ephemeral_system_prompt: str | None = None,
        log_prefix_chars: int | None = None,
        providers_allowed: Sequence[str] | None = None,
        providers_ignored: Sequence[str] | None = None,
        providers_order: Sequence[str] | None = None,
        provider_sort: str | None = None,
        max_tokens: int | None = None,
        reasoning_config: Mapping[str, Any] | None = None,
        prefill_messages: Sequence[Mapping[str, Any]] | None = None,
        max_samples: int | None = None,
        *,
        callbacks: Callbacks | None = None,
        **settings: Unpack[BatchKeywords],
    ) -> None:
        given = {**locals(), **settings}  # the parameters have the names of the settings
        values: dict[str, Any] = {
            "max_turns": max_iterations,
            "max_samples": None,  # said explicitly: without it, a resume is for the whole dataset
            **{name: value for name, value in given.items() if name not in _NO_SETTINGS and value is not None},
            "dataset_file": os.fspath(dataset_file),
        }
        tools, others = _sources(values.pop("tools", None) or ())
        if not Path(values["dataset_file"]).exists():
            raise MissingDataset(f"there is no dataset at {values['dataset_file']}")
        try:
            self.spec = BatchSpec.make({**values, "tools": tools} if tools else values)
            if others and self.spec.executor != "local":
                raise UserError(
                    f"tools: worker processes can't import {others[0]}; define it in a module of its own, or say --executor=local"
                )
            check_usable(self.spec.dataset_file, **self.spec.how_read())
            if (
                self.spec.mcp_config is None and self.spec.tools is None
            ):  # with them, toolsets are known when the run is opened
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
        rows = (row for row in self._rows() if not isinstance(row, BadRow))
        return [{**row.content(), "id": row.id, **row.source} for row in rows]

    def _rows(self) -> Iterator[Row | BadRow]:
        return read_rows(self.spec.dataset_file, **self.spec.how_read())

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


def _sources(tools: Any) -> tuple[list[str], list[str]]:
    """Where tools are, as ``--tools`` has it; and the sources of those among them that other processes can't import."""
    if not tools:
        return [], []
    from manyhands.tools.own_functions import source_of  # rarely needed

    alone = isinstance(tools, (str, os.PathLike)) or callable(tools)
    try:
        found = [source_of(each) for each in ([tools] if alone else tools)]
    except UserError as error:
        raise InvalidBatch(str(error)) from None
    return [source for source, _ in found], [source for source, is_importable in found if not is_importable]


async def run_batch(
    options: BatchSpec,
    *,
    resume: bool,
    callbacks: Callbacks,
    controls: Controls | None = None,
    environ: Mapping[str, str] = os.environ,
) -> RunResult:
    """Open a batch, new or to be resumed, and execute it. All that is said names parameters of ``BatchRunner``."""
    notes = Notes(lambda text: callbacks.notice(text))

    def tell(text: str) -> None:
        notes(WORDS.text(text))

    with WORDS.errors():
        session = await open_batch(options, resume=resume, notice=tell, environ=environ)
        result = await execute_run(
            session,
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
