"""What the self-test means for chats is seen on the chat's stage, where it is not stubbed."""

from __future__ import annotations

from tests.chat.conftest import stage as stage
