-- The first failed items of a run are found without reading all of them.

CREATE INDEX items_failed ON items (position) WHERE state = 'failed';
