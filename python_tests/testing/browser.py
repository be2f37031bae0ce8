"""Pages in a headless Chromium, where there is one."""

import json
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH: apt-get install chromium")


def browse(page, *options, fragment=""):
    """What a headless Chromium prints about a page."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--virtual-time-budget=15000",
        f"--user-data-dir={page.parent / 'profile'}", *options, f"{page.as_uri()}{fragment}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def run_in(page, script):
    """Run a script on a copy of a page, with `seen` for what it reports; returns that."""
    driver = f"<script>const seen = {{}};\n{script}\n</script><pre id='seen'></pre>"
    report = "document.getElementById('seen').textContent = JSON.stringify(seen);"
    finish = f"<script>setTimeout(() => {{ {report} }}, 12000);</script>"
    copy = page.with_name("driven.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{driver}{finish}</body>"), encoding="utf-8")
    dom = browse(copy, "--dump-dom")
    return json.loads(re.search(r"<pre id=\"seen\">(.*?)</pre>", dom, re.DOTALL)[1].replace("&lt;", "<"))
