"""The owner's side of worker processes, wherever these are.

Read ``executor`` first: what it and a worker say to each other, and what follows from a worker's death. ``assignment`` decides which worker
executes which item, with ``slots`` to find the one with the most free slots. ``starting`` has workers started and replaced by a
``Launcher`` (``launching``): on this machine (``processes``), or on the nodes of a cluster (``cluster``).
"""
