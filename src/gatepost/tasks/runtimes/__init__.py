"""Runtimes: where the sessions of tasks run. Their interface is in session_runtime.py."""
