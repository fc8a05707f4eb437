-- Opaque tokens, the key under which the tokens of runs are signed, and the calls that are known by an idempotency key.

CREATE TABLE tokens (
  -- Sorts by when it was issued.
  id TEXT NOT NULL PRIMARY KEY,
  -- SHA-256 of its text, which is kept nowhere.
  digest TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  -- The runner that it speaks for; none for its principal itself.
  runner TEXT,
  principal TEXT NOT NULL,
  verbs TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  expires_at_ms INTEGER,
  revoked_at_ms INTEGER,
  parent TEXT REFERENCES tokens (id)
) STRICT;
CREATE INDEX tokens_of_principal ON tokens (principal, id);
CREATE INDEX tokens_of_parent ON tokens (parent) WHERE parent IS NOT NULL;

CREATE TABLE signing_keys (
  purpose TEXT NOT NULL PRIMARY KEY,
  key TEXT NOT NULL
) STRICT;

CREATE TABLE idempotency (
  principal TEXT NOT NULL,
  key TEXT NOT NULL,
  -- SHA-256 of the request in its canonical form.
  digest TEXT NOT NULL,
  -- The ids of the runs that it made (JSON).
  runs TEXT NOT NULL,
  created_at_ms INTEGER NOT NULL,
  PRIMARY KEY (principal, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (created_at_ms);
