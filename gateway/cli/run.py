"""sluice run: what is being processed, why something is not, and what to do about it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.arguments import PLACE, add_output, add_settings, settings_of, talk
from gateway.cli.exits import CommandError, Exit
from gateway.cli.output import show
from gateway.cli.session import bucket_of, with_core
from processing.failures import Conflict
from processing.model import RunState

if TYPE_CHECKING:
    from gateway.core import Core

STATES = [state.name.lower() for state in RunState]
COLUMNS = ["run_id", "workflow", "state", "key", "cursor", "failures", "recoveries", "error_code", "created_at"]
STEP_COLUMNS = ["step", "attempt", "status", "code", "seconds", "worker_id", "started_at"]


def arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = verbs.add_parser("list", help="runs, newest first")
    listing.add_argument("--state", choices=STATES, action="append", help="may be repeated")
    listing.add_argument("--workflow", metavar="NAME")
    listing.add_argument("--bucket", metavar="NAME")
    listing.add_argument("--code", metavar="CODE", help="failure code or block reason")
    listing.add_argument("--before", type=int, metavar="RUN", help="only older runs: the next page")
    listing.add_argument("--limit", type=int, default=50, metavar="N")
    for verb, text in (
        ("show", "a run with its journal"),
        ("why", "why a run does not move"),
        ("retry", "try a failed or cancelled run again"),
        ("requeue", "return a parked run to the line"),
        ("cancel", "end a run that has not ended; its version fails"),
    ):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("run_id", type=int, metavar="RUN")
        if verb == "requeue":
            one.add_argument("--force", action="store_true", help="also a running one: its worker loses it")
    for each in verbs.choices.values():
        add_output(each)
        add_settings(each, PLACE)


def run(args: argparse.Namespace) -> int:
    return with_core(settings_of(args), lambda core: _run(args, core))


async def _run(args: argparse.Namespace, core: Core) -> int:
    engine = core.engine
    match args.verb:
        case "list":
            bucket = await bucket_of(core, args.bucket) if args.bucket else None
            rows = await engine.list_runs(
                states=[RunState[word.upper()] for word in args.state or ()],
                workflow=args.workflow,
                bucket_id=bucket.id if bucket else None,
                code=args.code,
                before=args.before,
                limit=args.limit,
            )
            show(args, rows, COLUMNS)
            return Exit.OK
        case "why":
            _found(args, await engine.show(args.run_id))
            show(args, [{"why": sentence} for sentence in await engine.why(args.run_id)], ["why"])
            return Exit.OK
        case "show":
            pass
        case _:
            _found(args, await engine.show(args.run_id))
            deed = {"retry": engine.retry, "cancel": engine.cancel}.get(args.verb)
            try:
                await (deed(args.run_id) if deed else engine.requeue(args.run_id, args.force))
            except Conflict as error:
                raise CommandError(Exit.CONFLICT, str(error)) from error
    found = _found(args, await engine.show(args.run_id))
    if args.json:
        show(args, found)
    else:
        show(args, {name: value for name, value in found.items() if name != "steps" and value is not None})
        print()
        show(args, found["steps"], STEP_COLUMNS)
    if args.verb != "show":
        talk("Done.")
    return Exit.OK


def _found(args: argparse.Namespace, value: Any) -> Any:
    if value is None:
        raise CommandError(Exit.NOT_FOUND, f"There is no run {args.run_id}.")
    return value
