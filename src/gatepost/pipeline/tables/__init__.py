"""The pipeline's tables: their schemas, and the pure functions that make them."""
