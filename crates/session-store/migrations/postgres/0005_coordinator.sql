-- Opaque tokens, the key under which the tokens of runs are signed, and the calls that are known by an idempotency key.

CREATE TABLE tokens (
  -- Sorts by when it was issued.
  id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  -- SHA-256 of its text, which is kept nowhere.
  digest TEXT COLLATE "C" NOT NULL UNIQUE,
  name TEXT COLLATE "C" NOT NULL,
  -- The runner that it speaks for; none for its principal itself.
  runner TEXT COLLATE "C",
  principal TEXT COLLATE "C" NOT NULL,
  verbs TEXT COLLATE "C" NOT NULL,
  created_at_ms BIGINT NOT NULL,
  expires_at_ms BIGINT,
  revoked_at_ms BIGINT,
  parent TEXT COLLATE "C" REFERENCES tokens (id)
);
CREATE INDEX tokens_of_principal ON tokens (principal, id);
CREATE INDEX tokens_of_parent ON tokens (parent) WHERE parent IS NOT NULL;

CREATE TABLE signing_keys (
  purpose TEXT COLLATE "C" NOT NULL PRIMARY KEY,
  key TEXT COLLATE "C" NOT NULL
);

CREATE TABLE idempotency (
  principal TEXT COLLATE "C" NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  -- SHA-256 of the request in its canonical form.
  digest TEXT COLLATE "C" NOT NULL,
  -- The ids of the runs that it made (JSON).
  runs TEXT COLLATE "C" NOT NULL,
  created_at_ms BIGINT NOT NULL,
  PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created_at_ms);
