"""The commands of `gatepost`, one module for each family."""
