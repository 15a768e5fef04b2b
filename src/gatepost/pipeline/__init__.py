"""Spark over the archive: what happened in all the pipes, and what it means.

Nothing is imported here: the command line works without Spark, and the parts that need it say
so when they are used.
"""
