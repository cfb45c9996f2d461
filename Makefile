# make demo        30 prompts become trajectories, with a simulated model (no key, no cost); then a small run of each other kind
# make test        format, lint, types, import contract, links of the documentation, all tests
# make slow-test   the tests that make test leaves out because they take longer, and many times as many examples
# make attack-test all attacks of tests/attacks and tests/faults (see docs/security.md)
# make crash-test  N=100 kills at random instants, then 20 in a run of 1,000 items in containers, 20 in one of 200 items with browsers, and 20 each in two runs of 1,000 items on a Ray cluster (see docs/promises.md)
# make interop-test  runs with programs of others: LibreOffice, Codex and Claude Code (if there are soffice, codex, claude), AgentV's SDKs (AGENTV_SDK, AGENTV_SDK_PYTHON; see CONTRIBUTING.md), and LiteLLM's proxy, which it installs beside this environment
# make oracle-test  what exports write, read by the projects whose formats they are (OpenAI, TRL, LLaMA-Factory …), which it installs beside this environment; ORACLES="openai trl" for some
# make compat-test DIR=…  whether the eval files of a tree load, run and score as their baselines say (see docs/agentv.md)
# make bench       what the engine costs, as ratios measured in one run
# make docs        the documentation as a site, in site/
# make pictures    the pictures of the documentation, made anew from real runs (needs Chromium)
VENV ?= .venv
BIN := $(VENV)/bin
N ?= 100
LITELLM ?= $(VENV)-litellm/bin/litellm
# With real processes, kills and limits of time, one test in some thousands meets a busy machine: what fails is run once more at the
# end, one at a time. A test that is named FAILED again and again is to be mended. slow-test, attack-test and crash-test repeat nothing.
# Many tests only wait, so four at once keep two processors busy. Each process takes some 700 MB.
TESTS_AT_ONCE ?= 4
# Tests start many processes: what they compile is kept, whatever is usual on this machine.
export PYTHONDONTWRITEBYTECODE :=
# As in an activated environment: programs that tests start may be called python.
export PATH := $(abspath $(BIN)):$(PATH)

# Warnings are errors: a link that leads nowhere, a page that is missing in the navigation. Everything is read anew, to find them again.
SPHINX = $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --conf-dir docs --doctree-dir build/doctrees

.PHONY: demo test lint types others tests slow-test attack-test crash-test interop-test oracle-test compat-test bench docs pictures format clean

demo:
	@VENV=$(VENV) tools/setup demo
	@$(BIN)/python examples/demo.py

test: lint tests

# mypy takes as long as all others together, with one processor each. The tests are collected once, so that what is compiled of them
# is there when several processes do it.
lint:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types others

types:
	$(BIN)/mypy

others:
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/test_architecture.py
	$(SPHINX) -b dummy . build/links
	@$(BIN)/python -m pytest --collect-only -q >build/collected || { tail -n 50 build/collected; exit 1; }

tests:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist worksteal -r fE || { [ $$? = 1 ] && $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none -r fE; }

slow-test:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python -m pytest -n 2 -m slow
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile=thorough

attack-test:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" tests/attacks tests/faults

crash-test:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python -m tests.crash.campaign --kills $(N)
	$(BIN)/python -m tests.crash.campaign --only many-containers --kills 20
	$(BIN)/python -m tests.crash.campaign --only browsers --kills 20
	$(BIN)/python -m tests.crash.campaign --only ray --kills 20
	$(BIN)/python -m tests.crash.campaign --only ray-sandboxes --kills 20

interop-test:
	@VENV=$(VENV) tools/setup dev
	@test -x $(LITELLM) || { $(BIN)/python -m venv $(VENV)-litellm && $(VENV)-litellm/bin/pip install -q 'litellm[proxy]==1.108.7'; }
	LITELLM=$(abspath $(LITELLM)) $(BIN)/python -m pytest -m interop tests/interop

oracle-test:
	@VENV=$(VENV) tools/setup dev
	@$(BIN)/python tools/oracle_env.py $(VENV)-oracle- $(ORACLES)
	$(BIN)/python -m pytest -m oracle tests/oracles -r s

compat-test:
	@VENV=$(VENV) tools/setup dev
	@test -n "$(DIR)" || { echo "make compat-test DIR=FOLDER: a folder with eval files"; exit 2; }
	$(BIN)/python -m tests.compat.survey "$(DIR)"

bench:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python -m benchmarks $(BENCH)

docs:
	@VENV=$(VENV) tools/setup dev
	$(SPHINX) -b html . site
	@echo "site/index.html"

pictures:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/python tools/picture.py
	$(BIN)/python tools/screenshots.py

format:
	@VENV=$(VENV) tools/setup dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VENV)-litellm $(VENV)-oracle-* build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
