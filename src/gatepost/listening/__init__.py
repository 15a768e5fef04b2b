"""The gateway's listener: who may connect, how many, and for how long without a request."""
