"""Clients that write, and a ledger of what they were answered: what has to be there, and what may be."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.durability.pair import ONCE
from tests.server import Server

WORDS = b"what is acknowledged is there and nothing else is to be seen ".split()
Digest = str | None  # None: not there


@dataclass
class Key:
    """allowed: what a reader may find. More than one: a write was not answered, and the key is left alone since."""

    bucket: str
    name: str
    cold: bool = False  # of a class that is archived
    allowed: set[Digest] = field(default_factory=lambda: {None})

    @property
    def sure(self) -> bool:
        return len(self.allowed) == 1

    @property
    def address(self) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.name}


class Ledger:
    """What all clients of one round were answered. versions: what was answered with a version id."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.plain, self.kept = f"{name}-plain", f"{name}-kept"
        self.keys: dict[tuple[str, str], Key] = {}
        self.versions: dict[tuple[str, str], str] = {}  # (key, version id) → digest
        self.wrong: list[str] = []  # seen by readers while processes were killed
        self.deeds: dict[str, int] = {}
        self.over = threading.Event()

    def open(self) -> None:
        s3 = self.server.client(**ONCE)
        s3.create_bucket(Bucket=self.plain)
        s3.create_bucket(Bucket=self.kept)
        s3.put_bucket_versioning(Bucket=self.kept, VersioningConfiguration={"Status": "Enabled"})

    def key(self, bucket: str, name: str, cold: bool = False) -> Key:
        return self.keys.setdefault((bucket, name), Key(bucket, name, cold))

    def wait(self, deeds: int, patience: float) -> None:
        """Until so many were done."""
        deadline = time.monotonic() + patience
        while sum(self.deeds.values()) < deeds and time.monotonic() < deadline:
            time.sleep(0.02)


class Client:
    """One thread. Its keys are its own, so that it knows their order."""

    def __init__(self, ledger: Ledger, number: int) -> None:
        self.ledger, self.number = ledger, number
        self.rng = random.Random(number)
        self.s3 = ledger.server.client(connect_timeout=1, read_timeout=20, **ONCE)
        self.serial = 0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        names, weights = zip(*((name, weight) for name, (weight, _) in DEEDS.items()), strict=True)
        pause = 0.0
        while not self.ledger.over.wait(pause):
            (name,) = self.rng.choices(names, weights)
            pause = 0.0
            try:
                DEEDS[name][1](self)
            except (BotoCoreError, ClientError, OSError):
                pause = 0.02  # the pace of a client that tries again
            self.ledger.deeds[name] = self.ledger.deeds.get(name, 0) + 1

    # --- what there is to write --------------------------------------------------------------------------------------

    def _key(self, suffix: str = "", cold: bool = False) -> Key:
        """An old key, to be overwritten, or a new one."""
        self.serial += 1
        bucket = self.ledger.kept if self.rng.random() < 0.3 else self.ledger.plain
        number = f"s{self.serial % 8}" if self.rng.random() < 0.6 and not cold else f"n{self.serial}"
        key = self.ledger.key(bucket, f"{self.number}-{number}{suffix}", cold)
        return key if key.sure else self.ledger.key(bucket, f"{self.number}-m{self.serial}{suffix}", cold)

    def _mine(self, want: Callable[[Key], bool]) -> Key | None:
        mine = [k for (_, name), k in list(self.ledger.keys.items()) if name.startswith(f"{self.number}-") and want(k)]
        return self.rng.choice(mine) if mine else None

    def _change(self, key: Key, digest: Digest, call: Callable[[], dict[str, Any]]) -> None:
        """In doubt until it is answered, and for good when it is not."""
        key.allowed = key.allowed | {digest, *key.allowed}
        doubtful = key.allowed
        answer = call()
        assert key.allowed is doubtful
        key.allowed = {digest}
        if digest is not None and (version := answer.get("VersionId")) not in (None, "null"):
            self.ledger.versions[key.name, str(version)] = digest

    def _put(self, key: Key, data: bytes, **more: Any) -> None:
        self._change(key, digest_of(data), lambda: self.s3.put_object(**key.address, Body=data, **more))

    # --- deeds -------------------------------------------------------------------------------------------------------

    def small(self) -> None:
        self._put(self._key(), os.urandom(self.rng.choice([1, 300, 3000])))

    def file(self) -> None:
        self._put(self._key(), os.urandom(self.rng.choice([20_000, 70_000, 300_000])))

    def text(self) -> None:
        data = b" ".join(self.rng.choices(WORDS, k=self.rng.choice([100, 4000])))
        self._put(self._key(".txt"), data, ContentType="text/plain")

    def parts(self) -> None:
        key, data = self._key(), os.urandom(self.rng.choice([3000, 90_000]))
        upload = self.s3.create_multipart_upload(**key.address)["UploadId"]
        place = {**key.address, "UploadId": upload}
        etag = self.s3.upload_part(**place, PartNumber=1, Body=data)["ETag"]
        if self.rng.random() < 0.2:
            self.s3.abort_multipart_upload(**place)
            return
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        self._change(key, digest_of(data), lambda: self.s3.complete_multipart_upload(**place, MultipartUpload=parts))

    def copy(self) -> None:
        source = self._mine(lambda k: k.sure and None not in k.allowed and not k.cold)
        if source is not None:
            (digest,) = source.allowed
            key = self._key()
            if key is not source:
                self._change(key, digest, lambda: self.s3.copy_object(**key.address, CopySource=source.address))

    def delete(self) -> None:
        key = self._mine(lambda k: k.sure and None not in k.allowed and not k.cold)
        if key is not None:
            self._change(key, None, lambda: self.s3.delete_object(**key.address))

    def cold(self) -> None:
        self._put(self._key(cold=True), os.urandom(self.rng.choice([200, 30_000])), StorageClass="GLACIER")

    def restore(self) -> None:
        key = self._mine(lambda k: k.sure and None not in k.allowed and k.cold)
        if key is not None:
            self.s3.restore_object(**key.address, RestoreRequest={"Days": 1})

    def read(self) -> None:
        """Whatever is answered with a body is the body, also while processes die."""
        key = self._mine(lambda k: k.sure and not k.cold)
        if key is None:
            return
        try:
            found: Digest = digest_of(self.s3.get_object(**key.address)["Body"].read())
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey":
                raise
            found = None
        if found not in key.allowed:
            self.ledger.wrong.append(f"{key.bucket}/{key.name}: read {found}, not one of {key.allowed}")


DEEDS: dict[str, tuple[int, Callable[[Client], None]]] = {
    "small": (3, Client.small),
    "file": (4, Client.file),
    "text": (2, Client.text),
    "parts": (3, Client.parts),
    "copy": (2, Client.copy),
    "delete": (2, Client.delete),
    "cold": (1, Client.cold),
    "restore": (1, Client.restore),
    "read": (2, Client.read),
}


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pages(s3: Any, operation: str, bucket: str, field_name: str) -> Iterator[dict[str, Any]]:
    for page in s3.get_paginator(operation).paginate(Bucket=bucket):
        yield from page.get(field_name, [])
