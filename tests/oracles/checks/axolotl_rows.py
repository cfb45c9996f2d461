"""What Axolotl makes of a folder: FOLDER COPY → {datasets: {split: rows}, failures, untrained}.

Its own code loads the folder by the lines of axolotl.yaml and tokenizes each row, with our template and with the one that it brings for
Qwen 3. COPY gets, by row, what would be learnt.
"""

import json
import sys
from pathlib import Path

import yaml
from axolotl.prompt_strategies.chat_template import StrategyLoader
from axolotl.utils.data.shared import load_dataset_with_config
from axolotl.utils.dict import DictDefault
from tiny_model import tokenizer

IGNORED = -100
FOLDER, COPY = Path(sys.argv[1]), Path(sys.argv[2])
words = tokenizer()
config = yaml.safe_load((FOLDER / "axolotl.yaml").read_text())
common = {"train_on_inputs": False, "sequence_len": 1 << 20, "chat_template": config["chat_template"]}
found = {"datasets": {}, "failures": [], "untrained": 0}


def learnt(strategy, row):
    prepared = strategy.tokenize_prompt(row)
    return words.decode([token for token in prepared["labels"] if token != IGNORED])


with COPY.open("w", encoding="utf-8") as copy:
    for each in [*config["datasets"], *config.get("test_datasets", ())]:
        rows = load_dataset_with_config(DictDefault(each), False)
        found["datasets"][each["split"]] = len(rows)
        own = StrategyLoader()(words, DictDefault(common), DictDefault(each))
        qwen = StrategyLoader()(words, DictDefault({**common, "chat_template": "qwen3"}), DictDefault(each))
        for number, row in enumerate(rows):
            try:
                text = learnt(own, row)
                learnt(qwen, row)
            except Exception as error:  # noqa: BLE001 - whatever others raise
                found["failures"].append([number, f"{type(error).__name__}: {error}"[:300]])
                continue
            found["untrained"] += not text
            copy.write(json.dumps(text) + "\n")
print(json.dumps(found))
