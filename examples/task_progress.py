"""A task with progress: the executor reports how far it is, and the requester watches.

The gateway keeps a task until its end, so either side may restart meanwhile. Run it beside
`gatepost up`.
"""

import asyncio

from gatepost.client import Agent, AgentTask, Client

indexer = Agent("indexer")


@indexer.on_task(eta_secs=5)
async def index(task: AgentTask) -> object:
    pages = task.input["pages"]
    for done in range(1, pages + 1):
        await asyncio.sleep(0.1)  # the work
        await task.update(done / pages, f"{done} of {pages} pages")
    return {"indexed": pages}


async def main() -> None:
    async with indexer, Client("al") as client:
        task = await client.create_task("index the manual", to="indexer", input={"pages": 4})
        async for seen in client.watch_task(task.id):
            print(f"{seen.state}: {seen.progress or 0:.0%}")
        print(await client.load_result(seen))


if __name__ == "__main__":
    asyncio.run(main())
