"""The gateway process that tests start and kill."""

from gatepost.testing import GatewayProcess

__all__ = ["GatewayProcess"]
