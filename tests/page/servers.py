"""A server with its page, and clients of its sockets."""

import base64
import http.client
import json
import pathlib
import socket
import subprocess
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One server on free ports of the loopback interface."""

    def __init__(self, program, *settings):
        self.program, self.settings = program, settings
        self.port, self.http = free_port(), free_port()
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http}/"

    @property
    def address(self):
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self):
        ports = ["--port", str(self.port), "--bind", "127.0.0.1", "--http", f"127.0.0.1:{self.http}"]
        self.process = subprocess.Popen([self.program, "serve", *ports, *self.settings], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while not all(map(self.accepts, (self.port, self.http))):
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.end()
                raise SystemExit(f"the server does not start: {self.process.stderr.read().decode(errors='replace')[-2000:]}")
            time.sleep(0.02)

    @staticmethod
    def accepts(port):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            return False

    def end(self):
        self.process.kill()
        self.process.wait()

    def client(self, name=None):
        return Client(self.port, name)

    def request(self, path, password=None, method="GET", body=None, headers=None):
        """The status, the headers and the body of an answer."""
        headers = dict(headers or {})
        if password is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(f"default:{password}".encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=10)
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()


class Nodes:
    """Replicated servers that elect a leader, each with its page. They are numbered from 1."""

    def __init__(self, program, folder, count):
        peers = ",".join(f"{number}=127.0.0.1:{free_port()}" for number in range(1, count + 1))
        self.all = {}
        for number in range(1, count + 1):
            place = pathlib.Path(folder) / str(number)
            place.mkdir()
            self.all[number] = Server(program, "--node-id", str(number), "--peers", peers, "--dir", place)

    def end(self):
        for node in self.all.values():
            node.end()

    def status(self, number):
        """What a node knows of the cluster."""
        return json.loads(self.all[number].request("/api/figures")[2])

    def leader(self, among=None):
        """The number of the node that leads, once one does and all of these vote."""
        among = among or list(self.all)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            known = {number: self.status(number) for number in among}
            leads = [number for number, told in known.items() if told["server"]["role"] == "master"]
            voters = [node["node"] for node in known[leads[0]]["cluster"] if node["vote"]] if leads else []
            if len(leads) == 1 and set(among) <= set(voters):
                self.term = self.last_term()
                return leads[0]
            time.sleep(0.05)
        raise RuntimeError(f"no node of {among} leads")

    def last_term(self):
        """The last term that a node knows. Each election begins another one."""
        terms = [0]
        for node in self.all.values():
            if node.process.poll() is None:
                client = node.client()
                status = client.ask("NODE", "STATUS")
                terms.append(status[status.index("term") + 1])
                client.close()
        return max(terms)

    def has_moved(self):
        """Whether there was an election since the leader was asked for, as on a machine that is too busy for heartbeats."""
        return self.last_term() != self.term


class Client:
    """A connection that speaks RESP2."""

    def __init__(self, port, name=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.answers = self.socket.makefile("rb")
        if name is not None:
            self.ask("CLIENT", "SETNAME", name)

    def send(self, *words):
        """Sends a command without waiting for its reply."""
        self.socket.sendall(encoded(words))

    def reply(self):
        line = self.answers.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.answers.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"+":
            return rest.decode()
        raise RuntimeError(f"the server sent {line!r}")

    def ask(self, *words):
        self.send(*words)
        return self.reply()

    def ask_all(self, commands):
        """Sends many commands at once."""
        replies = []
        for at in range(0, len(commands), 1000):
            part = commands[at : at + 1000]
            self.socket.sendall(b"".join(map(encoded, part)))
            replies += [self.reply() for _ in part]
        return replies

    def waiting(self):
        """Number of clients that wait for locks."""
        lines = self.ask("INFO", "locks").splitlines()
        return next(int(line.split(":")[1]) for line in lines if line.startswith("lock_waiters:"))

    def until_waiting(self, number):
        """Returns once that many clients wait."""
        deadline = time.monotonic() + 20
        while self.waiting() != number:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.waiting()} clients wait, not {number}")
            time.sleep(0.002)

    def close(self):
        # The file has the descriptor, too.
        self.answers.close()
        self.socket.close()


def encoded(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
