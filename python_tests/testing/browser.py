"""Pages in a headless Chromium, where there is one."""

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH: apt-get install chromium")


def browse(page: Path, *options: str, fragment: str = "") -> str:
    """What a headless Chromium prints about a page."""
    assert BROWSER is not None
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--virtual-time-budget=15000",
        f"--user-data-dir={page.parent / 'profile'}", *options, f"{page.as_uri()}{fragment}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def run_in(page: Path, script: str) -> Any:
    """Run a script on a copy of a page, with `seen` for what it reports; returns that."""
    driver = f"<script>const seen = {{}};\n{script}\n</script><pre id='seen'></pre>"
    report = "document.getElementById('seen').textContent = JSON.stringify(seen);"
    finish = f"<script>setTimeout(() => {{ {report} }}, 12000);</script>"
    copy = page.with_name("driven.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{driver}{finish}</body>"), encoding="utf-8")
    dom = browse(copy, "--dump-dom")
    found = re.search(r"<pre id=\"seen\">(.*?)</pre>", dom, re.DOTALL)
    assert found is not None, "the page reports nothing"
    return json.loads(found[1].replace("&lt;", "<"))


class Tab:
    """A page in a headless Chromium, by the DevTools protocol over pipes: real keys, colour schemes, any width.

    with Tab(page) as tab: tab.look(width=360, dark=True); tab.press("Tab"); tab.run("document.activeElement.id")
    """

    def __init__(self, page: Path) -> None:
        assert BROWSER is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Chromium reads commands on descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--remote-debugging-pipe", f"--user-data-dir={page.parent / 'profile'}", "about:blank",
        ]  # fmt: skip
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(to_browser, from_browser), **quiet
        )  # type: ignore[call-overload]
        os.close(to_browser)
        os.close(from_browser)
        self._read, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.look(width=1200, dark=False)
        self.call("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline, "the page is never complete"
            time.sleep(0.02)

    def __enter__(self) -> "Tab":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._read:
                is_ready, _, _ = select.select([self._in], [], [], 60)
                assert is_ready, f"no answer to {method} in a minute"
                part = os.read(self._in, 2**16)
                assert part, "the browser has ended"
                self._read += part
            text, self._read = self._read.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def look(self, *, width: int, dark: bool) -> None:
        """Another screen: its width and colour scheme."""
        height = 740 if width < 600 else 900
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key, as from a keyboard: "Tab", "ArrowRight", "Enter", " "."""
        codes = {"Tab": 9, "Enter": 13, " ": 32, "PageDown": 34, "End": 35, "Home": 36,
                 "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}  # fmt: skip
        sent: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key, "modifiers": 8 * shift}
        sent["windowsVirtualKeyCode"] = codes[key]
        text = {"text": {"Enter": "\r", " ": " "}[key]} if key in ("Enter", " ") else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **sent, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **sent)

    def spoken(self) -> list[dict[str, str]]:
        """What a screen reader is given: role, name, description and value of every node of the accessibility tree."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        parts = ("role", "name", "description", "value")
        return [
            {part: str(node.get(part, {}).get("value", "")) for part in parts}
            for node in nodes
            if not node.get("ignored", False)
        ]

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page, PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
