"""MCP servers as sources of tools.

`manager.py` is what the window and the commands use. `config.py` has the servers of mcp.json, `approvals.py` what the
user approved, `secrets.py` the values in the keyring; `foreign.py` imports from other apps and `bundles.py` installs
.mcpb files. `source.py` starts a server when it is needed. A `Connection` runs in a thread of its own with the SDK,
which only `connection.py`, `results.py`, `process.py` and `http.py` import, when the first server is started.
"""
