"""A real Chromium without a window, by its DevTools protocol over a pair of pipes: no driver, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LOADED_SECONDS: Final = 60

# What of a page's text does not lie where it can be read: outside the window, of a picture or of its box.
_CUT_OFF: Final = """
(() => {
  const cut = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) cut.push('the page is wider than the window');
  for (const text of document.querySelectorAll('svg text')) {
    const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
    const right = box.x + box.width, low = box.y + box.height;
    if (box.x < -1 || box.y < -1 || right > view.width + 1 || low > view.height + 1)
      cut.push('svg: ' + text.textContent);
  }
  for (const one of document.querySelectorAll('h1, h2, p, td, th, li, figcaption')) {
    if (getComputedStyle(one.closest('thead') || one).position === 'absolute') continue;
    const box = one.getBoundingClientRect();
    if (box.left < -1 || box.right > wide + 1 || one.scrollWidth > one.clientWidth + 1)
      cut.push(one.tagName + ': ' + one.textContent.slice(0, 80));
  }
  return cut;
})()
"""


class Page:
    """A page as it was loaded; `complaints` are errors and warnings of its console and its log."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []

    def value(self, expression: str) -> Any:
        """Return what an expression in the page comes to."""
        asked = {"expression": expression, "returnByValue": True}
        found = self._browser.ask("Runtime.evaluate", asked, self._session)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def cut_off(self) -> list[str]:
        """Return the texts that can't be read whole."""
        return list(self.value(_CUT_OFF))

    def smallest_text(self) -> float:
        """Return how high the smallest text of the pictures is, in pixels of the window."""
        heights = "[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)"
        return float(self.value(f"Math.min(...{heights})"))

    def text(self) -> str:
        """Return all text that is shown."""
        return str(self.value("document.body.innerText"))


class Browser:
    """Asks a browser through its pipes; what it reports meanwhile is kept in `events`."""

    def __init__(self, to_fd: int, from_fd: int) -> None:
        self._to = to_fd
        self._from = os.fdopen(from_fd, "rb")
        self._asked = 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, asked: dict[str, Any] | None = None, session: str | None = None) -> Any:
        """Return what it answers."""
        self._asked += 1
        message: dict[str, Any] = {"id": self._asked, "method": method, "params": asked or {}}
        os.write(self._to, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._asked:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def wait_for(self, method: str) -> None:
        """Return when it has reported an event."""
        while not any(one.get("method") == method for one in self.events):
            self.events.append(self._next())

    def open(self, address: str, *, width: int = 1000, height: int = 900, scheme: str = "light") -> Page:
        """Return a page in a window of this size, for a reader who wants it light, dark or in print."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", size, session)
        media = {"media": "print"} if scheme == "print" else {"media": "screen"}
        features = [{"name": "prefers-color-scheme", "value": "light" if scheme == "print" else scheme}]
        self.ask("Emulation.setEmulatedMedia", {**media, "features": features}, session)
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable", session=session)
        self.events.clear()
        self.ask("Page.navigate", {"url": address}, session)
        self.wait_for("Page.loadEventFired")
        page = Page(self, session)
        page.value("1")  # what was reported until now has arrived by then
        page.complaints = [
            json.dumps(one["params"])
            for one in self.events
            if one.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
        ]
        return page

    def close(self) -> None:
        os.close(self._to)
        self._from.close()

    def _next(self) -> dict[str, Any]:
        raw = bytearray()
        while (piece := self._from.read(1)) != b"\0":
            assert piece, "the browser has ended"
            raw += piece
        return dict(json.loads(raw))


@contextmanager
def chromium(directory: Path) -> Iterator[Browser]:
    """Yield a browser whose profile is below the directory; skip where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium to look at the page with: apt-get install --no-install-recommends chromium")
    (read_there, write_here), (read_here, write_there) = os.pipe(), os.pipe()
    command = [
        *(program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"),
        *("--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={directory / 'profile'}"),
    ]
    script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
    with subprocess.Popen(
        ["/bin/bash", "-c", script, "bash", str(read_there), str(write_there), *command],
        pass_fds=(read_there, write_there),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(read_there)
        os.close(write_there)
        try:
            with closing(Browser(write_here, read_here)) as browser:
                yield browser
        finally:
            process.terminate()
            try:
                process.wait(_LOADED_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
