-- What people did to a run besides executing it: what they changed, for how long they paused it, and what items had come to that are
-- executed again on request.

CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    given_by TEXT NOT NULL,      -- user@host
    command TEXT NOT NULL,       -- set, retry, cancel
    details TEXT NOT NULL        -- JSON
);

CREATE TABLE earlier_outcomes (
    id INTEGER PRIMARY KEY,
    item INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    cause TEXT,
    message TEXT,
    record BLOB,
    finished_at REAL,
    reopened_at REAL NOT NULL
);

CREATE INDEX earlier_outcomes_item ON earlier_outcomes (item);

ALTER TABLE sessions ADD COLUMN paused REAL NOT NULL DEFAULT 0;  -- seconds, of the pauses that have ended
ALTER TABLE sessions ADD COLUMN paused_at REAL;                  -- since when it is paused
