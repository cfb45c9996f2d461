"""What LLaMA-Factory makes of a folder: FOLDER COPY → {rows, skipped, warnings, failures}.

Its converter, parser and formatters are the real ones; what they import for the sake of training (torch, transformers, peft) is stubbed.
COPY gets one line a row: the roles that it understood, and the calls that its formatter parsed.
"""

import importlib.util
import json
import logging
import sys
import types
from pathlib import Path

from datasets import load_dataset

ONE_CALL_ONLY = {"glm4"}
"""Formats that refuse parallel calls."""


def package(name, path=None):
    module = types.ModuleType(name)
    module.__path__ = [] if path is None else [str(path)]
    sys.modules[name] = module
    return module


root = Path(importlib.util.find_spec("llamafactory").origin).parent
for name, path in (
    ("llamafactory", root),
    ("llamafactory.data", root / "data"),
    ("llamafactory.extras", root / "extras"),
):
    package(name, path)
package("peft")
vars(package("peft.utils")).update(SAFETENSORS_WEIGHTS_NAME="", WEIGHTS_NAME="")
package("transformers").PreTrainedTokenizerBase = type("PreTrainedTokenizerBase", (), {})  # asked for by datasets
names = ("SAFE_WEIGHTS_INDEX_NAME", "SAFE_WEIGHTS_NAME", "WEIGHTS_INDEX_NAME", "WEIGHTS_NAME")
vars(package("transformers.utils")).update(dict.fromkeys(names, ""))
vars(package("llamafactory.extras.misc")).update(use_modelscope=bool, use_openmind=bool)

from llamafactory.data import converter, formatter, parser  # noqa: E402
from llamafactory.data.tool_utils import TOOLS  # noqa: E402
from llamafactory.extras.logging import get_logger  # noqa: E402

WORDS = {"thought_words": ("<think>\n", "\n</think>\n\n"), "tool_call_words": ("<tool_call>", "</tool_call>")}
"""Those of most of its templates."""


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Parsed(formatter.FunctionFormatter):
    """Says what was parsed instead of writing it."""

    def calls(self, content):
        found = []
        self.tool_utils = types.SimpleNamespace(function_formatter=lambda calls: found.extend(calls) or "")
        rest = self.apply(content=content, **WORDS)[0]
        return {"calls": [[call.name, json.loads(call.arguments)] for call in found], "rest": rest}


def failures_of(row, failures):
    """Through each of its formats of tools."""
    calls = [each["content"] for each in [*row["_prompt"], *row["_response"]] if each["role"] == "function"]
    for name in TOOLS:
        try:
            for content in calls:
                if name not in ONE_CALL_ONLY or len(Parsed(["{{content}}"], "default").calls(content)["calls"]) == 1:
                    formatter.FunctionFormatter(["{{content}}"], name).apply(content=content, **WORDS)
            if row["_tools"]:
                formatter.ToolFormatter(tool_format=name).apply(content=row["_tools"])
        except Exception as error:  # noqa: BLE001 - whatever others raise
            failures.append([name, f"{type(error).__name__}: {error}"[:300]])


folder, copy = Path(sys.argv[1]), Path(sys.argv[2])
info = json.loads((folder / "dataset_info.json").read_text())
warnings = Warnings()
get_logger("llamafactory.data.converter").addHandler(warnings)
total, skipped, failures = 0, 0, []
with copy.open("w", encoding="utf-8") as file:
    for attributes in parser.get_dataset_list(list(info), info):
        arguments = types.SimpleNamespace(media_dir=".")
        convert = converter.get_dataset_converter(attributes.formatting, attributes, arguments)
        for row in load_dataset("json", data_files=str(folder / attributes.dataset_name), split="train"):
            found = convert(row)
            total += 1
            # as its SupervisedDatasetProcessor decides
            skipped += len(found["_prompt"]) % 2 != 1 or len(found["_response"]) != 1
            failures_of(found, failures)
            spoken = [*found["_prompt"], *found["_response"]]
            parsed = [
                Parsed(["{{content}}"], "default").calls(each["content"])
                for each in spoken
                if each["role"] == "function"
            ]
            roles = [each["role"] for each in spoken]
            file.write(json.dumps({"roles": roles, "system": found["_system"], "parsed": parsed}) + "\n")
print(json.dumps({"rows": total, "skipped": skipped, "warnings": warnings.texts, "failures": failures[:20]}))
