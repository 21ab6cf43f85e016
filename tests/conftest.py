pytest_plugins = ["tests.engine_fixtures", "tests.model_fixtures"]
