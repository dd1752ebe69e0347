"""A network between clients and a server that can fall silent, and close connections."""

import socket
import threading
import time


class Proxy:
    """Listens on a port of its own. While it is silent, connections stand and nothing gets through; what was sent arrives later. It ends with the
    `with` block."""

    def __init__(self, target, port=0):
        self.target, self.is_silent, self.is_closed = target, False, False
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_silent = False
        self.close()

    def close(self):
        """Closes everything, and refuses connections from now on. May be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        # A thread in `accept` keeps the port open.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _accept(self):
        while not self.is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near):
        # As a kernel, it accepts for a server that stands still.
        self._wait()
        far = socket.create_connection(("127.0.0.1", self.target))
        self._sockets += [near, far]
        threading.Thread(target=self._pump, args=(far, near), daemon=True).start()
        self._pump(near, far)

    def _wait(self):
        while self.is_silent:
            time.sleep(0.002)

    def _pump(self, source, sink):
        try:
            while data := source.recv(65536):
                self._wait()
                sink.sendall(data)
        except OSError:
            pass
        self._wait()
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
