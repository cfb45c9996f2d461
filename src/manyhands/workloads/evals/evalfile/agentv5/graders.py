"""Lists of graders in AgentV 5's words, which are mostly promptfoo's.

=====================================  ==========================================================================
theirs                                 ours
=====================================  ==========================================================================
``metric``                             ``name``
``provider`` of a kind that is judged  ``target``, the judge
``provider`` of ``script``             ``target``, whether the program may ask the judge
``assert-set``                         ``composite`` with the aggregator ``assert_set``
``javascript``, ``python``             a program that runs the code of ``value`` (``inline_code``)
``config`` of an ``assert-set``        what its members have in their own ``config``, unless they say otherwise
=====================================  ==========================================================================

Other kinds and keys are the same. Kinds of promptfoo that nothing here stands for are problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from manyhands.core.jsonio import Json
from manyhands.core.settings import shown
from manyhands.core.text import json_text
from manyhands.io.keys import snake
from manyhands.io.locations import Findings, Location
from manyhands.workloads.evals.evalfile.agentv5.given import Given
from manyhands.workloads.evals.evalfile.agentv5.inline_code import LANGUAGES, inline_code

_JUDGED = ("llm_rubric", "agent_rubric", "llm_grader", "llm_judge", "trajectory:goal_success")
_RUBRICS = ("llm_rubric", "agent_rubric")
_SCRIPT = ("script", "code_grader", "code_judge")
_ASSERT_SET = "assert_set"
_COMMON = ("weight", "required", "min_score", "negate")
_BY_JUDGE = "use llm-rubric with what a good answer does as value"
_BY_TEXT = "use contains, regex or a script"
_INSTEAD = {
    **dict.fromkeys(
        (
            *("answer_relevance", "classifier", "context_faithfulness", "context_recall", "context_relevance"),
            *("conversation_relevance", "factuality", "g_eval", "is_refusal", "model_graded_closedqa", "moderation"),
            *("model_graded_factuality", "pi", "search_rubric", "select_best", "max_score", "human"),
        ),
        _BY_JUDGE,
    ),
    **dict.fromkeys(
        (
            *("contains_html", "contains_json", "contains_sql", "contains_xml", "is_html", "is_sql", "is_xml"),
            *("finish_reason", "guardrails", "is_valid_function_call", "is_valid_openai_function_call"),
            *("is_valid_openai_tools_call", "word_count"),
        ),
        _BY_TEXT,
    ),
    **dict.fromkeys(
        ("bleu", "gleu", "levenshtein", "meteor", "rouge_n", "ruby", "perplexity", "perplexity_score"),
        "use a script that computes it",
    ),
    **dict.fromkeys(
        ("similar", "similar:cosine", "similar:dot", "similar:euclidean"),
        f"no embeddings are computed here; {_BY_JUDGE}",
    ),
    "webhook": "use a script that asks the address",
    **dict.fromkeys(
        ("tool_call_f1", "trace_error_spans", "trace_span_count", "trace_span_duration"),
        "use a kind of trajectory:… or execution-metrics",
    ),
}
"""Kinds of promptfoo that are not there, and what to write for each."""
_TRANSFORM = "is not supported: answers are graded as they are; let the target, or a script, change them"


@dataclass(frozen=True, slots=True)
class GraderWords:
    """Translates lists of graders, and keeps what holds for all of a file or of a test."""

    findings: Findings
    rubric_prompt: Json = None
    """The prompt of judges' graders that have none."""
    judge: str | None = None
    """The judge of those that name none."""
    config: Mapping[str, Json] = field(default_factory=dict)
    """What members of an ``assert-set`` have in their own ``config``."""

    def present(self, entries: Json, location: Location) -> Json:
        """A list in present words; what is none is left to others. Problems are in ``findings``."""
        return self.entries(entries, location) if isinstance(entries, list) else entries

    def entries(self, entries: list[Json], location: Location) -> list[Json]:
        """The same for what is known to be a list."""
        found = (self._entry(entry, location.at(index)) for index, entry in enumerate(entries))
        return [entry for entry in found if entry is not None]

    def of_test(self, options: Mapping[str, Json], findings: Findings) -> GraderWords:
        """Those of a test. ``options``: the test's."""
        judge, prompt = options.get("provider"), options.get("rubric_prompt")
        return replace(
            self,
            findings=findings,
            judge=judge if isinstance(judge, str) and judge.strip() else self.judge,
            rubric_prompt=self.rubric_prompt if prompt is None else prompt,
        )

    def _entry(self, entry: Json, location: Location) -> Json:
        """The entry; None for one that AgentV leaves out, too."""
        if not isinstance(entry, Mapping) or "include" in entry:
            return entry
        given = Given(entry, location, self.findings)
        kind = given.peek("type")
        if not isinstance(kind, str):
            return entry
        word = ":".join(map(snake, kind.split(":")))
        opposite = word.startswith("not_")
        word = word.removeprefix("not_")
        if word in _INSTEAD:
            self.findings.problem(given.at("type"), f"{shown(kind)} is not supported; {_INSTEAD[word]}")
            return {"type": "is_json"}
        given.refuse({"transform": _TRANSFORM.removeprefix("is not supported: ")})
        if word in _RUBRICS and not any((given.has("value"), given.has("prompt"), self.rubric_prompt)):
            self.findings.notice(location.says("has neither value nor prompt, and is left out"))
            return None
        name = self._name(given)
        found = self._of_kind(word, given)
        if opposite and word in (_ASSERT_SET, *LANGUAGES):
            found["negate"] = True
        return {**({} if name is None else {"name": name}), **found}

    def _name(self, given: Given) -> str | None:
        """Its ``metric``, else the name or id that a person gave it."""
        names = {key: given.take(key) for key in ("metric", "name", "id")}
        for key, name in names.items():
            if name is not None and not (isinstance(name, str) and name.strip()):
                self.findings.problem(given.at(key), f"must be a text, not {shown(name)}")
                return None
        return next((name for name in names.values() if name is not None), None)

    def _of_kind(self, word: str, given: Given) -> dict[str, Json]:
        if word == _ASSERT_SET:
            return self._set(given)
        if word in LANGUAGES and given.has("value"):
            return self._code(word, given)
        if word in _JUDGED:
            self._judged(word, given)
        elif word in _SCRIPT:
            access = given.take("provider")
            if access is not None:
                return {**self._configured(given), "target": access}
            return self._configured(given)
        return given.left

    def _configured(self, given: Given) -> dict[str, Json]:
        """What is left of an entry, with the members' config that it does not have."""
        if not self.config:
            return given.left
        own = given.take("config")
        return {**given.left, "config": {**self.config, **(own if isinstance(own, Mapping) else {})}}

    def _judged(self, word: str, given: Given) -> None:
        judge = given.take("provider")
        if judge is not None and not isinstance(judge, str):
            self.findings.problem(given.at("provider"), f"must be the name of a provider, not {shown(judge)}")
        judge = judge if isinstance(judge, str) else self.judge
        if judge is not None and not given.has("target"):
            given.put("target", judge)
        if word not in _RUBRICS:
            return
        prompt = self.rubric_prompt if given.peek("prompt") is None else given.peek("prompt")
        if isinstance(prompt, list) or (isinstance(prompt, Mapping) and "command" not in prompt):
            prompt = json_text(prompt, indent=2)
        if prompt is not None:
            given.put("prompt", prompt)
        given.idle({"threshold": "min_score is the score from which on a grader passes"})

    def _set(self, given: Given) -> dict[str, Json]:
        config = given.mapping("config")
        judge = config.pop("provider", None)
        inner = replace(self, judge=judge if isinstance(judge, str) else self.judge, config={**self.config, **config})
        members, location = given.take("assert"), given.at("assert")
        threshold = given.take("threshold")
        if not isinstance(members, list) or not members:
            self.findings.problem(location, "must be a list of graders, with at least one")
            members = [{"type": "is_json"}]
        aggregator = {"type": _ASSERT_SET, **({} if threshold is None else {"threshold": threshold})}
        given.take("type")
        return {"type": "composite", **given.left, "assert": inner.present(members, location), "aggregator": aggregator}

    def _code(self, language: str, given: Given) -> dict[str, Json]:
        code, config = given.take("value"), given.take("config")
        given.take("type")
        given.idle({"threshold": "min_score is the score from which on a grader passes"})
        common = {key: given.take(key) for key in _COMMON}
        given.tell_left(f"a grader of kind {language}")
        if not isinstance(code, str) or not code.strip() or code.startswith("file://"):
            self.findings.problem(given.at("value"), f"must be code; use a script for a file: not {shown(code)}")
            code = "0"
        inherited: dict[str, Any] = {**self.config, **(config if isinstance(config, Mapping) else {})}
        found = {"name": language, **inline_code(language, code), **({"config": inherited} if inherited else {})}
        return {**found, **{key: value for key, value in common.items() if value is not None}}
