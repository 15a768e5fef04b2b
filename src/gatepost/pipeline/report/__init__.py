"""The report: the tables, made small, as one page for people and a few lines for a terminal."""
