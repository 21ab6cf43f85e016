"""What a program may put into its body: nothing that makes a slot hold other rows than its prompt says."""

from __future__ import annotations

import json

import pytest
from starlette.datastructures import Headers

from kvchat.gateway.checks import Checks
from kvchat.gateway.dialects.asked import Form, Refused, understood
from kvchat.gateway.keys import Keys


def body(**more: object) -> bytes:
    return json.dumps({"messages": [], **more}).encode()


def test_chunks_are_never_shifted() -> None:
    sent = json.loads(understood(Form.CHAT, body(n_cache_reuse=1, cache_prompt=False)).for_slot(2, reuse=True))
    assert (sent["n_cache_reuse"], sent["cache_prompt"], sent["id_slot"]) == (0, True, 2)


def test_adapters_are_the_users_choice() -> None:
    with pytest.raises(Refused, match="LoRA"):
        understood(Form.CHAT, body(lora=[{"id": 0, "scale": 1.0}])).check()
    understood(Form.CHAT, body(lora=[])).check()


def test_the_owner_is_known_by_the_key_alone() -> None:
    """Not by a name that any program may give itself."""
    for keys in ({}, {"kvchat": "the-key-of-kvchat"}, {"": "everybodys-key"}):
        checks = Checks("127.0.0.1", Keys(keys, "the-owners-key"))
        for shown in ("", "the-key-of-kvchat", "everybodys-key"):
            assert not checks.is_owner(Headers({"authorization": f"Bearer {shown}", "user-agent": "kvchat"}))
        assert checks.is_owner(Headers({"authorization": "Bearer the-owners-key"}))
        assert not Checks("127.0.0.1", Keys(keys)).is_owner(Headers({"authorization": "Bearer "}))
