"""What is owed is owed from when it first was."""

import asyncio

from roundhouse.cli.deadline import Deadline


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock stands where it is put."""

    now = 0.0

    def time(self) -> float:
        return self.now


def expiries(*steps: tuple[float, str]) -> list[float]:
    """When a deadline of 10 s expired that was started and stopped at those times, until 100."""
    loop, seen = Loop(), []
    deadline = Deadline(loop, 10, lambda: seen.append(loop.now))
    plan = dict(steps)
    for now in range(101):
        loop.now = now
        if what := plan.get(now):
            getattr(deadline, what)()
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    return seen


def test_it_expires_once() -> None:
    assert expiries((5, "start")) == [15]


def test_a_second_start_is_no_reprieve() -> None:
    assert expiries((5, "start"), (12, "start")) == [15]


def test_it_can_be_stopped_and_started_again() -> None:
    assert expiries((5, "start"), (14, "stop"), (50, "start"), (61, "start"), (62, "stop"), (63, "stop")) == [60]
