PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check test-gpu clean

# The environment: made once, again when the project file changes.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@

run: $(VENV)/.ready
	$(BIN)/python examples/peer_layer.py

test: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n 2 -m "not gpu"

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not gpu"

# The whole GPU suite, with the Python at hand: on a machine with one or two GPUs.
test-gpu:
	$(PYTHON) -m pytest -q -m gpu tests

clean:
	rm -rf $(VENV) out build dist
