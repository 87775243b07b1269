"""What must not be found once everything has settled: one table of checks, each of them a list of offenders."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
from botocore.exceptions import BotoCoreError, ClientError

from tests.durability.ledger import Digest, Key, Ledger, digest_of, pages
from tests.durability.pair import ONCE
from tests.server import Server

Findings = dict[str, list[str]]
STEPS = 8  # of a run that completed: those of killing.PIPELINE, and the verdict
REFERENCES = """
SELECT 'version' AS what, blob FROM version WHERE blob IS NOT NULL
UNION ALL SELECT 'restored copy', restored_blob FROM version WHERE restored_blob IS NOT NULL
UNION ALL SELECT 'extent', blob FROM extent
UNION ALL SELECT 'part', blob FROM part WHERE blob IS NOT NULL
UNION ALL SELECT 'extent of a part', blob FROM part_extent
UNION ALL SELECT 'sidecar', blob FROM sidecar
UNION ALL SELECT 'verdict', sidecar FROM verdict WHERE sidecar IS NOT NULL
"""
OF_A_VERSION = """
SELECT '{0}', o.bucket_id, convert_from(o.key, 'utf8'), o.seq FROM {0} o LEFT JOIN version v USING (bucket_id, key, seq)
 WHERE v.seq IS NULL
"""

CHECKS: Mapping[str, str] = {
    # no run is left live, none failed but those whose version went away meanwhile
    "undecided": "SELECT bucket_id, convert_from(key, 'utf8'), seq, run_id FROM version WHERE state = 1",
    "live": "SELECT run_id, workflow, state, park_reason, recoveries FROM workflow_run WHERE state IN (1, 2, 3)",
    "failed": """SELECT run_id, workflow, error_code, detail FROM workflow_run
                  WHERE state = 5 AND error_code NOT IN ('superseded', 'recall-expired')
                    AND detail IS DISTINCT FROM 'FailPoint'""",
    # every step recorded, and once
    "twice": """SELECT run_id, step_key, count(*) FROM journal_step WHERE status = 1
                 GROUP BY 1, 2 HAVING count(*) > 1""",
    "holes": f"""SELECT r.run_id, count(DISTINCT s.step_key) FROM workflow_run r
                   LEFT JOIN journal_step s ON s.run_id = r.run_id AND s.status IN (1, 3)
                  WHERE r.workflow = 'post_upload' AND r.state = 4
                  GROUP BY 1 HAVING count(DISTINCT s.step_key) <> {STEPS}""",
    # nothing half there
    "headless": """SELECT v.bucket_id, convert_from(v.key, 'utf8'), v.seq FROM version v
                     LEFT JOIN head h USING (bucket_id, key) WHERE h.seq IS NULL OR h.seq < v.seq""",
    "heads": """SELECT h.bucket_id, convert_from(h.key, 'utf8'), h.current_seq FROM head h
                  LEFT JOIN version v ON v.bucket_id = h.bucket_id AND v.key = h.key AND v.seq = h.current_seq
                 WHERE v.seq IS NULL OR h.listable <> (v.state <> 5)
                    OR h.listable AND (h.etag, h.size, h.storage_class) <> (v.etag, v.size, v.storage_class)""",
    "several": """SELECT bucket_id, convert_from(key, 'utf8'), count(*) FROM version WHERE is_null
                   GROUP BY 1, 2 HAVING count(*) > 1""",
    "pieces": " UNION ALL ".join(OF_A_VERSION.format(table) for table in ("extent", "version_part", "sidecar")),
    "uploads": """SELECT p.bucket_id, convert_from(p.key, 'utf8'), p.upload_id FROM part p
                    LEFT JOIN upload u USING (bucket_id, key, upload_id) WHERE u.upload_id IS NULL""",
    "unmoved": """SELECT v.bucket_id, convert_from(v.key, 'utf8'), b.tier FROM version v JOIN blob b ON b.id = v.blob
                   WHERE v.state = 2 AND v.storage_class = 'GLACIER' AND b.tier <> 'archive'""",
    "unreturned": "SELECT bucket_id, convert_from(key, 'utf8') FROM version WHERE restoring",
    # every byte that is referred to is there, and nothing but those
    "dangling": f"""SELECT r.what, r.blob, b.state FROM ({REFERENCES}) r LEFT JOIN blob b ON b.id = r.blob
                    WHERE b.id IS NULL OR b.state <> 2 OR b.tier = 'inline' AND b.bytes IS NULL""",
    "leftover": "SELECT id, state, tier, owner FROM blob WHERE state <> 2",
    "unreferenced": f"""SELECT b.id, b.tier, b.created_at FROM blob b WHERE b.state = 2
                           AND NOT EXISTS (SELECT FROM ({REFERENCES}) r WHERE r.blob = b.id)""",
}


def findings(server: Server) -> Findings:
    """What the database and the folders show now."""
    found, blobs = asyncio.run(_ask(server))
    found["files"] = _files(server, blobs)
    return {name: rows for name, rows in found.items() if rows}


async def _ask(server: Server) -> tuple[Findings, dict[tuple[str, str], int]]:
    assert server.database is not None
    conn = await asyncpg.connect(server.database)
    try:
        async with conn.transaction(isolation="repeatable_read"):
            found = {
                name: [" ".join(map(str, row.values())) for row in await conn.fetch(f"{statement} LIMIT 30")]
                for name, statement in CHECKS.items()
            }
            rows = await conn.fetch("SELECT tier, id, size FROM blob WHERE tier <> 'inline'")
        return found, {(row["tier"], row["id"].hex): row["size"] for row in rows}
    finally:
        await conn.close()


def _files(server: Server, blobs: Mapping[tuple[str, str], int]) -> list[str]:
    """Files without a row, rows without their file, files of another size, names of staging."""
    seen = set()
    wrong = []
    for tier in ("standard", "archive"):
        for folder, _, names in os.walk(Path(server.environment["SLUICE_BLOB_DIR"]) / tier):
            for name in names:
                stem, _, suffix = name.partition(".")
                if len(stem) != 32:
                    continue
                if (tier, stem) not in blobs or suffix not in ("", "restore"):
                    wrong.append(f"{tier}: {name} has no row")
                elif not suffix:
                    seen.add((tier, stem))
                    try:
                        size = Path(folder, name).stat().st_size
                    except FileNotFoundError:  # collected since the rows were read
                        continue
                    if size != blobs[tier, stem]:
                        wrong.append(f"{tier}: {name} has {size} bytes of {blobs[tier, stem]}")
    return wrong + [f"{tier}: {stem} has no file" for tier, stem in blobs.keys() - seen]


def settled(server: Server, patience: float) -> Findings:
    """Until nothing is found any more; what is still found after so many seconds."""
    deadline = time.monotonic() + patience
    while (found := findings(server)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


# --- as clients see it ------------------------------------------------------------------------------------------------


def abort_uploads(ledger: Ledger) -> None:
    """What clients that got no answer left open is theirs to abort."""
    s3 = ledger.server.client(**ONCE)
    for bucket in (ledger.plain, ledger.kept):
        for upload in pages(s3, "list_multipart_uploads", bucket, "Uploads"):
            s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def bring_back(ledger: Ledger) -> None:
    """Ask for everything that is archived, for long."""
    s3 = ledger.server.client(**ONCE)
    for key in ledger.keys.values():
        if key.cold:
            try:
                s3.restore_object(**key.address, RestoreRequest={"Days": 10_000})
            except ClientError as error:
                if error.response["Error"]["Code"] not in ("NoSuchKey", "RestoreAlreadyInProgress"):
                    raise


def compare(ledger: Ledger) -> Findings:
    """What was acknowledged against what is there: by listing, HEAD and GET."""
    s3 = ledger.server.client(**ONCE)
    lost: list[str] = []
    half: list[str] = list(ledger.wrong)
    for bucket in (ledger.plain, ledger.kept):
        listed = {item["Key"]: item for item in pages(s3, "list_objects_v2", bucket, "Contents")}
        keys = {key.name: key for key in ledger.keys.values() if key.bucket == bucket}
        half += [f"{bucket}/{name}: listed, and never written" for name in listed.keys() - keys.keys()]
        for name, key in keys.items():
            found, contradictions = _look(s3, key, listed.get(name))
            half += contradictions
            if found not in key.allowed:
                lost.append(f"{bucket}/{name}: {found} is none of {key.allowed}")
    there = {(v["Key"], v["VersionId"]): v for v in pages(s3, "list_object_versions", ledger.kept, "Versions")}
    for (name, version), digest in ledger.versions.items():
        if (name, version) not in there:
            lost.append(f"{name} {version}: not listed")
        elif not ledger.keys[ledger.kept, name].cold or there[name, version]["IsLatest"]:
            found = _digest(s3, Bucket=ledger.kept, Key=name, VersionId=version)
            if found != digest:
                lost.append(f"{name} {version}: {found}, not {digest}")
    return {name: rows for name, rows in {"lost": lost, "half-visible": half}.items() if rows}


def _digest(s3: Any, **address: str) -> str:
    """Of what GET answers; its error code when it is none."""
    try:
        return digest_of(s3.get_object(**address)["Body"].read())
    except (ClientError, BotoCoreError) as error:
        return str(error)


def _look(s3: Any, key: Key, item: Mapping[str, Any] | None) -> tuple[Digest, list[str]]:
    """What a reader finds, and where listing, HEAD and GET contradict each other."""
    where = f"{key.bucket}/{key.name}"
    try:
        head = s3.head_object(**key.address)
        answer = s3.get_object(**key.address)
        body = answer["Body"].read()
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code not in ("404", "NoSuchKey"):
            return code, [f"{where}: {code}"]
        return None, [f"{where}: listed, but {code}"] if item is not None else []
    seen = {(each["ETag"], size) for each, size in ((head, head["ContentLength"]), (answer, len(body)))}
    seen |= {(item["ETag"], item["Size"])} if item is not None else {("not listed", 0)}
    return digest_of(body), [f"{where}: {seen}"] if len(seen) > 1 else []
