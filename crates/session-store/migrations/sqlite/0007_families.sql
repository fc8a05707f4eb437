-- How deep a session lies in its family, whether its parent hears of the ends of its runs, and what parents are to hear.

ALTER TABLE sessions ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN callback INTEGER NOT NULL DEFAULT 0;
-- What was there before lies as deep as its parents say.
WITH RECURSIVE family (id, depth) AS (
  SELECT id, 0 FROM sessions WHERE parent IS NULL
  UNION ALL
  SELECT s.id, f.depth + 1 FROM family f JOIN sessions s ON s.parent = f.id
)
UPDATE sessions SET depth = f.depth FROM family f WHERE f.id = sessions.id AND f.depth > 0;
-- How many live children a session has, and which of them are left when it is over.
CREATE INDEX sessions_live_children ON sessions (parent) WHERE parent IS NOT NULL AND state <> 'terminated';

CREATE TABLE callbacks (
  -- The order of the ends.
  position INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE REFERENCES runs (id),
  child TEXT NOT NULL REFERENCES sessions (id),
  parent TEXT NOT NULL REFERENCES sessions (id),
  at_ms INTEGER NOT NULL,
  -- What the parent's log says of it (JSON).
  payload TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('due', 'delivered', 'dropped')),
  -- The run of the parent that tells it.
  delivered_by TEXT
) STRICT;
CREATE INDEX callbacks_due ON callbacks (parent, position) WHERE state = 'due';
