"""Research a company for each row of companies.csv: search the web, read what was found, report it as columns.

The web is a small one on this machine: ten pages, and a search engine that answers as SearXNG does. So this runs offline, with the
simulated model, in some seconds. To research real companies, leave out --web_allow_private, name a model, and set the key of a search
service (or SEARXNG_URL to a SearXNG of yours).

    python examples/csv_jobs/research.py
"""

import asyncio
import csv
import json
import os
import sys
import tempfile
from pathlib import Path

from aiohttp import web

HERE = Path(__file__).parent
FACTS = {
    "Aldwick Instruments": (1931, "Leeds", "barometers for ships"),
    "Borealis Rope Works": (1887, "Turku", "ropes for sailing boats"),
    "Cedar & Finch Press": (1978, "Portland", "books about birds"),
    "Dunmore Tidal Power": (2009, "Galway", "electricity from tides"),
    "Elbe Valley Optics": (1954, "Dresden", "lenses for microscopes"),
    "Foxglove Analytics": (2016, "Bristol", "statistics for hospitals"),
    "Granite Loom": (1996, "Porto", "cloth woven from stone fibres"),
    "Halden Ferries": (1962, "Halden", "ferries across the fjord"),
    "Isla Verde Coffee": (2003, "San Juan", "coffee roasted on an island"),
    "Juniper Robotics": (2018, "Torino", "robots that prune vines"),
}
PAGE = """<!doctype html><html><head><title>{name}</title></head><body><nav><a href="/">Companies</a></nav><main><article>
<h1>{name}</h1><p>{name} is a company that has been at home in {place} since {year}, and is known far beyond for {what}.</p>
<p>Founded: {year}</p><p>Headquarters: {place}</p><p>Business: {what}</p></article></main></body></html>"""


def name_of(path: str) -> str:
    """The company that a page is about."""
    return next(name for name in FACTS if path_of(name) == path)


def path_of(name: str) -> str:
    return "".join(mark if mark.isalnum() else "-" for mark in name.lower())


async def page(request: web.Request) -> web.Response:
    name = name_of(request.match_info["name"])
    year, place, what = FACTS[name]
    text = PAGE.format(name=name.replace("&", "&amp;"), year=year, place=place, what=what)
    return web.Response(text=text, content_type="text/html")


async def search(request: web.Request) -> web.Response:
    """The companies that share words with the query, the likeliest first."""
    words = set(request.query["q"].lower().split())
    shared = {name: len(words & set(name.lower().split())) for name in FACTS}
    found = sorted((name for name in FACTS if shared[name]), key=lambda name: -shared[name])
    results = [
        {"title": name, "url": f"http://{request.host}/companies/{path_of(name)}", "content": f"About {name}."}
        for name in found[:1]
    ]
    return web.json_response({"query": request.query["q"], "results": results})


async def main() -> int:
    app = web.Application()
    app.router.add_get("/search", search)
    app.router.add_get("/companies/{name}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "companies.csv"
        job = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "manyhands", "jobs", "spawn", str(HERE / "companies.csv")),
            *(
                "--instruction",
                "Search the web for {company}, read its page, and report what it says. [simulate: tools=2]",
            ),
            *("--output_schema", str(HERE / "companies_schema.json"), "--output_csv_path", str(output)),
            *("--model", "simulated", "--toolsets", "web", "--web_search", "searxng", "--web_allow_private"),
            *sys.argv[1:],
            env={**os.environ, "SEARXNG_URL": "http://{}:{}".format(*runner.addresses[0])},
        )
        code = await job.wait()
        await runner.cleanup()
        if code == 0:
            with output.open(newline="") as table:
                for row in csv.DictReader(table):
                    found = json.loads(row["result_json"])
                    print(f"{row['company']:<22}{found['founded']:<6}{found['headquarters']:<12}{found['business']}")
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
