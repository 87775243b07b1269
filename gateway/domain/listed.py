"""An object as listings tell of it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from gateway.domain.objects import Account


class Entry(msgspec.Struct, frozen=True, gc=False):  # made by the thousand
    """An object in a listing. etag without quotes; checksum: algorithm by lower-case name."""

    key: bytes
    modified: int  # whole seconds since 1970: a column of datetimes takes four times as long to decode
    etag: str
    size: int
    storage_class: str = "STANDARD"
    owner: Account | None = None
    checksum: str | None = None
    checksum_type: str | None = None
    restoring: bool | None = None  # None: RestoreStatus was not asked for, or does not apply
    restored_until: datetime | None = None

    @property
    def name(self) -> bytes:
        return self.key
