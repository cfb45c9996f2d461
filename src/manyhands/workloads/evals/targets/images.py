"""The container images of targets whose agents work in one: looked up before a run is made or continued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.lifecycle.planning import planned_images
from manyhands.sandboxes.settings import SandboxSettings
from manyhands.workloads.evals.targets.checks import TargetCheck
from manyhands.workloads.evals.targets.definitions import Target, identity


def sandboxes_of_targets(
    targets: Iterable[Target], here: Path, environ: Mapping[str, str], recorded: Mapping[str, Pins]
) -> Iterator[tuple[SandboxSettings, Pins]]:
    """The settings of targets' sandboxes, and what their images mean; without the settings of targets that can't be used now. ``here``,
    ``recorded``: as of ``images_of_targets``."""
    check = TargetCheck(SearchPath.of(here), environ)
    for target in targets:
        pins = recorded.get(identity(target), NO_PINS)
        settings = check.settings(target, Findings()) if target.kind == "agent" else None
        options = None if settings is None else settings.sandbox_settings
        yield options or SandboxSettings(), pins


async def images_of_targets(
    targets: Iterable[Target],
    here: Path,
    environ: Mapping[str, str],
    notice: Notice,
    recorded: Mapping[str, Pins] | None = None,
    *,
    demands: Mapping[str, ImageDemand] | None = None,
    skip_invalid: bool = False,
) -> dict[str, Pins]:
    """What the images of targets mean, by what identifies each target. ``here``: the folder where the evaluation was given; ``recorded``:
    what an earlier session of the run found, which stays so; ``demands``: what the tests need that targets answer, by what
    identifies each target; ``skip_invalid``: whether tests are to be left out whose image does not exist, or can't be built.

    Raises UserError, with the location of the target, for an image that does not exist and a sandbox that can't be used.
    """
    check, findings = TargetCheck(SearchPath.of(here), environ), Findings()
    found: dict[str, Pins] = dict(recorded or {})
    for target in targets:
        settings = check.settings(target, findings)
        demand = (demands or {}).get(identity(target))
        if settings is not None and demand is not None:
            options = settings.sandbox_settings
            if options is None:
                raise target.location.error(
                    f"a target of kind {target.kind} can't do task folders: only agents and models can"
                )
            needed = demand.references
        else:
            options, demand = None if settings is None else settings.image_settings, ImageDemand(unnamed=1)
            if options is None or options.image is None:
                continue
            needed = [options.image]
        pins = (recorded or {}).get(identity(target), NO_PINS)
        try:
            found[identity(target)] = await planned_images(
                options,
                demand,
                notice,
                recorded=pins,
                needed=needed,
                skip_missing=skip_invalid,
                skip_unbuilt=skip_invalid,
            )
        except UserError as error:
            raise target.location.error(str(error)) from None
    return found
