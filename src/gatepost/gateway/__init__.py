"""The gateway: the doors of the fabric, and the process behind them."""
