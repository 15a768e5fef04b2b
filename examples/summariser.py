from gatepost.client import Agent, Message

agent = Agent("summariser")


@agent.on_message
async def handle(message: Message) -> object:
    return {"summary": message.payload["text"][:80]}  # the reply; raising means "try again"


agent.run()
