"""Targets: where they are found, which are chosen, and what they are set to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from manyhands.core.errors import UserError
from manyhands.core.jsonio import dumps, loads
from manyhands.core.redaction import KNOWN
from manyhands.io.locations import Findings
from manyhands.io.search_paths import SearchPath, environment
from manyhands.workloads.evals.evalfile.contents import EvalFile
from manyhands.workloads.evals.evalfile.loading import load_evals
from manyhands.workloads.evals.prepared import FileTargets
from manyhands.workloads.evals.targets.choice import Survey, choose_targets
from manyhands.workloads.evals.targets.definitions import Target, TargetFile, find_targets
from manyhands.workloads.evals.targets.kinds.given_answers import MockTargetSettings, ReplayTargetSettings
from manyhands.workloads.evals.targets.kinds.known_agents import AGENT_COMMANDS
from manyhands.workloads.evals.targets.kinds.models import AgentTargetSettings, ModelTargetSettings
from manyhands.workloads.evals.targets.kinds.programs import CliTargetSettings
from manyhands.workloads.evals.targets.kinds.python_function import PythonTargetSettings
from manyhands.workloads.evals.targets.kinds.registry import KINDS

TESTS = "tests: [{id: a, criteria: c, input: i}]\n"


class Site:
    """A folder with an eval file and targets files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.around = SearchPath.of(folder, folder)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def eval_file(self, text: str = "", name: str = "my.yaml") -> EvalFile:
        path = self.write(name, TESTS + text)
        return load_evals([path], self.around, notices=lambda _: None)[0]

    def targets(
        self, text: str = "", option: Path | None = None, *, name: str = "my.yaml", **environ: str
    ) -> TargetFile:
        return find_targets(self.eval_file(text, name), option, environ, search_path=self.around)

    def target(self, settings: str) -> Target:
        """A target of an eval file's own."""
        return self.targets(f"targets:\n  t: {settings}\n").resolve("t")

    def settings(self, settings: str, **environ: str) -> Any:
        return self.target(settings).resolved(environ)

    def refusal(self, settings: str, **environ: str) -> str:
        with pytest.raises(UserError) as caught:
            self.settings(settings, **environ)
        return str(caught.value)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def kinds(targets: TargetFile) -> dict[str, str]:
    return {name: str(targets.resolve(name).settings["response"]) for name in targets.names}


def mocks(**responses: str) -> str:
    return "targets:\n" + "".join(
        f"  - {{name: {name}, provider: mock, response: {text}}}\n" for name, text in responses.items()
    )


# --- Where they are


@pytest.mark.parametrize(
    "name",
    [
        *("targets.yaml", "targets.yml", ".agentv/targets.yaml", ".agentv/targets.yml", "agentv-targets.yaml"),
        *("agentv-targets.yml", "providers.yaml"),
    ],
)
def test_files_of_all_names_are_found_above(site: Site, name: str) -> None:
    site.write(name, mocks(a="x"))

    assert site.targets(name="deep/er/my.yaml").names == ("a",)


def test_the_nearest_folder_wins_then_the_order_of_names(site: Site) -> None:
    site.write("targets.yaml", mocks(a="far"))
    site.write("deep/agentv-targets.yaml", mocks(a="last"))
    site.write("deep/.agentv/targets.yaml", mocks(a="own"))
    site.write("deep/targets.yml", mocks(a="near"))

    assert kinds(site.targets(name="deep/my.yaml")) == {"a": "near"}


def test_the_current_folder_is_the_last(site: Site) -> None:
    site.write("here/targets.yaml", mocks(a="here"))
    file = site.eval_file(name="root/my.yaml")

    found = find_targets(file, None, {}, search_path=SearchPath.of(site.folder / "here", site.folder / "root"))

    assert found.names == ("a",)


def test_the_option_names_a_file_or_a_folder(site: Site) -> None:
    site.write("targets.yaml", mocks(a="x", b="x"))
    path = site.write("other/.agentv/targets.yaml", mocks(c="other"))

    assert site.targets(option=path).names == ("c",)
    assert site.targets(option=Path("other")).names == ("c",)
    for missing in ("none", "other/.agentv/none.yaml"):
        with pytest.raises(UserError, match="--targets: there is no targets file"):
            site.targets(option=Path(missing))


def test_targets_of_the_eval_file_go_before_those_of_a_file(site: Site) -> None:
    site.write("targets.yaml", mocks(a="file", b="file"))
    own = "targets: {a: {provider: mock, response: own}, c: {provider: mock, response: own}}\n"

    assert kinds(site.targets(own)) == {"a": "own", "b": "file", "c": "own"}
    assert kinds(site.targets(own, site.folder / "targets.yaml")) == {"a": "file", "b": "file", "c": "own"}


def test_a_targets_file_is_read_only_where_it_is_needed(site: Site) -> None:
    site.write("targets.yaml", "scrape_configs: []\n")
    targets = site.targets("targets: {a: {provider: mock}}\n")

    assert targets.resolve("a").kind == "mock"
    with pytest.raises(UserError, match=r"targets\.yaml, line 1: scrape_configs: unknown key"):
        targets.resolve("b")


# --- Shapes


def test_both_shapes_give_the_same(site: Site) -> None:
    settings = "provider: cli, command_template: 'run {OUTPUT_FILE}'"
    listed = site.targets(f"targets: [{{name: a, {settings}}}]\n").resolve("a")
    mapped = site.targets(f"targets: {{a: {{{settings}}}}}\n").resolve("a")

    assert listed.resolved({}) == mapped.resolved({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("targets: 3", "targets: must be a list or a mapping of targets, not 3"),
        ("targets: [{provider: cli}]", "targets[0]: name is required"),
        ("targets: [{name: 3, provider: cli}]", "targets[0]: the name must be text, not 3"),
        (
            'targets: [{name: "a\\nb", provider: cli}]',
            "targets[0]: the name must not hold control characters, as 'a\\nb' does",
        ),
        ("targets: [x]", "targets[0]: must be a mapping, not 'x'"),
        ("targets: {a: {name: b}}", "targets.a.name: is another name than 'a'"),
        (
            "targets:\n  - {name: a}\n  - {name: a}\n",
            "line 3: targets[1]: 'a' is the name of another target too, in line 2",
        ),
        ("target: []", "line 1: target: unknown key; did you mean targets?"),
        ("[]", "must be a mapping with targets"),
        ("targets: {}\nproviders: {}", "line 2: providers: is the same key as targets"),
    ],
)
def test_wrong_files_are_refused(site: Site, text: str, said: str) -> None:
    path = site.write("t.yaml", text)

    with pytest.raises(UserError) as caught:
        site.targets(option=path)

    assert said in str(caught.value)
    assert str(caught.value).startswith("t.yaml, line ")


def test_a_wrong_target_hinders_nobody_who_does_not_use_it(site: Site) -> None:
    site.write("targets.yaml", "targets: [{name: a, provider: nonsense}, {name: b, provider: mock}, {name: c}]\n")
    targets = site.targets()

    assert targets.resolve("b").kind == "mock"
    with pytest.raises(
        UserError,
        match=r"targets\[0\]\.provider: 'nonsense' is no kind of target, and .* has no program",
    ):
        targets.resolve("a")
    with pytest.raises(UserError, match=r"targets\[2\]: provider is required"):
        targets.resolve("c")


# --- The choice


@pytest.mark.parametrize(
    ("text", "given", "chosen"),
    [
        ("execution: {target: a, targets: [b, c]}", ["c", "a", "c"], ("c", "a")),
        ("execution: {target: a, targets: [b, c]}\ntarget: c", [], ("b", "c")),
        ("execution: {target: a}\ntarget: c", [], ("a",)),
        ("target: c", [], ("c",)),
        ("", [], ("default",)),
    ],
)
def test_which_targets_are_chosen(site: Site, text: str, given: list[str], chosen: tuple[str, ...]) -> None:
    site.write("targets.yaml", mocks(a="x", b="x", c="x", default="x"))
    file = site.eval_file(text)

    assert find_targets(file, None, {}, search_path=site.around).chosen(file, given) == chosen


def test_the_only_target_is_chosen(site: Site) -> None:
    site.write("targets.yaml", mocks(only="x"))
    file, inline = site.eval_file(), "targets: {mine: {provider: mock}}"

    assert find_targets(file, None, {}, search_path=site.around).chosen(file) == ("only",)
    assert site.targets(inline).chosen(site.eval_file(inline)) == ("mine",)


def test_an_unknown_target_is_refused_with_the_known_ones(site: Site) -> None:
    site.write("targets.yaml", mocks(gpt="x", claude="x"))
    asks = site.eval_file("execution: {target: gtp}")
    targets = find_targets(asks, None, {}, search_path=site.around)

    for call, said in (
        (
            lambda: targets.chosen(asks),
            "my.yaml, line 2: execution.target: there is no target 'gtp'; did you mean gpt?; known: gpt, claude",
        ),
        (
            lambda: targets.chosen(asks, ["claud"]),
            "--target: there is no target 'claud'; did you mean claude?; known: gpt, claude",
        ),
        (
            lambda: targets.chosen(site.eval_file()),
            "no target is chosen: give --target, or execution.target in the file; known: gpt",
        ),
        (lambda: targets.resolve("x"), "there is no target 'x'; known: gpt, claude"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert said in str(caught.value)


def test_without_any_targets_that_is_said(site: Site) -> None:
    with pytest.raises(UserError, match="no targets file was found, and the eval file has no targets"):
        site.targets().resolve("x")


def test_a_tests_own_targets(site: Site) -> None:
    site.write("targets.yaml", mocks(a="x", b="x", c="x"))
    path = site.write(
        "own.yaml",
        "execution: {targets: [a, b]}\ntests:\n"
        "  - {id: all, criteria: c, input: i}\n"
        "  - {id: some, criteria: c, input: i, execution: {targets: [b, c]}}\n"
        "  - {id: one, criteria: c, input: i, execution: {target: c}}\n"
        "  - {id: none, criteria: c, input: i, execution: {target: d}}\n",
    )
    file = load_evals([path], SearchPath.of(site.folder), notices=lambda _: None)[0]
    targets = find_targets(file, None, {}, search_path=site.around)
    every, some, one, none = file.tests

    def names(given: Sequence[str] = ()) -> list[tuple[str, ...]]:
        chosen = choose_targets(file, Survey.of((every, some, one)), targets, given, Findings())
        return [chosen.of(test.targets) for test in (every, some, one)]

    assert names() == [("a", "b"), ("b", "c"), ("c",)]
    assert names(("a", "c")) == [("a", "c"), ("c",), ("c",)]
    assert names(("a",)) == [("a",), (), ()]
    findings = Findings()
    choose_targets(file, Survey.of((none,)), targets, (), findings)
    assert findings.problems == [
        "own.yaml, line 6: tests[3].execution.target: there is no target 'd'; known: a, b, c",
    ]


# --- Commands


def test_the_target_of_the_example(site: Site) -> None:
    site.write(
        "agentv-targets.yaml",
        """
targets:
  batch_cli:
    provider: cli
    commandTemplate: bun run ./scripts/batch-runner.ts --eval {EVAL_FILE} --output {OUTPUT_FILE}
    provider_batching: true
""",
    )
    target = site.targets().resolve("batch_cli")

    assert target.batching
    settings = target.resolved({})
    assert isinstance(settings, CliTargetSettings)
    assert settings.batching
    assert (
        settings.command.template.line == "bun run ./scripts/batch-runner.ts --eval {EVAL_FILE} --output {OUTPUT_FILE}"
    )
    assert settings.command.folder == site.folder
    assert settings.command.eval_file == site.folder / "my.yaml"
    assert settings.command.seconds is None


@pytest.mark.parametrize("key", ["command_template", "commandTemplate", "command", "command-template"])
def test_a_command_by_all_its_names(site: Site, key: str) -> None:
    assert site.settings(f"{{provider: CLI, {key}: run}}").command.template.line == "run"
    assert site.settings(f"{{provider: cli, {key}: [run, '{{PROMPT}}']}}").command.template.words == ("run", "{PROMPT}")


def test_all_settings_of_commands(site: Site) -> None:
    (site.folder / "sub").mkdir()
    settings = site.settings(
        "{provider: cli, command: run, cwd: sub, timeoutSeconds: 2.5, attachmentsFormat: '-f {path}', cli_verbose: true, "
        "keepOutputFiles: yes, workers: 7, judge_target: j, providerBatching: 'true'}"
    )

    assert settings.command.folder == site.folder / "sub"
    assert (settings.command.seconds, settings.command.files_format, settings.command.keep_files) == (
        2.5,
        "-f {path}",
        True,
    )
    assert settings.verbose
    assert settings.batching
    target = site.target("{provider: cli, command: run, workers: 7, grader_target: j}")
    assert (target.workers, target.judge_target, target.batching) == (7, "j", False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{provider: cli}", "targets.t: command is required"),
        ("{provider: cli, command: ''}", "targets.t.command: the command is empty"),
        (
            "{provider: cli, commandTemplate: 'x {OUTPT_FILE}'}",
            "targets.t.commandTemplate: unknown placeholder {OUTPT_FILE}",
        ),
        ("{provider: cli, command: x, timeout: 3}", "targets.t.timeout: unknown key; did you mean timeout_seconds?"),
        ("{provider: cli, command: x, timeout_seconds: 0}", "targets.t.timeout_seconds: must be more than 0"),
        ("{provider: cli, command: x, cwd: none}", "targets.t.cwd: there is no folder "),
        ("{provider: cli, command: x, workspace_template: none}", "targets.t.workspace_template: there is no folder "),
        (
            "{provider: cli, command: x, cwd: ., workspaceTemplate: .}",
            "targets.t.cwd: can't be given together with workspace_template",
        ),
        ('{provider: cli, command: x, files_format: "\'"}', "targets.t.files_format: can't be split into words"),
        ("{provider: cli, command: x, commandTemplate: y}", "commandTemplate: is the same key as command"),
        ("{provider: cli, command: x, workers: 0}", "targets.t.workers: must be between 1 and"),
        ("{provider: cli, command: x, provider_batching: maybe}", "targets.t.provider_batching: must be true or false"),
        ("{provider: mock, provider_batching: true}", "targets.t.provider_batching: is for targets of kind cli"),
        (
            "{provider: vscode}",
            "'vscode' is a kind of target that can't be used: VS Code shows what its agent says only in its window",
        ),
        ("{provider: 3}", "targets.t.provider: must be a kind of target, not 3"),
        ("{provider: cli, command: x, healthcheck: {}}", "targets.t.healthcheck: needs either type http with a url"),
        ("{provider: cli, command: x, healthcheck: {type: http, command: x}}", "needs either type http with a url"),
        ("{provider: cli, command: x, healthcheck: {url: x}}", "targets.t.healthcheck.url: must be an address"),
        (
            "{provider: cli, command: x, healthcheck: {commnd: x}}",
            "targets.t.healthcheck.commnd: unknown key; did you mean command?",
        ),
        (
            "{provider: cli, command: x, healthcheck: {command: '{NO}'}}",
            "targets.t.healthcheck.command: unknown placeholder",
        ),
    ],
)
def test_wrong_settings_are_named(site: Site, settings: str, said: str) -> None:
    assert said in site.refusal(settings)
    assert site.refusal(settings).startswith("my.yaml, line 3: ")


def test_braces_that_are_no_placeholders_are_left_alone(site: Site) -> None:
    line = 'echo \'{"a": {"b": 1}}\' ${HOME} {lower} {OUTPUT_FILE}'

    assert site.settings(f"{{provider: cli, command: {json.dumps(line)}}}").command.template.line == line


@pytest.mark.parametrize(
    ("written", "url", "command", "seconds"),
    [
        ("{type: http, url: 'http://localhost:1/health'}", "http://localhost:1/health", None, 9.0),
        ("{url: '${{ URL }}', timeoutSeconds: 1}", "http://there", None, 1.0),
        ("{type: command, command_template: 'check it'}", None, "check it", 9.0),
        ("check it", None, "check it", 9.0),
        ("https://x/health", "https://x/health", None, 9.0),
        ("true", None, "run '--healthcheck'", 9.0),
        ("--health", None, "run '--health'", 9.0),
    ],
)
def test_healthchecks(site: Site, written: str, url: str | None, command: str | None, seconds: float) -> None:
    text = f"{{provider: cli, command: run, timeout_seconds: 9, healthcheck: {written}}}"
    check = site.settings(text, URL="http://there").healthcheck

    assert (check.url, check.template and check.template.line, check.seconds) == (url, command, seconds)


def test_known_agents_are_commands(site: Site) -> None:
    for names, program in (
        (("claude", "claude-code", "claude_sdk"), "claude"),
        (("codex", "codex-cli"), "codex"),
        (("copilot", "copilot-cli", "copilot_sdk"), "copilot"),
        (("gemini-cli",), "gemini"),
        (("pi", "pi-coding-agent", "pi-agent-sdk"), "pi"),
    ):
        for name in names:
            settings = site.settings(
                f"{{provider: {name}, model: 'm x', args: [--flag, \"it's\"], timeout_seconds: 5}}"
            )
            assert isinstance(settings, CliTargetSettings)
            line = settings.command.template.line or ""
            assert line.startswith(f"'{program}' ")
            assert """ '--model' 'm x' '--flag' 'it'"'"'s' """ in line
            assert settings.command.template.uses("OUTPUT_FILE")
            assert settings.command.template.uses("PROMPT", "PROMPT_FILE")
    assert site.settings("{provider: claude, executable: ./mine}").command.template.line.startswith("'./mine' --print")


# --- Models and agents


@pytest.mark.parametrize(
    ("settings", "url", "key"),
    [
        ("{provider: openai, model: m}", "https://api.openai.com/v1", "openai-key"),
        ("{provider: openai, model: m, api_key: '${{ OWN }}'}", "https://api.openai.com/v1", "own-key"),
        ("{provider: anthropic, model: m}", "https://api.anthropic.com/v1", "anthropic-key"),
        ("{provider: google, model: m}", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini-key"),
        ("{provider: openrouter, model: m}", "https://openrouter.ai/api/v1", "openrouter-key"),
        (
            "{provider: azure, deployment: m, endpoint: 'https://r.openai.azure.com/'}",
            "https://r.openai.azure.com/openai/v1",
            "azure-key",
        ),
        (
            "{provider: azure-openai, model: m, endpoint: res, api_version: '2024'}",
            "https://res.openai.azure.com/openai/v1",
            "azure-key",
        ),
        (
            "{provider: openai_compatible, model: m, base_url: 'http://localhost:8000/v1'}",
            "http://localhost:8000/v1",
            None,
        ),
        ("{provider: model, model: simulated}", "https://openrouter.ai/api/v1", "openrouter-key"),
    ],
)
def test_models(site: Site, settings: str, url: str, key: str | None) -> None:
    environ = {
        "OPENAI_API_KEY": "openai-key",
        "OWN": "own-key",
        "ANTHROPIC_API_KEY": "anthropic-key",
        "GEMINI_API_KEY": "gemini-key",
        "OPENROUTER_API_KEY": "openrouter-key",
        "AZURE_OPENAI_API_KEY": "azure-key",
    }
    long = {name: f"{value}-0123456789abcdef" for name, value in environ.items()}  # what is short is no secret
    resolved = site.target(settings).resolved(long)

    assert isinstance(resolved, ModelTargetSettings)
    assert not isinstance(resolved, AgentTargetSettings)
    assert resolved.options.model in ("m", "simulated")
    assert resolved.options.base_url == url
    found = resolved.api_key[0].text if resolved.api_key else None
    assert found == (None if key is None else f"{key}-0123456789abcdef")
    assert found is None or found not in KNOWN.text(f"it is {found}")
    assert "-key" not in repr(resolved)


def test_settings_of_models(site: Site) -> None:
    settings = site.settings(
        "{provider: model, model: simulated, temperature: '${{ T }}', maxOutputTokens: 50, timeout_seconds: 3, system_prompt: Hi.}",
        T="0.5",
    )

    options = settings.options
    assert (options.temperature, options.max_tokens, options.call_timeout, options.system_prompt) == (
        0.5,
        50,
        3.0,
        "Hi.",
    )


def test_the_built_in_agent(site: Site) -> None:
    settings = site.settings(
        "{provider: agent, model: simulated, maxTurns: 3, toolsets: [terminal, file], sandbox: local}"
    )

    assert isinstance(settings, AgentTargetSettings)
    assert (settings.options.max_turns, settings.options.toolsets, settings.options.sandbox) == (
        3,
        ("terminal", "file"),
        "local",
    )


def test_a_model_without_an_endpoint_is_recorded_with_its_own_providers(site: Site) -> None:
    text = "targets:\n  t: {provider: model, model: '${{ M }}'}\n"
    targets = site.targets(text, OPENAI_API_KEY="k", M="gpt-5-mini")
    assert targets.resolve("t").settings["base_url"] == "https://api.openai.com/v1"
    assert "base_url" not in site.targets(text, OPENAI_API_KEY="k", M="llama").resolve("t").settings
    both = site.targets(text, OPENAI_API_KEY="k", OPENROUTER_API_KEY="k", M="gpt-5-mini")
    assert "base_url" not in both.resolve("t").settings


def test_sources_of_tools_are_files_beside_the_eval_file_or_modules(site: Site) -> None:
    sources = ["own.py", "sub/own.py:look", "acme.pyutils:lookup", "acme.py:look"]
    options = site.settings(f"{{provider: agent, model: simulated, tools: {json.dumps(sources)}}}").options
    assert options.tools == (
        f"{site.folder}/own.py",
        f"{site.folder}/sub/own.py:look",
        "acme.pyutils:lookup",
        f"{site.folder}/acme.py:look",
    )


def test_headers_and_other_fields_of_requests(site: Site) -> None:
    own = "headers: {X-Team: mine, Authorization: 'Bearer ${{ T }}'}, stop: '#', tool_choice: auto, extra_body: {top_k: 1}"
    options = site.settings(f"{{provider: model, model: m, base_url: 'http://h', {own}}}", T="0123456789abcdef").options
    headers = {header.name: header.value for header in options.header}
    assert headers == {"X-Team": "mine", "Authorization": "Bearer 0123456789abcdef"}
    assert (options.stop, options.tool_choice, options.extra_body) == (("#",), "auto", {"top_k": 1})
    assert "0123456789abcdef" not in repr(options)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{provider: model, model: m, headers: {X-Api-Key: k-1}}", "X-Api-Key must be a variable of the environment"),
        ("{provider: model, model: m, extra_body: {messages: []}}", "can't set messages"),
        ("{provider: openai}", "targets.t: model is required"),
        ("{provider: openai, model: m}", "targets.t: no key for https://api.openai.com/v1: set OPENAI_API_KEY"),
        ("{provider: azure, model: m}", "targets.t: endpoint is required"),
        ("{provider: azure, model: m, endpoint: r}", "set AZURE_OPENAI_API_KEY or AZURE_API_KEY"),
        ("{provider: openai, model: m, api_key: sk-123}", "targets.t.api_key: must be a variable of the environment"),
        (
            "{provider: openai, model: m, api_key: '${{ NO }}'}",
            "targets.t.api_key: the environment variable NO is not set",
        ),
        ("{provider: model, model: m, base_url: x}", "targets.t.base_url: must be an address"),
        ("{provider: model, model: m, max_turns: 3}", "targets.t.max_turns: unknown key"),
        ("{provider: agent, max_turn: 3}", "targets.t.max_turn: unknown key; did you mean max_turns?"),
        ("{provider: agent, max_turns: 0}", "targets.t.max_turns: must be 1 or more, not 0"),
        ("{provider: agent, max_cost: 3}", "targets.t.max_cost: unknown key"),
        ("{provider: agent, model: simulated, mcp_config: none.json}", "targets.t: --mcp_config: no such file"),
    ],
)
def test_wrong_settings_of_models_are_named(site: Site, settings: str, said: str) -> None:
    assert said in site.refusal(settings)
    assert "sk-123" not in site.refusal(settings)


# --- The other kinds


def test_the_other_kinds(site: Site) -> None:
    site.write("out.jsonl", "")

    assert site.settings("{provider: mock}") == MockTargetSettings('{"answer":"Mock dry-run response"}')
    assert site.settings("{provider: mock, response: {aB: [1]}, delayMs: 20}") == MockTargetSettings(
        '{"aB":[1]}', 0.02, 0.02
    )
    assert site.settings("{provider: mock, delay_min_ms: 1, delay_max_ms: 2}").max_seconds == 0.002
    assert site.settings(
        "{provider: python, function: 'a.b:c', config: {aB: '${{ X }}'}, timeout_seconds: 3}", X="x"
    ) == PythonTargetSettings("a.b:c", site.folder, {"aB": "x"}, 3.0)
    assert site.settings("{provider: replay, path: out.jsonl}") == ReplayTargetSettings(site.folder / "out.jsonl")
    assert "must be module:function" in site.refusal("{provider: python, function: nope}")
    assert "there is no file" in site.refusal("{provider: replay, path: none.jsonl}")
    assert "must not be more than" in site.refusal("{provider: mock, delay_min_ms: 5, delay_max_ms: 2}")


# --- The environment


def test_variables_are_put_in_when_a_target_is_used(site: Site) -> None:
    target = site.target(
        "{provider: cli, command: 'run --key ${{ MY_TOKEN }} {PROMPT}', cwd: '${{ NOWHERE }}', timeout_seconds: '${{ T:-7 }}'}"
    )

    with pytest.raises(
        UserError, match=r"my\.yaml, line 3: targets\.t\.command: the environment variable MY_TOKEN is not set"
    ):
        target.resolved({})
    resolved = target.resolved({"MY_TOKEN": "tok-s3cret-s3cret"})
    assert isinstance(resolved, CliTargetSettings)
    assert resolved.command.template.line == "run --key tok-s3cret-s3cret {PROMPT}"
    assert resolved.command.folder == site.folder
    assert resolved.command.seconds == 7.0
    assert "s3cret" not in KNOWN.text("it is tok-s3cret-s3cret")


def test_a_targets_record_holds_no_value_of_the_environment(site: Site) -> None:
    target = site.target(
        "{provider: openai, model: '${{ MODEL }}', apiKey: '${{ OPENAI_API_KEY }}', baseUrl: 'http://localhost:1/v1'}"
    )
    environ = {"OPENAI_API_KEY": "s3cret", "MODEL": "m"}
    before = target.resolved(environ)

    record = json.loads(json.dumps(target.to_json()))

    assert "s3cret" not in json.dumps(record)
    again = Target.from_json(record)
    assert again.resolved(environ) == before
    with pytest.raises(UserError, match=r"my\.yaml, line 3: targets\.t\.apiKey: the environment variable"):
        again.resolved({})


def test_what_is_recorded_of_a_file_stays_as_it_is_written(site: Site) -> None:
    target = site.target("{provider: mock, response: {aB: [1, 2.0]}}")
    location = {"file": str(target.location.file), "path": ["targets", "t"], "line": 3}
    as_target: dict[str, Any] = {
        "name": "t",
        "kind": "mock",
        "settings": {"provider": "mock", "response": {"aB": [1, 2.0]}},
        "place": location,
        "folder": str(site.folder),
        "eval_file": str(site.folder / "my.yaml"),
        "judge_target": None,
        "workers": None,
        "batching": False,
        "words": [],
    }
    one = FileTargets("a/\udcff.yaml", "a", (target,), (), None, 2, others=("b",), cache_path="c", threshold=0.5)
    recorded: dict[str, Any] = {
        "path": "a/\udcff.yaml",
        "dataset": "a",
        "targets": [as_target],
        "judges": [],
        "workers": None,
        "tests": 2,
        "others": ["b"],
        "cache": False,
        "cache_path": "c",
        "threshold": 0.5,
        "fail_on_error": False,
        "in_turn": 1,
        "usual": [],
    }

    assert dumps(one.to_json()) == dumps(recorded)
    assert FileTargets.from_json(loads(dumps(recorded))).to_json() == recorded
    assert dumps(replace(one, depends=True).to_json()) == dumps({**recorded, "depends": True})
    earlier = {name: recorded[name] for name in ("path", "dataset", "targets", "judges", "workers", "tests")}
    assert FileTargets.from_json({**earlier, "of_a_later_version": 1}) == FileTargets(
        one.path, "a", (Target.from_json(as_target),), (), None, 2
    )


def test_variables_may_stand_only_where_they_are_looked_at(site: Site) -> None:
    assert "targets.t.workers: can't be a variable" in site.refusal("{provider: mock, workers: '${{ N }}'}", N="3")
    assert "is no variable" in site.refusal("{provider: mock, response: '${{ a b }}'}")


def test_values_of_the_environment_are_checked_too(site: Site) -> None:
    text = "{provider: cli, command: '${{ COMMAND }}', timeout_seconds: '${{ T }}'}"

    assert "targets.t.timeout_seconds: must be a number, not 'soon'" in site.refusal(text, COMMAND="x", T="soon")
    assert "targets.t.command: unknown placeholder {NO}" in site.refusal(text, COMMAND="x {NO}", T="1")


def test_dotenv_files_are_part_of_the_environment(site: Site) -> None:
    site.write(".env", "A=far\nB=far\n")
    site.write("deep/.env", "A=near\n")
    environ = {"B": "real", "C": "c"}
    targets = site.targets(
        "targets: {t: {provider: mock, response: '${{ A }}-${{ B }}-${{ C }}'}}", name="deep/my.yaml"
    )

    settings = targets.resolve("t").resolved(environment(site.folder / "deep", site.around, environ))

    assert isinstance(settings, MockTargetSettings)
    assert settings.response == "near-real-c"


def test_every_kind_says_how_it_answers() -> None:
    programs = {"cli", *AGENT_COMMANDS}
    facts = {
        "calls_models": {"agent", "model", "openai", "azure", "anthropic", "gemini", "openrouter", "agentv"},
        "starts_programs": programs,
        "cost_at_end": {*programs, "python"},
        "batches": {"cli"},
        "one_file_for_all": {"replay", "transcript", "copilot-log"},
        "conversational": {"agent"},
        "simulated": {"mock"},
    }
    said_here = set[str]().union(*facts.values())
    for fact, names in facts.items():
        assert {name for name in said_here if getattr(KINDS[name], fact)} == names, fact
    ways = ("calls_models", "cost_at_end", "one_file_for_all", "simulated")
    for name, kind in KINDS.items():
        assert sum(getattr(kind, way) for way in ways) == 1, name
