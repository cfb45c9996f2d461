#!/usr/bin/env python3
"""The memory benchmark for command lines that call ``run_benchmark.py``: the same as ``manyhands memory run``."""

import sys

from manyhands.processes.interpreters import leave_current_folder

if __name__ == "__main__":
    leave_current_folder()
    from manyhands.cli.main import main

    sys.exit(main(["memory", "run", *sys.argv[1:]]))
