"""The pipeline's tables: their schemas, and pure functions that make them."""
