-- From the journal of version 0002.

-- Of an incident that was posted: until when it lasted, NULL while it lasts, and how many deliveries
-- it concerns, NULL if that was not said.
ALTER TABLE incident ADD COLUMN ended_at INTEGER;
ALTER TABLE incident ADD COLUMN count INTEGER;
