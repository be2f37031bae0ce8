"""Pages in a headless Chromium, where there is one."""

import json
import re
import shutil
import subprocess
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
