"""``python -m manyhands`` is the same as ``manyhands``."""

import sys

from manyhands.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
