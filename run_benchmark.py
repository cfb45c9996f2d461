#!/usr/bin/env python3
"""The memory benchmark for command lines that call ``run_benchmark.py``: the same as ``manyhands memory run``."""

import sys

from manyhands.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["memory", "run", *sys.argv[1:]]))
