"""What ``.agentv/config.yaml`` says for eval files: ``defaults``, the names of the provider and of the grader that are used, and
``providers``.

Both may be ``file://PATH``, from the configuration's own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.io.locations import Location
from manyhands.io.search_paths import SearchPath
from manyhands.io.yaml_files import read_yaml

CONFIG = Path(".agentv", "config.yaml")
_SCHEME = "file://"


def project_defaults(folder: Path, search_path: SearchPath) -> dict[str, str]:
    """``provider`` and ``grader``, as far as the nearest configuration from the folder upwards names them. Raises UserError for a file
    that can't be read."""
    found = next((each / CONFIG for each in search_path.upwards(folder) if (each / CONFIG).is_file()), None)
    value = None if found is None else configured(found, "defaults", search_path.shown(found))[0]
    if not isinstance(value, Mapping):
        return {}
    return {key: name for key in ("provider", "grader") if isinstance(name := value.get(key), str) and name.strip()}


def configured(path: Path, key: str, name: str) -> tuple[Json, Location]:
    """A value of a configuration, and its location; None without one. ``name``: what messages call the configuration. Raises UserError
    for a file that can't be read."""
    content, location = read_yaml(path, name)
    value: Any = content.get(key) if isinstance(content, Mapping) else None
    at = location.at(key)
    if not isinstance(value, str) or not value.startswith(_SCHEME):
        return value, at
    further = path.parent / value.removeprefix(_SCHEME)
    if not further.is_file():
        raise at.error(f"there is no file {further}")
    return read_yaml(further, str(Path(name).parent / value.removeprefix(_SCHEME)))
