"""``manyhands export`` and ``manyhands import``: conversations out of runs, and into them."""
