-- What an agent is asked for in a run (JSON), which run bound a session and since when its conversation can be resumed,
-- and the questions of agents.

ALTER TABLE runs ADD COLUMN turn TEXT;
ALTER TABLE sessions ADD COLUMN binding_run TEXT;
ALTER TABLE sessions ADD COLUMN binding_resumable_at_ms INTEGER;

CREATE TABLE approvals (
  -- Sorts by when it was asked.
  id TEXT NOT NULL PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  -- The session's owner, who never changes.
  principal TEXT NOT NULL,
  run_id TEXT NOT NULL REFERENCES runs (id),
  tool TEXT NOT NULL,
  title TEXT NOT NULL,
  -- The program and its arguments (JSON), and the directory, where the tool runs a command.
  command TEXT,
  cwd TEXT,
  input TEXT NOT NULL,
  deadline_at_ms INTEGER,
  asked_at_ms INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'allowed', 'denied', 'expired', 'withdrawn')),
  closed_at_ms INTEGER,
  lasting INTEGER,
  answered_by TEXT,
  message TEXT
) STRICT;
CREATE INDEX approvals_of_session ON approvals (session_id, id);
CREATE INDEX approvals_of_principal ON approvals (principal, id);
CREATE INDEX approvals_open ON approvals (id) WHERE state = 'open';
CREATE INDEX approvals_open_of_session ON approvals (session_id, id) WHERE state = 'open';
CREATE INDEX approvals_open_of_principal ON approvals (principal, id) WHERE state = 'open';
