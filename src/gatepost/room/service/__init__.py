"""The gateway in its room: its replica, and the records that it writes into it."""
