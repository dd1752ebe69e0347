"""Commands as bytes of the Redis protocol.

redis-py packs each word by itself, which took a fifth of the time of a lock. A measurement is in python/bench/acquire.py.
"""

from __future__ import annotations

from typing import Sequence

from portcullis_lock._request import Command


def pack(commands: Sequence[Command]) -> bytes:
    """The bytes of these commands, in this order. Raises TypeError if a word is neither text nor an integer."""
    parts: list[str] = []
    for command in commands:
        parts.append(f"*{len(command)}\r\n")
        for word in command:
            if type(word) is not str:
                word = str(word) if type(word) is int else _text(word)
            size = len(word) if word.isascii() else len(word.encode("utf-8", "surrogateescape"))
            parts.append(f"${size}\r\n{word}\r\n")
    return "".join(parts).encode("utf-8", "surrogateescape")


def _text(word: object) -> str:
    if isinstance(word, bytes):
        return word.decode("utf-8", "surrogateescape")
    if isinstance(word, int) and not isinstance(word, bool):
        return str(int(word))
    if isinstance(word, str):
        return str.__str__(word)
    raise TypeError(f"{word!r} cannot be sent to the server: it is neither text nor an integer")
