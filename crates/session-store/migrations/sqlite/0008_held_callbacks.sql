-- Sessions that are left in peace: what they are to hear of their children waits until they are used again.

ALTER TABLE sessions ADD COLUMN callbacks_held INTEGER NOT NULL DEFAULT 0;
