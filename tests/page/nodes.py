"""Checks of the pages of replicated nodes, while a leader lives and when it is lost. checks.py runs them with its own."""

import contextlib

from browser import has

# A node stands for election after about a second without its leader. The rest is for a busy machine.
ELECTION_SECONDS_MAX = 10
ATTEMPTS = 3


def table(page):
    """The rows of the table of nodes, by the number of the node."""
    rows = page.run("return [...document.querySelectorAll('#cluster tbody tr')].map(row => row.innerText.replaceAll('\\u00a0', ' '))")
    return {int(row.split()[0]): row for row in rows}


def can_be_read(scene, page, name):
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.must_contrast(f"{name}, {scheme}")
        scene.shot(page, f"{name}-{scheme}")
    page.scheme("light")
    page.must_fit(name, lambda device: scene.shot(page, f"{name}-{device}"))


def on_steady_nodes(count):
    """A check of nodes that begins again if they elect another leader without being asked to."""

    def of(check):
        def begin(scene):
            for attempt in range(ATTEMPTS):
                with contextlib.ExitStack() as ends:
                    part = type(scene)(scene.arguments, ends)
                    nodes = part.nodes(count)
                    try:
                        return check(part, nodes)
                    except (AssertionError, RuntimeError):
                        if attempt + 1 == ATTEMPTS or not nodes.has_moved():
                            raise
                        print("    the nodes have elected another leader on their own; the check begins again", flush=True)

        begin.__name__ = check.__name__
        return begin

    return of


@on_steady_nodes(3)
def the_nodes_of_a_cluster_are_shown(scene, cluster):
    cluster.leader()
    pages = {number: scene.page(node.url) for number, node in cluster.all.items()}
    leads = cluster.leader()
    first, second = (number for number in cluster.all if number != leads)
    client = scene.client(cluster.all[leads], "checkout")
    token = client.ask("LOCK.ACQUIRE", "order:42", "worker-7", 600_000)
    scene.client(cluster.all[leads]).send("LOCK.ACQUIRE", "order:42", "waiter", 600_000, "WAIT", 0)
    client.until_waiting(1)

    def address(number):
        return cluster.all[number].address

    # The leader has the locks, and knows how much of the log the others have.
    page = pages[leads]
    page.until(lambda: "1 client waits for order:42" in page.text("headline"), "the leader shows the locks")
    page.until(lambda: [table(page)[n].count("up to date") for n in (1, 2, 3)] == [1, 1, 1], "the followers have the whole log")
    has(table(page)[leads], "leader", f"{address(leads)}, this node")
    for number in (first, second):
        has(table(page)[number], "follower", "just now", address(number))
    has(page.text("cluster-note"), "All nodes answer. 1 node may be lost: a leader needs 2 of the 3 votes.")
    has(page.text("server"), f"node {leads} · leader")
    can_be_read(scene, page, "leader")
    # A follower has none, says who has them, and does not say that nobody waits.
    page = pages[first]
    page.until(lambda: page.text("headline") == f"Node {first} follows node {leads}, which has the locks.", "the follower names the leader")
    has(page.text("behind"), f"The page of node {leads} shows them. Clients reach it at {address(leads)}.")
    has(page.text("server"), f"node {first} · follower")
    has(table(page)[leads], "leader", "just now")
    has(table(page)[first], "follower", "this node", "up to date")
    shown = page.run("return document.querySelector('main').innerText")
    for wrong in ("Contended locks", "No client waits", "READONLY", "Longest wait", "Grants", "Keys", "–"):
        assert wrong not in shown, f"{wrong!r} is in {shown!r}"
    assert page.run("return document.getElementById('cluster').getBoundingClientRect().top") < 400, "the nodes are at the top"
    can_be_read(scene, page, "follower")

    cluster.all[leads].end()
    # The page of the dead node says so, and where to look instead.
    page = pages[leads]
    page.until(lambda: "No news from the server since" in page.text("lost"), "the page of the dead leader says that it is lost")
    has(page.text("lost"), *(f"node {number} at {address(number)}" for number in (first, second)))
    scene.shot(page, "dead-leader")
    # Of the others, one leads. Its page shows the locks without being loaded again, and the other's names it.
    new = cluster.leader([first, second])
    other = first if new == second else second
    page = pages[new]
    page.until(lambda: "1 lock is held" in page.text("behind"), "the new leader has the lock", ELECTION_SECONDS_MAX)
    # A wait ends with its connection; clients of libraries begin it again.
    scene.client(cluster.all[new]).send("LOCK.ACQUIRE", "order:42", "waiter", 600_000, "WAIT", 0)
    page.until(lambda: "order:42" in page.text("headline"), "the new leader shows the locks", ELECTION_SECONDS_MAX)
    has(page.text("headline"), "by worker-7")
    page.until(lambda: "✕ unreachable" in table(page)[leads], "the new leader misses the old one")
    has(table(page)[new], "leader", "this node")
    page.until(lambda: "s ago" in table(page)[leads], "the table says since when")
    has(page.text("cluster-note"), f"Node {leads} does not answer. No other node may be lost: a leader needs 2 of the 3 votes.")
    assert page.run("return document.getElementById('cluster').getBoundingClientRect().top") < 400, "what is wrong is at the top"
    can_be_read(scene, page, "new-leader")
    page = pages[other]
    page.until(lambda: page.text("headline") == f"Node {other} follows node {new}, which has the locks.", "the other follows the new leader", ELECTION_SECONDS_MAX)
    page.until(lambda: table(page)[new].split()[1:3] != [] and "leader" in table(page)[new] and "✕ unreachable" in table(page)[leads], "its table has the new roles")
    assert scene.client(cluster.all[new]).ask("LOCK.CHECK", "order:42", token) == 1
    # The old leader comes back as a follower.
    cluster.all[leads].start()
    page = pages[new]
    page.until(lambda: "All nodes answer" in page.text("cluster-note") and "follower" in table(page)[leads], "all are there again", 20)
    page = pages[leads]
    page.until(lambda: page.text("headline") == f"Node {leads} follows node {new}, which has the locks.", "its page is live again", 20)
    assert page.text("lost") == ""
    for page in pages.values():
        assert page.complaints() == []


@on_steady_nodes(2)
def a_node_without_a_majority_says_so(scene, pair):
    leads = pair.leader()
    left = 3 - leads
    page = scene.page(pair.all[left].url)
    page.until(lambda: f"follows node {leads}" in page.text("headline"), "the follower names the leader")
    has(page.text("cluster-note"), "All nodes answer. No node may be lost: a leader needs 2 of the 2 votes.")
    assert pair.all[left].request("/readyz")[0] == 200
    pair.all[leads].end()
    page.until(lambda: page.text("headline") == f"No node leads as far as node {left} knows.", "the page says that nobody leads", ELECTION_SECONDS_MAX)
    page.until(lambda: f"Node {leads}, the last leader, does not answer. Node {left} reaches none of the other nodes." in page.text("behind"), "the page says whom it misses")
    has(table(page)[leads], "✕ unreachable")
    has(page.text("cluster-note"), f"Node {leads} does not answer. A leader needs 2 of the 2 votes, and this node reaches 1.")
    status, _, body = pair.all[left].request("/readyz")
    assert status == 503, body
    has(body, "no leader")
    can_be_read(scene, page, "no-leader")
    assert page.complaints() == []


@on_steady_nodes(2)
def a_leader_without_a_majority_says_so(scene, pair):
    leads = pair.leader()
    other = 3 - leads
    client = scene.client(pair.all[leads])
    client.ask("SEM.ACQUIRE", "pool", "job", 600_000, "LIMIT", 1)
    page = scene.page(pair.all[leads].url)
    page.until(lambda: page.names("full") == ["pool"], "the leader shows the locks")
    pair.all[other].end()
    page.until(lambda: page.text("headline") == f"No node leads as far as node {leads} knows.", "the page says that nobody leads", ELECTION_SECONDS_MAX)
    has(page.text("behind"), f"Node {leads} reaches none of the other nodes.")
    page.until(lambda: "cut off from the others" in table(page)[leads] and "✕ unreachable" in table(page)[other], "the table says it, too")
    assert page.text("full") == "" and page.text("contended") == ""
    pair.all[other].start()
    page.until(lambda: "All nodes answer" in page.text("cluster-note"), "the other one is there again", 20)
    assert page.complaints() == []


CHECKS = [
    the_nodes_of_a_cluster_are_shown,
    a_node_without_a_majority_says_so,
    a_leader_without_a_majority_says_so,
]
