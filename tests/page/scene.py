"""What a check gets: servers, clients and pages that end with it."""

import tempfile

from browser import Page
from servers import Nodes, Server

JAM = 50


class Scene:
    """What a check gets: ways to start servers, clients and pages, all of which end with it."""

    def __init__(self, arguments, ends):
        self.arguments, self.ends = arguments, ends

    def server(self, *settings):
        server = Server(self.arguments.program, *settings)
        self.ends.callback(server.end)
        return server

    def nodes(self, count):
        """Replicated servers."""
        folder = self.ends.enter_context(tempfile.TemporaryDirectory(prefix="portcullis-nodes-"))
        nodes = Nodes(self.arguments.program, folder, count)
        self.ends.callback(nodes.end)
        return nodes

    def page(self, url, **options):
        return self.ends.enter_context(Page(self.arguments.browser, self.arguments.driver, url, **options))

    def client(self, server, name=None):
        client = server.client(name)
        self.ends.callback(client.close)
        return client

    def jam(self, server, name="order:42"):
        """A lock that is held, and 50 clients that wait for it."""
        holder = self.client(server, "checkout")
        token = holder.ask("LOCK.ACQUIRE", name, "worker-7", 600_000)
        crowd = [self.client(server, f"client-{i}") for i in range(JAM)]
        before = holder.waiting()
        for i, client in enumerate(crowd):
            client.send("LOCK.ACQUIRE", name, f"owner-{i}", 600_000, "WAIT", 0)
            if i == 0:
                holder.until_waiting(before + 1)  # so it is the first in the queue
        holder.until_waiting(before + JAM)
        return holder, token, crowd

    def shot(self, page, name):
        page.shot(self.arguments.shots, name)
