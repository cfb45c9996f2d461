"""Command lines into settings: every form of every value."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.cli.options import UsageError, help_text, make, options_of, parse, read, spell
from manyhands.core.settings import (
    Flag,
    OptionalList,
    OptionalSecret,
    Settings,
    Text,
    number,
    optional_whole,
    setting,
    whole,
)
from manyhands.workloads.trajectories.spec import BatchSpec

PROGRAM = "manyhands batch"
NEEDED = ["--dataset_file=d.jsonl", "--batch_size=2", "--run_name=r"]


class Small(Settings):
    """A little of everything."""

    run_name: Text = setting(..., "A name.", group="Needed", value="NAME")
    max_turns: Annotated[int, whole(1)] = setting(10, "A count.", group="Counts")
    max_tokens: Annotated[int | None, optional_whole(1)] = setting(None, "Perhaps a count.", group="Counts")
    temperature: Annotated[float, number(0, 2)] = setting(0.5, "A number.", group="Counts")
    resume: Flag = setting(False, "A switch.", group="Switches")
    nested: Flag = setting(True, "Another, with a name that begins with no … nearly.", group="Switches")
    words: OptionalList = setting(None, "Words.", group="Needed")
    kind: Literal["one", "two"] = setting("one", "A choice.", group="Needed")
    api_key: OptionalSecret = setting(None, "A secret.", group="Needed", secret=True)
    hidden: Text = setting("x", "Not for the command line.", typed=False)


def batch(*argv: str) -> BatchSpec:
    return make(BatchSpec, parse(BatchSpec, [*NEEDED, *argv], PROGRAM).values, PROGRAM)


def small(*argv: str) -> Small:
    return make(Small, {"run_name": "r", **parse(Small, argv, "prog").values}, "prog")


def refused(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        small(*argv)
    assert str(caught.value).endswith(" (see prog --help)")
    return str(caught.value).removesuffix(" (see prog --help)")


# --- Values


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")).filter(str.strip)


def spellings(name: str) -> st.SearchStrategy[str]:
    """The name as an option, with any mixture of _ and -."""
    marks = st.lists(st.sampled_from("_-"), min_size=name.count("_"), max_size=name.count("_"))
    parts = name.split("_")
    return marks.map(
        lambda chosen: "--" + parts[0] + "".join(mark + part for mark, part in zip(chosen, parts[1:], strict=True))
    )


@given(texts, spellings("run_name"))
def test_any_text_arrives_as_it_was_typed_with_an_equals_sign(text: str, option: str) -> None:
    assert small(f"{option}={text}").run_name == text


@given(texts.filter(lambda text: not text.startswith("-")), spellings("run_name"))
def test_any_text_arrives_as_it_was_typed_with_a_space(text: str, option: str) -> None:
    assert small(option, text).run_name == text


@given(st.integers(1, 10**17), st.booleans(), spellings("max_turns"))
def test_whole_numbers(value: int, space: bool, option: str) -> None:
    assert small(*([option, str(value)] if space else [f"{option}={value}"])).max_turns == value


@given(st.floats(0, 2), st.booleans())
def test_numbers(value: float, space: bool) -> None:
    assert small(*(["--temperature", str(value)] if space else [f"--temperature={value}"])).temperature == value


@given(st.lists(st.text("abc-./:", min_size=1), min_size=1))
def test_lists(words: list[str]) -> None:
    assert small("--words=" + ",".join(words)).words == tuple(words)
    assert small("--words=" + " , ".join(words)).words == tuple(words)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        *[([f"--resume{form}"], True) for form in ("", "=true", "=True", "=yes", "=1", "=on", "=YES", "= on ")],
        *[([f"--resume={word}"], False) for word in ("false", "False", "no", "0", "off", "OFF")], *[(["--resume",
        word], word in ("true", "yes", "1", "on", "On")) for word in ("true", "yes", "1", "on", "On", "false", "no",
        "0", "off", "False")], (["--no-resume"], False), (["--no_resume"], False), (["--noresume"], False),
        (["--resume", "--max_turns", "3"], True), (["--resume", "--no-resume"], False), (["--no-resume", "--resume"],
        True), (["--resume=true", "--resume=false"], False), ([], False),
    ],
)  # fmt: skip
def test_every_form_of_a_switch(words: list[str], value: bool) -> None:
    assert small(*words).resume is value


def test_a_switch_that_is_on_by_default_is_turned_off() -> None:
    assert small().nested
    assert not small("--no-nested").nested
    assert not small("--nested=off").nested


@pytest.mark.parametrize(
    "text", ["2024", "1e5", "007", "None", "True", "[1]", "a,b", "run#1", "'q'", "2024-01-15", "a=b", "=", "--", "-x"]
)
def test_text_stays_text(text: str) -> None:
    assert small(f"--run_name={text}").run_name == text


def test_the_last_of_several_counts() -> None:
    assert small("--max_turns", "1", "--max-turns=2").max_turns == 2
    assert small("--words=a", "--words=b").words == ("b",)


def test_values_that_begin_with_a_dash() -> None:
    assert small("--run_name=-x").run_name == "-x"
    assert small("--run_name", "-").run_name == "-"
    assert small("--run_name", "-1").run_name == "-1"
    assert (
        refused("--run_name", "-x") == "--run_name needs a value (one that begins with a dash is written --run_name=-x)"
    )
    assert refused("--temperature", "-1") == "--temperature must be between 0 and 2, not '-1'"
    assert refused("--temperature", "-.5") == "--temperature must be between 0 and 2, not '-.5'"


def test_values_are_never_taken_from_the_next_option() -> None:
    assert refused("--run_name", "--resume") == "--run_name needs a value"
    assert refused("--run_name", "--no-resume") == "--run_name needs a value"
    assert refused("--max_turns") == "--max_turns needs a value"


# --- Refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--temprature=0.5"], "unknown option --temprature; did you mean --temperature?"),
        (["--temprature", "0.5"], "unknown option --temprature; did you mean --temperature?"),
        (["--max-turn", "5"], "unknown option --max-turn; did you mean --max_turns?"),
        (["--zzz"], "unknown option --zzz"),
        (["--hidden=x"], "unknown option --hidden"),
        (["--Resume"], "unknown option --Resume; did you mean --resume?"),
        (["--no-max_turns"], "unknown option --no-max_turns; did you mean --max_turns?"),
        (["--=5"], "unknown option --"),
        (["-r", "5"], "unknown option -r; option names begin with two dashes"),
        (["-max_turns=5"], "unknown option -max_turns; option names begin with two dashes"),
        (["file.jsonl"], "unexpected 'file.jsonl'; options are written --name=value"),
        (["--resume", "x.jsonl"], "unexpected 'x.jsonl'; options are written --name=value"),
        (["--"], "unexpected '--'; options are written --name=value"),
        (["--resume=maybe"], "--resume must be true or false, not 'maybe'"),
        (["--resume="], "--resume must be true or false, not ''"),
        (["--no-resume=true"], "--no-resume takes no value; write --resume=true or --resume=false"),
        (["--max_turns=8k"], "--max_turns must be a whole number, not '8k'"),
        (["--max_turns=0"], "--max_turns must be 1 or more, not '0'"),
        (["--max_turns="], "--max_turns must be a whole number, not ''"),
        (["--kind=three"], "--kind must be 'one' or 'two', not 'three'"),
        (["--run_name="], "--run_name must not be empty, not ''"),
    ],
)
def test_one_clear_line(words: list[str], said: str) -> None:
    assert refused(*words) == said


def test_no_abbreviations() -> None:
    for name in ("--max_turn", "--temp", "--res", "--run"):
        assert refused(f"{name}=1").startswith(f"unknown option {name}")


def test_every_mistake_is_reported_at_once() -> None:
    assert len(refused("--oops=1", "--zzz", "--max_turns", "--resume=perhaps").splitlines()) == 4
    assert refused("--max_turns=0", "--temperature=9").splitlines() == [
        "--max_turns must be 1 or more, not '0'",
        "--temperature must be between 0 and 2, not '9'",
    ]


def test_what_is_required_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        make(Small, {}, "prog")
    assert str(caught.value) == "--run_name is required (see prog --help)"


def test_a_secret_is_in_no_message() -> None:
    assert "sk-12345" not in refused("--api_key=sk-12345\0")
    assert "sk-12345" not in refused("--api_key=sk-12345", "--max_turns=0")


@given(
    st.lists(
        st.text("-=aberstu_ 1", max_size=8) | st.sampled_from(["--resume", "--max_turns", "--run_name", "true", "5"])
    )
)
def test_any_command_line_is_either_understood_or_refused(argv: list[str]) -> None:
    try:
        values = parse(Small, argv, "prog").values
        made = make(Small, values, "prog")
    except UsageError:
        return
    for name, value in values.items():
        if isinstance(value, bool):
            assert getattr(made, name) is value


# --- Help


def test_help_explains_every_option_under_its_heading_with_its_default() -> None:
    text = help_text(Small, "prog", "Does something.", width=80)
    assert text.splitlines()[0] == "prog --run_name NAME [OPTIONS]"
    assert "Does something." in text
    assert text.index("Needed:") < text.index("--run_name NAME\n      A name. (required)") < text.index("Counts:")
    assert "--max_turns N\n      A count. (default: 10)" in text
    assert "--temperature X\n      A number. (default: 0.5)" in text
    assert "--max_tokens N\n      Perhaps a count.\n" in text
    assert "--resume\n      A switch. (default: false)" in text
    assert "--kind one|two\n" in text
    assert "hidden" not in text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_help_fits_its_width(width: int) -> None:
    lines = help_text(BatchSpec, PROGRAM, "d", width).splitlines()
    assert all(len(line) <= width for line in lines if line.startswith("      "))


def test_help_wins_over_mistakes() -> None:
    for argv in (["--help"], ["-h"], ["--oops", "--help"], ["--max_turns", "--help"], ["--run_name=x", "-h"]):
        assert parse(Small, argv, "prog").help


def test_read_prints_help_or_gives_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(Small, ["--help"], "prog", "Does something.") is None
    assert capsys.readouterr().out.startswith("prog --run_name NAME")
    made = read(Small, ["--run_name=x"], "prog", "")
    assert made is not None
    assert made.run_name == "x"


# --- A word without a name, and a name without a value


class Positional(Settings):
    """Of a command that takes one word, and an option whose value may be left out."""

    file: Text = setting(..., "A file.", value="FILE")
    first: Annotated[int | None, optional_whole(0)] = setting(None, "Only a few.", value="N", bare="3")
    dry: Flag = setting(False, "A switch.")


def positional(*argv: str) -> dict[str, str | bool]:
    return parse(Positional, argv, "prog", positional="file").values


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["a.csv"], {"file": "a.csv"}),
        (["--file=a.csv"], {"file": "a.csv"}),
        (["--dry", "a.csv"], {"file": "a.csv", "dry": True}),
        (["--dry", "no", "a.csv"], {"file": "a.csv", "dry": False}),
        (["--first", "a.csv"], {"first": "3", "file": "a.csv"}),
        (["--first", "7", "a.csv"], {"first": "7", "file": "a.csv"}),
        (["--first=7", "5"], {"first": "7", "file": "5"}),
        (["a.csv", "--first"], {"first": "3", "file": "a.csv"}),
        (["a.csv", "--first="], {"first": "", "file": "a.csv"}),
        (["-"], {"file": "-"}),
    ],
)
def test_a_word_without_a_name(words: list[str], values: dict[str, str | bool]) -> None:
    assert positional(*words) == values


@pytest.mark.parametrize("words", [["a.csv", "b.csv"], ["--first", "x", "y"], ["--", "x"], ["--"]])
def test_more_than_one_word_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="unexpected"):
        positional(*words)


def test_help_names_the_word() -> None:
    text = help_text(Positional, "prog FILE", "Does something.", width=80, positional="file")
    assert text.startswith("prog FILE [OPTIONS]\n")
    assert "  FILE  (or --file FILE)\n      A file. (required)" in text
    assert "  --first [N]\n" in text
    assert "(required)" not in help_text(Positional, "prog FILE", "", recorded=True, positional="file")


# --- The batch's own options


def test_every_batch_option_is_in_the_help_and_can_be_typed_in_both_spellings() -> None:
    text = help_text(BatchSpec, PROGRAM, "d")
    values: dict[str, Any] = {
        "base_url": "http://h",
        "executor": "local",
        "ray_resources": '{"num_cpus": 2}',
        "on_divergence": "stop",
        "browser_resume": "attempt",
        "web_search": "tavily",
        "web_extract": "direct",
        "image_provider": "openai",
        "reasoning_effort": "low",
        "override": "model",
        "top_p": "1",
        "header": "X-Team: mine",
        "extra_body": '{"top_k": 1}',
        "send_reasoning": "never",
        "min_score": "1",
        "tags_in_values": "keep",
        "image_template": "{id}",
        "pull": "never",
        "container_env": "A=b",
        "task_env": "A=b",
        "image_cache": "2GB",
    }
    for name, option in options_of(BatchSpec).items():
        assert f"\n  {spell(name)}" in text
        words = [] if option.is_switch else [values.get(name, "2")]
        spelled = f"--no-{name}" if option.default is True else spell(name)
        first = batch(spelled, *words)
        second = batch(spelled.replace("_", "-"), *words)
        assert getattr(first, name) == getattr(second, name)
        assert name in first.given
        if not option.required:
            assert getattr(first, name) != getattr(batch(), name)


def test_command_lines_of_the_original_program() -> None:
    spec = batch(
        "--model=anthropic/claude-opus-4.6", "--num_workers=8", "--max_turns=15", "--reasoning_effort=high",
        "--providers_allowed=anthropic,google", "--resume", "--reasoning_disabled", "--max_tokens=32000",
        "--prefill_messages_file=configs/prefill_opus.json",
    )  # fmt: skip
    assert (spec.num_workers, spec.max_turns, spec.reasoning_effort, spec.max_tokens) == (8, 15, "high", 32000)
    assert (spec.providers_allowed, spec.resume, spec.reasoning_disabled) == (("anthropic", "google"), True, True)


def test_list_distributions_needs_nothing_else() -> None:
    assert parse(BatchSpec, ["--list_distributions"], PROGRAM).values == {"list_distributions": True}
