"""The public API for authors of agents.

from gatepost.client import Agent

agent = Agent("bob")

@agent.on_message
async def handle(message):
    return f"hello {message.from_}, you said {message.payload}"

agent.run()
"""

from gatepost.client._agents.agent import Agent
from gatepost.client._agents.failure_reason import Reject, Retry
from gatepost.client._client import Client
from gatepost.client._gateway_locator import locator
from gatepost.client._message import Message
from gatepost.client._send_options import SendOptions
from gatepost.client._sync_client import SyncClient
from gatepost.client._task import AgentTask
from gatepost.connect.gateway_endpoint import Target
from gatepost.wire.gateway_views import Status
from gatepost.wire.operations import DeadLetter, EnqueueAck, EventInfo, Sent, Summary
from gatepost.wire.tasks import TaskView

__all__ = [
    "Agent",
    "AgentTask",
    "Client",
    "DeadLetter",
    "EnqueueAck",
    "EventInfo",
    "Message",
    "Reject",
    "Retry",
    "SendOptions",
    "Sent",
    "Status",
    "Summary",
    "SyncClient",
    "Target",
    "TaskView",
    "locator",
]
