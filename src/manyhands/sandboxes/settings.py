"""The settings of the sandboxes of a run, and of the container images that they are made of."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from manyhands.core.settings import (
    Checked,
    Flag,
    OptionalList,
    OptionalPath,
    OptionalText,
    Settings,
    Text,
    number,
    optional_number,
    optional_whole,
    setting,
)
from manyhands.runs.options import SANDBOX
from manyhands.sandboxes.images.templates import ImageTemplate

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(value: Any) -> int | None:
    """Bytes: a number, or one with a unit (``200GB``, ``64MiB``). Raises ValueError."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
        return None
    found = _SIZE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) else None
    if found is None or isinstance(value, bool):
        raise ValueError("must be a size, such as 200GB or 64MiB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].lower()])


def _template(value: Any) -> str | None:
    return None if value is None or not str(value).strip() else ImageTemplate.parse(str(value)).text


Size = Annotated[int, Checked(size)]


class RowImageSettings(Settings):
    """Where the rows of a dataset or table say which image each is executed in."""

    image_field: OptionalText = setting(
        None,
        "Column (field) of a row that names its container image.",
        group=SANDBOX,
        identity=True,
        value="COLUMN",
    )
    image_template: Annotated[str | None, Checked(_template)] = setting(
        None,
        "Image of rows that name none, made of their fields: {field}, {field|lower}, or {field|swebench} (lower case, __ as _1776_).",
        group=SANDBOX,
        identity=True,
        value="TEMPLATE",
    )
    skip_missing_images: Flag = setting(
        False,
        "Skip rows whose image does not exist; otherwise they refuse the run.",
        group=SANDBOX,
    )


class SandboxSettings(Settings):
    """Where tools run, and what they may use there."""

    sandbox: Text = setting(
        "auto",
        "Where tools run: auto (items with a container image in docker or podman, others in bubblewrap), bubblewrap, docker, podman, "
        "ssh (an account on another machine, unprotected), local (this machine, unprotected), or apptainer, modal, daytona (not yet tried "
        "against the real ones).",
        group=SANDBOX,
        identity=True,
        value="KIND",
    )
    ssh_host: OptionalText = setting(
        None,
        "With --sandbox ssh: the machine, by name, address, or its name in ssh's own configuration.",
        group=SANDBOX,
        value="HOST",
    )
    ssh_user: OptionalText = setting(None, "With --sandbox ssh: the account there.", group=SANDBOX, value="NAME")
    ssh_port: Annotated[int | None, optional_whole(1, 65535)] = setting(
        None, "With --sandbox ssh: the port of its server.", group=SANDBOX
    )
    ssh_key: OptionalPath = setting(
        None, "With --sandbox ssh: a file with the private key to log in with.", group=SANDBOX, value="FILE"
    )
    ssh_config: OptionalPath = setting(
        None, "With --sandbox ssh: a configuration of ssh in place of your own.", group=SANDBOX, value="FILE"
    )
    ssh_dir: Text = setting(
        ".manyhands-worlds",
        "With --sandbox ssh: the folder there that holds one for each item, relative to the account's home.",
        group=SANDBOX,
        value="DIR",
    )
    network: Flag = setting(False, "Allow network access in the sandbox.", group=SANDBOX, identity=True)
    network_allow: OptionalList = setting(
        None,
        "Hosts that commands in the sandbox may reach by a proxy: HOST, *.HOST, addresses, blocks such as 10.1.0.0/16 (default: none).",
        group=SANDBOX,
        identity=True,
        value="HOST,…",
    )
    sandbox_disk: Annotated[float, number(above=0)] = setting(
        8.0, "Maximum disk usage of one sandbox in GiB; see also --min_free.", group=SANDBOX
    )
    min_free: Annotated[float | None, optional_number(0)] = setting(
        None,
        "Minimum free disk space in GiB: below it the largest sandbox is ended (default: 1, or 2 % of a small disk).",
        group=SANDBOX,
    )
    keep_workspaces: Flag = setting(False, "Keep the workspaces of all items.", group=SANDBOX)
    image: OptionalText = setting(
        None, "Container image of items that name none themselves.", group=SANDBOX, identity=True, value="IMAGE"
    )
    ignore_images: Flag = setting(False, "Ignore the images that rows name.", group=SANDBOX, identity=True)
    pull: Literal["missing", "always", "never"] = setting(
        "missing",
        "When images are pulled: if they are not there, always (once per run), or never.",
        group=SANDBOX,
    )
    image_cache: Size | None = setting(
        None,
        "Remove images that this run pulled, the longest unused first, when they take more than this (such as 200GB).",
        group=SANDBOX,
        value="SIZE",
    )
    container_runtime: OptionalText = setting(
        None, "Runtime of the container engine, such as runsc.", group=SANDBOX, value="NAME"
    )
    unenforced_limits: Flag = setting(
        False, "Run also where the container engine can't enforce all limits of a sandbox.", group=SANDBOX
    )
    checkpoints: Flag = setting(
        True,
        "Take a checkpoint of a container after steps that change it, so that a step that is cut off can be undone.",
        group=SANDBOX,
    )
    checkpoint_limit: Size = setting(
        64 << 20,
        "Changes of a container beyond which no more checkpoints of it are taken.",
        group=SANDBOX,
        value="SIZE",
    )
    durable_worlds: Flag = setting(
        False,
        "Sync the disks after each checkpoint of a container, so that unfinished items also continue after the machine died.",
        group=SANDBOX,
    )
