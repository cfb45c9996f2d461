-- The index of one run. Times are seconds since 1970 UTC, cost is US dollars. All of it can be made again from the run's journal.

CREATE TABLE state (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL              -- JSON
) WITHOUT ROWID;

CREATE TABLE kind (                  -- the states of items with their reasons and causes
    id INTEGER PRIMARY KEY,
    state TEXT NOT NULL,
    detail TEXT NOT NULL,            -- the reason of a discard, the cause of a failure, else ''
    items INTEGER NOT NULL DEFAULT 0,
    UNIQUE (state, detail)
);

CREATE TABLE item (
    number INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL,
    position INTEGER NOT NULL,
    score REAL,
    cost REAL,                       -- this and the next six, but for seconds: null where no step was recorded
    tokens INTEGER,                  -- of input and output
    turns INTEGER,
    tools INTEGER,                   -- tool calls
    seconds REAL,                    -- from the first beginning to the end; null where there is none
    tool_failures INTEGER,
    tokens_out INTEGER,
    finished REAL,
    retries INTEGER,                 -- attempts after the first; null where there are none
    version INTEGER NOT NULL,        -- of its text in words: rowid = number + (version << 40)
    text INTEGER NOT NULL,           -- by which its text is known again
    labels TEXT NOT NULL,            -- ids, each between commas; '' without any
    calls TEXT NOT NULL              -- of its tools: id:calls:failures, each between commas; '' without any
);

CREATE TABLE label (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    items INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, value)
);

CREATE TABLE item_label (
    label INTEGER NOT NULL,
    item INTEGER NOT NULL,
    PRIMARY KEY (label, item)
) WITHOUT ROWID;

CREATE TABLE tool (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    items INTEGER NOT NULL DEFAULT 0,
    calls INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    failed_items INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE item_tool (
    tool INTEGER NOT NULL,
    item INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (tool, item)
) WITHOUT ROWID;

CREATE TABLE tool_seconds (          -- how long calls took, of all attempts
    tool INTEGER NOT NULL,
    bucket INTEGER NOT NULL,         -- of a logarithmic scale
    calls INTEGER NOT NULL,
    PRIMARY KEY (tool, bucket)
) WITHOUT ROWID;

CREATE TABLE score_bucket (          -- items by score: floor(20 * score), from 0 to 19
    bucket INTEGER PRIMARY KEY,
    items INTEGER NOT NULL
);

CREATE TABLE slot (                  -- what happened in each 5 seconds since 1970
    slot INTEGER PRIMARY KEY,
    finished INTEGER NOT NULL,       -- items whose present end it was, whichever end
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    failures INTEGER NOT NULL,       -- of attempts, also where another one followed
    tokens_in INTEGER NOT NULL,
    tokens_out INTEGER NOT NULL,
    cost REAL NOT NULL
);

CREATE VIRTUAL TABLE words USING fts5 (text, content = '', columnsize = 0, detail = none);
INSERT INTO words (words, rank) VALUES ('automerge', 0);
INSERT INTO words (words, rank) VALUES ('hashsize', 16777216);
