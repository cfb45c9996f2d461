"""The settings of a batch: defaults, checks, record, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.agents.options import load_prefill
from manyhands.core.errors import RunError, UserError
from manyhands.core.settings import changed_settings
from manyhands.models.settings import EFFORTS
from manyhands.runs.options import resume_spec
from manyhands.workloads.trajectories.spec import BatchSpec

NEEDED = {"dataset_file": "d.jsonl", "batch_size": 2, "run_name": "r"}


def make(**values: Any) -> BatchSpec:
    return BatchSpec.make({**NEEDED, **values})


def refused(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(**values)
    return str(caught.value)


def test_names_and_defaults_are_the_originals() -> None:
    spec = make()
    originals = {
        "dataset_file": "d.jsonl",
        "batch_size": 2,
        "run_name": "r",
        "distribution": "default",
        "model": "anthropic/claude-sonnet-4.6",
        "api_key": None,
        "base_url": "https://openrouter.ai/api/v1",
        "max_turns": 10,
        "num_workers": 4,
        "resume": False,
        "verbose": False,
        "list_distributions": False,
        "ephemeral_system_prompt": None,
        "log_prefix_chars": 100,
        "providers_allowed": None,
        "providers_ignored": None,
        "providers_order": None,
        "provider_sort": None,
        "max_tokens": None,
        "reasoning_effort": None,
        "reasoning_disabled": False,
        "prefill_messages_file": None,
        "max_samples": None,
    }
    assert {name: getattr(spec, name) for name in originals} == originals
    assert (spec.concurrency, spec.samples, spec.seed, spec.sandbox, spec.data_dir) == (1, 1, None, "auto", "data")
    assert (spec.item_timeout, spec.call_timeout, spec.tool_timeout) == (3600, 600, 180)
    assert (spec.executor, spec.on_divergence, spec.network) == ("processes", "fresh", False)


def test_every_setting_has_help_and_a_heading() -> None:
    for name, field in BatchSpec.fields.items():
        assert (field.description or "").endswith("."), name
        assert BatchSpec.about(name).group != "Options" or not BatchSpec.about(name).typed, name


def test_every_setting_has_its_place_in_the_help_its_own_before_inherited_ones() -> None:
    names = BatchSpec.in_order()
    assert sorted(names) == sorted(BatchSpec.fields)
    assert names[:4] == ["dataset_file", "batch_size", "run_name", "encoding"]
    groups = list(dict.fromkeys(BatchSpec.about(name).group for name in names if BatchSpec.about(name).typed))
    assert groups == list(BatchSpec.headings)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make().model = "other"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError) as caught:
        BatchSpec.make({})
    assert str(caught.value).splitlines() == [
        "dataset_file is required",
        "batch_size is required",
        "run_name is required",
    ]


def test_unknown_settings_are_refused_with_the_nearest() -> None:
    assert refused(temprature=1) == "unknown setting temprature; did you mean temperature?"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_size", 0, "batch_size must be 1 or more, not 0"),
        ("batch_size", "2.5", "must be a whole number, not '2.5'"),
        ("batch_size", 2.0, "must be a whole number"),
        ("batch_size", True, "must be a whole number"),
        ("batch_size", "", "must be a whole number"),
        ("max_turns", 0, "must be 1 or more"),
        ("num_workers", 0, "must be between 1 and 10000"),
        ("num_workers", -1, "must be between 1 and 10000"),
        ("concurrency", 0, "must be between"),
        ("samples", 0, "must be 1 or more"),
        ("max_samples", 0, "must be 1 or more"),
        ("max_samples", -1, "must be 1 or more"),
        ("max_tokens", "8k", "must be a whole number, not '8k'"),
        ("max_tokens", 0, "must be 1 or more"),
        ("max_attempts", 0, "must be 1 or more"),
        ("seed", -1, "must be 0 or more"),
        ("temperature", -1, "must be between 0 and 2"),
        ("temperature", 2.1, "must be between 0 and 2"),
        ("temperature", "hot", "must be a number, not 'hot'"),
        ("temperature", "nan", "must be a number"),
        ("temperature", float("inf"), "must be a number"),
        ("top_p", 1.5, "must be between 0 and 1"),
        ("max_cost", 0, "must be more than 0"),
        ("item_timeout", 0, "must be more than 0"),
        ("call_timeout", "", "must be a number"),
        ("log_prefix_chars", -1, "must be 0 or more"),
        ("reasoning_effort", "extreme", f"must be one of {', '.join(EFFORTS)}"),
        ("executor", "dask", "must be 'processes', 'local' or 'ray'"),
        ("on_divergence", "go", "must be 'fresh' or 'stop'"),
        ("verbose", "maybe", "must be true or false"),
        ("resume", 2, "must be true or false"),
        ("model", " ", "must not be empty"),
        ("distribution", 5, "must be text"),
        ("base_url", "localhost:8000", "must be an address"),
        ("base_url", "http://", "must be an address"),
        ("base_url", "http://host:port", "must be an address"),
        ("base_url", "https://me:secret@host/v1", "must not hold a name and password"),
        ("providers_allowed", 5, "must be a list of words"),
        ("providers_order", ["a", 5], "must be a list of words"),
        ("override", "modle", "names 'modle', which is no setting that a resume refuses; did you mean model?"),
        ("prefill_messages", [{"role": "user"}], 'message 1 has no "content"'),
        ("prefill_messages", [{"role": "user", "content": "x"}, "x"], "message 2 is not an object"),
    ],
)
def test_bad_values_are_refused_in_one_line(name: str, value: Any, said: str) -> None:
    message = refused(**{name: value})
    assert said in message
    assert message.startswith(f"{name} ")
    assert "\n" not in message


def test_all_problems_are_told_at_once() -> None:
    assert len(refused(batch_size=0, max_turns=0, model="").splitlines()) == 3


@pytest.mark.parametrize("name", ["2024", "1e5", "run#1", "007", "My run", "ü-1", "-x", "a" * 200])
def test_run_names_stay_as_typed(name: str) -> None:
    assert make(run_name=name).run_name == name


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "/abs", "a\\b", "../x", "a\0b", "a\nb", "a" * 201, "ü" * 101, 5, "\ud800"]
)
def test_run_names_that_are_no_plain_folder_are_refused(name: Any) -> None:
    assert refused(run_name=name).startswith("run_name must")


@given(st.text())
def test_an_accepted_run_name_is_one_folder_inside_the_data_folder(name: str) -> None:
    try:
        spec = make(run_name=name, data_dir="/data")
    except UserError:
        return
    assert spec.run_folder.parent == Path("/data")
    assert spec.run_folder.name == name


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        ("anthropic,google", ("anthropic", "google")),
        (" a , b ,", ("a", "b")),
        ("one", ("one",)),
        (["a", " b"], ("a", "b")),
        (("x",), ("x",)),
        ("", None),
        (" , ", None),
        (None, None),
        ([], None),
    ],
)
def test_lists_of_words(given_value: Any, kept: Any) -> None:
    assert make(providers_allowed=given_value).providers_allowed == kept


@pytest.mark.parametrize("effort", EFFORTS)
def test_reasoning_efforts(effort: str) -> None:
    assert make(reasoning_effort=effort.upper()).reasoning_effort == effort


def test_nothing_is_no_value() -> None:
    spec = make(
        max_tokens="None", reasoning_effort="None", ephemeral_system_prompt="", api_key="", temperature="", prices=""
    )
    assert {spec.max_tokens, spec.reasoning_effort, spec.ephemeral_system_prompt, spec.api_key, spec.temperature} == {
        None
    }


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    assert make(dataset_file=tmp_path).dataset_file == str(tmp_path)


# --- The key


def test_the_key_is_in_no_record_and_no_message() -> None:
    spec = make(api_key=" sk-secret ")
    assert [key.text for key in spec.api_key or ()] == ["sk-secret"]
    for text in (repr(spec), str(spec), json.dumps(spec.recorded())):
        assert "sk-secret" not in text
    assert "4711" not in refused(api_key=4711)
    assert "sk-\0secret" not in refused(api_key="sk-\0secret")


# --- Record and resume


def test_the_record_gives_the_settings_back() -> None:
    spec = make(
        providers_order="a,b",
        temperature=0.5,
        prefill_messages=[{"role": "user", "content": "x"}],
        resume=True,
        override="model",
        verbose=True,
    )
    record = json.loads(json.dumps(spec.recorded()))
    assert not {"api_key", "resume", "override", "list_distributions", "data_dir"} & set(record)
    again = BatchSpec.make(record)
    assert again == make(providers_order="a,b", temperature=0.5, prefill_messages=spec.prefill_messages, verbose=True)
    assert again.recorded() == spec.recorded()


def test_changes_of_identity_are_named_and_others_are_free() -> None:
    old = make()
    free = make(
        num_workers=9,
        concurrency=5,
        verbose=True,
        item_timeout=5,
        max_cost=1,
        api_key="x",
        resume=True,
        max_samples=3,
        executor="local",
    )
    assert changed_settings(old, free) == []
    assert changed_settings(old, make(model="m", max_turns=5)) == [
        ("model", "anthropic/claude-sonnet-4.6", "m"),
        ("max_turns", 10, 5),
    ]


def test_a_resume_keeps_what_is_not_given() -> None:
    recorded = BatchSpec.make(make(max_turns=30, model="m", num_workers=2).recorded())
    spec = resume_spec(recorded, make(num_workers=8, resume=True))
    assert (spec.max_turns, spec.model, spec.num_workers, spec.resume) == (30, "m", 8, True)


def test_a_changed_setting_is_refused_with_the_option_that_overrides() -> None:
    with pytest.raises(RunError) as caught:
        resume_spec(make(), make(max_turns=30, temperature=1))
    assert str(caught.value) == (
        "the run was made with other settings: temperature was None and is now 1.0, max_turns was 10 and is now 30; "
        "leave them as they were, or accept with --override=temperature,max_turns"
    )


@pytest.mark.parametrize("override", ["max_turns,temperature", "all", "--max-turns, temperature"])
def test_an_override_accepts_the_change(override: str) -> None:
    assert resume_spec(make(), make(max_turns=30, temperature=1, override=override)).max_turns == 30


def test_an_override_accepts_nothing_else() -> None:
    with pytest.raises(RunError, match="temperature was None") as caught:
        resume_spec(make(), make(max_turns=30, temperature=1, override="max_turns"))
    assert "max_turns" not in str(caught.value)


# --- Files


def test_files_are_read_and_paths_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_text('[{"role": "user", "content": "é"}]', encoding="utf-8-sig")
    Path("t.txt").write_text("template", encoding="utf-8")
    Path("m.yaml").write_text("{}", encoding="utf-8")
    spec = make(prefill_messages_file="p.json", system_template="t.txt", mcp_config="m.yaml").resolved()
    assert spec.prefill_messages == ({"role": "user", "content": "é"},)
    assert spec.system_template_text == "template"
    assert (spec.dataset_file, spec.mcp_config) == (str(tmp_path / "d.jsonl"), str(tmp_path / "m.yaml"))
    again = BatchSpec.make(spec.recorded())
    assert again.prefill_messages == spec.prefill_messages
    Path("p.json").unlink()
    assert again.resolved().prefill_messages == spec.prefill_messages


def test_a_changed_prefill_file_is_a_changed_setting(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('[{"role": "user", "content": "a"}]')
    recorded = BatchSpec.make(make(prefill_messages_file=path).resolved().recorded())
    assert (
        resume_spec(recorded, make(prefill_messages_file=path).resolved()).prefill_messages == recorded.prefill_messages
    )
    path.write_text('[{"role": "user", "content": "b"}]')
    for given_spec in (make(prefill_messages_file=path).resolved(), make(prefill_messages_file="").resolved()):
        with pytest.raises(RunError, match="--override=prefill_messages_file"):
            resume_spec(recorded, given_spec)
    accepted = make(prefill_messages_file="", override="prefill_messages_file").resolved()
    assert resume_spec(recorded, accepted).prefill_messages is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"role": "user"}', "must be an array of messages"),
        ("[1]", "message 1 is not an object"),
        ('[{"role": "user", "content": "x"}, {"content": "x"}]', 'message 2 has no "role"'),
        ('[{"role": "robot", "content": "x"}]', 'message 1 has no "role" out of'),
        ('[{"role": "user", "content": 5}]', 'message 1 has no "content"'),
        ("[oops", "not JSON"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_a_bad_prefill_file_is_named_with_the_message(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load_prefill(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't read .*none"):
        make(prefill_messages_file=tmp_path / "none").resolved()
    with pytest.raises(UserError, match="--prices: no such file"):
        make(prices=tmp_path / "none").resolved()
