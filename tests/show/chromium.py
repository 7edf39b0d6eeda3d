"""A page in headless Chromium, driven through its own debugging pipe: no server, no port, and nothing to install beside it."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    """The browser named by MELM_CHROMIUM, or one that is installed; None where there is none, or no pipe to drive it."""
    if sys.platform == "win32":
        return None
    return os.environ.get("MELM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser. `page` opens a file in it."""

    def __init__(self, program, profile):
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()
        words = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--remote-debugging-pipe",
        ]
        words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]

        import fcntl  # not on Windows

        def wire():  # Chromium reads commands from file 3 and answers to file 4
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, ours)]
            for number, end in zip((3, 4), ends, strict=True):
                os.dup2(end, number)

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([*words, "about:blank"], close_fds=False, preexec_fn=wire, **quiet)
        os.close(theirs)
        os.close(ours)
        self._number, self._rest, self.events = 0, b"", []

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self._out)  # it ends when nobody speaks to it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method, session=None, seconds=60, **parameters):
        """One command, and its answer. What else is said meanwhile goes to `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while True:
            said = self._next(end)
            if said.get("id") == self._number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self.events.append(said)

    def _next(self, end):
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], max(0, end - time.monotonic()))[0], "Chromium does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def page(self, path, width=1280, height=900, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.look(width, height, dark)
        page.open(path)
        return page


class Page:
    """A tab."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def look(self, width, height=900, dark=False):
        """The size of the window, and whether its user likes it dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path):
        self.call("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.readyState === 'complete'")

    def wait(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not self(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.05)

    def __call__(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key):
        """A key as a user presses it."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector):
        """The mouse in the middle of what the selector names."""
        place = f"document.querySelector({json.dumps(selector)})"
        self(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self(f"(() => {{ const b = {place}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()")
        at = {"x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def screenshot(self, path, whole=False):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def complaints(self):
        """Errors and warnings that the console shows, breaches of the page's policy among them."""
        said = []
        for event in self.events():
            if event["method"] == "Runtime.exceptionThrown":
                said.append(event["params"]["exceptionDetails"].get("text"))
            elif event["method"] == "Runtime.consoleAPICalled" and event["params"]["type"] in (
                "error",
                "warning",
                "assert",
            ):
                said.append(str(event["params"]["args"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                said.append(event["params"]["entry"]["text"])
        return said

    def requests(self):
        """Addresses that were asked for, but for what is in the page itself."""
        sent = [e["params"]["request"]["url"] for e in self.events() if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def events(self):
        self("1")  # what was said before has come by then
        return [event for event in self.browser.events if event.get("sessionId") == self.session]
