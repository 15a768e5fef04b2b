"""What outlives the journal: signed Parquet segments of an outbox, readable by any tool.

Nothing is imported here: a gateway starts without pyarrow, and readers need `schema` only.
"""
