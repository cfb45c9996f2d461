"""What the operating system knows of processes, and what takes a system call of its own: Linux's way, or that of every system."""

from __future__ import annotations

from manyhands.processes.system.portable import ProcessLine as ProcessLine

try:
    from manyhands.processes.system import linux as _system
except (ImportError, AttributeError):  # another system, or a Python that was built without what this takes
    from manyhands.processes.system import portable as _system  # type: ignore[no-redef]

process_line = _system.process_line
process_ids = _system.process_ids
newest_process = _system.newest_process
is_process = _system.is_process
environment_of = _system.environment_of
children = _system.children
Elders = _system.Elders
ticks_now = _system.ticks_now
boot = _system.boot
numbering = _system.numbering
tag_of = _system.tag_of
tag_setter = _system.tag_setter
lock_holders = _system.lock_holders
mounts = _system.mounts
die_with_parent = _system.die_with_parent
processors = _system.processors
threads = _system.threads
name_process = _system.name_process
open_up = _system.open_up
path_of = _system.path_of
