.PHONY: run test check lint bundle catalogues clean

run:     ; packaging/run
test:    ; packaging/test
check:   ; packaging/test --quick
bundle:  ; packaging/build-bundle
catalogues: ; packaging/catalogues

lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

clean:
	rm -rf build dist .venv .debian .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
