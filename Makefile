PYTHON ?= python3
BIN := .venv/bin
# Images for containers set it, and then every process compiles anew all that it loads.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install triton demo test check bench lint

.venv/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-compile -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[data]'
	# Compiles the event clock, which is kept: the first search would wait ten seconds for it.
	$(BIN)/python -m partita simulate digits-cnn --cluster lab-4x1g --plan ddp --costs datasheet >/dev/null
	touch .venv/base

.venv/stamp: .venv/base
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[test]'
	touch .venv/stamp

install: .venv/stamp

# Triton's interpreter and compiler, for the tests of kernels on cards alone: torch's builds for CUDA bring their own.
.triton:
	$(BIN)/pip install -q --no-deps --target .triton triton==3.9.0

triton: install .triton

demo: .venv/base
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: install
	$(BIN)/python -m pytest -m slow -p tests.check

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	for script in benchmarks/*/run.py; do $(BIN)/python $$script || exit 1; done
