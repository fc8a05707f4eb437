-- What a session's processes may touch, reach and use up (JSON), and what the kernel held of it in each run.

ALTER TABLE sessions ADD COLUMN sandbox TEXT NOT NULL DEFAULT '{}';
ALTER TABLE runs ADD COLUMN sandbox TEXT;
