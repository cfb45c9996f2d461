"""The page of help: the keys, and what the words mean."""

from __future__ import annotations

from manyhands.view.pages.page import Page, Site

KEYS = (
    (("/",), "search in all runs"),
    (("j", "↓"), "next row"),
    (("k", "↑"), "row before"),
    (("Enter",), "open what is chosen"),
    (("Esc",), "close what is open"),
    (("]",), "next step of a conversation"),
    (("[",), "step before"),
    (("n",), "next item"),
    (("p",), "item before"),
    (("f",), "next failed item"),
    (("t",), "show or hide tool calls"),
    (("r",), "show or hide reasoning"),
    (("s",), "show or hide system messages"),
    (("m",), "show or hide figures of steps"),
    (("x",), "tick a row, or the item that is shown"),
    (("d",), "difference of two ticked items, or of the ticked one and that which is shown"),
    (("g r",), "go to the runs"),
    (("g i",), "go to the items of the run"),
    (("Shift+L",), "copy a link to what is shown"),
    (("?",), "this help"),
)
"""Keys, each with what it does; ``g r`` is one after the other."""
WORDS = (
    ("run", "One piece of work in one folder, with one journal; it can be resumed from that folder alone."),
    ("session", "One opening of a run by a process that executes it."),
    (
        "workload",
        "Where items come from, how one is executed, and what is written: trajectories, evals, csv_jobs, memory, imported.",
    ),
    (
        "item",
        "What is executed and counted: a prompt, a test at a target, a row, a conversation of the memory benchmark.",
    ),
    ("key", "The identity of an item: an id of your own, or a digest of its content. It never changes."),
    ("number", "The number of an item in order of planning, from 1. It never changes either."),
    ("sample", "One of several repeats of the same content; evaluations call them trials."),
    (
        "attempt",
        "A numbered try at an item. A new one begins where the recorded steps of the last one do not fit any more.",
    ),
    ("step", "One recorded effect: a call of a model, a call of a tool, a grade, a wait. It is never executed twice."),
    ("scope", "A branch of an item that counts its steps for itself: a judge, a sub-agent, parallel calls."),
    ("turn", "What a model says, with the results of the tools that it called."),
    ("trajectory", "The conversation of an attempt, made of its steps."),
    ("ledger", "Where every item is: all of them = completed + discarded + failed + cancelled + pending."),
    ("completed", "It has a result."),
    ("discarded", "It was executed to its end, and its result is not kept: by a filter, or as not good enough."),
    ("failed", "It has no result, as an error came back on every try. It can be executed again by retry."),
    ("cancelled", "It was ended by a person, or left the input."),
    ("pending", "It has not ended yet: it was not begun, it waits to be tried again, or the run stopped before."),
    ("running", "It is being executed now."),
    ("cause", "Why an item failed, in a word: rate_limit, timeout, tool_error and others."),
    ("reason", "Why an item was discarded, in a word."),
    ("stop reason", "Why a conversation ended: the model was done, a limit was reached, the context was full."),
    ("interrupted", "Nobody executes the run, and items are left. Resume goes on with it."),
    ("limit reached", "A budget or a number of items was reached; a larger one lets it go on."),
    ("grader", "What judges the outcome of an item."),
    ("judge", "A model that a grader asks."),
    ("score", "What a grader gives, from 0 to 1."),
    ("verdict", "What a score comes to: pass, borderline or fail."),
    ("threshold", "The score from which a test passes."),
    ("target", "The agent or command that an evaluation evaluates."),
    ("worker", "What does a row of a job; a worker process executes items."),
    ("toolset", "A named set of tools; which ones an item has is chosen by a distribution."),
    ("tokens", "Input and output of all model calls; cached: input that the provider did not have to read again."),
    ("cost", "US dollars, by the provider's figures or a list of prices; abandoned attempts count too."),
    ("calls", "Calls of models, those of abandoned attempts included."),
    ("work", "How long the run was executed, all sessions together."),
    ("replica", "One of several servers of a model, or API keys, among which calls choose."),
    ("simulated", "A simulated model answered: what it wrote is made up, and cost nothing."),
    (
        "index",
        "A file in your cache folder by which a run's items are sorted, filtered and searched. Once removed, it is made again.",
    ),
)
"""The words of the pages, each in one line."""


async def help_page(site: Site) -> Page:
    """The keys, and what the words mean."""
    data = {
        "keys": [{"keys": list(keys), "does": does} for keys, does in KEYS],
        "words": [{"word": word, "means": means} for word, means in WORDS],
    }
    return Page("Help", "help.html", {"keys": KEYS, "words": WORDS}, data)
