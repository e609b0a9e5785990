"""The HTTP surface under a real uvicorn, asked by OpenAI's SDK and by raw sockets; what the engines say is scripted.

Numbers are those of the public cases that a test comes from.
"""

import asyncio
import contextlib
import json
import logging
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import openai
import pytest

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.protocol.errors import EngineDeadError, NoEngine
from roundhouse.protocol.messages import LogprobsLists
from roundhouse.protocol.sampling import FinishReason
from roundhouse.server.app import build_app
from roundhouse.server.state import ServerSettings
from tests.support.http_server import serving
from tests.support.scripted_client import ScriptedClient, output
from tests.support.scripted_llm import MODEL, SETTINGS, Delta, Script, ScriptedLLM, server_state, spell
from tests.support.small_tokenizers import byte_level, ids_of

HI: Any = [{"role": "user", "content": "hi"}]
WAIT_S = 10.0


class Server:
    """One server and the SDK's clients for it."""

    def __init__(self, port: int, llm: ScriptedLLM) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.llm = llm
        self.sdk = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def connect(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
        """A socket on which the request was sent and nothing was read."""
        raw = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        connection.sendall(head.encode() + raw)
        return connection

    def talk(self, raw: bytes) -> bytes:
        """Everything that the server says to `raw` before it closes; nothing when it would not hear the end."""
        received = bytearray()
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(raw)
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(2**16):
                    received += piece
        return bytes(received)


def parsed(answer: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the error of a raw answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def half_a_body(num_bytes: int) -> bytes:
    """A request of which `num_bytes` of the body come, and as many do not."""
    head = f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {2 * num_bytes}\r\n\r\n"
    return head.encode() + b" " * num_bytes


@contextlib.contextmanager
def scripted(script: Script, settings: ServerSettings = SETTINGS) -> Iterator[Server]:
    llm = ScriptedLLM(script)
    with serving(build_app(server_state(llm), settings)) as port:
        server = Server(port, llm)
        with server.sdk:
            yield server


@pytest.fixture(scope="module")
def hello() -> Iterator[Server]:
    with scripted(spell("Hello 🙂")) as server:
        yield server


class TestSdk:
    def test_chat(self, hello: Server) -> None:
        answer = hello.sdk.chat.completions.create(model=MODEL, messages=HI, temperature=0.5, seed=1, stop=["x"])
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello 🙂", "stop")
        assert answer.usage is not None
        assert (answer.object, answer.model, answer.usage.completion_tokens) == ("chat.completion", MODEL, 10)
        assert answer.usage.prompt_tokens_details is not None
        assert answer._request_id is not None
        assert answer.id == f"chatcmpl-{answer._request_id}"

    def test_chat_stream(self, hello: Server) -> None:
        options: Any = {"include_usage": True}
        chunks = list(
            hello.sdk.chat.completions.create(model=MODEL, messages=HI, n=2, stream=True, stream_options=options)
        )
        *chunks, last = chunks
        assert (last.choices, last.usage and last.usage.completion_tokens) == ([], 20)
        assert all(chunk.usage is None for chunk in chunks)
        for index in range(2):
            mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
            assert [choice.delta.role for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
            assert "".join(choice.delta.content or "" for choice in mine) == "Hello 🙂"
            assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]

    def test_chat_stream_helper(self, hello: Server) -> None:
        with hello.sdk.chat.completions.stream(model=MODEL, messages=HI) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == "Hello 🙂"

    @pytest.mark.parametrize("stream", [False, True])
    def test_logprobs_without_top_logprobs_cases_11_and_29(self, hello: Server, stream: bool) -> None:
        asked: Any = hello.sdk.chat.completions.create(
            model=MODEL, messages=HI, logprobs=True, stream=stream, max_tokens=3
        )
        choices = [choice for part in (asked if stream else [asked]) for choice in part.choices]
        entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
        assert [(entry.token, entry.bytes, entry.top_logprobs) for entry in entries] == [
            ("H", [72], []),
            ("e", [101], []),
            ("l", [108], []),
        ]
        assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]

    def test_completions(self, hello: Server) -> None:
        answer = hello.sdk.completions.create(model=MODEL, prompt=["a", "bc"], n=2, logprobs=0, echo=True, max_tokens=2)
        assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
            (0, "aHe", "length"),
            (1, "aHe", "length"),
            (2, "bcHe", "length"),
            (3, "bcHe", "length"),
        ]
        logprobs = answer.choices[2].logprobs
        assert logprobs is not None
        assert (logprobs.tokens, logprobs.token_logprobs) == (["b", "c", "H", "e"], [None, -0.5, -0.5, -0.5])

    def test_completions_stream(self, hello: Server) -> None:
        chunks = list(hello.sdk.completions.create(model=MODEL, prompt=[72, 105], stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello 🙂"
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]

    def test_models(self, hello: Server) -> None:
        assert [model.id for model in hello.sdk.models.list()] == [MODEL, "alias"]
        assert hello.sdk.models.retrieve(MODEL).id == MODEL
        with pytest.raises(openai.NotFoundError) as caught:
            hello.sdk.models.retrieve("x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    def test_refusals_are_the_sdks_own_errors(self, hello: Server) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            hello.sdk.chat.completions.create(model="no", messages=HI)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as wrong:
            hello.sdk.chat.completions.create(model=MODEL, messages=HI, temperature=3)
        assert (wrong.value.type, wrong.value.param) == ("invalid_request_error", "temperature")
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as long:
            hello.sdk.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "a" * 600}], stream=True
            )
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")

    def test_fifty_at_once_get_each_their_own_case_59(self) -> None:
        def echo(call: Any) -> Sequence[Any]:
            return spell(call.prompt["prompt"])(call)

        async def ask(sdk: openai.AsyncOpenAI, i: int) -> str:
            if i % 2:
                answer = await sdk.completions.create(model=MODEL, prompt=f"number {i}")
                return answer.choices[0].text
            stream = await sdk.completions.create(model=MODEL, prompt=f"number {i}", stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def ask_all(url: str) -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
                return await asyncio.gather(*(ask(sdk, i) for i in range(50)))

        with scripted(echo) as server:
            assert asyncio.run(ask_all(server.url)) == [f"number {i}" for i in range(50)]


class TestFailures:
    def test_a_server_without_engines_says_when_to_come_back(self) -> None:
        with scripted(lambda call: [NoEngine("no engine")]) as server:
            with pytest.raises(openai.InternalServerError) as caught:
                server.sdk.chat.completions.create(model=MODEL, messages=HI)
            assert (caught.value.status_code, caught.value.code) == (503, "no_engine")
            assert caught.value.response.headers["retry-after"] == "1"

    def test_a_dead_engine_ends_the_stream_with_an_error_event_case_27(self) -> None:
        with scripted(lambda call: [[Delta("Hi")], EngineDeadError("the engine is gone")]) as server:
            stream = server.sdk.chat.completions.create(model=MODEL, messages=HI, stream=True)
            assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "Hi"]
            with pytest.raises(openai.APIError, match="the engine is gone"):
                next(stream)

    def test_a_body_without_a_length_is_counted(self, hello: Server) -> None:
        def pieces() -> Iterator[bytes]:
            for _ in range(17):
                yield b" " * 2**20

        headers = {"content-type": "application/json"}
        answer = httpx.post(f"{hello.url}/v1/completions", content=pieces(), headers=headers, timeout=WAIT_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert httpx.get(f"{hello.url}/health").status_code == 200

    @pytest.mark.parametrize("request_id", ["x" * 129, "a b\u00e9".encode("latin-1")])
    def test_a_bad_request_id_is_refused(self, hello: Server, request_id: str | bytes) -> None:
        answer = httpx.get(f"{hello.url}/version", headers={"x-request-id": request_id})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-id")


class TestBounds:
    """What a client may hold or send before anything is known of its request."""

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /version HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 2**16 + b"\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 2**21,
            b"GET /" + b"a" * 2**20,
            b"GET /version HTTP/1.1\r\n" + b"a: b\r\n" * 257 + b"\r\n",
            b"POST /version HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"a" * 2**21,
        ],
        ids=["one header", "without an end", "a path without an end", "many headers", "trailers without an end"],
    )
    def test_a_head_is_bounded(self, hello: Server, head: bytes) -> None:
        answer = hello.talk(head)
        # A client that still sends when the server closes may lose the answer, but never gets another one.
        if len(head) < 2**17 or answer:
            status, error = parsed(answer)
            expected = (405, "method_not_allowed") if b"POST" in head else (431, "request_header_fields_too_large")
            assert (status, error["code"]) == expected

    def test_a_head_of_just_the_bound_is_served(self, hello: Server) -> None:
        lines = b"a: b\r\n" * 253 + b"b: " + b"b" * 60_000 + b"\r\nconnection: close\r\n"
        for _ in range(2):
            assert hello.talk(b"GET /version HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n").startswith(b"HTTP/1.1 200 ")

    @pytest.mark.parametrize(
        "line",
        [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n"],
    )
    def test_what_is_no_http_is_refused_in_the_same_shape(
        self, hello: Server, line: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        status, error = parsed(hello.talk(line))
        assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "bad_request")
        assert caplog.records == []

    def test_an_upgrade_is_ignored_and_not_worth_a_warning(
        self, hello: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = hello.talk(
            b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert caplog.records == []

    def test_a_body_that_stops_arriving_is_given_up(self) -> None:
        settings = ServerSettings((MODEL,), max_body_idle_s=0.05)
        with scripted(spell("Hello"), settings) as server:
            status, error = parsed(server.talk(half_a_body(100)))
        assert (status, error["code"]) == (408, "request_timeout")

    def test_the_bodies_of_all_clients_share_one_budget(self) -> None:
        settings = ServerSettings((MODEL,), max_body_bytes_in_flight=2**20)
        with scripted(spell("Hello"), settings) as server:
            with contextlib.ExitStack() as stack:
                answers = []
                for _ in range(5):
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), WAIT_S))
                    connection.sendall(half_a_body(2**18))
                    answers.append(connection)
                readable, _, _ = select.select(answers, [], [], WAIT_S)
                refused = readable[0].recv(2**16)
                assert b"retry-after: 1" in refused
                assert (parsed(refused)[0], parsed(refused)[1]["code"]) == (503, "capacity_error")
            answer = server.sdk.completions.create(model=MODEL, prompt="a")
            assert answer.choices[0].text == "Hello"

    @pytest.mark.parametrize(
        "field",
        [
            b'"tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f", "parameters": [%s]}}]',
            b'"structural_tag": [%s]',
            b'"chat_template_kwargs": {"a": [%s]}',
            b'"ignored": [%s]',
        ],
        ids=["tools", "an unserved field", "kwargs", "an unknown field"],
    )
    def test_a_body_of_many_values_is_answered_like_any_other(self, hello: Server, field: bytes) -> None:
        """A million lists, each of them an object of Python's if it was made; `test_schema` says what is not made."""
        body = b'{"messages": [{"role": "user", "content": "hi"}], ' + field % b",".join([b"[]"] * 10**6) + b"}"
        answer = httpx.post(
            f"{hello.url}/v1/chat/completions",
            content=body,
            headers={"content-type": "application/json"},
            timeout=WAIT_S,
        )
        assert answer.status_code == (200 if b"ignored" in field else 400)


class TestDepartures:
    def test_a_client_that_leaves_with_a_second_request_waiting_is_aborted(self) -> None:
        """Both on one connection, the second before the first was answered."""
        with scripted(lambda call: [[Delta("Hi")], asyncio.Event()]) as server:
            connection = server.connect({"messages": HI, "stream": True})
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            assert server.llm.started.acquire(timeout=WAIT_S)
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            connection.close()
            assert server.llm.has_aborted.acquire(timeout=WAIT_S)

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_closes_its_half_has_left(self, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
        with scripted(lambda call: [[Delta("Hi")]] * 50 + [[Delta("", finish_reason="stop")]]) as server:
            connections = [server.connect({"messages": HI, "stream": stream}) for _ in range(30)]
            for i, connection in enumerate(connections):
                if i % 2:
                    # uvicorn knows only the last request that came on a connection.
                    connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                connection.shutdown(socket.SHUT_WR)
            for connection in connections:
                while connection.recv(2**16):
                    pass
                connection.close()
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []

    @pytest.mark.parametrize("stream", [False, True], ids=["37: whole", "stream"])
    @pytest.mark.parametrize("has_begun", [False, True], ids=["37: queued", "begun"])
    def test_a_client_that_leaves_is_aborted(self, stream: bool, has_begun: bool) -> None:
        begin: list[Any] = [[Delta("Hi")]] if has_begun else []
        with scripted(lambda call: [*begin, asyncio.Event()]) as server:
            connection = server.connect({"messages": HI, "stream": stream})
            assert server.llm.started.acquire(timeout=WAIT_S)
            if stream and has_begun:
                assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
            assert server.llm.aborted == []
            connection.close()
            assert server.llm.has_aborted.acquire(timeout=WAIT_S)
            assert server.llm.aborted == [call.request_id for call in server.llm.calls]

    def test_a_hundred_that_leave_at_once_are_all_aborted_case_39(self) -> None:
        with scripted(lambda call: [[Delta("Hi")], asyncio.Event()]) as server:
            connections = [server.connect({"messages": HI, "stream": True}) for _ in range(100)]
            for _ in connections:
                assert server.llm.started.acquire(timeout=WAIT_S)
            for connection in connections:
                connection.close()
            for _ in connections:
                assert server.llm.has_aborted.acquire(timeout=WAIT_S)
            assert sorted(server.llm.aborted) == sorted(call.request_id for call in server.llm.calls)
            assert sorted(server.llm.ended) == sorted(server.llm.aborted)

    def test_a_client_that_does_not_read_slows_only_itself_case_51(self) -> None:
        """Its generator is not asked for more than the socket takes; another stream goes on meanwhile."""
        num_steps, pulled = 400, threading.Semaphore(0)

        def script(call: Any) -> Iterator[Any]:
            if call.prompt["prompt"] == "fast":
                yield from spell("Hello")(call)
                return
            for i in range(num_steps):
                pulled.release()
                yield [Delta("x" * 2**16, finish_reason="stop" if i == num_steps - 1 else None)]

        with scripted(script) as server:  # type: ignore[arg-type]
            slow = server.connect({"prompt": "slow", "stream": True}, "/v1/completions")
            assert pulled.acquire(timeout=WAIT_S)
            for _ in range(20):
                fast = server.sdk.completions.create(model=MODEL, prompt="fast", stream=True)
                assert "".join(chunk.choices[0].text for chunk in fast) == "Hello"
            num_taken = 0
            while pulled.acquire(blocking=False):
                num_taken += 1
            assert num_taken < num_steps - 1
            received = bytearray()
            while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                received += slow.recv(2**20)
            slow.close()
            assert received.count(b"data: ") == num_steps + 1
            assert server.llm.aborted == []


TOKENIZER = byte_level()


@contextlib.contextmanager
def real_llm(*tokens: str | bytes) -> Iterator[tuple[Server, ScriptedClient]]:
    """A server with the real AsyncLLM on an engine that says `tokens`, one a message."""
    ids = ids_of(TOKENIZER, *tokens)

    def script(request: Any) -> list[Any]:
        params = request.sampling_params
        limit = min(len(ids), params.max_tokens)
        return [
            output(
                request,
                [ids[i]],
                FinishReason.LENGTH if i == limit - 1 else None,
                first=i,
                logprobs=None if params.logprobs is None else LogprobsLists([[ids[i]]], [[-0.5]], [1]),
            )
            for i in range(limit)
        ]

    client = ScriptedClient(script)
    llm: Any = AsyncLLM(FrontendConfig(), TOKENIZER, client)
    with serving(build_app(server_state(llm, tokenizer=TOKENIZER), SETTINGS)) as port:
        server = Server(port, llm)
        with server.sdk:
            yield server, client


def streamed(server: Server, **fields: Any) -> tuple[list[str], list[Any]]:
    """The texts of a completion's chunks, and (finish_reason, stop_reason) where there is one."""
    chunks = list(server.sdk.completions.create(model=MODEL, prompt="a", stream=True, extra_body=fields))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    ends = [(choice.finish_reason, choice.stop_reason) for choice in choices if choice.finish_reason]  # type: ignore[attr-defined]
    return [choice.text for choice in choices], ends


def whole(server: Server, **fields: Any) -> tuple[str, Any]:
    choice: Any = server.sdk.completions.create(model=MODEL, prompt="a", extra_body=fields).choices[0]
    return choice.text, (choice.finish_reason, choice.stop_reason)


class TestWithAsyncLLM:
    def test_a_split_emoji_arrives_whole_case_1(self) -> None:
        smile = "🙂".encode()
        with real_llm("Hello", smile[:2], smile[2:], "J") as (server, _):
            texts, ends = streamed(server)
            assert ("".join(texts), ends) == ("Hello🙂J", [("length", None)])
            assert all("\ufffd" not in text for text in texts)
            assert whole(server) == ("Hello🙂J", ("length", None))

    @pytest.mark.parametrize("include", [False, True])
    def test_no_part_of_a_stop_string_leaks_cases_3_and_5(self, include: bool) -> None:
        with real_llm("ABC", "DEF", "GHI", "J", " world") as (server, client):
            fields = {"stop": ["DEFGHIJ"], "include_stop_str_in_output": include}
            text = "ABCDEFGHIJ" if include else "ABC"
            texts, ends = streamed(server, **fields)
            assert ("".join(texts), ends) == (text, [("stop", "DEFGHIJ")])
            assert whole(server, **fields) == (text, ("stop", "DEFGHIJ"))
            assert len(client.added) == 2

    def test_a_stop_string_waits_for_min_tokens_case_7(self) -> None:
        with real_llm("\n\n", "ABC", "\n\n", "J") as (server, _):
            assert whole(server, stop=["\n\n"], min_tokens=2, max_tokens=4) == ("\n\nABC", ("stop", "\n\n"))

    def test_a_hint_to_send_less_often_loses_nothing_case_9(self) -> None:
        with real_llm(*["J"] * 7) as (server, _):
            texts, ends = streamed(server, stream_interval=10, max_tokens=7)
            assert ("".join(texts), ends) == ("J" * 7, [("length", None)])

    def test_the_same_id_twice_at_once_case_41(self) -> None:
        async def ask_twice(url: str) -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
                answers = await asyncio.gather(
                    *(
                        sdk.chat.completions.create(model=MODEL, messages=HI, extra_headers={"x-request-id": "same"})
                        for _ in range(4)
                    )
                )
            return [f"{answer.id} {answer.choices[0].message.content}" for answer in answers]

        with real_llm("Hello") as (server, client):
            assert asyncio.run(ask_twice(server.url)) == ["chatcmpl-same Hello"] * 4
            assert len({request.request_id for request in client.added}) == 4

    def test_choices_and_logprobs(self) -> None:
        with real_llm("Hello", " world") as (server, _):
            answer = server.sdk.chat.completions.create(model=MODEL, messages=HI, n=3, logprobs=True)
            assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 3
            logprobs = answer.choices[2].logprobs
            assert logprobs is not None
            assert [entry.token for entry in logprobs.content or []] == ["Hello", " world"]

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("completions", {"prompt": [TOKENIZER.vocab_size]}, "prompt"),
            ("completions", {"prompt": "a" * 200}, "prompt"),
            ("chat/completions", {"messages": [{"role": "user", "content": "a" * 200}]}, "messages"),
            ("chat/completions", {"messages": HI, "max_tokens": 1000}, "max_tokens"),
            ("chat/completions", {"messages": HI, "max_completion_tokens": 1000}, "max_completion_tokens"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, path: str, body: dict[str, Any], param: str) -> None:
        with real_llm("Hello") as (server, client):
            for stream in (False, True):
                answer = httpx.post(f"{server.url}/v1/{path}", json=body | {"stream": stream})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert client.added == []

    def test_a_client_that_leaves_frees_its_request(self) -> None:
        client = ScriptedClient()
        llm: Any = AsyncLLM(FrontendConfig(), TOKENIZER, client)
        aborted = threading.Event()
        abort = client.abort_requests_async

        async def abort_and_tell(request_ids: list[str]) -> None:
            await abort(request_ids)
            aborted.set()

        client.abort_requests_async = abort_and_tell  # type: ignore[method-assign]
        added = threading.Event()

        async def tell(request: Any) -> None:
            added.set()

        client.before_add = tell
        with serving(build_app(server_state(llm, tokenizer=TOKENIZER), SETTINGS)) as port:
            connection = Server(port, llm).connect({"messages": HI, "stream": True})
            assert added.wait(WAIT_S)
            connection.close()
            assert aborted.wait(WAIT_S)
        assert client.aborted == [request.request_id for request in client.added]
