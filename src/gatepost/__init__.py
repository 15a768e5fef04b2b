"""Gatepost: a fabric on which agents hand each other messages without losing one."""

__version__ = "0.1.0"
