"""A headless Chromium, spoken to through its pipe: no driver and no socket is needed."""

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page of a browser, and what went wrong on it."""

    def __init__(self, profile: Path) -> None:
        """Start it with a new profile."""
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()

        def wire() -> None:  # it reads from 3 and writes to 4
            copies = os.dup(theirs_in), os.dup(theirs_out)
            for copy, number in zip(copies, (3, 4), strict=True):
                os.dup2(copy, number)

        self._process = subprocess.Popen(
            [CHROMIUM or "", *QUIET, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to, self._from = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.errors: list[str] = []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._to.close()
        self._process.terminate()
        self._process.wait(20)
        self._from.close()

    def open(self, page: Path, width: int, dark: bool = False) -> None:
        """Load a page as a screen of a width shows it."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media="", features=features)
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
        self.ask("Emulation.setDeviceMetricsOverride", **screen)
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while self._read().get("method") != "Page.loadEventFired":
            pass

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path, top: int = 0, height: int | None = None) -> None:
        """Take a picture of the whole page, or of a part."""
        width, whole = self.run("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole, "scale": 1}
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def print(self, path: Path) -> None:
        """Print the page to a PDF file."""
        path.write_bytes(base64.b64decode(self.ask("Page.printToPDF", paperWidth=8.27)["data"]))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self._numbers)
        sent = {"id": number, "method": method, "params": params}
        sent |= {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(sent).encode() + b"\0")
        self._to.flush()
        while (found := self._read()).get("id") != number:
            pass
        assert "error" not in found, found
        return found["result"]

    def _read(self) -> dict[str, Any]:
        """Return the next message; keep what tells of errors."""
        while b"\0" not in self._rest:
            more = os.read(self._from.fileno(), 1 << 16)
            assert more, "the browser ended"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        found = json.loads(message)
        told = found.get("params", {})
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif found.get("method") == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.errors.append(str(told["args"]))
        elif found.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(str(told["entry"]))
        return found
