"""Which episodes in FOLDER/traces.jsonl verifiers reads otherwise than they were written, or not as one branch → {rows, rejects, reward}.

What it does not know it drops without a word, so everything that was written is looked for in what it makes of an episode.
"""

import json
import sys
from pathlib import Path

from verifiers.v1.trace import TRACE_VERSION, WireTrace
from verifiers.v1.utils.trace_store import read_episodes


def lost(written, read, path=""):
    """The places of what was written that is not read."""
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            if key in read:
                yield from lost(value, read[key], f"{path}.{key}")
            elif value not in (None, [], {}):
                yield f"{path}.{key}"
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for at, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{path}[{at}]")
    elif written != read:
        yield f"{path}: {written!r:.80} for {read!r:.80}"


def problems(row, episode):
    if any(node.get("parent", -1) >= at for trace in row["traces"] for at, node in enumerate(trace["nodes"])):
        return ["a node is before its parent"]  # of which verifiers would make branches forever
    found = list(lost(row, episode.to_record()))
    for trace, read in zip(row["traces"], episode.traces, strict=True):
        if [len(branch.messages) for branch in read.branches] != [len(trace["nodes"])]:
            found.append("it is not one branch")
        if trace["version"] != TRACE_VERSION:
            found.append("it is of another version")
    return found


folder = Path(sys.argv[1])
rows = [json.loads(line) for line in (folder / "traces.jsonl").read_text(encoding="utf-8").splitlines()]
episodes = read_episodes(folder, WireTrace)
rejects = [
    [number, found[:5]]
    for number, (row, episode) in enumerate(zip(rows, episodes, strict=True), 1)
    if (found := problems(row, episode))
]
reward = sum(episode.traces[0].reward for episode in episodes)
print(json.dumps({"rows": len(episodes), "rejects": rejects[:20], "reward": reward}))
