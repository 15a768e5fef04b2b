"""Request and reply: ask an agent, and get its answer or the reason why there is none.

Run it beside `gatepost up`.
"""

import asyncio

from gatepost.client import Agent, Client, Message, Reject
from gatepost.errors import TurnFailed

adder = Agent("adder")


@adder.on_message
async def add(message: Message) -> object:
    if not message.payload:
        # A message that can never succeed. Any other exception means "try again".
        raise Reject("there is nothing to add")
    return {"sum": sum(message.payload)}


async def main() -> None:
    async with adder, Client("al") as client:
        print(await client.request("adder", [1, 2, 3]))
        try:
            await client.request("adder", [])
        except TurnFailed as error:
            print(error.message)


if __name__ == "__main__":
    asyncio.run(main())
