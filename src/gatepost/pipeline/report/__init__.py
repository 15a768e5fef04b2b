"""The report: a summary of the tables, as one HTML page or as a few lines for a terminal."""
