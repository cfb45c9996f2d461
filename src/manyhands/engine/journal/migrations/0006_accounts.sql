-- What was used for the account of something that a run is made of, such as one of its tools: which account a step is for, and the sums.

ALTER TABLE steps ADD COLUMN account TEXT;

CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    unpriced_calls INTEGER NOT NULL,
    simulated_calls INTEGER NOT NULL
) WITHOUT ROWID;
