"""``manyhands check-endpoint``: what an endpoint can do, and what to set for it."""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

from manyhands.cli.options import help_text, make, parse
from manyhands.core.settings import Checked, Flag, OptionalSecrets, OptionalText, number, setting
from manyhands.models.addresses import read_address
from manyhands.models.settings import CallSettings
from manyhands.runs.exit_codes import ExitCode
from manyhands.runs.options import LIMITS, MODEL, OUTPUT, is_file_of_values

if TYPE_CHECKING:
    from manyhands.models.endpoint_check.probes import EndpointReport
    from manyhands.models.settings import ModelSettings

PROGRAM = "manyhands check-endpoint"
_URL = "base_url"
_USAGE = f"{PROGRAM} URL"
_DESCRIPTION = (
    "Finds out what the endpoint at URL can do, by some twenty small requests to a model, and says what to set for it. Without --model, "
    "only what costs nothing is asked, unless exactly one model is listed."
)
_TAKEN = ("base_url", "api_key", "header", "extra_body")
"""Settings of runs that make a difference here."""


def _address(value: Any) -> str:
    if is_file_of_values(value):
        raise ValueError("must be one address: check those in a file one by one")
    return read_address(value)


class CheckEndpointSettings(CallSettings):
    """The options of ``manyhands check-endpoint``."""

    api_key: OptionalSecrets = setting(
        None,
        "API key of the endpoint (default: from the environment, OPENROUTER_API_KEY, …).",
        group=MODEL,
        recorded=False,
        secret=True,
        value="KEY",
    )
    base_url: Annotated[str, Checked(_address)] = setting(
        CallSettings.fields[_URL].default, "Base URL of the endpoint.", group=MODEL, value="URL"
    )
    model: OptionalText = setting(None, "Model to ask.", group=MODEL, value="NAME")
    call_timeout: Annotated[float, number(above=0)] = setting(60.0, "Timeout of one request in seconds.", group=LIMITS)
    json: Flag = setting(False, "Print JSON.", group=OUTPUT)


WITHOUT = [name for name in CallSettings.fields if name not in _TAKEN and name not in vars(CheckEndpointSettings)]
"""Settings of runs that are no options here."""


def run(argv: list[str]) -> int:
    """Check an endpoint; fails if it can't be used."""
    line = parse(CheckEndpointSettings, argv, PROGRAM, positional=_URL, without=WITHOUT)
    if line.help:
        print(help_text(CheckEndpointSettings, _USAGE, _DESCRIPTION, positional=_URL, without=WITHOUT))
        return ExitCode.DONE
    options = make(CheckEndpointSettings, line.values, PROGRAM)
    # Its HTTP library is large, and --help must answer at once.
    from manyhands.processes.event_loop import run_on_loop

    report, used = run_on_loop(_checked(options))
    (_print_json if options.json else _print)(report, used, options)
    return ExitCode.DONE if report.usable else ExitCode.FAILED


async def _checked(options: CheckEndpointSettings) -> tuple[EndpointReport, dict[str, Any]]:
    from manyhands.agents.run_settings import headers_for, usable_keys
    from manyhands.core.clock import SystemClock
    from manyhands.models.endpoint_check.exchange import Prober
    from manyhands.models.endpoint_check.probes import EndpointReport, check_endpoint
    from manyhands.models.openai.request import Endpoint

    endpoint = Endpoint.of(options.base_url)
    keys = usable_keys(_as_model(options), os.environ)
    clock = SystemClock()
    began = clock.monotonic()
    prober = Prober(
        endpoint,
        keys[0] if keys else None,
        headers_for(options, os.environ),
        model=options.model,
        seconds=options.call_timeout,
        extra_body=options.extra_body,
        clock=clock,
    )
    report = EndpointReport(options.base_url, options.model)
    try:
        await check_endpoint(prober, report)
    finally:
        await prober.close()
    if len(keys) > 1:
        report.advice.append(f"only the first of {len(keys)} keys of the environment was tried")
    report.advice += [f"learnt: {remark}" for remark in dict.fromkeys(prober.remarks)]
    used = {
        "calls": prober.calls,
        "input_tokens": prober.usage.input_tokens,
        "output_tokens": prober.usage.output_tokens,
        "cost": prober.cost,
        "seconds": round(clock.monotonic() - began, 3),
    }
    return report, used


def _as_model(options: CheckEndpointSettings) -> ModelSettings:
    """The settings for a model that is none of ours, even if it is called so."""
    return options.for_model(f"at the endpoint: {options.model}")


def _options(report: EndpointReport, options: CheckEndpointSettings) -> list[str]:
    """What to give to other commands: what this one was given, and what was found out. Of a header whose value is no variable, the value is
    left to be filled in."""
    words = [f"--base_url={report.url}", *([f"--model={report.model}"] if report.model else [])]
    if options.extra_body:
        words.append(f"--extra_body={json.dumps(options.extra_body)}")
    headers = options.header or ()
    words += [f"--header={each.recorded if each.is_reference else f'{each.name}: …'}" for each in headers]
    return [*words, *report.options]


def _print(report: EndpointReport, used: dict[str, Any], options: CheckEndpointSettings) -> None:
    from manyhands.cli.console import out

    console = out()
    rows = [(each.name, each.result, each.detail) for each in report.findings]
    model = f", model {report.model}" if report.model else ""
    console.print_table(f"Endpoint {report.url}{model}", ("what", "result", ""), rows)
    if report.usable and report.model is None:
        listed = ", ".join(report.models) or "none are listed"
        console.print_line(f"To find out more, give --model: {listed}")
    elif report.usable:
        console.print_line(f"To use it:  {shlex.join(_options(report, options))}")
    for sentence in report.advice:
        console.print_line(f"  {sentence}")
    cost = "" if used["cost"] is None else f", ${used['cost']:.4f}"
    console.print_line(
        f"Used: {used['calls']} model calls, {used['input_tokens']:,} tokens in, {used['output_tokens']:,} out{cost}; "
        f"{used['seconds']:.1f} s"
    )


def _print_json(report: EndpointReport, used: dict[str, Any], options: CheckEndpointSettings) -> None:
    from manyhands.core.redaction import KNOWN
    from manyhands.core.text import json_text

    content = {
        "url": report.url,
        "model": report.model,
        "usable": report.usable,
        "checks": {each.name: {"result": each.result, "detail": each.detail} for each in report.findings},
        "options": _options(report, options),
        "advice": report.advice,
        "models": report.models,
        "used": used,
    }
    print(json_text(KNOWN.json(content), indent=2))
