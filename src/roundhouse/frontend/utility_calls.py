"""`UtilityCalls`: calls to engines that wait for their answers. Belongs to one event loop."""

from __future__ import annotations

import asyncio
from itertools import count

from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.messages import UtilityOutput

Answer = asyncio.Future[UtilityOutput]


class UtilityCalls:
    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Member, Answer]] = {}
        self._call_ids = count(1)

    def open(self, member: Member) -> tuple[int, Answer]:
        """A new call id for `member` and what will hold its answer."""
        call_id = next(self._call_ids)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = (member, answer)
        answer.add_done_callback(lambda _: self._waiting.pop(call_id, None))
        return call_id, answer

    def answer(self, member: Member, output: UtilityOutput) -> None:
        """An answer to nothing, or by another engine than the one that was asked, is dropped."""
        asked, answer = self._waiting.get(output.call_id, (None, None))
        if asked is member and answer is not None and not answer.done():
            answer.set_result(output)

    def fail(self, error: RoundhouseError, member: Member | None = None) -> None:
        """Ends all calls that wait for `member`, or all there are."""
        for asked, answer in list(self._waiting.values()):
            if (member is None or asked is member) and not answer.done():
                answer.set_exception(error)
