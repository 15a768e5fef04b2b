"""Spark jobs over the archive: they make tables, reports and audits of all archived events.

This package imports nothing itself, so that the command line works without Spark. The modules that
need Spark raise `PipelineMissing` when they are used without it.
"""
