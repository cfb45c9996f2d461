"""What TRL makes of a folder: sft|sft-answers|dpo|kto FOLDER → {rows, failures, templates, trained, untrained, loss}.

Each row goes through its own functions and all chat templates that it brings; then its trainer prepares all rows and makes one step.
``templates``: what they said of rows, with the number of rows; ``trained``: rows that the trainer kept; ``untrained``: of those, rows
without a token to learn; in ``FOLDER.trained``, by row, what is learnt, where the trainer says so.
"""

import json
import math
import sys
from collections import Counter
from pathlib import Path

import torch
import trl
from datasets import load_dataset
from tiny_model import model, tokenizer
from trl import is_conversational, maybe_apply_chat_template

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
IGNORED = -100
COMMON = {
    "output_dir": "out",
    "max_steps": 1,
    "per_device_train_batch_size": 4,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "max_length": 4096,
    "disable_tqdm": True,
}
TRAINERS = {
    "sft": (trl.SFTTrainer, trl.SFTConfig, {}),
    "sft-answers": (trl.SFTTrainer, trl.SFTConfig, {"assistant_only_loss": True}),
    "dpo": (trl.DPOTrainer, trl.DPOConfig, {}),
    "kto": (trl.KTOTrainer, trl.KTOConfig, {}),
}


def tools_of(row):
    return json.loads(row["tools"]) if isinstance(row["tools"], str) else row["tools"]


def shapes(rows, words):
    """Rows that are no conversation, or fail with our own template."""
    for number, row in enumerate(rows):
        try:
            if not is_conversational(row):
                yield [number, "not conversational"]
            maybe_apply_chat_template(row, words, tools=tools_of(row) or None)
        except Exception as error:  # noqa: BLE001 - whatever others raise
            yield [number, f"{type(error).__name__}: {error}"[:300]]


def through_templates(rows, words):
    """What TRL's own templates say of rows."""
    said = {}
    for file in sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja")):
        words.chat_template = file.read_text()
        counts = Counter()
        for row in rows:
            try:
                maybe_apply_chat_template(row, words, tools=tools_of(row) or None)
            except Exception as error:  # noqa: BLE001 - whatever others raise
                counts[f"{type(error).__name__}: {error}"[:200]] += 1
        if counts:
            said[file.stem] = dict(counts)
    return said


torch.manual_seed(0)
words = tokenizer()
rows = load_dataset(str(FOLDER))["train"]
plain = list(rows)
failures = list(shapes(plain, words))
made = model(len(words))
made.save_pretrained("model")
words.save_pretrained("model")
trainer_of, config_of, more = TRAINERS[KIND]
trainer = trainer_of(model="model", args=config_of(**COMMON, **more), train_dataset=rows, processing_class=words)
kept = trainer.train_dataset
untrained = 0
if KIND.startswith("sft"):
    batches = (trainer.data_collator([row])["labels"][0] for row in kept)
    learnt = [words.decode([int(token) for token in labels if token != IGNORED]) for labels in batches]
    untrained = sum(not each for each in learnt)
    FOLDER.with_suffix(".trained").write_text("".join(json.dumps(each) + "\n" for each in learnt))
loss = trainer.train().training_loss
templates = through_templates(plain[::10], words)
print(
    json.dumps(
        {
            "rows": len(plain),
            "failures": failures,
            "templates": templates,
            "trained": len(kept),
            "untrained": untrained,
            "loss": math.isfinite(loss),
        }
    )
)
