"""Dates in headers and documents; HTTP knows whole seconds only."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_date(text: str) -> datetime | None:
    """An HTTP date (RFC 9110, 5.6.7) or an ISO 8601 one, which S3 takes too; None when it is neither.

    A date without a zone is UTC.
    """
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def http_date(moment: datetime) -> str:
    """An aware time as a header shows it."""
    at = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return (
        f"{DAYS[at.weekday()]}, {at.day:02} {MONTHS[at.month - 1]} {at.year:04}"
        f" {at.hour:02}:{at.minute:02}:{at.second:02} GMT"
    )


def whole_second(moment: datetime) -> datetime:
    """The time as clients know it."""
    return moment.replace(microsecond=0)


def same_second(one: datetime, other: datetime) -> bool:
    return whole_second(one) == whole_second(other)
