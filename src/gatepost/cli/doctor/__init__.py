"""The checks of `gatepost doctor`: functions from values to findings, and the look at the machine.

A check never changes what it looks at. What it cannot look at (a peer while the gateway is down) is
left out, and the report says so.
"""
