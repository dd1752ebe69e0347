"""Checks of what the page says where it could be wrong: answers that are lost, events that look alike, more locks than it can show, and
locks of other databases. checks.py runs them with its own."""

import time

from browser import has

# Loses answers of /api/break, or of everything: `window.losing` is 'answer', 'request', 'all' or nothing.
LOSE = """
const real = window.fetch;
window.losing = arguments[0];
window.fetch = async (address, options) => {
  const isBreak = String(address).includes('/api/break');
  if (losing === 'all' && !isBreak || losing === 'request' && isBreak) throw new TypeError('Failed to fetch');
  const answer = await real(address, options);
  if (isBreak && losing) throw new TypeError('Failed to fetch');
  return answer;
};
"""
# More names than the server looks at to find the locks whose holders wait for nothing.
CROWD_LOCKS = 30_000
AT_ONCE = 1_000


def held(scene, server):
    """A lock with a waiter, and the page with its dialog open."""
    holder = scene.client(server, "checkout")
    token = holder.ask("LOCK.ACQUIRE", "order:42", "worker-7", 600_000)
    waiter = scene.client(server)
    waiter.send("LOCK.ACQUIRE", "order:42", "next", 600_000, "WAIT", 0)
    holder.until_waiting(1)
    page = scene.page(server.url)
    page.until(lambda: page.text("break-root") != "", "the jam is shown")
    return holder, token, waiter, page


def asked(page, losing):
    """Sends a break whose answer is lost."""
    page.run(LOSE, losing)
    page.press("b")
    page.press("hung")
    page.click("sure")
    page.click("break-go")


def a_break_whose_answer_is_lost_is_a_break(scene):
    _, token, waiter, page = held(scene, scene.server())
    asked(page, "answer")
    page.until(lambda: page.text("break-title") == "Broken", "the dialog says that the grant was broken")
    next_token = waiter.reply()
    has(page.text("break-said"), "The answer was lost, but the grant was broken", "worker-7 lost it: the grant was broken by http at 127.0.0.1", ": hung", str(token), f"next holds it now, with token {next_token}")
    # It stays so with the next ticks.
    time.sleep(2.5)
    assert page.text("break-title") == "Broken" and page.text("break-changed") == "" and page.text("break-go") == ""
    assert page.complaints() == []


def a_break_that_was_not_sent_can_be_sent_again(scene):
    holder, token, _, page = held(scene, scene.server())
    asked(page, "request")
    page.until(lambda: page.text("break-title") == "Not broken", "the dialog says that nothing was broken")
    has(page.text("break-said"), "worker-7 still holds the lock", "Sending it again is safe")
    assert holder.ask("LOCK.CHECK", "order:42", token) == 1
    page.run("window.losing = null")
    page.click("break-go")
    page.until(lambda: page.text("break-title") == "Broken" and "next holds it now" in page.text("break-said"), "the second one breaks it")
    assert page.complaints() == []


def a_grant_that_ended_in_another_way_was_not_broken(scene):
    holder, _, waiter, page = held(scene, scene.server())
    # The holder releases the lock before the request arrives, whose answer says so and is lost.
    page.press("b")
    page.press("hung")
    page.click("sure")
    page.hold_dialog()
    holder.ask("LOCK.RELEASE", "order:42", "worker-7")
    waiter.reply()
    page.run(LOSE, "answer")
    page.click("break-go")
    page.until(lambda: page.text("break-title") == "Nothing was broken", "the dialog says that nothing was broken")
    has(page.text("break-said"), "The grant ended in another way.", "ago worker-7 released it", "next holds it now")
    assert page.complaints() == []


def without_any_answer_the_page_keeps_asking(scene):
    _, _, _, page = held(scene, scene.server())
    asked(page, "all")
    page.until(lambda: page.text("break-title") == "No answer", "the dialog says that there is no answer")
    has(page.text("break-said"), "not known yet whether the grant was broken: the server does not answer", "keeps asking")
    assert page.run("return document.getElementById('break-go').disabled"), "nothing is sent while it is not known"
    page.run("window.losing = null")
    page.until(lambda: page.text("break-title") == "Broken", "the dialog says what came of it")
    assert page.complaints() == []


def a_repeated_break_says_how_the_grant_ended(scene):
    """The first request came too late for the page, and was carried out all the same; the second finds no grant."""
    holder, token, _, page = held(scene, scene.server())
    asked(page, "request")
    page.until(lambda: page.text("break-title") == "Not broken", "the dialog says that nothing was broken")
    page.hold_dialog()
    page.run("window.losing = null")
    holder.ask("LOCK.BREAK", "order:42", "TOKEN", token, "REASON", "hung")
    page.click("break-go")
    page.until(lambda: page.text("break-title") == "Broken", "the dialog says that the grant was broken")
    has(page.text("break-said"), "worker-7 lost it: the grant was broken by checkout", "hung")
    assert page.complaints() == []


def alike_deadlocks_are_all_shown(scene):
    server = scene.server()
    client = scene.client(server)
    client.ask("LOCK.ACQUIRE", "a", "ann", 600_000)
    client.ask("LOCK.ACQUIRE", "b", "bob", 600_000)
    scene.client(server).send("LOCK.ACQUIRE", "b", "ann", 600_000, "WAIT", 0)
    client.until_waiting(1)
    page = scene.page(server.url)

    def refused():
        try:
            client.ask("LOCK.ACQUIRE", "a", "bob", 600_000, "WAIT", 0)
            raise AssertionError("no deadlock")
        except RuntimeError as error:
            has(str(error), "DEADLOCK")

    def told():
        return page.text("recent").count("Deadlock refused a")

    refused()
    page.until(lambda: told() == 1, "the first is shown")
    page.run("document.querySelector('#recent li').mark = 'first'")
    # Two more, far from the first one, at once.
    time.sleep(1.2)
    refused()
    refused()
    page.until(lambda: told() == 3, "the other two are shown, too")
    assert page.run("return [...document.querySelectorAll('#recent li')].map(line => line.mark ?? null)") == [None, None, "first"], "the first keeps its place"
    page.run("location.hash = '#lock=a'")
    page.until(lambda: page.text("story").count("bob was refused: deadlock") == 3, "the details show all of them")
    # Equal lines stay with the next ticks: their times waver by milliseconds.
    page.run("for (const line of document.querySelectorAll('#recent li, #story li')) line.mark = 'kept'")
    time.sleep(3)
    assert page.run("return [...document.querySelectorAll('#recent li, #story li')].every(line => line.mark === 'kept')"), "a line was made anew"
    assert page.complaints() == []


def too_many_locks_are_shown_in_part(scene):
    server = scene.server()
    client = scene.client(server)
    names = [f"crowd:{i:05}" for i in range(CROWD_LOCKS)]
    client.ask_all([("LOCK.ACQUIRE", name, "boss", 3_600_000) for name in names])
    for at in range(0, CROWD_LOCKS, AT_ONCE):
        part = names[at : at + AT_ONCE]
        scene.client(server).send("LOCK.ACQUIREALL", len(part), *part, f"batch-{at}", 3_600_000, "WAIT", 0)
    crowd = CROWD_LOCKS // AT_ONCE
    client.until_waiting(crowd)
    # The holder of all of them waits for a lock that is the last to have a waiter.
    client.ask("LOCK.ACQUIRE", "hub", "ann", 3_600_000)
    scene.client(server, "boss").send("LOCK.ACQUIRE", "hub", "boss", 3_600_000, "WAIT", 0)
    client.until_waiting(crowd + 1)
    page = scene.page(server.url)
    page.until(lambda: page.names("tree")[:1] == ["hub"], "the root is found although it is beyond what is looked at")
    has(page.text("headline"), f"At least {crowd + 1} clients wait for hub (1 directly)", "by ann")
    has(page.text("behind"), f"{crowd} of them wait behind the others", "not followed all of them: there may be more chains")
    has(page.text("tree-note"), "there may be more chains")
    assert len(page.names("tree")) == 50, len(page.names("tree"))
    assert "not shown here" not in page.text("tree"), "that is said once"
    scene.shot(page, "partial")
    assert page.complaints() == []


def a_holder_that_waits_in_another_database_is_no_end(scene):
    server = scene.server()
    ann, bob = scene.client(server, "ann"), scene.client(server, "bob")
    ann.ask("SELECT", 1)
    ann.ask("LOCK.ACQUIRE", "there", "ann", 600_000)
    bob.ask("LOCK.ACQUIRE", "here", "bob", 600_000)
    scene.client(server).send("LOCK.ACQUIRE", "here", "last", 600_000, "WAIT", 0)
    ann.until_waiting(1)
    page = scene.page(server.url)
    page.until(lambda: "for here" in page.text("headline"), "the jam is shown")
    assert "waits for" not in page.text("headline").split("for here")[1]
    bob.ask("SELECT", 1)
    bob.send("LOCK.ACQUIRE", "there", "bob", 600_000, "WAIT", 0)
    page.until(lambda: "who waits for there in database 1." in page.text("headline"), "the headline leads on to the other database")
    has(page.row("tree", "here"), "bob waits for there in database 1")
    scene.shot(page, "elsewhere")
    page.run("location.hash = '#lock=here'")
    page.until(lambda: "bob holds here and waits for there in database 1." in page.text("detail-chain"), "so do the details")
    page.run("document.querySelector('#headline a[href*=\"db=1\"]').click()")
    page.until(lambda: "ann" in page.text("holders") and "database 1" in page.text("server"), "the link leads there", 10)
    page.until(lambda: "1 client waits for there" in page.text("headline"), "the page shows the other database")
    has(page.text("headline"), "by ann")
    assert page.complaints() == []


CHECKS = [
    a_break_whose_answer_is_lost_is_a_break,
    a_break_that_was_not_sent_can_be_sent_again,
    a_grant_that_ended_in_another_way_was_not_broken,
    without_any_answer_the_page_keeps_asking,
    a_repeated_break_says_how_the_grant_ended,
    alike_deadlocks_are_all_shown,
    too_many_locks_are_shown_in_part,
    a_holder_that_waits_in_another_database_is_no_end,
]
