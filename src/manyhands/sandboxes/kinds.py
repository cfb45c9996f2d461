"""The kinds of sandboxes that there are: what ``--sandbox`` may name, and what makes the sandboxes of each.

Installed packages bring more of them (entry point group ``manyhands.sandboxes``), each by the name of its entry point. It names a ``Kind``,
or a class or function without arguments that gives a ``SandboxBackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from manyhands.core.errors import UserError
from manyhands.core.redaction import describe
from manyhands.io.plugins import plugins
from manyhands.network.rules import read_rules
from manyhands.sandboxes.images.store import ImageStore
from manyhands.sandboxes.protocol import SandboxBackend
from manyhands.sandboxes.remote.driver import Driver
from manyhands.sandboxes.settings import SandboxSettings

PLUGINS = "manyhands.sandboxes"
AUTO = "auto"
_ON_HOST = "; or give --sandbox local to run commands on this machine itself"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of sandboxes. What makes its parts is a class without arguments, or a function of the kind's name and the run's
    ``SandboxSettings``; or ``module:attribute`` of one, which is imported when it is needed: what the one takes of a machine, the other may
    do without."""

    backend: str | Callable[..., SandboxBackend] | None = None
    """Gives its backend. None: sandboxes are made of its driver (``sandboxes.remote``)."""
    driver: str | Callable[..., Driver] | None = None
    """Gives its driver. None: all that a sandbox is made of is in its folder, on this machine."""
    images: str | Callable[..., ImageStore] | None = None
    """Gives the store in which images are looked up and to which they are pulled."""
    unpinned: bool = False
    """Whether it takes images without a store: the names that rows give are handed on as they are."""
    limits_hosts: bool = False
    """Whether commands reach nothing but what ``SandboxLimits.network_allow`` lists."""
    extra: str | None = None
    """The extra of this package that it needs."""

    @property
    def driven(self) -> bool:
        """Whether its sandboxes are made of its driver."""
        return self.backend is None and self.driver is not None

    @property
    def takes_images(self) -> bool:
        """Whether items may name container images."""
        return self.images is not None or self.unpinned


_ENGINE = Kind(
    driver="manyhands.sandboxes.containers.engines:engine_driver",
    images="manyhands.sandboxes.containers.engines:engine_images",
    limits_hosts=True,
    extra="containers",
)
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "bubblewrap": Kind(
            backend="manyhands.sandboxes.bubblewrap.backend:BubblewrapBackend",
            images="manyhands.sandboxes.bubblewrap.image_store:unpacked_images",
            limits_hosts=True,
        ),
        "local": Kind(backend="manyhands.sandboxes.local:LocalBackend"),
        "docker": _ENGINE,
        "podman": _ENGINE,
        "ssh": Kind(driver="manyhands.sandboxes.services.ssh.driver:ssh_driver"),
        "apptainer": Kind(driver="manyhands.sandboxes.services.apptainer:apptainer_driver", unpinned=True),
        "modal": Kind(driver="manyhands.sandboxes.services.modal:modal_driver", unpinned=True, extra="modal"),
        "daytona": Kind(driver="manyhands.sandboxes.services.daytona:daytona_driver", unpinned=True, extra="daytona"),
    }
)
"""Our own."""


def kind_named(name: str) -> Kind:
    """The kind of that name, of ours or of an installed package. Raises UserError, in one line that names the choices."""
    if name in KINDS:
        return KINDS[name]
    entry = plugins(PLUGINS).get(name)
    if entry is None:
        raise UserError(f"--sandbox {name}: unknown (choose one of: {', '.join(names())})")
    try:
        found = entry.load()
    except Exception as error:  # the boundary to a plug-in's own code, which may raise anything
        raise UserError(f"--sandbox {name}: the plug-in {entry.value} can't be used: {describe(error)}") from error
    return found if isinstance(found, Kind) else Kind(backend=lambda name, options: found())


def check_network(name: str, kind: Kind, options: SandboxSettings) -> None:
    """Raises UserError for hosts that can't be read, and where nothing would keep commands from all others."""
    if options.network_allow is None:
        return
    if options.network:
        raise UserError("give --network or --network_allow, not both")
    read_rules(options.network_allow)
    if not kind.limits_hosts:
        able = ", ".join(name for name, each in KINDS.items() if each.limits_hosts)
        raise UserError(
            f"--network_allow: the {name} sandbox can't keep commands from other hosts (choose one of: {able})"
        )


def names() -> tuple[str, ...]:
    """What ``--sandbox`` may name."""
    return (AUTO, *KINDS, *sorted(plugins(PLUGINS)))


def part_of(name: str, factory: str | Callable[..., Any], options: SandboxSettings | None = None) -> Any:
    """What a factory of a kind gives. ``name``: the kind's; ``options``: the run's (None: the defaults). Raises UserError if it can't be
    imported, or made."""
    try:
        made = _imported(factory)
        return made() if isinstance(made, type) else made(name, options or SandboxSettings())
    except ImportError as error:
        raise UserError(f"--sandbox {name}: {_missing(name, error)}") from error


def _imported(factory: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(factory, str):
        return factory
    module, _, attribute = factory.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def _missing(name: str, error: ImportError) -> str:
    extra = KINDS[name].extra if name in KINDS else None
    if extra is not None:
        return f"install manyhands[{extra}] ({error})"
    return f"not available on this system ({error}){_ON_HOST}"


def on_host(name: str) -> str:
    """What can be done where a kind of sandboxes for this machine's own commands can't be used; behind a problem."""
    return "" if name == "local" else _ON_HOST
