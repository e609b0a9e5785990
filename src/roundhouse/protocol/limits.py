"""The bounds that clients and peers can run into. The frontend enforces them, the engine again those of a request."""

from __future__ import annotations

MAX_BODY_BYTES = 4 * 2**20
"""Of an HTTP request's body; counted while it arrives."""

MAX_BODY_BYTES_IN_FLIGHT = 256 * 2**20
"""Of all bodies of one server that arrive or wait to be decoded."""

MAX_BODY_IDLE_S = 30.0
"""Without a byte of a body that is not complete."""

MAX_HEAD_BYTES = 64 * 2**10
"""Of a request line and its headers."""

MAX_HEADERS = 256

MAX_REQUEST_ID_CHARS = 128
"""Of X-Request-Id: it is repeated in every chunk of a stream."""

MAX_INNER_REQUEST_ID_CHARS = 2 * MAX_REQUEST_ID_CHARS
"""Of the id that an engine gets: the client's, with what makes it unique."""

MAX_CHOICES = 128
"""n × prompts of one HTTP request, checked before anything is allocated for them."""

MAX_PROMPTS = 128
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
"""Of one message; its tool calls have a bound of their own."""

MAX_TOOL_CALLS = 128
MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 * 2**10
"""Of the JSON Schemas of a request's tools together."""

MAX_TEMPLATE_KWARGS_BYTES = 64 * 2**10
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**18
MAX_SCHEMA_BYTES = 64 * 2**10
"""Of a JSON Schema that an answer has to satisfy."""

MAX_GRAMMAR_BYTES = 16 * 2**10
"""Of a context-free grammar."""

MAX_REGEX_BYTES = 4 * 2**10
"""Of a regular expression, in a schema as well."""

MAX_GUIDED_CHOICES = 1024
MAX_GUIDED_CHOICES_BYTES = 64 * 2**10
"""Of the texts that an answer may be: how many, and all together."""

MAX_SCHEMA_PATTERNS = 64
"""Regular expressions in one schema; the library compares those of patternProperties each with each."""

MAX_DETOKENIZED_CONTEXTS = 4
"""A /detokenize takes this × the model's context tokens."""

MAX_CACHE_SALT_CHARS = 128
MAX_CHARS_PER_TOKEN = 32
"""A prompt text longer than this × the model's context is refused before it is tokenized."""

MAX_TOKEN_ID = 2**31 - 1
MAX_IDENTITY_BYTES = 128
MAX_MESSAGE_BYTES = 64 * 2**20
"""Of one message on the mesh, all frames together; the lower of the two peers' values holds (Hello, Admitted)."""

MAX_OUTPUT_PAYLOAD_BYTES = 128 * 2**10
"""Of the msgpack of an engine's message, its arrays not counted. Decoding it is the frontend's event loop's work: with
what decodes slowest (lists in lists) that takes 40 ms, and half a minute for `MAX_MESSAGE_BYTES`. An engine sends a
larger step as several messages."""

MAX_INPUT_PAYLOAD_BYTES = 8 * 2**20
"""Of the msgpack of a request (ADD), which an engine decodes in a thread, with the GIL held: 8 MiB of numbers take a
seventh of a second. A token takes 5 bytes at most: 5 MiB for prompt and outputs in a context of 2**20 tokens, 1.25 MiB
for `MAX_ALLOWED_TOKEN_IDS`, and all else that a request may have less than 0.5 MiB (stop strings, `MAX_LOGIT_BIAS`, a
grammar, ids). A request over it is refused by the frontend, that one alone."""

MAX_CONTROL_PAYLOAD_BYTES = 16 * 2**10
"""Of the msgpack of what a frontend asks of an engine itself (PING, UTILITY, …). A utility's arguments are of any
shape, which decodes slowest: 8 MiB of lists in a list take ten seconds."""

MAX_FRAMES = 64
"""Of one message on the mesh, the routing id not counted."""

MAX_BYTES_WAITING_PER_PEER = 256 * 2**20
"""Bytes that wait in our own code for one peer or for one thread; more ends that peer's session."""

MESSAGE_OVERHEAD_BYTES = 512
"""Of each message that waits decoded, beside the bytes it had on the wire: a small one is mostly Python objects."""

MAX_ENGINES = 4096
"""Admitted engines of one frontend. As many halves of Hellos may wait, and as many peers are remembered for their rate,
each beside the others; what has not come that far is a connection (`MAX_MESH_CONNECTIONS`)."""

MAX_API_KEYS = 1024
"""All of them are compared for each request."""

MAX_API_KEY_CHARS = 512
MAX_API_KEY_FILE_BYTES = 2**20

MAX_HEAD_S = 30.0
"""From the first byte of a request's head, or from the beginning of a connection, to the head's end."""

MAX_BODY_S = 600.0
"""From the end of a request's head to the end of its body."""

MAX_LEFTOVER_S = 30.0
"""Of a body that still comes after its request was answered, as one that is refused does."""

MAX_WRITE_STALL_S = 300.0
"""Without a reader taking what is written to it."""

MAX_HTTP_CONNECTIONS = 16384
"""Of the API's port."""

MAX_ADMIN_CONNECTIONS = 256
"""Of the admin port: probes, Prometheus, the operator. Nobody's streams are there."""

HTTP_CONNECTIONS_SHARE = 0.4
"""Of the file descriptors that a process may have: a connection for which there is none is told nothing."""

HELLOS_A_SECOND = 2.0
"""Of one peer, by both sockets together, on the average: an engine whose sessions do not last makes one a second, and
each has two Hellos."""

HELLO_BURST = 32
"""Hellos of one peer at once: sixteen sessions. An engine begins with tries that are 50 ms apart."""

MAX_HELLO_BYTES = 16 * 2**10
"""Of a Hello, all frames together; it is kept until its other half is here."""

MAX_HELLO_HALVES_PER_ENGINE = 16
"""Hellos of one engine that wait for their other half. It has one or two; more would push out those of others."""

MAX_MESH_CONNECTIONS = 4 * MAX_ENGINES
"""Of one frontend's mesh: two for each session, and twice that while keys are rotated."""

MAX_CONNECTIONS_PER_PEER = 8
"""Of one key, to one frontend. A session has two, a handover of keys four; twice that leaves room for those that have
ended and are not noticed yet. PULL gives each connection its turn, not each peer."""

MESH_CONNECTIONS_SHARE = 0.4
"""Of the file descriptors that a process may have; what HTTP and the mesh leave is for the process itself. libzmq
accepts until there is none left, and then nobody can open anything."""

MAX_BYTES_BEFORE_HELLO = 64 * 2**10
"""Read from a connection of which no message came yet. Handshake and Hello take about 1 KiB. Whoever has no key has no
more than this in our memory for each connection, and that for 3 s (`transport.sockets`)."""

MAX_BYTES_UNREAD = 2 * MAX_MESSAGE_BYTES
"""Read from a connection by libzmq and not handed to us: a message that is not complete, and those behind it. libzmq
hands out whole messages and has no limit on what it gathers for one, so this is counted outside of it."""

BYTES_A_SECOND_FOR_HEARTBEATS = 256
"""Of what is read from a connection, that is no message: four encrypted heartbeats of 42 bytes, and some more."""
