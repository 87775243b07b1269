"""Checksums of multipart uploads: what create, part and complete may say, and what the parts add up to.

S3 reference, "Checking object integrity", CreateMultipartUpload, UploadPart and CompleteMultipartUpload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.checksums import (
    COMPOSITE,
    DEFAULT,
    FULL_OBJECT,
    Algorithm,
    Wanted,
    bare,
    chosen_algorithm,
    decode,
    encode,
    invalid_value,
    mismatch,
    requested,
    validate,
    value_header,
)
from gateway.domain.fields import Fields
from gateway.s3.errors import S3Error


@dataclass(frozen=True, slots=True)
class UploadChecksum:
    """What a multipart upload was created with. declared: by the client; else the default."""

    algorithm: Algorithm = DEFAULT
    type: str = FULL_OBJECT
    declared: bool = False


@dataclass(frozen=True, slots=True)
class PartChecksum:
    """A part's checksum (base64) and size in bytes."""

    value: str
    size: int


def for_upload(headers: Fields) -> UploadChecksum:
    """CreateMultipartUpload's x-amz-checksum-algorithm and -type, in any case. Raises InvalidRequest."""
    algorithm = chosen_algorithm(headers)
    kind = headers.get("x-amz-checksum-type")
    if kind is not None:
        kind = kind.strip().upper()
        if kind not in (FULL_OBJECT, COMPOSITE):
            raise S3Error("InvalidRequest", invalid_value("x-amz-checksum-type"))
        if algorithm is None:
            raise S3Error(
                "InvalidRequest",
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )
    if algorithm is None:
        return UploadChecksum()
    if kind is None:
        kind = algorithm.types[0]
    if kind not in algorithm.types:
        raise S3Error(
            "InvalidRequest",
            f"The {kind} checksum type cannot be used with the {algorithm.name} checksum algorithm.",
        )
    return UploadChecksum(algorithm, kind, True)


def for_part(headers: Fields, upload: UploadChecksum) -> Wanted:
    """What UploadPart asks for; its algorithm must be the upload's, when both were chosen.

    Parts of a composite upload must carry the checksum. The upload's own algorithm is always computed: see
    algorithms(). Raises as requested() does, InvalidRequest for another algorithm or a missing one.
    """
    wanted = requested(headers)
    if upload.declared and (wanted.declared or upload.type == COMPOSITE) and wanted.algorithm is not upload.algorithm:
        actual = wanted.algorithm.name if wanted.declared else "null"
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm.name}, "
            f"actual checksum Type: {actual}",
        )
    if wanted.declared:
        return wanted
    return Wanted(upload.algorithm, md5=wanted.md5)


def algorithms(wanted: Wanted, upload: UploadChecksum) -> tuple[Algorithm, ...]:
    """What to compute over a part: the algorithm the client checks by, and the upload's where that is another one
    (an upload created without an algorithm becomes CRC64NVME, whatever its parts were sent with)."""
    return (wanted.algorithm,) if wanted.algorithm is upload.algorithm else (wanted.algorithm, upload.algorithm)


def for_complete(headers: Fields, upload: UploadChecksum) -> str | None:
    """The checksum that CompleteMultipartUpload says the object must have (a composite may carry its "-N"), or None.

    Raises InvalidRequest for another algorithm or type than the upload's, and for a malformed value.
    """
    kind = headers.get("x-amz-checksum-type")
    if kind is not None and kind.strip().upper() != upload.type:
        raise S3Error(
            "InvalidRequest",
            f"The upload was created using the {upload.type} checksum mode. "
            "The complete request must use the same checksum mode.",
        )
    algorithm, value = value_header(headers)
    if algorithm is None or value is None:
        return None
    if algorithm is not upload.algorithm:
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm.name}, "
            f"actual checksum Type: {algorithm.name}",
        )
    validate(algorithm, bare(value) if upload.type == COMPOSITE else value, algorithm.header)
    return value


def whole(upload: UploadChecksum, parts: Sequence[PartChecksum]) -> str:
    """The object's checksum from those of its parts, in order."""
    if upload.type == COMPOSITE:
        return composite(upload.algorithm, [part.value for part in parts])
    return combined(upload.algorithm, parts)


def check_whole(expected: str | None, actual: str, upload: UploadChecksum) -> None:
    """Raises BadDigest when the client expected another checksum; a composite may be given without its "-N"."""
    if expected is not None and expected != actual and not (upload.type == COMPOSITE and expected == bare(actual)):
        raise mismatch(upload.algorithm, expected, actual)


def composite(algorithm: Algorithm, values: Sequence[str]) -> str:
    """base64(hash(the digests of the parts, concatenated)) and the number of parts."""
    hasher = algorithm.start()
    hasher.update(b"".join(decode(algorithm, value) for value in values))
    return f"{encode(hasher.digest())}-{len(values)}"


def combined(algorithm: Algorithm, parts: Sequence[PartChecksum]) -> str:
    """The CRC of the parts' bytes one after the other, from their CRCs. Raises ValueError for a hash."""
    if algorithm.combine is None:
        raise ValueError(f"{algorithm.name} of parts cannot be combined")
    total = 0
    for part in parts:
        total = algorithm.combine(total, int.from_bytes(decode(algorithm, part.value), "big"), part.size)
    return encode(total.to_bytes(algorithm.size, "big"))
