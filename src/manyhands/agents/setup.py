"""Before a run of agents is made or continued: its key, prices and sandbox are checked, and what it needs later is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from manyhands.agents.options import AgentOptions, RunOptions
from manyhands.engine.files import written_aside
from manyhands.engine.workload import Execution
from manyhands.models.factory import is_simulated, require_key, resolve_api_key
from manyhands.models.pricing import PriceTable, bounded_answer, load_price_table
from manyhands.sandboxes.selection import choose_backend

API_KEY = "api_key"
"""The name of the endpoint's key among a workload's secrets."""
KEPT = "settings"
"""The folder in the run folder that holds copies of files that the settings name."""
Notice = Callable[[str], None]


def usable_key(options: AgentOptions, environ: Mapping[str, str]) -> str | None:
    """The key for the endpoint. Raises UserError, naming what to do, if the endpoint needs one and there is none."""
    if is_simulated(options.model, options.base_url):
        return None
    explicit = options.api_key.get_secret_value() if options.api_key else None
    key = resolve_api_key(explicit, options.base_url, environ)
    require_key(options.base_url, key)
    return key


def check_prices(options: RunOptions) -> None:
    """Raises UserError, naming file, line and field, for a price table that can't be used."""
    if options.prices is not None and Path(options.prices).exists():  # a copy is kept, so it may be gone on a resume
        load_price_table(options.prices)


def warn_of_unpriced(options: AgentOptions, notice: Notice) -> None:
    """Say so if a budget in dollars can't hold back the next call, because nobody knows what that costs."""
    if options.max_cost is None or is_simulated(options.model):
        return
    named = options.prices if options.prices is not None and Path(options.prices).exists() else None
    table = load_price_table(named) if named is not None else PriceTable()
    if table.price(options.model) is None:
        notice(
            f"no price is known for {options.model}, so --max_cost counts only what the endpoint itself says that calls cost: "
            "one call may pass it, and the first one without a cost ends the run; give --prices FILE, or --max_total_tokens"
        )


def tell_bound(options: AgentOptions, notice: Notice) -> None:
    """Say so if answers are bounded only because the run has a budget."""
    if options.bounded and options.max_tokens is None and not is_simulated(options.model, options.base_url):
        notice(
            f"so that the budget holds, an answer of {options.model} has at most {bounded_answer(options.model):,} tokens; "
            "--max_tokens sets another bound, as a small context window needs"
        )


def check_sandbox(options: AgentOptions, notice: Notice, *, images: int = 0) -> None:
    """Raises UserError if the sandbox can't be used on this machine, or can't give items the image that they ask for.
    ``images``: how many of them ask for one."""
    choose_backend(options.sandbox, asks_for_image=images > 0)
    if images:
        notice(f"{images} rows ask for a container image, which the {options.sandbox} sandbox ignores")


def execution_of(options: AgentOptions, *, workers: int, concurrency: int, item_timeout: float | None) -> Execution:
    """How the engine performs the run; the arguments are what each workload has its own settings for."""
    return Execution(
        executor=options.executor,
        workers=workers,
        concurrency=concurrency,
        max_attempts=options.max_attempts,
        item_timeout=item_timeout,
        max_cost=options.max_cost,
        max_total_tokens=options.max_total_tokens,
        max_seconds=options.max_seconds,
        keep_workspaces=options.keep_workspaces,
        on_divergence=options.on_divergence,
        seed=options.seed or 0,
    )


def keep_files(options: RunOptions, run_folder: Path) -> None:
    """Copy into the run folder what performing the run needs besides the recorded settings."""
    if options.prices is None or not Path(options.prices).exists():
        return
    target = kept_file(run_folder, options.prices)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_aside(target) as handle:
        handle.write(Path(options.prices).read_text(encoding="utf-8"))


def kept_file(run_folder: Path, named: str) -> Path:
    """Where the copy of a named file is."""
    return run_folder / KEPT / Path(named).name
