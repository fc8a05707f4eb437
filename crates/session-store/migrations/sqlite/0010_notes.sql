-- What agents keep for themselves is read from its end.

CREATE INDEX events_entries ON events (session_id, seq, at_ms) WHERE kind = 'entry';
CREATE INDEX events_projects ON events (session_id, seq, at_ms) WHERE kind = 'project';
