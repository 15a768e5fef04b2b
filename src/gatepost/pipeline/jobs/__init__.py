"""The pipeline's jobs. They alone know paths and batches, and decide when to run."""
