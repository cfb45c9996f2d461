-- Every query of the engine, by name. ":rows" stands for as many rows of placeholders as are written at once.

-- name: set_meta
INSERT INTO meta (name, value) VALUES :rows ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: tables_read
-- what there is by these names of tables (JSON), and what would be taken for a function that queries use; itself without such functions
SELECT name,
    type = 'table' AND typeof(rootpage) = 'integer' AND rootpage > 0
        AND typeof(name) = 'text' AND typeof(sql) = 'text' AND lower(name) <> 'json_each',
    sql
FROM sqlite_master
WHERE instr(?, '"' || lower(name) || '"') OR lower(name) = 'json_each';

-- name: get_meta
SELECT value FROM meta WHERE name = ?;

-- name: several_meta
-- a JSON list of names
SELECT name, value FROM meta WHERE name IN (SELECT value FROM json_each(?));

-- name: start_items
-- number, time
UPDATE items SET state = 'running', performances = performances + 1, started_at = coalesce(started_at, v.column2)
FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: put_back_items
-- number, not_before, attempt, failures
UPDATE items SET state = 'pending', not_before = v.column2, attempt = v.column3, failures = v.column4
FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: settle_items
-- number, state, reason, cause, message, record, finished_at, output file (or null), started_at (null: that is entered already)
UPDATE items SET state = v.column2, reason = v.column3, cause = v.column4, message = v.column5, record = v.column6,
    finished_at = v.column7, written = 0, output = (SELECT id FROM outputs WHERE file = v.column8),
    performances = performances + (v.column9 IS NOT NULL), started_at = coalesce(started_at, v.column9)
FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: end_attempts
-- item, attempt, ended_at, reason
INSERT INTO attempts (item, attempt, ended_at, reason) VALUES :rows ON CONFLICT DO NOTHING;

-- name: add_failures
-- item, attempt, at, cause, message
INSERT INTO failures (item, attempt, at, cause, message) VALUES :rows;

-- name: add_steps
-- item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at, account (or null)
INSERT INTO steps (item, attempt, scope, seq, kind, digest, request, output, usage, started_at, finished_at, account) VALUES :rows;

-- name: add_outputs
-- file
INSERT INTO outputs (file, size) SELECT v.column1, 0 FROM (VALUES :rows) AS v WHERE true ON CONFLICT DO NOTHING;

-- name: mark_written
-- number
UPDATE items SET written = 1 FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: set_output_sizes
-- file, size
UPDATE outputs SET size = v.column2 FROM (VALUES :rows) AS v WHERE outputs.file = v.column1;

-- name: beat
-- session, time
UPDATE sessions SET heartbeat_at = v.column2 FROM (VALUES :rows) AS v WHERE sessions.id = v.column1;

-- name: add_usage
UPDATE usage SET calls = calls + ?, input_tokens = input_tokens + ?, output_tokens = output_tokens + ?,
    cached_tokens = cached_tokens + ?, cache_write_tokens = cache_write_tokens + ?, reasoning_tokens = reasoning_tokens + ?,
    cost = cost + ?, unpriced_calls = unpriced_calls + ?, simulated_calls = simulated_calls + ? WHERE id = 1;

-- name: add_to_account
INSERT INTO accounts (name, calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost, unpriced_calls,
    simulated_calls)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET calls = calls + excluded.calls,
    input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens, cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
    reasoning_tokens = reasoning_tokens + excluded.reasoning_tokens, cost = cost + excluded.cost,
    unpriced_calls = unpriced_calls + excluded.unpriced_calls, simulated_calls = simulated_calls + excluded.simulated_calls;

-- name: plan_items
-- key, position, generation, payload. A known item keeps its number and state; one that was removed from the input and is back goes on.
INSERT INTO items (key, position, generation, payload, state)
SELECT v.column1, v.column2, v.column3, v.column4, 'pending' FROM (VALUES :rows) AS v WHERE true
ON CONFLICT (key) DO UPDATE SET position = excluded.position, generation = excluded.generation, payload = excluded.payload,
    state = CASE WHEN items.reason = 'removed' THEN 'pending' ELSE items.state END,
    failures = CASE WHEN items.reason = 'removed' THEN 0 ELSE items.failures END,
    message = CASE WHEN items.reason = 'removed' THEN NULL ELSE items.message END,
    cause = CASE WHEN items.reason = 'removed' THEN NULL ELSE items.cause END,
    reason = CASE WHEN items.reason = 'removed' THEN NULL ELSE items.reason END;

-- name: enter_outcome
-- number of an item that ended elsewhere: key, state, reason, cause, message, record, finished_at, output file
UPDATE items SET state = v.column2, reason = v.column3, cause = v.column4, message = v.column5, record = v.column6,
    finished_at = v.column7, written = 0, output = (SELECT id FROM outputs WHERE file = v.column8)
FROM (VALUES :rows) AS v WHERE items.key = v.column1 AND items.state = 'pending';

-- name: planned_twice
-- keys that this planning has named before: key, generation
SELECT items.key FROM items JOIN (VALUES :rows) AS v ON items.key = v.column1 WHERE items.generation = v.column2 LIMIT 1;

-- name: moved_items
-- whether planning gave an ended item another payload or position (compared before it is written)
SELECT count(*) FROM items JOIN (VALUES :rows) AS v ON items.key = v.column1
WHERE items.output IS NOT NULL AND (items.position <> v.column2 OR items.payload <> v.column3);

-- name: removed_items
-- those that this planning is the first not to name
SELECT number, key, state FROM items WHERE generation < ? AND position < 1000000000000 ORDER BY number;

-- name: park_removed
-- behind everything that the input names, so that positions stay unique
UPDATE items SET position = number + 1000000000000 WHERE generation < ?;

-- name: cancel_removed
-- also those that a person had cancelled: generation, whether those that were discarded are, too
UPDATE items SET state = 'cancelled', reason = 'removed', cause = NULL, message = 'no longer in the input'
WHERE generation < ?1 AND (state IN ('pending', 'running', 'failed') OR (state = 'cancelled' AND reason IS NULL)
    OR (?2 AND state = 'discarded'));

-- name: removed_payloads
-- of all that the latest planning did not name: generation, the number to go on behind, how many
SELECT number, payload FROM items WHERE generation < ? AND number > ? ORDER BY number LIMIT ?;

-- name: set_payloads
-- number, payload
UPDATE items SET payload = v.column2 FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: release_running
UPDATE items SET state = 'pending' WHERE state = 'running';

-- name: give_up_attempts
-- of failed items whose next execution starts from nothing: time, causes that ask for that (JSON), item keys (JSON; null: all)
INSERT INTO attempts (item, attempt, ended_at, reason)
SELECT number, attempt, ?1, coalesce(message, cause) FROM items
WHERE state = 'failed' AND cause IN (SELECT value FROM json_each(?2)) AND (?3 IS NULL OR key IN (SELECT value FROM json_each(?3)))
ON CONFLICT DO NOTHING;

-- name: release_failed
-- causes whose next execution starts from nothing (JSON), item keys (JSON; null: all)
UPDATE items SET state = 'pending', failures = 0, not_before = 0, attempt = attempt + coalesce(cause IN (SELECT value FROM json_each(?1)), 0),
    reason = NULL, cause = NULL, message = NULL, record = NULL, finished_at = NULL
WHERE state = 'failed' AND (?2 IS NULL OR key IN (SELECT value FROM json_each(?2)));

-- name: reopenable
-- of items, those that have ended and are still in the input: item numbers (JSON)
SELECT number FROM items WHERE number IN (SELECT value FROM json_each(?)) AND position < 1000000000000
    AND state IN ('completed', 'discarded', 'failed', 'cancelled') AND reason IS NOT 'removed';

-- name: keep_outcomes
-- what ended items had come to that are executed again: number, time
INSERT INTO earlier_outcomes (item, attempt, state, reason, cause, message, record, finished_at, reopened_at)
SELECT number, attempt, state, reason, cause, message, record, finished_at, v.column2
FROM (VALUES :rows) AS v CROSS JOIN items ON items.number = v.column1
WHERE state IN ('completed', 'discarded', 'failed', 'cancelled') AND reason IS NOT 'removed';

-- name: give_up_reopened
-- the attempts of items that are executed again from nothing: number, time, why, whether all are or only those that had not failed, and
-- the causes whose failures are too (JSON)
INSERT INTO attempts (item, attempt, ended_at, reason)
SELECT number, attempt, v.column2, v.column3 FROM (VALUES :rows) AS v CROSS JOIN items ON items.number = v.column1
WHERE performances > 0 AND (state IN ('completed', 'discarded') OR v.column4 OR cause IN (SELECT value FROM json_each(v.column5)))
ON CONFLICT DO NOTHING;

-- name: reopen_items
-- items that are executed again: number, whether all start from nothing or only those that had not failed, and the causes whose failures
-- do so too (JSON)
UPDATE items SET state = 'pending', failures = 0, not_before = 0, reason = NULL, cause = NULL, message = NULL, record = NULL,
    started_at = NULL, finished_at = NULL, output = NULL, written = 0,
    attempt = attempt + (performances > 0 AND (state IN ('completed', 'discarded') OR v.column2
        OR coalesce(cause IN (SELECT value FROM json_each(v.column3)), 0)))
FROM (VALUES :rows) AS v WHERE items.number = v.column1;

-- name: request_cancel
-- of items that have not ended, which are to be cancelled unless they come to their end before: number, why
UPDATE items SET cause = 'cancelled', message = v.column2
FROM (VALUES :rows) AS v WHERE items.number = v.column1 AND state IN ('pending', 'running');

-- name: cancel_requested
-- those that nobody executes any more: time
UPDATE items SET state = 'cancelled', finished_at = ?, not_before = 0 WHERE state IN ('pending', 'running') AND cause = 'cancelled';

-- name: cancel_items
-- that have not ended: number, time, why
UPDATE items SET state = 'cancelled', reason = NULL, cause = 'cancelled', message = v.column3, finished_at = v.column2, not_before = 0
FROM (VALUES :rows) AS v WHERE items.number = v.column1 AND state IN ('pending', 'running');

-- name: outputs_of_items
-- the files that hold lines of items: item numbers (JSON)
SELECT DISTINCT outputs.file FROM json_each(?) CROSS JOIN items ON items.number = json_each.value
JOIN outputs ON outputs.id = items.output;

-- name: add_orders
-- time, user, command, details
INSERT INTO orders (at, given_by, command, details) VALUES :rows;

-- name: list_orders
-- the latest first
SELECT at, given_by, command, details FROM orders ORDER BY id DESC LIMIT ?;

-- name: earlier_outcomes
SELECT attempt, state, coalesce(reason, cause), message, record, finished_at, reopened_at FROM earlier_outcomes WHERE item = ? ORDER BY id;

-- name: all_earlier_outcomes
-- of every item that was executed again on request, in order; why: that of the request, where the attempt was given up for it
SELECT item, e.attempt, state, reason, cause, message, record, finished_at,
    (SELECT a.reason FROM attempts AS a WHERE a.item = e.item AND a.attempt = e.attempt AND a.ended_at = e.reopened_at)
FROM earlier_outcomes AS e ORDER BY item, id;

-- name: outlines
SELECT number, key, state, reason, cause, position FROM items WHERE position > ? ORDER BY position LIMIT ?;

-- name: release_discarded
-- discarded for that reason, to be judged again: what is recorded of them is replayed
UPDATE items SET state = 'pending', failures = 0, not_before = 0, reason = NULL, message = NULL, record = NULL, finished_at = NULL
WHERE state = 'discarded' AND reason = ? AND position < 1000000000000;

-- name: numbers_of_keys
-- item keys (JSON)
SELECT number FROM items WHERE key IN (SELECT value FROM json_each(?));

-- name: release_waiting
UPDATE items SET not_before = 0 WHERE state = 'pending' AND not_before > 0;

-- name: claim_fresh
SELECT number, key, payload, attempt, performances, failures, position FROM items
WHERE state = 'pending' AND not_before = 0 AND position > ? ORDER BY position LIMIT ?;

-- name: claim_due
SELECT number, key, payload, attempt, performances, failures, position FROM items
WHERE state = 'pending' AND not_before > 0 AND not_before <= ? ORDER BY not_before LIMIT ?;

-- name: claim_refused
-- what was refused up to the end of an earlier session
SELECT number, key, payload, attempt, performances, failures, position FROM items
WHERE state = 'pending' AND not_before < 0 AND position > ? ORDER BY position LIMIT ?;

-- name: next_due
SELECT min(not_before) FROM items WHERE state = 'pending' AND not_before > 0;

-- name: recorded_steps
SELECT scope, seq, kind, digest, output FROM steps WHERE item = ? AND attempt = ?;

-- name: steps_of_attempt
SELECT attempt, scope, seq, kind, request, output, started_at, finished_at, usage FROM steps
WHERE item = ? AND attempt = ? ORDER BY id;

-- name: steps_of_items
-- of the latest attempt of each: item numbers (JSON)
SELECT steps.item, steps.attempt, scope, seq, kind, request, steps.output, steps.started_at, steps.finished_at, usage
FROM json_each(?) CROSS JOIN items ON items.number = json_each.value
CROSS JOIN steps ON steps.item = items.number AND steps.attempt = items.attempt ORDER BY steps.item, steps.id;

-- name: usage_of_items
-- item numbers (JSON); CROSS JOIN has the items looked up by the index, where IN would go through all steps
SELECT item, usage FROM json_each(?) CROSS JOIN steps ON item = json_each.value WHERE usage IS NOT NULL;

-- name: item_by_number
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE number = ?;

-- name: item_by_key
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE key = ?;

-- name: items_after
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE position > ? ORDER BY position LIMIT ?;

-- name: items_numbered
-- in order of planning: the number to go on behind, the last one, how many, the largest payload and record in bytes that are read; instead
-- of larger ones there is what is no record
SELECT number, key, CASE WHEN length(payload) <= ?4 THEN payload END, state, attempt, performances, failures, reason, cause, message,
    CASE WHEN length(record) > ?4 THEN x'00' ELSE record END, started_at, finished_at, position
FROM items WHERE number > ?1 AND number <= ?2 ORDER BY number LIMIT ?3;

-- name: item_marks
-- by what a change of an item is known, in order of planning: the number to go on behind, how many
SELECT number, position, state, coalesce(reason, cause, ''), attempt, finished_at FROM items WHERE number > ? ORDER BY number LIMIT ?;

-- name: running_items
SELECT number FROM items WHERE state = 'running';

-- name: journal_ends
-- how far the journal has got: the largest numbers of steps, failures, orders and items, and the latest session with its end
SELECT (SELECT max(id) FROM steps), (SELECT max(id) FROM failures), (SELECT max(id) FROM orders), (SELECT max(number) FROM items),
    (SELECT max(id) FROM sessions), (SELECT ended_at FROM sessions ORDER BY id DESC LIMIT 1);

-- name: step_marks
-- of all steps of items, by address, what is counted of them: first item, last item, the address to go on behind (item, attempt, scope,
-- seq), the largest answer in bytes that is read, how many
SELECT id, item, attempt, scope, seq, kind, started_at, finished_at, usage,
    CASE WHEN kind IN ('tool', 'tools') AND length(request) <= ?7 THEN request END,
    CASE WHEN (kind IN ('tool', 'tools') OR (kind = 'model' AND scope = '')) AND length(output) <= ?7 THEN output END
FROM steps WHERE item BETWEEN ?1 AND ?2 AND (item, attempt, scope, seq) > (?3, ?4, ?5, ?6)
ORDER BY item, attempt, scope, seq LIMIT ?8;

-- name: steps_recorded
-- in order of recording: the id to go on behind, how many
SELECT id, item FROM steps WHERE id > ? ORDER BY id LIMIT ?;

-- name: step_stamp
-- by which a step is known again
SELECT item, finished_at FROM steps WHERE id = ?;

-- name: failures_recorded
-- in order of recording: the id to go on behind, the last one, how many
SELECT id, item, at FROM failures WHERE id > ? AND id <= ? ORDER BY id LIMIT ?;

-- name: payloads
-- of items that are still in the input
SELECT payload, position FROM items WHERE position > ? AND position < 1000000000000 ORDER BY position LIMIT ?;

-- name: exported_items
-- what a table of the items shows of each, but for those that left the input; of one that waits or is executed again: why it last failed
SELECT key, payload, state, performances,
    CASE WHEN state IN ('pending', 'running') AND performances > 0
        THEN (SELECT message FROM failures WHERE item = number ORDER BY id DESC LIMIT 1) ELSE message END,
    CASE WHEN state IN ('completed', 'failed') THEN record END,
    CASE WHEN state NOT IN ('pending', 'running') THEN finished_at END,
    position
FROM items WHERE position > ? AND position < 1000000000000 ORDER BY position LIMIT ?;

-- name: completed_records
-- of items that are still in the input
SELECT record, position FROM items WHERE position > ? AND position < 1000000000000 AND state = 'completed' ORDER BY position LIMIT ?;

-- name: first_failed_items
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE state = 'failed' ORDER BY position LIMIT ?;

-- name: unwritten_items
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE written = 0 AND output IS NOT NULL AND position > ? ORDER BY position LIMIT ?;

-- name: attempts_of_item
SELECT attempt, ended_at, reason FROM attempts WHERE item = ? ORDER BY attempt;

-- name: failures_of_item
SELECT attempt, at, cause, message FROM failures WHERE item = ? ORDER BY id;

-- name: last_failure
SELECT cause FROM failures WHERE item = ? ORDER BY id DESC LIMIT 1;

-- name: count_by_state
SELECT state, detail, items FROM totals WHERE items > 0;

-- name: commonest_failure
SELECT message, count(*) FROM items WHERE state = 'failed' GROUP BY cause, message ORDER BY count(*) DESC, min(position) LIMIT 1;

-- name: count_left
-- of the first items of the input, how many have not ended
SELECT count(*) FROM items WHERE position < ? AND state IN ('pending', 'running');

-- name: count_begun
-- of all items, how many have not ended, and were executed
SELECT count(*) FROM items WHERE state IN ('pending', 'running') AND performances > 0;

-- name: count_left_input
-- in a state, of those that left the input
SELECT count(*) FROM items WHERE position >= 1000000000000 AND state = ?;

-- name: get_usage
SELECT calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost, unpriced_calls, simulated_calls
FROM usage WHERE id = 1;

-- name: list_accounts
-- those with the highest costs
SELECT CAST(name AS TEXT), calls, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost, unpriced_calls, simulated_calls
FROM accounts ORDER BY cost DESC, calls DESC LIMIT 100;

-- name: accounts_of_item
-- what steps used for accounts, those of abandoned attempts included
SELECT CAST(account AS TEXT), usage FROM steps WHERE item = ? AND usage IS NOT NULL AND account IS NOT NULL;

-- name: list_outputs
SELECT id, file, size FROM outputs;

-- name: count_unwritten
SELECT count(*) FROM items WHERE written = 0 AND output = ?;

-- name: forget_output
UPDATE items SET written = 0 WHERE output = ?;

-- name: forget_all_outputs
UPDATE items SET written = 0 WHERE output IS NOT NULL;

-- name: reset_output_size
UPDATE outputs SET size = 0 WHERE id = ?;

-- name: reset_all_output_sizes
UPDATE outputs SET size = 0;

-- name: assign_output
UPDATE items SET output = (SELECT id FROM outputs WHERE file = ?) WHERE number = ?;

-- name: open_session
INSERT INTO sessions (process, host, started_at, heartbeat_at) VALUES (?, ?, ?, ?) RETURNING id;

-- name: begin_pause
-- session, time
UPDATE sessions SET paused_at = v.column2 FROM (VALUES :rows) AS v WHERE sessions.id = v.column1;

-- name: end_pause
-- session, time: the last sign of life, too, so that no session has paused for longer than it lived
UPDATE sessions SET paused = paused + coalesce(v.column2 - paused_at, 0), paused_at = NULL, heartbeat_at = v.column2
FROM (VALUES :rows) AS v WHERE sessions.id = v.column1;

-- name: close_session
UPDATE sessions SET ended_at = ?1, heartbeat_at = ?1, ending = ?2, paused = paused + coalesce(?1 - paused_at, 0), paused_at = NULL
WHERE id = ?3;

-- name: last_session
SELECT id, process, host, started_at, heartbeat_at, ended_at, ending, paused_at FROM sessions ORDER BY id DESC LIMIT 1;

-- name: working_seconds
-- how long anyone worked on the run, without pauses; a session that was killed counts up to its last heartbeat
SELECT coalesce(sum(coalesce(ended_at, heartbeat_at) - started_at - paused
    - coalesce(max(0.0, coalesce(ended_at, heartbeat_at) - paused_at), 0.0)), 0.0) FROM sessions;

-- name: states_after
-- position, state, reason: what checkpoints are made of, without decoding anything
SELECT position, state, reason FROM items WHERE position > ? AND position < 1000000000000 ORDER BY position LIMIT ?;

-- name: items_in_state_after
-- position, state (or null), reason or cause (or null), limit
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE position > ?1 AND (?2 IS NULL OR state = ?2) AND (?3 IS NULL OR coalesce(reason, cause) = ?3)
ORDER BY position LIMIT ?4;

-- name: failed_items_after
-- the same of failed items, which have an index
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE state = 'failed' AND position > ?1 AND ?2 = 'failed' AND (?3 IS NULL OR coalesce(reason, cause) = ?3)
ORDER BY position LIMIT ?4;

-- name: items_in_state_before
-- the last ones before a position, the last first
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE position < ?1 AND (?2 IS NULL OR state = ?2) AND (?3 IS NULL OR coalesce(reason, cause) = ?3)
ORDER BY position DESC LIMIT ?4;

-- name: items_by_numbers
-- item numbers (JSON)
SELECT number, key, payload, state, attempt, performances, failures, reason, cause, message, record, started_at, finished_at, position
FROM items WHERE number IN (SELECT value FROM json_each(?));

-- name: item_neighbours
-- of a position: the number of the item before, of the item behind, of the next failed one
SELECT (SELECT number FROM items WHERE position < ?1 ORDER BY position DESC LIMIT 1),
    (SELECT number FROM items WHERE position > ?1 ORDER BY position LIMIT 1),
    (SELECT number FROM items WHERE state = 'failed' AND position > ?1 ORDER BY position LIMIT 1);

-- name: first_running_items
SELECT number FROM items WHERE state = 'running' ORDER BY number LIMIT ?;

-- name: last_step_before
-- of the last thousand: the last one that ended before a time
SELECT coalesce(max(CASE WHEN finished_at < ? THEN id END), min(id) - 1)
FROM (SELECT id, finished_at FROM steps ORDER BY id DESC LIMIT 1000) HAVING count(*) > 0;

-- name: last_failure_before
SELECT coalesce(max(CASE WHEN at < ? THEN id END), min(id) - 1)
FROM (SELECT id, at FROM failures ORDER BY id DESC LIMIT 1000) HAVING count(*) > 0;

-- name: items_with_steps_behind
SELECT DISTINCT item FROM (SELECT item FROM steps WHERE id > ?1 ORDER BY id LIMIT ?2);

-- name: items_with_failures_behind
SELECT DISTINCT item FROM (SELECT item FROM failures WHERE id > ?1 ORDER BY id LIMIT ?2);

-- name: list_sessions
-- the latest first
SELECT id, process, host, started_at, heartbeat_at, ended_at, ending, paused_at FROM sessions ORDER BY id DESC LIMIT ?;

-- name: failure_causes
SELECT cause, count(*), min(at), max(at) FROM failures GROUP BY cause ORDER BY count(*) DESC LIMIT ?;

-- name: failure_examples
-- of the latest ones with a cause
SELECT DISTINCT message FROM (SELECT message FROM failures WHERE cause = ? ORDER BY id DESC LIMIT 200) LIMIT 3;

-- name: count_steps
SELECT count(*) FROM steps WHERE item = ? AND attempt = ?;

-- name: outline_of_steps
-- the ids come from the index alone, so that an item with very many steps is not read for a page of them
SELECT id, scope, seq, kind, started_at, finished_at, length(request), length(output), usage FROM steps
WHERE id IN (SELECT id FROM steps WHERE item = ? AND attempt = ? AND +id > ? ORDER BY +id LIMIT ?) ORDER BY id;

-- name: outline_of_steps_before
SELECT id, scope, seq, kind, started_at, finished_at, length(request), length(output), usage FROM steps
WHERE id IN (SELECT id FROM steps WHERE item = ? AND attempt = ? AND +id < ? ORDER BY +id DESC LIMIT ?) ORDER BY id;

-- name: count_steps_before
SELECT count(*) FROM steps WHERE item = ? AND attempt = ? AND +id < ?;

-- name: step_numbered
-- item, attempt, number from 0
SELECT id FROM steps WHERE item = ? AND attempt = ? ORDER BY +id LIMIT 1 OFFSET ?;

-- name: step_by_id
SELECT item, attempt, scope, seq, kind, request, output, started_at, finished_at, usage FROM steps WHERE id = ?;

-- name: outline_of_step
SELECT item, attempt, id, scope, seq, kind, started_at, finished_at, length(request), length(output), usage FROM steps WHERE id = ?;

-- name: has_sessions
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sessions';

-- name: list_sessions_without_pauses
-- of journals that have none
SELECT id, process, host, started_at, heartbeat_at, ended_at, ending, NULL FROM sessions ORDER BY id DESC LIMIT ?;

-- name: working_seconds_without_pauses
SELECT coalesce(sum(coalesce(ended_at, heartbeat_at) - started_at), 0.0) FROM sessions;

-- name: interruptions
-- executions whose worker was lost; those that a fresh attempt followed, for which an attempt has no failure of its own
SELECT count(*), coalesce(sum(
    EXISTS (SELECT 1 FROM attempts WHERE attempts.item = lost.item AND attempts.attempt = lost.attempt)
    AND NOT EXISTS (
        SELECT 1 FROM failures AS later WHERE later.item = lost.item AND later.attempt = lost.attempt AND later.id > lost.id
    )
), 0) FROM failures AS lost WHERE cause IN ('worker_crash', 'node_lost');
