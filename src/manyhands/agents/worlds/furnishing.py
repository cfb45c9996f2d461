"""Files, setup and environment of items' worlds, and what is collected from these in the end: the same for every kind of run.

``Furnishing`` is what a run gives all of them, ``Furnished`` what one item gets. Whatever changes a world is a step (see
``recorded_commands``), so that what a crash cuts off is undone and done again, and nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from manyhands.agents.worlds.item_world import ItemWorld
from manyhands.agents.worlds.recorded_commands import MAX_OUTPUT, CommandRecord, must_succeed, recorded_command
from manyhands.agents.worlds.row_fields import fields_named
from manyhands.agents.worlds.settings import ENVIRONMENT, RowWorldSettings, WorldSettings, environment_of
from manyhands.agents.worlds.templates import MAX_BYTES, packed_template, read_template
from manyhands.agents.worlds.world import World
from manyhands.core.digests import digest
from manyhands.core.errors import ItemError, ToolError, UserError
from manyhands.core.failures import Cause
from manyhands.core.jsonio import Json, line, loads
from manyhands.core.redaction import protect
from manyhands.engine.contract import Context, Effect
from manyhands.io.locations import Location
from manyhands.network.rules import public_alone, tightened
from manyhands.processes.templates import CommandTemplate
from manyhands.sandboxes.files.packing import Packer
from manyhands.sandboxes.kinds import AUTO
from manyhands.sandboxes.project import PROJECT, project_note
from manyhands.sandboxes.protocol import Sandbox, SandboxLimits, SandboxRequest

OptionsT = TypeVar("OptionsT", bound=WorldSettings)
FURNISH = "furnish"
"""The kind of the step that copies files into a world."""
SETUP, COLLECT = "setup", "collect"
"""Scopes of the steps before and after a conversation."""
_LOCAL, _PLAIN = "local", "bubblewrap"
"""Kinds of sandboxes: without protection, and what ``auto`` is for items without an image."""


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What a run gives the worlds of its items."""

    limits: SandboxLimits = field(default_factory=SandboxLimits)
    """The most that an item may have."""
    sandbox: str = "auto"
    """The value of ``--sandbox``."""
    ignore_images: bool = False
    """Whether the images that items name mean nothing."""
    template: tuple[Path, str] | None = None
    """A folder that is copied into workspaces, and its digest."""
    setup: str | None = None
    collect: str | None = None
    timeout: float = 600.0
    """Seconds for each command."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    user: str | None = None
    cwd: str | None = None
    project: Path | None = None
    hidden: tuple[Path, ...] = ()
    """As in ``SandboxRequest``."""

    @classmethod
    def of(
        cls,
        options: WorldSettings,
        limits: SandboxLimits,
        secrets: Mapping[str, str],
        *,
        hidden: tuple[Path, ...] = (),
    ) -> Furnishing:
        """What a run's settings say. ``secrets``: the workload's (see ``as_secret``)."""
        template = options.workspace, options.workspace_digest
        return cls(
            limits=limits,
            sandbox=options.sandbox,
            ignore_images=options.ignore_images,
            template=None if template[0] is None else (Path(template[0]), template[1] or ""),
            setup=options.setup,
            collect=options.collect,
            timeout=options.setup_timeout,
            environment=environment_of(options.container_env, secret_environment(secrets)),
            user=options.user,
            cwd=options.cwd,
            project=None if options.project is None else Path(options.project),
            hidden=hidden,
        )

    @property
    def needs_sandbox(self) -> bool:
        """Whether every item needs a sandbox, whatever its agent does."""
        return self.template is not None or self.setup is not None or self.collect is not None

    def for_item(self, item: ItemWorld, fields: Mapping[str, Json] | None = None) -> Furnished:
        """What one item gets. ``fields``: of its row, for commands that name some."""
        return Furnished(self, item, fields or {})

    @property
    def starts_in_workspace(self) -> bool:
        """Whether commands start in the workspace although there is a project: what is copied there is to be worked on."""
        return self.cwd is None and self.project is not None and self.template is not None


@dataclass(frozen=True, slots=True)
class Furnished:
    """What one item's world is made of, and given."""

    run: Furnishing
    item: ItemWorld
    fields: Mapping[str, Json]

    @property
    def needs_sandbox(self) -> bool:
        """Whether there is anything to do in the sandbox before or after the conversation."""
        return self.run.needs_sandbox or bool(self.item.files) or self.item.setup is not None

    def request(self, folder: Path, run_mark: str, name: str | None = None) -> SandboxRequest:
        """What to make. ``folder``, ``run_mark``, ``name``: as ``folder``, ``run_id``, ``name`` of a ``SandboxRequest``."""
        run, item = self.run, self.item
        return SandboxRequest(
            folder,
            run_mark,
            name,
            image=None if run.ignore_images else item.image,
            cwd=item.cwd or run.cwd or ("." if run.starts_in_workspace else None),
            user=item.user or run.user,
            environment={**item.environment, **run.environment},
            limits=self._limits(),
            project=run.project,
            hidden=run.hidden,
        )

    async def prepare(self, context: Context, world: World, *, used: bool = True) -> None:
        """Give the world what belongs into it, before the first turn, and see that commands can start in it where the item says, if it is
        to be ``used``. Raises ItemError(INVALID_INPUT) for a file that can't be written, a setup command that fails, and a ``cwd`` or user
        that is not there, UserError for a template that is not what it was, and what ``World.sandbox`` raises."""
        await self._fill(context, world)
        if used and self._starts_elsewhere and not context.resumed:
            await world.prove()

    @property
    def _starts_elsewhere(self) -> bool:
        return any(each is not None for each in (self.item.cwd, self.run.cwd, self.item.user, self.run.user))

    async def _fill(self, context: Context, world: World) -> None:
        commands = [] if self.run.setup is None else [self._filled(self.run.setup, "--setup")]
        commands += [] if self.item.setup is None else [self.item.setup]
        if self.run.template is None and not self.item.files and not commands:
            return
        scope = context.scope(SETUP)
        if self.run.template is not None or self.item.files:
            await self._place(scope, world)
        for command in commands:
            check = must_succeed("the setup command")
            await recorded_command(scope, world, command, timeout=self.run.timeout, max_output=20_000, check=check)
        await world.end_step()  # a model is called next, beside which there is time to remember this

    async def collect(self, context: Context, world: World) -> CommandRecord | None:
        """What the run's command gives at the end; None if there is none. That it failed is part of the record."""
        if self.run.collect is None:
            return None
        command = self._filled(self.run.collect, "--collect")
        return await recorded_command(
            context.scope(COLLECT),
            world,
            command,
            timeout=self.run.timeout,
            max_output=MAX_OUTPUT,
            output_alone=True,
        )

    def _limits(self) -> SandboxLimits:
        """An item can ask for less than its run allows, and never for more."""
        allowed, item = self.run.limits, self.item
        network, hosts = self._network()
        return replace(
            allowed,
            memory=min(allowed.memory, item.memory or allowed.memory),
            cpus=item.cpus if allowed.cpus is None else min(allowed.cpus, item.cpus or allowed.cpus),
            network=network,
            network_allow=hosts,
        )

    def _network(self) -> tuple[bool, tuple[str, ...]]:
        """Whether there is a network, and the hosts that can be reached without one."""
        allowed, asked = self.run.limits, self.item.network
        if asked is False:
            return False, ()
        if asked is None or asked is True:
            return allowed.network, allowed.network_allow
        # A row's author knows nothing of addresses around this machine.
        return False, public_alone(asked) if allowed.network else tightened(asked, allowed.network_allow)

    def _filled(self, command: str, name: str) -> str:
        """A command with the row's fields."""
        values = {each: as_word(self.fields[each]) for each in fields_named(command) if each in self.fields}
        return CommandTemplate.parse(command, Location(name), tuple(values)).shown(values) if values else command

    async def _place(self, scope: Context, world: World) -> None:
        address, ran = scope.address, False

        async def effect() -> Effect:
            nonlocal ran
            ran = True
            await world.begin_step(address)
            sandbox = await world.sandbox()
            try:
                count = await self._placed(sandbox)
            except ToolError as error:
                raise ItemError(Cause.INVALID_INPUT, f"the workspace can't be filled: {error}") from error
            return Effect({"files": count})

        template = self.run.template
        request = {
            **({} if template is None else {"template": template[1]}),
            **({"files": digest("files", dict(self.item.files)).hex()} if self.item.files else {}),
        }
        await scope.step(FURNISH, request, effect)
        if not ran:
            world.replayed(address)

    async def _placed(self, sandbox: Sandbox) -> int:
        links: frozenset[str] = frozenset()
        if self.run.template is not None:
            template, archive = packed_template(*self.run.template)
            links = template.links
            await sandbox.put(archive, sandbox.workspace)
        inside = {path: text for path, text in self.item.files.items() if not path.startswith("/")}
        if inside:
            await sandbox.put(_archive(inside, links), sandbox.workspace)
        for path, text in self.item.files.items():
            if path in inside:
                continue
            if sandbox.kind == _LOCAL:
                raise ItemError(
                    Cause.INVALID_INPUT, f"the file {path} of the row: only a path in the workspace can be written"
                )
            await sandbox.write_file(path, text.encode())
        return len(self.item.files)


def check_commands(options: WorldSettings, fields: Iterable[str]) -> None:
    """Raises UserError for a command in which a field stands where no quotation would hold it together. ``fields``: those that rows
    have."""
    known = set(fields)
    for name in ("setup", "collect"):
        command = getattr(options, name)
        used = [each for each in fields_named(command) if each in known]
        if used:
            CommandTemplate.parse(command, Location(f"--{name}"), used)


def check_world(options: WorldSettings, rows: RowWorldSettings | None = None, *, images: bool = False) -> None:
    """Raises UserError for what the kind of sandbox can't give. ``images``: whether there are items with an image."""
    if images and options.sandbox == AUTO:
        return
    name = _PLAIN if options.sandbox == AUTO else options.sandbox
    if name not in (_LOCAL, _PLAIN):
        return
    given = [f"--{each}" for each in ("user", "cpus") if getattr(options, each) is not None]
    if rows is not None:
        given += [f"--{each}" for each in ("user_field", "cpus_field") if getattr(rows, each) is not None]
    if given:
        raise UserError(f"{given[0]}: only containers can do that, and {name} sandboxes are none")


def with_template(options: OptionsT, recorded: OptionsT | None, notice: Callable[[str], None]) -> OptionsT:
    """The settings with what identifies their template as it is now. ``recorded``: those of a run that is continued, of which is said
    that the template changed or is gone; no item that has not begun can do without it. Raises UserError for one that can't be used."""
    if options.workspace is None:
        return options.changed({"workspace_digest": None})
    if recorded is not None and not Path(options.workspace).is_dir():
        notice(f"--workspace: there is no folder {options.workspace} any more; items that have not begun can't")
        return options
    template = read_template(options.workspace)
    if (
        recorded is not None
        and recorded.workspace == options.workspace
        and recorded.workspace_digest != template.digest
    ):
        notice(
            f"{template.folder} changed since the run was made; items that have begun and not ended begin afresh, or with "
            "--on_divergence=stop end the run"
        )
    if template.skipped:
        more = ", …" if len(template.skipped) > 3 else ""
        notice(f"{template.folder}: sockets, pipes and devices are not copied: {', '.join(template.skipped[:3])}{more}")
    return options.changed({"workspace": str(template.folder), "workspace_digest": template.digest})


def limit_notices(limits: SandboxLimits, max_memory: int, max_cpus: float) -> Iterator[str]:
    """What to say of rows that ask for more than their run allows. ``max_memory``: bytes."""
    if max_memory > limits.memory:
        asked, allowed = max_memory / (1 << 30), limits.memory / (1 << 30)
        yield f"rows ask for up to {asked:g} GiB of memory; each gets at most {allowed:g}, --memory allows more"
    if limits.cpus is not None and max_cpus > limits.cpus:
        yield f"rows ask for up to {max_cpus:g} processors; each gets at most {limits.cpus:g}, --cpus allows more"


def as_word(value: Json) -> str:
    """A row's field as text: as it is, or else as JSON; nothing for None."""
    return value if isinstance(value, str) else "" if value is None else line(value)


def world_note(options: WorldSettings, *, cwd: str | None = None, files: bool = False) -> str | None:
    """A paragraph for a model on where it may read and write; None if there is nothing to say. ``cwd``: the item's own; ``files``: its
    item brings some."""
    if cwd is not None or options.cwd is not None:
        return None
    if options.project is None:
        filled = files or options.workspace is not None
        return (
            "Commands and relative paths start in the workspace, which holds the files to work on." if filled else None
        )
    if options.workspace is None:
        return project_note(options.project, sandbox=options.sandbox)
    local = options.sandbox == _LOCAL
    change = "must not be changed" if local else "can be read but not changed"
    return (
        "Commands and relative paths start in the workspace, which holds the files to work on and can be written to. "
        f"The project, {options.project if local else PROJECT}, {change}."
    )


def world_name(run_id: str, context: Context, part: str | int | None = None) -> str:
    """What names an item's world among those of all runs: ``<run>-<item>-<attempt>``. ``part``: of an item with several."""
    return "-".join(map(str, (run_id, context.item.number, context.attempt, *(() if part is None else (part,)))))


def as_secret(values: Mapping[str, str]) -> dict[str, str]:
    """What ``settings.looked_up`` gave, among a workload's secrets: as one, as a value that is a mere word must not be taken out of all
    texts."""
    return {ENVIRONMENT: line(dict(values))} if values else {}


def secret_environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """The reverse of ``as_secret``."""
    found: dict[str, str] = loads(secrets.get(ENVIRONMENT, "{}"))
    protect(found.values())
    return found


def _archive(files: Mapping[str, str], links: frozenset[str]) -> io.BytesIO:
    """Files as a tar archive. ``links``: what is a link where it is unpacked, so that nothing is written through it."""
    archive = io.BytesIO()
    with Packer(archive, max_bytes=MAX_BYTES) as packer:
        for path, text in files.items():
            for above in _with_parents(path):
                if above in links:
                    raise ItemError(
                        Cause.INVALID_INPUT, f"the file {path} of the row: {above} is a link in the template"
                    )
            packer.add_data(path, text.encode())
    archive.seek(0)
    return archive


def _with_parents(path: str) -> Sequence[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
