"""The pipeline's tables: their schemas, and views of them."""
