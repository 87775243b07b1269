"""Shorthands for asking boto3 things that are meant to be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError


def refused(call: Callable[..., Any], **arguments: Any) -> tuple[int, str]:
    """(status, code) of the error that call ends in."""
    error = refusal(call, **arguments)
    return error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"]


def refusal(call: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The whole error response."""
    try:
        call(**arguments)
    except ClientError as error:
        return dict(error.response)
    raise AssertionError("the call was answered")


def headers(answer: dict[str, Any]) -> dict[str, str]:
    return dict(answer["ResponseMetadata"]["HTTPHeaders"])


def sent(client: Any, operation: str, **extra: str) -> Any:
    """The client, adding headers to each request of an operation."""

    def add(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(extra)

    client.meta.events.register(f"before-call.s3.{operation}", add)
    return client
