-- What sessions set aside of their budgets for children.

ALTER TABLE sessions ADD COLUMN tokens_allotted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tool_calls_allotted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN turns_allotted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN cost_micros_allotted INTEGER NOT NULL DEFAULT 0;

CREATE TABLE allotments (
  child TEXT NOT NULL PRIMARY KEY REFERENCES sessions (id),
  parent TEXT NOT NULL REFERENCES sessions (id),
  -- What the child may use of its parent's in all; -1 of what the parent had without limit.
  tokens_given INTEGER NOT NULL,
  tool_calls_given INTEGER NOT NULL,
  turns_given INTEGER NOT NULL,
  cost_micros_given INTEGER NOT NULL,
  -- What of it the parent's account has as used.
  tokens_booked INTEGER NOT NULL,
  tool_calls_booked INTEGER NOT NULL,
  turns_booked INTEGER NOT NULL,
  cost_micros_booked INTEGER NOT NULL,
  -- 1 as long as the rest is set aside.
  open INTEGER NOT NULL
) STRICT;
CREATE INDEX allotments_open ON allotments (parent) WHERE open = 1;
