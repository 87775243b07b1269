"""make conformance: run the s3-tests over HTTP and TLS, and hold the result against the lists."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.lists import Lists, Verdict, compare, load, write_passing
from conformance.server import ROOT, NotReady, Running, running

SUITE = Path("..") / "shared" / "conformance"  # beside the checkout
TIERS = "core,ext"
CATEGORIES = (
    "listing",
    "object-basic",
    "bucket-basic",
    "multipart",
    "copy",
    "conditional",
    "range",
    "checksum",
    "atomicity",
    "object-attributes",
    "headers-sigv4",
    "presigned/anon",
)
TIMEOUT = 300  # seconds for one test: some put 2,000 objects one after the other, and machines are busy
LOCATION = "eu-west-1"  # a constraint that CreateBucket is given and GetBucketLocation has to echo


def main() -> int:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--transport", choices=("http", "tls", "both"), default="both")
    parser.add_argument("-k", dest="only", metavar="EXPR", help="run a selection (pytest's -k)")
    parser.add_argument("-n", dest="jobs", default="2", help="tests at a time")
    parser.add_argument("--update", action="store_true", help="rewrite passing.txt from this run")
    parser.add_argument("--keep", action="store_true", help="keep the servers' data directories")
    args = parser.parse_args()
    suite = Path(os.environ.get("S3TESTS") or ROOT / SUITE)
    if not (suite / "run_s3tests.sh").exists():
        print(f"There is no s3-tests suite in {suite}; name its folder with S3TESTS=….", file=sys.stderr)
        return 2
    transports = ("http", "tls") if args.transport == "both" else (args.transport,)
    passed: list[frozenset[str]] = []
    good = True
    for transport in transports:
        lists = load(transport)
        data = Path(tempfile.mkdtemp(prefix=f"sluice-conformance-{transport}-")) / "data"
        data.parent.chmod(0o755)
        try:
            with running(data, tls=transport == "tls") as server:
                outcomes = run(suite, server, transport, args.jobs, args.only)
                outcomes |= once_more(suite, server, transport, lists, outcomes)
        except NotReady as error:
            print(f"The server did not come up:\n{error}", file=sys.stderr)
            return 1
        finally:
            if not args.keep:
                shutil.rmtree(data.parent, ignore_errors=True)
        verdict = compare(lists, outcomes, partial=bool(args.only))
        tell(transport, lists, verdict)
        good &= verdict.good and bool(outcomes)
        good_here = frozenset(test for test, outcome in outcomes.items() if outcome == "passed")
        fails_here = {test for test, reason in lists.failing.items() if reason.startswith(f"{transport}: ")}
        passed.append((good_here - lists.left_out.keys() - lists.failing.keys()) | fails_here)
    if args.update:
        if args.only or len(transports) < 2:
            parser.error("--update needs a whole run over both transports")
        write_passing(frozenset.intersection(*passed))
        return 0
    return 0 if good else 1


def run(
    suite: Path, server: Running, transport: str, jobs: str, only: str | None, name: str | None = None
) -> dict[str, str]:
    """Outcomes by test id; the suite's own table goes to the terminal, its logs to s3-tests-runs/.

    botocore is told not to sign with awscrt, which is there for other reasons: it refuses headers and lifetimes that
    the tests mean to send.
    """
    runs = ROOT / "s3-tests-runs"
    name = name or transport
    command = [str(suite / "run_s3tests.sh"), "--host", "localhost", "--port", str(server.port), "-n", jobs]
    command += ["--main", server.main.argument(), "--alt", server.alt.argument(), "--tenant", server.tenant.argument()]
    command += ["--tiers", TIERS, "--cats", ",".join(CATEGORIES), "--location", LOCATION, "--name", name]
    command += ["--timeout", str(TIMEOUT)]
    if transport.startswith("tls"):
        command.append("--secure")
    if only:
        command += ["--k", only]
    results = runs / name / "results.json"
    results.unlink(missing_ok=True)
    environment = {"S3T_PYTHON": sys.executable, "S3T_OUT": str(runs), "BOTO_DISABLE_CRT": "true"}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment})
    if not results.exists():
        return {}
    rows = json.loads(results.read_text())
    return {test.rpartition("/")[2]: row["outcome"] for test, row in rows.items() if row["outcome"] != "notrun"}


def once_more(suite: Path, server: Running, transport: str, lists: Lists, outcomes: dict[str, str]) -> dict[str, str]:
    """What the tests that failed unexpectedly do when nothing runs beside them: some count the buckets of an account
    that all tests share, and a busy machine runs into the suite's time limit."""
    excused = lists.left_out.keys() | lists.failing.keys()
    again = [test for test, outcome in outcomes.items() if outcome != "passed" and test not in excused]
    if not again:
        return {}
    names = " or ".join(sorted(test.partition("::")[2].partition("[")[0] for test in again))
    found = run(suite, server, transport, "0", names, f"{transport}-again")
    return {test: outcome for test, outcome in found.items() if test in again}


def tell(transport: str, lists: Lists, verdict: Verdict) -> None:
    rate = 100 * verdict.passed / max(1, verdict.judged)
    print(f"\n{transport}: {verdict.passed} of {verdict.judged} judged tests pass ({rate:.1f} %).")
    for what, tests in (
        ("listed as passing, but lost", verdict.lost),
        ("listed as passing, but not run", verdict.missing),
        ("failed, and in no list", verdict.unlisted),
        ("newly passing (add with --update)", verdict.gained),
    ):
        for test in tests:
            reason = lists.failing.get(test) or lists.left_out.get(test)
            print(f"  {what}: {test}{f'   [{reason}]' if reason else ''}")


if __name__ == "__main__":
    sys.exit(main())
