# `make demo`, `make serve`, `make pretrained` and `make test` set up what they need, once, in .venv.
VENV ?= .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough; PYTHON=/path/to/python overrides it.
PYTHON ?= $(shell for p in python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)

# Pip shows its progress to a person and keeps quiet in a log.
PIPFLAGS := --disable-pip-version-check $(shell test -t 2 || echo --quiet)

# Where the tests of the report look for a browser as well (tests/report/browser.py).
HAS_BROWSER := { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null
APT := DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 -o DPkg::Lock::Timeout=30

# The Pythons that pyproject.toml names; the tests run on the first.
PYTHONS := 3.11 3.12 3.13 3.14

.PHONY: demo serve pretrained docs test test-quick browser test-processors mutants fuzz format pythons clean help
.DELETE_ON_ERROR:

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(VENV)/.ready-core  ## the bundled gate on OOD pictures, then a training on embedded digits; ends with a report
	@$(BIN)/goen demo

serve: $(VENV)/.ready-serve  ## the bundled gate as a service with a page; prints its address
	@$(BIN)/goen serve $(GATE)

pretrained: $(VENV)/.ready-pretrained  ## a gate on features of a network pretrained on ImageNet (docs/pretrained.md); GOEN_DATA=FOLDER for more OOD sets
	@$(BIN)/python recipes/pretrained.py --out runs/pretrained

docs: $(VENV)/.ready-docs  ## the documentation site, from files alone: build/docs/index.html
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "documentation: $(CURDIR)/build/docs/index.html"

CHECK = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder

test: $(VENV)/.ready-test-all $(VENV)/.browser  ## lint, types and all tests; Chromium is optional (make browser)
	$(CHECK)
	@$(HAS_BROWSER) || echo "WARNING: no Chromium here, so the tests that open the report in a browser DID NOT RUN. Install it (Debian: apt-get install chromium) and run make test again." >&2

test-quick: $(VENV)/.ready-test  ## the same with few packages: tests that need others are skipped
	$(CHECK)

browser:  ## Chromium for the tests that open pages: as root on a system with apt
	@$(HAS_BROWSER) || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { \
		echo "Installing Chromium for the tests that open pages: once, about 400 MB."; \
		$(APT) update >/dev/null; \
		$(APT) install -y --no-install-recommends --download-only chromium >/dev/null \
		&& DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends --no-download chromium >/dev/null; }; } \
		|| echo "No Chromium, and it cannot be installed from here: tests that open pages are skipped." >&2

test-processors: $(VENV)/.ready-test-all $(VENV)/.browser  ## the tests and goen check under other instruction sets; an hour
	$(BIN)/python tests/on_processors.py

mutants: $(VENV)/.ready-test-all $(VENV)/.browser  ## change the source at random in 200 places: do the tests notice? hours
	$(BIN)/python tests/mutants.py

COUNT ?= 2000
SEED ?= 0
fuzz: $(VENV)/.ready-test-all  ## damaged gates, runs, images, names, folders, tars, URLs ...: COUNT=2000 of each, SEED=0; hours
	$(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED)

format: $(VENV)/.ready-test  ## format every file
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pythons: $(BIN)/python  ## has every pin a wheel for each Python? asks the package index, installs nothing
	@for version in $(PYTHONS); do \
		$(BIN)/python -m pip install --disable-pip-version-check --quiet --dry-run --no-deps --ignore-installed \
			--only-binary=:all: --python-version $$version --target $(VENV)/unused -r constraints.txt \
		&& echo "Python $$version: every pin has a wheel." || exit 1; done

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) runs

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "goen needs Python 3.11 or later, and none is on the path. Install it, or say: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "Setting up $(VENV) with $$($(PYTHON) --version): once, two minutes and about 1 GB (5 GB where pip brings a CUDA build of torch)."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Could not make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

# PIP_CONSTRAINT rather than -c, so that the build backend is pinned as well.
$(VENV)/.ready-core: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e .
	@touch $@

$(VENV)/.ready-serve: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e '.[onnx,serve]'
	@touch $@ $(VENV)/.ready-core

$(VENV)/.ready-pretrained: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e '.[pretrained]'
	@touch $@ $(VENV)/.ready-core

$(VENV)/.ready-docs: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e '.[docs]'
	@touch $@ $(VENV)/.ready-core $(VENV)/.ready-pretrained

$(VENV)/.ready-test: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e '.[test]'
	@touch $@ $(VENV)/.ready-core

$(VENV)/.ready-test-all: pyproject.toml constraints.txt | $(BIN)/python
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install $(PIPFLAGS) -e '.[test-all]'
	@touch $@ $(VENV)/.ready-core $(VENV)/.ready-docs $(VENV)/.ready-serve $(VENV)/.ready-pretrained $(VENV)/.ready-test

# Tried once, and only where nobody has to be asked. Downloads have a time limit; unpacking must not
# be cut short, so it has none.
$(VENV)/.browser: | $(BIN)/python
	@$(MAKE) --no-print-directory browser
	@touch $@
