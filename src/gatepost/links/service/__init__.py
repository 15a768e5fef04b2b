"""Dialling, joining and admitting peers, and the links over their connections."""
