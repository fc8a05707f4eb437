-- What sessions set aside of their budgets for children.

ALTER TABLE sessions ADD COLUMN tokens_allotted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tool_calls_allotted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN turns_allotted BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN cost_micros_allotted BIGINT NOT NULL DEFAULT 0;

CREATE TABLE allotments (
  child TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES sessions (id),
  parent TEXT COLLATE "C" NOT NULL REFERENCES sessions (id),
  -- What the child may use of its parent's in all; -1 of what the parent had without limit.
  tokens_given BIGINT NOT NULL,
  tool_calls_given BIGINT NOT NULL,
  turns_given BIGINT NOT NULL,
  cost_micros_given BIGINT NOT NULL,
  -- What of it the parent's account has as used.
  tokens_booked BIGINT NOT NULL,
  tool_calls_booked BIGINT NOT NULL,
  turns_booked BIGINT NOT NULL,
  cost_micros_booked BIGINT NOT NULL,
  -- 1 as long as the rest is set aside.
  open BIGINT NOT NULL
);
CREATE INDEX allotments_open ON allotments (parent) WHERE open = 1;
