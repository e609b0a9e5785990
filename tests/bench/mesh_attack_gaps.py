"""How long streams pause under each attack of the mesh, beside quiet times of the same run.

    python -m tests.bench.mesh_attack_gaps [--rounds 3] [ATTACK …]

16 streams of an echo engine, a token each 30 ms. Of each attack and of as many quiet times: the longest gap between two
tokens of one stream, median of the rounds and the worst; the longest turn of the frontend's event loop in its own
processor time; how much its memory grew at most. Nothing is asserted: the gaps are the machine's as well.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from tests.support.mesh_attacker import ATTACKS
from tests.support.mesh_siege import Attack, Siege

QUIET = "quiet"
QUIET_S = 2.0
REST_S = 4.0
"""Behind each attack: what it left leaves, within the three seconds for handshakes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    names = [QUIET, *(options.attacks or ATTACKS)]
    found: dict[str, list[Attack]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        siege = Siege(Path(folder))
        try:
            for _ in range(options.rounds):
                for name in names:
                    found[name].append(siege.quiet(QUIET_S) if name == QUIET else siege.attack(name))
                    siege.quiet(REST_S)
        finally:
            siege.end()
    print("| attack | longest gap, median, ms | worst, ms | longest turn, CPU ms | memory, MiB |")
    print("| --- | --- | --- | --- | --- |")
    for name, attacks in found.items():
        gaps = [attack.after.gap_s * 1000 for attack in attacks]
        turn = max(attack.after.turn_cpu_s for attack in attacks) * 1000
        memory = max(attack.growth for attack in attacks) / 2**20
        print(f"| {name.replace('_', ' ')} | {median(gaps):.0f} | {max(gaps):.0f} | {turn:.0f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
