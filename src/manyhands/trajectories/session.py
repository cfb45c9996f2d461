"""From settings to a run that can be performed: made anew, continued, or adopted from the original program."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyhands import __version__
from manyhands.core.errors import RunError
from manyhands.engine.run import create_run, is_made, open_reader
from manyhands.models.factory import is_simulated, require_key, resolve_api_key
from manyhands.models.pricing import PriceTable, load_price_table
from manyhands.sandboxes.selection import choose_backend
from manyhands.tools.distributions import availability_notice
from manyhands.trajectories.items import Adoption
from manyhands.trajectories.offer import ToolOffer
from manyhands.trajectories.original import is_left_by_original, set_aside
from manyhands.trajectories.prepared import BAD_ROWS_KEPT, Prepared, dataset_identity, keep_files, prepare
from manyhands.trajectories.quality import NO_REASONING, UNKNOWN_TOOL
from manyhands.trajectories.spec import BatchSpec, resume_spec
from manyhands.trajectories.workload import API_KEY, TrajectoryWorkload

BAD_ROWS_SHOWN = 20
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Session:
    """A run folder and its workload, ready for ``perform_run``."""

    folder: Path
    workload: TrajectoryWorkload
    spec_changed: bool = False
    rewrite_outputs: bool = False
    judge_again: tuple[str, ...] = ()
    """Reasons for which trajectories were discarded that are none any more."""


async def open_batch(options: BatchSpec, *, resume: bool, notice: Notice, environ: Mapping[str, str]) -> Session:
    """Make or continue the run that the settings name.

    Everything that can be wrong is found before anything is made. Raises UserError, RunError if the name is taken (or settings changed),
    StorageError.
    """
    options = options.resolved()
    folder = options.run_folder
    if is_made(folder):
        _refuse_unless(resume, folder, options, "a run of this name exists already")
        return await _continued(folder, options, notice, environ)
    original = is_left_by_original(folder)
    if original:
        _refuse_unless(resume, folder, options, "the folder holds results of the original batch runner")
    return await _made(folder, options, notice, environ, adopt=original)


async def _made(
    folder: Path, options: BatchSpec, notice: Notice, environ: Mapping[str, str], *, adopt: bool
) -> Session:
    key = usable_key(options, environ)
    check_prices(options)
    warn_of_unpriced(options, notice)
    prepared = await prepare(options)
    check_sandbox(options, prepared, notice)
    _tell(prepared, notice)
    kept = set_aside(folder) if adopt else None
    workload = _workload(prepared, folder, key)
    create_run(folder, workload.name, workload, version=__version__, notice=notice)
    keep_files(options, folder)
    if kept is not None:
        _tell_adoption(workload.adoption, kept, notice)
    return Session(folder, workload)


async def _continued(folder: Path, given: BatchSpec, notice: Notice, environ: Mapping[str, str]) -> Session:
    reader = open_reader(folder)
    try:
        spec, planned = reader.meta("spec"), reader.meta("planned")
    finally:
        reader.close()
    recorded = Prepared.from_json(spec, folder.parent)
    options = resume_spec(recorded.options, given)
    key = usable_key(options, environ)
    check_prices(options)
    warn_of_unpriced(options, notice)
    if options.max_samples != recorded.options.max_samples:
        notice(f"max_samples was {_count(recorded.options.max_samples)} and is now {_count(options.max_samples)}")
    same_input = planned is not None and dataset_identity(options) in (None, planned["identity"])
    tools_changed = _tools_of(options) != _tools_of(recorded.options)
    if same_input and not tools_changed:
        prepared = replace(recorded, options=options)
    else:
        prepared = await prepare(options, recorded=None if tools_changed else recorded)
        prepared = replace(prepared, tools=tuple(sorted({*prepared.tools, *recorded.tools})))
        _tell(prepared, notice)
    check_sandbox(options, prepared, notice)
    keep_files(options, folder)
    workload = _workload(prepared, folder, key)
    return Session(
        folder,
        workload,
        spec_changed=workload.spec != spec,
        rewrite_outputs=_shape(prepared) != _shape(recorded),
        judge_again=_kept_now(recorded.options, options),
    )


def usable_key(options: BatchSpec, environ: Mapping[str, str]) -> str | None:
    """The key for the endpoint. Raises UserError, naming what to do, if the endpoint needs one and there is none."""
    if is_simulated(options.model, options.base_url):
        return None
    explicit = options.api_key.get_secret_value() if options.api_key else None
    key = resolve_api_key(explicit, options.base_url, environ)
    require_key(options.base_url, key)
    return key


def check_prices(options: BatchSpec) -> None:
    """Raises UserError, naming file, line and field, for a price table that can't be used."""
    if options.prices is not None and Path(options.prices).exists():  # a copy is kept, so it may be gone on a resume
        load_price_table(options.prices)


def warn_of_unpriced(options: BatchSpec, notice: Notice) -> None:
    """Say so if a budget in dollars can't hold back the next call, because nobody knows what that costs."""
    if options.max_cost is None or is_simulated(options.model):
        return
    named = options.prices if options.prices is not None and Path(options.prices).exists() else None
    table = load_price_table(named) if named is not None else PriceTable()
    if table.price(options.model) is None:
        notice(
            f"no price is known for {options.model}, so --max_cost counts only what the endpoint itself says that calls cost; "
            "give --prices FILE, or --max_total_tokens"
        )


def check_sandbox(options: BatchSpec, prepared: Prepared, notice: Notice) -> None:
    """Raises UserError if the sandbox can't be used on this machine, or can't give rows the image that they ask for."""
    choose_backend(options.sandbox, asks_for_image=prepared.images > 0)
    if prepared.images:
        notice(f"{prepared.images} rows ask for a container image, which the {options.sandbox} sandbox ignores")


def _workload(prepared: Prepared, folder: Path, key: str | None) -> TrajectoryWorkload:
    workload = TrajectoryWorkload(prepared.to_json(), folder)
    if key is not None:
        workload.set_secrets({API_KEY: key})
    return workload


def _refuse_unless(resume: bool, folder: Path, options: BatchSpec, why: str) -> None:
    if not resume:
        raise RunError(
            f"{folder}: {why}; continue it with --resume, or start another with --run_name={shlex.quote(options.run_name + '-2')}"
        )


def _tell(prepared: Prepared, notice: Notice) -> None:
    for number, reason in prepared.bad_rows[:BAD_ROWS_SHOWN]:
        notice(f"{prepared.options.dataset_file}, line {number}: {reason}; the row is skipped")
    if prepared.bad_count > BAD_ROWS_SHOWN:
        listed = "them" if prepared.bad_count <= BAD_ROWS_KEPT else f"the first {BAD_ROWS_KEPT:,}"
        notice(f"… and {prepared.bad_count - BAD_ROWS_SHOWN} more rows are skipped (failures.jsonl lists {listed})")
    offer = ToolOffer.recorded(prepared)
    for line in offer.registry.notices:
        notice(line)
    for line in availability_notice(prepared.distribution, offer.registry, offer.toolsets):
        notice(line)


def _tell_adoption(adoption: Adoption, kept: Path, notice: Notice) -> None:
    notice(
        f"taken over from the original program: {adoption.finished} finished and {adoption.discarded} discarded prompts; "
        f"its files are kept in {kept}"
    )
    if adoption.cut_off:
        notice(
            f"{adoption.cut_off} of the finished ones end on a tool's answer: a model call failed there, but they were saved"
        )
    for problem in adoption.problems:
        notice(f"{problem}; it is not taken over")
    if adoption.problem_count > len(adoption.problems):
        notice(f"… and {adoption.problem_count - len(adoption.problems)} more lines that can't be used")
    if adoption.left_out_count:
        more = ", …" if adoption.left_out_count > len(adoption.left_out) else ""
        places = ", ".join(adoption.left_out) + more
        notice(f"{adoption.left_out_count} finished lines belong to no row of the dataset and are left out: {places}")


def _shape(prepared: Prepared) -> tuple[Any, ...]:
    """What all output lines depend on. If it changes, those that were written already no longer go with new ones."""
    options = prepared.options
    wording = (options.system_template_text, options.keep_synthetic)
    return (prepared.source_fields, prepared.tools, options.batch_size, wording)


def _kept_now(before: BatchSpec, now: BatchSpec) -> tuple[str, ...]:
    kept = (
        (NO_REASONING, now.keep_unreasoned and not before.keep_unreasoned),
        (UNKNOWN_TOOL, now.keep_unknown_tools and not before.keep_unknown_tools),
    )
    return tuple(reason for reason, is_kept in kept if is_kept)


def _count(samples: int | None) -> str:
    return "all" if samples is None else str(samples)


def _tools_of(options: BatchSpec) -> tuple[str | None, ...]:
    return (options.distribution, options.distributions_file, options.mcp_config)
