"""Which key goes to which endpoint: each to its own, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from manyhands.agents.setup import API_KEY, usable_key
from manyhands.memory.agents.naming import WITH_MODELS, AgentChoice
from manyhands.memory.spec import MemorySpec

JUDGE_KEY = "judge_api_key"
"""The name of the judge's key among a workload's secrets."""
EMBEDDING_KEY = "embedding_api_key"
"""The name of the key for embeddings among a workload's secrets."""


def keys_of(options: MemorySpec, choices: Iterable[AgentChoice], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of all endpoints that will be asked, by the names of the secrets. Raises UserError for one that is missing."""
    chosen = list(choices)
    asked = [(API_KEY, choice.model, options.base_url) for choice in chosen if choice.kind in WITH_MODELS]
    if options.judge_model is not None:
        asked.append((JUDGE_KEY, options.judge_model, options.judge_base_url or options.base_url))
    if any(choice.kind == "embeddings" for choice in chosen):
        asked.append((EMBEDDING_KEY, options.embedding_model, options.embedding_base_url or options.base_url))
    keys = {}
    for name, model, url in asked:
        changes: dict[str, Any] = {"model": model, "base_url": url}
        if url != options.base_url:
            changes["api_key"] = None  # what was typed is for --base_url
        key = usable_key(options.model_copy(update=changes), environ)
        if key is not None:
            keys[name] = key
    return keys
