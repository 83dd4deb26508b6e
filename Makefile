# `make run` and `make test` are all that a new machine needs; Python 3.11 or newer must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check -c constraints.txt

.PHONY: run test quick coverage test-slow test-flower test-newest-flower smoke demo docs lint clean

# Few classes for each client and two clients a round: a setting in which methods differ.
run: $(VENV)/core
	$(BIN)/dcfl compare data.alpha=0.1 federation.participation=0.1 \
		--methods fedavg,dcfl-sw,dcfl-pw,scaffold --seeds 0,1,2,3,4
	@echo
	@echo "These digits are easy and training is short: DCFL-PW is within 0.8 points of FedAvg here, and DCFL-SW"
	@echo "probably about a point below. The gain of both, of almost two points, shows late in"
	@echo "training, on harder pictures such as CIFAR-10 (docs/reproduction.md). To see it, in an hour or two:"
	@echo "  .venv/bin/dcfl data get cifar10"
	@echo "  .venv/bin/dcfl reproduce participation-5 --only cifar10-0.3-p5-fedavg --only cifar10-0.3-p5-dcfl data.path=data"

# One thread per test process: small tensors gain nothing from more, and two processes share two cores.
test: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not flower and not slow"

# Half a minute, for the inner loop: the tests that a change of the mathematics or of a value would break.
quick: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not flower and not slow" $(QUICK)

QUICK := tests/losses tests/methods \
	$(addprefix tests/,models/test_models.py models/test_freezing.py models/test_personal.py) \
	$(addprefix tests/server/test_,aggregation.py optimizers.py robust.py server.py) \
	$(addprefix tests/data/test_,augment.py client_data.py partition.py) \
	$(addprefix tests/comparisons/test_,all_pairs.py pairs.py ranking.py standing.py) \
	$(addprefix tests/,engines/test_memories.py flower/test_codec.py parity/test_flower.py) \
	$(addprefix tests/runs/test_,identity.py rows.py) \
	$(addprefix tests/test_,architecture.py config.py evaluation.py federation.py local_training.py) \
	$(addprefix tests/test_,privacy.py scores.py seeding.py tensors.py)

# The share of lines and branches that `make test` runs, file by file.
coverage: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "not flower and not slow" --cov --cov-report=term

# Tests that take tens of seconds each: compilers, attacks on sampled clients, kills of whole commands.
test-slow: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m slow

# Real SuperLinks, SuperNodes and Ray: minutes, and they want the machine to themselves.
test-flower: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m flower

# The same with the newest flwr that can be installed here, if that is not the pinned one.
test-newest-flower: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/newest_flower.py $(VENV)/newest-flower

# Every recipe of `dcfl reproduce`, on the built-in digits.
smoke: $(VENV)/dev
	rm -rf $(VENV)/smoke
	OMP_NUM_THREADS=1 $(BIN)/dcfl reproduce all --scale smoke --out $(VENV)/smoke

# The page that `dcfl demo` opens: the comparison of `make run`. Its times are this machine's: let it be idle.
demo: $(VENV)/core
	rm -rf $(VENV)/demo
	$(BIN)/dcfl compare data.alpha=0.1 federation.participation=0.1 \
		--methods fedavg,dcfl-sw,dcfl-pw,scaffold --seeds 0,1,2,3,4 --out $(VENV)/demo
	cp $(VENV)/demo/report.html dcfl/report/demo.html

# The site, in docs/_build/html/index.html. A page that Sphinx warns about is an error.
docs: $(VENV)/dev
	rm -rf docs/_build
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

lint: $(VENV)/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict dcfl
	$(BIN)/codespell

clean:
	rm -rf $(VENV)

$(VENV)/core: pyproject.toml constraints.txt
	@echo "Installing PyTorch and the other packages into $(VENV): a few minutes, the first time only"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(INSTALL) -e '.[dev]'
	touch $@
