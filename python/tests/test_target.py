"""URLs and clients."""

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel

import portcullis_lock
from portcullis_lock import _target, errors


def options(url, **given):
    return dict(_target.parse(url, given).options)


def test_the_forms_of_urls():
    assert _target.parse("redis://localhost", {}).nodes == (("localhost", 6379),)
    assert _target.parse("redis://", {}).nodes == (("127.0.0.1", 6379),)
    assert _target.parse("redis://[::1]:7000/", {}).nodes == (("::1", 7000),)
    assert options("redis://us%40er:p%3Aa:ss%2f@h:1/12?client_name=w") == {"username": "us@er", "password": "p:a:ss/", "client_name": "w", "db": 12}
    assert options("redis://:secret@h", db="3", ssl_ca_certs="x") == {"password": "secret", "db": 3, "ssl_ca_certs": "x"}
    several = _target.parse("rediss://u:p@a,b:7001,[::1]:7002/3", {})
    assert several.nodes == (("a", 6379), ("b", 7001), ("::1", 7002)) and several.tls and not several.is_single
    sentinel = _target.parse("redis+sentinel://:p@a,b:7001/mymaster/2", {})
    assert sentinel.sentinels == (("a", 26379), ("b", 7001)) and sentinel.service == "mymaster"
    assert sentinel.options == {"password": "p", "db": 2} and sentinel.sentinel_options == {"password": "p"}
    unix = _target.parse("unix:///run/p.sock?db=2", {})
    assert unix.path == "/run/p.sock" and unix.options == {"db": 2} and unix.is_single


@pytest.mark.parametrize(
    "url, says",
    [
        ("", "The forms are redis://"), ("localhost:6379", "The forms are"), ("http://a", "The forms are"), ("redis://a:x", "the port in 'a:x'"),
        ("redis://a/x", "the database 'x'"), ("redis://a?b=c", "unknown parameter 'b'"), ("redis+sentinel://a", "names no service"), ("unix://", "no path"),
    ],
)  # fmt: skip
def test_a_wrong_url_is_refused(url, says):
    with pytest.raises(ValueError, match=says):
        _target.parse(url, {})


def test_clients_give_their_address_and_login_and_not_their_retries():
    client = redis.Redis(host="h", port=1, db=2, password="p", socket_timeout=9, decode_responses=True)
    assert _target.of_client(client) == _target.Target(nodes=(("h", 1),), options={"db": 2, "password": "p"})
    assert _target.of_client(redis.Redis(unix_socket_path="/s")).path == "/s"
    tls = _target.of_client(redis.Redis(host="h", ssl=True, ssl_ca_certs="ca.pem"))
    assert tls.tls and tls.options["ssl_ca_certs"] == "ca.pem"
    assert _target.of_client(redis.asyncio.Redis.from_url("rediss://h:5")).tls
    master = Sentinel([("a", 1), ("b", 2)], sentinel_kwargs={"password": "s"}).master_for("m", password="p")
    found = _target.of_client(master)
    assert (found.sentinels, found.service) == ((("a", 1), ("b", 2)), "m")
    assert found.options["password"] == "p" and found.sentinel_options["password"] == "s"


def test_error_replies_become_errors():
    def error(text):
        return errors.from_reply(redis.exceptions.ResponseError(text), "r")

    held = error("NOTHELD lock 'a' is not held by 'x': its lease ended 4 ms ago")
    assert isinstance(held, errors.NotHeldError) and held.cause == "its lease ended 4 ms ago" and held.lock_name == "r"
    stale = error("STALE token 33 is behind 34 for 'r'")
    assert isinstance(stale, errors.StaleTokenError) and (stale.token, stale.seen) == (33, 34)
    assert type(error("WRONGTYPE Operation")) is errors.ReplyError
    cycle = errors.cycle_of("'x' waits for 'b' held by 'y', who waits for 'a' asked for before by 'x'")
    assert cycle == [errors.Wait("x", "b", "y", True), errors.Wait("y", "a", "x", False)]
    cycle = errors.cycle_of("'x' waits for 'b' held by 'y', who waits for a lock that you may not see behind 'x'")
    assert cycle == [errors.Wait("x", "b", "y", True), errors.Wait("y", "", "x", False)]
    cycle = errors.cycle_of("'x' waits for 'b' held by 'y', who waits for locks that are not shown here behind 'x'")
    assert cycle == [errors.Wait("x", "b", "y", True), errors.Wait("y", "", "x", False)]
    assert errors.cycle_of("'it' waits for 'x' waits for 'y'") == []


@pytest.mark.parametrize("connect", [portcullis_lock.connect, portcullis_lock.aio.connect])
def test_what_is_no_url_is_refused(connect):
    with pytest.raises(TypeError, match="is None: an environment variable may not be set. It is a str. The forms are redis://"):
        connect(None)
    with pytest.raises(TypeError, match=r"connect\(\) takes a URL, and not a client.*portcullis_lock.over\(client\)"):
        connect(redis.Redis())
    with pytest.raises(TypeError, match="the URL of the server is b'redis://a'"):
        connect(b"redis://a")


def test_a_wrong_argument_is_said_of_what_was_called():
    locks = portcullis_lock.connect()
    with pytest.raises(TypeError, match=r"^Locks.lock\(\) got an unexpected keyword argument 'ttl'"):
        locks.lock("a", ttl=5)


def test_an_unknown_option_is_refused_at_once():
    with pytest.raises(TypeError, match="connect\\(\\) got an unexpected option 'lease'"):
        portcullis_lock.connect(lease=5)
    for option in ("db", "username", "password", "client_name", "ssl_ca_certs", "socket_keepalive", "credential_provider"):
        portcullis_lock.connect(**{option: None} if option != "db" else {"db": 1})


@pytest.mark.parametrize("connect", [portcullis_lock.connect, portcullis_lock.aio.connect])
def test_a_protocol_without_pushes_is_refused(connect):
    with pytest.raises(ValueError, match="protocol is 2; it can only be 3"):
        connect("redis://127.0.0.1", protocol=2)
    connect("redis://127.0.0.1", protocol=3)
