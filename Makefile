# Everything that is set up lands in .venv, .mpi and build, inside this folder. PYTHON=python3.12 make test picks a
# Python.
PYTHON ?= python3
ARGS ?=

# Programs of .venv come first, then the system's.
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"
SETUP := $(PYTHON) tools/environment.py
SOURCES := setup.py $(wildcard pyx/*.pyx pyx/*.pxd include/hetccl/*.h)

# Open MPI refuses root, and more ranks than cores, unless told otherwise (4 reads OMPI_, 5 reads PRTE_). MPICH has no
# such rules. One thread each: the ranks share this machine's cores.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: help demo test test-long build lint docs bench report test-gpu test-rdma test-slurm test-launch kernels \
    test-kernels wheel environment clean

help: ## what there is to make (the default)
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

demo: build ## train a small language model on 4 ranks in islands of 3 and 1
	@$(RUN) mpirun -n 3 env HETCCL_ISLAND=A python examples/train_lm.py $(ARGS) \
	             : -n 1 env HETCCL_ISLAND=B python examples/train_lm.py $(ARGS)

test: build ## run all tests (ARGS="-k name" for some)
	@$(SETUP) test
	@$(RUN) python -m pytest $(ARGS)

test-long: build ## compare many more calls with mpi4py, and buffers beyond 2 GiB (an hour, 14 GiB of memory)
	@$(SETUP) test
	@$(RUN) python -m pytest tests/long $(ARGS)

build: .venv/built ## set up .venv and compile

.venv/built: environment $(SOURCES)
	@if [ ! -e $@ ] || [ -n "$(filter-out environment,$?)" ]; then \
	    echo "hetccl: compile (a minute or so)"; mkdir -p build; \
	    $(RUN) python setup.py build_ext --inplace --parallel $$(nproc) >build/log 2>&1 || { cat build/log; exit 1; }; \
	    touch $@; fi

environment:
	@$(SETUP)

lint: environment ## check the style of Python and Cython, and the stubs
	@$(SETUP) lint
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) cython-lint pyx
	@$(RUN) mypy --strict hetccl/*.pyi tests/unit/typed_program.py

docs: build ## build the documentation in docs/_build; a warning is an error
	@$(SETUP) docs
	@$(RUN) python -m sphinx -b html -c docs -n -q -W --keep-going . docs/_build
	@echo "hetccl: docs/_build/docs/index.html"

bench: build ## time two islands here against mpi4py: a table, JSON and a picture in build/bench (ARGS="--all")
	@$(SETUP) bench
	@$(RUN) python bench/suite.py $(ARGS)

report: build ## make docs/performance.md's tables and pictures from bench/results/*.json
	@$(SETUP) bench
	@$(RUN) python bench/report.py $(ARGS)

test-gpu: build ## test and benchmark what needs NVIDIA GPUs; results in build/gpu.json (ARGS="--only bench" for a part)
	@$(SETUP) test gpu
	@$(RUN) python tests/gpu/run.py $(ARGS)

test-rdma: build ## run all tests over Soft-RoCE, in virtual machines (root the first time: installs QEMU)
	@$(SETUP) test
	@$(RUN) python tests/softroce/vm.py --setup
	@$(RUN) python -m pytest tests/softroce --rdma $(ARGS)

kernels: ## compile the reduction kernels for GPUs, with the nvcc and clang that there are (ARGS="--clang clang++-19")
	@$(PYTHON) tools/device_kernels.py $(ARGS)

test-kernels: build kernels ## look into the kernels' code for GPUs; compile them by NVRTC and hipRTC (minutes)
	@$(SETUP) test kernels
	@$(RUN) python -m pytest tests/kernels

wheel: kernels environment ## build a wheel, in dist, with the kernels inside
	@$(RUN) python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

test-slurm: build ## run the scripts of slurm/ on a Slurm in namespaces of this machine (root: installs Slurm)
	@$(SETUP) test launch
	@$(RUN) python tests/slurm/cluster.py
	@$(RUN) python tests/hosts.py login cuda0 cuda1 rocm0 rocm1 -- python -m pytest tests/slurm --rdma $(ARGS)

test-launch: build ## run each mpirun, Intel MPI's too, across hosts that are namespaces of this machine (root)
	@$(SETUP) test launch
	@$(RUN) python -m pytest tests/test_each_mpi.py $(ARGS)
	@$(RUN) python tests/hosts.py node0 node1 -- python -m pytest tests/test_each_mpi.py \
	    --hosts node0,node1 -k "collectives or one_rank" $(ARGS)

clean: ## remove all that was set up and built
	rm -rf .venv .mpi build docs/_build hetccl/*.so hetccl/device_code pyx/*.c
