"""Access to save points for the window, `ask` and `bench`, off the UI thread and within the configured limits."""

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from kvchat.engine.api.client import LlamaServerClient
from kvchat.engine.api.errors import EngineError
from kvchat.engine.api.wire import ChatMemory
from kvchat.errors import KvchatError
from kvchat.kvstore.index.index import check_store
from kvchat.kvstore.savepoint import (
    Bounds,
    ConversationUsage,
    PrunePlan,
    StoreUsage,
    default_quota,
    device_of,
)
from kvchat.kvstore.store import BlockStore, store_without_memory, unavailable_error
from kvchat.library.gguf.facts import read_facts
from kvchat.library.gguf.kv_cache import kv_bytes
from kvchat.library.memory.demand import staging_room
from kvchat.session.restore_cost import PrefillSpeed
from kvchat.settings import Settings
from kvchat.system.files import is_folder, run_with_timeout
from kvchat.system.paths import Paths
from kvchat.text.formatting import format_size, format_tokens
from kvchat.text.language import N_, _, plural

# A change to these makes the store check its limits.
BOUND_SETTINGS = ("quota_bytes", "free_floor_bytes", "max_age_days", "model_path", "kv_type")
LONG_CHAT_TOKENS = 32_768  # tokens; size estimates assume a chat this long


def store_bounds(paths: Paths, settings: Settings, kept_bytes: int = 0) -> Bounds:
    """Return the store's limits from the settings. Raises OSError.

    `kept_bytes`: total size of the existing save points, for the default quota.
    """
    quota = settings.quota_bytes
    if quota is None:
        existing = next(folder for folder in (paths.cache, *paths.cache.parents) if is_folder(folder))
        quota = default_quota(shutil.disk_usage(existing).total, long_chat_bytes(settings), kept_bytes)
    return Bounds(quota, settings.free_floor_bytes, settings.max_age_days)


def apply_bounds(paths: Paths, settings: Settings, store: BlockStore) -> None:
    store.inventory.set_bounds(store_bounds(paths, settings, store.inventory.occupied_bytes()))


def long_chat_bytes(settings: Settings) -> int:
    """Return the save size of a 32K-token chat with the configured model in bytes; 0 if unknown."""
    if settings.model_path is None or settings.engine_url:
        return 0
    try:
        facts = run_with_timeout(partial(read_facts, Path(settings.model_path)))
        return kv_bytes(facts.kv, LONG_CHAT_TOKENS, settings.kv_type)
    except (KvchatError, OSError, ValueError):
        return 0


def describe_capacity(quota: int, chat_bytes: int) -> str:
    if not chat_bytes:
        return ""
    chats, tokens = quota // chat_bytes, format_tokens(LONG_CHAT_TOKENS)
    if chats < 1:
        none = N_("A chat of {tokens} tokens with this model takes {size}, more than the limit of {limit}.")
        return _(none, tokens=tokens, size=format_size(chat_bytes), limit=format_size(quota))
    some = N_("The limit of {limit} is enough for about {chats} of {tokens} tokens with this model.")
    count = plural(chats, "{count} chat", "{count} chats")
    return _(some, limit=format_size(quota), chats=count, tokens=tokens)


def describe_limit(paths: Paths, settings: Settings) -> str:
    quota = store_bounds(paths, settings).quota
    return describe_capacity(quota, long_chat_bytes(settings)) or format_size(quota)


def open_store(paths: Paths, settings: Settings) -> BlockStore:
    """Open the store, with staging limited to `staging_room`."""
    return BlockStore(paths.save_points, store_bounds(paths, settings), staging_room)


def open_store_or_empty(paths: Paths, settings: Settings) -> BlockStore:
    """Open the store; if that fails, return one that saves nothing and gives the reason, so that chats still work."""
    try:
        return open_store(paths, settings)
    except KvchatError as error:
        return store_without_memory(error)
    except OSError as error:
        return store_without_memory(
            KvchatError(_("The chat memory folder cannot be used."), f"{paths.save_points}: {error}.")
        )


def store_problem(paths: Paths) -> str:
    """Return why the store cannot be opened; "" if it can or does not exist. Read-only."""
    if not os.path.lexists(paths.save_points) and (is_folder(paths.cache) or not os.path.lexists(paths.cache)):
        return ""
    try:
        check_store(paths.save_points)
    except KvchatError as error:
        return str(unavailable_error(error))
    return ""


def saved_models(usage: StoreUsage) -> set[str]:
    """Return the fingerprint names of the models whose chats have save points."""
    return {chat.model for chat in usage.conversations if chat.tokens}


def with_reprocessing_times(usage: StoreUsage, speeds: Mapping[str, PrefillSpeed]) -> StoreUsage:
    conversations = [
        replace(chat, reprocessing=speeds[chat.model].forecast(chat.tokens)) if chat.tokens else chat
        for chat in usage.conversations
    ]
    return replace(usage, conversations=tuple(conversations))


def plan_with_reprocessing_times(plan: PrunePlan, usage: StoreUsage) -> PrunePlan:
    times = {chat.conversation_id: chat.reprocessing for chat in usage.conversations}
    conversations = [
        chat if chat.save_points_left else replace(chat, reprocessing=times.get(chat.conversation_id))
        for chat in plan.conversations
    ]
    return replace(plan, conversations=tuple(conversations))


def with_server_memory(usage: StoreUsage, server_bytes: int, memory: Sequence[ChatMemory]) -> StoreUsage:
    """Add the memory that another kvchat keeps to the chats' usage; the totals remain those of this computer.

    `server_bytes`: of all chats there. What one of them shares with others is not known.
    """
    if not memory:
        return usage
    chats = {entry.conversation_id: entry for entry in usage.conversations}
    for entry in memory:
        id = re.sub("^prepared-", "prepared:", entry.chat)
        here = chats.get(id)
        chats[id] = ConversationUsage(
            id,
            entry.bytes + (here.bytes if here else 0),
            entry.save_points + (here.save_points if here else 0),
            datetime.fromtimestamp(entry.last_used_at, UTC),
            exclusive_bytes=entry.bytes + (here.exclusive_bytes if here else 0),
            tokens=max(entry.tokens, here.tokens if here else 0),
            model=here.model if here else "",
            pinned=entry.keep == "always",
            never_save=entry.keep == "never",
        )
    return replace(usage, conversations=tuple(chats.values()), server_bytes=server_bytes)


class StoreService:
    """The store of this computer and, if it keeps the chats' memory, of the paired one: changes are made here first.

    Methods raise EngineGone if that one is away, after the change here.
    """

    def __init__(
        self,
        paths: Paths,
        store: BlockStore,
        settings: Callable[[], Settings],
        speed: Callable[[str], Awaitable[PrefillSpeed]],
        memory_server: Callable[[], Awaitable[LlamaServerClient | None]],
    ) -> None:
        """`speed` returns the prefill speed for a model's fingerprint name.

        `memory_server`: see `EngineHost`.
        """
        self.store, self._memory_server = store, memory_server
        self._paths, self._settings, self._speed = paths, settings, speed

    @property
    def problem(self) -> KvchatError | None:
        return self.store.problem

    async def usage(self) -> StoreUsage:
        usage = await asyncio.to_thread(self.store.inventory.usage)
        usage = with_server_memory(usage, *await self._chat_memory())
        usage = with_reprocessing_times(usage, {model: await self._speed(model) for model in saved_models(usage)})
        return replace(usage, chat_bytes=await asyncio.to_thread(long_chat_bytes, self._settings()))

    async def _chat_memory(self) -> tuple[int, tuple[ChatMemory, ...]]:
        """Return the memory of the chats that another kvchat keeps; nothing while it is away."""
        try:
            server = await self._memory_server()
            return await server.chat_memory() if server else (0, ())
        except EngineError:
            return 0, ()

    async def delete(self, conversation_id: str | None) -> int:
        """Delete the memory of a conversation, of a device with all its chats or, given None, of all."""
        if conversation_id is not None and (device := device_of(conversation_id)):
            return await asyncio.to_thread(self.store.inventory.delete_program, device)
        inventory = self.store.inventory
        if conversation_id is None:
            freed = await asyncio.to_thread(inventory.delete_all)
        else:
            freed = await asyncio.to_thread(inventory.delete_conversation, conversation_id)
        if (server := await self._memory_server()) is not None:
            memory = (await server.chat_memory())[1] if conversation_id is None else ()
            chats = [entry.chat for entry in memory] if conversation_id is None else [conversation_id]
            for chat in chats:
                await server.forget_chat(chat)
        return freed

    async def plan_prune(self, target_bytes: int) -> PrunePlan:
        """Plan how to prune the store to `target_bytes`, with estimated reprocessing times. Deletes nothing."""
        return plan_with_reprocessing_times(
            await asyncio.to_thread(self.store.inventory.plan_prune, target_bytes), await self.usage()
        )

    async def prune(self, plan: PrunePlan) -> int:
        return await asyncio.to_thread(self.store.inventory.prune, plan)

    async def set_pinned(self, conversation_id: str, pinned: bool) -> None:
        await asyncio.to_thread(self.store.inventory.set_pinned, conversation_id, pinned)
        if (server := await self._memory_server()) is not None:
            await server.keep_chat(conversation_id, "always" if pinned else "automatic")

    async def set_never_save(self, conversation_id: str, never: bool) -> None:
        await asyncio.to_thread(self.store.inventory.set_never_save, conversation_id, never)
        if (server := await self._memory_server()) is not None:
            await server.keep_chat(conversation_id, "never" if never else "automatic")

    async def apply_limits(self, settings: Settings) -> None:
        if self.problem is None:
            await asyncio.to_thread(apply_bounds, self._paths, settings, self.store)
