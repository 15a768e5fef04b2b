"""A work queue: several workers share one mailbox, and each message goes to one of them.

`order="none"` lets the workers take messages of one sender at the same time. A worker that dies
loses its lease, not the message: another worker gets it. Run it beside `gatepost up`.
"""

import asyncio

from gatepost.client import Agent, Client, Message

JOBS, WORKERS = 12, 3


def create_worker(number: int) -> Agent:
    worker = Agent("resizer", order="none", concurrency=1)

    @worker.on_message
    async def resize(message: Message) -> object:
        await asyncio.sleep(0.05)  # the work
        return {"image": message.payload["image"], "worker": number}

    return worker


async def main() -> None:
    first, second, third = (create_worker(number) for number in range(1, WORKERS + 1))
    async with first, second, third, Client("al") as client:
        jobs = ({"image": f"{number}.png"} for number in range(JOBS))
        asked = (client.request("resizer", job, order="none") for job in jobs)
        done = await asyncio.gather(*asked)
    workers = {each["worker"] for each in done}
    print(f"{len({each['image'] for each in done})} images by {len(workers)} workers")


if __name__ == "__main__":
    asyncio.run(main())
