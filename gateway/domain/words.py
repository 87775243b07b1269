"""Encoded words (RFC 2047): how a header says text that is not ASCII."""

from __future__ import annotations

from base64 import b64encode

MAX_WORD = 75  # characters, delimiters included (RFC 2047, 2)
_ROOM = MAX_WORD - len("=?UTF-8?Q??=")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!*+-/")


def encode_words(value: str) -> str:
    """value itself when a header can hold it, else as encoded words, which S3 answers with.

    Mostly ASCII text is written readably (Q), other text in base64 (B). Words are cut between characters and
    joined by a blank, which decoders drop.
    """
    if value.isascii():
        return value
    readable = sum(character.isascii() for character in value) * 2 > len(value)
    words: list[str] = []
    word = ""
    for character in value:
        longer = word + character
        if word and len(_payload(longer, readable)) > _ROOM:
            words.append(word)
            word = character
        else:
            word = longer
    words.append(word)
    letter = "Q" if readable else "B"
    return " ".join(f"=?UTF-8?{letter}?{_payload(word, readable)}?=" for word in words)


def _payload(text: str, readable: bool) -> str:
    if not readable:
        return b64encode(text.encode()).decode()
    return "".join(chr(byte) if byte in _PLAIN else "_" if byte == 0x20 else f"={byte:02X}" for byte in text.encode())
