-- Keys, forks, what is set aside of budgets, and what a sweep looks for.

ALTER TABLE sessions ADD COLUMN external_key TEXT COLLATE "C";
ALTER TABLE sessions ADD COLUMN forked_from TEXT COLLATE "C" REFERENCES sessions (id);
ALTER TABLE sessions ADD COLUMN forked_upto BIGINT;
ALTER TABLE sessions ADD COLUMN tokens_reserved BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tool_calls_reserved BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN turns_reserved BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN cost_micros_reserved BIGINT NOT NULL DEFAULT 0;
-- One live session a key. A terminated one keeps its key for the record.
CREATE UNIQUE INDEX sessions_keyed ON sessions (principal, external_key)
  WHERE external_key IS NOT NULL AND state <> 'terminated';
-- What rested for longest, on one runner.
CREATE INDEX sessions_active_due ON sessions (workspace_runner, active_at_ms) WHERE state = 'active';
CREATE INDEX sessions_idle_due ON sessions (workspace_runner, state_at_ms) WHERE state = 'idle';
CREATE INDEX sessions_suspended_due ON sessions (workspace_runner, state_until_ms) WHERE state = 'suspended';

-- The tokens of all sessions, by the minute since 1970 UTC. Only the last ones are kept.
CREATE TABLE token_minutes (
  minute BIGINT PRIMARY KEY,
  tokens BIGINT NOT NULL
);
