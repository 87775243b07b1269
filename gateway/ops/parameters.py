"""Query parameters of listings."""

from __future__ import annotations

from gateway.db.listing import Owner
from gateway.domain.objects import Account
from gateway.s3.call import Call
from gateway.s3.errors import invalid_argument

PAGE = 1000  # the most entries S3 puts on a page
MAX_INT = 2**31 - 1


def count(call: Call, name: str, default: int = PAGE, most: int = PAGE) -> int:
    """A number of entries: at least 0, cut to most. Raises InvalidArgument."""
    return min(number(call, name, default), most)


def number(call: Call, name: str, default: int) -> int:
    """Raises InvalidArgument for what is no integer from 0 to 2**31 - 1."""
    text = call.query.get(name)
    if not text:
        return default
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        raise invalid_argument(name, text, f"Argument {name} must be an integer between 0 and {MAX_INT}")
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > MAX_INT:
        raise invalid_argument(name, text, f"Provided {name} not an integer or within integer range")
    return int(text)


def text(call: Call, name: str) -> bytes:
    """A key, prefix or delimiter, as bytes; empty when it is absent."""
    return (call.query.get(name) or "").encode()


def url_encoding(call: Call) -> bool:
    """Whether keys are to be percent-encoded. Raises InvalidArgument for any other encoding."""
    given = call.query.get("encoding-type")
    if given is not None and given != "url":
        raise invalid_argument("encoding-type", given, "Invalid Encoding Method specified in Request")
    return given == "url"


class Accounts:
    """Owners of entries as documents want them; a page has few."""

    def __init__(self) -> None:
        self._known: dict[int, Account] = {}

    def __call__(self, owner: Owner | None) -> Account | None:
        if owner is None:
            return None
        account = self._known.get(owner.id)
        if account is None:
            account = Account(owner.id, owner.canonical_id, "", owner.display_name, "", False)
            self._known[owner.id] = account
        return account
