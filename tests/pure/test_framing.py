"""Where messages end, whatever the pieces they come in."""

from __future__ import annotations

import pytest

from gateway.http.framing import SLACK, WASTE, Framing

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def pieces(framing: Framing, data: bytes) -> list[bytes]:
    found = []
    while data:
        end = framing.cut(data)
        found.append(data[:end])
        data = data[end:]
    return found


@pytest.mark.parametrize("at", range(1, len(HEAD)))
def test_a_head_ends_wherever_it_is_cut(at: int) -> None:
    framing = Framing()
    assert framing.cut(HEAD[:at]) == at
    assert framing.head == at
    assert framing.cut(HEAD[at:] + b"GET") == len(HEAD) - at
    framing.opened(0)
    assert framing.head == 0


def test_byte_by_byte() -> None:
    framing = Framing()
    for at in range(len(HEAD)):
        assert framing.cut(HEAD[at : at + 1]) == 1
    assert framing.head == len(HEAD)


def test_messages_behind_each_other() -> None:
    framing = Framing()
    assert pieces(framing, HEAD + HEAD + b"GET /") == [HEAD, HEAD, b"GET /"]


def test_a_body_ends_where_it_was_said() -> None:
    framing = Framing()
    assert framing.cut(HEAD + b"hello" + HEAD) == len(HEAD)
    framing.opened(5)
    assert framing.cut(b"he") == 2
    assert framing.cut(b"llo" + HEAD) == 3
    assert framing.left == 0
    assert framing.cut(HEAD) == len(HEAD)


def test_only_the_parser_knows_where_chunks_end() -> None:
    framing = Framing()
    framing.cut(HEAD)
    framing.opened(None)
    assert framing.cut(b"5\r\nhello\r\n0\r\n\r\nGET") == 18
    framing.closed(b"5\r\nhello\r\n0\r\n\r\nGET")
    assert framing.head, "the beginning of the next head is known to be here"
    framing.opened(None)
    framing.closed(b"0\r\n\r\n")
    assert not framing.head


def test_how_much_of_a_chunked_body_may_be_no_body() -> None:
    framing = Framing()
    framing.opened(None)
    framing.cut(b"x" * SLACK)
    assert not framing.padded(0)
    framing.cut(b"x" * WASTE)
    assert framing.padded(0)
    assert not framing.padded(1)
