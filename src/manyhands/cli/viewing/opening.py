"""Opening a link that lets its reader in, without telling other users of this machine: they can read the arguments of every process."""

from __future__ import annotations

import html
import os
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

KEPT_SECONDS = 60.0
"""That a browser has to read the page that leads it to the link."""
_PAGE = """\
<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={link}">
<title>manyhands</title>
<p><a href="{link}">Open the viewer</a></p>
"""


@contextmanager
def opened_in_browser(link: str, folder: Path) -> Iterator[None]:
    """Open a link in the default browser: by way of a page in a folder, which nobody but the user can read, and whose path is all that the
    browser's arguments say. It is removed after a minute, and at the end of the block. Raises OSError if it can't be written."""
    descriptor, name = mkstemp(prefix="open-", suffix=".html", dir=folder)  # of mode 0600
    page = Path(name)
    removal = threading.Timer(KEPT_SECONDS, page.unlink, kwargs={"missing_ok": True})
    removal.daemon = True
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(_PAGE.format(link=html.escape(link)))
        # Some browsers are waited for, and need their page meanwhile.
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        removal.start()
        yield
    finally:
        removal.cancel()
        page.unlink(missing_ok=True)
