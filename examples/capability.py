"""A capability with a contract: the requester asks for a skill, not for an agent.

The gateway checks input and result against the contract. Publish the capability first:

    gatepost agent add reviewer
    gatepost capability publish examples/capability.json
"""

import asyncio

from gatepost.client import Agent, AgentTask, Client
from gatepost.errors import TaskFailed

reviewer = Agent("reviewer", executor_skills={"skills/review": "1.0"})


@reviewer.on_task
async def review(task: AgentTask) -> object:
    # The second verdict is not one of the contract's.
    return {"verdict": "fine" if task.input["change"] == "a comment" else "hmm"}


async def main() -> None:
    async with reviewer, Client("al") as client:
        for change in ("a comment", "everything"):
            try:
                given = {"change": change}
                result = await client.run_task("review", capabilities=["review"], input=given)
                print(f"{change}: {result['verdict']}")
            except TaskFailed as error:
                print(f"{change}: {error.failure}")


if __name__ == "__main__":
    asyncio.run(main())
