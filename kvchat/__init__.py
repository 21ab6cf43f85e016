"""kvchat: a desktop chat app for llama-server with saved KV caches."""

__version__ = "0.1.0"
APP_ID = "io.github.kvchat.kvchat"  # name of the desktop file, without extension
