"""Attackers of the mesh, one after another, while streams go on: a frontend with keys, an engine, and each attacker are
processes of their own. What is asserted of each attack: it was refused or dropped, and counted; few log lines, bounded
memory, no turn of the event loop over 100 ms; no stream was moved, wrong or stopped.

How long the streams paused meanwhile is a matter of the machine too: `tests/bench/mesh_attack_gaps.py` measures that.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roundhouse.protocol.limits import HELLO_BURST, MAX_BYTES_UNREAD
from tests.support.mesh_siege import Attack, Siege

MIB = 2**20

MAX_GROWTH = 64 * MIB
"""Of the frontend's memory in an attack: sockets, and what waits in them."""

MAX_TURN_CPU_S = 0.1

MAX_LOG_LINES = 30
"""Of one attack: one for each way to fail and minute, and two for each session that is admitted and lost."""


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    siege = Siege(tmp_path_factory.mktemp("siege"))
    yield siege
    siege.end()


def withstand(siege: Siege, name: str, *, max_growth: int = MAX_GROWTH, max_log_lines: int = MAX_LOG_LINES) -> Attack:
    """The attack, with all that holds for each of them."""
    attack = siege.attack(name)
    siege.wait_for_tokens()
    assert attack.after.num_wrong == 0
    assert attack.added("counters", "resumes") == 0
    assert attack.after.session_ids["engine-0"] == attack.before.session_ids["engine-0"]
    assert attack.after.turn_cpu_s < MAX_TURN_CPU_S
    assert attack.growth < max_growth
    assert attack.num_log_lines <= max_log_lines
    return attack


def test_without_a_key(siege: Siege) -> None:
    assert withstand(siege, "no_key").added("refused", "handshake") > 0


def test_a_key_that_is_not_allowed(siege: Siege) -> None:
    attack = withstand(siege, "unknown_key", max_log_lines=MAX_LOG_LINES + 200)
    assert attack.added("refused", "key") > 0


def test_garbage(siege: Siege) -> None:
    assert withstand(siege, "garbage").added("refused", "handshake") > 100


def test_a_frame_that_announces_2_gib(siege: Siege) -> None:
    attack = withstand(siege, "announce_2_gib")
    assert attack.after.without_hello - attack.before.without_hello == 20


def test_bytes_without_end_and_without_a_key(siege: Siege) -> None:
    """What twenty connections send within a tenth of a second each is the bound here, and not what they announced."""
    attack = withstand(siege, "pour_without_key", max_growth=4 * MAX_GROWTH)
    assert attack.added("limits", "bytes_before_hello") > 0


MAX_QUIETS = 10


def test_ten_thousand_silent_connections(siege: Siege) -> None:
    attack = withstand(siege, "silent_crowd", max_growth=2 * MAX_GROWTH)
    assert attack.result["connected"] > 1000
    # They leave three seconds after their handshake began, and are counted then; the last ones begin late where the
    # machine is busy. Of two that had one number after the other by different sockets, the end of the first may be told
    # behind the beginning of the second: then one is counted for both.
    wanted = attack.before.without_hello + 0.9 * attack.result["connected"]
    for _ in range(MAX_QUIETS):
        left = siege.quiet(4.0)
        if left.after.without_hello >= wanted:
            break
    assert left.after.num_descriptors < 200
    assert left.after.without_hello >= wanted


def test_ten_thousand_connections_that_come_and_go(siege: Siege) -> None:
    assert withstand(siege, "restless_crowd").added("refused", "handshake") > 1000
    assert siege.quiet(1.0).after.num_descriptors < 200


def test_a_dead_key_handler(siege: Siege) -> None:
    """Nobody comes in meanwhile, not even by a key that is on the list; who is in stays."""
    siege.kill_zap()
    attack = withstand(siege, "known_key", max_log_lines=MAX_LOG_LINES + 200)
    assert attack.result == {"heard": 0}
    assert attack.added("refused", "handshake") > 0
    assert (attack.added("counters", "admitted"), attack.after.num_zap_restarts) == (0, 0)
    siege.wake_zap()
    siege.quiet(2.0)
    again = withstand(siege, "silent_member")
    assert (again.added("counters", "admitted"), again.after.num_zap_restarts) == (1, 1)


def test_noise_by_an_engines_key(siege: Siege) -> None:
    attack = withstand(siege, "noise_by_key")
    assert attack.added("counters", "malformed") > 5000


def test_a_flood_by_an_engines_key(siege: Siege) -> None:
    attack = withstand(siege, "flood_by_key", max_growth=MAX_BYTES_UNREAD)
    assert attack.added("counters", "malformed") > 1000


def test_payloads_that_are_slow_to_decode(siege: Siege) -> None:
    attack = withstand(siege, "slow_payloads", max_growth=MAX_BYTES_UNREAD)
    assert attack.added("counters", "malformed") >= 2


def test_a_frame_over_the_limit(siege: Siege) -> None:
    """libzmq ends its connection, and with it its session."""
    before = siege.report().counters["lost"]
    withstand(siege, "frame_too_large")
    siege.quiet(1.0)
    assert siege.report().counters["lost"] > before


def test_a_message_without_end(siege: Siege) -> None:
    """10 GB if it were let: it holds the limit, and what it sends until that is noticed."""
    attack = withstand(siege, "endless_message", max_growth=2 * MAX_BYTES_UNREAD)
    assert attack.result == {"was_cut": True}
    assert attack.added("limits", "bytes_unread") == 1


def test_replayed_hellos(siege: Siege) -> None:
    attack = withstand(siege, "replayed_hellos", max_log_lines=MAX_LOG_LINES + 2 * HELLO_BURST)
    assert attack.added("limits", "hello_rate") > 1000


def test_a_storm_of_hellos(siege: Siege) -> None:
    attack = withstand(siege, "hello_storm", max_log_lines=MAX_LOG_LINES + 2 * HELLO_BURST)
    assert attack.added("limits", "hello_rate") > 1000


def test_a_key_speaks_for_no_other_session(siege: Siege) -> None:
    siege.quiet(4.0)
    attack = withstand(siege, "speak_for_another")
    assert attack.added("dropped", "user_id") == 4000


def test_a_key_hears_nothing_of_another_session(siege: Siege) -> None:
    attack = withstand(siege, "listen_for_another")
    assert attack.result == {"heard": 0}


def test_a_member_that_never_answers(siege: Siege) -> None:
    """It is what a stolen key can be: an engine. The streams of the others are not its business."""
    siege.quiet(4.0)
    attack = withstand(siege, "silent_member")
    assert attack.added("counters", "admitted") == 1
    assert attack.result == {"was_asked": True, "num_requests": 0}
    assert attack.after.stalled == ["engine-1"]


def test_slow_payloads_by_many_connections_of_one_key(siege: Siege) -> None:
    attack = withstand(siege, "many_slow_connections", max_growth=MAX_BYTES_UNREAD)
    assert attack.added("limits", "connections_per_peer") > 0
    assert attack.added("counters", "late_messages") > 100


def test_a_key_that_is_revoked_loses_its_connections(siege: Siege) -> None:
    """The last one: nobody can use that key any more."""
    siege.revoke_the_stolen(4.0)
    attack = withstand(siege, "slow_connections_that_are_revoked", max_growth=MAX_BYTES_UNREAD)
    assert attack.added("limits", "revoked") > 0
