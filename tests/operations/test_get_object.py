"""GetObject: bytes, ranges, conditions, and what is seen of states."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from gateway.db.blobs import Blobs
from processing.model import Verdict
from storage_tiers.tier import BlobCorrupt, BlobId
from tests.operations.asking import headers, refusal, refused, sent
from tests.operations.house import OTHER, House


@pytest.mark.parametrize(
    ("header", "body", "shown"),
    [
        ("bytes=0-0", b"0", "bytes 0-0/10"),
        ("bytes=2-5", b"2345", "bytes 2-5/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", b"56789", "bytes 5-9/10"),
    ],
)
@pytest.mark.parametrize("size", [1, 5000])
def test_ranges(s3: Any, bucket: str, header: str, body: bytes, shown: str, size: int) -> None:
    data = b"".join(bytes([c]) * size for c in b"0123456789")
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    got = s3.get_object(Bucket=bucket, Key="k", Range=header)
    assert got["Body"].read() == body and got["ContentRange"] == shown
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert not any(name.startswith("x-amz-checksum") for name in headers(got))
    if size > 1:  # the same out of a tier
        s3.put_object(Bucket=bucket, Key="big", Body=data)
        part = s3.get_object(Bucket=bucket, Key="big", Range=f"bytes={size * 3 - 1}-{size * 3}")["Body"].read()
        assert part == b"23"


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0"])
def test_b099_a_range_of_an_empty_object(s3: Any, bucket: str, header: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"")
    error = refusal(s3.get_object, Bucket=bucket, Key="k", Range=header)
    assert error["Error"]["Code"] == "InvalidRange" and headers(error)["content-range"] == "bytes */0"
    assert error["ResponseMetadata"]["HTTPStatusCode"] == 416


@pytest.mark.parametrize("header", ["bytes=abc", "bytes=33-10", "invalid", "items=0-1", "bytes=0-1,3-4"])
def test_b101_b103_nonsense_ranges_are_ignored(s3: Any, bucket: str, header: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")
    for answer in (
        s3.get_object(Bucket=bucket, Key="k", Range=header),
        s3.head_object(Bucket=bucket, Key="k", Range=header),
    ):
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
        assert "ContentRange" not in answer and answer["AcceptRanges"] == "bytes"
        assert answer["ContentLength"] == 10


def test_if_range(house: House, s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")["ETag"]
    fits = sent(house.client(), "GetObject", **{"If-Range": etag})
    assert fits.get_object(Bucket=bucket, Key="k", Range="bytes=0-1")["Body"].read() == b"01"
    changed = sent(house.client(), "GetObject", **{"If-Range": '"other"'})
    assert changed.get_object(Bucket=bucket, Key="k", Range="bytes=0-1")["Body"].read() == b"0123456789"


def test_b109_the_two_rules_of_combination(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    when = s3.head_object(Bucket=bucket, Key="k")["LastModified"]
    s3.get_object(Bucket=bucket, Key="k", IfMatch=etag, IfUnmodifiedSince=when - timedelta(days=1))
    status = refused(s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=etag, IfModifiedSince=when - timedelta(days=1))
    assert status[0] == 304


def test_b111_a_304_says_what_a_cache_wants_to_know(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    put = s3.put_object(Bucket=bucket, Key="k", Body=b"x" * 100, CacheControl="max-age=5")
    shown = headers(refusal(s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=put["ETag"]))
    assert shown["etag"] == put["ETag"] and shown["cache-control"] == "max-age=5" and shown["last-modified"]
    assert shown["x-amz-version-id"] == put["VersionId"] and "content-length" not in shown


def test_412_names_its_condition(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    error = refusal(s3.get_object, Bucket=bucket, Key="k", IfMatch='"x"')
    assert error["Error"] == {**error["Error"], "Code": "PreconditionFailed", "Condition": "If-Match"}
    assert refused(s3.get_object, Bucket=bucket, Key="k", IfUnmodifiedSince=datetime(2015, 1, 1, tzinfo=UTC))[0] == 412


def test_overrides_are_for_signed_requests(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="public-read")
    got = s3.get_object(Bucket=bucket, Key="k", ResponseContentType="x/y", ResponseContentDisposition="inline")
    assert got["ContentType"] == "x/y" and got["ContentDisposition"] == "inline"
    anonymous = house.client(None)
    assert anonymous.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    assert refused(anonymous.get_object, Bucket=bucket, Key="k", ResponseContentType="x/y") == (400, "InvalidRequest")


def test_an_override_cannot_split_the_answer(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert refused(s3.get_object, Bucket=bucket, Key="k", ResponseContentType="a\r\nx-evil: 1")[0] == 400


def test_a_missing_key_is_404_to_those_who_may_list(house: House, s3: Any, bucket: str) -> None:
    assert refused(s3.get_object, Bucket=bucket, Key="no") == (404, "NoSuchKey")
    assert refused(house.client(OTHER).get_object, Bucket=bucket, Key="no") == (403, "AccessDenied")
    assert refused(house.client(None).get_object, Bucket=bucket, Key="no") == (403, "AccessDenied")
    s3.put_object(Bucket=bucket, Key="mine", Body=b"x")
    assert refused(house.client(OTHER).get_object, Bucket=bucket, Key="mine") == (403, "AccessDenied")


@pytest.mark.parametrize("version", ["nonsense", "", "f" * 32, "0" * 31])
def test_a_malformed_version_id_is_400(s3: Any, bucket: str, version: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    status = refused(s3.get_object, Bucket=bucket, Key="k", VersionId=version)
    assert status == (400, "InvalidArgument")


def test_an_unknown_version_id_is_404(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    unknown = "0" * 16 + "1" * 16
    assert refused(s3.get_object, Bucket=bucket, Key="k", VersionId=unknown) == (404, "NoSuchVersion")


def test_b127_markers(s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    marker = s3.delete_object(Bucket=bucket, Key="k")["VersionId"]
    current = refusal(s3.get_object, Bucket=bucket, Key="k")
    assert current["Error"]["Code"] == "NoSuchKey" and headers(current)["x-amz-delete-marker"] == "true"
    assert headers(current)["x-amz-version-id"] == marker
    for call in (s3.get_object, s3.head_object):
        named = refusal(call, Bucket=bucket, Key="k", VersionId=marker)
        assert named["ResponseMetadata"]["HTTPStatusCode"] == 405
        shown = headers(named)
        assert shown["x-amz-delete-marker"] == "true" and shown["allow"] == "DELETE" and shown["last-modified"]


# --- states ----------------------------------------------------------------------------------------------------------


def test_a_read_waits_for_the_verdict(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x" * 50_000)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(house.client().get_object, Bucket=bucket, Key="scan/k")
        house.wait(lambda: len(house.services.waiting) == 1)
        assert not reading.done()
        house.decide("scan/k")
        got = reading.result(10)
    assert got["Body"].read() == b"x" * 50_000 and headers(got)["x-sluice-state"] == "ready"


def test_a_verdict_that_does_not_come_is_slow_down(worker_dsn: str, s3: Any, bucket: str) -> None:
    house = House(worker_dsn, read_wait=0.1).start()
    try:
        s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x")
        error = refusal(house.client().get_object, Bucket=bucket, Key="scan/k")
        shown = headers(error)
        assert error["Error"]["Code"] == "SlowDown" and error["ResponseMetadata"]["HTTPStatusCode"] == 503
        assert int(shown["x-amz-retry-after"]) == 1000 * int(shown["retry-after"])
        assert shown["x-sluice-state"] == "scanning" and shown["x-sluice-run"]
    finally:
        house.stop()


def test_preconditions_come_before_any_wait(s3: Any, bucket: str) -> None:
    etag = s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x")["ETag"]
    assert refused(s3.get_object, Bucket=bucket, Key="scan/k", IfNoneMatch=etag)[0] == 304
    assert refused(s3.get_object, Bucket=bucket, Key="scan/k", IfMatch='"x"')[0] == 412


@pytest.mark.parametrize("prefix", ["bad", "broken"])
def test_what_is_held_back_is_refused_with_its_reason(house: House, s3: Any, bucket: str, prefix: str) -> None:
    s3.put_object(Bucket=bucket, Key=f"{prefix}/k", Body=b"x")
    expected = {"bad": (403, "ObjectQuarantined", "malware"), "broken": (422, "ProcessingFailed", "internal")}[prefix]
    house.wait(lambda: refused(s3.get_object, Bucket=bucket, Key=f"{prefix}/k") == expected[:2])
    error = refusal(s3.get_object, Bucket=bucket, Key=f"{prefix}/k")
    assert error["Error"]["Reason"] == expected[2] and headers(error)["x-sluice-code"] == expected[2]
    assert refused(s3.head_object, Bucket=bucket, Key=f"{prefix}/k")[0] == expected[0]
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_a_pinned_read_is_served_though_the_key_was_overwritten(house: House, s3: Any, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"first")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(house.client().get_object, Bucket=bucket, Key="scan/k")
        house.wait(lambda: len(house.services.waiting) == 1)
        first = max(house.engine.runs)
        s3.put_object(Bucket=bucket, Key="scan/k", Body=b"second")
        house.run(house.decide_run(first, Verdict.READY))
        assert reading.result(10)["Body"].read() == b"first"


def test_a_blocked_overwrite_leaves_what_was_verified_before(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"good")
    house.decide("scan/k")
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"evil")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(house.client().get_object, Bucket=bucket, Key="scan/k")
        house.wait(lambda: len(house.services.waiting) == 1)
        house.decide("scan/k", Verdict.QUARANTINED)
        got = reading.result(10)
    assert got["Body"].read() == b"good" and headers(got)["x-sluice-newer"] == "quarantined"


def test_while_scanning_previous_gives_the_last_ready_version(house: House, s3: Any, bucket: str) -> None:
    found = house.run(house.services.buckets.get(bucket))
    assert found is not None
    house.run(house.services.buckets.set_config(found, {"while_scanning": "previous"}))
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"old")
    house.decide("scan/k")
    s3.put_object(Bucket=bucket, Key="scan/k", Body=b"new")
    assert s3.get_object(Bucket=bucket, Key="scan/k")["Body"].read() == b"old"


def test_too_many_waiters_are_turned_away(worker_dsn: str, s3: Any, bucket: str) -> None:
    house = House(worker_dsn, max_waiters=1).start()
    try:
        s3.put_object(Bucket=bucket, Key="scan/k", Body=b"x")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(house.client().get_object, Bucket=bucket, Key="scan/k")
            house.wait(lambda: len(house.services.waiting) == 1)
            assert refused(house.client().get_object, Bucket=bucket, Key="scan/k") == (503, "SlowDown")
            house.run(house.services.pool.execute("UPDATE version SET state = 2 WHERE key = 'scan/k'"))
            first.result(15)
    finally:
        house.stop()


# --- content that is not there -----------------------------------------------------------------------------------


def test_a_blob_that_is_gone_is_an_error_before_the_head(house: House, s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"u" * 40_001)
    s3.get_object(Bucket=bucket, Key="k")["Body"].read()
    gone: BlobId = next(blob for blob, data in house.tiers["standard"].blobs.items() if data == b"u" * 40_001)
    del house.tiers["standard"].blobs[gone]
    assert refused(s3.get_object, Bucket=bucket, Key="k") == (500, "InternalError")


class Short:
    """Says it has more than it gives."""

    length = 3 << 20

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    async def __aiter__(self) -> Any:
        yield b"v" * (1 << 20)
        yield b"v" * (1 << 20)
        if self.fails:
            raise BlobCorrupt("half of it is gone")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("fails", [True, False])
def test_a_body_that_turns_out_short_never_ends_as_whole(
    house: House, s3: Any, bucket: str, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"v" * (3 << 20))

    async def short(*_: Any) -> Short:
        return Short(fails)

    monkeypatch.setattr(Blobs, "open", short)
    got = s3.get_object(Bucket=bucket, Key="k")
    with pytest.raises((ResponseStreamingError, IncompleteReadError)):
        got["Body"].read()
