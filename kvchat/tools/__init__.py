"""Tools that a model may call: built-in ones and those of MCP servers. No chats and no engine.

A chat freezes the definitions of its tools when it begins (`tool.freeze`), because they are at the beginning of its
prompt. Permission is checked when a call is executed (kvchat.chat.turn.tool_calls), never by changing the list.
"""
