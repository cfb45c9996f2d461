"""Datasets by id, by name, from configurations, from other packages, and the one of the examples."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from manyhands.core.errors import UserError
from manyhands.io.plugins import plugins
from manyhands.workloads.memory.conversation.definitions import Ask, Dataset, Exchange, Message
from manyhands.workloads.memory.datasets.base import estimated_tokens
from manyhands.workloads.memory.datasets.configuration import read_configuration
from manyhands.workloads.memory.datasets.registry import (
    class_named,
    create,
    dataset_class,
    dataset_ids,
    dataset_of,
    made_of,
    rule_judge,
)

OTHER = """
from manyhands.workloads.memory.datasets.base import BaseDataset

class Rivers(BaseDataset):
    id = "rivers_of_test"
    default_name = "Rivers"
    about = "Names a river."
    judge_rules = {"river: name": lambda data: {"river": data["text"].split()[-1]}}
"""


@pytest.fixture
def other_package(tmp_path: Path) -> Iterator[None]:
    """A package with a dataset, one that is none, and one that can't be imported, as if it were installed."""
    (tmp_path / "rivers_package.py").write_text(OTHER)
    info = tmp_path / "rivers_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rivers-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[manyhands.memory_datasets]\nrivers_of_test = rivers_package:Rivers\n"
        "odd_test = rivers_package:OTHER_THING\nodder_test = json:dumps\n"
    )
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    plugins.cache_clear()
    yield
    sys.path.remove(str(tmp_path))
    sys.modules.pop("rivers_package", None)
    plugins.cache_clear()


def test_by_id_and_by_name() -> None:
    for each in dataset_ids():
        kind = dataset_class(each)
        assert class_named(kind.default_name) is kind
    with pytest.raises(UserError, match=r"^unknown name of a dataset 'Colors'; did you mean Colours\?$"):
        class_named("Colors")


def test_of_another_package(other_package: None) -> None:
    assert "rivers_of_test" in dataset_ids()
    assert create("rivers_of_test").name == "Rivers"
    with pytest.raises(
        UserError, match=r"^the dataset plug-in 'odd_test' \(rivers_package:OTHER_THING\) can't be used: Attr"
    ):
        create("odd_test")
    with pytest.raises(
        UserError, match=r"^the dataset plug-in 'odder_test' \(json:dumps\) is no subclass of BaseDataset$"
    ):
        create("odder_test")


def test_each_dataset_has_its_rules_in_place_of_a_judge(other_package: None) -> None:
    data = {"role": "user", "content": json.dumps({"text": "It is the Elbe"})}
    assert rule_judge(Ask((data,), "river: name")) == '{"river": "Elbe"}'
    assert rule_judge(Ask((data,), "nobody asks this")) == "{}"


CONFIGURATION = """\
config:
  run_name: a run
datasets:
  args: {memory_span: 4000, dataset_examples: 2, seed: 7}
  datasets:
    - name: colours
      args: {colour_changes: 4}
    - name: name_list
      args: {name_changs: 4}
    - name: colors
"""


def test_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.yml"
    path.write_text(CONFIGURATION)
    colours, names, unknown = read_configuration(path).datasets
    dataset = dataset_of(colours, "published", estimated_tokens)
    assert (dataset.scoring, dataset.arguments.colour_changes, dataset.arguments.seed) == ("published", 4, 7)
    with pytest.raises(UserError) as raised:
        dataset_of(names, "mended", estimated_tokens)
    assert str(raised.value) == (
        f"{path}, line 8: datasets.datasets[1]: dataset 'name_list': unknown argument name_changs; did you mean name_changes?"
    )
    with pytest.raises(
        UserError, match=r"line 10: datasets.datasets\[2\]: unknown dataset 'colors'; did you mean colours\?$"
    ):
        dataset_of(unknown, "mended", estimated_tokens)


def test_common_arguments() -> None:
    dataset = create("shopping", {"reset_message": "Done.", "description": "mine", "name": "My Shopping"})
    assert (dataset.reset_message, dataset.description, dataset.name) == ("Done.", "mine", "My Shopping")
    assert create("shopping").reset_message is None


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
