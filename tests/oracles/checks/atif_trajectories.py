"""Which ATIF trajectories the models of a library refuse, or give back otherwise: ``harbor`` or ``atif``, and FILE with a trajectory a
line or FOLDER with one in each file → {rows, rejects}. Harbor's own validator judges files, too."""

import json
import sys
from pathlib import Path

library, path = sys.argv[1], Path(sys.argv[2])
if library == "harbor":
    from harbor.models.trajectories import Trajectory
    from harbor.utils.trajectory_validator import TrajectoryValidator
else:
    from atif import Trajectory


def problems(row):
    """What is wrong with a trajectory, as texts."""
    try:
        again = Trajectory.model_validate(row).to_json_dict()
    except ValueError as error:
        return [str(error)[:400]]
    found = [] if again == row else ["it does not come back as it was"]
    if library == "harbor" and not (validator := TrajectoryValidator()).validate(row):
        found += validator.errors
    return found + list(unresolved(row))


def unresolved(row):
    """References that lead nowhere, and totals without a note, which neither library looks for."""
    inner = {each["trajectory_id"] for each in row.get("subagent_trajectories", ())}
    for step in row["steps"]:
        for result in step.get("observation", {"results": ()})["results"]:
            for ref in result.get("subagent_trajectory_ref", ()):
                if ref["trajectory_id"] not in inner:
                    yield f"step {step['step_id']} refers to {ref['trajectory_id']}"
    if row["final_metrics"]["total_steps"] != len(row["steps"]):
        yield "the steps are not as many as is said"


if path.is_dir():
    files = sorted(each for each in path.rglob("*.json") if each.name != "export_summary.json")
    rows = [json.loads(each.read_text(encoding="utf-8")) for each in files]
    if library == "harbor":
        assert all(TrajectoryValidator().validate(each) for each in files)
else:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
rejects = [[number, found] for number, row in enumerate(rows, 1) if (found := problems(row))]
print(json.dumps({"rows": len(rows), "rejects": rejects[:20]}))
