"""Batches whose agents search the web and read its pages: killed at any instant, they repeat no recorded request, and keep their budget."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Command, run_async
from tests.support.web_fakes import KEYS, FakeServices, LocalSite, page
