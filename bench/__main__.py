"""The same load on this gateway and on other S3 endpoints, in interleaved rounds."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from bench import durability, loads, ours, peers, report, rounds
from bench.endpoint import OURS, Endpoint
from bench.site import Bodies, Knobs, Site

QUICK = Knobs(seconds=4.0, keys=10_000)


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    it.add_argument(
        "--endpoint", nargs="+", action="append", default=[], metavar=("NAME", "URL ACCESS SECRET [PID …]"),
        help="one more endpoint; the PIDs are the roots of its processes; - for the keys of a plain web server",
    )  # fmt: skip
    it.add_argument("--peers", nargs="*", metavar="NAME", help="start these peers, or all that are installed")
    it.add_argument("--no-ours", action="store_true", help="do not start this gateway (name it with --endpoint sluice)")
    it.add_argument("--durability", default="", help="of an --endpoint sluice: its setting, to be printed")
    it.add_argument("--dsn", default="", help="of an --endpoint sluice: its database, to read its settings from")
    it.add_argument("--loads", nargs="+", default=[], metavar="LOAD", help="names, or how they begin: put-new, get-32")
    it.add_argument("--quick", action="store_true", help="about five minutes: few loads, short rounds")
    it.add_argument("--rounds", type=int, default=3)
    it.add_argument("--seconds", type=float, help="of each small load")
    it.add_argument("--keys", type=int, help="prepared objects; more than caches hold")
    it.add_argument("--large-mib", type=int, default=1024, help="size of large objects")
    it.add_argument("--parts", type=int, default=10_000, help="of the load complete-10000, copied 5 MiB each")
    it.add_argument("--probes", type=int, default=200, help="of the load ready-idle")
    it.add_argument("--rate", type=int, default=14_000, help="new keys prepared for each second of a load")
    it.add_argument("--everywhere", action="store_true", help="the loads that are for ours alone, too (50 GB each)")
    it.add_argument("--no-trace", action="store_true", help="do not count syncs with strace")
    it.add_argument("--dir", type=Path, help="folder for everything that is written; default: a new one in TMPDIR")
    it.add_argument("--json", type=Path, help="write all samples there")
    it.add_argument("--list", action="store_true", help="show the loads")
    return it


def endpoint(words: list[str], durability_setting: str, dsn: str) -> Endpoint:
    """Raises ValueError."""
    if len(words) < 4:
        raise ValueError("--endpoint needs NAME URL ACCESS SECRET")
    name, url, access, secret, *pids = words
    own = name == OURS
    return Endpoint(
        name,
        url.rstrip("/"),
        "" if access == "-" else access,
        "" if secret == "-" else secret,
        tuple(int(pid) for pid in pids),
        note=(f"durability={durability_setting}" if own and durability_setting else ""),
        dsn=dsn if own else "",
    )


def knobs_of(args: argparse.Namespace) -> Knobs:
    base = QUICK if args.quick else Knobs()
    return Knobs(
        seconds=args.seconds or base.seconds,
        keys=args.keys or base.keys,
        large=args.large_mib << 20,
        parts=args.parts,
        probes=args.probes,
        rate=args.rate,
        everywhere=args.everywhere,
    )


def main() -> int:
    args = parser().parse_args()
    if args.list:
        for load in loads.LOADS:
            print(f"{load.name:16} {load.unit:5} {load.what}")
        return 0
    missing = [name for name in ("wrk", "curl") if shutil.which(name) is None]
    if missing:
        print(f"Needed, not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    words = args.loads or (list(loads.QUICK) if args.quick else [load.name for load in loads.LOADS])
    try:
        chosen = loads.chosen(words)
        named = [endpoint(each, args.durability, args.dsn) for each in args.endpoint]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.dir) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)  # the database runs as another user
        endpoints = [] if args.no_ours else [stack.enter_context(ours.running(folder))]
        if args.peers is not None:
            endpoints += stack.enter_context(peers.all_running(args.peers or None, folder))
        _run(args, folder, [*endpoints, *named], chosen)
    return 0


def _run(args: argparse.Namespace, folder: Path, endpoints: list[Endpoint], chosen: list[loads.Load]) -> None:
    knobs = knobs_of(args)
    lists = folder / "lists"
    lists.mkdir()
    bodies = Bodies(lists, knobs.large)
    sites = rounds.prepare([Site(each, lists, bodies, knobs) for each in endpoints], chosen)
    samples = rounds.measure(sites, chosen, args.rounds)
    said = {site.name: durability.describe(site, "", trace=not args.no_trace) for site in sites}
    settings = (
        f"{args.rounds} rounds, {knobs.seconds:g} s each, {knobs.keys:,} keys, large objects of {args.large_mib} MiB, "
        f"{os.cpu_count()} cores shared by the load and the endpoints"
    )
    if args.json:
        args.json.write_text(json.dumps(report.plain(samples), indent=1))
    print(report.document(samples, said, settings))


if __name__ == "__main__":
    sys.exit(main())
