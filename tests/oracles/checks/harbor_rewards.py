"""What Harbor's own code makes of the files that verifiers leave: FILE with a case a line, ``{json, text}`` in base64 (null: no such file)
→ a list of ``{rewards}`` or ``{error}``.

Its module asks for a later Python than it is installed for here, so the two methods that read rewards are taken out of its file as they
stand there, but for line breaks within braces of texts.
"""

import base64
import json
import math
import re
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

from harbor.models.verifier.result import VerifierResult

source = Path(find_spec("harbor").submodule_search_locations[0], "verifier", "verifier.py").read_text(encoding="utf-8")
errors = dict.fromkeys(re.findall(r"^class (\w+)\((?:Exception|FileNotFoundError)\)", source, re.MULTILINE))
methods = re.findall(
    r"^    def _parse_reward_(?:text|json)\(self\).*?(?=^    (?:async )?def )", source, re.MULTILINE | re.DOTALL
)
assert len(methods) == 2
assert {"VerifierOutputParseError", "RewardFileEmptyError"} <= set(errors)
known = {"json": json, "math": math, **{name: type(name, (Exception,), {}) for name in errors}}
for method in methods:
    on_one_line = re.sub(r"\{\s*\n\s*", "{", re.sub(r"\n\s*\}(?=\")", "}", method))
    exec(textwrap.dedent(on_one_line), known)


def read(case, folder):
    """As ``verify`` does, once the files are there."""
    paths = SimpleNamespace(reward_json_path=folder / "reward.json", reward_text_path=folder / "reward.txt")
    for name, path in (("json", paths.reward_json_path), ("text", paths.reward_text_path)):
        path.unlink(missing_ok=True)
        if case[name] is not None:
            path.write_bytes(base64.b64decode(case[name]))
    verifier = SimpleNamespace(trial_paths=paths)
    if paths.reward_json_path.exists():
        rewards = known["_parse_reward_json"](verifier)
    elif paths.reward_text_path.exists():
        rewards = known["_parse_reward_text"](verifier)
    else:
        return {"error": "RewardFileNotFoundError"}
    return {"rewards": VerifierResult(rewards=rewards).rewards}


found = []
with tempfile.TemporaryDirectory() as name:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        try:
            found.append(read(json.loads(line), Path(name)))
        except Exception as error:  # noqa: BLE001 - whatever Harbor raises is its answer
            found.append({"error": type(error).__name__})
print(json.dumps(found))
