"""`python -m tests.chaos.run --minutes 15`: streams at two frontends while everything about them breaks.

Two frontends, three engines, each link through a proxy. Every few seconds an engine is killed, stopped, told to leave
or cut off, messages vanish, or a frontend is restarted; the events are drawn from the seed. Each stream's answer is
compared, token by token, with that of an undisturbed run. With `--curve` the mesh is closed and its keys are rotated,
retired and revoked meanwhile. Writes the processes' logs and `report.json`; exits with 1
when a promise is broken. Ctrl-C ends the run early and still reports; memory is judged from some six minutes on.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import threading
from pathlib import Path
from time import monotonic

import msgspec
from rich.console import Console

from roundhouse.model_store import resolve_model
from tests.chaos.client import Stream, new_http_client
from tests.chaos.disturb import Disturber
from tests.chaos.key_plan import draw_key_events
from tests.chaos.load import HUNG_S, Door, Load, calls
from tests.chaos.mounted_keys import MountedKeys
from tests.chaos.plan import draw_events
from tests.chaos.proxied_cluster import ProxiedCluster
from tests.chaos.report import Report, as_json, as_tables
from tests.chaos.settings import ENGINE_ARGUMENTS
from tests.chaos.verdicts import WRONG
from tests.chaos.watch import Memory, MeshCounters, troubled_lines, wait_for_zero

NUM_FRONTENDS, NUM_ENGINES = 2, 3
FRONTEND_ARGUMENTS = ("--wait-timeout", "120", "--resume-timeout", "120")
TICK_S = 0.1
SAMPLE_EVERY_S = 5.0
PROGRESS_EVERY_S = 15.0


def chaos(cluster: ProxiedCluster, arguments: argparse.Namespace, stopped: threading.Event, console: Console) -> Report:
    """The whole run on a cluster that is up; ends early when `stopped` is set."""
    seconds = arguments.minutes * 60
    doors = [Door(frontend) for frontend in cluster.frontends]
    size = {"num_engines": NUM_ENGINES, "num_frontends": NUM_FRONTENDS}
    on_keys = draw_key_events(arguments.seed, seconds, **size) if arguments.curve else []
    events = sorted([*draw_events(arguments.seed, seconds, **size, others=on_keys), *on_keys], key=lambda e: e.at_s)
    disturber, memory, mesh = Disturber(cluster, doors, events), Memory(), MeshCounters()
    with new_http_client() as client:
        console.print("undisturbed answers …")
        streams = [Stream(client, doors[0].frontend.url, call) for call in calls()]
        expected = [(stream.call, stream.result(HUNG_S)) for stream in streams]
        load = Load(client, doors, expected, num_streams=arguments.streams, seed=arguments.seed)
        load.start()
        started = monotonic()
        next_sample_s = next_progress_s = 0.0
        while (now := monotonic() - started) < seconds and not stopped.is_set():
            disturber.tick(now)
            if now >= next_sample_s:
                memory.sample(now, _processes(cluster))
                mesh.sample(doors)
                next_sample_s = now + SAMPLE_EVERY_S
            if now >= next_progress_s:
                console.print(_progress(now, seconds, load, disturber), highlight=False)
                next_progress_s = now + PROGRESS_EVERY_S
            stopped.wait(TICK_S)
        load_s = monotonic() - started
        console.print("making the cluster whole, waiting for the last streams …")
        disturber.make_whole()
        load.stop()
        left = wait_for_zero(cluster)
        mesh.sample(doors)
    return Report(
        settings=vars(arguments) | {"engine_arguments": list(ENGINE_ARGUMENTS)},
        load_s=load_s,
        deeds=disturber.deeds,
        tally=load.tally,
        left=left,
        mesh=mesh.total(),
        memory=memory.verdicts(load_s),
        troubled_lines=troubled_lines(cluster),
    )


def new_keys(folder: Path, seed: int) -> MountedKeys:
    """In the place of those of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    frontends = [f"frontend-{index}" for index in range(NUM_FRONTENDS)]
    return MountedKeys(folder, frontends=frontends, engines=[f"e-{i}" for i in range(NUM_ENGINES)], seed=seed)


def set_on_signals(stopped: threading.Event) -> None:
    """At SIGINT and SIGTERM. Ctrl-C goes to every process of the terminal: ours inherit that it is blocked, and live on
    until they are told."""
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        stopped.set()

    threading.Thread(target=wait, name="ctrl-c", daemon=True).start()


def _processes(cluster: ProxiedCluster) -> list[tuple[str, int]]:
    frontends = [(f.name, f.process.pid) for f in cluster.frontends if f.process is not None]
    return [*frontends, *((engine.identity, engine.pid) for engine in cluster.engines)]


def _progress(now: float, seconds: float, load: Load, disturber: Disturber) -> str:
    outcomes = load.tally.outcomes
    last = f"; last: {disturber.deeds.done[-1][1]}" if disturber.deeds.done else ""
    wrong = sum(outcomes[outcome] for outcome in WRONG)
    num_events = len(disturber.deeds.done)
    return f"{now:5.0f} of {seconds:.0f} s, {num_events} events, {outcomes.total()} streams, {wrong} wrong{last}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description="Streams while everything breaks.")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=48, help="at any time, at both frontends together")
    parser.add_argument("--seed", type=int, default=0, help="of the events and of what is asked")
    parser.add_argument(
        "--curve", action="store_true", help="a closed mesh, whose keys change and are revoked meanwhile"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", default="build/chaos", help="folder for what is written")
    arguments = parser.parse_args()
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    mounted = new_keys(folder.resolve() / "keys", arguments.seed) if arguments.curve else None
    console = Console(width=None if sys.stdout.isatty() else 140)
    stopped = threading.Event()
    set_on_signals(stopped)
    with ProxiedCluster(
        folder.resolve(),
        str(resolve_model(arguments.model).path),
        num_frontends=NUM_FRONTENDS,
        num_engines=NUM_ENGINES,
        engine_arguments=ENGINE_ARGUMENTS,
        frontend_arguments=FRONTEND_ARGUMENTS,
        mounted=mounted,
    ) as cluster:
        report = chaos(cluster, arguments, stopped, console)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(as_json(report)), indent=2))
    console.print(as_tables(report))
    console.print(f"{folder / 'report.json'}: {'promises BROKEN' if report.is_broken else 'no promise broken'}")
    return 1 if report.is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
