"""What verifiers' earlier interface reads of FOLDER with results.jsonl and metadata.json → {rows, complete, columns}."""

import json
import sys
from pathlib import Path

from verifiers.legacy.utils.path_utils import is_valid_eval_results_path
from verifiers.legacy.utils.save_utils import load_outputs

folder = Path(sys.argv[1])
outputs = load_outputs(folder)
complete = is_valid_eval_results_path(folder)
print(json.dumps({"rows": len(outputs), "complete": complete, "columns": sorted(set.intersection(*map(set, outputs)))}))
