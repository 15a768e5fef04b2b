"""The pipeline's jobs: what alone knows paths, batches and when to run."""
