"""MCP servers as sources of tools.

`manager.py` is the API for the window and the commands. `config.py` reads mcp.json, `approvals.py` stores what the user
approved, and `secrets.py` keeps values in the keyring. `foreign.py` imports from other apps, and `bundles.py` installs
.mcpb files. `source.py` starts a server when it is needed. Connections run in a separate thread with the MCP SDK. Only
`connection.py`, `results.py`, `process.py` and `http.py` import the SDK, when the first server is started.
"""
