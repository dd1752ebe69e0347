"""A browser without a screen, and what is read from the page in it."""

import time

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

# Widths of windows in pixels.
DEVICES = {"phone": 390, "small-phone": 320, "tablet": 820, "wide": 1920}
# The smallest contrast of all texts that can be seen, and which text has it.
CONTRAST = """
const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const colour = text => text.match(/[0-9.]+/g).map(Number);
const ground = node => {
  for (; node; node = node.parentElement) {
    const c = colour(getComputedStyle(node).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
let worst = [100, ''];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode, node = text.parentElement, box = node.getBoundingClientRect();
  if (!text.data.trim() || !node.checkVisibility() || node.closest('script, .unseen, button:disabled') || !box.width) continue;
  const [a, b] = [luminance(colour(getComputedStyle(node).color)), luminance(ground(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < worst[0]) worst = [ratio, text.data.trim().slice(0, 60)];
}
return worst;
"""

# Watches the time between frames, and the time of the page's script for each tick.
WATCH = """
// Frames are long on a busy machine without any doing of the page. Those without a tick show how long.
window.watch = () => { window.watched = { ticked: [], quiet: [], reads: [], draws: [] }; };
watch();
let last = 0, draws = 0, drawn = 0;
const frame = now => {
  if (last) (draws === drawn ? watched.quiet : watched.ticked).push(now - last);
  last = now; drawn = draws;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) {
    if (entry.name === 'tick: read') watched.reads.push(entry.duration);
    if (entry.name === 'tick: draw') { watched.draws.push(entry.duration); draws++; }
  }
}).observe({ entryTypes: ['measure'] });
"""


def has(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"


class Page:
    """The page of a server in a browser of its own; the browser ends with the `with` block."""

    def __init__(self, browser, driver, url, width=1440, height=1000, dark=False, wait=True):
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        # The sandbox needs rights that a container does not give; the browser sees only the page under test.
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.driver.set_script_timeout(30)
        self.size(width, height)
        if dark:
            self.scheme("dark")
        self.driver.get(url)
        if wait:
            self.until(lambda: self.text("live").startswith("●"), "the page is live")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def size(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def scheme(self, name):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, holds, what, seconds=8):
        """Waits for a condition; returns the seconds that it took."""
        began = time.monotonic()
        while True:
            try:
                if holds():
                    return time.monotonic() - began
            except StaleElementReferenceException:
                pass
            if time.monotonic() - began > seconds:
                raise AssertionError(f"not within {seconds} s: {what}; the headline is {self.text('headline')!r}")
            time.sleep(0.01)

    def text(self, identity):
        """The text of an element that can be seen, or nothing."""
        return self.run("const node = document.getElementById(arguments[0]); return node && node.checkVisibility() ? node.innerText.replaceAll('\\u00a0', ' ') : ''", identity)

    def rows(self, section):
        """The rows of a table: name, depth in the tree, and text."""
        return self.run("return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].filter(r => r.checkVisibility()).map(r => [r.dataset.name, r.dataset.depth ?? null, r.innerText.replaceAll('\\u00a0', ' ')])", section)

    def names(self, section):
        return [name for name, _, _ in self.rows(section)]

    def row(self, section, name):
        return next((text for shown, _, text in self.rows(section) if shown == name), "")

    def click(self, identity):
        self.driver.find_element(By.ID, identity).click()

    def press(self, *keys):
        """Keys for whatever has the focus."""
        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def focused(self):
        """The name of the lock whose row has the focus."""
        return self.run("return document.activeElement.closest('tr')?.dataset.name ?? null")

    def focused_id(self):
        return self.run("return document.activeElement.id")

    def is_open(self, dialog):
        return self.run("return document.getElementById(arguments[0]).open", dialog)

    def hold_dialog(self):
        """From now on the dialog learns nothing new of the lock until it asks what came of a break."""
        self.run("refreshBreak = () => {}")
        self.until(lambda: not self.run("return breaking.busy"), "the last question is answered")

    def must_contrast(self, what):
        """Fails unless every text stands out from its background as WCAG's level AA asks."""
        ratio, text = self.run(CONTRAST)
        assert ratio >= 4.5, f"{what}: the contrast of {text!r} is {ratio:.2f}"

    def must_fit(self, what, at_each):
        """Fails if the page is wider than the window of one of DEVICES. Calls `at_each` with the device's name."""
        for device, width in DEVICES.items():
            self.size(width, 844 if width < 600 else 1100)
            time.sleep(0.3)  # Layout has no event.
            over = self.run("return document.documentElement.scrollWidth") - width
            assert over <= 0, f"{what}: at {width} px the page is {over} px too wide"
            at_each(device)

    def complaints(self):
        """What the browser's console says beyond refused requests."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        return [text for text in said if "Failed to load resource" not in text and "net::ERR_" not in text]

    def shot(self, folder, name):
        if folder:
            self.driver.save_screenshot(str(folder / f"{name}.png"))
