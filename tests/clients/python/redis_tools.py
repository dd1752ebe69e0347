"""redis-cli and redis-benchmark, as people use them; both speak by the hiredis they carry."""

import json
import subprocess
import tempfile

from suite import HOST, PORT, PROTOCOL, case, main

CLI = ["redis-cli", "-h", HOST, "-p", str(PORT)] + (["-3"] if PROTOCOL == 3 else [])


def run(*command, stdin=None, seconds=60):
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{command}: {done.returncode} {done.stdout} {done.stderr}"
    assert "error" not in done.stderr.lower(), done.stderr
    return done.stdout


def cli(*args, stdin=None):
    return run(*CLI, *args, stdin=stdin)


@case
def single_commands():
    assert cli("SET", "lock", "me", "NX", "PX", "10000") == "OK\n"
    assert cli("SET", "lock", "you", "NX", "PX", "10000") == "\n"
    assert cli("GET", "lock") == "me\n"
    assert cli("--no-raw", "HSET", "h", "a", "1", "b", "2") == "(integer) 2\n"
    expected = '1# "a" => "1"\n2# "b" => "2"\n' if PROTOCOL == 3 else '1) "a"\n2) "1"\n3) "b"\n4) "2"\n'
    assert cli("--no-raw", "HGETALL", "h") == expected
    assert json.loads(cli("--json", "HGETALL", "h")) in ({"a": "1", "b": "2"}, ["a", "1", "b", "2"])
    assert cli("-x", "SET", "big", stdin="x" * 100_000) == "OK\n" and cli("STRLEN", "big") == "100000\n"
    assert "ERR unknown command" in cli("NONSENSE")


@case
def sessions():
    replies = cli(stdin="MULTI\nINCR n\nINCR n\nEXEC\nBLPOP none 0.1\nSELECT 3\nPING\n").splitlines()
    assert replies[:5] == ["OK", "QUEUED", "QUEUED", "1", "2"] and replies[-2:] == ["OK", "PONG"], replies


@case
def scripts():
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write("return {KEYS[1], ARGV[1], redis.call('INCRBY', KEYS[1], ARGV[1])}")
        script.flush()
        assert cli("--eval", script.name, "counter", ",", "5") == "counter\n5\n5\n"


@case
def mass_insertion():
    commands = "".join(f"SET mass:{i} {i}\n" for i in range(20_000))
    assert "errors: 0, replies: 20000" in cli("--pipe", stdin=commands)
    assert cli("DBSIZE") == "20000\n"
    assert len(set(cli("--scan", "--pattern", "mass:*").split())) == 20_000


@case
def surveys():
    cli("RPUSH", "list", *map(str, range(100)))
    cli("SADD", "set", *map(str, range(50)))
    cli("ZADD", "zset", "1", "a", "2", "b")
    cli("XADD", "stream", "1-1", "f", "v")
    found = cli("--bigkeys")
    for line in ("1 lists with 100 items", "1 sets with 50 members", "1 zsets with 2 members", "1 streams with 1 entries"):
        assert line in found, found
    assert "list" in cli("--memkeys")


@case
def introspection():
    assert "redis_version:" in cli("INFO", "server")
    assert int(cli("COMMAND", "COUNT")) > 200
    assert "default" in cli("ACL", "LIST")


def benchmark(*args):
    protocol = ["-3"] if PROTOCOL == 3 else []
    out = run("redis-benchmark", "-h", HOST, "-p", str(PORT), *protocol, "-q", "-n", "2000", *args, seconds=120)
    assert "requests per second" in out and "rror" not in out, out
    return out


@case
def benchmarks_of_every_command():
    out = benchmark("-c", "50", "-r", "1000")
    for name in ("PING_MBULK", "SET", "GET", "INCR", "LPUSH", "RPUSH", "LPOP", "RPOP", "SADD", "HSET", "SPOP", "ZADD", "ZPOPMIN", "LRANGE_600", "MSET"):
        assert f"{name}" in out, f"{name} is missing: {out}"


@case
def benchmarks_in_pipelines_and_threads():
    benchmark("-c", "20", "-P", "16", "-t", "set,get,incr,lpush,sadd,zadd")
    benchmark("-c", "20", "--threads", "2", "-t", "set,get")
    benchmark("-c", "10", "EVAL", "return redis.call('incr', KEYS[1])", "1", "counter")


main(before_each=lambda: cli("FLUSHALL"))
