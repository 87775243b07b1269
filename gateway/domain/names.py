"""What S3 accepts as the name of a bucket and of an object."""

from __future__ import annotations

import re
from functools import lru_cache

from gateway.s3.errors import S3Error

MAX_KEY = 1024

# General purpose bucket naming rules: 3 to 63 of a-z 0-9 . -, labels that begin and end with a letter or digit.
_LABELS = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\Z")
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}\Z")
_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


@lru_cache(maxsize=4096)  # every request names one
def valid_bucket(name: str) -> bool:
    """Whether a bucket of that name may exist. The reserved prefixes and suffixes belong to other kinds of buckets."""
    return (
        3 <= len(name) <= 63
        and _LABELS.match(name) is not None
        and _ADDRESS.match(name) is None
        and not name.startswith(_PREFIXES)
        and not name.endswith(_SUFFIXES)
    )


def check_bucket(name: str) -> str:
    """The name itself. Raises InvalidBucketName."""
    if not valid_bucket(name):
        raise S3Error("InvalidBucketName", BucketName=name)
    return name


def check_key(key: bytes) -> bytes:
    """The key itself. Raises KeyTooLongError over 1,024 bytes and InvalidURI for what is not UTF-8.

    Everything else is a name: ``..``, leading and trailing slashes, U+0000. No key ever becomes a path.
    """
    if len(key) > MAX_KEY:
        raise S3Error("KeyTooLongError", Size=len(key), MaxSizeAllowed=MAX_KEY)
    try:
        key.decode("utf-8")
    except UnicodeDecodeError:
        raise S3Error("InvalidURI") from None
    return key
