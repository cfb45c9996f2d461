"""Every dataset with any seed: valid tests, the same each time; a perfect memory gets full marks, none gets next to nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.core.digests import digest
from manyhands.core.errors import UserError
from manyhands.workloads.memory.conversation.definitions import (
    Ask,
    Dataset,
    Definition,
    Evaluation,
    Exchange,
    Message,
    Say,
    Wait,
)
from manyhands.workloads.memory.datasets.base import BaseDataset
from manyhands.workloads.memory.datasets.benchmark import format_definition
from manyhands.workloads.memory.datasets.builtin.chapterbreak import pages_of
from manyhands.workloads.memory.datasets.builtin.restaurant import MENU, Restaurant
from manyhands.workloads.memory.datasets.registry import (
    BUILTIN,
    create,
    dataset_class,
    dataset_ids,
    reset_messages,
    rule_judge,
)

DATA = Path(__file__).parents[1] / "data" / "memory"
SPAN = 100_000
Agent = Callable[[BaseDataset, Definition, Sequence[Message], str], str]
ASKED_OF_MODELS = (
    "locations",
    "locations_directions",
    "delayed_recall",
    "instruction_recall",
    "how_to_think",
    "conflicting_personal_info",
    "restaurant",
)

DIGESTS = DATA / "definition_digests.json"
"""By dataset: ``made``, the digest of three tests of seed 0 as objects, and by seed what ``digests_and_scores`` gives."""
WRITE = "MANYHANDS_WRITE_DIGESTS"
"""The environment variable with which what is found is written to ``DIGESTS`` in place of being compared."""


def perfect(dataset: BaseDataset, definition: Definition, before: Sequence[Message], text: str) -> str:
    return "\n".join(
        filter(None, (dataset.ideal(definition, before, text), dataset.ideal_addition(definition, before)))
    )


def forgetful(dataset: BaseDataset, definition: Definition, before: Sequence[Message], text: str) -> str:
    return "I don't remember."


@cache
def book() -> Path:
    """A file as ChapterBreak's is."""
    path = Path(mkdtemp()) / "chapters.json"
    sample = {
        "ctx": "1. One. It rained. Nobody came. The lamp went out. " * 40,
        "pos": "2. Two. Then it stopped raining.",
        "negs": [f"{number}. Another day number {number} began." for number in range(3, 8)],
    }
    path.write_text(json.dumps({"pg19": {"12653258": [sample] * 3}, "ao3": {"7": [sample]}}))
    return path


def made(dataset_id: str, scoring: Any = "mended", **arguments: Any) -> BaseDataset:
    if dataset_id == "chapterbreak":
        arguments = {"data_location": book(), "split": "all", "max_message_size": 80, **arguments}
    return create(dataset_id, arguments, scoring)


def driven(steps: Generator[Any, str, Any], answer: Callable[[Any], str] = rule_judge) -> Any:
    """What a generator returns; what it asks is answered by rule, or as told."""
    try:
        step = next(steps)
        while True:
            step = steps.send(answer(step))
    except StopIteration as end:
        return end.value


def generated(dataset: BaseDataset, examples: int = 3, seed: int = 0) -> list[Definition]:
    return list(driven(dataset.generate(examples, seed, SPAN)))


class Conversation:
    """One test, alone, with an agent."""

    def __init__(
        self,
        dataset: BaseDataset,
        definition: Definition,
        agent: Agent,
        heard: Callable[[str], None] = lambda reply: None,
    ) -> None:
        """``heard``: gets what is replied for a judge."""
        self.dataset, self.definition, self.agent, self.heard = dataset, definition, agent, heard
        self.messages: list[Message] = []
        self.now = 0.0

    def say(self, text: str, is_question: bool, test_id: str | None = None) -> str:
        own = test_id is None
        if own:
            reply = self.agent(self.dataset, self.definition, self.messages, text)
        else:
            reply = "[] " + (
                self.dataset.ideal_addition(self.definition, self.messages) if self.agent is perfect else ""
            )
        sent, self.now = self.now, self.now + 5
        name = self.definition.unique_id if own else ""
        self.messages.append(Message(name, text, reply, is_question, sent, self.now))
        return reply

    def evaluation(self) -> Evaluation:
        play = self.dataset.play(self.definition)
        return self._scripted() if play is None else self._played(play)

    def _scripted(self) -> Evaluation:
        definition = self.definition
        for place, is_question in enumerate(definition.is_question):
            temporal = place == len(definition.script)
            sent = [message.sent_at for message in self.messages]
            text = self.dataset.temporal_question(definition, sent, self.now) if temporal else definition.script[place]
            self.say(text, is_question)
            self.now += definition.waits[place].seconds
        if not definition.uses_callback:
            found: Evaluation = driven(self.dataset.evaluate(Exchange(definition, tuple(self.messages))))
            return found
        first = next(place for place, message in enumerate(self.messages) if message.is_question)
        for number in range(20):
            verdict = self.dataset.callback(definition, self.messages[first:])
            if verdict.finished:
                return verdict.evaluation
            self.say(f"filler {number}", False, "")
        raise AssertionError("the callback never finished")

    def _played(self, play: Any) -> Evaluation:
        reply, waits = "", list[float]()
        try:
            while True:
                step = play.send(reply) if reply or waits or self.messages else next(play)
                match step:
                    case Say():
                        reply = self.say(step.message, step.is_question)
                    case Wait():
                        waits.append(step.percentage)
                        reply = ""
                    case Ask():
                        reply = rule_judge(step)
                        self.heard(reply)
        except StopIteration as end:
            found: Evaluation = end.value
            return found


def test_ids_and_names_are_those_of_the_registry() -> None:
    assert all(dataset_class(each).__module__.startswith("manyhands.") for each in BUILTIN)
    assert len({dataset_class(each).default_name for each in BUILTIN}) == len(BUILTIN)
    assert all(dataset_class(each).id == each for each in BUILTIN)


def test_reset_messages_are_for_a_datasets_own_name_and_as_they_were() -> None:
    """A run's digest holds them, in this order."""
    found = reset_messages()
    assert list(found) == sorted(found)
    assert digest("resets", [str(found)]).hex()[:12] == "a031ab6fa443"

    class Promises(BaseDataset):
        id, default_name, about, default_reset = "promises", "Promises", "Promises.", "Forget it."

    assert reset_messages([Promises(), made("names")]) == {**found, "Promises": "Forget it."}


@pytest.mark.parametrize("dataset_id", dataset_ids())
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(-(2**40), 2**40))
def test_any_seed(dataset_id: str, seed: int) -> None:
    dataset: Dataset = made(dataset_id)
    assert isinstance(dataset, BaseDataset)
    definitions = generated(dataset, 3, seed)
    assert definitions == generated(made(dataset_id), 3, seed)
    assert [each.dataset for each in definitions] == [dataset.name] * 3
    assert len({each.example_id for each in definitions}) == 3
    for definition in definitions:
        assert json.loads(json.dumps(definition.expected_responses)) == definition.expected_responses
        assert len(definition.waits) == len(definition.is_question)
        assert Conversation(dataset, definition, perfect).evaluation().share == 1.0, definition
        assert Conversation(dataset, definition, forgetful).evaluation().share == 0.0, definition


@pytest.mark.parametrize("dataset_id", dataset_ids())
def test_published_rules_score_too(dataset_id: str) -> None:
    dataset = made(dataset_id, "published")
    for definition in generated(dataset):
        assert Conversation(dataset, definition, perfect).evaluation().share == 1.0
        assert Conversation(dataset, definition, forgetful).evaluation().share == 0.0


@pytest.mark.parametrize("dataset_id", dataset_ids())
def test_other_seeds_give_other_tests(dataset_id: str) -> None:
    dataset = made(dataset_id)
    if dataset_id != "restaurant":
        assert generated(dataset, 3, 1) != generated(dataset, 3, 2)
    assert generated(dataset, 2, 1) == generated(dataset, 3, 1)[:2]


def digests_and_scores(dataset_id: str, seed: int) -> list[Any]:
    """The digest of a seed's tests as they are in files, and what a perfect memory gets for each by either rules."""
    tests = driven(made(dataset_id).generate(3, seed, 16_000))
    written = [json.dumps([each.unique_id, format_definition(each)]) for each in tests]
    kinds = ("mended", "published")
    scores = [[Conversation(made(dataset_id, kind), each, perfect).evaluation() for each in tests] for kind in kinds]
    said = json.dumps([[asdict(each) for each in kind] for kind in scores])
    return [
        digest("tests", written).hex(),
        digest("tests", [said]).hex(),
        [[each.score for each in kind] for kind in scores],
    ]


@pytest.mark.parametrize("dataset_id", BUILTIN)
def test_tests_of_existing_runs_can_be_made_again(dataset_id: str) -> None:
    """For the same seed, byte for byte, on every machine and Python: whatever draws from word lists depends on their order."""
    objects = json.dumps([asdict(one) for one in generated(made(dataset_id))])
    by_seed = {str(seed): digests_and_scores(dataset_id, seed) for seed in range(3)}
    found = {"made": digest("tests", [objects]).hex()[:12], **by_seed}
    known = json.loads(DIGESTS.read_text(encoding="utf-8"))
    if os.environ.get(WRITE):
        known[dataset_id] = found
        DIGESTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    assert found == known.get(dataset_id), f"{WRITE}=1 records the tests of a new dataset, see CONTRIBUTING.md"


def test_digests_are_of_all_datasets() -> None:
    assert set(json.loads(DIGESTS.read_text(encoding="utf-8"))) == set(BUILTIN)


@pytest.mark.parametrize("dataset_id", ASKED_OF_MODELS)
def test_what_a_model_judged_is_marked(dataset_id: str) -> None:
    dataset = made(dataset_id)
    evaluation = Conversation(dataset, generated(dataset)[0], perfect).evaluation()
    assert evaluation.reasons
    assert all("(judged by a model)" in reason for reason in evaluation.reasons)


@pytest.mark.parametrize("dataset_id", ASKED_OF_MODELS)
@pytest.mark.parametrize("nonsense", ["", "As a language model …", "[1, 2", "{}", "[]", "null", '{"order": 3}'])
def test_judges_may_talk_nonsense(dataset_id: str, nonsense: str) -> None:
    dataset = made(dataset_id)
    definition = generated(dataset)[0]
    play = dataset.play(definition)
    asked = Exchange(definition, (Message(definition.unique_id, "?", "an answer", True, 0, 0),))
    steps: Any = dataset.evaluate(asked) if play is None else play
    found = driven(steps, lambda step: nonsense if isinstance(step, Ask) else "A mineral water, please.")
    assert found.score == 0
    assert found.maximum > 0


@pytest.mark.parametrize("dataset_id", [each for each in dataset_ids() if each != "restaurant"])
def test_no_answer_at_all_is_scored(dataset_id: str) -> None:
    for scoring in ("mended", "published"):
        dataset = made(dataset_id, scoring)
        definition = generated(dataset)[0]
        assert driven(dataset.evaluate(Exchange(definition, ()))).share in (
            0.0,
            1.0 if dataset_id == "prospective_memory" else 0.0,
        )


@pytest.mark.parametrize(
    "dataset_id", ["delayed_recall", "instruction_recall", "how_to_think", "conflicting_personal_info"]
)
def test_a_model_may_write_tests(dataset_id: str) -> None:
    asks: list[Ask] = []
    replies = iter(["nothing", '{"content": ["x"], "question": ["y"], "answer": []}'])

    def answer(ask: Ask) -> str:
        asks.append(ask)
        return next(replies, rule_judge(ask))

    (definition,) = driven(made(dataset_id, generation="model", max_attempts=4).generate(1, 0, SPAN), answer)
    assert len(asks) == 3
    assert all(ask.temperature == 1.0 for ask in asks)
    assert "Box 1 of the shelf" in definition.script[0]
    assert definition.number_of_questions == len(definition.expected_responses)


def test_a_model_that_writes_nothing_usable_is_an_error() -> None:
    asks: list[Ask] = []

    def answer(ask: Ask) -> str:
        asks.append(ask)
        return "sorry"

    steps = made("delayed_recall", generation_model="some model", max_attempts=3).generate(1, 0, SPAN)
    with pytest.raises(
        UserError, match=r"^dataset 'delayed_recall': the model wrote nothing usable in 3 attempts; .*$"
    ):
        driven(steps, answer)
    assert len(asks) == 3


def test_own_instructions_for_the_model(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    told.write_text('{"content": "a story", "question": "two", "answer": "short"}')
    ask = next(made("delayed_recall", generation="model", generation_file=told).generate(1, 0, SPAN))
    assert "a story" in ask.messages[-1]["content"]
    told.write_text("{}")
    with pytest.raises(UserError, match="generation_file"):
        next(made("delayed_recall", generation="model", generation_file=told).generate(1, 0, SPAN))


@pytest.mark.parametrize("dataset_id", [each for each in dataset_ids() if each != "restaurant"])
def test_a_span_that_is_too_small_is_refused(dataset_id: str) -> None:
    with pytest.raises(UserError, match=r"the memory_span of 20 must be larger$"):
        driven(made(dataset_id).generate(1, 0, 20))
    with pytest.raises(UserError, match="memory_span must be more than 0"):
        driven(made(dataset_id).generate(1, 0, 0))


@pytest.mark.parametrize("name", ["a/b", "a\\b", "..", " ", "a\nb", "ü" * 60])
def test_a_name_that_is_no_folders_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="dataset 'colours': name must be"):
        create("colours", {"name": name})


def test_a_chapter_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^dataset 'chapterbreak': data_location is not set; it needs the file chapterbreak_ctx"
    ):
        driven(create("chapterbreak").generate(1, 0, SPAN))
    with pytest.raises(UserError, match=r"^dataset 'chapterbreak': data_location .*no.json does not exist; it needs"):
        driven(create("chapterbreak", {"data_location": tmp_path / "no.json"}).generate(1, 0, SPAN))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"bad.json can't be read"):
        driven(create("chapterbreak", {"data_location": tmp_path / "bad.json"}).generate(1, 0, SPAN))
    with pytest.raises(UserError, match=r"has 3 samples of split 'pg19', not 4"):
        driven(create("chapterbreak", {"data_location": book(), "split": "pg19"}).generate(4, 0, SPAN))


def test_a_compressed_chapter_file(tmp_path: Path) -> None:
    import pyarrow as pa

    path = tmp_path / "chapters.zst"
    with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as stream:
        stream.write(book().read_bytes())
    packed = made("chapterbreak", data_location=path)
    assert generated(packed) == generated(made("chapterbreak"))


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab \n", min_size=1), min_size=1), st.integers(1, 40))
def test_pages_of_a_book(sentences: list[str], size: int) -> None:
    text = ". ".join(sentences)
    pages = pages_of(text, size, len)
    assert " ".join(pages) == text
    assert all(len(page) <= size or ". " not in page for page in pages)
    assert len("".join(pages_of(text, size, len, lossy=True))) <= len(text)


def test_arguments_change_the_tests() -> None:
    assert len(generated(made("colours", colour_changes=7))[0].script) == 8
    assert len(generated(made("locations", known_locations=9))[0].script) == 10
    assert len(generated(made("jokes", jokes_told=5, minutes_low=10, minutes_high=10))[0].waits) == 6
    assert generated(made("jokes", minutes_low=10, minutes_high=10))[0].waits[0].seconds == 600
    assert generated(made("jokes", joke_prefix=True))[0].script[0].startswith("Listen")
    assert generated(made("kv", nested_levels=2, num_kv_pairs=3))[0].script[0].count("{") == 3 * 2 + 1
    assert generated(made("trigger_response", trigger_activations=5))[0].number_of_questions == 5
    kinds = generated(made("sallyanne", question_type="world_model"), 20)
    assert all("beginning" in each.script[-1] or "really" in each.script[-1] for each in kinds)
    assert generated(made("names", question="Who am I?"))[0].script[-1] == "Who am I?"


GUESTS = st.lists(
    st.lists(st.sampled_from([*MENU.items, "nothing", "that is not what I ordered"]), min_size=1, max_size=3).map(
        ", ".join
    ),
    max_size=9,
)


@settings(deadline=None)
@given(st.integers(0, 2**32), GUESTS, st.booleans(), st.sampled_from(["mended", "published"]))
def test_any_guest_is_served_and_the_log_tells_the_same_score(
    seed: int, guests: list[str], remembers: bool, scoring: str
) -> None:
    """Some messages are answered as by a perfect memory, others are not; from what was said, the evening is scored again."""
    dataset = made("restaurant", scoring, seed=seed)
    assert isinstance(dataset, Restaurant)
    (definition,) = generated(dataset, 1)
    judged: list[str] = []

    def answers(_: BaseDataset, one: Definition, before: Sequence[Message], text: str) -> str:
        number = len(before)
        return (
            guests[number]
            if number < len(guests) and not (remembers and number < 5)
            else dataset.ideal(one, before, text)
        )

    evening = Conversation(dataset, definition, answers, judged.append)
    found = evening.evaluation()
    assert 0 <= found.score <= found.maximum == 5
    assert len(found.reasons) == len(found.expected) == min(5, found.score + 1)
    again = dataset.from_log([message.text for message in evening.messages], judged)
    assert again.score == found.score
