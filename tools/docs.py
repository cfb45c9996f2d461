"""Keeps the tables in the documentation equal to the code that they describe.

    .venv/bin/python tools/docs.py            writes the tables anew
    .venv/bin/python tools/docs.py --check    changes nothing; ends with 1 and names the files that are out of date

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the names are those of ``TABLES``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import dedent

from eval_tables import EvalTables

from manyhands.cli.endpoints.check import WITHOUT, CheckEndpointSettings
from manyhands.cli.exports.importing import WITHOUT as IMPORT_WITHOUT
from manyhands.cli.jobs import COMMANDS as JOBS_COMMANDS
from manyhands.cli.jobs.starting import SpawnOptions
from manyhands.cli.main import COMMANDS
from manyhands.cli.memory import COMMANDS as MEMORY_COMMANDS
from manyhands.cli.options import Option, default_text, options_of, spell, value_text
from manyhands.cli.simulate import SimulateSettings
from manyhands.core import failures
from manyhands.core.failures import FAILURES, Cause
from manyhands.core.settings import Settings
from manyhands.export.format import Format, formats, load_format
from manyhands.export.settings import ExportSettings
from manyhands.models.factory import KEY_VARIABLES, OWN_KEY_VARIABLE
from manyhands.models.hosts import HOSTS, NOT_SENT
from manyhands.models.openai.request import LIMIT_FIELDS
from manyhands.sandboxes.protocol import SandboxLimits
from manyhands.tools.distributions import FORK, STANDARD_DISTRIBUTIONS
from manyhands.tools.standard import standard_registry
from manyhands.tools.toolsets import DECLARED, KNOWN_TOOLS, STANDARD
from manyhands.workloads.csv_jobs.mcp.declarations import DECLARATIONS
from manyhands.workloads.csv_jobs.mcp.settings import McpSettings
from manyhands.workloads.evals.settings import EvalSpec
from manyhands.workloads.imported.spec import ImportSpec
from manyhands.workloads.memory.settings import MemorySpec
from manyhands.workloads.trajectories.lines.schema import METADATA, Field, Form, List, Object, schema_of
from manyhands.workloads.trajectories.spec import BatchSpec

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """The files that may hold tables."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def renewed(text: str) -> str:
    """A document with its tables written anew. Raises KeyError for a table of an unknown name."""
    return _BLOCK.sub(lambda block: f"{block[1]}{TABLES[block[2]]()}\n{block[3]}", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _options(settings: type[Settings], *, fixed: bool, without: Collection[str] = ()) -> str:
    groups: dict[str, list[Sequence[str]]] = {}
    for option in (each for each in options_of(settings).values() if each.name not in without):
        row = [f"`{spell(option.name)}`{value_text(option)}", _default(option), option.help]
        if fixed:
            row.append("yes" if settings.about(option.name).identity else "")
        groups.setdefault(option.group, []).append(row)
    headings = ["option", "default", "what it does", *(["fixed"] if fixed else [])]
    return "\n\n".join(f"**{group}**\n\n{table(headings, rows)}" for group, rows in groups.items())


def _default(option: Option) -> str:
    if option.required:
        return "required"
    if option.is_switch:
        return str(bool(option.default)).lower()
    if option.default is None:
        return ""
    return f"`{default_text(option)}`"


def batch_options() -> str:
    return _options(BatchSpec, fixed=True)


def check_endpoint_options() -> str:
    return _options(CheckEndpointSettings, fixed=False, without=WITHOUT)


def simulate_options() -> str:
    return _options(SimulateSettings, fixed=False)


def jobs_spawn_options() -> str:
    return _options(SpawnOptions, fixed=True)


def eval_options() -> str:
    return _options(EvalSpec, fixed=True)


def memory_options() -> str:
    return _options(MemorySpec, fixed=True)


def memory_commands() -> str:
    return table(["command", "does"], ([f"`{name}`", what] for name, (_, what) in MEMORY_COMMANDS.items()))


def mcp_options() -> str:
    return _options(McpSettings, fixed=False)


def job_tools() -> str:
    """Each tool of the MCP server with its arguments and the keys of its result."""
    return "\n\n".join(_job_tool(name) for name in DECLARATIONS)


def _job_tool(name: str) -> str:
    tool = DECLARATIONS[name]
    required = tool.parameters["required"]
    rows = [
        [f"`{argument}`", schema["type"] + (", required" if argument in required else ""), schema["description"]]
        for argument, schema in tool.parameters["properties"].items()
    ]
    keys = ", ".join(f"`{key}`" for key in tool.result["properties"])
    return f"## {name}\n\n{tool.description}\n\n{table(['argument', 'type', 'meaning'], rows)}\n\nIt answers: {keys}."


def commands() -> str:
    return table(["command", "does"], ([f"`manyhands {name}`", what] for name, (_, what) in COMMANDS.items()))


def jobs_commands() -> str:
    rows = ([f"`manyhands jobs {name}`", what] for name, (_, what) in JOBS_COMMANDS.items())
    return table(["command", "does"], rows)


def failure_table() -> str:
    meanings = _cause_meanings()
    return table(
        ["cause", "what it means", "tried, in all", "waits before the next try", "starts afresh", "stops the run"],
        (_failure_row(cause, rule, meanings[cause.name]) for cause, rule in FAILURES.items()),
    )


def _failure_row(cause: Cause, rule: failures.FailureRule, meaning: str) -> list[str]:
    return [
        f"`{cause}`",
        meaning,
        str(rule.max_attempts),
        _waits(rule),
        _yes(rule.fresh_attempt),
        _yes(rule.stops_run),
    ]


def _waits(rule: failures.FailureRule) -> str:
    if not rule.retried:
        return ""
    if rule.max_attempts == 2:
        return f"{rule.delay:g} s"
    return f"{rule.delay:g} s, doubled each time, {rule.max_delay:g} s at most"


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _cause_meanings() -> dict[str, str]:
    """What is written under each cause in the code."""
    body = ast.parse(dedent(inspect.getsource(Cause))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for member, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            target = member.targets[0]
            assert isinstance(target, ast.Name)
            meanings[target.id] = " ".join(str(text.value.value).split())
    return meanings


def key_variables() -> str:
    rows = [[f"`{host}`", f"`{variable}`"] for host, variable in KEY_VARIABLES.items()]
    return table(["endpoint's host (or below it)", "variable"], [*rows, ["any other", f"`{OWN_KEY_VARIABLE}`"]])


def hosts() -> str:
    rows = []
    for name, host in HOSTS.items():
        reasoning = {None: "as it came", NOT_SENT: "never"}.get(host.reasoning, f"as `{host.reasoning}`")
        wanted = ", which it wants" if host.wants_reasoning else ""
        rows.append([f"`{name}`", reasoning + wanted, f"`{LIMIT_FIELDS[host.completion_tokens]}`"])
    return table(["host", "reasoning is sent back", "bound of an answer"], rows)


def own_models() -> str:
    """Which names of models belong to one provider."""
    owners = [host for host in HOSTS.values() if host.models]
    rows = ([f"`{host.models}`", f"`{host.base_url}`", f"`{host.key_variable}`"] for host in owners)
    return table(["names (pattern of their beginning)", "called at", "with"], rows)


def tools() -> str:
    registry = standard_registry(plugins=False)
    rows = [[f"`{name}`", _first_sentence(registry.get(name).description)] for name in registry.names]
    return table(["tool", "description"], rows)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def declared_tools() -> str:
    needs: dict[str, list[str]] = {}
    for name, need in DECLARED.items():
        needs.setdefault(need, []).append(f"`{name}`")
    return table(["tools", "need"], ([", ".join(names), need] for need, names in needs.items()))


def toolsets() -> str:
    rows = []
    for name, toolset in STANDARD.items():
        contents = [*(f"`{tool}`" for tool in toolset.tools), *(f"all of {each}" for each in toolset.includes)]
        shown = "`browser_…` (11 tools)" if len(contents) > 5 else ", ".join(contents)
        rows.append([f"`{name}`", toolset.description, shown])
    return table(["toolset", "for", "tools"], rows)


def distributions() -> str:
    def drawn(name: str) -> str:
        return ", ".join(f"{toolset} {percent:g}" for toolset, percent in STANDARD_DISTRIBUTIONS[name].toolsets)

    names = [name for name in STANDARD_DISTRIBUTIONS if not name.startswith(FORK)]
    return table(
        ["NAME", "`NAME`, in percent", "`fork:NAME`, in percent"],
        ([f"`{name}`", drawn(name), drawn(FORK + name)] for name in names),
    )


def sandbox_limits() -> str:
    defaults = SandboxLimits()
    shown = {
        "memory": f"{defaults.memory >> 30} GB (`--memory`)",
        "processes": str(defaults.processes),
        "file_size": f"{defaults.file_size >> 30} GB a file",
        "cpu_seconds": f"{defaults.cpu_seconds} s of processor time a process",
        "disk": f"{defaults.disk >> 30} GB in all its files (`--sandbox_disk`)",
        "files": f"{defaults.files:,} files and folders",
        "min_free": "1 GB of the disk, or 2 % of a small one, is left free (`--min_free`)",
        "network": "none (`--network` allows it)" if not defaults.network else "allowed",
        "network_allow": ", ".join(defaults.network_allow) or "no host (`--network_allow`)",
        "cpus": "all processors (`--cpus`, in containers)",
    }
    assert set(shown) == {field.name for field in fields(SandboxLimits)}
    return table(["limit", "value"], ([name.replace("_", " "), value] for name, value in shown.items()))


_EVALS = EvalTables(table)


def trajectory_fields() -> str:
    return _fields(schema_of(KNOWN_TOOLS))


def metadata_fields() -> str:
    return _fields(METADATA)


def _fields(declared: Object) -> str:
    """The fields of an object. Members of an object in it are named if they are numbers and few."""
    rows = ([f"`{field.name}`", _form(field.form), _about(field)] for field in declared.fields)
    return table(["field", "type", "meaning"], rows)


def _form(form: Form) -> str:
    if isinstance(form, List):
        inner = form.of
        return "list of " + (f"`{{{', '.join(inner.names)}}}`" if isinstance(inner, Object) else _form(inner))
    return "object" if isinstance(form, Object) else form


def _about(field: Field) -> str:
    inner = field.form
    if isinstance(inner, Object) and len(inner.fields) < 10 and field.name != "metadata":
        return f"{field.about}: " + ", ".join(f"`{name}`" for name in inner.names)
    return field.about


def export_options() -> str:
    return _options(ExportSettings, fixed=False, without=("runs",))


def import_options() -> str:
    return _options(ImportSpec, fixed=False, without=("input_files", *IMPORT_WITHOUT))


def export_formats() -> str:
    kinds = [load_format(name) for name in formats()]
    rows = ([f"`{kind.name}`", kind.about, _file_of(kind), f"`{kind.reasoning}`"] for kind in kinds)
    return table(["`--to`", "for", "written", "reasoning"], rows)


def _file_of(kind: type[Format]) -> str:
    return "a folder" if kind.in_folder else f"`{kind.suffix}`"


TABLES: dict[str, Callable[[], str]] = {
    "eval-options": eval_options,
    "eval-keys": _EVALS.keys,
    "eval-older-names": _EVALS.older_names,
    "eval-placeholders": _EVALS.placeholders,
    "eval-target-kinds": _EVALS.kinds,
    "eval-target-keys": _EVALS.target_keys,
    "eval-graders": _EVALS.graders,
    "batch-options": batch_options,
    "check-endpoint-options": check_endpoint_options,
    "simulate-options": simulate_options,
    "jobs-spawn-options": jobs_spawn_options,
    "mcp-options": mcp_options,
    "memory-options": memory_options,
    "memory-commands": memory_commands,
    "job-tools": job_tools,
    "commands": commands,
    "jobs-commands": jobs_commands,
    "export-options": export_options,
    "import-options": import_options,
    "export-formats": export_formats,
    "failures": failure_table,
    "key-variables": key_variables,
    "hosts": hosts,
    "own-models": own_models,
    "tools": tools,
    "declared-tools": declared_tools,
    "toolsets": toolsets,
    "distributions": distributions,
    "sandbox-limits": sandbox_limits,
    "trajectory-fields": trajectory_fields,
    "metadata-fields": metadata_fields,
}


def main(arguments: Sequence[str]) -> int:
    outdated = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        new = renewed(text)
        if new != text:
            outdated.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    for name in outdated:
        print(f"{name}: " + ("out of date; run tools/docs.py" if "--check" in arguments else "written anew"))
    return 1 if outdated and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
