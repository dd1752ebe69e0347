"""Checks of the page, each with servers and browsers of its own. Prints `ok …` or `not ok …: why` for each; run.py starts it."""

import argparse
import contextlib
import pathlib
import re
import resource
import subprocess
import tempfile
import threading
import time
import traceback

import doubts
import nodes
import reports
from browser import WATCH, Page, has
from scene import JAM, Scene

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The page has a tick a second; the rest is for a machine that is busy with other things.
JAM_SECONDS_MAX = 1.3
FRAME_MS_MAX = 50
PAGE_BYTES_MAX = 150 << 10
LOCKS, CONTENDED = 100_000, 1_000
ODD_NAME = '<img src=x onerror="document.title=1">\u202ea\\x41'


def worst(values):
    """The 99th percentile."""
    return sorted(values)[int(len(values) * 0.99)]


def a_jam_appears_at_once(scene):
    server = scene.server()
    page = scene.page(server.url)
    page.until(lambda: "Nobody waits" in page.text("headline"), "nobody waits")
    _, token, _ = scene.jam(server)
    seconds = [page.until(lambda: f"{JAM} clients wait for order:42" in page.text("headline"), "the jam is in the headline")]
    while seconds[-1] > JAM_SECONDS_MAX:
        # A busy machine may be late once, not each time.
        assert len(seconds) < 3, f"jams appeared after {seconds} s"
        name = f"again:{len(seconds)}"
        scene.jam(server, name)
        seconds.append(page.until(lambda: f"{JAM} clients wait" in page.row("contended", name), "the next jam is listed"))
    has(page.text("headline"), "held for", "by worker-7", "checkout")
    has(page.text("advice"), f"token {token}", "never renewed")
    has(page.row("contended", "order:42"), f"{JAM} clients wait", "worker-7", "connected", "lease ends in 9 min")
    assert page.run("return document.title").startswith(f"{JAM} wait for order:42")
    first = page.run("return document.querySelector('#contended .fill').style.transform")
    page.until(lambda: page.run("return document.querySelector('#contended .fill').style.transform") != first, "the lease runs down")
    assert page.complaints() == []


def the_tree_is_right(scene):
    server = scene.server()
    holders = {name: scene.client(server, f"of-{name}") for name in "abcd"}
    for name, client in holders.items():
        client.ask("LOCK.ACQUIRE", f"tree:{name}", f"owner-{name}", 600_000)
    for name, above in ("ba", "cb", "dc"):
        holders[name].send("LOCK.ACQUIRE", f"tree:{above}", f"owner-{name}", 600_000, "WAIT", 0)
    for i in range(2):
        scene.client(server).send("LOCK.ACQUIRE", "tree:d", f"last-{i}", 600_000, "WAIT", 0)
    other = scene.client(server)
    other.ask("LOCK.ACQUIRE", "alone", "owner-alone", 600_000)
    scene.client(server).send("LOCK.ACQUIRE", "alone", "waits-alone", 600_000, "WAIT", 0)
    other.until_waiting(6)
    page = scene.page(server.url)
    wanted = [("tree:a", "0"), ("tree:b", "1"), ("tree:c", "2"), ("tree:d", "3")]
    page.until(lambda: [(name, depth) for name, depth, _ in page.rows("tree")] == wanted, f"the tree is {wanted}, not {page.rows('tree')}")
    has(page.row("tree", "tree:a"), "1 client waits", "5 with those behind", "owner-a")
    has(page.row("tree", "tree:c"), "waits for tree:b", "owner-c")
    has(page.row("tree", "tree:d"), "2 clients wait")
    has(page.text("headline"), "5 clients wait for tree:a (1 directly)", "by owner-a")
    has(page.text("behind"), "4 of them wait behind the others", "1 client waits for alone")
    # What stands in the tree does not stand below it again.
    assert page.names("contended") == ["alone"], page.names("contended")
    has(page.text("contended"), "Other contended locks", "Held by")
    holders["a"].close()
    page.until(lambda: "connection gone for" in page.text("headline"), "the holder's connection is gone")
    has(page.row("tree", "tree:a"), "connection gone for")
    page.run("location.hash = '#lock=tree%3Ad'")
    page.until(lambda: "At the root owner-a holds tree:a" in page.text("detail-chain"), "the details lead to the root")
    assert page.complaints() == []


def names_are_only_text(scene):
    server = scene.server()
    holder = scene.client(server, "<b>client</b>")
    holder.ask("LOCK.ACQUIRE", ODD_NAME, "<i>owner</i>", 600_000)
    holder.ask("LOCK.ACQUIRE", b"raw\xff", "raw-owner", 600_000)
    scene.client(server).send("LOCK.ACQUIRE", ODD_NAME, "<u>waiter</u>", 600_000, "WAIT", 0)
    holder.until_waiting(1)
    page = scene.page(server.url)
    page.until(lambda: page.names("contended") != [], "the lock is listed")
    has(page.text("contended"), '<img src=x onerror="document.title=1">‹U+202E›a\\x5cx41', "<i>owner</i>", "<b>client</b>")
    page.run("document.querySelector('#contended a.name').click()")
    page.until(lambda: "<u>waiter</u>" in page.text("queue"), "the waiter is in the details")
    assert page.run("return document.querySelectorAll('main img, main i, main u').length") == 0
    # A name that is no text is found by what the page shows of it, and opened.
    page.press("ESCAPE", "/")
    page.press("raw\\xff")
    page.until(lambda: page.names("found") == ["raw\\xff"], "the search finds a name that is no text")
    page.press("ENTER")
    page.until(lambda: "raw-owner" in page.text("holders"), "its details are shown")
    # The backslash of a name is text, too, also in a pattern.
    page.press("/")
    page.press("a\\x5cx41")
    page.until(lambda: [name.endswith("a\\x5cx41") for name in page.names("found")] == [True], "the search finds a backslash")
    assert page.complaints() == []


def breaking_the_root_lets_the_next_in(scene):
    server = scene.server()
    holder, token, crowd = scene.jam(server)
    page = scene.page(server.url)
    page.until(lambda: page.text("break-root") != "", "the jam is shown")
    has(page.text("break-root"), "order:42")
    page.click("break-root")
    has(page.text("break-facts"), "order:42", "worker-7", str(token), "since", f"{JAM} clients wait")
    page.until(lambda: "owner-0 is next" in page.text("break-after"), "the dialog says who is next")
    page.press("its host is gone")
    page.click("sure")
    page.click("break-go")
    next_token = crowd[0].reply()
    assert next_token > token, f"{next_token} does not follow {token}"
    page.until(lambda: "owner-0 holds it now" in page.text("break-said"), "the dialog says what came of it")
    assert page.text("break-title") == "Broken"
    has(page.text("break-said"), str(token), str(next_token), f"{JAM - 1} clients wait")
    page.click("break-cancel")
    page.until(lambda: page.focused_id() == "headline", "the focus is where no key breaks another grant")
    page.until(lambda: f"{JAM - 1} clients wait for order:42" in page.text("headline") and "owner-0" in page.text("headline"), "the next holder is in the headline")
    page.until(lambda: re.search(r"Broken order:42.*worker-7, broken by \S.*its host is gone", page.text("recent"), re.S), "the recent events show who broke it")
    page.click("show-root")
    page.until(lambda: re.search(r"worker-7 lost it: the grant was broken by \S.*its host is gone", page.text("story")), "the details show who broke it")
    try:
        holder.ask("LOCK.RELEASE", "order:42", "worker-7")
        raise AssertionError("worker-7 still holds the lock")
    except RuntimeError as refused:
        has(str(refused), "NOTHELD")
    assert page.complaints() == []


def a_grant_that_has_changed_is_not_broken(scene):
    server = scene.server()
    holder, token, crowd = scene.jam(server)
    page = scene.page(server.url)
    page.until(lambda: page.text("break-root") != "", "the jam is shown")
    page.press("b")
    has(page.text("break-facts"), "worker-7", str(token))
    holder.ask("LOCK.RELEASE", "order:42", "worker-7")
    next_token = crowd[0].reply()
    page.until(lambda: "has ended meanwhile" in page.text("break-changed"), "the dialog says that the grant has ended")
    has(page.text("break-changed"), f"owner-0 holds it now, with token {next_token}")
    has(page.text("break-facts"), "worker-7", str(token))
    # Nothing that no longer holds stands beside that, and nothing can be sent.
    for gone in ("Connection", "Waits", "Lease", "is next in the queue", "Break the grant"):
        assert gone not in page.text("break-body"), f"{gone!r} is in {page.text('break-body')!r}"
    assert page.run("return document.getElementById('break-go').disabled")
    page.press("ESCAPE")
    # A page that has not noticed yet sends the token that it shows.
    page.press("b")
    page.until(lambda: "owner-0" in page.text("break-facts"), "the dialog is about the next grant")
    page.hold_dialog()
    holder.ask("LOCK.RELEASE", "order:42", "owner-0")
    token, next_token = next_token, crowd[1].reply()
    page.press("hung")
    page.click("sure")
    page.click("break-go")
    page.until(lambda: page.text("break-title") == "Nothing was broken", "the dialog says that nothing was broken")
    page.until(lambda: f"owner-1 holds it now, with token {next_token}" in page.text("break-said"), "the dialog says who holds it now")
    has(page.text("break-said"), "NOTHELD")
    assert holder.ask("LOCK.CHECK", "order:42", next_token) == 1
    assert page.complaints() == []


def two_keys_break_nothing(scene):
    server = scene.server()
    holder, token, _ = scene.jam(server)
    page = scene.page(server.url)
    page.until(lambda: page.text("break-root") != "", "the jam is shown")

    def is_held():
        return holder.ask("LOCK.CHECK", "order:42", token) == 1

    def colour():
        return page.run("return document.getElementById('break-root').className")

    assert colour() == "", "the button of a connected holder is quiet"
    assert page.run("return document.getElementById('reason').required")
    # Without a reason, with blanks for one, and without a word about the connection, nothing is sent.
    for typed in ([], ["   "], ["hung"]):
        page.press("b")
        page.until(lambda: page.is_open("break"), "b opens the dialog")
        page.press(*typed, "ENTER")
        assert page.run("return document.getElementById('break-go').disabled"), typed
        assert page.run("return breaking.state") == "asks" and is_held(), typed
        has(page.text("break-sure"), "worker-7 is connected")
        page.press("ESCAPE")
    page.press("b")
    page.press("hung", "TAB", " ")
    assert not page.run("return document.getElementById('break-go').disabled")
    page.press("ESCAPE")
    # A connection that is gone needs no second word, and still a reason.
    watcher = scene.client(server)
    holder.close()
    page.until(lambda: colour() == "danger", "the button is red when the holder is gone")
    page.press("b")
    page.press("ENTER")
    assert page.text("break-sure") == "" and watcher.ask("LOCK.CHECK", "order:42", token) == 1
    page.press("hung", "ENTER")
    page.until(lambda: page.text("break-title") == "Broken", "a reason is enough")
    assert watcher.ask("LOCK.CHECK", "order:42", token) == 0
    assert page.complaints() == []


def one_holder_of_several_roots_is_one_cause(scene):
    server = scene.server()
    holder = scene.client(server, "report")
    for name, crowd in (("ledger", 3), ("daily", 4), ("other", 5)):
        (scene.client(server, "else") if name == "other" else holder).ask("LOCK.ACQUIRE", name, "of-other" if name == "other" else "report-2", 600_000)
        for i in range(crowd):
            scene.client(server).send("LOCK.ACQUIRE", name, f"{name}-{i}", 600_000, "WAIT", 0)
    holder.until_waiting(12)
    page = scene.page(server.url)
    page.until(lambda: "blocks 7 clients with 2 locks: daily and ledger" in page.text("headline"), "both locks are told as one")
    has(page.text("headline"), "report-2 (report")
    has(page.text("behind"), "4 clients wait for daily, held for", "3 clients wait for ledger, held for", "5 clients wait for other")
    has(page.text("break-root"), "daily")
    assert page.run("return document.title").startswith("7 wait for report-2")
    assert page.complaints() == []


def totals_are_true_or_at_least(scene):
    server = scene.server()
    client = scene.client(server)
    for i in range(60):
        client.ask("LOCK.ACQUIRE", f"many:{i}", f"owner-{i}", 600_000)
        scene.client(server).send("LOCK.ACQUIRE", f"many:{i}", f"waiter-{i}", 600_000, "WAIT", 0)
    client.until_waiting(60)
    page = scene.page(server.url)
    page.until(lambda: len(page.names("contended")) == 50, "the longest waits are listed")
    # The figure of contended locks is not known to every server.
    if page.run("return news.figures.contended ?? null") is not None:
        has(page.text("behind"), "In all, 60 clients wait for 60 locks")
        has(page.text("contended-note"), "The 50 longest waits, of 60 contended locks in all databases")
    news = "const { figures } = news; news.figures = { ...figures, contended: arguments[0] ?? undefined }; render(); const text = id => document.getElementById(id).innerText.replaceAll('\\u00a0', ' '); return [text('behind'), text('contended-note')]"
    behind, note = page.run(news, 60)
    has(behind, "In all, 60 clients wait for 60 locks")
    has(note, "The 50 longest waits, of 60 contended locks in all databases")
    behind, note = page.run(news, None)
    has(behind, "At least 49 other locks have waiters; 60 clients wait in all")
    has(note, "The 50 longest waits; there may be more")
    assert page.complaints() == []


def equal_endings_are_one_line(scene):
    server = scene.server()
    client = scene.client(server)
    for i in range(30):
        client.ask("LOCK.ACQUIRE", f"order:{i}", f"owner-{i}", 300)
    # What ends within a second of these would be in their line.
    time.sleep(1.5)
    page = scene.page(server.url)
    page.until(lambda: "30 leases ended within 1 s" in page.text("recent"), "equal endings are one line")
    has(page.text("recent"), "order:29, order:28", ", …")
    client.ask("LOCK.ACQUIRE", "later", "late", 1)
    page.until(lambda: re.search("Lease ended later.*30 leases ended", page.text("recent"), re.S), "the newest is first")
    # Of a whole list it is not known how many there were before.
    page.run("const now = Date.now() + skew; renderRecent(Array.from({ length: 100 }, (_, i) => ({ at: now - i, kind: 'expired', db, name: `x:${i}`, owner: 'o', token: 100 - i })))")
    has(page.text("recent"), "At least 100 leases ended within 1 s", "x:0, x:1")
    page.run("renderRecent([{ at: Date.now(), kind: 'broken', db, name: 'a', owner: 'o', token: 1, by: 'alice, desk at 10.0.0.5:4711', reason: 'hung' }])")
    has(page.text("recent"), "held by o, broken by alice, desk at 10.0.0.5:4711: hung")
    assert page.complaints() == []


def a_picture_needs_no_stream(scene):
    """A browser whose clock is virtual waits for open requests, so an event stream keeps it for ever."""
    server = scene.server()
    scene.jam(server)
    with tempfile.TemporaryDirectory() as folder:
        shot = pathlib.Path(folder) / "still.png"
        command = [scene.arguments.browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile", f"--screenshot={shot}", "--virtual-time-budget=4000", f"{server.url}?still"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=True)
        assert shot.stat().st_size > 10_000, shot.stat().st_size
    page = scene.page(f"{server.url}?still", wait=False)
    page.until(lambda: page.text("live").startswith("as of "), "the page says from when it is")
    has(page.text("headline"), f"{JAM} clients wait for order:42")
    assert page.run("return stream") is None
    assert page.complaints() == []


def everything_is_done_with_keys(scene):
    server = scene.server()
    client = scene.client(server)
    for i in range(3):
        client.ask("LOCK.ACQUIRE", f"row:{i}", f"owner-{i}", 600_000)
        scene.client(server, f"worker-name-{i}" if i == 2 else None).send("LOCK.ACQUIRE", f"row:{i}", f"waiter-{i}", 600_000, "WAIT", 0)
        client.until_waiting(i + 1)
        time.sleep(0.01)  # the order of the rows is that of the waits, in milliseconds
    client.ask("LOCK.ACQUIRE", "quiet:1", "quiet-owner", 600_000)
    page = scene.page(server.url)
    page.until(lambda: page.names("contended") == ["row:0", "row:1", "row:2"], "the longest wait is first")
    page.press("j")
    assert page.focused() == "row:0", page.focused()
    page.press("j", "ARROW_DOWN")
    assert page.focused() == "row:2", page.focused()
    page.press("k")
    assert page.focused() == "row:1", page.focused()
    page.press("b")
    page.until(lambda: page.is_open("break"), "b opens the dialog")
    has(page.text("break-facts"), "row:1", "owner-1")
    page.press("ESCAPE")
    assert not page.is_open("break")
    assert page.focused() == "row:1", page.focused()
    page.press("ENTER")
    page.until(lambda: "owner-1" in page.text("holders"), "Enter opens the details")
    assert page.text("unfold") == ""
    page.press("ESCAPE")
    page.until(lambda: page.text("detail") == "", "Escape closes the details")
    assert page.focused() == "row:1", page.focused()
    page.press("?")
    assert page.is_open("help")
    page.press("ESCAPE")
    assert page.text("break-root") != ""
    page.press("/")
    page.press("quiet")
    page.until(lambda: page.names("found") == ["quiet:1"], "the search finds a lock by its name")
    # The button of another lock is not above what was found, nor behind a key.
    assert page.text("acts") == "", page.text("acts")
    page.run("document.activeElement.blur()")
    page.press("b")
    assert not page.is_open("break")
    page.press("/", "END")
    for _ in "quiet":
        page.press("BACKSPACE")
    page.press("quiet-owner")
    page.until(lambda: page.names("found") == ["quiet:1"], "the search finds a lock by its owner")
    page.press("ENTER")
    page.until(lambda: "quiet-owner" in page.text("holders"), "Enter opens what was found")
    page.press("/", "worker-na")
    page.until(lambda: page.names("found") == ["row:2"], "the search finds a part of a client's name")
    page.press("/", "ESCAPE")
    page.until(lambda: page.names("found") == [] and len(page.names("contended")) == 3, "Escape ends the search")
    assert page.complaints() == []


def full_semaphores_are_shown(scene):
    server = scene.server()
    client = scene.client(server)
    for i in range(2):
        client.ask("SEM.ACQUIRE", "pool", f"job-{i}", 600_000, "LIMIT", 2)
    client.ask("SEM.ACQUIRE", "half", "job-0", 600_000, "LIMIT", 2)
    page = scene.page(server.url)
    page.until(lambda: page.names("full") == ["pool"], "the full semaphore is shown")
    has(page.row("full", "pool"), "2 of 2 permits held", "nobody waits")
    page.run("location.hash = '#lock=pool'")
    page.until(lambda: "job-0" in page.text("holders") and "job-1" in page.text("holders"), "both holders are in the details")
    assert page.complaints() == []


def a_lost_connection_is_shown(scene):
    server = scene.server()
    page = scene.page(server.url)
    assert page.text("lost") == ""
    server.end()
    page.until(lambda: "No news from the server since" in page.text("lost"), "the page says that the connection is lost")
    has(page.text("live"), "connection lost")
    server.start()
    page.until(lambda: page.text("lost") == "" and page.text("live").startswith("● live"), "the page is live again", 15)
    assert page.complaints() == []


def users_need_their_password(scene):
    server = scene.server("--requirepass", "secret")
    for password in (None, "wrong"):
        for path in ("/", "/api/locks", "/api/events", "/api/figures"):
            status, headers, body = server.request(path, password)
            assert status == 401, f"{path} with password {password}: {status}"
            has(headers.get("WWW-Authenticate", ""), "Basic")
            assert "headline" not in body
        body = {"db": 0, "name": "a", "token": 1}
        status, _, _ = server.request("/api/break", password, "POST", body, {"X-Portcullis": "1", "Content-Type": "application/json"})
        assert status == 401, f"/api/break with password {password}: {status}"
    assert server.request("/api/locks", "secret")[0] == 200
    body = {"db": 0, "name": "a", "token": 1}
    status, _, _ = server.request("/api/break", "secret", "POST", body, {"Content-Type": "application/json"})
    assert status == 403, f"a break without the page's header: {status}"
    page = scene.page(server.url.replace("//", "//default:wrong@"), wait=False)
    time.sleep(0.5)
    assert page.text("headline") == "", page.text("headline")
    page.driver.get(server.url.replace("//", "//default:secret@"))
    page.until(lambda: page.text("live").startswith("● live"), "the page is live with the password")
    page.until(lambda: "you are default" in page.text("server"), "the page says who its user is")


class Crowd:
    """A server with locks, of which `CONTENDED` are waited for, and its page."""

    def __init__(self, scene, locks):
        server = scene.server()
        self.client = scene.client(server)
        self.client.ask_all([("LOCK.ACQUIRE", f"many:{i:06}", f"owner-{i}", 3_600_000) for i in range(locks)])
        self.crowd = {i: scene.client(server) for i in range(CONTENDED)}
        for i, waiter in self.crowd.items():
            waiter.send("LOCK.ACQUIRE", f"many:{i:06}", f"waiter-{i}", 3_600_000, "WAIT", 0)
        self.client.until_waiting(CONTENDED)
        self.released = 0
        self.page = scene.page(server.url)
        self.page.until(lambda: len(self.page.names("contended")) == 50, "the longest waits are listed")
        self.page.run(WATCH)

    def churn(self, ended):
        """Rows come, go and move: the locks at the top are released, and go to their waiters."""
        while self.released < CONTENDED and not ended.wait(0.5):
            for i in range(self.released, self.released + 20):
                self.client.ask("LOCK.RELEASE", f"many:{i:06}", f"owner-{i}")
                self.crowd[i].reply()
            self.released += 20

    def watch(self):
        """Milliseconds, as 99th percentiles of seven seconds: of the script of a tick, and of frames with and without a tick."""
        ended = threading.Event()
        worker = threading.Thread(target=self.churn, args=[ended])
        worker.start()
        try:
            self.page.run("watch()")
            time.sleep(7)
            watched = self.page.run("return watched")
        finally:
            ended.set()
            worker.join()
        ticks = [read + draw for read, draw in zip(watched["reads"], watched["draws"])]
        assert len(ticks) >= 4, f"only {len(ticks)} ticks"
        return worst(ticks), worst(watched["ticked"] or [0]), worst(watched["quiet"])


def many_locks_do_not_slow_it(scene):
    many, few = Crowd(scene, LOCKS), None
    page = many.page
    has(page.text("contended-note"), "50 longest waits")
    for _ in range(3):
        script, ticked, quiet = many.watch()
        print(f"    99th percentiles: script {script:.1f} ms, frames with a tick {ticked:.1f} ms, without {quiet:.1f} ms", flush=True)
        if script <= FRAME_MS_MAX and ticked <= max(FRAME_MS_MAX, 1.5 * quiet):
            break
        # On a slow machine everything takes longer. Then it must not be slower than with few locks, beside each other.
        if few is None:
            few = Crowd(scene, CONTENDED)
            continue
        script_few, ticked_few, _ = few.watch()
        print(f"    with {CONTENDED} locks: script {script_few:.1f} ms, frames with a tick {ticked_few:.1f} ms", flush=True)
        if script <= 1.5 * script_few and ticked <= 1.5 * ticked_few:
            break
    else:
        raise AssertionError(f"the script of a tick takes {script:.1f} ms, and its frame {ticked:.1f} ms")
    page.press("/")
    page.press("many:099999")
    seconds = page.until(lambda: page.names("found") == ["many:099999"], "the search finds one of many")
    assert seconds <= 2, f"the search takes {seconds:.1f} s"
    assert page.complaints() == []


def it_can_be_read_everywhere(scene):
    server = scene.server()
    holder, _, _ = scene.jam(server)
    client = scene.client(server, "ledger")
    for name, owner in (("invoice:42", "billing-3"), ("customer:9001", "ledger-1"), ("a-name-without-any-break-" * 6, "an-owner-without-any-break-" * 6)):
        client.ask("LOCK.ACQUIRE", name, owner, 90_000)
    scene.client(server).send("LOCK.ACQUIRE", "order:42", "billing-3", 600_000, "WAIT", 0)
    scene.client(server).send("LOCK.ACQUIRE", "invoice:42", "ledger-1", 600_000, "WAIT", 0)
    for name in ("customer:9001", "a-name-without-any-break-" * 6):
        scene.client(server).send("LOCK.ACQUIRE", name, "last", 600_000, "WAIT", 0)
    client.until_waiting(JAM + 4)
    holder.close()
    page = scene.page(server.url)
    page.until(lambda: "connection gone" in page.text("headline") and len(page.names("tree")) == 3, "the jam is shown")
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.must_contrast(scheme)
        scene.shot(page, scheme)
        page.press("b")
        page.must_contrast(f"{scheme}, dialog")
        scene.shot(page, f"{scheme}-dialog")
        page.press("ESCAPE")
        page.run("location.hash = '#lock=order%3A42'")
        page.until(lambda: "worker-7" in page.text("holders"), "the details are shown")
        page.must_contrast(f"{scheme}, details")
        scene.shot(page, f"{scheme}-details")
        page.press("ESCAPE")
    page.scheme("light")
    page.must_fit("a jam", lambda device: scene.shot(page, device))
    page.size(390, 844)
    page.run("location.hash = `#lock=${'a-name-without-any-break-'.repeat(6)}`")
    page.until(lambda: page.text("unfold") != "", "a long name is folded")
    high = page.run("return document.getElementById('detail-title').offsetHeight")
    page.click("unfold")
    assert page.run("return document.getElementById('detail-title').offsetHeight") > high and high < 100, high
    page.press("ESCAPE")
    page.click("show-root")
    page.until(lambda: "worker-7" in page.text("holders"), "the details are shown on a phone")
    scene.shot(page, "phone-details")
    assert page.complaints() == []


def it_is_one_small_file(scene):
    text = (ROOT / "src/http/page.html").read_text()
    assert len(text.encode()) <= PAGE_BYTES_MAX, f"{len(text.encode())} bytes"
    outside = [found for found in re.findall(r"https?://[^'\" )]+", text) if found != "http://www.w3.org/2000/svg"]
    assert outside == [], outside
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "<form", "<link"):
        assert forbidden not in text, f"the page has {forbidden}"
    assert not re.search(r"<[a-z][^>]* on[a-z]+=", text), "the page has an inline event handler"
    server = scene.server()
    status, headers, body = server.request("/")
    assert status == 200 and body == text, "the server does not send the page"
    policy = headers["Content-Security-Policy"]
    has(policy, "default-src 'none'", "script-src 'sha256-", "style-src 'sha256-")
    assert "unsafe" not in policy, policy


CHECKS = [
    it_is_one_small_file,
    a_jam_appears_at_once,
    the_tree_is_right,
    names_are_only_text,
    breaking_the_root_lets_the_next_in,
    two_keys_break_nothing,
    one_holder_of_several_roots_is_one_cause,
    totals_are_true_or_at_least,
    equal_endings_are_one_line,
    a_picture_needs_no_stream,
    a_grant_that_has_changed_is_not_broken,
    everything_is_done_with_keys,
    full_semaphores_are_shown,
    a_lost_connection_is_shown,
    users_need_their_password,
    it_can_be_read_everywhere,
    many_locks_do_not_slow_it,
    *doubts.CHECKS,
    *nodes.CHECKS,
    *reports.CHECKS,
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("browser")
    parser.add_argument("driver")
    parser.add_argument("--shots", type=pathlib.Path)
    parser.add_argument("--only", action="append", default=[])
    arguments = parser.parse_args()
    # Each waiting client is a connection.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 8192), most))
    chosen = [check for check in CHECKS if not arguments.only or check.__name__ in arguments.only]
    if not chosen:
        raise SystemExit(f"no check is called {' or '.join(arguments.only)}")
    failed = 0
    for check in chosen:
        name, began = check.__name__.replace("_", " "), time.monotonic()
        try:
            with contextlib.ExitStack() as ends:
                check(Scene(arguments, ends))
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as why:
            failed += 1
            print(f"not ok {name}: {why}", flush=True)
            if not isinstance(why, AssertionError):
                traceback.print_exc()
    print(f"{len(chosen) - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
