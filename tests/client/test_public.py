"""What `gatepost.client` offers, no more and no less."""

from gatepost import client


def test_everything_public_is_named_and_nothing_else() -> None:
    assert client.__all__ == [
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
    public = {name for name in vars(client) if not name.startswith("_")}
    assert public == set(client.__all__)
