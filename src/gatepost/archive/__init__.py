"""The archive: signed Parquet segments of an outbox, readable by any tool, kept beyond the journal.

Nothing is imported here, so that a gateway starts without pyarrow and readers import only `schema`.
"""
