-- The room as this gateway knows it. Times are epoch milliseconds.

-- Which room: whom everything is traced back to, and the epoch of the document.
CREATE TABLE room (
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    genesis_node TEXT NOT NULL,
    genesis_key  BLOB NOT NULL,
    epoch        INTEGER NOT NULL
);

-- The latest version of every record, as it was signed.
CREATE TABLE room_record (
    map        TEXT NOT NULL,
    key        TEXT NOT NULL,
    public_key BLOB NOT NULL,
    version    INTEGER NOT NULL,
    record     TEXT NOT NULL,
    signature  TEXT NOT NULL,
    PRIMARY KEY (map, key, public_key)
);

CREATE TRIGGER room_record_never_goes_back BEFORE UPDATE ON room_record
WHEN NEW.version < OLD.version
BEGIN SELECT RAISE(ABORT, 'a newer version of this record is known'); END;
