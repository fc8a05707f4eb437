-- What an agent is asked for in a run (JSON), which run bound a session and since when its conversation can be resumed,
-- and the questions of agents.

ALTER TABLE runs ADD COLUMN turn TEXT COLLATE "C";
ALTER TABLE sessions ADD COLUMN binding_run TEXT COLLATE "C";
ALTER TABLE sessions ADD COLUMN binding_resumable_at_ms BIGINT;

CREATE TABLE approvals (
  -- Sorts by when it was asked.
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  session_id TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  -- The session's owner, who never changes.
  principal TEXT COLLATE "C" NOT NULL,
  run_id TEXT COLLATE "C" NOT NULL REFERENCES runs (id),
  tool TEXT COLLATE "C" NOT NULL,
  title TEXT COLLATE "C" NOT NULL,
  -- The program and its arguments (JSON), and the directory, where the tool runs a command.
  command TEXT COLLATE "C",
  cwd TEXT COLLATE "C",
  input TEXT COLLATE "C" NOT NULL,
  deadline_at_ms BIGINT,
  asked_at_ms BIGINT NOT NULL,
  state TEXT COLLATE "C" NOT NULL CHECK (state IN ('open', 'allowed', 'denied', 'expired', 'withdrawn')),
  closed_at_ms BIGINT,
  lasting BIGINT,
  answered_by TEXT COLLATE "C",
  message TEXT COLLATE "C"
);
CREATE INDEX approvals_of_session ON approvals (session_id, id);
CREATE INDEX approvals_of_principal ON approvals (principal, id);
CREATE INDEX approvals_open ON approvals (id) WHERE state = 'open';
CREATE INDEX approvals_open_of_session ON approvals (session_id, id) WHERE state = 'open';
CREATE INDEX approvals_open_of_principal ON approvals (principal, id) WHERE state = 'open';
