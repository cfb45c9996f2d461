"""Before a run is made or continued: which engine takes its images, whether all of them exist, and what their names mean.

Whatever is wrong is one line for the person, before any model is called and before anything is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from manyhands.core.errors import ItemError, UserError
from manyhands.core.text import counted
from manyhands.runs.progress import Notice
from manyhands.sandboxes.images.demand import SHOWN, ImageDemand
from manyhands.sandboxes.images.lookup import LookedUp, look_up
from manyhands.sandboxes.images.pins import NO_PINS, Pins
from manyhands.sandboxes.images.store import Image, ImageStore
from manyhands.sandboxes.images.templates import names_file
from manyhands.sandboxes.kinds import AUTO, Kind, check_network, kind_named, names, part_of
from manyhands.sandboxes.lifecycle.building import built_images
from manyhands.sandboxes.remote.driver import Driver, Enterable
from manyhands.sandboxes.selection import check_backend
from manyhands.sandboxes.settings import SandboxSettings

ENGINES = ("docker", "podman")
"""What ``auto`` takes for items with an image: the first that answers."""
_LACKING = ("does not exist", "is not here, and --pull is never")
ANSWER_SECONDS = 15.0
"""That an engine has to say that it is there."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A kind of sandboxes that are made of images, ready to be asked."""

    name: str
    kind: Kind
    driver: Driver | None
    store: ImageStore | None


async def planned_images(
    options: SandboxSettings,
    demand: ImageDemand,
    notice: Notice,
    *,
    recorded: Pins = NO_PINS,
    needed: Collection[str] | None = None,
    skip_missing: bool = False,
    skip_unbuilt: bool = False,
    build_logs: Path | None = None,
) -> Pins:
    """What the images of a run mean. ``demand``: those that its rows name, and which do; ``recorded``: what an earlier session of the run
    found, which stays so; ``needed``: the names of these that items still need (None: all); ``skip_missing``: rows whose image does not
    exist are to be left out, as ``Pins.missing`` says; ``skip_unbuilt``: the same of images that can't be built; ``build_logs``: a folder
    for what builds print.

    Raises UserError, in one line, if the sandbox can't be used on this machine, can't be made of images, or an image does not exist.
    """
    named = demand.count()
    if options.ignore_images:
        if named:
            notice(f"{demand.counted()} with a container image, which is ignored (--ignore_images)")
        if options.image is None:
            check_backend(options)
            return NO_PINS
        demand, named = ImageDemand(demand.unit, noun=demand.noun, unnamed=demand.unnamed + named), 0
    by_default = options.image if demand.unnamed or not named else None
    without = demand.unnamed > 0 or not named
    if without and by_default is None and not needs_no_image(options.sandbox):
        _check_plain(options)
        if not named:
            return recorded
    references = [*demand.references, *([by_default] if by_default else [])]
    _check_files(options, references)
    async with opened_engine(options, demand, prefer=recorded.kind) as engine:
        await _check_limits(options, engine)
        recorded = await _without_gone(engine, demand, recorded)
        unbuilt = await built_images(
            engine.name, engine.store, demand, notice, build_logs, known=recorded.images, skip=skip_unbuilt
        )
        references = [each for each in references if each not in unbuilt]
        pins = await _pinned(options, demand, notice, engine, references, recorded, needed, skip_missing)
        return replace(pins, missing=(*pins.missing, *unbuilt))


@asynccontextmanager
async def opened_engine(
    options: SandboxSettings, demand: ImageDemand, *, prefer: str | None = None
) -> AsyncIterator[Engine]:
    """The engine that takes a run's images. ``prefer``: the name of the one to be asked first. Raises UserError if there is none."""
    candidates = [name for name in ENGINES if name in names()] if options.sandbox == AUTO else [options.sandbox]
    if prefer in candidates:
        candidates.remove(prefer)
        candidates.insert(0, prefer)
    problems: list[str] = []
    for name in candidates:
        kind = kind_named(name)
        if not kind.takes_images:
            raise _takes_none(name, demand)
        check_network(name, kind, options)
        try:
            engine = await _answering(name, kind, options)
        except UserError as error:
            if options.sandbox != AUTO:
                raise
            problems.append(str(error).removeprefix("--sandbox "))
            continue
        try:
            yield engine
        finally:
            await close_engine(engine)
        return
    wanted = f"{demand.counted()} with a container image" if demand.count() else "--image"
    raise UserError(
        f"{wanted}: no container engine can be used ({'; '.join(problems) or 'there is none in this version'}); "
        "--ignore_images goes on without images"
    )


async def close_engine(engine: Engine) -> None:
    """Close the connections to an engine."""
    if engine.store is not None:
        await engine.store.close()
    if engine.driver is not None:
        await engine.driver.close()


async def _answering(name: str, kind: Kind, options: SandboxSettings) -> Engine:
    """The engine of that name. Raises UserError if it can't be used, or does not answer."""
    driver: Driver | None = None if kind.driver is None else part_of(name, kind.driver, options)
    asked = driver if driver is not None or kind.backend is None else part_of(name, kind.backend, options)
    problem = None if asked is None else asked.unavailable()
    if problem is None and options.network_allow is not None and isinstance(driver, Enterable):
        problem = driver.why_not_entered()
    if problem is None and driver is not None:
        problem = await _silent(driver)
    if problem is not None:
        if driver is not None:
            await driver.close()
        raise UserError(f"--sandbox {name}: {problem}")
    store: ImageStore | None = None if kind.images is None else part_of(name, kind.images, options)
    return Engine(name, kind, driver, store)


async def _silent(driver: Driver) -> str | None:
    """Why an engine does not answer; None if it does."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await driver.identity()
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    except ItemError as error:
        return error.message
    return None


async def _check_limits(options: SandboxSettings, engine: Engine) -> None:
    """Raises UserError for limits that the engine can't keep worlds to, unless that is accepted."""
    if engine.driver is None or options.unenforced_limits:
        return
    try:
        lacking = await engine.driver.unenforced()
    except ItemError as error:
        raise UserError(f"--sandbox {engine.name}: {error.message}") from error
    if lacking:
        raise UserError(
            f"--sandbox {engine.name}: this engine can't enforce the limits of {', '.join(map(_spelled, lacking))}; "
            "--unenforced_limits goes on without these"
        )


def _spelled(limit: str) -> str:
    return limit.replace("_", " ")


async def _pinned(
    options: SandboxSettings,
    demand: ImageDemand,
    notice: Notice,
    engine: Engine,
    references: Collection[str],
    recorded: Pins,
    needed: Collection[str] | None,
    skip_missing: bool,
) -> Pins:
    if engine.store is None:
        return Pins(engine.name, {each: Image(each, each) for each in references})
    known = dict(recorded.images)
    new = [each for each in references if each not in known]
    answers = await look_up(engine.store, new, newest=options.pull == "always", pulled=options.pull == "never")
    if answers.problems:
        raise _unanswered(demand, answers)
    missing = [*answers.missing]
    if options.pull == "never":
        missing += [each for each, image in answers.found.items() if not image.present]
    if missing and (not skip_missing or options.image in missing):
        raise _missing(demand, missing, never=options.pull == "never")
    await _check_recorded(
        engine,
        {each: image for each, image in known.items() if needed is None or each in needed},
        pulled=options.pull == "never",
    )
    if missing:
        rows = demand.count(missing)
        notice(
            f"{demand.counted(missing)} whose image {_LACKING[options.pull == 'never']} {'is' if rows == 1 else 'are'} skipped: "
            f"{demand.listed(missing)}"
        )
    found = {each: image for each, image in answers.found.items() if each not in missing}
    _say_size(found.values(), notice)
    return Pins(engine.name, {**known, **found}, tuple(dict.fromkeys(missing)))


async def _without_gone(engine: Engine, demand: ImageDemand, recorded: Pins) -> Pins:
    """Without the images that are gone and that can be built again. Raises UserError if the engine does not say whether they are there."""
    known = [tag for tag in demand.builds if tag in recorded.images]
    if engine.store is None or not known:
        return recorded
    try:
        gone = {tag for tag in known if not await engine.store.present(recorded.images[tag].pin)}
    except ItemError as error:
        raise UserError(f"--sandbox {engine.name}: {error.message}") from error
    return replace(recorded, images={tag: image for tag, image in recorded.images.items() if tag not in gone})


async def _check_recorded(engine: Engine, images: dict[str, Image], *, pulled: bool) -> None:
    """Raises UserError for pinned images that are gone, here and at their registries."""
    assert engine.store is not None
    pins = {image.pin: reference for reference, image in images.items()}
    answers = await look_up(engine.store, pins, pulled=pulled)
    gone = [pins[pin] for pin in (*answers.missing, *answers.problems)]
    if gone:
        details = next(iter(answers.problems.values()), None)
        named = ", ".join(f"{each} ({images[each].pin})" for each in gone[:SHOWN])
        raise UserError(
            f"the run's own image{'s are' if len(gone) > 1 else ' is'} gone, and can't be pulled any more: {named}"
            f"{', …' if len(gone) > SHOWN else ''}{f' ({details})' if details else ''}; its unfinished items can't go on without"
        )


def _say_size(images: Collection[Image], notice: Notice) -> None:
    absent = {image.pin: image.size for image in images if not image.present}
    if absent:
        size = sum(size or 0 for size in absent.values())
        said = f" ({size / 1e9:.1f} GB)" if size else ""
        notice(f"{counted(len(absent), 'image')}{said} will be pulled when first needed")


def _takes_none(name: str, demand: ImageDemand) -> UserError:
    named = (
        f"{demand.counted()} with a container image: {demand.listed(demand.references)}"
        if demand.count()
        else "--image"
    )
    return UserError(
        f"--sandbox {name} can't be made of images, and there are {named}; leave --sandbox out, or give --ignore_images"
        if demand.count()
        else f"--image: --sandbox {name} can't be made of images; leave --sandbox out"
    )


def _missing(demand: ImageDemand, missing: Collection[str], *, never: bool) -> UserError:
    what = _LACKING[never]
    named = (
        f"{demand.counted(missing)} whose image {what}" if demand.count(missing) else f"--image: an image that {what}"
    )
    remedy = _skipping(demand, missing)
    return UserError(f"{named}: {demand.listed(missing)}{f'; {remedy}' if remedy else ''}")


def _skipping(demand: ImageDemand, references: Collection[str]) -> str:
    """What leaves out the rows that name these; empty if none does."""
    return f"{demand.skip} leaves such {demand.noun}s out" if demand.count(references) else ""


def _unanswered(demand: ImageDemand, answers: LookedUp) -> UserError:
    name, problem = next(iter(answers.problems.items()))
    more = f" (and {len(answers.problems) - 1} more)" if len(answers.problems) > 1 else ""
    remedy = _skipping(demand, [name])
    return UserError(
        f"the image {demand.listed([name])} can't be looked up: {problem}{more}; "
        f"with --pull never, images that are not here are missing{f', and {remedy}' if remedy else ''}"
    )


def needs_no_image(sandbox: str) -> bool:
    """Whether the sandboxes of a kind are made by a driver that has an image of its own."""
    if sandbox == AUTO:
        return False
    kind = kind_named(sandbox)
    return kind.driver is not None and kind.backend is None and kind.unpinned


def _check_files(options: SandboxSettings, references: Collection[str]) -> None:
    """Raises UserError for an image that is a file of this machine, where engines are asked for images by name."""
    named = next((each for each in references if names_file(each)), None)
    if named is not None and options.sandbox in (AUTO, *ENGINES):
        raise UserError(
            f"the image {named} is a file, which --sandbox bubblewrap takes, and {options.sandbox} does not"
        )


def _check_plain(options: SandboxSettings) -> None:
    """Raises UserError if items without an image can't be executed."""
    if options.sandbox in ENGINES:
        raise UserError(f"--sandbox {options.sandbox}: some items name no image; --image names one for them")
    check_backend(options)
