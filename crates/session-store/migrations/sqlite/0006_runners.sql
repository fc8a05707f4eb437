-- The runners that there are, under which name a run was claimed, and until when one must be.

CREATE TABLE runners (
  id TEXT NOT NULL PRIMARY KEY,
  hostname TEXT NOT NULL,
  -- The executors that it has, and the directories that it serves where it does not serve any (JSON).
  executors TEXT NOT NULL,
  project_dirs TEXT,
  version TEXT NOT NULL,
  -- Counts on for ever, also when it is forgotten: an instance that was superseded never counts again.
  instance INTEGER NOT NULL,
  draining INTEGER NOT NULL DEFAULT 0,
  forgotten INTEGER NOT NULL DEFAULT 0,
  registered_at_ms INTEGER NOT NULL,
  seen_at_ms INTEGER NOT NULL
) STRICT;

ALTER TABLE runs ADD COLUMN claim_id TEXT;
ALTER TABLE runs ADD COLUMN claim_by_ms INTEGER;
-- A claim gets one run, however often it is repeated.
CREATE UNIQUE INDEX runs_claimed ON runs (runner_id, claim_id) WHERE claim_id IS NOT NULL AND phase = 'claimed';
CREATE INDEX runs_unclaimed ON runs (claim_by_ms, position)
  WHERE phase = 'pending' AND waiting_for = 0 AND claim_by_ms IS NOT NULL;
-- What a runner that is forgotten leaves behind.
CREATE INDEX sessions_bound ON sessions (binding_runner, created_at_ms, id)
  WHERE binding_runner IS NOT NULL AND state <> 'terminated';
