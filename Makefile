# Tollgate. `make` shows what there is to do.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PROGRAMS     := gateway enforcement quota consumer standalone tollgatectl
TEST_TIMEOUT ?= 10m
# Packages tested at once. Each may start servers of its own, so this is bounded by memory, not only by cores.
TEST_PARALLEL ?= 2
# Arguments for run, bench and replay, as in: make run ARGS=-no-traffic
ARGS ?=

# Every module of go.work, as ./pkg/... and so on: what reads no go.work (the linter, gofmt) gets these.
PACKAGES = $$(go list -m -f '{{.Dir}}' | sed "s|^$$PWD/|./|; s|$$|/...|")
LINTER   = $$(cd .ci/tools && GOWORK=off go tool -n golangci-lint)

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: check-go check-node ## Run all services in one process on embedded stores; Ctrl-C stops it
	@[[ -e bin/standalone ]] || echo "Building. The first time Go fetches and compiles every library, which takes some minutes."
	@go build -o bin/standalone ./services/standalone/cmd/standalone
	@exec bin/standalone $(ARGS)

.PHONY: test
test: check-go check-node test-race ## Run every test of every module
	go test -count=1 -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) work

.PHONY: test-short
test-short: check-go ## Run the tests that need no servers
	go test -short -timeout $(TEST_TIMEOUT) work

# Behind a build tag, for it also needs Python. The SDKs are fetched into the user's cache, in the versions of their lock files.
.PHONY: test-sdks
test-sdks: check-go check-node check-python ## Test the gateway with OpenAI's own JavaScript and Python SDKs
	cd services/e2e && go test -tags sdks -v -count=1 -timeout $(TEST_TIMEOUT) -run '^TestOfficialSDKs$$' .

# The shared packages without those that start servers; the race detector would slow servers down, not check them.
.PHONY: test-race
test-race: check-go check-cc ## Run the tests of pkg under the race detector
	@packages=$$(go list ./pkg/... | grep -v -E '/(embedded|testkit)(/|$$)'); \
	go test -race -count=1 -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) $$packages

.PHONY: lint
lint: check-go ## Check every module with the pinned golangci-lint (.golangci.yml), and that each is tidy on its own
	@for dir in $$(go list -m -f '{{.Dir}}') .ci/tools; do (cd "$$dir" && GOWORK=off go mod tidy -diff) || { echo "run: make tidy" >&2; exit 1; }; done
	@linter=$(LINTER) && $$linter run $(PACKAGES)

.PHONY: fmt
fmt: check-go ## Format every module
	@linter=$(LINTER) && $$linter fmt

.PHONY: check-schemas
check-schemas: check-go ## Check the OpenAPI documents, event schemas and their examples
	go test -count=1 ./schemas/...

.PHONY: check-migrations
check-migrations: check-go check-node ## Check the migrations: numbering, and up and down on the real databases
	go test -count=1 -timeout $(TEST_TIMEOUT) ./migrations/...

.PHONY: bench
bench: check-go ## Measure the decision path
	go run ./services/e2e/cmd/bench $(ARGS)

.PHONY: chaos
chaos: check-go check-node ## Crash the real services under load, 30 kills in 200,000 records, and compare log and ledger; some 10 minutes
	go run ./services/e2e/cmd/chaos $(ARGS)

.PHONY: replay
replay: check-go ## Replay a recorded trace against a running Tollgate: ARGS='--trace FILE'
	@go run ./services/tollgatectl/cmd/tollgatectl replay $(ARGS)

.PHONY: build
build: check-go ## Build every program into bin/
	@mkdir -p bin
	@for p in $(PROGRAMS); do \
		echo "bin/$$p"; CGO_ENABLED=0 go build -trimpath -o bin/$$p ./services/$$p/cmd/$$p; \
	done

.PHONY: env
env: ## Write .env with random secrets for docker compose; keeps what is there
	@services/compose-env.sh

.PHONY: tidy
tidy: check-go ## Tidy every module, each on its own as Docker builds it
	@for dir in $$(go list -m -f '{{.Dir}}') .ci/tools; do (cd "$$dir" && GOWORK=off go mod tidy); done

.PHONY: clean
clean: ## Remove what was built; data in .tollgate/ stays
	rm -rf bin
	find . -name '*.test' -type f -not -path './.git/*' -delete

# Prerequisites: each names its remedy.

.PHONY: check-go check-node check-python check-cc
check-go:
	@command -v go >/dev/null || { echo "Go is missing. Install Go 1.26 or later: https://go.dev/dl" >&2; exit 1; }
	@v=$$(go env GOVERSION); n=$${v#go}; n=$${n%%[-+ r]*}; IFS=. read -r major minor _ <<<"$$n"; \
	if [[ ! $$major =~ ^[0-9]+$$ || $$major -gt 1 || $$((10#$${minor:-0})) -ge 26 ]]; then exit 0; fi; \
	echo "Go 1.26 or later is needed, this is $$v. Install it from https://go.dev/dl" >&2; exit 1

check-node:
	@command -v node >/dev/null && command -v npm >/dev/null || { \
		echo "Node.js with npm is missing: the embedded databases come as npm packages. Install it from https://nodejs.org" >&2; \
		echo "or from your system's packages (nodejs and npm)." >&2; exit 1; }

check-python:
	@command -v python3 >/dev/null && python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or later with venv and pip is missing. Install it from https://www.python.org or from your system's packages" >&2; \
		echo "(Debian: python3 and python3-venv)." >&2; exit 1; }

check-cc:
	@[[ $$(go env CGO_ENABLED) == 1 ]] && command -v "$$(go env CC)" >/dev/null || { \
		echo "The race detector needs a C compiler. Install gcc or clang, or run: go test work" >&2; exit 1; }
