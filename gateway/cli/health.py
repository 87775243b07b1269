"""sluice health: ask the running service whether it is ready; exit 0 or 5. For container health checks."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show

TIMEOUT = 5.0  # seconds


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--live", action="store_true", help="only whether it is alive, not whether it is ready")
    parser.add_argument("--url", metavar="URL", help="admin address; default: the one of the service on data_dir")
    add_output(parser)
    add_settings(parser, PLACE)


def run(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    url = args.url
    if url is None:
        try:
            url = json.loads((settings.run_dir / "serve.json").read_text())["admin"]
        except (OSError, ValueError, KeyError):
            url = f"http://127.0.0.1:{settings.admin_port}"
    path = "/-/live" if args.live else "/-/ready"
    try:
        with urllib.request.urlopen(url + path, timeout=TIMEOUT) as answer:  # noqa: S310 - the operator's own address
            text, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    except OSError as error:
        raise CommandError(Exit.UNAVAILABLE, f"Nothing answers at {url}: {error}.") from error
    try:
        report = json.loads(text)
        checks = report["checks"]
    except (ValueError, KeyError) as error:
        raise CommandError(Exit.UNAVAILABLE, f"What answers at {url} is not Sluice.") from error
    if args.json:
        show(args, report)
    else:
        show(args, [{"check": name, **row} for name, row in checks.items()], ["check", "state", "reason"])
    return Exit.OK if status == 200 else Exit.UNAVAILABLE
