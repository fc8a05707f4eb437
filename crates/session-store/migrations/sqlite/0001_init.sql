-- Times are milliseconds since 1970 UTC. Numbers that may use all 64 bits are stored with the same bits.

CREATE TABLE sessions (
  id TEXT NOT NULL PRIMARY KEY,
  principal TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('active', 'idle', 'suspended', 'terminated')),
  state_at_ms INTEGER,
  state_until_ms INTEGER,
  termination_reason TEXT,
  label TEXT,
  agent TEXT,
  workspace_kind TEXT NOT NULL,
  project TEXT,
  workspace_runner TEXT,
  workspace_removed_at_ms INTEGER,
  metadata TEXT NOT NULL,
  tokens_max INTEGER NOT NULL,
  tool_calls_max INTEGER NOT NULL,
  turns_max INTEGER,
  cost_micros_max INTEGER,
  tokens_used INTEGER NOT NULL DEFAULT 0,
  tool_calls_used INTEGER NOT NULL DEFAULT 0,
  turns_used INTEGER NOT NULL DEFAULT 0,
  cost_micros_used INTEGER NOT NULL DEFAULT 0,
  parent TEXT REFERENCES sessions (id),
  identity_key TEXT,
  generation INTEGER,
  previous TEXT REFERENCES sessions (id),
  binding_runner TEXT,
  binding_hostname TEXT,
  binding_executor TEXT,
  binding_executor_session_id TEXT,
  binding_project_dir TEXT,
  created_at_ms INTEGER NOT NULL,
  active_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_newest ON sessions (created_at_ms, id);
CREATE INDEX sessions_of_principal ON sessions (principal, created_at_ms, id);
CREATE INDEX sessions_live ON sessions (created_at_ms, id) WHERE state <> 'terminated';
CREATE INDEX sessions_with_workspace ON sessions (created_at_ms, id) WHERE workspace_removed_at_ms IS NULL;
CREATE INDEX sessions_by_label ON sessions (label, created_at_ms, id) WHERE label IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent, created_at_ms, id) WHERE parent IS NOT NULL;
-- The numbering of generations outlives the registrations below.
CREATE UNIQUE INDEX sessions_generation ON sessions (identity_key, generation) WHERE identity_key IS NOT NULL;

-- Which session an identity leads to now. Apart from sessions, because its stamps change with use.
CREATE TABLE identities (
  key TEXT NOT NULL PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id) DEFERRABLE INITIALLY DEFERRED,
  generation INTEGER NOT NULL,
  machine TEXT NOT NULL,
  repo_root TEXT NOT NULL,
  mode TEXT NOT NULL,
  scope_key TEXT NOT NULL,
  agent TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  stamped_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX identities_expiry ON identities (expires_at_ms);
-- For the foreign key: without it every new session is looked for in all identities.
CREATE INDEX identities_of_session ON identities (session_id);

CREATE TABLE crews (
  id TEXT NOT NULL PRIMARY KEY,
  at_once INTEGER,
  created_at_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE runs (
  -- The order of enqueueing.
  position INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  kind TEXT NOT NULL,
  argv TEXT NOT NULL,
  env TEXT NOT NULL,
  timeout_ms INTEGER,
  priority INTEGER NOT NULL,
  -- '' for anywhere, 'r:' and a runner's id, or 'h:' and a host name.
  place_key TEXT NOT NULL,
  executor TEXT NOT NULL,
  project_dir TEXT,
  crew_id TEXT REFERENCES crews (id),
  waiting_for INTEGER NOT NULL,
  epoch INTEGER NOT NULL DEFAULT 0,
  phase TEXT NOT NULL CHECK (phase IN
    ('pending', 'claimed', 'starting', 'running', 'completed', 'failed', 'stopped', 'lost')),
  runner_id TEXT,
  lease_until_ms INTEGER,
  stop_mode TEXT,
  stop_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  started_at_ms INTEGER,
  ended_at_ms INTEGER,
  reason TEXT,
  exit_code INTEGER,
  exit_signal INTEGER,
  message TEXT
) STRICT;
CREATE INDEX runs_claim ON runs (place_key, executor, priority DESC, position)
  WHERE phase = 'pending' AND waiting_for = 0;
CREATE INDEX runs_reserved ON runs (place_key) WHERE phase = 'pending' AND place_key <> '';
-- At most one run of a session is in flight: more than that, at most one is not over.
CREATE UNIQUE INDEX runs_not_over ON runs (session_id)
  WHERE phase IN ('pending', 'claimed', 'starting', 'running');
CREATE INDEX runs_of_session ON runs (session_id, position);
CREATE INDEX runs_of_crew ON runs (crew_id)
  WHERE crew_id IS NOT NULL AND phase IN ('claimed', 'starting', 'running');
CREATE INDEX runs_of_runner ON runs (runner_id, position) WHERE runner_id IS NOT NULL;
CREATE INDEX runs_leases ON runs (lease_until_ms, position) WHERE lease_until_ms IS NOT NULL;

-- Which runs must complete before which.
CREATE TABLE run_waits (
  run_id TEXT NOT NULL REFERENCES runs (id),
  waits_for TEXT NOT NULL REFERENCES runs (id),
  PRIMARY KEY (waits_for, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  position INTEGER PRIMARY KEY,
  session_id TEXT NOT NULL REFERENCES sessions (id),
  seq INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  -- Not a reference: the log of an imported session speaks of runs that are not here.
  run_id TEXT,
  kind TEXT NOT NULL,
  payload TEXT NOT NULL,
  producer TEXT,
  producer_seq INTEGER
) STRICT;
CREATE UNIQUE INDEX events_seq ON events (session_id, seq);
CREATE UNIQUE INDEX events_origin ON events (session_id, producer, producer_seq) WHERE producer IS NOT NULL;
