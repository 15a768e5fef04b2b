import asyncio

from gatepost.tasks.service.task_watchers import TaskWatchers
from gatepost.tasks.task_states import TaskState
from gatepost.tasks.task_table import Task


def make_task(id: str) -> Task:
    return Task(id=id, agent="a", requester="b")


def test_a_waiting_caller_hears_of_its_task_only() -> None:
    async def body() -> None:
        watchers = TaskWatchers()
        mine, other = watchers.next_change("1"), watchers.next_change("2")
        watchers.task_changed(make_task("1"))
        assert mine.done() and not other.done()
        watchers.forget("2", other)
        watchers.task_changed(make_task("2"))
        assert not other.done()

    asyncio.run(body())


def test_a_caller_that_waits_for_the_end_does_not_hear_of_progress() -> None:
    async def body() -> None:
        watchers = TaskWatchers()
        end = watchers.end_of("1")
        watchers.task_changed(make_task("1"))
        assert not end.done()
        ended = make_task("1")
        ended.state = TaskState.FAILED
        watchers.task_changed(ended)
        assert end.done()

    asyncio.run(body())


def test_a_stream_gets_every_change_until_it_is_ended() -> None:
    async def body() -> None:
        watchers = TaskWatchers()
        seen: list[str] = []

        async def read() -> None:
            async for change in watchers.stream_changes():
                seen.append(change.task.id)

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        for id in ("1", "2", "3"):
            watchers.task_changed(make_task(id))
        await asyncio.sleep(0)
        watchers.end_streams()
        await reading
        assert seen == ["1", "2", "3"]

    asyncio.run(body())


def test_a_stream_that_nobody_reads_is_ended_rather_than_filled() -> None:
    async def body() -> None:
        watchers = TaskWatchers()
        stream = watchers.stream_changes()
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for number in range(3000):
            watchers.task_changed(make_task(str(number)))
        await first
        count = 1 + len([task async for task in stream])
        assert count <= 1001

    asyncio.run(body())


def test_a_task_is_open_from_its_first_change_to_its_end() -> None:
    watchers = TaskWatchers()
    assert not watchers.is_open("1")
    watchers.task_changed(make_task("1"))
    assert watchers.is_open("1")
    ended = make_task("1")
    ended.state = TaskState.COMPLETED
    watchers.task_changed(ended)
    assert not watchers.is_open("1")
