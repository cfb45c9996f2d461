-- The journal of a run: its items, their attempts, and every step that was paid for or took effect.
-- Times are seconds since 1970 UTC. JSON is stored as a blob: 'j' + JSON, or 'z' + zlib of JSON where that is shorter.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL          -- JSON
) WITHOUT ROWID;

CREATE TABLE items (
    number INTEGER PRIMARY KEY,  -- given once, never changed: steps refer to it
    key TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,   -- order of claiming and of output; follows the input when that is edited
    generation INTEGER NOT NULL, -- the last planning that named this item
    payload BLOB NOT NULL,
    state TEXT NOT NULL,
    not_before REAL NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 1,
    performances INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    reason TEXT,
    cause TEXT,
    message TEXT,
    record BLOB,
    started_at REAL,
    finished_at REAL,
    output INTEGER,              -- the output file that has (or must get) this item's line
    written INTEGER NOT NULL DEFAULT 0
);

CREATE INDEX items_pending ON items (not_before, position) WHERE state = 'pending';
CREATE INDEX items_running ON items (number) WHERE state = 'running';
CREATE INDEX items_unwritten ON items (position) WHERE written = 0 AND output IS NOT NULL;
CREATE INDEX items_position ON items (position);

CREATE TABLE attempts (
    item INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    reason TEXT NOT NULL,        -- why a fresh attempt followed
    PRIMARY KEY (item, attempt)
) WITHOUT ROWID;

CREATE TABLE failures (
    id INTEGER PRIMARY KEY,
    item INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    cause TEXT NOT NULL,
    message TEXT NOT NULL
);

CREATE INDEX failures_item ON failures (item);

CREATE TABLE steps (
    id INTEGER PRIMARY KEY,      -- order of recording
    item INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    scope TEXT NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    digest BLOB NOT NULL,
    request BLOB NOT NULL,
    output BLOB NOT NULL,
    usage BLOB,
    started_at REAL NOT NULL,
    finished_at REAL NOT NULL
);

CREATE UNIQUE INDEX steps_place ON steps (item, attempt, scope, seq);

CREATE TABLE outputs (
    id INTEGER PRIMARY KEY,
    file TEXT NOT NULL UNIQUE,
    size INTEGER NOT NULL        -- bytes known to be whole and on disk
);

CREATE TABLE usage (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    calls INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0,
    unpriced_calls INTEGER NOT NULL DEFAULT 0,
    simulated_calls INTEGER NOT NULL DEFAULT 0
);

INSERT INTO usage (id) VALUES (1);

-- How many items are in each state, kept up to date by triggers, so that progress never scans the items.
CREATE TABLE totals (
    state TEXT NOT NULL,
    detail TEXT NOT NULL,        -- the reason of a discard, the cause of a failure, else ''
    items INTEGER NOT NULL,
    PRIMARY KEY (state, detail)
) WITHOUT ROWID;

CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
    INSERT INTO totals VALUES (NEW.state, coalesce(NEW.reason, NEW.cause, ''), 1)
        ON CONFLICT DO UPDATE SET items = items + 1;
END;

CREATE TRIGGER items_moved AFTER UPDATE OF state, reason, cause ON items
WHEN OLD.state <> NEW.state OR OLD.reason IS NOT NEW.reason OR OLD.cause IS NOT NEW.cause BEGIN
    UPDATE totals SET items = items - 1 WHERE state = OLD.state AND detail = coalesce(OLD.reason, OLD.cause, '');
    INSERT INTO totals VALUES (NEW.state, coalesce(NEW.reason, NEW.cause, ''), 1)
        ON CONFLICT DO UPDATE SET items = items + 1;
END;
