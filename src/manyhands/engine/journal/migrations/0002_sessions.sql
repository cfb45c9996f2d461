-- Who worked on the run, and for how long: one row each time it was opened to be performed.

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    process INTEGER NOT NULL,
    host TEXT NOT NULL,
    started_at REAL NOT NULL,
    heartbeat_at REAL NOT NULL,
    ended_at REAL,
    ending TEXT                  -- finished, interrupted, stopped: REASON
);
