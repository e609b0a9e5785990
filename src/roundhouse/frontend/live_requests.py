"""`LiveRequests`: which engine has which request, from the moment it is sent until its last output. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import EngineDeadError
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, OutputError
from roundhouse.protocol.sampling import FinishReason


@dataclass(slots=True)
class _Live:
    """next_token_index: the place of the next token among the request's outputs."""

    member: Member
    attempt: int
    next_token_index: int


class LiveRequests:
    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def add(self, request: EngineCoreRequest, member: Member) -> None:
        self._live[request.request_id] = _Live(member, request.attempt, len(request.output_token_ids))
        member.count_request()

    def remove(self, request_ids: Iterable[str]) -> list[tuple[Member, list[str]]]:
        """Forgets them; what still comes for them is late. Returns who holds which, ids that are not live left out."""
        held: dict[int, tuple[Member, list[str]]] = {}
        for request_id in request_ids:
            live = self._live.pop(request_id, None)
            if live is not None:
                live.member.count_end()
                held.setdefault(live.member.session_id, (live.member, []))[1].append(request_id)
        return list(held.values())

    def accept(self, member: Member, outputs: EngineCoreOutputs) -> tuple[EngineCoreOutputs, int]:
        """`outputs` without those that are late, doubled or of an earlier attempt, and how many those were."""
        fresh = [output for output in outputs.outputs if self._accept_one(member, output)]
        num_late = len(outputs.outputs) - len(fresh)
        return (msgspec.structs.replace(outputs, outputs=fresh) if num_late else outputs), num_late

    def end_all_of(self, member: Member, reason: str) -> EngineCoreOutputs | None:
        """The answer to every live request of an engine that is lost: ERROR, `engine_dead`. None when it has none.

        This is where a stream would move to another engine instead.
        """
        ended = [(request_id, live) for request_id, live in self._live.items() if live.member is member]
        if not ended:
            return None
        error = OutputError(EngineDeadError.code, f"engine {member.hello.identity} is lost: {reason}")
        outputs: list[EngineCoreOutput] = []
        for request_id, live in ended:
            del self._live[request_id]
            member.count_end()
            place = (request_id, live.attempt, live.next_token_index)
            outputs.append(EngineCoreOutput(*place, [], FinishReason.ERROR, error=error))
        return EngineCoreOutputs(member.session_id, member.engine_index, member.hello.epoch, outputs=outputs)

    def _accept_one(self, member: Member, output: EngineCoreOutput) -> bool:
        live = self._live.get(output.request_id)
        if live is None or live.member is not member or live.attempt != output.attempt:
            return False
        if output.new_token_ids:
            if output.first_token_index < live.next_token_index:
                return False
            live.next_token_index = output.first_token_index + len(output.new_token_ids)
        if output.finish_reason is not None:
            del self._live[output.request_id]
            member.count_end()
        return True
