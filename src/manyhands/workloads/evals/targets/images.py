"""The container images of targets whose agents work in one: looked up before a run is made or continued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from manyhands.core.errors import UserError
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import ImageDemand
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.worlds.planning import planned_images
from manyhands.workloads.evals.targets.checks import TargetCheck
from manyhands.workloads.evals.targets.definitions import Target, identity


async def images_of_targets(
    targets: Iterable[Target],
    here: Path,
    environ: Mapping[str, str],
    notice: Notice,
    recorded: Mapping[str, Pins] | None = None,
) -> dict[str, Pins]:
    """What the images of targets mean, by what identifies each target. ``here``: the folder where the evaluation was given; ``recorded``:
    what an earlier session of the run found, which stays so.

    Raises UserError, with the location of the target, for an image that does not exist and a sandbox that can't be used.
    """
    check, findings = TargetCheck(SearchPath.of(here), environ), Findings()
    found: dict[str, Pins] = dict(recorded or {})
    for target in targets:
        settings = check.settings(target, findings)
        options = None if settings is None else settings.image_settings
        if options is None or options.image is None:
            continue
        pins = (recorded or {}).get(identity(target), NO_PINS)
        try:
            found[identity(target)] = await planned_images(
                options, ImageDemand(unnamed=1), notice, recorded=pins, needed=[options.image]
            )
        except UserError as error:
            raise target.location.error(str(error)) from None
    return found
