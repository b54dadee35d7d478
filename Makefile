TODAY = $(shell date +%F)
# One thread a process: two xdist workers on two cores would otherwise start four busy torch threads.
THREADS = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: check test test-full gpu bench tables docs

check:  ## Lint, format, types, import law.
	ruff check .
	ruff format --check .
	mypy
	lint-imports

test:  ## The fast tier.
	$(THREADS) pytest -n 2 -m "not gpu and not full" --hypothesis-profile=same

test-full:  ## Everything that needs no GPU: half an hour.
	$(THREADS) pytest -n 2 -m "not gpu"

gpu:  ## What needs a CUDA device.
	pytest -m gpu

bench:  ## Peakward's own costs here, written to results/ (against_transformers.py needs a GPU).
	python benchmarks/cli_startup.py --out results/$(TODAY)-cpu-cli-startup.json
	python benchmarks/timer_overhead.py --out results/$(TODAY)-cpu-timer-overhead.json

tables:  ## The tables of README and docs/, written anew from results/.
	python benchmarks/docs_tables.py

docs:  ## The pages under docs/ as a site in site/; needs the extra `docs`.
	mkdocs build --strict
