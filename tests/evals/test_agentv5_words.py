"""Eval files in AgentV 5's words: what they mean, how tests are called, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.main import main
from manyhands.core.errors import UserError
from manyhands.io.search_paths import SearchPath
from manyhands.workloads.evals.evalfile.contents import EvalFile
from manyhands.workloads.evals.evalfile.loading import load_evals


class Site:
    """A folder with files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notices: list[str] = []

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, text: str, version: str = "auto") -> EvalFile:
        self.notices = []
        path = self.write("suite.yaml", text)
        around = SearchPath.of(self.folder)
        return load_evals([path], around, notices=self.notices.append, version=version)[0]

    def refusal(self, text: str, version: str = "auto") -> str:
        with pytest.raises(UserError) as caught:
            self.load(text, version)
        return str(caught.value)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _said(file: EvalFile) -> dict[str, Any]:
    return {test.id: test.input[0]["content"] for test in file.tests}


# --- Prompts and variables


def test_each_prompt_goes_with_each_value(site: Site) -> None:
    site.write("words/brief.txt", "Briefly: {{ question }}")
    file = site.load(
        """
        name: towns
        prompts:
          - {id: plain, prompt: "{{ question }} In {{ language }}."}
          - file://words/brief.txt
        default_test:
          vars: {language: English}
          assert: [{type: is-json, negate: true}]
        tests:
          - id: capital
            vars: {question: [What is it?, Where is it?], town: Rome}
            assert: [{metric: town, type: contains, value: "{{ town }}"}]
          - id: river
            depends_on: [capital]
            vars: {question: Which river?}
        """
    )
    assert _said(file) == {
        "capital__prompt_plain__question_What-is-it": "What is it? In English.",
        "capital__prompt_plain__question_Where-is-it": "Where is it? In English.",
        "capital__prompt_words-brief.txt__question_What-is-it": "Briefly: What is it?",
        "capital__prompt_words-brief.txt__question_Where-is-it": "Briefly: Where is it?",
        "river__prompt_plain": "Which river? In English.",
        "river__prompt_words-brief.txt": "Briefly: Which river?",
    }
    assert file.dataset == "towns"
    first, river = file.tests[0], file.tests[4]
    assert [(entry.get("name"), entry["type"]) for entry in first.graders] == [("town", "contains"), (None, "is_json")]
    assert first.graders[0]["value"] == "Rome"
    assert river.depends_on == tuple(test.id for test in file.tests[:2])


def test_messages_and_variables_that_name_others(site: Site) -> None:
    site.write("chat.json", '[{"role": "system", "content": "Be {{ tone }}."}, {"role": "user", "content": "{{ q }}"}]')
    file = site.load(
        """
        prompts: [file://chat.json]
        tests:
          - id: a
            vars: {tone: kind, name: Ada, q: "Greet {{ vars.name }}{% if tone == 'kind' %} warmly{% endif %}"}
            assert: [Greets]
          - id: "b-{{ tone }}"
            vars: {tone: 'loud "x"', q: "{{ none }}"}
            assert: [Greets]
        """
    )
    assert next(message["content"] for message in file.tests[0].input) == "Be kind."
    assert file.tests[1].id == 'b-loud "x"'
    assert file.tests[1].input[0]["content"] == 'Be loud "x".'


def test_templates_beyond_names(site: Site) -> None:
    file = site.load(
        """
        prompts: ["{% for town in towns %}{{ town.name | upper }};{% endfor %} {{ towns | length }} {{ gone }}"]
        tests:
          - id: a
            vars: {towns: [{name: Rome}, {name: Bonn}], word: x}
            assert: [{type: contains, value: "{{ word | upper }}"}]
        """
    )
    assert file.tests[0].input[0]["content"].startswith("ROME;BONN; 2")
    assert file.tests[0].graders[0]["value"] == "X"
    assert "the template can't be filled" in site.refusal(
        "prompts: ['{% for %}']\ntests: [{id: a, vars: {x: y}, assert: [ok]}]"
    )


def test_names_of_no_variable_are_told(site: Site) -> None:
    file = site.load("prompts: ['Say {{ wrod }}!']\ntests: [{id: a, vars: {word: x}, assert: [ok]}]")
    assert _said(file) == {"a": "Say !"}
    assert site.notices == ["suite.yaml: names in prompts that are no variables stand for nothing: wrod"]


def test_what_is_expected_is_also_the_reference(site: Site) -> None:
    file = site.load(
        """
        prompts: ["{{ input }}"]
        tests:
          - id: a
            vars: {input: [{role: system, content: Add.}, {role: user, content: 1+1}], expected_output: {sum: 2}}
            assert: [{type: field-accuracy, fields: [{path: sum, match: exact}]}]
        """
    )
    test = file.tests[0]
    assert [message["role"] for message in test.input] == ["system", "user"]
    assert test.expected_output == ({"role": "assistant", "content": {"sum": 2}},)


def test_scenarios(site: Site) -> None:
    site.write(
        "more/one.yaml",
        """
        - config:
            - {id: es, vars: {language: Spanish, hello: hola}}
            - {id: fr, vars: {language: French, hello: bonjour}}
          tests:
            - {vars: {phrase: hello}, assert: [{type: equals, value: "{{ hello }}"}]}
        """,
    )
    file = site.load("prompts: ['{{ phrase }} in {{ language }}']\nscenarios: ['file://more/*.yaml']\n")
    assert _said(file) == {"es": "hello in Spanish", "fr": "hello in French"}
    assert file.tests[1].graders[0]["value"] == "bonjour"


def test_tests_in_tables_and_json(site: Site) -> None:
    site.write(
        "cases/one.csv",
        "id,vars.q,__expected,__expected2,__metric,__threshold,__metadata:tags[],n\n"
        'a,Hi,"icontains:hello",not-regex:^x,greeting,0.7,"x,y",5\n'
        ",Bye,Farewell,,,,,6\n",
    )
    site.write("cases/two.json", '{"tests": [{"id": "j", "vars": {"q": "Q"}, "assert": ["Answers"]}]}')
    file = site.load("prompts: ['{{ q }} {{ n }}']\ntests: [file://cases/one.csv, cases/two.json]\n")
    assert _said(file) == {"a": "Hi 5", "row-2": "Bye 6", "j": "Q "}
    first = file.tests[0]
    assert first.threshold == 0.7
    assert first.metadata == {"tags": ["x", "y"]}
    assert [(each["name"], each["type"], each.get("negate", False)) for each in first.graders] == [
        ("greeting-1", "icontains", False),
        ("greeting-2", "regex", True),
    ]
    assert file.tests[1].graders[0] == {"type": "equals", "value": "Farewell"}
    site.write("cases/one.csv", "id,__expected\na,levenshtein(5):x\n")
    assert "one.csv, line 2: __expected: 'levenshtein' is no kind" in site.refusal("prompts: [x]\ntests: cases/one.csv")


# --- What holds for all tests


def test_words_of_the_whole_file(site: Site) -> None:
    file = site.load(
        """
        prompts: ["{{ q }}"]
        providers: [llm, {id: "openai:gpt-4.1", label: fast, config: {temperature: 0}}, {"exec:cat {PROMPT_FILE}": {label: cat}}]
        defaults: {grader: judge}
        tags: {team: search, experiment: base}
        evaluate_options: {repeat: 3, max_concurrency: 2, budget_usd: 5, delay: 10}
        default_test: {threshold: 0.5, options: {rubric_prompt: "Judge {{ output }}"}}
        tests:
          - {id: a, vars: {q: x}, assert: [{type: llm-rubric, value: Good}], providers: [cat]}
          - {id: b, vars: {q: x}, assert: [ok], run: {repeat: 1, threshold: 0.9}}
        """
    )
    assert file.target_names == ("llm", "fast", "cat")
    assert file.judge_target == "judge"
    assert file.targets is not None
    assert file.targets.value == [
        {"name": "fast", "provider": "openai", "model": "gpt-4.1", "temperature": 0},
        {"name": "cat", "provider": "cli", "command": "cat {PROMPT_FILE}"},
    ]
    assert (file.workers, file.budget_usd, file.threshold) == (2, 5, 0.5)
    first, second = file.tests
    assert first.trials is not None
    assert (first.trials.count, first.trials.stop_early) == (3, False)
    assert first.tags == ("team=search", "experiment=base")
    assert first.targets == ("cat",)
    assert first.graders[0]["prompt"] == "Judge {{ output }}"
    assert second.trials is not None
    assert second.trials.count == 1
    assert second.threshold == 0.9
    assert any("has no effect here: evaluate_options.delay (line" in notice for notice in site.notices)


def test_environments_are_workspaces(site: Site) -> None:
    site.write("box/note.txt", "x")
    site.write("env/recipe.yaml", "type: host\nworkdir: ../box\nsetup: {command: [touch, made.txt], cwd: .}\n")
    file = site.load("prompts: [x]\nenvironment: file://env/recipe.yaml\ntests: [{id: a, assert: [ok]}]")
    assert file.workspace is not None
    assert file.workspace.before_all is not None
    assert file.workspace.template is not None
    assert file.workspace.template.resolve() == site.folder / "box"
    assert file.workspace.before_all.argv[-2:] == ("touch", "made.txt")
    assert "environment.type: must be host or docker" in site.refusal(
        "prompts: [x]\nenvironment: {type: vm, workdir: .}\ntests: [{id: a, assert: [ok]}]"
    )


# --- Graders


def test_sets_of_graders(site: Site) -> None:
    site.write("checks.yaml", "- {metric: included, type: contains, value: '{{ town }}'}\n")
    file = site.load(
        """
        prompts: ["x"]
        tests:
          - id: a
            vars: {town: Rome}
            assert:
              - type: assert-set
                metric: gate
                threshold: 0.5
                weight: 2
                config: {provider: judge}
                assert:
                  - {type: llm-rubric, value: Good, provider: own}
                  - {type: llm-rubric, value: Good}
              - include: checks.yaml
              - one
              - two
        """
    )
    gate, included, texts = file.tests[0].graders
    assert (gate["type"], gate["name"], gate["weight"]) == ("composite", "gate", 2)
    assert gate["aggregator"] == {"type": "assert_set", "threshold": 0.5}
    assert [member.get("target") for member in gate["assert"]] == ["own", "judge"]
    assert (included["name"], included["value"]) == ("included", "Rome")
    assert (texts["criteria"], texts["weight"]) == (["one", "two"], 2)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{type: similar, value: x}", "line 5: tests[0].assert[0].type: 'similar' is not supported; no embeddings"),
        ("{type: not-moderation}", "'not-moderation' is not supported; use llm-rubric"),
        ("{type: contains, value: x, transform: output.y}", "line 5: tests[0].assert[0].transform: is not supported"),
        ("{type: assert-set, assert: []}", "tests[0].assert[0].assert: must be a list of graders, with at least one"),
        ("{type: contains, value: x, metric: 3}", "tests[0].assert[0].metric: must be a text, not 3"),
    ],
)
def test_graders_that_can_not_be_meant(site: Site, entry: str, said: str) -> None:
    assert said in site.refusal(f"prompts: [x]\ntests:\n  - id: a\n    assert:\n      - {entry}\n")


# --- Which version it is


def test_the_option_and_the_keys_of_a_file(site: Site) -> None:
    mixed = "execution: {workers: 2}\nprompts: ['{{ q }}']\ntests: [{id: a, vars: {q: x}, assert: [ok]}]\n"
    assert site.load(mixed).workers == 2
    assert site.notices == [
        "suite.yaml: is read as agentv-5, as it has prompts (line 2); words of earlier versions keep their meaning: execution (line 1)"
    ]
    refused = site.refusal(mixed, "agentv-5")
    assert refused.startswith("suite.yaml, line 1: execution: is a word of earlier versions")
    assert "\n" not in refused
    refused = site.refusal(mixed, "agentv-4")
    assert refused == (
        "suite.yaml, line 2: prompts: is a word of agentv-5, and --format agentv-4 is given; leave one of them out"
    )
    either = "tests: [{id: a, input: x, assert: [{type: script, command: 'true', metric: rouge}]}]\n"
    assert site.load(either).tests[0].graders[0]["metric"] == "rouge"
    assert site.load(either, "agentv-5").tests[0].graders[0]["name"] == "rouge"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompts: [{function: x.js}]", "line 1: prompts[0].function: is not supported: a prompt is not made by"),
        ("prompts: file://none.txt", "line 1: prompts: there is no file none.txt"),
        ("prompts: [x]\nproviders: [{label: a}]", "line 2: providers[0]: id, the kind of provider, is required"),
        ("prompts: [x]\nproviders: [a, a]", "line 2: providers[1]: 'a' is the name of another provider too"),
        ("prompts: [x]\nevaluate_options: {repeat: 0}", "line 2: evaluate_options.repeat: must be"),
        ("prompts: [x]\ndefault_test: {assert_scoring_function: f}", "line 2: default_test.assert_scoring_function"),
        ("default_test: {vars: {a: b}}", "tests[0]: has no input: the file has no prompts"),
    ],
)
def test_what_is_wrong_is_one_line(site: Site, text: str, said: str) -> None:
    assert said in site.refusal(f"{text}\ntests: [{{id: a, assert: [ok]}}]\n")


# --- Runs


def _results(folder: Path, words: Sequence[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    out = folder / "out.jsonl"
    code = main(["eval", *words, "--out", str(out), "--data_dir", str(folder / "data")])
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    return code, {line["test_id"]: line for line in lines}


def test_a_run_scores_as_the_file_says(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.folder)
    site.write(
        ".agentv/providers.yaml", "- {id: cli, label: echo, config: {command: 'cat {PROMPT_FILE} > {OUTPUT_FILE}'}}\n"
    )
    site.write(".agentv/config.yaml", "providers: file://providers.yaml\ndefaults: {provider: echo}\n")
    site.write("box/seen.txt", "x")
    path = site.write(
        "suite.yaml",
        """
        prompts: ["{{ text }}"]
        environment: {type: host, workdir: box, setup: {command: [sh, -c, 'test -f "$AGENTV_ENVIRONMENT_WORKDIR/seen.txt"']}}
        tests:
          - id: half
            vars: {text: one two}
            assert:
              - {type: contains, value: one}
              - type: assert-set
                threshold: 0.5
                assert: [{type: contains, value: two}, {type: contains, value: three, weight: 3}]
          - id: code
            vars: {text: '{"n": 2}'}
            assert:
              - {type: python, value: "json.loads(output)['n'] / 4 if 'input' in context else 0"}
              - {type: python, value: "n = len(output)\\nreturn {'pass': n > 3, 'reason': 'long'}"}
              - {type: not-contains, value: x}
        """.replace("json.loads(output)['n'] / 4", "output.count('2') / 2"),
    )
    code, results = _results(site.folder, [str(path)])
    assert code == 1
    assert results["half"]["score"] == pytest.approx((1 + 0.25) / 2)
    assert results["code"]["score"] == pytest.approx((0.5 + 1 + 1) / 3)
