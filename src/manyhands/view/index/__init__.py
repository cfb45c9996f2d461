"""The derived index of a run: one SQLite file in the user's cache folder, by which items are sorted, filtered, counted and searched.

1. ``gathering``: what the index holds of each item, read from the journal. ``writing``: puts it in and keeps the totals.
2. ``building``: makes the index of a run and keeps it up. ``process``: does so in a process of its own, at low priority.
3. ``filters``: what the items are filtered and sorted by, as in the address of a page. ``conditions``: the same as SQL.
4. ``queries``: pages, counts, facets, series and statistics, each within its time.
5. ``database`` (with ``schema.sql``): where indexes are, how they are opened, and which ones are removed.

The journal is only read. An index that does not fit its journal any more is thrown away and made again.
"""
