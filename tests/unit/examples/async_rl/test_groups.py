"""Which groups reach the learner: staleness, advantage, and a queue that is bounded."""

import asyncio

import pytest

from examples.async_rl.groups import (
    MAX_LAG_VERSIONS,
    MAX_ZERO_ADVANTAGE_DROPS,
    Group,
    GroupFilter,
    GroupQueue,
    Sample,
)


def sample(*versions, reward=0.0, num_resumed=0):
    tokens = [1] * len(versions)
    return Sample([1], tokens, [0.0] * len(tokens), list(versions), reward, num_resumed=num_resumed)


def group(*versions, number=0, rewards=(0.0, 1.0)):
    samples = [sample(*versions, reward=reward) for reward in rewards]
    return Group(number, "e", 0, samples)


def test_a_group_is_as_old_as_its_oldest_token():
    both = Group(0, "e", 0, [sample(5, 5), sample(3, 6)])

    assert both.oldest_version == 3
    assert both.lag(7) == 4


def test_stale_is_more_than_the_limit_behind():
    old = group(3)

    assert not old.is_stale(3 + MAX_LAG_VERSIONS)
    assert old.is_stale(4 + MAX_LAG_VERSIONS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(sample(1, 1), False), (sample(1, 2), True), (sample(1, 1, num_resumed=1), True)],
)
def test_partial_is_who_was_cut_or_met_new_weights(given, expected):
    assert given.is_partial is expected


def test_stale_groups_are_dropped_and_counted():
    stored = GroupFilter()

    assert stored.admits(group(0), MAX_LAG_VERSIONS)
    assert not stored.admits(group(0), MAX_LAG_VERSIONS + 1)
    assert stored.end_step()["stale"] == 1


def test_groups_of_equal_rewards_are_dropped_up_to_a_limit_in_each_step():
    stored, equal = GroupFilter(), group(0, rewards=(1.0, 1.0))

    first = [stored.admits(equal, 0) for _ in range(MAX_ZERO_ADVANTAGE_DROPS + 1)]
    dropped = stored.end_step()
    then = stored.admits(equal, 0)

    assert first == [False] * MAX_ZERO_ADVANTAGE_DROPS + [True]
    assert not then
    assert dropped == {"zero_advantage": MAX_ZERO_ADVANTAGE_DROPS}
    assert stored.end_step() == {"zero_advantage": 1}


def numbers(groups):
    return [one.number for one in groups]


async def settle():
    """Until every task has gone as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_takes_waits_for_a_whole_batch_in_order():
    async def scenario():
        queue = GroupQueue(4)
        taking = asyncio.create_task(queue.take(2, version=0))
        await queue.put(group(0, number=1))
        await settle()
        assert not taking.done()
        await queue.put(group(0, number=2))
        return await taking

    assert numbers(asyncio.run(scenario())) == [1, 2]


def test_who_puts_waits_for_room():
    async def scenario():
        queue = GroupQueue(2)
        for number in (1, 2):
            await queue.put(group(0, number=number))
        putting = asyncio.create_task(queue.put(group(0, number=3)))
        await settle()
        assert not putting.done()
        assert len(queue) == 2
        await queue.take(1, version=0)
        await putting
        return await queue.take(2, version=0)

    assert numbers(asyncio.run(scenario())) == [2, 3]


def test_what_has_become_stale_in_the_queue_is_evicted_with_its_lag():
    version = MAX_LAG_VERSIONS + 2

    async def scenario():
        queue = GroupQueue(3)
        for number, sampled in enumerate((0, 1, 2)):
            await queue.put(group(sampled, number=number))
        taken = await queue.take(1, version)
        return taken, queue.end_step(), len(queue)

    taken, evicted, left = asyncio.run(scenario())

    assert numbers(taken) == [2]
    assert evicted == {version: 1, version - 1: 1}
    assert left == 0


def test_eviction_makes_room_for_who_waits():
    async def scenario():
        queue = GroupQueue(1)
        await queue.put(group(0, number=1))
        taking = asyncio.create_task(queue.take(1, version=MAX_LAG_VERSIONS + 1))
        await queue.put(group(MAX_LAG_VERSIONS, number=2))
        return await taking

    assert numbers(asyncio.run(scenario())) == [2]
