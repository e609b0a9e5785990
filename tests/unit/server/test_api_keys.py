"""What a file of keys may say, and which key a client has."""

from hashlib import sha256

import pytest

from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import ApiKey, KeyRing, key_of, parse_keys


def digest(text: str) -> bytes:
    return sha256(text.encode()).digest()


def test_a_file_of_keys_and_hashes_with_and_without_names() -> None:
    b, c = digest("b").hex().upper(), digest("c").hex()
    text = f"# ours\n\nrh-0123456789abcdef ann\n  sha256:{b} bob\r\nsha256:{c}\nshort\n"
    assert parse_keys(text, source="keys") == [
        ApiKey(digest("rh-0123456789abcdef"), "ann"),
        ApiKey(digest("b"), "bob"),
        ApiKey(digest("c"), "keys"),
        ApiKey(digest("short"), "keys, line 6", is_short=True),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("a-secret with three words", "a line is a key, or a key, a blank and a name"),
        ("a-secret näme", "a line is a key, or a key, a blank and a name"),
        ("sha256:1234", "a hash is sha256: and 64 hexadecimal digits"),
        ("sha256:" + "g" * 64, "a hash is sha256: and 64 hexadecimal digits"),
        ("a-sécret", f"an API key has 1 to {limits.MAX_API_KEY_CHARS} printable ASCII characters and no blank"),
        ("x" * 513, f"an API key has 1 to {limits.MAX_API_KEY_CHARS} printable ASCII characters and no blank"),
    ],
)
def test_a_line_that_is_none_is_named_and_not_quoted(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_keys(f"\n{line}\n", source="keys")
    assert said in raised.value.message
    assert "keys, line 2" in raised.value.message
    assert line.split()[0] not in raised.value.message


@pytest.mark.parametrize("num_keys", [0, limits.MAX_API_KEYS + 1])
def test_no_key_or_too_many_make_no_ring(num_keys: int) -> None:
    with pytest.raises(ConfigError, match="API keys are needed"):
        KeyRing([ApiKey(bytes(32), "a")] * num_keys)


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr("roundhouse.server.api_keys.compare_digest", compare)
    keys = [key_of(text, name=text) for text in ("first-key", "second-key", "third-key")]
    found = [KeyRing(keys).find(given) for given in (b"first-key", b"third-key", b"none", b"")]
    assert found == [keys[0], keys[2], None, None]
    assert compared == [(32, 32)] * 3 * 4


def test_what_is_kept_holds_no_key() -> None:
    assert "first-key" not in repr(KeyRing([key_of("first-key", name="a")]).keys)
