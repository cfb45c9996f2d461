"""Scores of a judge that were given later, beside the ones of the conversation itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyhands.core.errors import UserError
from manyhands.io.files import folder_name
from manyhands.workloads.memory.datasets.base import Rules
from manyhands.workloads.memory.folders import SCORES

FILE = "scores.json"
"""The scores, when the run has been performed."""


def scores_folder(run: Path, judge: str, scoring: Rules | None = None) -> Path:
    """Where the scores of a judge are. ``scoring``: by which rules, None for those that are the run's own."""
    return run / SCORES / folder_name(judge if scoring is None else f"{judge} ({scoring})")


def judged_scores(run: Path, judge: str) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    """The scores that a judge gave to a run's results, by agent, dataset and example. ``judge``: the model, or the folder of its scores.
    Raises UserError that says which there are."""
    places = (scores_folder(run, judge), run / SCORES / judge, Path(judge))
    path = next((each / FILE for each in places if (each / FILE).is_file()), None)
    if path is None:
        known = sorted(each.parent.name for each in (run / SCORES).glob(f"*/{FILE}"))
        there = f"there are some by {', '.join(known)}" if known else "there are none"
        raise UserError(f"{run}: no scores by the judge {judge!r} ({there}; manyhands memory rescore makes them)")
    try:
        content = json.loads(path.read_bytes())
        return {(each["agent"], each["dataset"], each["example"]): each for each in content["results"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: can't be read: {error!r}") from None
