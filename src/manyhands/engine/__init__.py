"""The engine: runs the items of a workload, each step once, whatever dies meanwhile. It knows of no workload and of no model.

To be read in this order:

1. ``contract``: what a workload brings (``Workload``), and what it sees while it runs an item (``Context``).
2. ``attempt``: one attempt at an item; how a step is recorded, and replayed. ``workspaces``: the folders of attempts.
3. ``journal``: the run's database. ``records`` and ``queries.sql`` first, then ``reader``, ``store`` (what the owner writes), ``writer``
   (commits in groups), ``lock`` (the one owner; a journal that went back in time is known), ``database``, ``migrations``.
4. ``scheduler``: slots that pull items, and what follows from each result. With it ``claims`` (which item is next, and whether one that
   failed is executed again) and ``discards`` (what is said where everything is discarded).
5. ``executors``: where attempts are made: in this process, in worker processes of this machine, or in those of a cluster.
6. ``limits``: ``adaptive`` (calls in flight), ``replicas`` (which server or key a call goes to), ``budget``, ``own`` (a workload's own),
   ``shared`` (all of these, for all items, and over a kill), ``waits``. ``pause``: nothing begins, and time limits stand still.
7. ``outputs``: files that grow by a line an item, kept true to the journal. ``check``: finished items replayed against today's code.
   ``old_contract``: plug-ins that were written for version 0.1.0.
"""
