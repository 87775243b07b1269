from __future__ import annotations

import pytest

from gateway.s3.errors import AWS, ERRORS, OWN, S3Error, invalid_argument


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_rows_are_sound(code: str) -> None:
    status, message = ERRORS[code]
    assert 300 <= status < 600
    assert message
    error = S3Error(code)
    assert (error.code, error.status, error.message) == (code, status, message)


def test_own_codes_are_not_amazons() -> None:
    assert not set(AWS) & set(OWN)
    assert OWN["ObjectQuarantined"][0] == 403
    assert OWN["ProcessingFailed"][0] == 422
    assert AWS["SlowDown"][0] == 503


def test_b223_only_what_may_pass_later_is_5xx() -> None:
    server = {code for code, (status, _) in ERRORS.items() if status >= 500}
    assert server == {"InternalError", "NotImplemented", "ServiceUnavailable", "SlowDown"}


def test_elements_message_status_and_headers() -> None:
    error = S3Error("NoSuchKey", Key="a", VersionId=None, Size=5)
    assert error.elements == {"Key": "a", "Size": "5"}
    error = S3Error("InvalidRequest", "why", status=409, headers={"Allow": "GET"}, more={"Token-0": "t"}, B="b")
    assert (error.message, error.status, error.headers) == ("why", 409, {"Allow": "GET"})
    assert list(error.elements.items()) == [("Token-0", "t"), ("B", "b")]
    assert str(error) == "InvalidRequest: why"


def test_an_unknown_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        S3Error("NoSuchThing")


def test_bytes_that_are_no_text_do_not_reach_a_document() -> None:
    error = invalid_argument("x", "a\udcffb", "m\udcff")
    assert error.elements["ArgumentValue"] == "a�b"
    assert error.message == "m�"
