import queue
import socket

import pytest

from roundhouse.transport.address import TcpAddress
from roundhouse.transport.resolver import Resolver, resolve_host

NAME = TcpAddress("frontends", 5570)


def test_answers_are_posted_one_after_another_and_no_answer_is_kept_quiet() -> None:
    answers = iter([["10.0.0.1", "fd00::1"], OSError("no answer"), []])
    posted: queue.SimpleQueue[tuple[TcpAddress, list[TcpAddress]]] = queue.SimpleQueue()

    def resolve(host: str) -> list[str]:
        assert host == "frontends"
        answer = next(answers, [])
        if isinstance(answer, OSError):
            raise answer
        return answer

    resolver = Resolver([NAME], resolve, lambda name, found: posted.put((name, found)), interval_s=0.001)
    resolver.start()
    assert posted.get(timeout=10) == (NAME, [TcpAddress("10.0.0.1", 5570), TcpAddress("fd00::1", 5570)])
    assert posted.get(timeout=10) == (NAME, [])
    resolver.stop()


def test_without_names_there_is_no_thread() -> None:
    resolver = Resolver([], lambda host: [], lambda name, found: None)
    resolver.start()
    resolver.stop()


def test_a_literal_is_its_own_address() -> None:
    assert resolve_host("127.0.0.1") == ["127.0.0.1"]


@pytest.mark.parametrize(("errno", "is_an_answer"), [(socket.EAI_NONAME, True), (socket.EAI_AGAIN, False)])
def test_a_name_that_does_not_exist_is_an_answer(
    errno: int, is_an_answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(errno, "")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    if is_an_answer:
        assert resolve_host("frontends") == []
    else:
        with pytest.raises(socket.gaierror):
            resolve_host("frontends")
