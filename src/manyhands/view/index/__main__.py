"""``python -m manyhands.view.index RUN_FOLDER``: makes the index of a run and keeps it up."""

import sys

from manyhands.view.index.process import main

if __name__ == "__main__":
    sys.exit(main())
