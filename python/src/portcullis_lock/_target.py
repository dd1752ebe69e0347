"""Where the server is: parsed from a URL, or taken over from a redis-py client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.connection import SSLConnection, UnixDomainSocketConnection

from portcullis_lock._link import known_options

Node = Tuple[str, int]

URL_FORMS = """redis://[user][:password]@host[:port][/db], redis://a:7000,b:7000,c:7000 (the nodes of a replicated server),
redis+sentinel://a:26379,b:26379/service[/db], unix:///path/to.sock[?db=2]; rediss:// and rediss+sentinel:// for TLS"""

# Parameters of redis-py's connections that say where and as whom to connect. The others (its retries, time-outs, decoding) are not taken over.
_KEPT = ("db", "username", "password", "credential_provider", "client_name")


@dataclass(frozen=True)
class Target:
    """The addresses of a server, and how to connect to each."""

    nodes: Sequence[Node] = ()
    path: Optional[str] = None
    """Path of a Unix socket, instead of nodes."""
    sentinels: Sequence[Node] = ()
    service: str = ""
    tls: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of redis-py's connections."""
    sentinel_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_single(self) -> bool:
        """Whether there is one address, so that no search for a leader is needed."""
        return self.path is not None or (len(self.nodes) == 1 and not self.sentinels)

    def __str__(self) -> str:
        if self.path:
            return self.path
        return ", ".join(f"{host}:{port}" for host, port in self.sentinels or self.nodes)


def parse(url: str, options: Mapping[str, Any]) -> Target:
    """Parses a URL. `options` are further arguments of redis-py's connections, such as `ssl_ca_certs`. Raises ValueError."""
    if not isinstance(url, str):
        if hasattr(url, "connection_pool") or hasattr(url, "nodes_manager"):
            raise TypeError(f"connect() takes a URL, and not a client. For a client of redis-py there is portcullis_lock.over(client), or aio.over(client): {url!r}")
        hint = ": an environment variable may not be set" if url is None else ""
        raise TypeError(f"the URL of the server is {url!r}{hint}. It is a str. The forms are {URL_FORMS}")
    for option in options:
        if option not in known_options(SSLConnection) | known_options(UnixDomainSocketConnection):
            raise TypeError(f"connect() got an unexpected option '{option}'. It takes timeout, retry_for, idle_max, and those of redis-py's connections")
    if str(options.get("protocol", 3)) != "3":
        raise ValueError(f"protocol is {options['protocol']!r}; it can only be 3: the server tells of lost locks by pushes, which older protocols do not have")
    scheme, colon, _ = url.partition(":")
    tls = scheme.startswith("rediss")
    if not colon or scheme not in ("redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix", "redis+unix"):
        raise ValueError(f"'{url}' is not the URL of a server. The forms are {URL_FORMS}")
    parts = urlsplit(url)
    known = {"username", "user", "password", "db", "client_name", "name"}
    query = dict(parse_qsl(parts.query))
    for key in query:
        if key not in known and not key.startswith("ssl_"):
            raise ValueError(f"unknown parameter '{key}' in the URL. Known are {', '.join(sorted(known))} and ssl_…")
    found: dict[str, Any] = {key: value for key, value in query.items() if key.startswith("ssl_")}
    found["username"] = query.get("username", query.get("user"))
    found["password"] = query.get("password")
    found["client_name"] = query.get("client_name", query.get("name"))
    found["db"] = query.get("db")
    login, _, hosts = parts.netloc.rpartition("@")
    if login:
        user, _, password = login.partition(":")
        found["username"], found["password"] = unquote(user) or None, unquote(password) or None
    segments = [unquote(part) for part in parts.path.split("/") if part]
    if scheme in ("unix", "redis+unix"):
        path = unquote(parts.netloc.rpartition("@")[2] + parts.path)
        if not path:
            raise ValueError(f"'{url}' has no path. The forms are {URL_FORMS}")
        return Target(path=path, options=_merged(found, options))
    if scheme.endswith("+sentinel"):
        if not segments:
            raise ValueError(f"'{url}' names no service: redis+sentinel://a:26379,b:26379/mymaster")
        if len(segments) > 1:
            found["db"] = segments[1]
        nodes = tuple(_node(host, 26379) for host in hosts.split(","))
        merged = _merged(found, options)
        asked = {key: value for key, value in merged.items() if key in ("username", "password") or key.startswith("ssl_")}
        return Target(sentinels=nodes, service=segments[0], tls=tls, options=merged, sentinel_options=asked)
    if segments:
        found["db"] = segments[0]
    return Target(nodes=tuple(_node(host, 6379) for host in hosts.split(",")), tls=tls, options=_merged(found, options))


def of_client(client: Any) -> Target:
    """The target of a redis-py client, synchronous or asyncio: `Redis`, a Sentinel's master, or `RedisCluster`."""
    cluster = getattr(client, "nodes_manager", None)
    if cluster is not None:
        nodes = [*cluster.startup_nodes.values(), *cluster.nodes_cache.values()]
        options = dict(getattr(cluster, "connection_kwargs", {}))
        return Target(
            nodes=tuple(dict.fromkeys((node.host, int(node.port)) for node in nodes)),
            tls=bool(options.get("ssl")) or _is_tls(options.get("connection_class")),
            options=_kept(options),
        )
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise TypeError(f"{client!r} is not a redis-py client: a redis.Redis, a redis.asyncio.Redis or a RedisCluster. For a URL there is connect(url)")
    options = dict(pool.connection_kwargs)
    tls = _is_tls(pool.connection_class)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        asked = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
        return Target(
            sentinels=tuple((kwargs["host"], int(kwargs["port"])) for kwargs in asked),
            service=pool.service_name,
            tls=tls,
            options=_kept(options),
            sentinel_options=_kept(asked[0]) if asked else {},
        )
    if "path" in options:
        return Target(path=options["path"], options=_kept(options))
    return Target(nodes=((options.get("host", "localhost"), int(options.get("port", 6379))),), tls=tls, options=_kept(options))


def _is_tls(connection_class: Any) -> bool:
    return connection_class is not None and "SSL" in connection_class.__name__


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None and (key in _KEPT or key.startswith("ssl_"))}


def _merged(found: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**{key: value for key, value in found.items() if value is not None}, **options}
    if "db" in merged:
        try:
            merged["db"] = int(merged["db"])
        except ValueError:
            raise ValueError(f"the database '{merged['db']}' is not a number") from None
    return merged


def _node(text: str, default_port: int) -> Node:
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif ":" in text:
        host, _, port = text.partition(":")
    try:
        return unquote(host) or "127.0.0.1", int(port) if port else default_port
    except ValueError:
        raise ValueError(f"the port in '{text}' is not a number") from None
