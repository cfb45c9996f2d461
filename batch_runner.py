"""The original's script: ``python batch_runner.py --dataset_file=… --batch_size=… --run_name=…``, and its class to import."""

from __future__ import annotations

import sys

from manyhands import BatchRunner

__all__ = ["BatchRunner"]

if __name__ == "__main__":
    from manyhands.processes.interpreters import leave_current_folder

    leave_current_folder()
    from manyhands.cli.main import main

    sys.exit(main(["batch", *sys.argv[1:]]))
