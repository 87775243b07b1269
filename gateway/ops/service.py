"""The service: whose buckets there are."""

from __future__ import annotations

from gateway.domain.objects import Account
from gateway.http.reply import Reply, document
from gateway.s3 import messages, tokens
from gateway.s3.call import Call
from gateway.s3.errors import invalid_argument
from gateway.services import Services

MAX_BUCKETS = 10_000
NOBODY = Account(0, "", "", "", "", False)


async def list_buckets(call: Call, sv: Services) -> Reply:
    """The caller's buckets by name. Paged only when max-buckets is given, as S3 does; nobody's for the anonymous."""
    text = call.query.get("max-buckets")
    if text is not None and (not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_BUCKETS):
        message = f"Argument max-buckets must be an integer between 1 and {MAX_BUCKETS}"
        raise invalid_argument("max-buckets", text, message)
    prefix = call.query.get("prefix")
    token = call.query.get("continuation-token")
    after = tokens.decode(token).decode("utf-8", "replace") if token else ""
    account = call.caller.account
    if account is None:
        return document(messages.list_buckets(NOBODY, [], prefix=prefix))
    page = await sv.buckets.list(
        account.id,
        prefix=prefix or "",
        after=after,
        limit=MAX_BUCKETS if text is None else int(text),
        location=call.query.get("bucket-region"),
    )
    home = sv.settings.region
    entries = [messages.BucketEntry(each.name, each.created, each.region(home)) for each in page.buckets]
    following = tokens.encode(page.last.encode()) if page.truncated and page.last is not None else None
    return document(messages.list_buckets(account, entries, prefix=prefix, next_token=following))
