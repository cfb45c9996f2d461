"""Where items are executed: in this process (``local``), or in worker processes.

For worker processes, read ``workers`` first, the owner's end: which of them executes what, how they are started and replaced, and what
follows from a worker's death. ``worker`` is the other end, and ``wire`` what the two say to each other. ``processes`` starts workers on
this machine.

On the nodes of a Ray cluster ``cluster`` starts them. ``placing`` is the process that speaks to Ray, ``actor`` what Ray starts on a node,
``remote`` the worker process there. ``handshake``: how the two ends connect. ``node_folder``: what stands in for the run's folder,
and ``claiming`` whose that is.
"""
