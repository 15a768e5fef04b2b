"""The dashboard: pages for the operator, served by the gateway at `/`.

A door on top: whatever a page shows or does is a call of the operator's API.
"""
