"""Runtimes: where the sessions of tasks run. All of them have the interface in runtime.py."""
