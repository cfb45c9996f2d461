"""The dataset of the examples, as a package of its own would bring it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from manyhands.workloads.memory.conversation.definitions import Dataset, Exchange, Message
from manyhands.workloads.memory.datasets.registry import made_of

FILE = Path(__file__).resolve().parents[2] / "examples" / "memory" / "own_dataset" / "promises.py"
LONGEST = 40


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    spec = importlib.util.spec_from_file_location("promises_of_examples", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize(
    ("answer", "share"),
    [("right", 1.0), ("I don't remember.", 0.0), ("right and the last one", 0.75), ("the last one", 0.0)],
)
def test_it_works(promises: ModuleType, answer: str, share: float) -> None:
    dataset: Dataset = made_of(promises.Promises, {"promises": 5})
    making = dataset.generate(2, 3, 4000)
    with pytest.raises(StopIteration) as made:
        next(making)
    for definition in made.value.value:
        owed, settled = definition.expected_responses
        text = answer.replace("right", ", ".join(owed)).replace("the last one", settled)
        message = Message(definition.unique_id, definition.script[-1], text, True, 0, 0)
        with pytest.raises(StopIteration) as scored:
            next(dataset.evaluate(Exchange(definition, (message,))))
        assert scored.value.value.share == share
