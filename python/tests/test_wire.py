"""Commands as bytes, beside what redis-py makes of them."""

import pytest
from redis.connection import Connection

from portcullis_lock._wire import pack

COMMANDS = [
    ("LOCK.ACQUIRE", "a", "host:1:2", 30_000, "REQUEST", "r:1"),
    ("LOCK.ACQUIRE", "Füße 🔒", "", 1, "WAIT", 0),
    ("LOCK.INFO", b"a\xff\x00\r\n"),
    ("LOCK.INFO", "a\udcff\r\n"),
    ("LATCH.DOWN", "parts", -3),
    ("X", 2**53, b"", "*1\r\n"),
    ("LOCK.INFO", "x" * 10_000),
]


def test_commands_are_those_of_redis_py():
    connection = Connection(encoding_errors="surrogateescape")
    for command in COMMANDS:
        assert pack([command]) == b"".join(connection.pack_command(*command)), command
    assert pack(COMMANDS) == b"".join(connection.pack_commands(COMMANDS))


@pytest.mark.parametrize("word", [None, True, 1.5, ["a"]])
def test_a_word_that_is_neither_text_nor_integer_is_refused(word):
    with pytest.raises(TypeError, match="neither text nor an integer"):
        pack([("LOCK.INFO", word)])
