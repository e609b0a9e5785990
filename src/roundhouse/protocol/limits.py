"""Every bound that a client or a peer can run into, in one place. The frontend enforces them, and the engine again."""

from __future__ import annotations

MAX_BODY_BYTES = 16 * 2**20
"""Of an HTTP request's body; counted while it arrives."""

MAX_REQUEST_ID_CHARS = 128
"""Of X-Request-Id: it is repeated in every chunk of a stream."""

MAX_CHOICES = 128
"""n × prompts of one HTTP request, checked before anything is allocated for them."""

MAX_PROMPTS = 128
MAX_MESSAGES = 4096
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**18
MAX_CACHE_SALT_CHARS = 128
MAX_CHARS_PER_TOKEN = 128
"""A prompt text longer than this × the model's context is refused before it is tokenized."""

MAX_TOKEN_ID = 2**31 - 1
MAX_IDENTITY_BYTES = 128
MAX_MESSAGE_BYTES = 64 * 2**20
"""Of one message on the mesh, all frames together; the lower of the two peers' values holds (Hello, Admitted)."""

MAX_FRAMES = 64
"""Of one message on the mesh, the routing id not counted."""

MAX_BYTES_WAITING_PER_PEER = 256 * 2**20
"""Bytes that wait in our own code for one peer or for one thread; more ends that peer's session."""

MAX_ENGINES = 4096
"""Link sessions of one frontend, admitted or not."""
